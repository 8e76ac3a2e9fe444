from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import maps
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidInput
from auxbit.index.codes import all_lanes, lanes_of
from auxbit.index.multi_index import MultiIndex, _flips, choose_n_tables, likely_distance, worthwhile

FAR = np.iinfo(np.int32).max
NO_LIMIT = math.inf


def random_codes(n, n_bits, seed=0):
    return maps.pack(np.random.default_rng(seed).random((n, n_bits)) < 0.5)


def clustered_codes(n, n_bits, seed=0, n_centres=50, flipped=0.05):
    """Codes around centres that depend on the number of bits only."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).random((n_centres, n_bits)) < 0.5
    return maps.pack(centres[rng.integers(0, n_centres, n)] ^ (rng.random((n, n_bits)) < flipped))


def slow_nearest(base, queries, k, allowed):
    """The truth: sort all allowed codes by (distance, position)."""
    every = maps.hamming_distances(queries, base).astype(np.int64)
    every[:, ~allowed] = FAR
    order = np.argsort(every, axis=1, kind="stable")[:, :k]
    distances = np.full((len(queries), k), FAR)
    distances[:, : order.shape[1]] = np.take_along_axis(every, order, axis=1)
    positions = np.full((len(queries), k), -1)
    positions[:, : order.shape[1]] = order
    return distances, np.where(distances == FAR, -1, positions)


def slow_within(base, queries, r, allowed):
    distances, positions = slow_nearest(base, queries, len(base), allowed)
    return [(row[row <= r], where[row <= r]) for row, where in zip(distances, positions)]


def check_nearest(index, base, queries, k, allowed=None, budget=NO_LIMIT, n_jobs=1):
    """Finished answers are the truth, others empty; return which are finished."""
    allowed = np.ones(len(base), dtype=bool) if allowed is None else allowed
    with Workers(n_jobs) as workers:
        distances, positions, finished = index.nearest(queries, k, lanes_of(allowed), workers, budget)
    assert (distances.dtype, positions.dtype, finished.dtype) == (np.int32, np.int64, np.bool_)
    true_distances, true_positions = slow_nearest(base, queries, k, allowed)
    np.testing.assert_array_equal(distances, np.where(finished[:, None], true_distances, FAR))
    np.testing.assert_array_equal(positions, np.where(finished[:, None], true_positions, -1))
    return finished


def check_within(index, base, queries, r, allowed=None, budget=NO_LIMIT, n_jobs=1):
    allowed = np.ones(len(base), dtype=bool) if allowed is None else allowed
    with Workers(n_jobs) as workers:
        lims, distances, positions, finished = index.within(queries, r, lanes_of(allowed), workers, budget)
    assert [each.dtype for each in (lims, distances, positions)] == [np.int64, np.int32, np.int64]
    assert (lims[0], lims[-1], len(lims)) == (0, len(distances), len(queries) + 1)
    for i, (true_distances, true_positions) in enumerate(slow_within(base, queries, r, allowed)):
        mine = slice(lims[i], lims[i + 1])
        np.testing.assert_array_equal(distances[mine], true_distances if finished[i] else [])
        np.testing.assert_array_equal(positions[mine], true_positions if finished[i] else [])
    return finished


@pytest.mark.parametrize("n_bits", [1, 8, 16, 20, 32, 33, 64, 100, 256, 1536, 8191])
@pytest.mark.parametrize("n", [0, 1, 50, 5000])
def test_answers_equal_sorting_all_distances(n, n_bits):
    base = np.concatenate([random_codes(n // 2, n_bits), clustered_codes(n - n // 2, n_bits)])
    queries = np.concatenate([random_codes(4, n_bits, seed=1), clustered_codes(8, n_bits, seed=2), base[:3]])
    index = MultiIndex.build(base, n_bits)
    assert len(index) == n
    for k in (1, 10, 300, 6000):
        assert check_nearest(index, base, queries, k).all()
        check_nearest(index, base, queries, k, budget=max(0, n - 1))
    for r in {0, 1, 2, 3, 5, n_bits // 3, n_bits, n_bits + 7}:
        assert check_within(index, base, queries, r).all()
        check_within(index, base, queries, r, budget=max(0, n - 1))


@pytest.mark.parametrize(
    ("n_bits", "n_tables"), [(20, 1), (20, 2), (33, 2), (64, 3), (64, 7), (100, 5), (130, 11)]
)
def test_any_number_of_tables_gives_the_same_answers(n_bits, n_tables):
    """Also where substrings differ in length or cross from one word into the next."""
    base, queries = clustered_codes(5000, n_bits), clustered_codes(10, n_bits, seed=1)
    index = MultiIndex.build(base, n_bits, n_tables=n_tables)
    # reading all codes costs more than the budget: what is finished was found in tables
    assert check_nearest(index, base, queries, 5, budget=4999).any()
    assert check_within(index, base, queries, 1, budget=4999).all()
    assert check_within(index, base, queries, 8).all()


def test_only_allowed_positions_are_answered():
    base, queries = clustered_codes(5000, 32), clustered_codes(20, 32, seed=1)
    index = MultiIndex.build(base, 32)
    for share in (0.0, 0.01, 0.5):
        allowed = np.random.default_rng(3).random(5000) < share
        assert check_nearest(index, base, queries, 20, allowed).all()
        assert check_within(index, base, queries, 4, allowed).all()
    assert check_nearest(index, base, queries, 20, allowed, budget=4999).any()


def test_masks_may_be_longer_than_the_index():
    base, queries = clustered_codes(1000, 32), clustered_codes(5, 32, seed=1)
    index = MultiIndex.build(base, 32)
    with Workers(1) as workers:
        longer = index.nearest(queries, 7, all_lanes(5000), workers, NO_LIMIT)
        exact = index.nearest(queries, 7, all_lanes(1000), workers, NO_LIMIT)
    for one, other in zip(longer, exact):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_bits", [32, 64, 100])
def test_ties_go_to_smaller_positions(n_bits):
    """Few different codes: far more codes at the k-th distance than are kept at a time."""
    few = random_codes(6, n_bits)
    base = few[np.random.default_rng(1).integers(0, 6, 5000)]
    near = few.copy()
    near[:, 0] ^= 0b101
    for each in (base, np.repeat(few[:1], 3000, axis=0)):
        index = MultiIndex.build(each, n_bits)
        for k in (1, 10, 200):
            assert check_nearest(index, each, few, k).all()
            check_nearest(index, each, near, k, budget=20_000)
        assert check_within(index, each, near, 2).all()


def test_codes_at_the_same_distance_come_from_several_tables():
    """Every code is one bit away from the query: found at once or a flip away, each once, in order."""
    query = random_codes(1, 64)
    bits = maps.unpack(query, 64)
    base = maps.pack(bits ^ np.eye(64, dtype=np.uint8)[np.random.default_rng(0).permutation(64)])
    base = np.concatenate([base, random_codes(20_000, 64, seed=5)])
    index = MultiIndex.build(base, 64)
    for k in (1, 20, 64):
        assert check_nearest(index, base, query, k, budget=10_000).all()
    assert check_within(index, base, query, 1, budget=10_000).all()


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
def test_the_number_of_jobs_changes_nothing(n_jobs):
    base, queries = clustered_codes(5000, 64), clustered_codes(150, 64, seed=1, flipped=0.1)
    with Workers(n_jobs) as workers:
        index = MultiIndex.build(base, 64, workers)
    for ours, alone in zip(index.tables, MultiIndex.build(base, 64).tables):
        np.testing.assert_array_equal(ours, alone)
    some = check_nearest(index, base, queries, 10, budget=2000, n_jobs=n_jobs)
    np.testing.assert_array_equal(some, check_nearest(index, base, queries, 10, budget=2000))
    assert check_within(index, base, queries, 6, n_jobs=n_jobs).all()


def test_a_budget_of_nothing_finishes_nothing():
    base, queries = clustered_codes(5000, 32), clustered_codes(30, 32, seed=1)
    index = MultiIndex.build(base, 32)
    assert not check_nearest(index, base, queries, 3, budget=0).any()
    assert not check_within(index, base, queries, 3, budget=0).any()


def test_a_small_budget_finishes_some_queries_and_a_larger_one_those_too():
    base, queries = clustered_codes(20_000, 32), clustered_codes(60, 32, seed=1, flipped=0.1)
    index = MultiIndex.build(base, 32)
    smaller, larger = (check_nearest(index, base, queries, 20, budget=each) for each in (2000, 6000))
    assert 0 < smaller.sum() < larger.sum() < 60
    assert (larger | ~smaller).all()
    smaller, larger = (check_within(index, base, queries, 3, budget=each) for each in (1200, 2400))
    assert 0 < smaller.sum() < larger.sum()
    assert (larger | ~smaller).all()


def test_a_block_of_dear_queries_is_given_up():
    """Cheap ones at the end of it would be finished if they stood alone."""
    base = clustered_codes(20_000, 32)
    queries = np.concatenate([random_codes(50, 32, seed=1), base[:10]])
    index = MultiIndex.build(base, 32)
    assert not check_nearest(index, base, queries, 1, budget=1000)[8:].any()
    assert check_nearest(index, base, base[:10], 1, budget=1000).all()


def test_by_default_near_queries_are_finished_and_far_ones_left_to_a_scan():
    base = np.concatenate([random_codes(100_000, 64), clustered_codes(100_000, 64, n_centres=2000)])
    index = MultiIndex.build(base, 64)
    near = clustered_codes(20, 64, seed=1, n_centres=2000)
    assert check_nearest(index, base, near, 3, budget=None).mean() > 0.8
    assert not check_nearest(index, base, random_codes(20, 64, seed=2), 3, budget=None).any()
    assert not check_nearest(index, base, near, 3000, budget=None).any()
    assert check_within(index, base, near, 4, budget=None).all()
    assert not check_within(index, base, near, 20, budget=None).any()


@given(data=st.data())
def test_small_cases(data):
    n_bits, n = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 200))
    n_tables = data.draw(st.integers(-(-n_bits // 12), n_bits))
    seed, flipped = data.draw(st.integers(0, 10)), data.draw(st.sampled_from([0.0, 0.05, 0.5]))
    base = clustered_codes(n, n_bits, seed, n_centres=3, flipped=flipped)
    queries = clustered_codes(3, n_bits, seed + 1, n_centres=4, flipped=flipped)
    allowed = np.random.default_rng(seed).random(n) < data.draw(st.sampled_from([0.5, 1.0]))
    budget = data.draw(st.sampled_from([NO_LIMIT, n - 1, 30, 0]))
    index = MultiIndex.build(base, n_bits, n_tables=n_tables)
    check_nearest(index, base, queries, data.draw(st.integers(1, n + 3)), allowed, budget)
    check_within(index, base, queries, data.draw(st.integers(0, n_bits + 1)), allowed, budget)


def test_flips_are_all_masks_by_number_of_bits():
    flips, n_flips = _flips(np.array([7, 6]), n=10**6)
    for a in range(8):
        true = sorted(sum(1 << bit for bit in bits) for bits in itertools.combinations(range(7), a))
        np.testing.assert_array_equal(flips[a], true)
        assert list(n_flips[:, a]) == [len(true), sum(mask < 2**6 for mask in true)]
    assert len(flips) == 8


def test_flips_stop_where_reading_all_codes_is_cheaper():
    assert [len(masks) for masks in _flips(np.array([16]), n=1000)[0]] == [1, 16, 120]


def test_queries_of_no_rows_have_no_answers():
    index = MultiIndex.build(random_codes(10, 32), 32)
    none = random_codes(0, 32)
    assert check_nearest(index, random_codes(10, 32), none, 3).shape == (0,)
    assert check_within(index, random_codes(10, 32), none, 3).shape == (0,)


def test_more_codes_than_positions_hold_are_refused():
    with pytest.raises(InvalidInput, match="at most"):
        MultiIndex.build(np.broadcast_to(random_codes(1, 32), (2**32, 4)), 32)


@pytest.mark.parametrize(("n", "n_bits"), [(0, 1), (10, 8), (10**6, 32), (10**7, 64), (10**9, 256)])
def test_substrings_have_at_most_24_bits(n, n_bits):
    m = choose_n_tables(n, n_bits)
    assert 1 <= m <= n_bits
    assert math.ceil(n_bits / m) <= 24


def test_the_likely_distance_is_that_of_random_codes():
    base, queries = random_codes(20_000, 24), random_codes(50, 24, seed=1)
    kth = slow_nearest(base, queries, 30, np.ones(20_000, dtype=bool))[0][:, -1]
    assert abs(likely_distance(20_000, 24, 30) - np.median(kth)) <= 1
    assert likely_distance(10, 24, 100) == 24


def test_tables_are_worthwhile_for_near_answers_among_many_codes():
    assert worthwhile(10**6, 32, k=10)
    assert worthwhile(10**6, 64, k=10)
    assert worthwhile(10**6, 64, radius=4)
    assert not worthwhile(1000, 32, k=10)  # few codes
    assert not worthwhile(10**6, 32, k=10_000)  # many answers
    assert not worthwhile(10**6, 64, radius=32)  # far
    assert not worthwhile(10**6, 8, k=10)
    assert not worthwhile(10**6, 512, radius=0)
