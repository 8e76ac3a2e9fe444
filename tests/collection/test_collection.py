"""Collections: what is added is found, by every mode, after any history, in memory and on disk again."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import ITQ, BinaryAutoencoder, Collection, HammingIndex
from auxbit.errors import InvalidInput, InvalidParameter
from helpers.index_truth import slow_search


def truth(model, digits):
    base = model.encode(digits[300:1500])
    return base, np.concatenate([np.arange(700), np.arange(5000, 5500)])


# ---- searching


def test_a_hamming_search_is_that_of_an_index_of_the_codes(filled, model, digits):
    base, ids = truth(model, digits)
    expected = slow_search(base, ids, model.encode(digits[:50]), 20)
    for queries in ({"X": digits[:50]}, {"codes": model.encode(digits[:50])}):
        distances, found = filled.search(k=20, mode="hamming", **queries)
        np.testing.assert_array_equal(distances, expected[0])
        np.testing.assert_array_equal(found, expected[1])


def test_a_radius_search_is_that_of_an_index(filled, model, digits):
    index = HammingIndex(16)
    index.add(*truth(model, digits))
    expected = index.search_radius(model.encode(digits[:50]), 2)
    for found, wanted in zip(filled.search_radius(digits[:50], 2), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_asymmetric_search_is_that_of_an_index_with_the_decoder(filled, model, digits):
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(*truth(model, digits))
    for found, wanted in zip(
        filled.search(digits[:50], 7, mode="asymmetric"), index.search_asymmetric(digits[:50], 7), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["hamming", "asymmetric"])
def test_reranking_all_candidates_gives_the_true_neighbours(tmp_path, model, digits, vectors, mode):
    base, queries = digits[300:1000], digits[:20]
    with Collection.create(tmp_path / "c", model, vectors=vectors) as collection:
        collection.add(base)
        distances, ids = collection.search(queries, 5, mode=mode, rerank=len(base))
    true = ((queries[:, None].astype(np.float64) - base.astype(vectors)[None]) ** 2).sum(axis=2)
    order = np.argsort(true, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(distances, np.take_along_axis(true, order, 1), rtol=1e-6)


def test_reranking_a_few_gives_the_best_of_these(filled, digits):
    _, near = filled.search(digits[:10], 30, mode="hamming")
    distances, ids = filled.search(digits[:10], 3, rerank=30)
    for query, row, listed in zip(digits[:10], ids, near, strict=True):
        listed = np.sort(listed)
        true = ((filled.vectors(listed) - query) ** 2).sum(axis=1)
        assert set(row) <= set(listed)
        np.testing.assert_allclose(
            np.sort(true)[:3], ((filled.vectors(row) - query) ** 2).sum(axis=1), rtol=1e-5
        )
    assert (np.diff(distances, axis=1) >= 0).all()


def test_reranking_where_rows_are_normalised_is_by_the_angle(tmp_path, digits):
    rows = digits[:600] * np.linspace(0.5, 3, 600)[:, None]
    model = BinaryAutoencoder(16, normalize=True, random_state=0, max_iter=2).fit(rows)
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        collection.add(rows[100:])
        _, ids = collection.search(rows[:20], 1, rerank=500)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_array_equal(ids[:, 0], (unit[:20] @ unit[100:].T).argmax(axis=1))


def test_where_searches_only_what_has_the_metadata(filled, digits):
    for options in ({}, {"mode": "asymmetric"}, {"rerank": True}):
        _, ids = filled.search(digits[:10], 8, where={"odd": True, "row": {">=": 900}}, **options)
        rows = filled.metadata(ids.ravel())
        assert all(row["odd"] and row["row"] >= 900 for row in rows)
    distances, ids = filled.search(digits[:10], 3, where={"odd": "no"})
    assert distances.shape == ids.shape == (10, 0)
    lims, _, ids = filled.search_radius(digits[:10], 16, where={"row": {"<": 310}})
    assert set(ids) == set(range(10))
    assert lims[-1] == 100


def test_with_fewer_items_than_k_all_are_returned_and_nothing_else(tmp_path, model, digits):
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        for k in (1, 5):
            assert collection.search(digits[:2], k)[1].shape == (2, 0)  # nothing in it
        collection.add(digits[:3])
        for options in ({}, {"mode": "asymmetric"}, {"rerank": True}, {"rerank": 100}):
            distances, ids = collection.search(digits[:2], 5, **options)
            assert distances.shape == ids.shape == (2, 3)
            assert [sorted(row) for row in ids.tolist()] == [[0, 1, 2]] * 2
            assert (np.diff(distances.astype(float), axis=1) >= 0).all()


def test_queries_that_cannot_be_used_are_errors_that_say_why(filled, digits):
    with pytest.raises(InvalidInput, match="64"):
        filled.search(digits[:2, :10])
    with pytest.raises(InvalidInput, match=r"rows of 64 numbers, shape \(q, 64\); got shape \(2, 10\)"):
        filled.search(digits[:2, :10], mode="asymmetric")
    with pytest.raises(InvalidParameter, match="k=0 is invalid"):
        filled.search(digits[:2], 0)
    with pytest.raises(InvalidInput, match="nothing to search for: give X, rows to encode, codes"):
        filled.search()
    with pytest.raises(InvalidInput, match="compare vectors, but the queries are codes"):
        filled.search(codes=np.zeros((1, 2), np.uint8), rerank=True)
    with pytest.raises(
        InvalidParameter, match="mode='cosine' is invalid: expected 'hamming' or 'asymmetric'"
    ):
        filled.search(digits[:2], mode="cosine")
    with pytest.raises(InvalidParameter, match="rerank=3 is invalid"):
        filled.search(digits[:2], 5, rerank=3)
    with pytest.raises(InvalidInput, match=r"NaN|finite"):
        filled.search(np.full((1, 64), np.nan), rerank=True)
    with pytest.raises(InvalidInput, match="codes"):
        filled.search(codes=np.zeros((1, 3), np.uint8))


# ---- adding and deleting


def test_rows_are_numbered_on_and_found_by_their_ids(filled, digits, model):
    assert len(filled) == 1200
    assert filled.add(digits[:2]).tolist() == [5500, 5501]
    assert 5501 in filled
    assert 700 not in filled
    assert "x" not in filled
    np.testing.assert_array_equal(filled.codes([5500, 3]), model.encode(digits[[0, 303]]))
    np.testing.assert_array_equal(filled.vectors([5500, 3]), digits[[0, 303]])
    assert filled.metadata([5, 5500]) == [{"row": 305, "odd": True}, {}]


def test_an_id_that_is_there_is_an_error_or_replaced(filled, digits):
    before = len(filled)
    with pytest.raises(
        InvalidInput, match=r"id 3 is already in the collection \(1 of the 2 given\); nothing was added"
    ):
        filled.add(digits[:2], ids=[9000, 3])
    with pytest.raises(InvalidInput, match="ids has the id 9 twice, in rows"):
        filled.add(digits[:2], ids=[9, 9])
    assert len(filled) == before
    filled.add(digits[:2], ids=[9000, 3], metadata=[{"new": 1}, {"new": 2}], upsert=True)
    assert len(filled) == before + 1
    assert filled.metadata([3]) == [{"new": 2}]
    np.testing.assert_array_equal(filled.vectors([3]), digits[1:2])


def test_what_is_deleted_is_not_found_and_its_id_may_be_used_again(filled, digits):
    assert filled.delete([0, 1, 5000, 1]) == 3
    assert len(filled) == 1197
    assert not np.isin(filled.search(digits[:20], 100)[1], [0, 1, 5000]).any()
    with pytest.raises(InvalidInput, match="id 1 is not in the collection"):
        filled.delete([2, 1])
    assert 2 in filled
    filled.add(digits[:1], ids=[1])
    assert filled.search(digits[:1], 1)[0][0, 0] == 0
    assert filled.delete(where={"odd": True}) == 349  # of 350, one is deleted
    assert filled.delete(where={"odd": True}) == 0
    with pytest.raises(InvalidInput, match="choose what to delete"):
        filled.delete()


def test_additions_that_cannot_be_used_leave_everything_as_it_was(filled, digits):
    before = filled.ids
    for wrong, match in [
        ({"X": digits[:2, :10]}, "64"),
        ({"X": np.full((2, 64), np.inf)}, "finite|inf"),
        ({"X": digits[:2], "ids": [1]}, "1 ids for the 2 rows"),
        ({"X": digits[:2], "ids": [-1, 1]}, r"must lie in 0..2\*\*63-1"),
        ({"X": digits[:2], "metadata": [{}]}, "row"),
        ({"codes": np.zeros((2, 2), np.uint8)}, "keeps vectors: give X with the codes"),
        ({"codes": np.zeros((2, 2), np.uint8), "X": digits[:1]}, "X has 1 rows, but codes has 2"),
        ({}, "nothing to add"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            filled.add(**wrong)
    np.testing.assert_array_equal(filled.ids, before)
    assert len(filled.add(digits[:0])) == 0


@pytest.mark.parametrize(("vectors", "small"), [("float16", 1e-9), ("float16", 1e-6), ("float32", 1e-40)])
def test_vectors_that_are_too_small_to_be_kept_are_an_error_and_not_zeros(tmp_path, digits, vectors, small):
    rows = digits[:100].astype(np.float64) / 16 * small
    model = ITQ(8, random_state=0).fit(rows)
    for made in ({"source": model}, {"bits": 8, "n_features": 64}):
        with Collection.create(tmp_path / "c", **made, vectors=vectors, overwrite=True) as collection:
            with pytest.raises(
                InvalidInput, match=rf"{vectors} would round to almost 0: .* Multiply all rows"
            ):
                collection.add(rows, codes=model.encode(rows))
            assert len(collection) == 0
            collection.add(rows[:3] * 0, codes=model.encode(rows[:3]))
            assert not collection.vectors([0, 1, 2]).any()


def test_a_small_row_among_larger_ones_is_kept_as_it_can_be(tmp_path, digits):
    rows = digits[:100].copy()
    rows[7] *= 1e-9
    with Collection.create(tmp_path / "c", ITQ(8, random_state=0).fit(rows), vectors="float16") as collection:
        collection.add(rows)
        collection.add(rows[7:8])
        np.testing.assert_allclose(
            collection.vectors(np.arange(101)), rows[[*range(100), 7]], rtol=1e-3, atol=1e-7
        )
    unit = BinaryAutoencoder(8, random_state=0, normalize=True, max_iter=1).fit(rows)
    collection = Collection.create(tmp_path / "unit", unit, vectors="float16")
    with collection, pytest.raises(InvalidInput, match="the numbers of row 7 are below"):
        collection.add(rows)  # its direction counts


@pytest.mark.parametrize("size", [1e-21, 1e-30, 1e-12, 1e10, 1e20])
def test_a_reranked_search_gives_the_true_order_and_distances_or_refuses(tmp_path, digits, size):
    rows = digits[:300].astype(np.float64) * size
    with Collection.create(tmp_path / "c", ITQ(8, random_state=0).fit(rows), vectors="float32") as collection:
        collection.add(rows)
        if size in (1e-21, 1e-30, 1e20):
            why = "too large" if size > 1 else "too small"
            with pytest.raises(InvalidInput, match=f"distances to X are {why} to be squared in float32"):
                collection.search(rows[:5], 4, rerank=300)
            return
        distances, ids = collection.search(rows[:5], 4, rerank=300)
        true = np.square(rows[:5, None] - rows.astype(np.float32).astype(np.float64)).sum(axis=2)
        order = np.argsort(true, axis=1, kind="stable")[:, :4]
        np.testing.assert_array_equal(ids, order)
        np.testing.assert_allclose(distances, np.take_along_axis(true, order, axis=1), rtol=1e-6)


def test_vectors_too_large_for_float16_are_an_error(tmp_path, digits):
    rows = digits[:100] * 1e5
    with Collection.create(tmp_path / "c", ITQ(8, random_state=0).fit(rows), vectors="float16") as collection:
        with pytest.raises(InvalidInput, match="cannot hold"):
            collection.add(rows)
        assert len(collection) == 0
