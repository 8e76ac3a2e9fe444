"""The vector store of LlamaIndex, with its real index and an embedding that is made up."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import ImageNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from auxbit import Collection
from auxbit.errors import InvalidInput, InvalidParameter, MissingExtra
from auxbit.evaluate import ground_truth, recall_at, retrieved_ranking
from auxbit.integrations.llama_index import AuxbitVectorStore


class Axes(MockEmbedding):
    """cats, dogs and cars, by how often they are named."""

    def __init__(self):
        super().__init__(embed_dim=3)

    def _get_text_embedding(self, text):
        return [0.1 + text.count(word) for word in ("cat", "dog", "car")]

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)


TEXTS = ["cat", "cat cat dog", "dog", "car", "car dog", "cat cat"]


def nodes():
    made = []
    for i, text in enumerate(TEXTS):
        node = TextNode(
            id_="abcdef"[i],
            text=text,
            metadata={"year": 2000 + i, "name": f"Note {i}", "tags": ["odd"] * (i % 2)},
        )
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"doc{i // 3}")
        node.embedding = Axes()._get_text_embedding(text)
        made.append(node)
    return made


@pytest.fixture
def store():
    made = AuxbitVectorStore()
    assert made.add(nodes()) == list("abcdef")
    return made


@pytest.fixture
def simple():
    made = SimpleVectorStore()
    made.add(nodes())
    return made


def asked(text, **how):
    how = {"similarity_top_k": 6} | how
    return VectorStoreQuery(query_embedding=Axes()._get_text_embedding(text), **how)


def test_answers_and_similarities_are_those_of_the_store_in_llama_index(store, simple):
    for text in ("cat cat cat dog", "dog dog car", "car car cat"):
        ours, theirs = store.query(asked(text)), simple.query(asked(text))
        assert ours.ids == theirs.ids
        assert np.allclose(ours.similarities, theirs.similarities, atol=1e-5)
        assert [node.node_id for node in ours.nodes] == ours.ids


def test_mmr_is_that_of_llama_index(store, simple):
    query = asked("cat cat car", mode=VectorStoreQueryMode.MMR, similarity_top_k=3)
    for threshold in (0.2, 0.5, 1.0):
        ours, theirs = (each.query(query, mmr_threshold=threshold) for each in (store, simple))
        assert ours.ids == theirs.ids
        assert np.allclose(ours.similarities, theirs.similarities, atol=1e-5)


def test_nodes_come_back_as_they_were_but_for_the_embedding(store):
    (node,) = store.get_nodes(["b", "nobody"])
    expected = nodes()[1]
    expected.embedding = None
    assert node == expected
    assert node.ref_doc_id == "doc0"
    assert [each.node_id for each in store.get_nodes()] == list("abcdef")


OPERATORS = [
    ("year", FilterOperator.EQ, 2002),
    ("year", FilterOperator.NE, 2002),
    ("year", FilterOperator.GT, 2002),
    ("year", FilterOperator.GTE, 2002),
    ("year", FilterOperator.LT, 2002),
    ("year", FilterOperator.LTE, 2002),
    ("year", FilterOperator.IN, [2002, 2004]),
    ("year", FilterOperator.NIN, [2002, 2004]),
    ("name", FilterOperator.EQ, "Note 1"),
    ("name", FilterOperator.TEXT_MATCH, "ote 1"),
    ("name", FilterOperator.TEXT_MATCH, "note 1"),
    ("name", FilterOperator.TEXT_MATCH_INSENSITIVE, "note 1"),
    ("tags", FilterOperator.CONTAINS, "odd"),
    ("tags", FilterOperator.ANY, ["odd", "new"]),
    ("tags", FilterOperator.ALL, ["odd"]),
    ("tags", FilterOperator.ALL, ["odd", "new"]),
    ("tags", FilterOperator.IS_EMPTY, None),
    ("ref_doc_id", FilterOperator.EQ, "doc1"),
]


@pytest.mark.parametrize("condition", list(FilterCondition))
@pytest.mark.parametrize(("key", "operator", "value"), OPERATORS)
def test_filters_find_what_they_find_in_llama_index(store, simple, key, operator, value, condition):
    one = MetadataFilter(key=key, operator=operator, value=value)
    other = MetadataFilter(key="year", operator=FilterOperator.GT, value=2003)
    filters = MetadataFilters(filters=[one, other], condition=condition)
    expected = sorted(simple.query(asked("cat", filters=filters)).ids)
    assert sorted(store.query(asked("cat", filters=filters)).ids) == expected
    assert [node.node_id for node in store.get_nodes(filters=filters)] == expected


def test_groups_of_filters_may_be_nested(store):
    inner = MetadataFilters(
        filters=[
            MetadataFilter(key="name", operator=FilterOperator.TEXT_MATCH_INSENSITIVE, value="NOTE 5"),
            MetadataFilter(key="year", value=2000),
        ],
        condition=FilterCondition.OR,
    )
    outer = MetadataFilters(
        filters=[inner, MetadataFilter(key="year", operator=FilterOperator.LT, value=2005)]
    )
    assert store.query(asked("cat", filters=outer)).ids == ["a"]


@pytest.mark.parametrize("key", ["not", "in", "contains"])
def test_a_field_may_be_named_like_an_operator(store, key):
    store.add([TextNode(id_="g", text="x", embedding=[1.0, 1.0, 1.0], metadata={key: 5})])
    filters = MetadataFilters(filters=[MetadataFilter(key=key, value=5)])
    assert [node.node_id for node in store.get_nodes(filters=filters)] == ["g"]
    filters.condition = FilterCondition.NOT
    assert [node.node_id for node in store.get_nodes(filters=filters)] == list("abcdef")


def test_a_query_may_be_among_nodes_or_documents(store):
    assert store.query(asked("cat", node_ids=["c", "d"])).ids == ["c", "d"]
    assert sorted(store.query(asked("cat", doc_ids=["doc1"])).ids) == ["d", "e", "f"]
    assert store.query(asked("cat", doc_ids=["doc1"], node_ids=["a", "f"])).ids == ["f"]


def test_nodes_are_deleted_by_document_by_id_and_by_filters(store):
    store.delete("doc0")
    assert [node.node_id for node in store.get_nodes()] == ["d", "e", "f"]
    store.delete_nodes(["d", "nobody"])
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="year", value=2004)]))
    assert [node.node_id for node in store.get_nodes()] == ["f"]
    store.clear()
    assert store.get_nodes() == []
    assert store.query(asked("cat")).ids == []


def test_an_index_is_built_searched_changed_and_opened_again(tmp_path):
    place = tmp_path / "docs.auxbit"
    storage = StorageContext.from_defaults(vector_store=AuxbitVectorStore(place, metric="euclidean"))
    bare = [node.model_copy(update={"embedding": None}) for node in nodes()]
    index = VectorStoreIndex(bare, storage_context=storage, embed_model=Axes())
    filters = MetadataFilters(filters=[MetadataFilter(key="year", operator=FilterOperator.LT, value=2003)])
    (found,) = index.as_retriever(similarity_top_k=1, filters=filters).retrieve("dog")
    assert (found.node.node_id, found.text) == ("c", "dog")
    index.delete_ref_doc("doc1")
    storage.vector_store.close()
    again = AuxbitVectorStore(str(place))
    assert (again.metric, again.path) == ("euclidean", str(place))
    retriever = VectorStoreIndex.from_vector_store(again, embed_model=Axes()).as_retriever(similarity_top_k=9)
    assert [found.node.node_id for found in retriever.retrieve("cat")] == ["a", "b", "c"]
    again.close()
    with Collection(place) as collection:
        assert collection.get(["a"])[0]["metadata"]["text"] == "cat"


def test_a_collection_made_elsewhere_becomes_nodes():
    rows = [{"text": "one", "n": 1}, {"n": 2}]
    own = Collection.create(None, np.eye(2), ids=["a", "b"], metadata=rows, method="lsh", vectors="float32")
    first = (
        AuxbitVectorStore(own)
        .query(VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=1))
        .nodes[0]
    )
    assert (first.node_id, first.text, first.metadata) == ("a", "one", {"n": 1})


def test_nodes_without_text_and_with_a_field_text_come_back():
    store = AuxbitVectorStore()
    picture = ImageNode(id_="p", image_url="http://127.0.0.1/p.png", embedding=[1.0, 0.0])
    plain = TextNode(id_="t", text="words", metadata={"text": "other"}, embedding=[0.0, 1.0])
    store.add([picture, plain])
    found = {node.node_id: node for node in store.get_nodes(["p", "t"])}
    assert found["p"].image_url == picture.image_url
    assert (found["t"].text, found["t"].metadata) == ("words", {"text": "other"})


# ---- bad input


def test_what_cannot_be_asked_is_named(store):
    with pytest.raises(InvalidInput, match="the query has no embedding"):
        store.query(VectorStoreQuery(query_str="cat"))
    with pytest.raises(InvalidParameter, match="mode='hybrid' is invalid: expected 'default' or 'mmr'"):
        store.query(asked("cat", mode=VectorStoreQueryMode.HYBRID))
    with pytest.raises(InvalidInput, match=r"node_ids or filters. clear\(\) deletes all"):
        store.delete_nodes()
    filters = MetadataFilters(filters=[MetadataFilter(key="x", operator=FilterOperator.ALL, value=3)])
    with pytest.raises(InvalidParameter, match="a list of values after 'all'"):
        store.query(asked("cat", filters=filters))
    with pytest.raises(InvalidParameter, match="expected a list after 'in'"):
        store.delete_nodes("ab")
    with pytest.raises(ValueError, match="embedding not set"):
        store.add([TextNode(text="no embedding")])
    with pytest.raises(InvalidInput, match="gives vectors of 2 numbers"):
        store.add([TextNode(text="x", embedding=[1.0, 2.0])])
    assert len(store.get_nodes()) == 6


def test_without_llama_index_or_with_an_old_one_the_import_names_the_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "auxbit.integrations.llama_index")
    monkeypatch.setattr("auxbit.core.checks.version", lambda package: "0.10.1")
    with pytest.raises(
        MissingExtra, match=r"llama-index-core>=0\.14, and 0\.10\.1 is installed: pip install"
    ):
        importlib.import_module("auxbit.integrations.llama_index")
    monkeypatch.setitem(sys.modules, "llama_index.core.vector_stores.types", None)
    with pytest.raises(MissingExtra, match=r"needs llama-index-core>=0\.14: .*'auxbit\[llama-index\]'"):
        importlib.import_module("auxbit.integrations.llama_index")


def test_a_collection_with_the_defaults_finds_neighbours(digits):
    items = Collection.create(None, digits[300:], metadata=[{"text": str(row)} for row in range(1497)])
    store = AuxbitVectorStore(items)
    asked = [VectorStoreQuery(query_embedding=query.tolist(), similarity_top_k=10) for query in digits[:100]]
    ids = [[int(id_) for id_ in store.query(each).ids] for each in asked]
    truth = ground_truth(digits[300:], digits[:100], 10)
    assert recall_at(retrieved_ranking(ids, truth), 10) > 0.75
