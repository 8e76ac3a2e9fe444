"""HammingIndex.search_asymmetric: from hashers to ids. Kernels are tested in test_asymmetric.py."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from auxbit import ITQ, BinaryAutoencoder, HammingIndex
from auxbit.core.decoders import TableDecoder
from auxbit.core.maps import LinearDecoder
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index import codes as codes_module
from auxbit.index.codes import CodeBlocks, CodeStore, IdTable, LaneSet
from helpers.every_hasher import HASHERS
from helpers.index_truth import KINDS


def slow_asymmetric(decoder, codes, ids, queries, k):
    """‖x − f(z)‖² of all pairs in float64, and the errors that are expected of the codes, sorted."""
    gaps = np.square(queries[:, None].astype(float) - decoder.decode(codes)[None]).sum(axis=2)
    gaps += decoder.expected(codes)
    order = np.argsort(gaps, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(gaps, order, axis=1), np.asarray(ids)[order]


def check(found, decoder, codes, ids, queries, k):
    """The distances are the true ones to float32's digits, and belong to the ids."""
    wanted, _ = slow_asymmetric(decoder, codes, ids, queries, k)
    distances, got = found
    assert (distances.dtype, got.dtype) == (np.float32, np.int64)
    scale = np.square(decoder.centred(queries)).sum(axis=1).max()
    np.testing.assert_allclose(distances[:, : wanted.shape[1]], wanted, atol=1e-5 * scale)
    where = {each: row for row, each in enumerate(np.asarray(ids).tolist())}
    for query, row, near in zip(queries, got, distances, strict=True):
        rows = [where[each] for each in row.tolist() if each >= 0]
        assert len(set(rows)) == len(rows) == wanted.shape[1]
        true = np.square(query - decoder.decode(codes[rows])).sum(axis=1)
        np.testing.assert_allclose(near[: len(rows)], true, atol=1e-5 * scale)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(900, 20)) @ rng.normal(size=(20, 20)) + 5


@pytest.mark.parametrize("method", HASHERS, ids=lambda each: each.__name__)
def test_every_hasher_can_be_searched_by_its_decoder(method, rows):
    hasher = method(n_bits=12, random_state=0).fit(rows)
    codes = hasher.encode(rows)
    index = HammingIndex(hasher.n_bits, decoder=hasher.decoder_)
    index.add(codes)
    check(index.search_asymmetric(rows[:30], 12), hasher.decoder_, codes, np.arange(900), rows[:30], 12)


@pytest.fixture(scope="module", params=["linear", "tables"])
def hasher(request, rows):
    fitted = ITQ(n_bits=19, random_state=0).fit(rows)
    if request.param == "tables":
        fitted.fit_decoder(rows, "tables", mu=0.03, n_iter=3)
        assert isinstance(fitted.decoder_, TableDecoder)
    return fitted


@pytest.mark.parametrize("kind", KINDS)
def test_removed_replaced_and_filtered_codes(kind, hasher, rows):
    codes, ids = (
        hasher.encode(rows, coding="optimal").copy(),
        np.random.default_rng(1).permutation(5000)[:900],
    )
    index = HammingIndex(19, kind=kind, decoder=hasher.decoder_)
    index.add(codes[:300], ids[:300])
    index.search_asymmetric(rows[:2], 3)
    index.add(codes[300:], ids[300:])
    codes[40:60] = codes[500:520]
    index.add(codes[40:60], ids[40:60], upsert=True)
    index.remove(ids[100:200])
    left = np.delete(np.arange(900), slice(100, 200))
    queries = rows[:20]
    check(index.search_asymmetric(queries, 15), hasher.decoder_, codes[left], ids[left], queries, 15)
    some = left[::7]
    mask = np.isin(left, some)
    for among in (ids[some], mask):
        found = index.search_asymmetric(queries, 15, among=among)
        check(found, hasher.decoder_, codes[some], ids[some], queries, 15)
    distances, got = index.search_asymmetric(queries, 850)
    assert (got[:, 800:] == -1).all()
    assert np.isinf(distances[:, 800:]).all()


