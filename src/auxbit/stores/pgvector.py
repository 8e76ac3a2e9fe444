"""PgvectorStore: codes in a table of PostgreSQL, searched by pgvector's <~>."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.where import Condition, Where
from auxbit.core.checks import check_integer, require
from auxbit.core.codes import check_n_bits, check_packed, unpack
from auxbit.core.types import Array, Distances, Ids, Packed
from auxbit.errors import InvalidInput, InvalidParameter, StoreError, StoreExists, StoreUnreachable
from auxbit.index.codes import check_ids
from auxbit.stores.base import (
    CANDIDATES,
    DEFAULT_NAME,
    MOST_ANSWERS,
    Address,
    MarkedStore,
    Progress,
    Rows,
    Vectors,
    by_distance_then_id,
    checked_floats,
    checked_rows,
    joined,
    padded,
    parse,
)

# ---- PostgreSQL's errors as ours: what is wrong, and the remedy. No password is in them

NO_EXTENSION = (
    "the server has no pgvector. Install it there (Debian: apt install postgresql-18-pgvector, of the "
    "server's version; others: github.com/pgvector/pgvector), and try again."
)
NO_RIGHT_TO_EXTENSION = (
    "pgvector is installed there, but not enabled in this database, and the user may not do that. Let its "
    "owner run: CREATE EXTENSION vector;"
)


@contextmanager
def translated(address: Address, name: str) -> Iterator[None]:
    """Raise errors of ours in the place of the driver's."""
    psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
    try:
        yield
    except psycopg.Error as error:
        raise _ours(error, address, name) from None


def unreachable(error: Any, address: Address) -> StoreUnreachable:
    """Why no connection could be made."""
    # an indented line is advice of libpq's own, and ours follows
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    text = address.hide(lines[-1].removeprefix("connection failed: ") if lines else type(error).__name__)
    remedy = "Is the server running, and does it listen there?"
    if "password" in text:
        remedy = "Check the password in the URL, in PGPASSWORD or in ~/.pgpass."
    elif 'database "' in text and "does not exist" in text:
        remedy = "Create the database first, or name another one at the end of the URL."
    elif "role" in text or "pg_hba" in text or "no pg_hba" in text:
        remedy = "Check the user in the URL, and that the server lets it in from here."
    return StoreUnreachable(f"{address.shown} cannot be reached: {text}. {remedy}")


