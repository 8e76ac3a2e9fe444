from __future__ import annotations

import copy
import itertools

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import maps
from auxbit.core.maps import LinearDecoder
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index import HammingIndex
from helpers.index_truth import FAR, check_search, random_codes


@pytest.mark.parametrize("order", ["falling", "rising", "equal"])
def test_the_order_in_which_distances_come_does_not_matter(order):
    Z = np.tril(np.ones((65, 64), dtype=np.uint8), -1).repeat(60, axis=0)
    Z = {"rising": Z, "falling": Z[::-1], "equal": Z[:1].repeat(3900, axis=0)}[order]
    base = maps.pack(Z)
    index = HammingIndex(64)
    index.add(base)
    for k in (1, 59, 60, 61, 1000):
        check_search(index, base, np.arange(3900), maps.pack(np.zeros((3, 64))), k)


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


def test_missing_ids_number_on_from_the_largest():
    index = HammingIndex(8)
    index.add(random_codes(2, 8), ids=[40, 7])
    index.add(random_codes(2, 8))
    assert index.ids.tolist() == [40, 7, 41, 42]


def test_numbering_on_past_the_largest_int64_is_refused():
    index = HammingIndex(8)
    index.add(random_codes(1, 8), ids=[2**63 - 1])
    index.add(random_codes(0, 8))
    with pytest.raises(InvalidInput, match=r"no ids are left for .* the largest is 9223372036854775807"):
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
        ([1], r"one integer per code, shape \(2,\), got shape \(1,\)"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        ([[1], [2, 3]], "ids must be an array of numbers"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), "ids has masked numbers, 1 of"),
        ({1, "a"}, "ids must be integers, but is a set of several types"),
    ],
)
def test_ids_that_cannot_be_used_are_refused(ids, message):
    index = HammingIndex(8)
    with pytest.raises(InvalidInput, match=message):
        index.add(random_codes(2, 8), ids=ids)
    assert len(index) == 0


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None, 2**63])
def test_a_k_that_cannot_be_used_is_refused(k):
    with pytest.raises(InvalidParameter, match=r"k=.* is invalid: expected an integer in 1\.\."):
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


def test_an_id_can_be_asked_for():
    index = HammingIndex(8)
    index.add(random_codes(3, 8), ids=[5, 3, 9])
    assert 3 in index
    assert 4 not in index
    index.remove([3])
    assert 3 not in index
    assert all(each not in index for each in (-1, 2**63, "a", None, 9.5))


def test_removing_an_id_that_is_not_there_removes_nothing():
    index = HammingIndex(8)
    index.add(random_codes(3, 8), ids=[5, 3, 9])
    with pytest.raises(InvalidInput, match="id 4 is not in the index; nothing was removed"):
        index.remove([5, 4])
    assert index.ids.tolist() == [5, 3, 9]
    index.remove([5, 5])
    with pytest.raises(InvalidInput, match="id 5 is not in the index"):
        index.remove([5])
    index.remove([])
    assert index.ids.tolist() == [3, 9]


def test_an_id_that_was_removed_may_come_again():
    index = HammingIndex(8)
    index.add(np.array([[1], [2], [3]], dtype=np.uint8))
    index.remove([1])
    index.add(np.array([[7]], dtype=np.uint8), ids=[1])
    assert index.ids.tolist() == [0, 2, 1]
    assert index.codes.ravel().tolist() == [1, 3, 7]
    index.add(np.array([[8]], dtype=np.uint8), ids=[1], upsert=True)
    assert index.codes.ravel().tolist() == [1, 3, 8]


@pytest.mark.parametrize(
    ("among", "message"),
    [
        (np.ones(2, dtype=bool), r"one boolean per code, shape \(3,\), got \(2,\); or a list of ids"),
        ([0.5, 1.0], "among must be integers, got float64"),
        ([-1], "got -1"),
        (np.zeros((1, 3), dtype=np.int64), r"among must be a list of ids, got shape \(1, 3\)"),
        (np.ma.masked_array([0, 1], mask=[0, 1]), "among has masked numbers, 1 of"),
        ({1, "a"}, "among must be integers, but is a set of several types"),
        (np.ma.masked_array(np.ones(3, dtype=bool), mask=[0, 1, 1]), "among has masked numbers, 2 of"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused(among, message):
    index = HammingIndex(8)
    index.add(random_codes(3, 8))
    with pytest.raises(InvalidInput, match=message):
        index.search(random_codes(1, 8), 1, among=among)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "flat"}, "kind='flat' is invalid: expected one of auto, linear, multi"),
        ({"kind": None}, "kind=None is invalid"),
        ({"kind": "hnsw"}, r"expected one of auto, linear, multi\. FAISS has it: .*to_faiss"),
        ({"kind": "ivf"}, r"expected one of auto, linear, multi\. FAISS has it: .*to_faiss"),
        ({"coding": "optimal", "mu": np.nan}, "mu=nan is invalid: .* Or mu=0"),
        ({"coding": "optimal", "mu": -0.1}, r"mu=-0\.1 is invalid"),
        ({"coding": "optimal", "mu": "0.03"}, r"mu='0\.03' is invalid"),
    ],
)
def test_kinds_and_codings_that_there_are_not_are_refused(arguments, message):
    with pytest.raises(InvalidParameter, match=message):
        HammingIndex(8, **arguments)


def test_a_copy_is_an_index_of_its_own():
    index = HammingIndex(8)
    index.add(random_codes(5, 8))
    other = copy.deepcopy(index)
    other.remove([0])
    assert (len(index), len(other)) == (5, 4)


def test_what_an_index_is_shows():
    index = HammingIndex(8, kind="linear")
    codes = random_codes(1200, 8)
    index.add(codes)
    # 19 blocks of 64 codes, and a bit for each of them; the ids count, and take nothing
    assert repr(index) == (
        "HammingIndex(n_bits=8, kind='linear', coding='hash'): 1,200 codes, 1,368 bytes, no decoder"
    )
    for fact in (("codes", "1,200"), ("bits", "8"), ("kind", "linear"), ("decoder", "none")):
        assert "<tr><td>{}</td><td>{}</td></tr>".format(*fact) in index._repr_html_()
    index.add(codes[:2], ids=[7000, 9000])
    assert index.nbytes == 1368 + 8 * 1202
    with_decoder = HammingIndex(8, decoder=LinearDecoder(np.eye(8), np.zeros(8)))
    with_decoder.add(codes)
    assert repr(with_decoder).endswith("bytes, a decoder")
    assert with_decoder.nbytes == 1368 + 5 * 64 * 19
    assert "<td>LinearDecoder</td>" in with_decoder._repr_html_()