def test_a_shortlist_of_all_is_the_whole_search(hasher, rows):
    index = HammingIndex(19, decoder=hasher.decoder_)
    index.add(hasher.encode(rows))
    whole = index.search_asymmetric(rows[:20], 9)
    asked = hasher.encode(rows[:20])
    for ours, theirs in zip(
        whole, index.search_asymmetric(rows[:20], 9, query_codes=asked, shortlist=900), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    _, ids = index.search_asymmetric(rows[:20], 9, query_codes=asked)
    near = index.search(asked, 90)[1]
    assert all(set(row) <= set(listed) for row, listed in zip(ids.tolist(), near.tolist(), strict=True))


def test_the_queries_of_a_hasher_that_normalises_are_normalised_too():
    X = np.random.default_rng(0).normal(size=(400, 10)) + 1
    model = BinaryAutoencoder(9, normalize=True, max_iter=3, random_state=0).fit(X)
    index = HammingIndex(9, decoder=model.decoder_)
    index.add(model.encode(X))
    small, large = index.search_asymmetric(X[:9] * 1e-3, 5), index.search_asymmetric(X[:9] * 1e3, 5)
    np.testing.assert_array_equal(small[1], large[1])
    unit = X[:9] / np.linalg.norm(X[:9], axis=1, keepdims=True)
    check(small, model.decoder_, model.encode(X), np.arange(400), unit, 5)


def test_an_empty_index_answers_with_padding(hasher, rows):
    distances, ids = HammingIndex(19, decoder=hasher.decoder_).search_asymmetric(rows[:3], 4)
    assert np.isinf(distances).all()
    assert (ids == -1).all()


def test_it_finds_more_of_the_true_neighbours_than_hamming_distance(rows):
    model = ITQ(n_bits=16, random_state=0).fit(rows)
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(rows))
    truth = np.argsort(np.square(rows[:100, None] - rows[None]).sum(axis=2), axis=1)[:, :20]
    found = [
        np.mean([len(set(a) & set(b)) for a, b in zip(truth.tolist(), ids.tolist(), strict=True)])
        for ids in (index.search(model.encode(rows[:100]), 20)[1], index.search_asymmetric(rows[:100], 20)[1])
    ]
    assert found[1] > 1.2 * found[0]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.full((2, 20), np.nan), "X contains NaN at row 0, column 0"),
        (np.full((2, 20), np.inf), "X contains inf"),
        (np.zeros((2, 19)), r"rows of 20 numbers.*got shape \(2, 19\)"),
        (np.zeros(20), r"got shape \(20,\)"),
        (np.full((2, 20), "a"), "of <U1"),
        (np.zeros((2, 20), dtype="datetime64[s]"), "datetime64"),
    ],
)
def test_queries_that_cannot_be_used_are_refused(hasher, X, message):
    index = HammingIndex(19, decoder=hasher.decoder_)
    index.add(np.zeros((1, 3), dtype=np.uint8))
    with pytest.raises(InvalidInput, match=message):
        index.search_asymmetric(X, 1)


def test_what_does_not_go_together_is_refused(hasher, rows):
    index = HammingIndex(19, decoder=hasher.decoder_)
    with pytest.raises(InvalidInput, match=r"give query_codes=hasher\.encode\(X\)"):
        index.search_asymmetric(rows[:2], 3, shortlist=30)
    with pytest.raises(InvalidParameter, match=r"shortlist=2 is invalid.*It must hold the k=3 answers"):
        index.search_asymmetric(rows[:2], 3, shortlist=2, query_codes=hasher.encode(rows[:2]))
    with pytest.raises(InvalidInput, match="X has 2 rows, but query_codes has 3"):
        index.search_asymmetric(rows[:2], 3, query_codes=hasher.encode(rows[:3]))
    with pytest.raises(InvalidInput, match="query_codes must be packed codes of 19 bits"):
        index.search_asymmetric(rows[:2], 3, query_codes=rows[:2])
    with pytest.raises(InvalidParameter, match="k=0 is invalid"):
        index.search_asymmetric(rows[:2], 0)
    with pytest.raises(InvalidParameter, match="sure_of=0 is invalid"):
        index.search_asymmetric(rows[:2], 3, sure_of=0)


def test_a_hasher_in_the_place_of_its_decoder_is_recognised(hasher):
    with pytest.raises(InvalidInput, match=r"got ITQ\. Did you mean its decoder_\?"):
        HammingIndex(19, decoder=hasher)


def test_numbers_beyond_float32_are_refused(rows):
    hasher = ITQ(n_bits=8, random_state=0).fit(rows)
    index = HammingIndex(8, decoder=hasher.decoder_)
    index.add(hasher.encode(rows))
    for factor in (1e20, 1e60):
        with pytest.raises(
            InvalidInput, match=r"distances to X are too large to be squared in float32\. Rescale"
        ):
            index.search_asymmetric(rows[:2] * factor, 1)
    large = ITQ(n_bits=8, random_state=0).fit(rows * 1e22)
    with pytest.raises(InvalidInput, match=r"too large to be squared in float32\. Rescale"):
        HammingIndex(8, decoder=large.decoder_).add(large.encode(rows * 1e22))


