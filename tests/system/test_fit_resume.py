"""A fit that is killed at any moment resumes to the very model of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auxbit.hashers.base import MODEL_FILE
from helpers.large_rows import clustered, stored

TESTS = str(Path(__file__).parents[1])

PARAMETERS = {"n_bits": 8, "random_state": 0, "max_iter": 8, "mu_factor": 1.1, "patience": 9, "n_jobs": 1}


class Fits:
    """Fits in processes of their own."""

    def __init__(self, process: subprocess.Popen[str], data: Path) -> None:
        self._process, self._data = process, data

    def whole(self, folder: Path, *, resume: bool = True, **more: Any) -> Any:
        """Fit to the end; header and bytes of the model."""
        model = folder.with_suffix(".safetensors")
        assert self._run(folder, resume=resume, parameters=PARAMETERS | more, model=str(model)) == 0
        header, arrays = MODEL_FILE.read(model)
        return header, {name: array.tobytes() for name, array in arrays.items()}

    def killed(self, folder: Path, moment: str, number: int, **more: Any) -> None:
        """Fit, or resume, until the process is killed at this moment."""
        code = self._run(folder, moment=moment, number=number, parameters=PARAMETERS | more)
        assert code == -signal.SIGKILL

    def _run(self, folder: Path, **job: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        basic = {"data": str(self._data), "folder": str(folder), "model": "", "resume": True}
        self._process.stdin.write(json.dumps(basic | {"moment": "never", "number": 0} | job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fits]:
    data = stored(".npy", clustered(5000, 12), tmp_path_factory.mktemp("data"))
    command = [sys.executable, "-m", "helpers.fit_and_die"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": TESTS}, **pipes) as process:
        yield Fits(process, data)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, fits: Fits) -> Any:
    return fits.whole(tmp_path_factory.mktemp("whole") / "state", resume=False)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *(("z", 3), ("sync", 1), ("state", 3), ("named", 2)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("z", 1), ("sync", 2), ("state", 1), ("named", 1)]
        ),
    ],
)
def test_killed_and_resumed_the_model_is_the_same_to_the_byte(tmp_path, fits, undisturbed, moment, number):
    fits.killed(tmp_path / "state", moment, number)
    assert fits.whole(tmp_path / "state") == undisturbed


def test_killed_again_and_again_it_ends_all_the_same(tmp_path, fits, undisturbed):
    for moment, number in (("z", 1), ("state", 2), ("z", 2), ("named", 1), ("sync", 1)):
        fits.killed(tmp_path / "state", moment, number)
    assert fits.whole(tmp_path / "state") == undisturbed


@pytest.mark.parametrize("number", [3, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4))])
def test_with_two_steps_for_each_penalty_no_step_spoils_the_codes_of_the_last_state(tmp_path, fits, number):
    wanted = fits.whole(tmp_path / "whole", steps_per_mu=2)
    fits.killed(tmp_path / "state", "z", number, steps_per_mu=2)
    assert fits.whole(tmp_path / "state", steps_per_mu=2) == wanted


@pytest.mark.parametrize(
    "more",
    [
        {"validation": None},
        {"h_solver": "ridge"},
        pytest.param({"init": "random"}, marks=pytest.mark.slow),
        pytest.param({"init": "agh"}, marks=pytest.mark.slow),
        {"n_bits": 20, "normalize": True},
        pytest.param({"lift": True}, marks=pytest.mark.slow),
        {"patience": 1, "max_iter": 20, "mu_factor": 1.5},
        {"validation": None, "mu0": 0.1, "mu_factor": 10.0, "max_iter": 20},
    ],
    ids=str,
)
def test_any_fit_can_be_resumed(tmp_path, fits, more):
    wanted = fits.whole(tmp_path / "whole", **more)
    fits.killed(tmp_path / "state", "z", 2, **more)
    assert fits.whole(tmp_path / "state", **more) == wanted


def test_a_fit_that_was_done_gives_its_model_again(tmp_path, fits, undisturbed):
    for _ in range(2):
        assert fits.whole(tmp_path / "state") == undisturbed
