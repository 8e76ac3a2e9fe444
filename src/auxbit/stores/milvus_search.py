"""Searches of the Milvus store, around the 16,384 answers that it gives at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed
from auxbit.errors import InvalidParameter
from auxbit.index.id_table import MAX_ID
from auxbit.stores.milvus_collection import STRONG, MilvusCollection
from auxbit.stores.protocol import Array, Ids, by_distance_then_id

MOST_FOUND = 16_384
QUERIES = 64  # in one call

Answer = tuple[Array, Array]  # distances and ids


def nearest(
    collection: MilvusCollection, queries: Packed, k: int, condition: str, n_probe: int
) -> list[Answer]:
    """The k nearest that fulfil the condition."""
    if k > MOST_FOUND and collection.count(condition) > MOST_FOUND:
        raise InvalidParameter("k", k, f"at most {MOST_FOUND:,}, which is all that Milvus answers with")
    n_probe = n_probe if not condition else collection.n_lists()
    return _found(collection, queries, min(k, MOST_FOUND), condition, n_probe)


def within(collection: MilvusCollection, queries: Packed, r: int, condition: str) -> list[Answer]:
    """All within distance r that fulfil the condition."""
    first = _found(collection, queries, MOST_FOUND, condition, collection.n_lists(), r)
    return [
        by_distance_then_id(*_all(collection, queries[[row]], r, condition, (0, MAX_ID), answer))
        for row, answer in enumerate(first)
    ]


def ranked(collection: MilvusCollection, x: npt.NDArray[np.float32], ids: Ids, k: int) -> Answer:
    """Of these candidates the k nearest by ‖x − y‖²."""
    rows = collection.read(ids, "vector")
    numbers = np.array([row["id"] for row in rows], dtype=np.int64)
    vectors = np.array([row["vector"] for row in rows], dtype=np.float64).reshape(len(rows), len(x))
    squared = ((vectors - x.astype(np.float64)) ** 2).sum(axis=1)
    near, best = by_distance_then_id(squared, numbers)
    return near[:k], best[:k]


def _found(
    collection: MilvusCollection,
    queries: Packed,
    limit: int,
    condition: str,
    n_probe: int,
    r: int | None = None,
) -> list[Answer]:
    """What each query finds, within distance r where that is given."""
    parameters: dict[str, Any] = {} if r is None else {"radius": r + 1}  # Milvus leaves the radius out
    if collection.n_lists():
        parameters["nprobe"] = min(n_probe, collection.n_lists())
    found = []
    for first in range(0, len(queries), QUERIES):
        hits = collection.client.call(
            "search",
            collection.name,
            data=[code.tobytes() for code in queries[first : first + QUERIES]],
            anns_field="code",
            limit=limit,
            filter=condition,
            search_params={"metric_type": "HAMMING", "params": parameters},
            **STRONG,
        )
        for answer in hits:
            distances = np.array([round(hit["distance"]) for hit in answer], dtype=np.int32)
            ids = np.array([hit["id"] for hit in answer], dtype=np.int64)
            found.append(by_distance_then_id(distances, ids))
    return found


def _all(
    collection: MilvusCollection,
    query: Packed,
    r: int,
    condition: str,
    span: tuple[int, int],
    answer: Answer,
) -> Answer:
    """All answers with ids in the span, halved until Milvus gives all of one; `answer` is the first try."""
    if len(answer[1]) < MOST_FOUND:
        return answer
    middle = int(np.median(answer[1]))
    halves = []
    for low, high in ((span[0], middle), (middle + 1, span[1])):
        both = " and ".join(filter(None, [condition, f"id >= {low}", f"id <= {high}"]))
        (half,) = _found(collection, query, MOST_FOUND, both, collection.n_lists(), r)
        halves.append(_all(collection, query, r, condition, (low, high), half))
    return np.concatenate([each[0] for each in halves]), np.concatenate([each[1] for each in halves])
