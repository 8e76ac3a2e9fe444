"""Searches of the pgvector store: many queries in one statement, exact or by an HNSW index."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from auxbit.codes import Packed
from auxbit.stores import pgvector_sql as statements
from auxbit.stores.pgvector_rows import bit_strings, vector_texts
from auxbit.stores.pgvector_table import Table
from auxbit.stores.pgvector_where import Parameters, condition_sql
from auxbit.stores.protocol import Array, Vectors, by_distance_then_id

QUERIES = 64  # in one statement
MOST_EF_SEARCH = 1000

Answer = tuple[Array, Array]  # distances and ids


def exactly(table: Table, queries: Packed, k: int, where: Any) -> list[Answer]:
    """The k nearest of all that `where` finds, equal distances by id."""
    return _ask(table, statements.EXACT, queries, where, {"k": k})


def within(table: Table, queries: Packed, r: int, where: Any) -> list[Answer]:
    """All within distance r, equal distances by id."""
    return _ask(table, statements.WITHIN, queries, where, {"r": r})


def by_index(table: Table, queries: Packed, k: int, ef_search: int) -> list[Answer]:
    """What the HNSW index finds; queries for which that is too little are answered exactly."""
    n_bits = table.known()["n_bits"]
    wanted = min(k, table.number(statements.COUNT, where=statements.filled("TRUE")))
    found: list[Answer] = []
    with table.transaction():
        _look_as_far(table, max(ef_search, k))
        for code in bit_strings(queries, n_bits):
            rows = table.run(statements.APPROXIMATE, {"code": code, "k": k}, bits=n_bits).fetchall()
            ids, distances = _columns(rows, (np.int64, np.int32))
            found.append(by_distance_then_id(distances, ids))
    few = [query for query, (ids, _) in enumerate(found) if len(ids) < wanted]
    for query, answer in zip(few, exactly(table, queries[few], k, None) if few else []):
        found[query] = answer
    return found


def reranked(
    table: Table, queries: Packed, X: Vectors, k: int, where: Any, candidates: int, ef_search: int | None
) -> list[Answer]:
    """Candidates by their codes, ranked by ‖x − y‖² in the database. ef_search : of HNSW, None: exactly."""
    with table.transaction():
        if ef_search is not None:
            _look_as_far(table, max(ef_search, candidates))
        ties = statements.filled("" if ef_search is not None else " + 0, id")
        values = {"k": k, "candidates": candidates}
        found = _ask(table, statements.RERANK, queries, where, values, X, exactly=ties)
    return [(distances**2, ids) for distances, ids in found]


def _ask(
    table: Table,
    statement: str,
    queries: Packed,
    where: Any,
    values: dict[str, Any],
    X: Vectors | None = None,
    **parts: Any,
) -> list[Answer]:
    n_bits = table.known()["n_bits"]
    found: list[Answer] = []
    for first in range(0, len(queries), QUERIES):
        asked = slice(first, min(first + QUERIES, len(queries)))
        parameters = Parameters(values | {"codes": bit_strings(queries[asked], n_bits)})
        if X is not None:
            parameters["vectors"] = vector_texts(X[asked])
        condition = condition_sql(where, parameters)
        rows = table.run(statement, parameters, where=condition, bits=n_bits, **parts).fetchall()
        kinds = (np.int64, np.int64, np.int32 if X is None else np.float64)
        numbers, ids, distances = _columns(rows, kinds)
        lims = np.searchsorted(numbers, np.arange(1, asked.stop - asked.start + 2))
        found += [(distances[a:b], ids[a:b]) for a, b in itertools.pairwise(lims)]
    return found


def _columns(rows: list[Any], kinds: tuple[Any, ...]) -> list[Array]:
    columns = zip(*rows) if rows else [()] * len(kinds)
    return [np.fromiter(column, dtype=kind, count=len(rows)) for column, kind in zip(columns, kinds)]


def _look_as_far(table: Table, wanted: int) -> None:
    value = str(min(wanted, MOST_EF_SEARCH))
    table.run(statements.SETTING, {"name": "hnsw.ef_search", "value": value})
