from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")  # a kill loses nothing that a process has written, synced or not

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")


@pytest.fixture
def folder(tmp_path):
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as name:
        yield name


def run(*command: str) -> subprocess.CompletedProcess[str]:
    alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, *command], env=alone, capture_output=True, text=True, timeout=300, check=False
    )


def kill(folder: str, rounds: int, seed: int) -> None:
    done = run(str(TESTS / "helpers" / "crash_writer.py"), folder, str(rounds), str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{rounds} kills"), done.stdout


def test_a_kill_loses_no_acknowledged_change_and_leaves_none_by_half(folder):
    kill(folder, 30, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_three_hundred_kills_lose_nothing(folder, seed):
    kill(folder, 100, seed)


BROKEN = """
import sys
from pathlib import Path
from helpers import crash_writer
from auxbit import Collection

add = Collection.add
def delete_and_add(self, X=None, *, ids=None, upsert=False, **given):
    if upsert:
        self.delete([each for each in ids if each in self])
    return add(self, X, ids=ids, **given)

Collection.add = delete_and_add
crash_writer.main(Path(sys.argv[1]), 150, 1)
"""


@pytest.mark.slow  # kills must fall between the two steps, which a busy machine seldom gives time for
def test_a_change_in_two_steps_is_noticed(folder):
    done = run("-c", BROKEN, folder)
    assert done.returncode == 1, done.stdout
    assert "neither after the change nor before" in done.stderr
