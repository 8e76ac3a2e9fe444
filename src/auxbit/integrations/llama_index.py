"""AuxbitVectorStore: a vector store of LlamaIndex, in a folder or in memory.

from auxbit.integrations.llama_index import AuxbitVectorStore

storage = StorageContext.from_defaults(vector_store=AuxbitVectorStore("docs.auxbit"))
index = VectorStoreIndex.from_documents(documents, storage_context=storage)
index = VectorStoreIndex.from_vector_store(AuxbitVectorStore("docs.auxbit"))     # opens it again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from auxbit.core.checks import PathLike, require
from auxbit.errors import InvalidInput, InvalidParameter

require(
    "llama_index.core.vector_stores.types", extra="llama-index", purpose="auxbit.integrations.llama_index",
    least="llama-index-core>=0.14",
)  # fmt: skip

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from auxbit.collection.collection import Collection
from auxbit.data.records import Row
from auxbit.data.where import Where
from auxbit.integrations.documents import Documents, Found

ID_FIELD = "_node_id"  # of the metadata on disk, so that conditions can name nodes
MMR_FACTOR = 4  # candidates for each answer
_CONTENT = "_node_content"  # in which LlamaIndex keeps a node
_OPERATORS = {FilterOperator.NIN: "not in"} | {
    each: each.value
    for each in (
        FilterOperator.EQ, FilterOperator.NE, FilterOperator.LT, FilterOperator.LTE, FilterOperator.GT,
        FilterOperator.GTE, FilterOperator.IN,
    )
}  # fmt: skip


class AuxbitVectorStore(BasePydanticVectorStore):
    """A LlamaIndex vector store in a collection. Changes are on disk when a call returns, without `persist`.

    path : a folder, opened if it exists; None: in memory; or a Collection. metric : "cosine",
    "inner_product" or "euclidean". vectors : the type in which they are stored, "float32" or "float16".

    Similarities are the cosine, the inner product, or minus the squared distance. Below 20,000 nodes results
    are exact; then codes are learned, which makes one call of `add` take longer.
    """

    stores_text: bool = True
    path: str | None = None
    metric: str = "cosine"
    vectors: str = "float32"
    _documents: Documents = PrivateAttr()

    def __init__(
        self, path: PathLike | Collection | None = None, *, metric: str = "cosine", vectors: str = "float32"
    ) -> None:
        documents = Documents(path, metric=metric, vectors=vectors)
        place = None if documents.path is None else str(documents.path)
        fields: dict[str, Any] = {"path": place, "metric": documents.metric, "vectors": vectors}
        super().__init__(stores_text=True, **fields)
        self._documents = documents

    @classmethod
    def class_name(cls) -> str:
        """Its name in what LlamaIndex writes."""
        return "AuxbitVectorStore"

    @property
    def client(self) -> Collection | None:
        """The collection; None before the first nodes."""
        return self._documents.collection

    # ---- changes

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes that have embeddings, replacing those with existing ids; returns their ids."""
        listed = list(nodes)
        ids = [node.node_id for node in listed]
        texts = [node.get_content(metadata_mode=MetadataMode.NONE) for node in listed]
        self._documents.add([node.get_embedding() for node in listed], texts, list(map(_row, listed)), ids)
        return ids

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        if len(self._documents):
            self._documents.delete(where={"ref_doc_id": ref_doc_id})

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by id, or those that match the filters; with both, those that both select."""
        if node_ids is None and filters is None:
            raise InvalidInput("choose which nodes to delete: give node_ids or filters. clear() deletes all.")
        if len(self._documents):
            self._documents.delete(where=_where(filters, node_ids=node_ids))

    def clear(self) -> None:
        """Delete all nodes."""
        self._documents.clear()

    def close(self) -> None:
        """Let other processes write to the folder."""
        self._documents.close()

    # ---- searches

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Nodes by id, or those that match the filters; with neither, all."""
        if not len(self._documents):
            return []
        if filters is None and node_ids is not None:
            return list(map(_node, self._documents.get(node_ids)))
        return list(map(_node, self._documents.all(_where(filters, node_ids=node_ids))))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest to an embedding; with mode "mmr", near ones that differ from each other."""
        if query.query_embedding is None:
            raise InvalidInput(
                "the query has no embedding: give query_embedding, or an index with embed_model."
            )
        if query.mode not in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR):
            raise InvalidParameter("mode", query.mode.value, "'default' or 'mmr'")
        if not len(self._documents):
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        # an index without nodes of its own asks among none, and means all
        where = _where(query.filters, node_ids=query.node_ids or None, doc_ids=query.doc_ids or None)
        k, by_mmr = query.similarity_top_k, query.mode == VectorStoreQueryMode.MMR
        found = self._documents.search(query.query_embedding, MMR_FACTOR * k if by_mmr else k, where)
        scores = [each.score for each in found]
        if by_mmr and found:
            threshold = kwargs.get("mmr_threshold", query.mmr_threshold)
            rows = self._documents.vectors([each.id for each in found]).astype("float64").tolist()
            scores, chosen = get_top_k_mmr_embeddings(
                query.query_embedding, rows, similarity_top_k=k, mmr_threshold=threshold
            )
            found = [found[place] for place in chosen]
        return VectorStoreQueryResult(
            nodes=list(map(_node, found)), similarities=scores, ids=[each.id for each in found]
        )


# ---- Nodes


def _row(node: BaseNode) -> Row:
    """What is kept of a node beside its text. Its own metadata are in _CONTENT, and again for conditions."""
    row = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
    row.pop("text", None)
    return row | {ID_FIELD: node.node_id}


def _node(found: Found) -> BaseNode:
    if _CONTENT in found.metadata:
        return metadata_dict_to_node(found.metadata, text=found.text)
    return TextNode(id_=found.id, text=found.text, metadata=found.metadata)  # not added by LlamaIndex


# ---- Filters

Judge = Callable[[Row], bool]


def _where(
    filters: MetadataFilters | None, *, node_ids: list[str] | None = None, doc_ids: list[str] | None = None
) -> Any:
    """Conditions as a collection takes them; None for all nodes."""
    parts = [] if filters is None or not filters.filters else [_group(filters)]
    for field, values in ((ID_FIELD, node_ids), ("ref_doc_id", doc_ids)):
        if values is not None:
            parts.append({field: {"in": values}})
    return _joined("and", parts) if parts else None


def _group(filters: MetadataFilters) -> Any:
    parts = [_group(each) if isinstance(each, MetadataFilters) else _one(each) for each in filters.filters]
    if not parts:
        return lambda row: True
    if filters.condition == FilterCondition.NOT:  # none of them
        return _opposite(_joined("or", parts))
    return _joined("or" if filters.condition == FilterCondition.OR else "and", parts)


def _joined(word: str, parts: list[Any]) -> Any:
    if not any(map(callable, parts)):
        return {word: parts}
    judges = [part if callable(part) else Where.of(part).matches for part in parts]
    every = all if word == "and" else any
    return lambda row: every(judge(row) for judge in judges)


def _opposite(part: Any) -> Any:
    return (lambda row: not part(row)) if callable(part) else {"not": Where.of(part)}


def _one(wanted: MetadataFilter) -> Any:
    """A condition; a function of a row, if there is no condition for it."""
    field, value, operator = wanted.key, wanted.value, wanted.operator
    if operator in _OPERATORS:
        return {field: {_OPERATORS[operator]: value}}
    if operator in (FilterOperator.CONTAINS, FilterOperator.TEXT_MATCH):
        return {field: {"contains": [value]}}
    if operator == FilterOperator.ANY:
        return {field: {"contains": value}}
    if operator == FilterOperator.ALL:
        return {"and": [{field: {"contains": [each]}} for each in _several(wanted)]}
    if operator == FilterOperator.IS_EMPTY:
        return {"or": [{field: {"exists": False}}, {field: {"in": [None, "", []]}}]}
    if operator == FilterOperator.TEXT_MATCH_INSENSITIVE:
        part = str(value).lower()
        return lambda row: isinstance(row.get(field), str) and part in row[field].lower()
    raise InvalidParameter("filters", operator.value, f"an operator that is known for {field!r}")


def _several(wanted: MetadataFilter) -> list[Any]:
    if not isinstance(wanted.value, list) or not wanted.value:
        raise InvalidParameter("filters", wanted.value, f"a list of values after 'all' for {wanted.key!r}")
    return wanted.value
