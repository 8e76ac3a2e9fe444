from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import faiss  # noqa: F401  its BLAS is built on OpenMP, whose limits are kept by thread
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import auxbit
from auxbit.core import parallel
from auxbit.core.parallel import BLOCK_ROWS, Guard, Workers, block_slices, resolve_n_jobs
from auxbit.errors import InvalidInput, InvalidParameter

JOBS = [1, 2, 3]


def blas_threads() -> list[int]:
    import scipy.linalg  # noqa: F401

    return [library["num_threads"] for library in threadpool_info()]


@given(st.integers(0, 500), st.integers(1, 60))
def test_blocks_cover_the_rows_once_and_in_order(n_rows, block_rows):
    covered = [row for block in block_slices(n_rows, block_rows) for row in range(n_rows)[block]]
    assert covered == list(range(n_rows))


def test_sums_are_the_same_to_the_last_bit_for_any_number_of_jobs():
    X = np.random.default_rng(0).normal(size=(10 * BLOCK_ROWS + 17, 24)).astype(np.float32)

    def gram(block):
        return X[block].T @ X[block], X[block].sum(0), float(np.square(X[block]).sum())

    results = []
    for n_jobs in JOBS:
        with Workers(n_jobs) as workers:
            results.append(workers.sum(gram, len(X)))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert first.dtype == np.float64
            assert first.tobytes() == second.tobytes()


def test_sums_leave_the_terms_as_they_were():
    terms = np.ones((3, 2))
    with Workers(1) as workers:
        (total,) = workers.sum(lambda block: (terms[block.start],), 3, 1)
    assert total.tolist() == [3, 3]
    assert (terms == 1).all()


def test_a_sum_over_no_rows_is_an_error():
    with Workers(1) as workers, pytest.raises(InvalidInput, match="no rows to sum over"):
        workers.sum(lambda block: (1,), 0)


@pytest.mark.parametrize("n_jobs", JOBS)
def test_results_come_in_the_order_of_the_blocks_even_if_later_ones_are_ready_first(n_jobs):
    def slow_if_even(block):
        time.sleep(0.01 * (block.start % 2 == 0))
        return block.start

    with Workers(n_jobs) as workers:
        assert list(workers.map(slow_if_even, 30, 1)) == list(range(30))


@pytest.mark.parametrize("n_jobs", JOBS)
def test_run_visits_every_row(n_jobs):
    seen = np.zeros(1000, int)
    with Workers(n_jobs) as workers:
        workers.run(lambda block: np.add.at(seen, range(1000)[block], 1), 1000, 7)
    assert (seen == 1).all()


def test_blocks_may_use_the_same_workers():
    def inner(block):
        time.sleep(0.002)
        return block.start

    with Workers(2) as workers:
        found = list(workers.map(lambda block: list(workers.map(inner, 4, 1)), 6, 1))
    assert found == [[0, 1, 2, 3]] * 6


def test_few_results_wait_at_a_time():
    started = []
    with Workers(2) as workers:
        results = workers.map(lambda block: started.append(block.start), 1000, 1)
        next(results)
        time.sleep(0.05)
        assert len(started) < 30
        results.close()


@pytest.mark.parametrize("n_jobs", JOBS)
def test_an_exception_in_a_block_reaches_the_caller_and_the_pool_ends(n_jobs):
    def fail_late(block):
        if block.start == 40:
            raise ZeroDivisionError("block 40")

    before = threading.active_count(), blas_threads()
    with pytest.raises(ZeroDivisionError, match="block 40"), Workers(n_jobs) as workers:
        workers.run(fail_late, 1000, 1)
    assert (threading.active_count(), blas_threads()) == before


@pytest.mark.parametrize("n_jobs", JOBS)
def test_blas_has_one_thread_inside_and_what_it_had_after(n_jobs):
    with threadpool_limits(2):
        before = blas_threads()
        assert 2 in before
        with Workers(n_jobs) as workers:
            assert set(blas_threads()) == {1}
            for threads in workers.map(lambda block: blas_threads(), 2 * n_jobs, 1):
                assert set(threads) == {1}
        assert blas_threads() == before


LATE = """
from auxbit.core.parallel import Workers
with Workers(2):
    pass
import faiss
from threadpoolctl import threadpool_info
with Workers(2):
    print({library["num_threads"] for library in threadpool_info()})
"""


def test_libraries_that_are_loaded_later_are_limited_too():
    finished = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert finished.stdout == "{1}\n"


