"""Instructions of vector registers, each against plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.core.codes import query_words, to_planes
from auxbit.core.parallel import kernel
from auxbit.core.simd import BUCKET_LANES, ask_for, index_bits, lowest_bit, near_lanes


@kernel
def near(planes, start, query, limit):
    return near_lanes(planes, start, query, limit)


@kernel
def lowest(word):
    return lowest_bit(word)


@kernel
def prefetched_sum(values):
    total = 0
    for place in range(len(values)):
        ask_for(values, min(place + 8, len(values) - 1))
        total += values[place]
    return total


@pytest.mark.parametrize("n_bits", [8, 32, 64, 128])
def test_a_bit_is_set_for_each_lane_within_the_limit(n_bits):
    rng = np.random.default_rng(n_bits)
    codes = rng.integers(0, 256, (3 * BUCKET_LANES, n_bits // 8), dtype=np.uint8)
    planes, query = to_planes(codes, n_bits), query_words(codes[:1], n_bits)[0]
    distances = np.bitwise_count(codes ^ codes[0]).sum(axis=1)
    for start in (0, 5, 2 * BUCKET_LANES):
        for limit in (0, n_bits // 2, n_bits):
            lanes = distances[start : start + BUCKET_LANES] <= limit
            assert near(planes, start, query, limit) == sum(1 << i for i in np.flatnonzero(lanes).tolist())


def test_the_lowest_bit_is_counted_from_zero():
    for word in (1, 2, 12, 1 << 40, (1 << 62) + (1 << 7)):
        assert lowest(word) == (word & -word).bit_length() - 1


def test_prefetching_changes_nothing():
    assert prefetched_sum(np.arange(100)) == 4950


def test_indices_have_the_bits_that_this_machine_can_look_up():
    assert index_bits() in (0, 4, 6)
