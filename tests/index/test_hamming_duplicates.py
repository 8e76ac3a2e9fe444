from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from auxbit.core import maps
from auxbit.errors import InvalidParameter
from auxbit.index import HammingIndex
from helpers.index_truth import clustered_codes, random_codes


def slow_groups(base, r):
    """Connected components of the graph of all pairs within r."""
    near = maps.hamming_distances(base, base) <= r
    _, labels = connected_components(near)
    every = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    return sorted((rows.tolist() for rows in every if len(rows) > 1), key=lambda rows: rows[0])


@pytest.mark.parametrize("n_bits", [12, 32, 64, 100, 1536])
@pytest.mark.parametrize("r", [0, 1, 2, 5])
def test_groups_are_those_of_all_pairs(n_bits, r):
    base = clustered_codes(1500, n_bits, n_clusters=400, flipped=0.01)
    index = HammingIndex(n_bits)
    index.add(base)
    assert [group.tolist() for group in index.find_duplicates(r)] == slow_groups(base, r)


@given(st.integers(1, 20), st.integers(1, 60), st.integers(0, 21), st.integers(0, 99))
def test_groups_of_any_few_codes_are_those_of_all_pairs(n_bits, n, r, seed):
    base = random_codes(n, n_bits, seed)
    index = HammingIndex(n_bits, n_jobs=1)
    index.add(base)
    assert [group.tolist() for group in index.find_duplicates(r)] == slow_groups(base, r)


def test_groups_hold_ids_and_nothing_removed():
    index = HammingIndex(8)
    index.add(np.array([[1], [200], [1], [1], [200], [77]], dtype=np.uint8), ids=[60, 50, 40, 30, 20, 10])
    assert [group.tolist() for group in index.find_duplicates()] == [[60, 40, 30], [50, 20]]
    index.remove([60, 20])
    assert [group.tolist() for group in index.find_duplicates()] == [[40, 30]]


def test_a_million_copies_are_one_code():
    index = HammingIndex(64, n_jobs=1)
    index.add(np.repeat(random_codes(2, 64), 500_000, axis=0))
    groups = index.find_duplicates(3)
    assert [len(group) for group in groups] == [500_000, 500_000]
    np.testing.assert_array_equal(groups[1], np.arange(500_000, 1_000_000))


def test_an_empty_index_has_no_duplicates():
    assert HammingIndex(8).find_duplicates(2) == []


@pytest.mark.parametrize("r", [-1, 1.5, None])
def test_a_radius_that_cannot_be_used_is_refused(r):
    with pytest.raises(InvalidParameter, match=r"r=.* is invalid: expected an integer of at least 0"):
        HammingIndex(8).find_duplicates(r)
