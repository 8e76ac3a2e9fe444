from __future__ import annotations

import itertools

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import codes
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index import HammingIndex
from auxbit.popcount import from_planes, to_planes

FAR = np.iinfo(np.int32).max


def random_codes(n, n_bits, seed=0, share_of_ones=0.5):
    return codes.pack(np.random.default_rng(seed).random((n, n_bits)) < share_of_ones)


def slow_search(base, ids, queries, k):
    """The truth: sort everything by (distance, position)."""
    all_distances = codes.hamming_distances(queries, base)
    order = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
    distances = np.full((len(queries), k), FAR, dtype=np.int32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    distances[:, : order.shape[1]] = np.take_along_axis(all_distances, order, axis=1)
    found[:, : order.shape[1]] = ids[order]
    return distances, found


def slow_radius(base, ids, queries, r):
    every, found = slow_search(base, ids, queries, len(base))
    within = every <= r
    return np.append(0, np.cumsum(within.sum(axis=1))), every[within], found[within]


def check_search(index, base, ids, queries, k):
    distances, found = index.search(queries, k)
    assert (distances.dtype, found.dtype) == (np.int32, np.int64)
    true_distances, true_found = slow_search(base, ids, queries, k)
    np.testing.assert_array_equal(distances, true_distances)
    np.testing.assert_array_equal(found, true_found)


def check_radius(index, base, ids, queries, r):
    answers = index.search_radius(queries, r)
    assert [each.dtype for each in answers] == [np.int64, np.int32, np.int64]
    for ours, true in zip(answers, slow_radius(base, ids, queries, r), strict=True):
        np.testing.assert_array_equal(ours, true)


@pytest.mark.parametrize("n_bits", [1, 7, 8, 12, 32, 33, 64, 65, 128, 200, 1024])
def test_search_equals_sorting_all_distances(n_bits):
    base, queries = random_codes(2500, n_bits), random_codes(20, n_bits, seed=1)
    ids = np.random.default_rng(2).permutation(10_000)[:2500]
    index = HammingIndex(n_bits)
    index.add(base[:900], ids[:900])
    index.add(base[900:], ids[900:])
    for k in (1, 10, 300, 2500, 2600):
        check_search(index, base, ids, queries, k)
    for r in (0, 1, n_bits // 3, n_bits // 2, n_bits, n_bits + 5):
        check_radius(index, base, ids, queries, r)


@given(st.integers(1, 70), st.integers(0, 40), st.integers(0, 20), st.integers(1, 50), st.integers(0, 999))
def test_any_small_search_equals_sorting_all_distances(n_bits, n, q, k, seed):
    base = random_codes(n, n_bits, seed, share_of_ones=0.2).reshape(n, codes.bytes_per_code(n_bits))
    queries = random_codes(q, n_bits, seed + 1, share_of_ones=0.2).reshape(q, codes.bytes_per_code(n_bits))
    index = HammingIndex(n_bits, n_jobs=1)
    index.add(base)
    check_search(index, base, np.arange(n), queries, k)
    check_radius(index, base, np.arange(n), queries, k // 5)


@pytest.mark.parametrize("order", ["falling", "rising", "equal"])
def test_the_order_in_which_distances_come_does_not_matter(order):
    Z = np.tril(np.ones((65, 64), dtype=np.uint8), -1).repeat(60, axis=0)
    Z = {"rising": Z, "falling": Z[::-1], "equal": Z[:1].repeat(3900, axis=0)}[order]
    base = codes.pack(Z)
    index = HammingIndex(64)
    index.add(base)
    for k in (1, 59, 60, 61, 1000):
        check_search(index, base, np.arange(3900), codes.pack(np.zeros((3, 64))), k)


@pytest.mark.parametrize("n_bits", [8, 32, 64, 128, 256])
def test_distances_equal_those_of_faiss(n_bits):
    base, queries = random_codes(3000, n_bits), random_codes(30, n_bits, seed=1)
    theirs, ours = faiss.IndexBinaryFlat(n_bits), HammingIndex(n_bits)
    theirs.add(base)
    ours.add(base)
    np.testing.assert_array_equal(ours.search(queries, 50)[0], theirs.search(queries, 50)[0])
    lims, distances, ids = theirs.range_search(queries, n_bits // 3 + 1)  # theirs is exclusive
    our_lims, our_distances, our_ids = ours.search_radius(queries, n_bits // 3)
    np.testing.assert_array_equal(our_lims, lims)
    for start, stop in itertools.pairwise(lims):
        theirs_here = sorted(zip(distances[start:stop].tolist(), ids[start:stop].tolist(), strict=True))
        ours_here = zip(our_distances[start:stop].tolist(), our_ids[start:stop].tolist(), strict=True)
        assert list(ours_here) == theirs_here


def test_padding_equals_that_of_faiss():
    base = random_codes(3, 16)
    theirs, ours = faiss.IndexBinaryFlat(16), HammingIndex(16)
    theirs.add(base)
    ours.add(base)
    for our, their in zip(ours.search(base, 5), theirs.search(base, 5), strict=True):
        np.testing.assert_array_equal(our[:, 3:], their[:, 3:])


def test_any_number_of_jobs_gives_the_same_answers():
    base, queries = random_codes(2000, 32), random_codes(100, 32, seed=1)
    one, two = HammingIndex(32, n_jobs=1), HammingIndex(32, n_jobs=3)
    one.add(base)
    two.add(base)
    for ours, others in zip(one.search(queries, 20), two.search(queries, 20), strict=True):
        np.testing.assert_array_equal(ours, others)
    for ours, others in zip(one.search_radius(queries, 9), two.search_radius(queries, 9), strict=True):
        np.testing.assert_array_equal(ours, others)


def test_an_empty_index_answers_with_padding():
    index = HammingIndex(20)
    queries = random_codes(4, 20)
    distances, ids = index.search(queries, 3)
    assert (distances == FAR).all()
    assert (ids == -1).all()
    lims, distances, ids = index.search_radius(queries, 20)
    assert lims.tolist() == [0] * 5
    assert len(distances) == len(ids) == len(index) == 0
    assert index.codes.shape == (0, 3)


def test_codes_and_ids_come_back_in_the_order_of_insertion():
    base = random_codes(300, 40)
    index = HammingIndex(n_bits=40)
    for start in range(0, 300, 7):
        index.add(base[start : start + 7])
    assert len(index) == 300
    assert index.n_bits == 40
    np.testing.assert_array_equal(index.codes, base)
    np.testing.assert_array_equal(index.ids, np.arange(300))


@given(st.integers(1, 140), st.integers(0, 9))
def test_from_planes_undoes_to_planes(n_bits, n):
    packed = random_codes(n, n_bits).reshape(n, codes.bytes_per_code(n_bits))
    np.testing.assert_array_equal(from_planes(to_planes(packed, n_bits), n_bits), packed)


def test_missing_ids_number_on_from_the_largest():
    index = HammingIndex(8)
    index.add(random_codes(2, 8), ids=[40, 7])
    index.add(random_codes(2, 8))
    assert index.ids.tolist() == [40, 7, 41, 42]


def test_numbering_on_past_the_largest_int64_is_refused():
    index = HammingIndex(8)
    index.add(random_codes(1, 8), ids=[2**63 - 1])
    index.add(random_codes(0, 8).reshape(0, 1))
    with pytest.raises(InvalidInput, match="cannot be numbered on: the largest id is 9223372036854775807"):
        index.add(random_codes(1, 8))
    index.add(random_codes(1, 8), ids=[3])
    assert len(index) == 2


def test_an_id_that_is_there_is_refused_and_nothing_is_added():
    index = HammingIndex(8)
    index.add(random_codes(3, 8), ids=[5, 3, 9])
    with pytest.raises(InvalidInput, match=r"id 3 is already in the index; nothing was added.*upsert=True"):
        index.add(random_codes(2, 8), ids=[20, 3])
    with pytest.raises(InvalidInput, match="id 21 comes twice in ids; nothing was added"):
        index.add(random_codes(3, 8), ids=[21, 22, 21])
    assert index.ids.tolist() == [5, 3, 9]
    index.add(random_codes(2, 8), ids=[21, 4])
    assert index.ids.tolist() == [5, 3, 9, 21, 4]


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255)), max_size=8), max_size=6))
def test_upserting_many_equals_upserting_one_by_one(batches):
    index = HammingIndex(8, n_jobs=1)
    truth: dict[int, int] = {}  # a dict keeps the position of a key whose value is replaced
    for batch in batches:
        index.add(
            np.array([code for _, code in batch], dtype=np.uint8).reshape(-1, 1),
            ids=np.array([each for each, _ in batch], dtype=np.int64),
            upsert=True,
        )
        truth.update(batch)
        assert index.ids.tolist() == list(truth)
        assert index.codes.ravel().tolist() == list(truth.values())