def _ours(error: Any, address: Address, name: str) -> Exception:
    psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
    errors, diag = psycopg.errors, error.diag
    text = address.hide(diag.message_primary or str(error).strip().partition("\n")[0])
    detail = address.hide(diag.message_detail or "")
    if isinstance(error, errors.UniqueViolation):
        found = re.search(r"\((\d+)\)", detail)
        number = f"id {found[1]}" if found else "one of the ids"
        return InvalidInput(
            f"{number} is already in {name!r}; nothing was added. upsert=True replaces its row."
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{address.shown}: {text}. Its owner can grant it, or take another user or name.")
    if isinstance(error, errors.UndefinedTable):
        return StoreError(f"the table {name!r} is not there any more ({text}). Create it again.")
    if isinstance(error, errors.DependentObjectsStillExist):
        return StoreError(f"the table {name!r} is not replaced, others depend on it: {detail or text}")
    if isinstance(error, (errors.DuplicateTable, errors.DuplicateObject)):
        return StoreExists(f"{text}: somebody else has just made it. Try again.")
    if isinstance(error, psycopg.DataError):
        place = re.search(r"COPY .*?line (\d+)", diag.context or "")
        row = f", row {int(place[1]) - 1} of a batch" if place else ""
        return InvalidInput(f"PostgreSQL cannot keep or compare this{row}: {text}. {detail}".rstrip())
    gone = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if gone and not isinstance(error, errors.InsufficientResources):
        return StoreUnreachable(
            f"{address.shown}: the connection broke: {text}. What was committed is there; once the server "
            "is back, go on (push --resume)."
        )
    return StoreError(f"{address.shown}: {text}. {detail}".rstrip())


# ---- Rows as PostgreSQL's COPY reads them in its binary format, built by NumPy; codes as strings of bits
#
# Bit j of a code is character j of the bit string: PostgreSQL writes the first of them as the highest bit
# of a byte and auxbit as the lowest, so bytes are reversed bit by bit. What pads the last byte is 0 on
# both sides.

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # signature, flags, length of an extension
TRAILER = b"\xff\xff"
JSONB_VERSION = 1
EXACT_FLOATS = 2.0**53  # floats from here on are integers, whose shortest text may be another one

_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"))


def bit_strings(codes: Packed, n_bits: int) -> list[str]:
    """Codes as text of n_bits characters 0 and 1, the first bit first."""
    letters = unpack(codes, n_bits) + np.uint8(ord("0"))
    return [row.tobytes().decode("ascii") for row in letters]


def from_bit_strings(strings: list[str], n_bits: int) -> Packed:
    """Packed codes, (n, ceil(n_bits/8)) uint8, of such text."""
    letters = np.frombuffer("".join(strings).encode("ascii"), dtype=np.uint8)
    bits = letters.reshape(len(strings), n_bits) - np.uint8(ord("0"))
    return np.packbits(bits, axis=1, bitorder="little")


def vector_texts(vectors: Vectors) -> list[str]:
    """Vectors as text, as pgvector reads them; every float32 is read back as it was."""
    return ["[" + ",".join(map(repr, row)) + "]" for row in vectors.tolist()]


def copy_block(rows: Rows, n_bits: int) -> bytes:
    """Rows of id, code, vector where there are vectors, and metadata, without header and trailer."""
    table = np.zeros(len(rows), dtype=_layout(rows))
    table["fields"] = 3 if rows.vectors is None else 4
    table["id_size"], table["id"] = 8, rows.ids
    width = rows.codes.shape[1]
    table["code_size"], table["n_bits"], table["code"] = 4 + width, n_bits, _REVERSED[rows.codes]
    if rows.vectors is not None:
        dims = rows.vectors.shape[1]
        table["vector_size"], table["dims"], table["vector"] = 4 + 4 * dims, dims, rows.vectors
    table["version"] = JSONB_VERSION
    if not rows.has_metadata:
        table["text_size"], table["empty"] = 3, b"{}"
        return table.tobytes()
    texts = [exact_numbers(text) for text in rows.texts()]
    table["text_size"] = 1 + np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    fixed, size = table.tobytes(), table.dtype.itemsize
    starts = range(0, len(fixed), size)
    return b"".join([fixed[start : start + size] + text for start, text in zip(starts, texts)])


def _layout(rows: Rows) -> np.dtype[Any]:
    """A row before its metadata: PostgreSQL's numbers have their highest byte first, each after its size."""
    fields: list[Any] = [("fields", ">i2"), ("id_size", ">i4"), ("id", ">i8")]
    fields += [("code_size", ">i4"), ("n_bits", ">i4"), ("code", "u1", (rows.codes.shape[1],))]
    if rows.vectors is not None:
        fields += [("vector_size", ">i4"), ("dims", ">i2"), ("unused", ">i2")]
        fields += [("vector", ">f4", (rows.vectors.shape[1],))]
    fields += [("text_size", ">i4"), ("version", "u1")]
    return np.dtype(fields if rows.has_metadata else [*fields, ("empty", "S2")])


def exact_numbers(text: bytes) -> bytes:
    """JSON in which large floats are the integers they are: 1e23 is not 10**23, but jsonb takes it so."""
    if b"e+" not in text:
        return text
    return json.dumps(_exact(json.loads(text)), ensure_ascii=True).encode()


def _exact(value: Any) -> Any:
    if isinstance(value, float) and abs(value) >= EXACT_FLOATS:
        return int(value)
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, dict):
        return {key: _exact(each) for key, each in value.items()}
    return value


def json_parameter(value: Any) -> str:
    """A value of a condition, as the stored ones are written."""
    return json.dumps(_exact(value), ensure_ascii=True, allow_nan=False)


# ---- The statements of the pgvector store. Names are quoted identifiers, values are parameters
#
# {table}, {vector_schema}, {where} and {bits} are filled in as SQL; %(name)s are parameters.

MARK = "auxbit store: "  # in front of what a table's comment says about it
PUSHES = "auxbit_pushes"
INCOMING = "auxbit_incoming"

EXTENSION = """
SELECT extversion, nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
WHERE extname = 'vector'
"""
AVAILABLE = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"
MAKE_EXTENSION = "CREATE EXTENSION vector"

