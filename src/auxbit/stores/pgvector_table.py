"""A connection to PostgreSQL and one table of ours in it: finding it, making it, noting pushes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from auxbit.errors import InvalidParameter, StoreError, StoreExists
from auxbit.extras import require
from auxbit.stores import pgvector_sql as statements
from auxbit.stores.addresses import Address
from auxbit.stores.pgvector_errors import NO_EXTENSION, NO_RIGHT_TO_EXTENSION, translated, unreachable

OLDEST = (0, 7)  # of pgvector: the first with bit strings
MOST_NAME_BYTES = 63  # longer names would be cut


class Table:
    """The table `name`, found by the connection's search_path; its comment says that it is ours, and what."""

    def __init__(self, address: Address, name: str) -> None:
        self.address, self.name = address, _checked_name(name)
        self.connection = _connected(address)
        self.identifier = statements.quoted(name)
        self._pushes = statements.quoted(statements.PUSHES)
        self._schema: Any = None  # of pgvector, once known
        self._about: dict[str, Any] | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is changed inside is committed as a whole; inside of another, a savepoint."""
        with translated(self.address, self.name), self.connection.transaction():
            yield

    def run(self, statement: str, values: dict[str, Any] | None = None, **parts: Any) -> Any:
        """Run a statement of pgvector_sql; returns the cursor."""
        names = {"table": self.identifier, "pushes": self._pushes, "vector_schema": self._schema} | parts
        used = {name: part for name, part in names.items() if f"{{{name}}}" in statement}
        with translated(self.address, self.name):
            # never prepared: a plan for all values would not use an index on one field of the metadata
            return self.connection.execute(statements.filled(statement, **used), values or {}, prepare=False)

    def number(self, statement: str, values: dict[str, Any] | None = None, **parts: Any) -> int:
        """The first value of the first row of an answer, 0 where there is none."""
        row = self.run(statement, values, **parts).fetchone()
        return int(row[0]) if row else 0

    # ---- the table

    def find(self) -> dict[str, Any] | None:
        """What the table's comment says about it, None where there is none; an error if it is not ours."""
        row = self._comment(self.name)
        if row is None:
            return None
        about = statements.read_mark(row[1]) if row[2] == "r" else None
        if about is None or "n_bits" not in about:
            raise StoreExists(
                f"there is a table or view {self.name!r} that auxbit has not made, and it is left alone. "
                "Choose another name."
            )
        return about

    def known(self) -> dict[str, Any]:
        """What the table is; read once."""
        if self._about is None:
            found = self.find()
            if found is None:
                raise StoreError(f"there is no table {self.name!r} in {self.address.shown}: create it first.")
            self._find_extension(make=False)
            self._about = found
        return self._about

    def create(self, n_bits: int, n_features: int | None, *, overwrite: bool) -> None:
        """Make the table, and enable pgvector where it is not."""
        with self.transaction():
            self._find_extension(make=True)
            present = self.find()
            if present is not None and not overwrite:
                raise StoreExists(
                    f"the table {self.name!r} exists, with codes of {present['n_bits']} bits. Choose another "
                    "name, or replace it with --force (overwrite=True)."
                )
            if present is not None:
                self.run(statements.DROP)
                if self._pushes_are_noted():
                    self.run(statements.FORGET_STORE, {"store": present["key"]})
            column: Any = statements.filled("")
            if n_features is not None:
                column = statements.filled(
                    statements.VECTOR_COLUMN, vector_schema=self._schema, dims=n_features
                )
            self.run(statements.CREATE, bits=n_bits, vector_column=column)
            about = {"n_bits": n_bits, "n_features": n_features, "key": secrets.token_hex(16), "version": 1}
            self.run(statements.COMMENT, text=statements.mark(**about))
        self._about = about

    def has_hnsw(self) -> bool:
        """Whether there is an approximate index over the codes."""
        row = self._comment(self.name)
        return row is not None and bool(self.number(statements.COUNT_HNSW, {"table": row[0]}))

    def columns(self) -> list[Any]:
        """The names of the columns in the order of COPY, as identifiers."""
        vector = ["vector"] if self.known()["n_features"] is not None else []
        return [statements.quoted(name) for name in ("id", "code", *vector, "metadata")]

    def _comment(self, name: str) -> Any:
        """Number, comment and kind of the table of that name, None where there is none."""
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        name = sql.Identifier(name).as_string(self.connection)
        return self.run(statements.FIND_TABLE, {"quoted": name}).fetchone()

    def _find_extension(self, *, make: bool) -> None:
        """Find pgvector, which may be in any schema, or enable it."""
        found = self.run(statements.EXTENSION).fetchone()
        if found is None:
            if not self.number(statements.AVAILABLE):
                raise StoreError(f"{self.address.shown}: {NO_EXTENSION}")
            if make:
                self._make_extension()
            found = self.run(statements.EXTENSION).fetchone() if make else None
        if found is None:
            raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}")
        if tuple(int(part) for part in found[0].split(".")[:2]) < OLDEST:
            raise StoreError(
                f"{self.address.shown}: pgvector {found[0]} has no bit strings: 0.7 is needed. Install a "
                "newer one there, then run: ALTER EXTENSION vector UPDATE;"
            )
        self._schema = statements.quoted(found[1])

    def _make_extension(self) -> None:
        psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
        try:
            self.connection.execute(statements.MAKE_EXTENSION)
        except psycopg.errors.InsufficientPrivilege:
            raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}") from None

    # ---- pushes that can be resumed

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has brought here."""
        key = self.known()["key"]
        if not self._pushes_are_noted():
            return 0
        return self.number(statements.PUSHED, {"store": key, "source": source})

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is; None: it is complete."""
        what = {"store": self.known()["key"], "source": source}
        with self.transaction():
            if not self._pushes_are_noted():
                self.run(statements.ONE_AT_A_TIME)
                if not self._pushes_are_noted():
                    self.run(statements.CREATE_PUSHES)
                    self.run(statements.COMMENT, table=self._pushes, text=statements.mark(pushes=True))
            if rows is None:
                self.run(statements.FORGET, what)
            else:
                self.run(statements.REMEMBER, what | {"rows": rows})

    def _pushes_are_noted(self) -> bool:
        row = self._comment(statements.PUSHES)
        if row is not None and not (statements.read_mark(row[1]) or {}).get("pushes"):
            raise StoreExists(
                f"there is a table {statements.PUSHES!r} that auxbit has not made, and pushes are noted "
                "under this name. Rename it, or push to another schema."
            )
        return row is not None


def _connected(address: Address) -> Any:
    psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
    try:
        return psycopg.connect(address.text, autocommit=True)
    except psycopg.ProgrammingError:  # its message may quote the password
        raise InvalidParameter(
            "to", address.shown, "a URL that PostgreSQL can read",
            "Write special characters of a password as %40 and the like, and check what is after the ?.",
        ) from None  # fmt: skip
    except psycopg.Error as error:
        raise unreachable(error, address) from None


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter("name", name, "the name of a table")
    if len(name.encode()) > MOST_NAME_BYTES:
        raise InvalidParameter(
            "name", name, f"at most {MOST_NAME_BYTES} bytes, longer names PostgreSQL would cut"
        )
    return name
