"""Cells of a comparison in a process of their own, which can be stopped at a time limit or may die.

The parent writes the arrays to a folder and one line of JSON per cell to the child's standard input; the
child answers with one line of JSON each: a row, or why there is none. It is a fresh Python, so that scripts
of users need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from auxbit.core.checks import Array
from auxbit.errors import AuxbitError, InvalidInput
from auxbit.experiments.measure import Bench, Task, find_candidates
from auxbit.experiments.study import Row

START_SECONDS = 300.0  # in which a Python that imports all of it has to be there
ARRAYS = ("base", "queries", "truth")
SOMETIMES = ("train", "weights")


class CellStopped(AuxbitError):
    """A cell took too long, or its process ended."""


class CellProcess:
    """Measures cells as `Bench` does, each within a limit. It is started on use, and again after a stop."""

    def __init__(self, X_train: Array, task: Task, limit: float) -> None:
        self.limit = limit
        self._folder = tempfile.TemporaryDirectory(prefix="auxbit-compare-")
        folder = Path(self._folder.name)
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(task, name))
        for name, array in zip(SOMETIMES, (None if X_train is task.base else X_train, task.weights)):
            if array is not None:
                np.save(folder / f"{name}.npy", array)
        settings = {"k": task.k, "radius": task.radius, "n_jobs": task.n_jobs, "rerank": task.rerank}
        (folder / "settings.json").write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, name: str, label: str, bits: int, seed: int) -> Row:
        """The row of a method by its name; CellStopped if it took longer than the limit."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([name, label, bits, seed]).encode() + b"\n")
            process.stdin.flush()
        except OSError:  # it has ended: the answer says so
            pass
        answer = self._answer(self.limit, f"it took more than {self.limit:g} s, the limit of a cell")
        if "error" in answer:
            raise InvalidInput(answer["error"])
        row: Row = answer["row"]
        return row

    def close(self) -> None:
        """End the process and remove the folder."""
        self._stop()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-W", "ignore", "-m", "auxbit.experiments.worker", self._folder.name]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent, which ends the child
            )  # fmt: skip
            self._lines: queue.Queue[bytes] = queue.Queue()
            threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
            self._answer(START_SECONDS, "its process did not start")
        return self._process

    def _answer(self, seconds: float, otherwise: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self._stop()
            raise CellStopped(f"{otherwise}.") from None
        if not line:
            code = self._process.wait() if self._process else 0
            self._stop()
            raise CellStopped(f"its process ended with {code}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    """Pass on the lines of a process, and b"" at its end."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:  # closed meanwhile
        pass
    lines.put(b"")


def main(folder: Path) -> None:
    """The child: read cells until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
    base = np.asarray(arrays["base"])
    paths = [folder / f"{name}.npy" for name in SOMETIMES]
    train, weights = (np.load(path) if path.exists() else None for path in paths)
    task = Task(
        base, np.asarray(arrays["queries"]), np.asarray(arrays["truth"]), weights=weights,
        **json.loads((folder / "settings.json").read_text()),
    )  # fmt: skip
    bench = Bench(base if train is None else train, task)

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    answer({"ready": True})
    for line in sys.stdin:
        name, label, bits, seed = json.loads(line)
        try:
            (method,) = find_candidates([name]).values()
            answer({"row": bench.run(method._replace(label=label), bits, seed)})
        except InvalidInput as error:
            answer({"error": str(error)})
        except Exception as error:  # a method of the user's may raise anything
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