@pytest.mark.parametrize("decoder", ["linear", "tables"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("power", [-160, -80, -66, -60, -40, 40, 70])
def test_rows_of_any_size_get_the_answers_of_float64_or_are_refused(power, normalize, decoder):
    X = np.random.default_rng(0).normal(size=(400, 12)) * 2.0**power
    hasher = BinaryAutoencoder(12, random_state=0, max_iter=2, normalize=normalize).fit(X)
    if decoder == "tables":
        too_small = power == -160 and not normalize
        with pytest.raises(InvalidInput, match="which float32 cannot hold") if too_small else nullcontext():
            hasher.fit_decoder(X, "tables", n_iter=1)
    index, codes = HammingIndex(12, decoder=hasher.decoder_), hasher.encode(X, coding="hash")
    if power == 70 and not normalize:
        with pytest.raises(InvalidInput, match="reconstructions are too large to be squared in float32"):
            index.add(codes)
        return
    index.add(codes)
    if power in (-160, -80, -66) and not normalize:
        with pytest.raises(
            InvalidInput, match=r"distances to X are too small to be squared in float32: .*Rescale"
        ):
            index.search_asymmetric(X[:30], 12)
        return
    queries = X[:30] / np.linalg.norm(X[:30], axis=1, keepdims=True) if normalize else X[:30]
    found, ids = index.search_asymmetric(X[:30], 12)
    wanted, _ = slow_asymmetric(hasher.decoder_, codes, np.arange(400), queries, 12)
    scale = np.square(hasher.decoder_.centred(X[:30])).sum(axis=1).max()
    np.testing.assert_allclose(found / scale, wanted / scale, atol=1e-5)
    true = np.square(queries[:, None] - hasher.decoder_.decode(codes)[ids]).sum(axis=2)
    true += hasher.decoder_.expected(codes)[ids]
    np.testing.assert_allclose(true / scale, wanted / scale, atol=1e-5)


def test_codes_that_all_decode_to_the_query_are_at_distance_0(rows):
    hasher = ITQ(8, random_state=0).fit(np.ones((20, 9)))
    index = HammingIndex(8, decoder=hasher.decoder_)
    index.add(hasher.encode(np.ones((3, 9))))
    distances, ids = index.search_asymmetric(np.ones((2, 9)), 3)
    assert (distances.tolist(), ids.tolist()) == ([[0, 0, 0]] * 2, [[0, 1, 2]] * 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_add_that_fails_midway_leaves_the_index_as_it_was(error, hasher, rows, monkeypatch):
    codes = hasher.encode(rows)
    index = HammingIndex(19, decoder=hasher.decoder_)
    index.add(codes[:200])
    for owner, name in (
        (type(hasher.decoder_), "squared_norms"),
        (CodeBlocks, "append"),
        (IdTable, "append"),
        (LaneSet, "append"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(getattr(owner, name), error))
            with pytest.raises(error):
                index.add(codes[200:300], ids=np.arange(999, 899, -1))
        assert len(index) == 200
        assert index.ids.tolist() == list(range(200))
    index.add(codes[200:])
    check(index.search_asymmetric(rows[:9], 7), hasher.decoder_, codes, np.arange(900), rows[:9], 7)
    assert index.ids.tolist() == list(range(900))


def mapped(planes, size):
    alive = LaneSet()
    alive.append(size)
    return CodeStore.of(CodeBlocks.mapped(planes, 19, size), IdTable.numbered(size), alive)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_file_that_grows_is_taken_in_whole_or_not_at_all(error, hasher, rows, monkeypatch):
    monkeypatch.setattr(codes_module, "ATTACHED", 64)
    codes = hasher.encode(rows)
    planes = CodeBlocks.of(codes, 19).planes
    store = mapped(planes[:4], 200)
    store.attach(hasher.decoder_)
    index = HammingIndex.over(store)
    for owner, name in (
        (type(hasher.decoder_), "squared_norms"),
        (CodeBlocks, "remap"),
        (IdTable, "extend"),
        (LaneSet, "append"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(getattr(owner, name), error))
            with pytest.raises(error), index.changing() as store:
                store.grow(planes, 900)
        assert len(index) == 200
        found = index.search_asymmetric(rows[:9], 7)
        check(found, hasher.decoder_, codes[:200], np.arange(200), rows[:9], 7)
    for size in (300, 900):
        with index.changing() as store:
            store.grow(planes, size)
        found = index.search_asymmetric(rows[:9], 7)
        check(found, hasher.decoder_, codes[:size], np.arange(size), rows[:9], 7)


def raising(function, error):
    """The function, which fails the first time that it is called, after its work."""
    calls = iter([True])

    def once(*arguments):
        result = function(*arguments)
        if next(calls, False):
            raise error
        return result

    return once


def test_an_index_without_a_decoder_says_how_to_get_one(rows):
    with pytest.raises(InvalidInput, match=r"HammingIndex\(n_bits, decoder=hasher\.decoder_\)"):
        HammingIndex(19).search_asymmetric(rows[:2], 3)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (
            LinearDecoder(np.zeros((4, 18)), np.zeros(4)),
            "decoder is for codes of 18 bits, but n_bits is 19",
        ),
        ("linear", "must be a hasher's decoder_, got str"),
        (ITQ(19), "got ITQ"),
    ],
)
def test_a_decoder_that_cannot_be_used_is_refused(decoder, message):
    with pytest.raises(InvalidInput, match=message):
        HammingIndex(19, decoder=decoder)
    index = HammingIndex(19)
    with pytest.raises(InvalidInput, match=message):
        index.attach(decoder)
    assert index.decoder is None
