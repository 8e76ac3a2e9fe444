from __future__ import annotations

import subprocess
import sys
import threading
import time

import faiss  # noqa: F401  its BLAS is built on OpenMP, whose limits are kept by thread
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from auxbit.core.parallel import BLOCK_ROWS, Workers, block_slices, resolve_n_jobs
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