FIND_TABLE = """
SELECT pg_class.oid::bigint, obj_description(pg_class.oid, 'pg_class'), relkind::text
FROM pg_class WHERE oid = to_regclass(%(quoted)s)
"""
COUNT_HNSW = """
SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE indrelid = %(table)s::bigint::oid AND amname = 'hnsw' AND indisvalid
"""
CREATE = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY CHECK (id >= 0),
    code bit({bits}) NOT NULL,
    {vector_column}
    metadata jsonb NOT NULL DEFAULT '{{}}'
)
"""
VECTOR_COLUMN = "vector {vector_schema}.vector({dims}) NOT NULL,"
COMMENT = "COMMENT ON TABLE {table} IS {text}"
DROP = "DROP TABLE {table}"

COPY = "COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)"
ANY_BETWEEN = "SELECT EXISTS (SELECT FROM {table} WHERE id BETWEEN %(least)s AND %(largest)s)"
MAKE_INCOMING = "CREATE TEMPORARY TABLE IF NOT EXISTS {incoming} (LIKE {table}) ON COMMIT DROP"
EMPTY_INCOMING = "TRUNCATE {incoming}"
TAKE_IN = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {incoming}
ON CONFLICT (id) DO UPDATE SET {changes}
"""
DELETE = "DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])"
COUNT = "SELECT count(*) FROM {table} WHERE {where}"
METADATA = "SELECT id, metadata::text FROM {table} WHERE id = ANY(%(ids)s::bigint[])"

QUERIES = """
WITH query AS MATERIALIZED (
    SELECT code::bit({bits}) AS code, number
    FROM unnest(%(codes)s::text[]) WITH ORDINALITY AS given (code, number)
)
"""
# `+ 0` keeps an approximate index out of an exact search
EXACT = f"""{QUERIES}
SELECT query.number, near.id, near.distance::int FROM query CROSS JOIN LATERAL (
    SELECT id, distance FROM (
        SELECT id, (code OPERATOR({{vector_schema}}.<~>) query.code) + 0 AS distance
        FROM {{table}} WHERE {{where}}
    ) AS every ORDER BY distance, id LIMIT %(k)s
) AS near ORDER BY query.number, near.distance, near.id
"""
APPROXIMATE = """
SELECT id, (code OPERATOR({vector_schema}.<~>) %(code)s::text::bit({bits}))::int
FROM {table} ORDER BY code OPERATOR({vector_schema}.<~>) %(code)s::text::bit({bits}) LIMIT %(k)s
"""
WITHIN = f"""{QUERIES}
SELECT query.number, near.id, near.distance::int FROM query CROSS JOIN LATERAL (
    SELECT id, code OPERATOR({{vector_schema}}.<~>) query.code AS distance
    FROM {{table}} WHERE (code OPERATOR({{vector_schema}}.<~>) query.code) <= %(r)s AND {{where}}
) AS near ORDER BY query.number, near.distance, near.id
"""
RERANK = """
WITH query AS MATERIALIZED (
    SELECT code::bit({bits}) AS code, vector::{vector_schema}.vector AS vector, number
    FROM unnest(%(codes)s::text[], %(vectors)s::text[]) WITH ORDINALITY AS given (code, vector, number)
)
SELECT query.number, best.id, best.distance FROM query CROSS JOIN LATERAL (
    SELECT id, near.vector OPERATOR({vector_schema}.<->) query.vector AS distance FROM (
        SELECT id, vector FROM {table} WHERE {where}
        ORDER BY (code OPERATOR({vector_schema}.<~>) query.code){exactly} LIMIT %(candidates)s
    ) AS near ORDER BY distance, id LIMIT %(k)s
) AS best ORDER BY query.number, best.distance, best.id
"""
CREATE_HNSW = """
CREATE INDEX ON {table} USING hnsw (code {vector_schema}.bit_hamming_ops)
WITH (m = {links}, ef_construction = {ef_construction})
"""
SETTING = "SELECT set_config(%(name)s, %(value)s, true)"

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('auxbit'))"
CREATE_PUSHES = """
CREATE TABLE {pushes} (
    store text, source text, rows bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store, source)
)
"""
PUSHED = "SELECT rows FROM {pushes} WHERE store = %(store)s AND source = %(source)s"
REMEMBER = """
INSERT INTO {pushes} (store, source, rows) VALUES (%(store)s, %(source)s, %(rows)s)
ON CONFLICT (store, source) DO UPDATE SET rows = EXCLUDED.rows, changed = now()
"""
FORGET = "DELETE FROM {pushes} WHERE store = %(store)s AND source = %(source)s"
FORGET_STORE = "DELETE FROM {pushes} WHERE store = %(store)s"


