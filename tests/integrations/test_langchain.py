"""The vector store of LangChain: its own standard tests, filters, scores, persistence, bad input."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from auxbit import Collection
from auxbit.errors import InvalidInput, InvalidParameter, MissingExtra
from auxbit.evaluate import ground_truth, recall_at, retrieved_ranking
from auxbit.integrations.langchain import AuxbitVectorStore

# ---- the framework's own tests


class TestInMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        return AuxbitVectorStore(self.get_embeddings())


class TestOnDisk(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = AuxbitVectorStore(self.get_embeddings(), tmp_path / "docs.auxbit")
        yield store
        store.close()


# ---- an embedding with a meaning: three axes


class Axes(Embeddings):
    """cats, dogs and cars, by how often they are named."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [0.1 + text.count(word) for word in ("cat", "dog", "car")]


TEXTS = ["cat", "cat cat dog", "dog", "car", "car dog", "cat cat"]
ROWS = [{"year": 2000 + i, "tags": ["odd"] if i % 2 else ["even", "all"]} for i in range(6)]
IDS = list("abcdef")


@pytest.fixture
def store():
    return AuxbitVectorStore.from_texts(TEXTS, Axes(), ROWS, ids=IDS)


def ids_of(documents):
    return [document.id for document in documents]


def test_answers_and_scores_are_those_of_the_store_in_langchain(store):
    other = InMemoryVectorStore.from_texts(TEXTS, Axes(), ROWS, ids=IDS)
    for query in ("cat cat cat dog", "dog dog car", "car car cat"):
        ours, theirs = (each.similarity_search_with_score(query, k=6) for each in (store, other))
        assert [document for document, _ in ours] == [document for document, _ in theirs]
        assert np.allclose([score for _, score in ours], [score for _, score in theirs], atol=1e-5)


def test_maximal_marginal_relevance_is_that_of_langchain(store):
    other = InMemoryVectorStore.from_texts(TEXTS, Axes(), ROWS, ids=IDS)
    how = {"k": 3, "fetch_k": 5, "lambda_mult": 0.2}
    ours = ids_of(store.max_marginal_relevance_search("cat", **how))
    assert ours == ids_of(other.max_marginal_relevance_search("cat", **how))
    assert ours != ids_of(store.similarity_search("cat", k=3))
    assert ids_of(store.max_marginal_relevance_search("cat", k=2, filter="year > 2003")) == ["f", "e"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"year": 2002}, "c"),
        ({"year": {">=": 2004}}, "ef"),
        ({"year": {"$gte": 2004}}, "ef"),
        ({"$or": [{"year": {"$lt": 2001}}, {"year": {"$in": [2005]}}]}, "af"),
        ({"$and": [{"year": {"$ne": 2001}}, {"tags": {"$contains": "odd"}}]}, "df"),
        ({"$not": {"tags": {"contains": "all"}}}, "bdf"),
        ("year < 2002 and tags ~ odd", "b"),
        ({"text": {"startswith": "car"}}, "de"),
        (lambda document: document.page_content == "dog" and document.metadata["year"] == 2002, "c"),
        ({}, "abcdef"),
    ],
)
def test_a_filter_finds_those_documents_alone(store, condition, expected):
    assert sorted(ids_of(store.similarity_search("cat", k=10, filter=condition))) == list(expected)
    assert sorted(
        ids_of(store.as_retriever(search_kwargs={"k": 9, "filter": condition}).invoke("cat"))
    ) == list(expected)


def test_a_search_by_vector_a_retriever_and_thresholds(store):
    assert ids_of(store.similarity_search_by_vector([0, 0, 1], k=1)) == ["d"]
    assert ids_of(store.as_retriever(search_type="mmr", search_kwargs={"k": 1}).invoke("car")) == ["d"]
    near = store.similarity_search_with_relevance_scores("cat", k=6, score_threshold=0.95)
    assert {document.id for document, _ in near} == {"a", "f", "b"}
    assert all(0.95 <= score <= 1 for _, score in near)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
def test_the_other_metrics_rank_by_their_own_scores(metric):
    store = AuxbitVectorStore.from_texts(TEXTS, Axes(), ids=IDS, metric=metric)
    x, X = np.array(Axes().embed_query("cat cat")), np.array(Axes().embed_documents(TEXTS))
    expected = X @ x if metric == "inner_product" else -((X - x) ** 2).sum(axis=1)
    found = store.similarity_search_with_score("cat cat", k=6)
    assert np.allclose([score for _, score in found], np.sort(expected)[::-1], atol=1e-4)
    relevant = [score for _, score in store.similarity_search_with_relevance_scores("cat cat", k=6)]
    assert relevant == sorted(relevant, reverse=True)
    assert 0 <= min(relevant) <= max(relevant) <= 1


# ---- on disk