def test_workers_within_workers_leave_the_limit_to_the_outer_ones():
    before = blas_threads()
    with Workers(2):
        with Workers(2):
            pass
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_workers_of_two_threads_that_overlap_keep_the_limit_and_restore_it(first_ends_first):
    before = blas_threads()
    opened, finish = threading.Event(), threading.Event()
    seen = []

    def other():
        with Workers(1):
            opened.set()
            finish.wait(10)
            seen.append(set(blas_threads()))

    thread = threading.Thread(target=other)
    with Workers(1):
        thread.start()
        assert opened.wait(10)
        if not first_ends_first:
            finish.set()
            thread.join()
            assert set(blas_threads()) == {1}
    finish.set()
    thread.join()
    assert seen == [{1}]
    assert blas_threads() == before
    with threadpool_limits(1):  # nobody is left in control of the limits
        assert set(blas_threads()) == {1}


@pytest.mark.parametrize("wrong", [0, True, 1.5, "2"])
def test_an_invalid_number_of_jobs_is_refused(wrong):
    with pytest.raises(
        InvalidParameter, match=r"n_jobs=.* is invalid: expected None, a positive integer, or -1"
    ):
        Workers(wrong)


def test_negative_jobs_count_back_from_all_cores():
    available = resolve_n_jobs(None)
    assert resolve_n_jobs(-1) == available
    assert resolve_n_jobs(-2) == max(1, available - 1)
    assert resolve_n_jobs(-1000) == 1
    assert resolve_n_jobs(7) == 7


# ---- kernels that are compiled later

LATE_KERNEL = """
import sys
import numpy as np
from auxbit.core.maps import dot, divide_by_norms, measure_norms
from auxbit.core import maps
from auxbit.core.parallel import LateKernel
print(isinstance(dot, LateKernel), "numba" in sys.modules)
from auxbit.core.parallel import kernel

@kernel
def squared(x):  # which calls what was imported before it was compiled
    return dot(x, x)

unit = np.empty((1, 2))
maps.divide_by_norms(np.array([[3.0, 4.0]]), np.empty(2), np.inf, unit)  # which calls dot, too
print(squared(np.array([3.0, 4.0])), *unit[0], isinstance(maps.dot, LateKernel))
"""


