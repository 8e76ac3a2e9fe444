"""Fits with checkpoints in processes of their own, that kill themselves where they are told to.

Reads jobs from stdin, a line of JSON each, forks for each, and writes the child's exit code; so libraries and
compiled kernels are loaded once. A job: data, folder, model, parameters, resume, and moment and number:
"z", in the number-th Z pass, when half of the codes are written; "sync", between codes and state; "state", in
the writing of the state, before its renaming; "named", after it; "never". Seconds in the history are 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from auxbit import BinaryAutoencoder
from auxbit.core import files
from auxbit.mac import rows as shard
from auxbit.mac.checkpoint import Checkpoint


class Half:
    """The first half of rows."""

    def __init__(self, X: Any) -> None:
        self._X, self.shape = X, (X.shape[0] // 2, X.shape[1])

    def __getitem__(self, rows: slice) -> Any:
        return self._X[rows]


def prepare_to_die(moment: str, number: int) -> None:
    """Let the process be killed at the number-th moment of this kind."""
    left = number
    z_pass, replacing, write = shard.z_pass, files.replacing, Checkpoint.write

    def die_at(which: str) -> None:
        nonlocal left
        if moment == which:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def dying_z_pass(X: Any, Z: Any, task: Any, out: Any, judges: Any, workers: Any) -> Any:
        if moment == "z" and left == 1:
            half = Half(X)
            z_pass(half, Z[: half.shape[0]], task, out[: half.shape[0]], None, workers)
        die_at("z")
        return z_pass(X, Z, task, out, judges, workers)

    @contextmanager
    def dying_replacing(path: Any, **options: Any) -> Iterator[Path]:
        is_state = Path(path).name == "state.safetensors"
        with replacing(path, **options) as temporary:
            yield temporary
            if is_state:
                die_at("state")
        if is_state:
            die_at("named")

    def dying_write(self: Any, prepared: Any, state: Any, walk: Any, C: Any, rows: Any) -> None:
        rows.codes.sync()
        die_at("sync")
        write(self, prepared, state, walk, C, rows)

    shard.z_pass, files.replacing, Checkpoint.write = dying_z_pass, dying_replacing, dying_write


def run(job: dict[str, Any]) -> None:
    prepare_to_die(job["moment"], job["number"])
    model = BinaryAutoencoder(**job["parameters"])
    model.fit(job["data"], checkpoint=job["folder"], resume=job["resume"])
    model.history_ = [replace(record, seconds_h=0, seconds_f=0, seconds_z=0) for record in model.history_]
    model.save(job["model"])


def serve() -> None:
    warnings.simplefilter("ignore")
    rows = np.random.default_rng(0).random((500, 6), dtype=np.float32)
    BinaryAutoencoder(8, random_state=0, n_jobs=1, max_iter=2).fit(rows, memory="1GB")  # loads kernels
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
