"""Collections by metric: which neighbours are found, in every kind of code, with and without vectors."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth


def rows_of(n: int, seed: int) -> np.ndarray:
    """Rows of very different norms, (n, 24)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 24)) * np.linspace(2, 0.4, 24)
    return (X * np.exp(rng.normal(size=(n, 1)) / 2)).astype(np.float32)


X, QUERIES = rows_of(1200, 0), rows_of(60, 1)
TRUTH = {metric: ground_truth(X, QUERIES, 10, metric=metric) for metric in ("cosine", "inner_product")}
KINDS = {
    "hash": {"coding": "hash"},
    "optimal": {"decoder": "linear"},
    "tables": {"decoder": "tables"},
    "both ways": {"decoder": "linear", "mu": 0.03},
}


def recall(ids, truth):
    return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), truth.tolist(), strict=True)])


@pytest.mark.parametrize("metric", TRUTH)
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_by_the_metric_are_found_with_codes_alone_and_exactly_with_vectors(tmp_path, kind, metric):
    how = {"method": "itq", "bits": 24, "metric": metric} | KINDS[kind]
    with Collection.create(tmp_path / "c", X, vectors="float32", **how) as collection:
        assert collection.describe()["metric"] == collection.stats().metric == metric
    with Collection(tmp_path / "c") as collection:
        by_decoder = recall(collection.search(QUERIES, 10, mode="asymmetric").ids, TRUTH[metric])
        assert by_decoder > (0.35 if metric == "inner_product" and kind != "hash" else 0.15)  # chance: 0.008
        if collection.state.by_decoder:
            with pytest.raises(InvalidInput, match="mean nothing"):
                collection.search(QUERIES, mode="hamming")
        else:
            assert recall(collection.search(QUERIES, 10, mode="hamming").ids, TRUTH[metric]) > 0.08
        answers = collection.search(QUERIES, 10, rerank=len(X))
        np.testing.assert_array_equal(answers.ids, TRUTH[metric])
        if metric == "inner_product":
            products = np.einsum("qd,qkd->qk", QUERIES.astype(np.float64), X[answers.ids].astype(np.float64))
            np.testing.assert_allclose(answers.distances, -products, rtol=1e-6)
        assert recall(collection.search(QUERIES, 10).ids, TRUTH[metric]) > by_decoder  # re-ranked


@pytest.mark.parametrize("kind", ["hash", "optimal"])
@pytest.mark.parametrize("vectors", [None, "float32"])
def test_what_is_like_an_item_by_inner_product_has_large_products_with_it(kind, vectors):
    how = {"method": "itq", "bits": 24, "metric": "inner_product", "vectors": vectors} | KINDS[kind]
    with Collection.create(None, X, **how) as collection:
        found = np.array([collection.search(like=item, k=10).ids for item in range(60)])
    products = X[:60].astype(np.float64) @ X.T.astype(np.float64)
    ranks = np.argsort(np.argsort(-products, axis=1), axis=1)
    assert np.median(np.take_along_axis(ranks, found, axis=1)) < (30 if vectors else 150)  # chance: 600


def test_later_rows_and_another_method_keep_the_metric():
    with Collection.create(
        None, X[:900], bits=16, method="itq", metric="inner_product", vectors="float32"
    ) as collection:
        collection.add(X[900:])
        np.testing.assert_array_equal(collection.search(QUERIES, 10, rerank=1200).ids, TRUTH["inner_product"])
        collection.stats()
        for method in (None, "tpca"):
            collection.retrain(method=method, bits=20)
            assert collection.describe()["metric"] == "inner_product"
            found = collection.search(QUERIES, 10, rerank=1200).ids
            np.testing.assert_array_equal(found, TRUTH["inner_product"])


def test_a_metric_that_is_not_that_of_the_model_is_refused(tmp_path):
    model = ITQ(8, lift=True, random_state=0).fit(X)
    for metric in ("euclidean", "cosine"):
        with pytest.raises(InvalidParameter, match=r"expected that of the model\. Leave it out"):
            Collection.create(tmp_path / "c", X, model=model, metric=metric)
    with pytest.raises(InvalidParameter, match="that of the model"):
        Collection.create(tmp_path / "c", bits=8, metric="cosine")
    with pytest.raises(InvalidParameter, match="one of euclidean, cosine, inner_product"):
        Collection.create(tmp_path / "c", X, bits=8, metric="dot")
    assert not (tmp_path / "c").exists()
    with Collection.create(None, X, model=model, metric="inner_product") as collection:
        assert collection.describe()["metric"] == "inner_product"
