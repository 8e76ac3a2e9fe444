"""Documents that begin with nothing: exact answers while there are few, codes when there are many."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import Collection
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import METRICS, ground_truth
from auxbit.integrations import documents
from auxbit.integrations.documents import Documents


def added(documents, X, first=0):
    names = [str(first + row) for row in range(len(X))]
    documents.add(X, names, [{"row": first + row} for row in range(len(X))], names)


def rows_of(found):
    return [int(each.id) for each in found]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n", [1, 2, 3, 400])
def test_few_documents_are_searched_exactly(metric, n):
    rng = np.random.default_rng(n)
    X, queries = rng.normal(size=(n, 24)), rng.normal(size=(20, 24))
    store = Documents(metric=metric)
    added(store, X)
    truth = ground_truth(X, queries, min(n, 7), metric=metric)
    assert [rows_of(store.search(x, 7)) for x in queries] == truth.tolist()
    assert all(each.score >= store.search(queries[0], 7)[-1].score for each in store.search(queries[0], 7))


def test_a_zero_vector_and_equal_ones_are_found():
    store = Documents()
    added(store, np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]))
    assert rows_of(store.search([2.0, 2.0], 2)) == [1, 2]
    assert len(store.search([0.0, 0.0], 5)) == 3


@pytest.fixture
def small(monkeypatch):
    """Codes are learned from 600 documents on, and again from 2,400 on, for candidates that are few."""
    monkeypatch.setattr(documents, "EXACT_ROWS", 600)
    monkeypatch.setattr(documents, "FACTOR", 1)
    monkeypatch.setattr(documents, "FEWEST", 100)


def test_codes_are_learned_when_there_are_enough_documents_and_again_when_there_are_more(
    small, tmp_path, digits
):
    X = np.concatenate([digits, digits + 0.25])
    store = Documents(tmp_path / "c", metric="cosine")
    added(store, X[:590])
    assert store.collection.n_bits == 8
    added(store, X[590:610], 590)
    assert (store.collection.n_bits, store.collection.model.training_.n_rows) == (32, 610)
    assert store.collection.state.coding == "optimal"
    added(store, X[610:2000], 610)
    assert store.collection.model.training_.n_rows == 610
    queries = digits[:50] + 0.1
    truth = ground_truth(X[:2000], queries, 10, metric="cosine")
    found = [rows_of(store.search(x, 10)) for x in queries]
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth.tolist())]) > 0.9
    added(store, X[2000:2500], 2000)
    assert store.collection.model.training_.n_rows == 2500
    assert store.collection.n_bits == 32
    store.close()
    again = Documents(tmp_path / "c")
    assert rows_of(again.search(X[2400], 1)) == [2400]
    again.close()


def test_a_collection_of_ones_own_keeps_its_codes(small, digits):
    own = Collection.create(None, digits[:300], bits=16, method="lsh", ids=[str(row) for row in range(300)])
    store = Documents(own)
    added(store, digits[300:1000], 300)
    assert (own.n_bits, own.state.vectors, len(store)) == (16, None, 1000)
    assert type(own.model).__name__ == "LSH"
    assert store.search(digits[5], 3)[0].metadata is not None
    assert store.vectors(["5"]).shape == (1, 64)


def test_documents_that_no_codes_can_be_learned_from_stay(small, monkeypatch):
    def fails(self, **how):
        raise InvalidInput("it is too hot.")

    monkeypatch.setattr(Collection, "retrain", fails)
    store = Documents()
    with pytest.warns(UserWarning, match="no codes could be learned from 700 documents, .* it is too hot"):
        added(store, np.random.default_rng(0).normal(size=(700, 4)))
    x = np.random.default_rng(1).normal(size=4)
    assert len(store) == 700
    assert len(store.search(x, 650)) == 650


def test_the_metadata_of_an_answer_are_without_the_text():
    store = Documents(text_field="body")
    store.add([[1.0, 0.0]], ["hello"], [{"text": "other"}], ["a"])
    (found,) = store.search([1.0, 0.0], 3)
    assert found == ("a", "hello", {"text": "other"}, pytest.approx(1.0))
    assert store.collection.get(["a"])[0]["metadata"] == {"text": "other", "body": "hello"}


@pytest.mark.parametrize("vectors", [[[np.nan, 0.0]], [[np.inf, 0.0]], [0.0, 1.0], [[1.0, 0.0]] * 2])
def test_vectors_that_are_no_rows_of_numbers_are_refused(vectors, tmp_path):
    store = Documents(tmp_path / "c")
    with pytest.raises(InvalidInput, match=r"NaN|inf|expected one row per text"):
        store.add(vectors, ["a"], [{}], ["a"])
    assert not (tmp_path / "c").exists()
    assert store.search([0.0, 1.0], 1) == []


@pytest.mark.parametrize(
    ("how", "named"),
    [({"vectors": None}, "vectors"), ({"metric": "taxicab"}, "metric"), ({"place": 3}, "path")],
)
def test_parameters_that_mean_nothing_are_named(how, named):
    with pytest.raises(InvalidParameter, match=f"^{named}="):
        Documents(**how)


def test_k_must_be_a_number_of_answers():
    store = Documents()
    added(store, np.eye(3))
    assert store.search([1.0, 0.0, 0.0], 0) == []
    with pytest.raises(InvalidParameter, match="k=-1"):
        store.search([1.0, 0.0, 0.0], -1)