def filled(statement: str, **parts: Any) -> Any:
    """A statement with its parts filled in: names and pieces of SQL as they are, numbers and text quoted."""
    sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
    pieces = {
        name: part if isinstance(part, sql.Composable) else sql.Literal(part) for name, part in parts.items()
    }
    return sql.SQL(statement).format(**pieces)


def quoted(name: str) -> Any:
    """A name of the user's as an identifier in a statement, where % is written twice."""
    return require("psycopg.sql", extra="pgvector", purpose="PostgreSQL").Identifier(name.replace("%", "%%"))


def mark(**about: Any) -> str:
    """The comment of a table of ours."""
    return MARK + json.dumps(about, sort_keys=True)


def read_mark(comment: str | None) -> dict[str, Any] | None:
    """What a table's comment says about it, None where it is not ours."""
    if comment is None or not comment.startswith(MARK):
        return None
    try:
        about = json.loads(comment[len(MARK) :])
    except ValueError:
        return None
    return about if isinstance(about, dict) and isinstance(about.get("n_bits", 0), int) else None


# ---- A connection to PostgreSQL and one table of ours in it: finding it, making it, noting pushes

OLDEST = (0, 7)  # of pgvector: the first with bit strings
MOST_NAME_BYTES = 63  # longer names would be cut


