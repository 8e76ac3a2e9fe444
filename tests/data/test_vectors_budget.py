"""How much memory a fit may use, as text and as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.data.vectors import Budget
from auxbit.errors import InvalidParameter


@pytest.mark.parametrize(
    ("memory", "wanted"),
    [
        ("1GB", 10**9),
        ("1gib", 2**30),
        (" 1.5 GB ", 1_500_000_000),
        ("512M", 512 * 10**6),
        (200_000_000, 200_000_000),
        (2e8, 200_000_000),
        (np.int64(200_000_000), 200_000_000),
        ("2tb", 2 * 10**12),
    ],
)
def test_bytes_by_many_names(memory, wanted):
    assert Budget.parse(memory).total == wanted


@pytest.mark.parametrize("memory", ["lots", "", "-1GB", "1XB", "10MB", 1000, True, None, float("nan"), [1]])
def test_what_is_no_amount_or_too_little_is_refused_and_an_example_given(memory):
    with pytest.raises(InvalidParameter, match=r"memory=.*expected bytes, as '1GB'.*at least 128MB"):
        Budget.parse(memory)


def test_rows_are_as_many_as_fit_within_limits():
    budget = Budget(10**9)
    assert budget.rows_of(1000, 0.2, most=10**6) == 200_000
    assert budget.rows_of(1000, 0.2, most=500) == 1000  # never fewer than that
    assert budget.rows_of(1, 1.0, most=700_000) == 700_000


def test_threads_are_as_many_as_have_room_for_their_blocks():
    assert Budget(10**9).threads(128, 32, 2) == 2
    few = Budget(128 * 10**6).threads(128, 32, 64)
    assert 1 <= few < 8
    assert Budget(10**9).threads(128, 32, 64) > few


def test_rows_too_wide_for_a_single_thread_name_what_they_need():
    with pytest.raises(InvalidParameter, match=r"at least \d+MB for rows of 4096 numbers"):
        Budget(128 * 10**6).threads(4096, 32, 1)
