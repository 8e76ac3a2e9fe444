"""PgvectorStore: codes in a table of PostgreSQL, searched by pgvector's <~>."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.checks import check_integer
from auxbit.codes import check_n_bits, check_packed
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.extras import require
from auxbit.index.id_table import check_ids
from auxbit.stores import pgvector_search as searches
from auxbit.stores import pgvector_sql as statements
from auxbit.stores.addresses import Address, parse
from auxbit.stores.marked import MarkedStore
from auxbit.stores.pgvector_errors import translated
from auxbit.stores.pgvector_rows import HEADER, TRAILER, copy_block
from auxbit.stores.pgvector_table import Table
from auxbit.stores.pgvector_where import Parameters, condition_sql
from auxbit.stores.protocol import (
    CANDIDATES,
    DEFAULT_NAME,
    MOST_ANSWERS,
    Array,
    Distances,
    Ids,
    Progress,
    Rows,
    checked_floats,
    checked_rows,
    joined,
    padded,
)

MOST_DIMENSIONS = 16_000  # of pgvector's vectors
COPY_ROWS = 16_384  # that become one block of COPY


class PgvectorStore(MarkedStore):
    """Codes in a table with the columns id, code bit(L), metadata jsonb and perhaps vector.

    name : the table, as it is, found by the connection's search_path. use_index : let `search` without
    `where` use an HNSW index where there is one, and miss some neighbours; ef_search : how far that looks.
    """

    batch_rows = 65_536

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, use_index: bool = True, ef_search: int = 100
    ) -> None:
        self.use_index = use_index
        self.ef_search = check_integer("ef_search", ef_search, 1, searches.MOST_EF_SEARCH)
        self._place = self._table = Table(url if isinstance(url, Address) else parse(url), name)

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        return not (self.use_index and self._table.has_hnsw())

    def create(self, n_bits: int, *, n_features: int | None = None, overwrite: bool = False) -> None:
        """Make the table, and enable pgvector where it is not; see Store.create."""
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 1, MOST_DIMENSIONS)
        self._table.create(check_n_bits(n_bits), n_features, overwrite=overwrite)

    def add(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike,
        *,
        metadata: Any = None,
        vectors: npt.ArrayLike | None = None,
        upsert: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Add rows by COPY in one transaction, all or none; see Store.add."""
        rows = checked_rows(
            codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=self.n_features, upsert=upsert
        )
        if not len(rows):
            return
        psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        with self._table.transaction():
            if upsert and self._any_between(rows.ids):
                self._replace(rows, progress)
                return
            try:
                with self._table.connection.transaction():  # a savepoint
                    self._copy(sql.Identifier(self.name), rows, progress)
            except psycopg.errors.UniqueViolation:
                if not upsert:
                    raise
                self._replace(rows, None)  # somebody else has just added one of them

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        _ = self._table.known()
        return int(self._table.run(statements.DELETE, {"ids": check_ids(ids).tolist()}).rowcount)

    def create_index(self, kind: str = "hnsw", *, links: int = 16, ef_construction: int = 64) -> None:
        """Build an HNSW index over the codes that are there; later ones go into it as they come."""
        if kind != "hnsw":
            raise InvalidParameter("kind", kind, "'hnsw', pgvector's index for bits")
        links = check_integer("links", links, 2, 100)
        ef_construction = check_integer("ef_construction", ef_construction, 2 * links, 1000)
        _ = self._table.known()
        self._table.run(statements.CREATE_HNSW, links=links, ef_construction=ef_construction)

    def search(
        self,
        codes: npt.ArrayLike,
        k: int = 10,
        *,
        where: Any = None,
        rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:
        """The k nearest codes to each query; see Store.search."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = check_packed(codes, self.n_bits, "codes")
        approximate = where is None and not self.exact
        if rerank is None:
            if approximate:
                return padded(searches.by_index(self._table, queries, k, self.ef_search), k)
            return padded(searches.exactly(self._table, queries, k, where), k)
        if self.n_features is None:
            raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
        X = checked_floats(rerank, self.n_features, len(queries), "rerank")
        most = CANDIDATES * k if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        ef_search = self.ef_search if approximate else None
        return padded(searches.reranked(self._table, queries, X, k, where, most, ef_search), k, real=True)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive; see Store.search_radius."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        return joined(searches.within(self._table, queries, min(r, self.n_bits), where))

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        _ = self._table.known()
        parameters = Parameters()
        condition = condition_sql(where, parameters)
        return self._table.number(statements.COUNT, parameters, where=condition)

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} where one has none or is not there."""
        wanted = np.asarray(ids, dtype=np.int64).tolist()
        found = self._table.run(statements.METADATA, {"ids": wanted}).fetchall()
        by_id = {number: json.loads(text) for number, text in found}
        return [by_id.get(each, {}) for each in wanted]

    def transaction(self) -> AbstractContextManager[None]:
        """What is changed inside is committed as a whole."""
        return self._table.transaction()

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has brought here."""
        return self._table.pushed(source)

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is, in the same transaction as its rows; None: it is complete."""
        self._table.remember_push(source, rows)

    def close(self) -> None:
        """End the connection."""
        self._table.connection.close()

    def __repr__(self) -> str:
        return f"PgvectorStore({self._table.address.shown!r}, {self.name!r})"

    # ---- inside

    def _any_between(self, ids: Ids) -> bool:
        span = {"least": int(ids.min()), "largest": int(ids.max())}
        return bool(self._table.number(statements.ANY_BETWEEN, span))

    def _copy(self, target: Any, rows: Rows, progress: Progress | None) -> None:
        """COPY into `target`, an identifier in which % stands once: COPY has no parameters."""
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        columns = sql.SQL(", ").join(self._table.columns())
        statement = statements.filled(statements.COPY, table=target, columns=columns)
        with self._table.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(HEADER)
            for part in rows.parts(COPY_ROWS):
                copy.write(copy_block(part, self.n_bits))
                if progress is not None:
                    progress(len(part))
            copy.write(TRAILER)

    def _replace(self, rows: Rows, progress: Progress | None) -> None:
        """Add rows of which some may be there: into a temporary table, and from there into ours."""
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        incoming = sql.Identifier("pg_temp", statements.INCOMING)
        self._table.run(statements.MAKE_INCOMING, incoming=incoming)
        self._table.run(statements.EMPTY_INCOMING, incoming=incoming)
        with translated(self._table.address, self.name):
            self._copy(incoming, rows, progress)
        columns = self._table.columns()
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in columns[1:])
        names = sql.SQL(", ").join(columns)
        self._table.run(statements.TAKE_IN, incoming=incoming, columns=names, changes=changes)
