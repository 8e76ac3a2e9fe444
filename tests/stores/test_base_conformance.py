"""One suite for every store: the answers of HammingIndex, whatever keeps the codes."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.core.maps import hamming_distances
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.stores import StoreError, StoreExists
from helpers.index_truth import FAR, clustered_codes, random_codes

pytest_plugins = ["helpers.store_fixtures"]

KINDS = ("pgvector", "milvus file", "milvus", "sqlite", "duckdb", "lancedb", "chdb")
SOON_MADE = [kind for kind in KINDS if kind != "milvus"]  # for what does not depend on the engine behind


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def opened(kind, places, store_folder):
    with places.open(kind, store_folder) as store:
        yield store


def check_equal(store, index, base, ids, queries, ks, rs):
    """The store answers as the index does: distances exactly, ids up to ties."""
    rows = {number: row for row, number in enumerate(ids.tolist())}
    for k in ks:
        distances, found = store.search(queries, k)
        wanted, _ = index.search(queries, k)
        assert (distances.dtype, found.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(distances, wanted)
        for query, numbers, near in zip(queries, found, distances, strict=True):
            there = numbers[numbers >= 0].tolist()
            assert len(set(there)) == len(there) == min(k, len(base))
            at = base[[rows[each] for each in there]]
            np.testing.assert_array_equal(hamming_distances(query[None], at)[0], near[: len(there)])
    for r in rs:
        lims, distances, found = store.search_radius(queries, r)
        assert [each.dtype for each in (lims, distances, found)] == [np.int64, np.int32, np.int64]
        true_lims, true_distances, true_ids = index.search_radius(queries, r)
        np.testing.assert_array_equal(lims, true_lims)
        np.testing.assert_array_equal(distances, true_distances)
        for start, stop in pairwise(lims):
            order = np.lexsort((true_ids[start:stop], true_distances[start:stop]))
            np.testing.assert_array_equal(found[start:stop], true_ids[start:stop][order])


@pytest.mark.parametrize(
    ("kind", "n_bits"),
    [(kind, n_bits) for n_bits in (13, 64, 3072, 8191) for kind in (KINDS if n_bits == 13 else SOON_MADE)],
)
def test_answers_are_those_of_hamming_index(opened, n_bits):
    base, queries = clustered_codes(700, n_bits), clustered_codes(7, n_bits, seed=1)
    ids = np.random.default_rng(2).permutation(10_000)[:700]
    index = HammingIndex(n_bits)
    index.add(base, ids)
    opened.create(n_bits)
    assert (opened.n_bits, opened.n_features, opened.exact, opened.count()) == (n_bits, None, True, 0)
    assert (opened.search(queries, 3)[1] == -1).all()
    assert opened.search_radius(queries, 3)[0].tolist() == [0] * 8
    done = []
    opened.add(base[:400], ids[:400], progress=done.append)
    opened.add(base[400:], ids[400:], progress=done.append)
    assert sum(done) == 700
    assert opened.count() == 700
    check_equal(opened, index, base, ids, queries, ks=(1, 10, 800), rs=(0, 2, n_bits // 3, n_bits + 9))
    assert opened.search(queries[:0], 4)[0].shape == (0, 4)


def test_rows_are_replaced_and_deleted_by_id(opened):
    base = random_codes(60, 24)
    opened.create(24)
    opened.add(base[:40], np.arange(40))
    opened.add(base[20:60], np.arange(40))  # all of them replaced
    assert opened.count() == 40
    distances, found = opened.search(base[20:60], 1)
    assert (distances[:, 0] == 0).all()
    assert set(found[:, 0].tolist()) <= set(range(40))
    assert opened.delete([3, 5, 5, 9999]) == 2
    assert opened.delete([]) == 0
    assert opened.count() == 38
    assert not set(opened.search(base, 40)[1].ravel().tolist()) & {3, 5}
    opened.add(base[[0, 1, 2]], [7, 7, 3])  # as if they came one by one
    assert opened.count() == 39
    assert opened.search(base[[1]], 1)[0].tolist() == [[0]]
    assert 7 in opened.search_radius(base[[1]], 0)[2]
    assert 7 not in opened.search_radius(base[[0]], 0)[2]
    opened.add(base[:0], [])
    largest = 2**63 - 1
    opened.add(base[[4]], [largest])
    assert largest in opened.search_radius(base[[4]], 0)[2]


@pytest.mark.parametrize("kind", SOON_MADE)
def test_an_id_that_is_there_is_an_error_without_upsert(opened):
    base = random_codes(10, 16)
    opened.create(16)
    opened.add(base[:5], np.arange(5), upsert=False)
    with pytest.raises(InvalidInput, match=r"id 3 is already in .*; nothing was added. upsert=True"):
        opened.add(base[5:8], [8, 3, 9], upsert=False)
    with pytest.raises(InvalidInput, match="id 8 comes twice; nothing was added"):
        opened.add(base[5:8], [8, 8, 9], upsert=False)
    assert opened.count() == 5


@pytest.mark.parametrize("kind", SOON_MADE)
def test_wrong_arguments_are_refused_before_anything_changes(opened):
    opened.create(16)
    base = random_codes(4, 16)
    opened.add(base, np.arange(4))
    with pytest.raises(InvalidInput, match="codes must be packed codes of 16 bits"):
        opened.add(random_codes(4, 64), np.arange(4))
    with pytest.raises(InvalidInput, match="codes must be packed codes of 16 bits"):
        opened.search(random_codes(4, 32), 3)
    with pytest.raises(InvalidInput, match="ids"):
        opened.add(base, [0, 1])
    with pytest.raises(InvalidInput, match="ids"):
        opened.add(base, [0, 1, 2, -3])
    with pytest.raises(InvalidInput, match="keeps no vectors"):
        opened.add(base, np.arange(4), vectors=np.zeros((4, 3)))
    with pytest.raises(InvalidInput, match="keeps no vectors to rank by"):
        opened.search(base, 3, rerank=np.zeros((4, 3)))
    with pytest.raises(InvalidParameter, match="k=0"):
        opened.search(base, 0)
    with pytest.raises(InvalidParameter, match="r=-1"):
        opened.search_radius(base, -1)
    with pytest.raises(InvalidParameter, match="n_bits=0"):
        opened.create(0, overwrite=True)
    with pytest.raises(InvalidParameter, match="kind='lsh'"):
        opened.create_index("lsh")
    assert opened.count() == 4


@pytest.mark.parametrize("kind", SOON_MADE)
def test_a_store_is_made_once_and_replaced_only_when_told(opened):
    assert not opened.exists
    with pytest.raises(StoreError, match=r"there is no .*: create it first"):
        opened.count()
    opened.create(16)
    assert opened.exists
    opened.add(random_codes(4, 16), np.arange(4))
    with pytest.raises(StoreExists, match=r"exists, with codes of 16 bits.*--force"):
        opened.create(32)
    opened.create(32, overwrite=True)
    assert (opened.n_bits, opened.count()) == (32, 0)


@pytest.mark.parametrize("kind", SOON_MADE)
def test_what_one_connection_adds_another_finds(kind, places, store_folder):
    from auxbit.stores import connect

    base = random_codes(20, 32)
    with places.open(kind, store_folder) as store:
        store.create(32)
        store.add(base, np.arange(20))
        with connect(places.url(kind, store_folder), store.name) as again:
            assert (again.n_bits, again.count()) == (32, 20)
            np.testing.assert_array_equal(again.search(base, 1)[0][:, 0], np.zeros(20))


@pytest.mark.parametrize("kind", SOON_MADE)
def test_rows_padded_by_none_are_far_away(opened):
    opened.create(8)
    opened.add(np.array([[1]], dtype=np.uint8), [5])
    distances, ids = opened.search(np.array([[0]], dtype=np.uint8), 3)
    assert distances.tolist() == [[1, FAR, FAR]]
    assert ids.tolist() == [[5, -1, -1]]


def test_metadata_come_back_and_are_searched_by(opened, kind):
    base = random_codes(300, 32)
    rows = [{"label": "cat" if row % 3 else "dog", "row": row, "é": [1, "ü😀"]} for row in range(200)]
    opened.create(32)
    opened.add(base, np.arange(300), metadata=[*rows, *[None] * 100])
    assert opened.metadata([7, 250, -1, 99999]) == [rows[7], {}, {}, {}]
    for wrong in ([[7, 8]], 7, ["7"], [7.5]):
        with pytest.raises(InvalidInput, match="ids must be a list of integers; got shape"):
            opened.metadata(wrong)
    where = {"label": "dog", "row": {">=": 50}}
    wanted = np.array([row for row in range(50, 200) if row % 3 == 0])
    assert opened.count(where) == len(wanted)
    assert opened.count(["label!=dog"]) == 300 - 67
    index = HammingIndex(32)
    index.add(base)
    distances, found = opened.search(base[:5], 20, where=where)
    np.testing.assert_array_equal(distances, index.search(base[:5], 20, among=wanted)[0])
    assert set(found.ravel().tolist()) <= set(wanted.tolist())
    answers = opened.search_radius(base[:5], 12, where=where)
    for ours, true in zip(answers, index.search_radius(base[:5], 12, among=wanted), strict=True):
        np.testing.assert_array_equal(ours, true)
    assert (opened.search(base[:2], 3, where={"label": "cow"})[1] == -1).all()
    if kind in ("pgvector", "milvus", "milvus file"):
        with pytest.raises(InvalidInput, match="cannot run a Python function as a condition"):
            opened.count(lambda row: True)
    else:
        assert opened.count(lambda row: row.get("label") == "dog") == 67
    opened.add(base[:1], [7], metadata=[{"label": "dog"}])
    assert opened.metadata([7]) == [{"label": "dog"}]


@pytest.mark.parametrize("kind", SOON_MADE)
def test_candidates_are_ranked_by_their_vectors(opened):
    rng = np.random.default_rng(0)
    X, queries = rng.normal(size=(400, 12)).astype(np.float32), rng.normal(size=(6, 12)).astype(np.float32)
    base, asked = ((each > 0).astype(np.uint8) for each in (X, queries))
    base, asked = (np.packbits(each, axis=1, bitorder="little") for each in (base, asked))
    opened.create(12, n_features=12)
    ids = rng.permutation(1000)[:400]
    opened.add(base, ids, vectors=X)
    assert opened.n_features == 12
    true = ((queries[:, None].astype(np.float64) - X[None]) ** 2).sum(axis=2)
    distances, found = opened.search(asked, 5, rerank=queries, candidates=400)
    assert distances.dtype == np.float32
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :5], rtol=1e-5)
    np.testing.assert_array_equal(found, ids[np.argsort(true, axis=1)[:, :5]])
    few, _ = opened.search(asked, 5, rerank=queries)  # of 50 candidates
    assert (few >= distances - 1e-4).all()
    assert (opened.search(asked, 5, rerank=queries, where={"a": 1})[1] == -1).all()
    with pytest.raises(InvalidInput, match="the store keeps vectors of 12 numbers: give vectors"):
        opened.add(base, ids)
    with pytest.raises(InvalidInput, match="vectors contains NaN at row 0, column 0"):
        opened.add(base[:1], ids[:1], vectors=np.full((1, 12), np.nan))
    with pytest.raises(InvalidInput, match=r"rerank must be rows of 12 numbers, shape \(6, 12\)"):
        opened.search(asked, 5, rerank=queries[:, :4])
    with pytest.raises(InvalidParameter, match=r"candidates=3.*hold the k=5 answers"):
        opened.search(asked, 5, rerank=queries, candidates=3)


@pytest.fixture(scope="module")
def hashed(digits):
    """A model whose decoder is for hash codes, one for optimal codes with the same h, rows and queries."""
    model = BinaryAutoencoder(20, random_state=0, max_iter=3).fit(digits[:400])
    other = copy.deepcopy(model).fit_decoder(digits[:400], "linear", n_iter=1)
    return model, other, digits[:400], digits[400:420]


@pytest.mark.parametrize(("kind", "norms"), [("pgvector", True), *((kind, False) for kind in KINDS)])
def test_a_search_takes_the_query_itself_and_ranks_by_the_decoder(opened, norms, hashed):
    model, other, X, queries = hashed
    codes, ids = model.encode(X), np.arange(1000, 1400)
    index = HammingIndex(model=model)
    index.add(codes, ids)
    opened.create(20, model=model if norms else model.fingerprint())
    opened.add(codes, ids, metadata=[{"even": row % 2 == 0} for row in range(400)], model=model)
    assert opened.ranking(model) == "asymmetric"
    distances, found = opened.search(queries, 10, model=model, candidates=400)
    wanted, true = index.search_asymmetric(queries, 10)
    assert (distances.dtype, found.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(distances, wanted, rtol=1e-3)
    assert (found == true).mean() > 0.95  # equal codes are ordered otherwise
    few = opened.search(queries, 5, model=model, candidates=30)[0]
    shortlist = index.search_asymmetric(
        queries, 5, query_codes=model.encode(queries, queries=True), shortlist=30
    )[0]
    assert np.isclose(few, shortlist, rtol=1e-3).mean() > 0.9  # ties at the end of the shortlist
    even = opened.search(queries, 5, model=model, candidates=400, where={"even": True})[1]
    assert (even % 2 == 0).all()
    assert (opened.search(queries, 5, model=model, where={"even": 1})[0] == np.inf).all()
    hamming, _ = opened.search(queries, 10, model=model, mode="hamming")
    np.testing.assert_array_equal(hamming, index.search(model.encode(queries, queries=True), 10)[0])
    assert opened.search(queries[:0], 3, model=model)[0].shape == (0, 3)
    # a decoder for other codes ranks nothing: by default Hamming distances do
    assert opened.ranking(other) == "hamming"
    np.testing.assert_array_equal(opened.search(queries, 10, model=other)[0], hamming)
    with pytest.raises(InvalidInput, match=r"it cannot rank\. Search with mode=\"hamming\", or push"):
        opened.search(queries, 10, model=other, mode="asymmetric")


@pytest.mark.parametrize("kind", ["sqlite"])
def test_searches_that_cannot_be_meant_are_refused_with_the_remedy(opened, hashed):
    model, _, X, queries = hashed
    opened.create(20, model=model, n_features=64)
    opened.add(model.encode(X), np.arange(400), vectors=X)
    assert opened.ranking(model) == "vectors"
    near, found = opened.search(queries, 5, model=model, candidates=400)  # by vectors, without asking
    true = ((queries[:, None].astype(np.float64) - X[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found, np.argsort(true, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(near, np.sort(true, axis=1)[:, :5], rtol=1e-6)
    assert opened.search(queries, 5, model=model, rerank=False)[0].dtype == np.float32  # by the decoder
    assert opened.ranking(model, rerank=False) == opened.ranking(model, mode="asymmetric") == "asymmetric"
    with pytest.raises(InvalidInput, match='mode="asymmetric" ranks by a decoder: give vectors'):
        opened.search(model.encode(queries), 5, mode="asymmetric")
    with pytest.raises(InvalidInput, match="rerank=True needs a model"):
        opened.search(model.encode(queries), 5, rerank=True)
    with pytest.raises(InvalidParameter, match="mode='nearest'"):
        opened.search(queries, 5, model=model, mode="nearest")
    with pytest.raises(InvalidInput, match="with a model, queries are rows of 64 numbers"):
        opened.search(model.encode(queries), 5, model=model)
    with pytest.raises(InvalidInput, match="candidates is for searches that rank again"):
        opened.search(model.encode(queries), 5, candidates=50)
    another = BinaryAutoencoder(20, random_state=1, max_iter=1, init="lsh").fit(X)
    with pytest.raises(InvalidInput, match="were made by another model"):
        opened.search(queries, 5, model=another)
    short = BinaryAutoencoder(8, random_state=1, max_iter=1, init="lsh").fit(X)
    opened.create(20, overwrite=True)
    with pytest.raises(InvalidInput, match="makes codes of 8 bits, and the store has 20"):
        opened.search(queries, 5, model=short)


@pytest.mark.parametrize("kind", SOON_MADE)
def test_a_store_can_be_dropped(opened, kind):
    opened.create(8)
    opened.add(random_codes(2, 8), [1, 2])
    opened.drop()
    assert not opened.exists
    opened.drop()  # nothing to do
    opened.create(16)
    assert opened.n_bits == 16


@pytest.mark.parametrize("kind", ["pgvector", "milvus", "lancedb"])
def test_an_approximate_index_finds_most_and_is_left_out_where_it_matters(opened, kind):
    base, queries = clustered_codes(3000, 64, flipped=0.1), clustered_codes(20, 64, flipped=0.1, seed=1)
    index = HammingIndex(64)
    index.add(base)
    opened.create(64)
    opened.add(base, np.arange(3000))
    opened.create_index("hnsw" if kind == "pgvector" else "ivf")
    assert not opened.exact
    wanted = index.search(queries, 10)[0]
    distances, found = opened.search(queries, 10)
    np.testing.assert_array_equal(
        distances, np.stack([hamming_distances(q[None], base[f])[0] for q, f in zip(queries, found)])
    )
    assert (distances == wanted).mean() > 0.8
    for ours, true in zip(opened.search_radius(queries, 9), index.search_radius(queries, 9), strict=True):
        np.testing.assert_array_equal(ours, true)
    opened.add(base[:5], np.arange(5000, 5005))
    assert opened.delete([0, 1]) == 2
    assert opened.count() == 3003
    assert 5000 in opened.search(base[:1], 30)[1]
