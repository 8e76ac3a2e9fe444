"""Threads and processes at once find what one alone finds; signals lose nothing that was acknowledged."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from auxbit import Collection
from helpers import concurrent_work as work
from helpers.collection_truth import model

TESTS = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a collection of 2,000 items."""
    folder = tmp_path_factory.mktemp("shared")
    model(0).save(folder / "m.safetensors")
    with Collection.create(folder / "c", model(0), vectors="float32", n_jobs=2) as made:
        made.add(work.X[:2000], metadata=[{"n": n} for n in range(2000)])
    return folder


@pytest.fixture
def shared(place: Path) -> Iterator[Collection]:
    with Collection.open(place / "c", n_jobs=2) as opened:
        yield opened


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def at_once(tasks: list[Callable[[], Any]]) -> list[Any]:
    """The results of tasks, each in a thread of its own, which begin together."""
    results, barrier = [None] * len(tasks), threading.Barrier(len(tasks))

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = tasks[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return results


@pytest.mark.usefixtures("impatient")
def test_threads_that_fit_encode_search_and_write_at_once_find_what_one_thread_finds(place, shared, tmp_path):
    def tasks(run: str) -> list[Callable[[], Any]]:
        return [
            lambda: work.fitted(0),
            lambda: work.fitted(1),
            lambda: [work.encoded(place) for _ in range(5)],
            lambda: [work.searched(shared, seed) for seed in range(10)],
            lambda: [work.searched(shared, seed) for seed in range(5, 15)],
            lambda: work.written(tmp_path / f"{run} a"),
            lambda: work.written(tmp_path / f"{run} b"),
        ]

    alone = [task() for task in tasks("alone")]
    assert alone[0] != alone[1]
    assert at_once(tasks("at once")) == alone


@contextmanager
def busy(*calls: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Threads that make these calls again and again for the length of the block, and their errors.

    They rest in between: a child takes seconds to start, and needs the machine, too.
    """
    stop, errors = threading.Event(), list[BaseException]()

    def again_and_again(call: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                call()
                stop.wait(0.1)
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=again_and_again, args=(call,)) for call in calls]
    for each in threads:
        each.start()
    try:
        yield errors
    finally:
        stop.set()
        for each in threads:
            each.join()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each == "forkserver" else [])
        for each in multiprocessing.get_all_start_methods()
    ],
)
def test_children_encode_and_search_while_threads_of_the_parent_work(place, shared, tmp_path, method):
    context = multiprocessing.get_context(method)
    expected = [work.encoded(place), work.searched(shared, 1)]
    with (
        Collection.create(tmp_path / "other", model(0), n_jobs=2) as other,
        busy(
            lambda: work.fitted(0), lambda: work.searched(shared, 2), lambda: other.add(work.X[:50])
        ) as errors,
    ):
        for _ in range(8 if method == "fork" else 1):
            heard, answers = context.Pipe(duplex=False)
            given = (place, shared if method == "fork" else None, answers)
            child = context.Process(target=work.in_a_child, args=given)
            child.start()
            answers.close()
            found = heard.recv()
            child.join()
            assert child.exitcode == 0
            assert found == expected
        before = len(other)
    assert errors == []
    assert before > 0
    with Collection.open(tmp_path / "other", n_jobs=1) as other:
        assert len(other) >= before
        assert other.check() == []


def test_processes_that_write_in_turns_lose_nothing(tmp_path):
    path, names, times = tmp_path / "c", ("one", "two", "three"), 15
    with Collection.create(path, model(0), n_jobs=1) as made:
        made.add(work.X[:1], ids=["zero"])  # so that children need not compile
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work.add_in_turns, args=(path, name, times)) for name in names]
    for each in children:
        each.start()
    for each in children:
        each.join()
    assert [each.exitcode for each in children] == [0, 0, 0]
    with Collection.open(path, read_only=True, n_jobs=1) as collection:
        wanted = {f"{name} {turn} {each}" for name in names for turn in range(times) for each in range(3)}
        assert set(collection.ids) == wanted | {"zero"}
        assert collection.check() == []


# ---- signals


def interrupt(rounds: int, seed: int, place: Path) -> None:
    """Rounds of signals to writers, which then close their collection: tests/helpers/crash_writer.py."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else place) as folder:
        alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(TESTS / "helpers" / "crash_writer.py"), folder, str(rounds), str(seed)]
        done = subprocess.run(
            [*command, "SIGINT", "SIGTERM"],
            env=alone | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{rounds} signals"), done.stdout


def test_signals_at_any_moment_lose_no_acknowledged_change_and_leave_none_by_half(tmp_path):
    interrupt(40, 5, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 7, 8])
def test_hundreds_of_signals_lose_nothing(tmp_path, seed):
    interrupt(250, seed, tmp_path)