def test_a_late_kernel_is_compiled_on_first_use_also_by_kernels_of_other_modules(tmp_path):
    (tmp_path / "late.py").write_text(LATE_KERNEL)
    done = subprocess.run([sys.executable, tmp_path / "late.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False", "25.0", "0.6", "0.8", "False"]


# ---- where kernels are kept

KERNEL = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
import numpy as np
from auxbit.core.maps import shift, widen  # two kernels, one line in the log
extent, _ = widen.compiled(), shift.compiled()
low, high, total = np.zeros(2), np.ones(2), np.zeros(2)
extent(np.array([[1.0, 2.0], [3.0, -4.0]]), low, high, total)
print(low, high, total, extent._cache.cache_path, sum(extent.stats.cache_hits.values()))
"""


@pytest.fixture
def run_kernel(tmp_path):
    """Run kernels in another process, of a copy of the package, where no usual cache can be written.

    Files in place of folders refuse root as well, whom permissions do not bind.
    """
    package = Path(auxbit.__file__).parent
    shutil.copytree(
        package, tmp_path / "copy" / "auxbit", ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    (tmp_path / "copy" / "auxbit" / "core" / "__pycache__").touch()
    (tmp_path / "home").touch()

    def run(temporary):
        known = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
        environment = {name: os.environ[name] for name in known if name in os.environ}
        environment |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path / "copy")}
        done = subprocess.run(
            [sys.executable, "-c", KERNEL, str(temporary)], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("[ 0. -4.] [3. 2.] [ 4. -2.]")
        assert done.stderr.count("compiled kernels cannot be kept") == 1, done.stderr
        assert "Set NUMBA_CACHE_DIR to a folder" in done.stderr
        *_, place, hits = done.stdout.split()
        return place, int(hits), done.stderr

    return run


def test_kernels_that_cannot_be_kept_as_usual_are_kept_in_a_private_temporary_folder(run_kernel, tmp_path):
    (tmp_path / "t").mkdir(mode=0o755)
    place, hits, _ = run_kernel(tmp_path / "t")
    (folder,) = (tmp_path / "t").iterdir()
    assert (Path(place).parent, hits) == (folder, 0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert run_kernel(tmp_path / "t")[:2] == (place, 1)  # what the first process has compiled


@pytest.mark.parametrize("planted", ["a folder that others can write to", "a link", "a file"])
def test_a_folder_that_others_may_have_made_is_not_read(run_kernel, tmp_path, planted):
    (tmp_path / "t").mkdir(mode=0o755)
    run_kernel(tmp_path / "t")
    (folder,) = (tmp_path / "t").iterdir()
    if planted == "a folder that others can write to":
        folder.chmod(0o770)
    else:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere") if planted == "a link" else folder.touch()
    place, hits, _ = run_kernel(tmp_path / "t")
    assert Path(place).parent != folder
    assert Path(place).parent.parent == tmp_path / "t"
    assert (hits, list((tmp_path / "t").iterdir())) == (0, [folder])  # the other was removed at the end


@pytest.mark.parametrize("mode", [None, 0o777])
def test_kernels_run_without_a_cache_if_there_is_no_folder_or_others_could_rename_it(
    run_kernel, tmp_path, mode
):
    if mode is not None:
        (tmp_path / "t").mkdir()
        (tmp_path / "t").chmod(mode)
    place, _, said = run_kernel(tmp_path / "t")
    assert place == "None"
    assert "every process compiles its own" in said


def test_kernels_run_in_a_read_only_mount(tmp_path):
    mounted = shutil.which("unshare") and shutil.which("mount")
    lines = f"""
    mkdir {tmp_path}/copy && cp -r {Path(auxbit.__file__).parent} {tmp_path}/copy/auxbit
    find {tmp_path}/copy -name '*.nbi' -delete
    mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path} || exit 77
    HOME={tmp_path} PYTHONPATH={tmp_path}/copy exec {sys.executable} -c "$KERNEL" {tmp_path}
    """
    if not mounted or os.name == "nt":
        pytest.skip("no unshare and mount here")
    environment = {"PATH": os.environ["PATH"], "KERNEL": KERNEL}
    command = ["unshare", "-rm" if os.geteuid() else "-m", "sh", "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no read-only mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[ 0. -4.] [3. 2.] [ 4. -2.]")
    assert "every process compiles its own" in done.stderr


# ---- guards


def test_a_writer_that_waits_goes_before_readers_that_come_later():
    guard, order = Guard(), []
    reading, go_on = threading.Event(), threading.Event()

    def read_first():
        with guard.reading():
            reading.set()
            go_on.wait(10)

    def write():
        with guard.writing():
            order.append("writer")

    def read_later():
        with guard.reading():
            order.append("reader")

    first = threading.Thread(target=read_first)
    first.start()
    reading.wait(10)
    writer = threading.Thread(target=write)
    writer.start()
    while not guard._writers_waiting:
        pass
    later = threading.Thread(target=read_later)
    later.start()
    go_on.set()
    for thread in (first, writer, later):
        thread.join(10)
    assert order == ["writer", "reader"]


@pytest.mark.parametrize("leave", ["reading", "writing"])
def test_a_thread_that_an_interrupt_has_kept_from_leaving_a_guard_does_not_wait_for_itself(leave):
    guard, done = Guard(), []

    def go_on():
        entered = getattr(guard, leave)()
        entered.__enter__()  # and not left, as if an interrupt had come just before
        with guard.writing():
            done.append("written")
        with guard.reading():
            done.append("read")
        entered.__exit__(None, None, None)  # for later forks

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(10)
    assert done == ["written", "read"]


def test_nobody_reads_while_somebody_writes_however_threads_take_turns():
    guard, numbers, wrong = Guard(), [0, 0], []
    before = sys.getswitchinterval()

    def change():
        for _ in range(300):
            with guard.writing():
                numbers[0] += 1
                with guard.reading():
                    numbers[1] += 1

    def look():
        for _ in range(3000):
            with guard.reading():
                with guard.reading():
                    first = numbers[0]
                if first != numbers[1]:
                    wrong.append(tuple(numbers))

    threads = [threading.Thread(target=each) for each in (change, look, look, look, change)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert numbers == [600, 600]
    assert (guard._readers, guard._writer, guard._writers_waiting) == ({}, None, 0)


def test_a_guard_is_free_again_after_an_error():
    guard = Guard()
    for use in (guard.reading, guard.writing):
        with pytest.raises(ZeroDivisionError), use():
            raise ZeroDivisionError
    with guard.writing():
        pass


def test_what_needs_no_kernels_does_not_import_numba():
    script = "import sys, auxbit.core.parallel; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_changes_of_other_threads_and_a_section_within_one_does_not_wait_for_the_fork():
    guard, inside, done = Guard(), threading.Event(), []

    def change():
        with guard.writing():
            inside.set()
            time.sleep(0.2)  # the fork begins to wait
            with Guard().reading():
                done.append("changed")

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that hangs ends by it
        with guard.reading():
            os._exit(0 if done == ["changed"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_a_section_of_its_own_thread_or_beside_an_endless_one_continues(monkeypatch):
    monkeypatch.setattr(parallel, "FORK_SECONDS", 0.05)
    stop, inside = threading.Event(), threading.Event()

    def endless():
        with Guard().reading():
            inside.set()
            stop.wait()

    thread = threading.Thread(target=endless)
    thread.start()
    inside.wait()
    guard = Guard()
    with guard.reading():
        child = os.fork()
        if not child:
            with guard.reading():
                os._exit(0)
    stop.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with guard.writing():
        pass
