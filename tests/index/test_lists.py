"""Lists: the best codes of what is left of rows, and searches of the lists near a query."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import auxbit
from auxbit import LSH, HammingIndex
from auxbit.core.decoders import LEARNED_KS, Coverage, ListDecoder, decoder_from, decoder_parts
from auxbit.core.maps import unpack
from auxbit.core.parallel import Workers
from auxbit.errors import IndexFileError, InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.index import lists as list_search
from auxbit.index.hamming import INDEX
from auxbit.quantiser.lists import Centroids, find_centroids, number_of_lists

N_LISTS = 12


def clustered(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(20, 10)) * 4
    return (centres[rng.integers(0, 20, n)] + rng.normal(size=(n, 10))).astype(np.float32)


def fitted(bits: int = 24, lists: int = N_LISTS, decoder: str = "tables", **how) -> LSH:
    X = clustered(2000)
    return LSH(bits, random_state=0, **how).fit(X).fit_decoder(X, decoder, lists=lists, n_iter=2)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def base():
    return clustered(700, 1)


@pytest.fixture(scope="module")
def queries():
    return clustered(30, 2)


@pytest.mark.parametrize("n_lists", [1, 2, 5, 16, 17, 40, 500])
@pytest.mark.parametrize("n_values", [1, 4, None])
def test_the_nearest_lists_are_in_order_and_of_equals_the_first(n_lists, n_values):
    rng = np.random.default_rng(0)
    costs = rng.normal(size=(20, n_lists)) if n_values is None else rng.integers(0, n_values, (20, n_lists))
    costs = costs.astype(np.float32)
    for probes in {min(p, n_lists) for p in (1, 2, 3, 16, 33)}:
        lists = np.empty((20, probes), dtype=np.int64)
        list_search.nearest_lists(costs, lists)
        assert np.array_equal(lists, np.argsort(costs, axis=1, kind="stable")[:, :probes])


def index_of(model, X, n_jobs=1, ids=None):
    index = HammingIndex(model=model, n_jobs=n_jobs)
    index.add(model.encode(X, coding="optimal"), ids)
    return index


def true_distances(model, X, queries):
    """‖query − f(z)‖² and what is expected of errors, in float64."""
    f, codes = model.decoder_, model.encode(X, coding="optimal")
    rows = f.decode(codes)
    return np.square(queries[:, None] - rows).sum(axis=2) + f.expected(codes)


def first_lists(model, queries, probes):
    near = np.square(queries[:, None] - model.decoder_.centroids.astype(np.float64)).sum(axis=2)
    return np.argsort(near, axis=1)[:, :probes]


# ---- the model


@pytest.mark.parametrize("decoder", ["tables", "linear", "auto"])
def test_a_code_is_the_nearest_list_and_the_best_code_of_what_is_left(decoder, base):
    model = fitted(16, decoder=decoder)
    f = model.decoder_
    codes = model.encode(base, coding="optimal")
    numbers, rest = f.split(codes)
    assert codes.shape == (len(base), 3)
    assert np.array_equal(numbers, np.square(base[:, None] - f.centroids).sum(axis=2).argmin(axis=1))
    left = base - f.centres[numbers]
    every = np.arange(2**16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    rows = f.inner.decode(every)
    for x, code in zip(left[:20], rest[:20], strict=True):
        best = np.square(x - rows).sum(axis=1).min()
        assert np.square(x - f.inner.decode(code[None])[0]).sum() == pytest.approx(best, rel=1e-5)
    assert f.decode(codes) == pytest.approx(f.inner.decode(rest) + f.centres[numbers])


def test_lists_tell_more_of_a_row_at_the_same_bits(base):
    X = clustered(2000)
    errors = []
    for lists in (60, None):
        model = LSH(16, random_state=0).fit(X).fit_decoder(X, "tables", lists=lists, n_iter=4)
        codes = model.encode(base, coding="optimal")
        errors.append(np.square(base - model.decode(codes)).sum())
    assert errors[0] < 0.95 * errors[1]


def test_hash_codes_stay_those_of_h(base):
    model = fitted()
    assert np.array_equal(
        model.encode(base, coding="hash"), LSH(24, random_state=0).fit(clustered(2000)).encode(base)
    )
    assert model.transform(base).shape == (700, 24)
    with pytest.raises(InvalidInput, match="has lists, and bits alone do not name them"):
        model.inverse_transform(model.transform(base))
    many = fitted(lists=256)  # any byte is the number of one of them
    for each in (model, many):
        with pytest.raises(InvalidInput, match=r"has lists, and h\(x\) does not name them"):
            each.score(base)


def test_a_model_with_lists_is_saved_and_read_back(model, base, tmp_path):
    model.save(tmp_path / "m.safetensors")
    loaded = auxbit.load(tmp_path / "m.safetensors")
    codes = model.encode(base, coding="optimal")
    assert np.array_equal(loaded.encode(base, coding="optimal"), codes)
    assert np.array_equal(loaded.decode(codes), model.decode(codes))
    assert loaded.decoder_.coverage.n_rows == model.decoder_.coverage.n_rows > 0
    assert loaded.fingerprint("optimal") == model.fingerprint("optimal")
    header, tensors = decoder_parts(model.decoder_)
    assert isinstance(decoder_from(header, tensors), ListDecoder)


def test_sorted_codes_come_back_from_their_file_and_not_from_a_damaged_one(model, base, tmp_path):
    decoder, path = model.decoder_, tmp_path / "lists"
    codes = model.encode(base[:300], coding="optimal")
    numbers, _ = decoder.split(codes)
    made = list_search.SortedCodes(numbers, codes, np.arange(300), N_LISTS, model.n_bits, decoder)
    made.save(path, {"generation": 7}, {"more": np.arange(3)})
    about, arrays = list_search.map_arrays(path)
    assert about["generation"] == 7
    np.testing.assert_array_equal(arrays.pop("more"), np.arange(3))
    back = list_search.SortedCodes.mapped(about, arrays, decoder)
    assert (len(back), back.nbytes, back.blocks.n_bits) == (len(made), made.nbytes, made.blocks.n_bits)
    for own, kept in ((made.order, back.order), (made.starts, back.starts)):
        np.testing.assert_array_equal(own, kept)
    np.testing.assert_array_equal(made.blocks.planes, back.blocks.planes)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert list_search.map_arrays(path) is None


def test_rows_of_a_dask_array_have_the_same_codes(model, base):
    blocks = pytest.importorskip("dask.array").from_array(base, chunks=(300, 10))
    lazy = model.encode(blocks, coding="optimal")
    assert lazy.shape == (700, 4)
    assert np.array_equal(lazy.compute(scheduler="synchronous"), model.encode(base, coding="optimal"))


def test_lists_are_for_free_codes_alone(base):
    model = LSH(16, random_state=0).fit(base)
    with pytest.raises(InvalidParameter, match="expected None unless mu=0"):
        model.fit_decoder(base, lists=4, mu=0.1)
    for lists in ("many", 0, -1, 2.5):
        with pytest.raises(InvalidParameter, match="lists"):
            model.fit_decoder(base, lists=lists)


def test_the_number_of_lists_follows_from_that_of_rows():
    assert number_of_lists("auto", 499_999) == 0
    assert [number_of_lists("auto", n) for n in (500_000, 10**6, 10**7)] == [1024, 2048, 4096]
    assert number_of_lists(None, 10**6) == 0
    assert number_of_lists(7, 10) == 7


# ---- centroids


def test_no_list_has_ten_times_the_mean_of_rows():
    rng = np.random.default_rng(0)
    crowd = rng.normal(size=(6000, 6)) * 0.01  # most rows in one place
    X = np.vstack([crowd, rng.normal(size=(1000, 6)) * 10]).astype(np.float32)
    with Workers(1) as workers:
        centroids = find_centroids(X, 50, workers, np.random.RandomState(0))
        sizes = np.bincount(Centroids(centroids).nearest_of_all(X, workers), minlength=50)
    assert len(centroids) == 50
    assert sizes.max() < 10 * sizes.mean()


@pytest.mark.parametrize("rows", [1, 3, 500])
def test_there_are_no_more_lists_than_different_rows(rows):
    X = np.ones((500, 4), dtype=np.float32)
    X[:rows] = np.random.default_rng(0).normal(size=(rows, 4))
    with Workers(1) as workers:
        centroids = find_centroids(X, 100, workers, np.random.RandomState(0))
    assert len(centroids) == min(100, len(np.unique(X, axis=0)))


def test_the_nearest_centroid_does_not_depend_on_the_rows_beside_it():
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(64, 16)).astype(np.float32)
    # between two centroids, where rounding decides
    pairs = rng.integers(0, 64, size=(400, 2))
    X = ((centroids[pairs[:, 0]] + centroids[pairs[:, 1]]) / 2).astype(np.float32)
    near = Centroids(centroids)
    alone = np.concatenate([near.nearest(row[None]) for row in X])
    assert np.array_equal(near.nearest(X), alone)
    exact = np.square(X[:, None].astype(np.float64) - centroids.astype(np.float64)).sum(axis=2)
    assert np.array_equal(alone, exact.argmin(axis=1))


# ---- search by the decoder


@pytest.mark.parametrize("bits", [8, 24, 40])
@pytest.mark.parametrize("decoder", ["tables", "linear"])
def test_a_search_of_all_lists_is_that_of_all_codes(bits, decoder, base, queries):
    model = fitted(bits, decoder=decoder)
    true = true_distances(model, base, queries.astype(np.float64))
    distances, ids = index_of(model, base).search_asymmetric(queries, 20, probes="all")
    assert distances == pytest.approx(np.sort(true, axis=1)[:, :20], rel=1e-4, abs=1e-3)
    assert np.take_along_axis(true, ids, axis=1) == pytest.approx(distances, rel=1e-4, abs=1e-3)
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()


@pytest.mark.parametrize("decoder", ["tables", "linear"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_order_of_queries_in_memory_does_not_matter(decoder, dtype, base, queries):
    index, asked = index_of(fitted(decoder=decoder), base), queries.astype(dtype)
    wanted = index.search_asymmetric(asked, 10, probes=3)
    strided = np.repeat(asked, 2, axis=1)[:, ::2]
    for other in (np.asfortranarray(asked), strided, asked[::-1].copy()[::-1]):
        for found, known in zip(index.search_asymmetric(other, 10, probes=3), wanted, strict=True):
            assert np.array_equal(found, known)


@pytest.mark.parametrize("decoder", ["tables", "linear"])
def test_no_queries_get_no_answers(decoder, base, queries):
    distances, ids = index_of(fitted(decoder=decoder), base).search_asymmetric(queries[:0], 3)
    assert distances.shape == ids.shape == (0, 3)


@pytest.mark.parametrize("probes", [1, 3, N_LISTS - 1])
def test_a_search_of_some_lists_is_that_of_their_codes(probes, model, base, queries):
    true = true_distances(model, base, queries.astype(np.float64))
    numbers, _ = model.decoder_.split(model.encode(base, coding="optimal"))
    for q, lists in enumerate(first_lists(model, queries, probes)):
        true[q, ~np.isin(numbers, lists)] = np.inf
    distances, ids = index_of(model, base).search_asymmetric(queries, 50, probes=probes)
    wanted = np.sort(true, axis=1)[:, :50]
    assert np.array_equal(np.isinf(distances), np.isinf(wanted))
    assert np.array_equal(ids < 0, np.isinf(wanted))
    there = np.isfinite(wanted)
    assert distances[there] == pytest.approx(wanted[there], rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("probes", [2, "all"])
def test_answers_are_the_same_for_any_number_of_threads_and_queries(probes, model):
    queries, index = clustered(40, 4), index_of(model, clustered(20_000, 3))
    expected = index.search_asymmetric(queries, 30, probes=probes)
    for index.n_jobs in (2, 3):
        found = index.search_asymmetric(queries, 30, probes=probes)
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])
    alone = [index.search_asymmetric(row[None], 30, probes=probes) for row in queries[:5]]
    assert np.array_equal(np.concatenate([ids for _, ids in alone]), expected[1][:5])


def test_large_lists_are_searched_by_bounds_and_nothing_is_lost():
    model, base, queries = fitted(32, lists=3), clustered(30_000, 5), clustered(20, 6)
    true, index = true_distances(model, base, queries.astype(np.float64)), index_of(model, base)
    for k in (1, 10, 200):
        distances, _ = index.search_asymmetric(queries, k, probes="all")
        assert distances == pytest.approx(np.sort(true, axis=1)[:, :k], rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("decoder", ["tables", "linear"])
def test_answers_are_the_same_if_queries_read_lists_together(decoder, monkeypatch):
    model, queries = fitted(32, lists=5, decoder=decoder), clustered(40, 4)
    index = index_of(model, clustered(9_000, 3))
    for k, probes in ((1, 2), (10, 3), (700, 5)):
        expected = index.search_asymmetric(queries, k, probes=probes)
        with monkeypatch.context() as patch:
            patch.setattr(list_search, "CACHED_BYTES", 0)
            patch.setattr(list_search, "SHARED", 0)
            found = index.search_asymmetric(queries, k, probes=probes)
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])


def test_many_equally_near_codes_are_ordered_by_position(model, base, queries):
    codes = np.repeat(model.encode(base[:40], coding="optimal"), 300, axis=0)
    index = HammingIndex(model=model, n_jobs=1)
    index.add(codes[np.random.default_rng(0).permutation(len(codes))])
    true = index.search_asymmetric(queries, len(codes), probes="all")
    for k in (5, 500):
        found = index.search_asymmetric(queries, k, probes="all")
        assert np.array_equal(found[0], true[0][:, :k])
        assert np.array_equal(found[1], true[1][:, :k])
    assert all(
        (np.diff(ids[near == far]) > 0).all() for near, ids in zip(*true, strict=True) for far in near[:1]
    )


def test_equal_codes_are_ordered_by_position(model, base, queries):
    index = HammingIndex(model=model, n_jobs=1)
    codes = np.repeat(model.encode(base[:1], coding="optimal"), 300, axis=0)
    index.add(codes, np.arange(300)[::-1].copy())
    _, ids = index.search_asymmetric(queries, 7, probes="all")
    assert np.array_equal(ids, np.tile(np.arange(299, 292, -1), (len(queries), 1)))


@settings(max_examples=25, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["add", "upsert", "remove", "search"]), st.integers(0, 2**31)),
        min_size=1, max_size=12,
    ),
    probes=st.sampled_from([1, 4, "all"]),
)  # fmt: skip
def test_changes_in_any_order_end_where_a_fresh_index_begins(changes, probes, model, base, queries):
    codes = model.encode(base, coding="optimal")
    index, held = HammingIndex(model=model, n_jobs=1), {}
    for what, seed in changes:
        rng = np.random.default_rng(seed)
        some = rng.permutation(len(base))[: rng.integers(1, 200)]
        if what == "add":
            ids = np.array([i for i in some.tolist() if i not in held], dtype=np.int64)
            index.add(codes[ids], ids)
            held |= {i: i for i in ids.tolist()}
        elif what == "upsert" and held:
            ids = np.array(sorted(held))[: len(some)]
            index.add(codes[some[: len(ids)]], ids, upsert=True)
            held |= dict(zip(ids.tolist(), some.tolist(), strict=False))
        elif what == "remove" and held:
            ids = rng.permutation(sorted(held))[: len(held) // 2]
            index.remove(ids)
            held = {i: row for i, row in held.items() if i not in set(ids.tolist())}
        else:
            index.search_asymmetric(queries[:2], 3, probes=probes)
    fresh = HammingIndex(model=model, n_jobs=1)
    order = index.ids.tolist()  # equal distances are ordered by position
    fresh.add(codes[[held[i] for i in order]].reshape(-1, codes.shape[1]), np.array(order, dtype=np.int64))
    for found, expected in zip(
        index.search_asymmetric(queries, 9, probes=probes),
        fresh.search_asymmetric(queries, 9, probes=probes),
        strict=True,
    ):
        assert np.array_equal(found, expected)


def test_a_list_may_empty_and_fill_again(model, base, queries):
    index, codes = index_of(model, base), model.encode(base, coding="optimal")
    expected = index.search_asymmetric(queries, 5, probes="all")
    numbers, _ = model.decoder_.split(codes)
    own = np.flatnonzero(numbers == numbers[0])
    index.remove(own)
    assert not np.isin(index.search_asymmetric(queries, 5, probes="all")[1], own).any()
    index.add(codes[own], own)
    assert np.array_equal(index.search_asymmetric(queries, 5, probes="all")[0], expected[0])


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_search_among_some_is_exact_with_all_lists(share, model, base, queries):
    true = true_distances(model, base, queries.astype(np.float64))
    among = np.random.default_rng(0).random(len(base)) < share
    true[:, ~among] = np.inf
    index = index_of(model, base)
    for given_as in (among, np.flatnonzero(among)):
        distances, ids = index.search_asymmetric(queries, 10, among=given_as, probes="all")
        wanted = np.sort(true, axis=1)[:, :10]
        assert np.array_equal(ids >= 0, np.isfinite(wanted))
        assert distances[ids >= 0] == pytest.approx(wanted[ids >= 0], rel=1e-4, abs=1e-3)
    _, ids = index.search_asymmetric(queries, 1, among=np.flatnonzero(among)[:1])  # by default, too
    assert (ids == np.flatnonzero(among)[0]).all()


def test_cosine_and_inner_products_have_lists():
    X, queries = clustered(3000), clustered(20, 9)
    for metric, how in (("cosine", {"normalize": True}), ("inner_product", {"lift": True})):
        model = LSH(32, random_state=0, **how).fit(X).fit_decoder(X, "tables", lists=8, n_iter=3)
        _, ids = index_of(model, X).search_asymmetric(queries, 10)
        true = ground_truth(X, queries, 10, metric=metric)
        assert np.mean([len(np.intersect1d(*both)) / 10 for both in zip(ids, true, strict=True)]) > 0.5


def test_rows_far_from_zero_are_in_the_same_lists(queries):
    X, far = clustered(2000), 1e5
    found = []
    for offset in (0.0, far):
        model = LSH(24, random_state=0).fit(X + offset).fit_decoder(X + offset, "tables", lists=40, n_iter=2)
        index = index_of(model, (X + offset).astype(np.float64))
        _, ids = index.search_asymmetric(queries.astype(np.float64) + offset, 10, probes=2)
        true = ground_truth(X, queries, 10)
        found.append(np.mean([len(np.intersect1d(*both)) for both in zip(ids, true, strict=True)]))
    assert found[1] > 0.9 * found[0] > 3


# ---- a second, finer code


def test_a_finer_code_tells_what_the_first_leaves(base, queries, tmp_path):
    X = clustered(2000)
    plain, model = fitted(16), fitted(16)
    model.fit_decoder(X, "tables", lists=N_LISTS, refine_bits=16, n_iter=2)
    codes = model.encode(base, coding="optimal")
    assert codes.shape == (700, 5)
    rough = plain.decode(plain.encode(base, coding="optimal"))
    assert np.square(base - model.decode(codes)).sum() < 0.7 * np.square(base - rough).sum()
    true = true_distances(model, base, queries.astype(np.float64))
    index = index_of(model, base)
    distances, ids = index.search_asymmetric(queries, 10, probes="all")
    assert np.take_along_axis(true, ids, axis=1) == pytest.approx(distances, rel=1e-4, abs=1e-3)
    assert (np.diff(distances, axis=1) >= 0).all()
    wanted = ground_truth(base, queries, 10)
    of_plain = index_of(plain, base).search_asymmetric(queries, 10, probes="all")[1]
    found = [
        np.mean([len(np.intersect1d(*both)) for both in zip(each, wanted, strict=True)])
        for each in (ids, of_plain)
    ]
    assert found[0] > 1.1 * found[1]
    model.save(tmp_path / "m.safetensors")
    loaded = auxbit.load(tmp_path / "m.safetensors")
    assert np.array_equal(loaded.encode(base, coding="optimal"), codes)
    assert np.array_equal(loaded.decode(codes), model.decode(codes))
    index.save(tmp_path / "i.index")
    again = HammingIndex.load(tmp_path / "i.index").search_asymmetric(queries, 10, probes="all")
    assert np.array_equal(again[1], ids)
    few = index_of(model, base[:4]).search_asymmetric(queries, 6)
    assert (few[1][:, 4:] == -1).all()
    assert np.isinf(few[0][:, 4:]).all()
    with pytest.raises(InvalidParameter, match="0 without lists"):
        LSH(16, random_state=0).fit(X).fit_decoder(X, refine_bits=8)


# ---- how sure a search is


def test_the_recall_that_was_asked_for_is_reached():
    X, queries = clustered(6000), clustered(300, 8)
    model = LSH(32, random_state=0).fit(X).fit_decoder(X, "tables", lists=40, n_iter=1)
    index = index_of(model, X)
    true = ground_truth(X, queries, 10)
    numbers, _ = model.decoder_.split(model.encode(X, coding="optimal"))
    few = 41
    for recall in (0.5, 0.9, 0.99):
        probes = index.probes_for(recall, 10)
        lists = first_lists(model, queries, probes)
        covered = np.mean([np.isin(numbers[t], own).mean() for t, own in zip(true, lists, strict=True)])
        assert covered > recall - 0.05
        assert probes <= 40
        few = min(few, probes)
    assert few < 10
    assert index.probes_for(1.0) == 40


def test_coverage_counts_where_neighbours_are():
    ranks = np.array([[0, 1, 5], [0, 0, 2]])
    coverage = Coverage.of(ranks, 6, 100)
    assert coverage.parts[0].tolist() == [1, 1, 1, 1, 1, 1]  # k = 1
    assert coverage.parts[1] == pytest.approx([3 / 6, 4 / 6, 5 / 6, 5 / 6, 5 / 6, 1])
    assert coverage.probes(0.6, 3, 100) == 2
    assert coverage.probes(0.6, 15, 1000) == 2  # among ten times as many rows, more are as near
    assert coverage.probes(0.6, 3, 10) == 6  # beyond what is known
    assert coverage.recall(2, 3, 100) == pytest.approx(4 / 6)
    assert coverage.recall(6, 999, 100) == 1.0
    assert coverage.recall(2, 999, 100) is None
    assert LEARNED_KS[1] == 3


def test_without_lists_every_search_is_of_all_codes(base):
    model = LSH(16, random_state=0).fit(base)
    index = HammingIndex(model=model)
    index.add(model.encode(base))
    index.search(model.encode(base[:2]), 3, recall=0.5)  # is reached
    with pytest.raises(InvalidInput, match="probes is a number of lists, and there are none"):
        index.search(model.encode(base[:2]), 3, probes=2)
    with pytest.raises(InvalidInput, match="has no lists"):
        index.probes_for(0.9)


# ---- hash codes


@pytest.fixture(scope="module")
def hashed():
    model = LSH(32, random_state=0).fit(clustered(2000))
    return model.encode(clustered(3000, 1)), model.encode(clustered(25, 2))


def test_hash_codes_in_lists_are_found_as_without(hashed):
    codes, asked = hashed
    plain, listed = HammingIndex(32, n_jobs=1), HammingIndex(32, lists=20, n_jobs=2)
    for index in (plain, listed):
        index.add(codes)
        index.remove(np.arange(0, 3000, 7))
        index.add(codes[:50], np.arange(10, 60)[::-1].copy() + 5000)
    among = np.random.default_rng(0).random(len(plain)) < 0.4
    for how in ({}, {"among": among}):
        for k in (1, 10, 3000):
            for found, expected in zip(
                listed.search(asked, k, probes="all", **how), plain.search(asked, k, **how), strict=True
            ):
                assert np.array_equal(found, expected)
        for found, expected in zip(
            listed.search_radius(asked, 6, probes="all", **how),
            plain.search_radius(asked, 6, **how),
            strict=True,
        ):
            assert np.array_equal(found, expected)
    assert listed.n_lists == 20


def test_the_order_of_hash_codes_in_memory_does_not_matter(hashed):
    codes, asked = hashed
    one, other = HammingIndex(32, lists=20), HammingIndex(32, lists=20)
    one.add(codes)
    other.add(np.asfortranarray(codes))
    swapped = np.asfortranarray(asked)
    for found, wanted in (
        (other.search(swapped, 10, probes=4), one.search(asked, 10, probes=4)),
        (other.search_radius(swapped, 6, probes=4), one.search_radius(asked, 6, probes=4)),
    ):
        assert all(map(np.array_equal, found, wanted))


def test_some_lists_of_hash_codes_hold_most_neighbours(hashed):
    codes, asked = hashed
    plain, listed = HammingIndex(32, n_jobs=1), HammingIndex(32, lists=20, n_jobs=1)
    for index in (plain, listed):
        index.add(codes)
    true, found = plain.search(asked, 10)[0], listed.search(asked, 10, recall=0.9)[0]
    probes = listed.probes_for(0.9, 10)
    assert probes < 20
    assert (found == true).mean() > 0.8  # distances: ties may be answered by other codes
    one = listed.search(asked, 10, probes=1)[0]
    assert (one >= true).all()
    assert len(listed.search_radius(asked, 4, probes=1)[1]) <= len(plain.search_radius(asked, 4)[1])


def test_lists_of_hash_codes_are_by_their_bits(hashed):
    codes, _ = hashed
    index = HammingIndex(32, lists=6)
    index.add(codes)
    index.search(codes[:1], 1)
    found = index._lists.numbers_of(codes)
    bits = unpack(codes, 32).astype(np.float64)
    centres = index._lists.centroids.centroids
    assert np.array_equal(found, np.square(bits[:, None] - centres).sum(axis=2).argmin(axis=1))


def test_optimal_codes_can_be_divided_by_their_model_alone(base):
    model = LSH(16, random_state=0).fit(base).fit_decoder(base, "linear", n_iter=1)
    with pytest.raises(InvalidInput, match="Hamming distances between them mean nothing"):
        HammingIndex(model=model, lists=5)


# ---- files, copies, bad input


@pytest.mark.parametrize("kind", ["decoder", "hash"])
def test_an_index_with_lists_is_saved_read_and_copied(kind, model, base, queries, hashed, tmp_path):
    if kind == "decoder":
        index = index_of(model, base)

        def answers(of):
            return of.search_asymmetric(queries, 5, probes=3)
    else:
        index = HammingIndex(32, lists=6)
        index.add(hashed[0])

        def answers(of):
            return of.search(hashed[1], 5, probes=3)

    expected = answers(index)
    index.save(tmp_path / "i.index")
    for other in (HammingIndex.load(tmp_path / "i.index"), copy.deepcopy(index)):
        assert all(np.array_equal(*both) for both in zip(answers(other), expected, strict=True))
        assert other.n_lists == index.n_lists
    assert "lists" in repr(index)
    assert "lists" in index._repr_html_()


def test_a_version_without_lists_says_that_it_cannot_read_them(model, base, tmp_path):
    index_of(model, base).save(tmp_path / "i.index")
    with pytest.raises(IndexFileError, match=r"has format 2, .*pip install -U auxbit"):
        replace(INDEX, version=1).read(tmp_path / "i.index")


def test_an_empty_index_of_lists_and_finer_codes_answers_with_padding(base, queries):
    model = LSH(16, random_state=0).fit(base)
    model.fit_decoder(base, "tables", lists=N_LISTS, refine_bits=8, n_iter=1)
    distances, ids = HammingIndex(model=model).search_asymmetric(queries, 4)
    assert distances.shape == ids.shape == (30, 4)
    assert np.isinf(distances).all()
    assert (ids == -1).all()


def test_what_cannot_be_searched_is_refused(model, base, queries):
    index = index_of(model, base)
    with pytest.raises(InvalidInput, match=r"finite|NaN"):
        index.search_asymmetric(np.full((1, 10), np.nan), 3)
    for bad in ({"probes": 0}, {"probes": "many"}, {"probes": 1.5}, {"recall": 0}, {"recall": 1.1}):
        with pytest.raises(InvalidParameter):
            index.search_asymmetric(queries, 3, **bad)
    with pytest.raises(InvalidParameter, match=r"probes=.* is invalid: expected an integer"):
        index.search_asymmetric(queries, 3, probes=np.array([1, 2]))
    for probes in (2, "all"):
        with pytest.raises(InvalidInput, match="give one"):
            index.search_asymmetric(queries, 3, probes=probes, recall=0.9)
    hashed = HammingIndex(24, decoder=LSH(24, random_state=0).fit(base).decoder_, lists=5)
    with pytest.raises(InvalidInput, match="there are none for this search"):
        hashed.search_asymmetric(queries, 3, probes=2)  # its lists are for Hamming distances
    with pytest.raises(InvalidInput, match="does not use query_codes"):
        index.search_asymmetric(queries, 3, query_codes=model.encode(queries, coding="hash"))
    with pytest.raises(InvalidInput, match="mean nothing"):
        index.search(model.encode(queries, coding="optimal"), 3)
    with pytest.raises(InvalidInput, match="list 255, but there are 12"):
        index.add(np.full((1, 4), 255, dtype=np.uint8))
    with pytest.raises(InvalidParameter, match="12, as the model has them"):
        HammingIndex(model=model, lists=5)
    assert len(index) == 700


def test_a_recall_of_numpy_is_a_recall(model, base, queries):
    index = index_of(model, base)
    found, wanted = (index.search_asymmetric(queries, 3, recall=of(0.95)) for of in (np.float32, float))
    assert np.array_equal(found[1], wanted[1])
    assert index.probes_for(np.float32(0.95)) == index.probes_for(0.95)


def test_more_answers_and_lists_than_there_are(model, base, queries):
    index = index_of(model, base[:5])
    distances, ids = index.search_asymmetric(queries, 9, probes=10**6)
    assert (np.sort(ids, axis=1)[:, 4:] == np.arange(5)).all()
    assert np.isinf(distances[:, 5:]).all()
    empty = HammingIndex(model=model)
    assert (empty.search_asymmetric(queries, 3)[1] == -1).all()
    listed = HammingIndex(16, lists=100)
    assert (listed.search(np.zeros((2, 2), np.uint8), 3)[1] == -1).all()
    listed.add(np.zeros((7, 2), dtype=np.uint8))
    assert listed.search(np.zeros((2, 2), np.uint8), 3)[1].tolist() == [[0, 1, 2]] * 2
    assert listed.n_lists == 1


def test_rows_that_are_too_large_for_float32_are_refused_without_warnings(base, queries):
    large = np.float32(1e30)
    model = LSH(16, random_state=0).fit(base * large).fit_decoder(base * large, lists=3, n_iter=1)
    index = index_of(model, base * large)
    with pytest.raises(InvalidInput, match="too large to be squared in float32"):
        index.search_asymmetric(queries * large, 3)


@pytest.mark.parametrize("lists", [1, 5])
def test_rows_that_are_all_equal_are_in_one_list(lists):
    X = np.ones((400, 6), dtype=np.float32)
    X[:2] += 1e-3  # a hasher wants two different rows
    model = LSH(16, random_state=0).fit(X).fit_decoder(X, "tables", lists=lists, n_iter=1)
    distances, ids = index_of(model, X).search_asymmetric(X[5:6], 400, probes="all")
    assert sorted(ids[0].tolist()) == list(range(400))
    assert distances.max() < 1e-3


def test_searches_see_whole_states_while_rows_are_added(model, base, queries):
    index, codes = index_of(model, base[:100], n_jobs=2), model.encode(base, coding="optimal")
    problems = []

    def search():
        try:
            for _ in range(40):
                before = len(index)
                _, ids = index.search_asymmetric(queries[:4], 100, probes="all")
                if (ids < 0).any() or ids.max() >= len(index) or before > len(index):
                    problems.append(ids)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(100, 700, 25):
        index.add(codes[start : start + 25])
    for thread in threads:
        thread.join()
    assert not problems
    expected = index_of(model, base).search_asymmetric(queries, 10, probes="all")
    assert np.array_equal(index.search_asymmetric(queries, 10, probes="all")[1], expected[1])