def test_documents_are_there_when_the_folder_is_opened_again(tmp_path):
    place = tmp_path / "docs.auxbit"
    store = AuxbitVectorStore.from_texts(TEXTS, Axes(), ROWS, ids=IDS, path=place, metric="euclidean")
    store.delete(["b"])
    store.close()
    with Collection(place) as collection:
        assert collection.list("year = 2000")[0]["metadata"]["text"] == "cat"
    again = AuxbitVectorStore(Axes(), str(place))
    assert again.documents.metric == "euclidean"
    assert ids_of(again.similarity_search("cat cat", k=2)) == ["f", "a"]
    assert again.get_by_ids(["c", "b", "nobody"]) == [Document(id="c", page_content="dog", metadata=ROWS[2])]
    again.delete()
    assert again.similarity_search("cat") == []
    again.close()


def test_a_collection_of_ones_own_is_searched_as_it_is(filled):
    class Same(Embeddings):
        def embed_documents(self, texts):
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text):
            return filled.vectors([int(text)])[0].tolist()

    store = AuxbitVectorStore(Same(), filled, text_field="row")
    first = store.similarity_search("7", k=1, filter="odd = true")[0]
    assert (first.id, first.page_content, first.metadata) == ("7", "307", {"odd": True})
    assert store.get_by_ids(["7", "no number"]) == [first]
    assert store.add_texts(["5"], ids=["9000"]) == ["9000"]
    assert 9000 in filled


# ---- bad input


def test_a_search_for_what_is_no_parameter_is_refused(store):
    with pytest.raises(TypeError, match="filters"):
        store.similarity_search("cat", filters={"year": 2000})
    with pytest.raises(TypeError, match="'filters' is not a parameter"):
        store.max_marginal_relevance_search("cat", filters={"year": 2000})
    with pytest.raises(InvalidParameter, match="an operator, not '\\$near'"):
        store.similarity_search("cat", filter={"year": {"$near": 2000}})


def test_what_to_delete_is_never_guessed(store):
    with pytest.raises(InvalidInput, match="give ids or where, not both"):
        store.delete(["a"], filter={"year": 2005})
    for slip in (store.delete, store.get_by_ids):
        with pytest.raises(InvalidInput, match=r"ids must be a list; got 'ab'\. For one, give \['ab'\]"):
            slip("ab")
    with pytest.raises(InvalidInput, match=r"the query must be one vector; got shape \(2, 3\)"):
        store.similarity_search_by_vector([[1.0, 0.0, 0.0]] * 2)
    assert ids_of(store.get_by_ids(IDS)) == IDS


def test_texts_that_cannot_be_added_leave_nothing_behind(tmp_path, store):
    place = tmp_path / "docs.auxbit"
    new = AuxbitVectorStore(Axes(), place)
    with pytest.raises(InvalidInput, match="field 'x'"):
        new.add_texts(["cat"], [{"x": object()}])
    assert not place.exists()
    with pytest.raises(InvalidInput, match="there are 1 metadatas for 2 texts"):
        store.add_texts(["a", "b"], [{}])
    with pytest.raises(InvalidInput, match="the field 'text', in which the text is kept"):
        store.add_texts(["a"], [{"text": "b"}])
    with pytest.raises(InvalidInput, match="ids"):
        store.add_texts(["a", "b"], ids=["x", "x"])
    assert len(store.documents) == 6


def test_another_embedding_than_that_of_the_folder_is_named(store):
    store.embedding = DeterministicFakeEmbedding(size=6)
    with pytest.raises(InvalidInput, match="gives vectors of 6 numbers, but those of the collection have 3"):
        store.add_texts(["cat"])
    with pytest.raises(InvalidInput, match="rows of 3 numbers"):
        store.similarity_search("cat")


def test_a_folder_that_is_no_collection_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="collection"):
        AuxbitVectorStore(Axes(), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_langchain_or_with_an_old_one_the_import_names_the_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "auxbit.integrations.langchain")
    monkeypatch.setattr("auxbit.core.checks.version", lambda package: "0.3.7")
    with pytest.raises(
        MissingExtra, match=r"needs langchain-core>=1\.0, and 0\.3\.7 is installed: pip install"
    ):
        importlib.import_module("auxbit.integrations.langchain")
    monkeypatch.setitem(sys.modules, "langchain_core.vectorstores", None)
    with pytest.raises(
        MissingExtra, match=r"needs langchain-core>=1\.0: pip install .*'auxbit\[langchain\]'"
    ):
        importlib.import_module("auxbit.integrations.langchain")


def test_a_collection_with_the_defaults_finds_neighbours(digits):
    items = Collection.create(None, digits[300:], metadata=[{"text": str(row)} for row in range(1497)])
    store = AuxbitVectorStore(Axes(), items)
    found = [store.similarity_search_by_vector(query.tolist(), k=10) for query in digits[:100]]
    ids = [[int(each.page_content) for each in row] for row in found]
    truth = ground_truth(digits[300:], digits[:100], 10)
    assert recall_at(retrieved_ranking(ids, truth), 10) > 0.75