class Table:
    """The table `name`, found by the connection's search_path; its comment says that it is ours, and what."""

    def __init__(self, address: Address, name: str) -> None:
        self.address, self.name = address, _checked_name(name)
        self.connection = _connected(address)
        self.identifier = quoted(name)
        self._pushes = quoted(PUSHES)
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
            return self.connection.execute(filled(statement, **used), values or {}, prepare=False)

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
        about = read_mark(row[1]) if row[2] == "r" else None
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
                self.run(DROP)
                if self._pushes_are_noted():
                    self.run(FORGET_STORE, {"store": present["key"]})
            column: Any = filled("")
            if n_features is not None:
                column = filled(VECTOR_COLUMN, vector_schema=self._schema, dims=n_features)
            self.run(CREATE, bits=n_bits, vector_column=column)
            about = {"n_bits": n_bits, "n_features": n_features, "key": secrets.token_hex(16), "version": 1}
            self.run(COMMENT, text=mark(**about))
        self._about = about

    def has_hnsw(self) -> bool:
        """Whether there is an approximate index over the codes."""
        row = self._comment(self.name)
        return row is not None and bool(self.number(COUNT_HNSW, {"table": row[0]}))

    def columns(self) -> list[Any]:
        """The names of the columns in the order of COPY, as identifiers."""
        vector = ["vector"] if self.known()["n_features"] is not None else []
        return [quoted(name) for name in ("id", "code", *vector, "metadata")]

    def _comment(self, name: str) -> Any:
        """Number, comment and kind of the table of that name, None where there is none."""
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        name = sql.Identifier(name).as_string(self.connection)
        return self.run(FIND_TABLE, {"quoted": name}).fetchone()

    def _find_extension(self, *, make: bool) -> None:
        """Find pgvector, which may be in any schema, or enable it."""
        found = self.run(EXTENSION).fetchone()
        if found is None:
            if not self.number(AVAILABLE):
                raise StoreError(f"{self.address.shown}: {NO_EXTENSION}")
            if make:
                self._make_extension()
            found = self.run(EXTENSION).fetchone() if make else None
        if found is None:
            raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}")
        if tuple(int(part) for part in found[0].split(".")[:2]) < OLDEST:
            raise StoreError(
                f"{self.address.shown}: pgvector {found[0]} has no bit strings: 0.7 is needed. Install a "
                "newer one there, then run: ALTER EXTENSION vector UPDATE;"
            )
        self._schema = quoted(found[1])

    def _make_extension(self) -> None:
        psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
        try:
            self.connection.execute(MAKE_EXTENSION)
        except psycopg.errors.InsufficientPrivilege:
            raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}") from None

    # ---- pushes that can be resumed

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has brought here."""
        key = self.known()["key"]
        if not self._pushes_are_noted():
            return 0
        return self.number(PUSHED, {"store": key, "source": source})

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is; None: it is complete."""
        what = {"store": self.known()["key"], "source": source}
        with self.transaction():
            if not self._pushes_are_noted():
                self.run(ONE_AT_A_TIME)
                if not self._pushes_are_noted():
                    self.run(CREATE_PUSHES)
                    self.run(COMMENT, table=self._pushes, text=mark(pushes=True))
            if rows is None:
                self.run(FORGET, what)
            else:
                self.run(REMEMBER, what | {"rows": rows})

    def _pushes_are_noted(self) -> bool:
        row = self._comment(PUSHES)
        if row is not None and not (read_mark(row[1]) or {}).get("pushes"):
            raise StoreExists(
                f"there is a table {PUSHES!r} that auxbit has not made, and pushes are noted "
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


# ---- Conditions on metadata as SQL over a jsonb column: the same rows as a Collection finds
#
# Values and names of fields are parameters. A JSON number never equals text or true in jsonb either, and
# 1 equals 1.0. Text is ordered by code points, whatever the collation of the database. A row without the
# field fulfils `!=`, `not in` and `exists: False`.

MEMBER = (
    "(jsonb_typeof({x}) = 'array' AND EXISTS (SELECT FROM jsonb_array_elements("
    "CASE WHEN jsonb_typeof({x}) = 'array' THEN {x} ELSE '[]' END) AS item WHERE item = ANY({v}::jsonb[])))"
)
TEXT = "({x} #>> '{{}}')"


class Parameters(dict[str, Any]):
    """Values of a statement, each under a name of its own."""

    def put(self, value: Any) -> Any:
        """Keep a value; returns what stands for it in the statement."""
        name = f"p{len(self)}"
        self[name] = value
        return require("psycopg.sql", extra="pgvector", purpose="PostgreSQL").Placeholder(name)


def condition_sql(where: Any, parameters: Parameters) -> Any:
    """What stands after WHERE for these conditions, TRUE for none; their values are put to `parameters`."""
    sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
    if where is None:
        return sql.SQL("TRUE")
    wanted = Where.of(where)
    if wanted.function is not None:
        raise InvalidInput(
            "a function of Python cannot judge rows in PostgreSQL. Give where as a dict or as text."
        )
    parts = [_one(each, parameters) for each in wanted.conditions]
    return sql.SQL(" AND ").join(parts) if parts else sql.SQL("TRUE")


def _one(condition: Condition, parameters: Parameters) -> Any:
    sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
    x, operator, value = _field(condition.field, parameters), condition.operator, condition.value

    def of(template: str, **parts: Any) -> Any:
        return sql.SQL(template).format(x=x, **parts)

    if operator == "exists":
        return of("({x} IS NOT NULL)" if value else "({x} IS NULL)")
    if operator in ("==", "!="):
        equal = of("({x} = {v}::jsonb", v=parameters.put(json_parameter(value)))
        return equal + sql.SQL(")" if operator == "==" else ") IS NOT TRUE")
    if operator in ("in", "not in"):
        any_of = of("({x} = ANY({v}::jsonb[])", v=parameters.put([json_parameter(each) for each in value]))
        return any_of + sql.SQL(")" if operator == "in" else ") IS NOT TRUE")
    if operator == "contains":
        return _contains(value, of, parameters, sql)
    if operator == "startswith":
        starts = [_of_text("starts_with({t}, {v}::text)", each, of, parameters) for each in value]
        return _any(starts, sql)
    if isinstance(value, str):
        return _of_text(f'{{t}} COLLATE "C" {operator} {{v}}::text', value, of, parameters)
    number = parameters.put(json_parameter(value))
    return of(f"(jsonb_typeof({{x}}) = 'number' AND {{x}} {operator} {{v}}::jsonb)", v=number)


def _field(field: str, parameters: Parameters) -> Any:
    """The value of a field, NULL where a row has none; of "a.b" that of b within a, where it has no "a.b"."""
    sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
    plain = sql.SQL("(metadata -> {}::text)").format(parameters.put(field))
    if "." not in field:
        return plain
    steps = [sql.SQL(" -> {}::text").format(parameters.put(part)) for part in field.split(".")]
    return sql.SQL("COALESCE({}, metadata{})").format(plain, sql.SQL("").join(steps))


def _contains(wanted: list[Any], of: Callable[..., Any], parameters: Parameters, sql: Any) -> Any:
    """Lists with a member, texts with a part."""
    members = of(MEMBER, v=parameters.put([json_parameter(each) for each in wanted]))
    texts = [each for each in wanted if isinstance(each, str)]
    parts = [_of_text('strpos({t} COLLATE "C", {v}::text) > 0', each, of, parameters) for each in texts]
    return _any([members, *parts], sql)


def _of_text(template: str, value: str, of: Callable[..., Any], parameters: Parameters) -> Any:
    """A comparison that only text can fulfil; {t} is the text."""
    whole = f"(jsonb_typeof({{x}}) = 'string' AND {template.replace('{t}', TEXT)})"
    return of(whole, v=parameters.put(value))


def _any(parts: list[Any], sql: Any) -> Any:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(parts)) if parts else sql.SQL("FALSE")


