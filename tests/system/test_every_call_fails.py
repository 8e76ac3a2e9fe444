"""Every call of the system fails once: an error of ours, nothing half done, and a second try succeeds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")
Run = Callable[[str, str, int], dict[str, Any]]

# of calls, which are up to 250, one in so many is tried; by tests that are slow all are
STEPS = {
    "fit": 12, "encode": 2, "create": 8, "add": 8, "add a file": 8, "compact": 8, "retrain": 8, "images": 24,
    "sqlite": 6, "duckdb": 16,
}  # fmt: skip
LONG = ("ENOSPC", "EIO", "EINTR")
SHORT = ("EMFILE", "ENOMEM", "descriptors", "memory")
WITHOUT = {  # nothing to fail there
    *(("sqlite", fault) for fault in ("ENOMEM", "memory")),
    *(("duckdb", fault) for fault in ("ENOMEM", "memory")),
    *((operation, "memory") for operation in ("create", "compact", "retrain")),
    ("duckdb", "descriptors"),  # DuckDB 2.0 ends the process if it has none to open a file by
}


class Library:
    """The process in which calls fail; another one if that has died."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None
        self._library = folder / "failing_calls.so"
        source = TESTS / "helpers" / "failing_calls.c"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True)

    def run(self, operation: str, fault: str, step: int) -> dict[str, Any]:
        """What has come of all trials."""
        process = self._started()
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
            job = {"operation": operation, "fault": fault, "place": place, "step": step}
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        assert line, f"the process has died: {process.wait()} {self._errors.read_text()[-2000:]}"
        return json.loads(line)

    def _started(self) -> Any:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._errors = self._folder / "errors.txt"
            path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
            more = {"LD_PRELOAD": str(self._library), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "helpers.failing_calls"],
                    env=os.environ | more,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("calls are made to fail by a preloaded library: that needs Linux and a C compiler, cc")
    library = Library(tmp_path_factory.mktemp("library"))
    yield library.run
    library.close()


def assert_safe(report: dict[str, Any], *, fails: bool) -> None:
    assert report["wrong"] == []
    assert report["calls"] > 0
    assert report["failed"] > 0 or not fails, "no call has failed"


@pytest.mark.parametrize("fault", LONG[:2])
@pytest.mark.parametrize("operation", STEPS)
def test_a_call_that_fails_once_leaves_all_as_before_or_as_after_and_a_second_try_succeeds(
    run: Run, operation: str, fault: str
) -> None:
    assert_safe(run(operation, fault, STEPS[operation]), fails=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", LONG)
@pytest.mark.parametrize("operation", STEPS)
def test_every_call_fails_once(run: Run, operation: str, fault: str) -> None:
    # what is interrupted is tried again by Python, SQLite and safetensors
    assert_safe(run(operation, fault, 1), fails=fault != "EINTR")


@pytest.mark.parametrize(
    ("operation", "fault"),
    [(each, fault) for each in STEPS for fault in SHORT if (each, fault) not in WITHOUT],
)
def test_without_descriptors_maps_or_memory_nothing_is_lost(run: Run, operation: str, fault: str) -> None:
    step = {"fit": 8 if fault == "memory" else 2, "images": 3, "duckdb": 3}.get(operation, 1)
    assert_safe(run(operation, fault, step), fails=True)


# not pictures: a thread of Python that lacks the memory to begin with is waited for without end
@pytest.mark.parametrize("operation", ["fit", "encode", "add", "retrain"])
def test_in_a_limit_of_address_space_nothing_is_lost(run: Run, operation: str) -> None:
    assert_safe(run(operation, "address space", 1), fails=True)


def test_whoever_is_careless_is_noticed(run: Run) -> None:
    wrong = "\n".join(run("careless", "EIO", 1)["wrong"])
    for said in (
        "OSError: [Errno 5] Input/output error",
        "which is no error of ours",
        "the state is neither that before nor that after",
        "left open",
        "left behind after a second try",
    ):
        assert said in wrong
