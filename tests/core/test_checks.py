"""Checks of what users pass in: what is let through, and what an error says."""

from __future__ import annotations

import mmap
import os
import re
import warnings

import numpy as np
import pytest

from auxbit.core import checks
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter, MissingExtra


@pytest.mark.parametrize("value", [True, 1.0, "3", None, 0, 11])
def test_integers_outside_their_range_and_other_types_are_refused(value):
    with pytest.raises(InvalidParameter, match=r"n=.* is invalid: expected an integer in 1\.\.10\. Try 5"):
        checks.check_integer("n", value, 1, 10, "Try 5.")


def test_masked_numbers_are_not_taken_for_those_below_the_mask():
    X = np.ma.masked_array([[1.0, 2.0], [3.0, 1e9]], mask=[[0, 0], [0, 1]])
    with pytest.raises(
        InvalidInput, match=r"X has masked numbers, 1 of 4. Fill them, e.g. X.filled\(0\), or drop"
    ):
        checks.as_array(X)
    unmasked = np.ma.masked_array([[1.0, 2.0]])
    assert checks.as_array(unmasked).tolist() == [[1.0, 2.0]]
    assert type(checks.as_array(unmasked)) is np.ndarray


def test_lists_of_unlike_lengths_are_no_array():
    with pytest.raises(InvalidInput, match=r"codes must be an array of numbers: .*inhomogeneous"):
        checks.as_array([[1, 2], [3]], "codes")


def test_integers_of_numpy_become_pythons():
    assert type(checks.check_integer("n", np.int32(7), 1)) is int
    with pytest.raises(InvalidParameter, match="expected an integer of at least 1"):
        checks.check_integer("n", 0, 1)


@pytest.mark.parametrize("value", [True, 0, -1.0, np.inf, np.nan, "1", 3.0])
def test_numbers_that_are_not_positive_finite_and_small_enough_are_refused(value):
    with pytest.raises(InvalidParameter, match="a finite number greater than 0 and at most 2"):
        checks.check_positive("mu", value, most=2.0)
    assert checks.check_positive("mu", 2, most=2.0) == 2.0


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf"), (1e200, "1e+200")],
)
def test_the_first_number_that_cannot_be_used_is_named(value, said):
    X = np.zeros((BLOCK_ROWS + 10, 3))
    X[BLOCK_ROWS + 4, 2] = X[BLOCK_ROWS + 7, 0] = value
    named = f"the rows contains {said} at row {BLOCK_ROWS + 4}, column 2"
    with Workers(2) as workers, pytest.raises(InvalidInput, match=re.escape(named)):
        checks.check_finite(X, workers, "the rows")


def test_integers_and_the_largest_floats_of_their_type_pass():
    with Workers(1) as workers:
        for X in (np.full((3, 2), 255, np.uint8), np.full((3, 2), np.finfo(np.float32).max, np.float32)):
            checks.check_finite(X, workers)
        with pytest.raises(InvalidInput, match="dates or times"):
            checks.check_finite(np.zeros((3, 2), "datetime64[s]"), workers)
    assert checks.acceptable(np.array([1e140, 1e141])).tolist() == [True, False]


def test_a_warning_points_at_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checks.warn("look here")
    assert [(str(each.message), each.filename) for each in caught] == [("look here", __file__)]


def test_a_missing_extra_names_its_pip_command():
    with pytest.raises(MissingExtra, match=r"juggling needs no_such_module: pip install 'auxbit\[fun\]'"):
        checks.require("no_such_module.inner", extra="fun", purpose="juggling")
    assert checks.require("json.decoder", extra="fun", purpose="juggling").__name__ == "json.decoder"


def test_a_package_that_is_too_old_is_named_with_its_version():
    how = {"extra": "fun", "purpose": "juggling"}
    with pytest.raises(
        checks.MissingExtra, match=r"juggling needs numpy>=99\.1, and .* is installed: pip install"
    ):
        checks.require("numpy", least="numpy>=99.1", **how)
    assert checks.require("numpy", least="numpy>=1.26", **how) is np


def test_rows_in_memory_that_processes_share_are_rows():
    rows = np.frombuffer(mmap.mmap(-1, 4 * 16 * 8), np.float32).reshape(16, 8)
    checks.check_finite(rows)
    rows[3, 5] = np.nan
    with pytest.raises(InvalidInput, match="NaN at row 3, column 5"):
        checks.check_finite(rows)


def test_rows_of_a_file_that_is_cut_short_meanwhile_are_refused(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5000, 16), np.float32))
    rows = np.load(path, mmap_mode="r")
    for mapped in (rows, rows[1000:], np.asarray(rows).reshape(-1, 8)):
        checks.check_finite(mapped)
    os.truncate(path, 200)
    for mapped in (rows, rows[1000:], np.asarray(rows).reshape(-1, 8)):
        with pytest.raises(DataFileError, match=r"was cut short while .* 200 bytes instead of 320,128"):
            checks.check_finite(mapped)
