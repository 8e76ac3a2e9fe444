"""Scaled rows without those held out: the same blocks as of rows in memory."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core.maps import Scaling
from auxbit.core.parallel import Workers
from auxbit.mac.rows import ScaledRows
from helpers.large_rows import clustered

N = 60
X = clustered(N, 3)
SCALING = Scaling(X.mean(axis=0, dtype=np.float64), 7.0)
HELD_OUT = st.sets(st.integers(0, N - 1), max_size=N - 1)


@given(left_out=HELD_OUT, start=st.integers(0, N), length=st.integers(0, N))
def test_slices_are_those_of_the_rows_that_are_left(left_out, start, length):
    left = np.setdiff1d(np.arange(N), sorted(left_out))
    rows = ScaledRows(X, SCALING, np.array(sorted(left_out), dtype=np.int64))
    assert rows.shape == (len(left), 3)
    assert len(rows) == len(left)
    with Workers(1) as workers:
        wanted = SCALING.apply_all(X, workers, left)
    np.testing.assert_array_equal(rows[start : start + length], wanted[start : start + length])
    np.testing.assert_array_equal(rows.raw(slice(start, start + length)), X[left][start : start + length])


@given(left_out=HELD_OUT)
def test_places_are_numbers_in_the_source(left_out):
    left = np.setdiff1d(np.arange(N), sorted(left_out))
    rows = ScaledRows(X, SCALING, np.array(sorted(left_out), dtype=np.int64))
    np.testing.assert_array_equal(rows.places(np.arange(len(left))), left)
    some = np.arange(0, len(left), 3)
    np.testing.assert_array_equal(rows.take(some), SCALING.apply(X[left[some]]))


def test_without_rows_held_out_they_are_all():
    rows = ScaledRows(X, SCALING)
    np.testing.assert_array_equal(rows[0:N], SCALING.apply(X))
    assert rows[N:].shape == (0, 3)


def test_a_thread_has_a_room_of_its_own_which_the_next_slice_fills():
    rows, theirs, read = ScaledRows(X, SCALING), [], threading.Barrier(2)

    def other() -> None:
        theirs.append(rows[0:10])
        read.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    read.wait(10)
    mine = rows[10:20]
    np.testing.assert_array_equal(theirs[0], SCALING.apply(X[0:10]))
    assert np.shares_memory(mine, rows[20:40])
    np.testing.assert_array_equal(mine, SCALING.apply(X[20:30]))
    thread.join()
