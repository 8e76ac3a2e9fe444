"""AuxbitVectorStore: a vector store of LangChain, in a folder or in memory.

from auxbit.integrations.langchain import AuxbitVectorStore

store = AuxbitVectorStore(embedding, "docs.auxbit")
store.add_texts(texts, metadatas)
store.similarity_search("cats", k=4, filter={"year": {">=": 2020}})
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from auxbit.collection.collection import Collection
from auxbit.core.checks import PathLike, require
from auxbit.errors import InvalidInput
from auxbit.integrations.documents import Documents, Found

require(
    "langchain_core.vectorstores", extra="langchain", purpose="auxbit.integrations.langchain",
    least="langchain-core>=1.0",
)  # fmt: skip

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

# what other stores of LangChain call our operators
_OPERATORS = {
    "$eq": "==", "$ne": "!=", "$lt": "<", "$lte": "<=", "$gt": ">", "$gte": ">=", "$in": "in",
    "$nin": "not in", "$exists": "exists", "$and": "and", "$or": "or", "$not": "not", "$contains": "contains",
}  # fmt: skip


class AuxbitVectorStore(VectorStore):
    """A LangChain vector store in a collection. Changes are on disk when a call returns.

    embedding : turns texts into vectors. path : a folder, opened if it exists; None: in memory; or a
    Collection. metric : "cosine", "inner_product" or "euclidean". text_field : the metadata field on disk
    that holds the text. vectors : the type in which vectors are stored, "float32" or "float16".

    Scores are the cosine, the inner product, or minus the squared distance: larger is nearer. Below 20,000
    documents results are exact; then codes are learned, which makes one call of add_texts take longer.
    """

    def __init__(
        self, embedding: Embeddings, path: PathLike | Collection | None = None, *, metric: str = "cosine",
        text_field: str = "text", vectors: str = "float32",
    ) -> None:  # fmt: skip
        self.embedding = embedding
        self.documents = Documents(path, text_field=text_field, metric=metric, vectors=vectors)

    @property
    def embeddings(self) -> Embeddings:
        """What turns texts into vectors."""
        return self.embedding

    @property
    def collection(self) -> Collection | None:
        """The collection that holds the documents; None before the first document."""
        return self.documents.collection

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, *,
        ids: list[str] | None = None, path: PathLike | Collection | None = None, **kwargs: Any,
    ) -> AuxbitVectorStore:  # fmt: skip
        """A store with these texts added. path, kwargs : as in AuxbitVectorStore."""
        store = cls(embedding, path, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    # ---- changes

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *,
        ids: Sequence[str | None] | None = None, **kwargs: Any,
    ) -> list[str]:  # fmt: skip
        """Add texts, replacing those with existing ids; returns their ids, by default new UUIDs."""
        listed = list(texts)
        for name, given in (("metadatas", metadatas), ("ids", ids)):
            if given is not None and len(given) != len(listed):
                raise InvalidInput(f"there are {len(given)} {name} for {len(listed)} texts: give one each.")
        known = [id_ or str(uuid.uuid4()) for id_ in (ids or [None] * len(listed))]
        if listed:
            vectors = self.embedding.embed_documents(listed)
            self.documents.add(
                vectors, listed, [each or {} for each in metadatas or [{}] * len(listed)], known
            )
        return known

    def delete(self, ids: list[str] | None = None, *, filter: Any = None, **kwargs: Any) -> bool:
        """Delete by id, or those that match the filter; with neither, all. Unknown ids are ignored."""
        if ids is None and filter is None:
            self.documents.clear()
        else:
            self.documents.delete(ids, None if filter is None else self._where(filter))
        return True

    def close(self) -> None:
        """Let other processes write to the folder."""
        self.documents.close()

    # ---- searches

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids; unknown ids are left out."""
        return [_document(found) for found in self.documents.get(ids)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k nearest documents to a text. filter : as in similarity_search_with_score_by_vector."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k nearest documents to a text, with their scores: larger is nearer."""
        return self.similarity_search_with_score_by_vector(self.embedding.embed_query(query), k, **kwargs)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """The k nearest documents to a vector."""
        found = self.similarity_search_with_score_by_vector(embedding, k, **kwargs)
        return [document for document, _ in found]

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Any = None
    ) -> list[tuple[Document, float]]:
        """The k nearest documents to a vector, with their scores.

        filter : conditions on metadata as in Collection.search, {"year": {">=": 2020}} or "year >= 2020";
        also with the operators of other stores, {"year": {"$gte": 2020}}; or a function of a Document.
        """
        found = self.documents.search(embedding, k, self._where(filter))
        return [(_document(each), each.score) for each in found]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Documents that are near to a text, and not to each other: k of the fetch_k nearest."""
        vector = self.embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, *,
        filter: Any = None, **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        """Documents that are near to a vector, and not to each other."""
        if kwargs:
            raise TypeError(f"{next(iter(kwargs))!r} is not a parameter of this search. Did you mean filter?")
        found = self.documents.search(embedding, max(k, fetch_k), self._where(filter))
        if not found:
            return []
        rows = self.documents.vectors([each.id for each in found]).astype(np.float32)
        query = np.asarray(embedding, dtype=np.float32)
        chosen = maximal_marginal_relevance(query, list(rows), lambda_mult, k)
        return [_document(found[place]) for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Scores as numbers from 0 to 1."""
        return {"cosine": _of_cosine, "inner_product": _of_product}.get(self.documents.metric, _of_distance)

    def _where(self, filter: Any) -> Any:
        if callable(filter):
            field = self.documents.text_field

            def holds(row: dict[str, Any]) -> bool:
                rest = {name: value for name, value in row.items() if name != field}
                return bool(filter(Document(page_content=str(row.get(field, "")), metadata=rest)))

            return holds
        return _translated(filter) if isinstance(filter, Mapping) and filter else filter or None


def _document(found: Found) -> Document:
    return Document(id=found.id, page_content=found.text, metadata=found.metadata)


def _translated(wanted: Any) -> Any:
    """Conditions with our names of operators."""
    if isinstance(wanted, Mapping):
        return {_OPERATORS.get(name, name): _translated(value) for name, value in wanted.items()}
    nested = isinstance(wanted, list) and any(isinstance(each, Mapping) for each in wanted)
    return list(map(_translated, wanted)) if nested else wanted


def _of_cosine(score: float) -> float:
    return (1 + score) / 2


def _of_product(score: float) -> float:
    return 0.5 + 0.5 * math.tanh(score / 2)


def _of_distance(score: float) -> float:
    return 1 / (1 + math.sqrt(max(0.0, -score)))