# ---- Searches of the pgvector store: many queries in one statement, exact or by an HNSW index

QUERIES_AT_ONCE = 64  # in one statement
MOST_EF_SEARCH = 1000

Answer = tuple[Array, Array]  # distances and ids


def exactly(table: Table, queries: Packed, k: int, where: Any) -> list[Answer]:
    """The k nearest of all that `where` finds, equal distances by id."""
    return _ask(table, EXACT, queries, where, {"k": k})


def within(table: Table, queries: Packed, r: int, where: Any) -> list[Answer]:
    """All within distance r, equal distances by id."""
    return _ask(table, WITHIN, queries, where, {"r": r})


def by_index(table: Table, queries: Packed, k: int, ef_search: int) -> list[Answer]:
    """What the HNSW index finds; queries for which that is too little are answered exactly."""
    n_bits = table.known()["n_bits"]
    wanted = min(k, table.number(COUNT, where=filled("TRUE")))
    found: list[Answer] = []
    with table.transaction():
        _look_as_far(table, max(ef_search, k))
        for code in bit_strings(queries, n_bits):
            rows = table.run(APPROXIMATE, {"code": code, "k": k}, bits=n_bits).fetchall()
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
        ties = filled("" if ef_search is not None else " + 0, id")
        values = {"k": k, "candidates": candidates}
        found = _ask(table, RERANK, queries, where, values, X, exactly=ties)
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
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        asked = slice(first, min(first + QUERIES_AT_ONCE, len(queries)))
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
    table.run(SETTING, {"name": "hnsw.ef_search", "value": value})


# ---- PgvectorStore

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
        self.ef_search = check_integer("ef_search", ef_search, 1, MOST_EF_SEARCH)
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
        return int(self._table.run(DELETE, {"ids": check_ids(ids).tolist()}).rowcount)

    def create_index(self, kind: str = "hnsw", *, links: int = 16, ef_construction: int = 64) -> None:
        """Build an HNSW index over the codes that are there; later ones go into it as they come."""
        if kind != "hnsw":
            raise InvalidParameter("kind", kind, "'hnsw', pgvector's index for bits")
        links = check_integer("links", links, 2, 100)
        ef_construction = check_integer("ef_construction", ef_construction, 2 * links, 1000)
        _ = self._table.known()
        self._table.run(CREATE_HNSW, links=links, ef_construction=ef_construction)

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
                return padded(by_index(self._table, queries, k, self.ef_search), k)
            return padded(exactly(self._table, queries, k, where), k)
        if self.n_features is None:
            raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
        X = checked_floats(rerank, self.n_features, len(queries), "rerank")
        most = CANDIDATES * k if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        ef_search = self.ef_search if approximate else None
        return padded(reranked(self._table, queries, X, k, where, most, ef_search), k, real=True)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive; see Store.search_radius."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        return joined(within(self._table, queries, min(r, self.n_bits), where))

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        _ = self._table.known()
        parameters = Parameters()
        condition = condition_sql(where, parameters)
        return self._table.number(COUNT, parameters, where=condition)

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} where one has none or is not there."""
        wanted = np.asarray(ids, dtype=np.int64).tolist()
        found = self._table.run(METADATA, {"ids": wanted}).fetchall()
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
        return bool(self._table.number(ANY_BETWEEN, span))

    def _copy(self, target: Any, rows: Rows, progress: Progress | None) -> None:
        """COPY into `target`, an identifier in which % stands once: COPY has no parameters."""
        sql = require("psycopg.sql", extra="pgvector", purpose="PostgreSQL")
        columns = sql.SQL(", ").join(self._table.columns())
        statement = filled(COPY, table=target, columns=columns)
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
        incoming = sql.Identifier("pg_temp", INCOMING)
        self._table.run(MAKE_INCOMING, incoming=incoming)
        self._table.run(EMPTY_INCOMING, incoming=incoming)
        with translated(self._table.address, self.name):
            self._copy(incoming, rows, progress)
        columns = self._table.columns()
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in columns[1:])
        names = sql.SQL(", ").join(columns)
        self._table.run(TAKE_IN, incoming=incoming, columns=names, changes=changes)