def test_later_changes_do_not_reach_codes_and_ids_already_taken():
    index = HammingIndex(8)
    index.add(np.array([[1], [2]], dtype=np.uint8))
    taken = index.codes
    index.add(np.array([[9]], dtype=np.uint8), ids=[0], upsert=True)
    assert taken.ravel().tolist() == [1, 2]
    assert index.codes.ravel().tolist() == [9, 2]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, -2], r"ids must lie in 0\.\.2\*\*63-1, got -2"),
        (np.array([1, 2**63], dtype=np.uint64), "got 9223372036854775808"),
        ([1.0, 2.0], "ids must be integers, got float64"),
        ([True, False], "ids must be integers, got bool"),
        ([1], r"one integer a code, shape \(2,\), got shape \(1,\)"),
        ([[1, 2]], r"got shape \(1, 2\)"),
    ],
)
def test_ids_that_cannot_be_used_are_refused(ids, message):
    index = HammingIndex(8)
    with pytest.raises(InvalidInput, match=message):
        index.add(random_codes(2, 8), ids=ids)
    assert len(index) == 0


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None])
def test_a_k_that_cannot_be_used_is_refused(k):
    with pytest.raises(InvalidParameter, match=r"k=.* is invalid: expected an integer of at least 1"):
        HammingIndex(8).search(random_codes(2, 8), k)


@pytest.mark.parametrize("r", [-1, 2.0, True, None])
def test_a_radius_that_cannot_be_used_is_refused(r):
    with pytest.raises(InvalidParameter, match=r"r=.* is invalid: expected an integer of at least 0"):
        HammingIndex(8).search_radius(random_codes(2, 8), r)


def test_codes_and_parameters_of_another_kind_are_refused():
    index = HammingIndex(12)
    with pytest.raises(InvalidInput, match="codes must be packed codes of 12 bits"):
        index.add(random_codes(2, 17))
    with pytest.raises(InvalidInput, match="query_codes must be packed codes of 12 bits"):
        index.search(np.zeros((2, 12)))
    with pytest.raises(InvalidInput, match="bits set beyond the first 12"):
        index.add(np.full((1, 2), 255, dtype=np.uint8))
    with pytest.raises(InvalidParameter, match="n_bits=0 is invalid"):
        HammingIndex(0)
    with pytest.raises(InvalidParameter, match="n_jobs=0 is invalid"):
        HammingIndex(8, n_jobs=0)
