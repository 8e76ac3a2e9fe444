"""PgvectorStore: codes in a table of PostgreSQL, searched by pgvector's <~>."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Float32, Packed, check_integer, require
from auxbit.core.decoders import Decoder
from auxbit.core.maps import bytes_per_code, unpack
from auxbit.core.parallel import block_slices
from auxbit.data.where import Condition, Node, Where
from auxbit.errors import InvalidInput, InvalidParameter, StoreError, StoreExists, StoreUnreachable
from auxbit.index.codes import check_ids
from auxbit.stores.base import (
    DEFAULT_NAME,
    QUERIES_AT_ONCE,
    Address,
    Found,
    Progress,
    Rows,
    Store,
    mark,
    parse,
    read_mark,
    sought_ids,
)

# ---- Errors: what is wrong, and the remedy, without passwords

NO_EXTENSION = (
    "the server has no pgvector. Install it there (Debian: apt install postgresql-18-pgvector, of the "
    "server's version; others: github.com/pgvector/pgvector), and try again."
)
NO_RIGHT_TO_EXTENSION = (
    "pgvector is installed there, but not enabled in this database, and the user may not do that. Let its "
    "owner run: CREATE EXTENSION vector;"
)


def _psycopg(module: str = "psycopg") -> Any:
    return require(module, extra="pgvector", purpose="PostgreSQL")


def _unreachable(error: Any, address: Address) -> StoreUnreachable:
    """Why no connection could be made."""
    # an indented line is advice of libpq's own, and ours follows
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    text = address.hide(lines[-1].removeprefix("connection failed: ") if lines else type(error).__name__)
    remedy = "Is the server running, and does it listen there?"
    if "password" in text:
        remedy = "Check the password in the URL, in PGPASSWORD or in ~/.pgpass."
    elif 'database "' in text and "does not exist" in text:
        remedy = "Create the database first, or name another one at the end of the URL."
    elif "role" in text or "pg_hba" in text:
        remedy = "Check the user in the URL, and that the server lets it in from here."
    return StoreUnreachable(f"{address.shown} cannot be reached: {text}. {remedy}")


def _ours(error: Any, address: Address, name: str) -> Exception:
    psycopg = _psycopg()
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
        remedy = " Change it, or leave metadata out (--without-metadata)." if row else ""
        return InvalidInput(
            f"PostgreSQL cannot keep or compare this{row}: {text}. {detail}".rstrip() + remedy
        )
    gone = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if gone and not (error.sqlstate or "").startswith("53"):  # that class is of servers that are full
        return StoreUnreachable(
            f"{address.shown}: the connection broke: {text}. What was committed is there; once the server "
            "is back, resume (push --resume)."
        )
    return StoreError(f"{address.shown}: {text}. {detail}".rstrip())


# ---- Rows in the binary format of PostgreSQL's COPY, and codes as strings of bits
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


def vector_texts(vectors: Float32) -> list[str]:
    """Float32 as text, as pgvector reads them; every float32 is read back as it was."""
    return ["[" + ",".join(map(repr, row)) + "]" for row in vectors.tolist()]


def decoder_tables(decoder: Decoder, X: Array) -> tuple[list[str], Float32]:
    """What auxbit_decoder_sum needs to rank by ‖x − f(z)‖²: of each query, tables as text, and an offset.

    The squared distance of a row is offset + norm + auxbit_decoder_sum(code, tables).
    """
    tables = decoder.query_tables(X)[:, :, _REVERSED]
    texts = ["{" + ",".join(map(repr, row)) + "}" for row in tables.reshape(len(X), -1).tolist()]
    return texts, decoder.query_offsets(X)


def copy_block(rows: Rows, n_bits: int) -> bytes:
    """Rows of id, code, vector and norm if there are such, and metadata, without header and trailer."""
    table = np.zeros(len(rows), dtype=_layout(rows))
    table["fields"] = 3 + (rows.vectors is not None) + (rows.norms is not None)
    table["id_size"], table["id"] = 8, rows.ids
    width = rows.codes.shape[1]
    table["code_size"], table["n_bits"], table["code"] = 4 + width, n_bits, _REVERSED[rows.codes]
    if rows.vectors is not None:
        dims = rows.vectors.shape[1]
        table["vector_size"], table["dims"], table["vector"] = 4 + 4 * dims, dims, rows.vectors
    if rows.norms is not None:
        table["norm_size"], table["norm"] = 4, rows.norms
    table["version"] = JSONB_VERSION
    if rows.texts is None:
        table["text_size"], table["empty"] = 3, b"{}"
        return table.tobytes()
    texts = [exact_numbers(text) for text in rows.texts]
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
    if rows.norms is not None:
        fields += [("norm_size", ">i4"), ("norm", ">f4")]
    fields += [("text_size", ">i4"), ("version", "u1")]
    return np.dtype([*fields, ("empty", "S2")] if rows.texts is None else fields)


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


# ---- Statements. Names are quoted identifiers, values are parameters
#
# {table}, {vector_schema}, {where} and {bits} are filled in as SQL; %(name)s are parameters.

PUSHES = "auxbit_pushes"
INCOMING = "auxbit_incoming"
DECODER_SUM = "auxbit_decoder_sum"

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
    {vector_column}{norm_column}
    metadata jsonb NOT NULL DEFAULT '{{}}'
)
"""
VECTOR_COLUMN = "vector {vector_schema}.vector({dims}) NOT NULL,"
NORM_COLUMN = "norm real NOT NULL,"
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
SELECT query.number, near.id, near.distance::int, near.extra FROM query CROSS JOIN LATERAL (
    SELECT id, distance, {{extra}} AS extra FROM (
        SELECT id, (code OPERATOR({{vector_schema}}.<~>) query.code) + 0 AS distance, code
        FROM {{table}} WHERE {{where}}
    ) AS every ORDER BY distance, id LIMIT %(k)s
) AS near ORDER BY query.number, near.distance, near.id
"""
APPROXIMATE = """
SELECT id, (code OPERATOR({vector_schema}.<~>) %(code)s::text::bit({bits}))::int, {extra}
FROM {table} ORDER BY code OPERATOR({vector_schema}.<~>) %(code)s::text::bit({bits}) LIMIT %(k)s
"""
WITHIN = f"""{QUERIES}
SELECT query.number, near.id, near.distance::int, NULL FROM query CROSS JOIN LATERAL (
    SELECT id, code OPERATOR({{vector_schema}}.<~>) query.code AS distance
    FROM {{table}} WHERE (code OPERATOR({{vector_schema}}.<~>) query.code) <= %(r)s AND {{where}}
) AS near ORDER BY query.number, near.distance, near.id
"""
RERANK = """
WITH query AS MATERIALIZED (
    SELECT code::bit({bits}) AS code, vector::{vector_schema}.vector AS vector, number
    FROM unnest(%(codes)s::text[], %(vectors)s::text[]) WITH ORDINALITY AS given (code, vector, number)
)
SELECT query.number, best.id, best.distance, NULL FROM query CROSS JOIN LATERAL (
    SELECT id, near.vector OPERATOR({vector_schema}.<->) query.vector AS distance FROM (
        SELECT id, vector FROM {table} WHERE {where}
        ORDER BY (code OPERATOR({vector_schema}.<~>) query.code){exactly} LIMIT %(candidates)s
    ) AS near ORDER BY distance, id LIMIT %(k)s
) AS best ORDER BY query.number, best.distance, best.id
"""
DECODE = """
WITH query AS MATERIALIZED (
    SELECT code::bit({bits}) AS code, tables::real[] AS tables, number
    FROM unnest(%(codes)s::text[], %(tables)s::text[]) WITH ORDINALITY AS given (code, tables, number)
)
SELECT query.number, best.id, best.distance, NULL FROM query CROSS JOIN LATERAL (
    SELECT id, near.norm + {decoder_sum}(near.code, query.tables) AS distance FROM (
        SELECT id, code, norm FROM {table} WHERE {where}
        ORDER BY (code OPERATOR({vector_schema}.<~>) query.code){exactly} LIMIT %(candidates)s
    ) AS near ORDER BY distance, id LIMIT %(k)s
) AS best ORDER BY query.number, best.distance, best.id
"""
BYTES = "substring(bit_send(code) FROM 5)"  # after four that say how many bits there are

FIND_SUM = """
SELECT obj_description(found::oid, 'pg_proc')
FROM to_regprocedure('auxbit_decoder_sum(bit, real[])') AS found WHERE found IS NOT NULL
"""
CREATE_SUM = """
CREATE FUNCTION {decoder_sum} (code bit, tables real[]) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := substring(bit_send(code) FROM 5);
    total double precision := 0;
BEGIN
    FOR j IN 0 .. length(bytes) - 1 LOOP
        total := total + tables[256 * j + get_byte(bytes, j) + 1];
    END LOOP;
    RETURN total;
END $$
"""
COMMENT_SUM = "COMMENT ON FUNCTION {decoder_sum} (bit, real[]) IS {text}"
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
    sql = _psycopg("psycopg.sql")
    pieces = {
        name: part if isinstance(part, sql.Composable) else sql.Literal(part) for name, part in parts.items()
    }
    return sql.SQL(statement).format(**pieces)


def quoted(name: str) -> Any:
    """A name of the user's as an identifier in a statement, where % is written twice."""
    return _psycopg("psycopg.sql").Identifier(name.replace("%", "%%"))


# ---- Conditions on metadata, as SQL over a jsonb column: the same rows as a Collection finds
#
# Values and names of fields are parameters. A JSON number never equals text or true in jsonb either, and
# 1 equals 1.0. Text is ordered by code points, whatever the collation of the database. A row without the
# field fulfils `!=`, `not in` and `exists: False`.

MEMBER = (
    "(jsonb_typeof({x}) = 'array' AND EXISTS (SELECT FROM jsonb_array_elements("
    "CASE WHEN jsonb_typeof({x}) = 'array' THEN {x} ELSE '[]' END) AS item WHERE item = ANY({v}::jsonb[])))"
)
TEXT = "({x} #>> '{{}}')"
NOT = "({} IS NOT TRUE)"  # what is NULL does not hold


class Parameters(dict[str, Any]):
    """Values of a statement, each under a name of its own."""

    def put(self, value: Any) -> Any:
        """Keep a value; returns what stands for it in the statement."""
        name = f"p{len(self)}"
        self[name] = value
        return _psycopg("psycopg.sql").Placeholder(name)


def condition_sql(where: Any, parameters: Parameters) -> Any:
    """What stands after WHERE for these conditions, TRUE for none; their values are put to `parameters`."""
    sql = _psycopg("psycopg.sql")
    if where is None:
        return sql.SQL("TRUE")
    wanted = Where.of(where)
    if wanted.function is not None:
        raise InvalidInput(
            "PostgreSQL cannot run a Python function as a condition. Give where as a dict or as text."
        )
    return _tree(wanted.tree, parameters, sql)


def _tree(node: Node, parameters: Parameters, sql: Any) -> Any:
    if isinstance(node, Condition):
        return _one(node, parameters)
    parts = [_tree(part, parameters, sql) for part in node.parts]
    if node.word == "not":
        return sql.SQL(NOT).format(parts[0])
    if node.word == "or":
        return _any(parts, sql)
    return sql.SQL("({})").format(sql.SQL(" AND ").join(parts)) if parts else sql.SQL("TRUE")


def _one(condition: Condition, parameters: Parameters) -> Any:
    sql = _psycopg("psycopg.sql")
    x, operator, value = _field(condition.field, parameters), condition.operator, condition.value

    def of(template: str, **parts: Any) -> Any:
        return sql.SQL(template).format(x=x, **parts)

    if operator == "exists":
        return of("({x} IS NOT NULL)" if value else "({x} IS NULL)")
    if operator in ("==", "!="):
        equal = of("({x} = {v}::jsonb)", v=parameters.put(json_parameter(value)))
        return equal if operator == "==" else sql.SQL(NOT).format(equal)
    if operator in ("in", "not in"):
        any_of = of("({x} = ANY({v}::jsonb[]))", v=parameters.put([json_parameter(each) for each in value]))
        return any_of if operator == "in" else sql.SQL(NOT).format(any_of)
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
    """The value of a field, NULL if a row has none; of "a.b" that of b within a, if it has no "a.b"."""
    sql = _psycopg("psycopg.sql")
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


# ---- PgvectorStore

OLDEST = (0, 7)  # of pgvector: the first with bit strings
MOST_NAME_BYTES = 63  # longer names would be cut
MOST_EF_SEARCH = 1000
COPY_ROWS = 16_384  # that become one block of COPY


class PgvectorStore(Store):
    """Codes in a PostgreSQL table with the columns id, code bit(L), metadata jsonb and optionally vector.

    name : the table, found by the connection's search_path; its comment marks it as auxbit's. use_index : let
    `search` without `where` use an HNSW index if there is one, which may miss some neighbours; ef_search :
    pgvector's hnsw.ef_search.
    """

    batch_rows = 65_536
    indexes = ("hnsw",)
    ranks_itself = True

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, use_index: bool = True, ef_search: int = 100
    ) -> None:
        self.use_index = use_index
        self.ef_search = check_integer("ef_search", ef_search, 1, MOST_EF_SEARCH)
        super().__init__(url if isinstance(url, Address) else parse(url), _checked_name(name))
        self._connection = _connected(self.address)
        self._table, self._pushes = quoted(name), quoted(PUSHES)
        self._schema: Any = None  # of pgvector, once known

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        if not self.use_index:
            return True
        row = self._comment(self.name)
        return row is None or not self._number(COUNT_HNSW, {"table": row[0]})

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        _ = self._known()
        return int(self._run(DELETE, {"ids": check_ids(ids).tolist()}).rowcount)

    def create_index(self, kind: str = "hnsw", *, links: int = 16, ef_construction: int = 64) -> None:
        """Build an HNSW index over the codes; codes added later are indexed, too."""
        if kind != "hnsw":
            raise InvalidParameter("kind", kind, "'hnsw', pgvector's index for bits")
        links = check_integer("links", links, 2, 100)
        ef_construction = check_integer("ef_construction", ef_construction, 2 * links, 1000)
        _ = self._known()
        self._run(CREATE_HNSW, links=links, ef_construction=ef_construction)

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        _ = self._known()
        parameters = Parameters()
        return self._number(COUNT, parameters, where=condition_sql(where, parameters))

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} for one that has none or is not there."""
        wanted = sought_ids(ids).tolist()
        found = self._run(METADATA, {"ids": wanted}).fetchall()
        by_id = {number: json.loads(text) for number, text in found}
        return [by_id.get(each, {}) for each in wanted]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A `with` block whose changes are committed together; within another, a savepoint."""
        with self._translated(), self._connection.transaction():
            yield

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has added."""
        key = self._known()["key"]
        return self._number(PUSHED, {"store": key, "source": source}) if self._pushes_are_noted() else 0

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is, in the same transaction as its rows; None: it is complete."""
        what = {"store": self._known()["key"], "source": source}
        with self.transaction():
            if not self._pushes_are_noted():
                self._run(ONE_AT_A_TIME)  # and look again: another connection may have made it meanwhile
                if not self._pushes_are_noted():
                    self._run(CREATE_PUSHES)
                    self._run(COMMENT, table=self._pushes, text=mark(pushes=True))
            if rows is None:
                self._run(FORGET, what)
            else:
                self._run(REMEMBER, what | {"rows": rows})

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    # ---- making the table

    def _description(self) -> str | None:
        row = self._comment(self.name)
        if row is None:
            return None
        return (row[1] or "") if row[2] == "r" else ""  # a view is never ours

    def _prepare(self, n_features: int | None) -> None:
        self._find_extension(make=True)

    def _load(self) -> None:
        self._find_extension(make=False)

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        if present is not None:
            self._drop(present)
        column: Any = filled("")
        if about["n_features"] is not None:
            column = filled(VECTOR_COLUMN, vector_schema=self._schema, dims=about["n_features"])
        norm = filled(NORM_COLUMN if about.get("decoder") is not None else "")
        self._run(CREATE, bits=about["n_bits"], vector_column=column, norm_column=norm)
        self._run(COMMENT, text=mark(**about))
        found = self._run(FIND_SUM).fetchone()
        if found is None:
            self._run(ONE_AT_A_TIME)
            if self._run(FIND_SUM).fetchone() is None:
                self._run(CREATE_SUM)
                self._run(COMMENT_SUM, text=mark(function=True))
        elif not (read_mark(found[0] or "") or {}).get("function"):
            raise StoreExists(
                f"the function {DECODER_SUM!r} was not made by auxbit, so it is not replaced. Rename it, or "
                "choose another schema."
            )

    def _drop(self, present: dict[str, Any]) -> None:
        self._run(DROP)
        if self._pushes_are_noted():
            self._run(FORGET_STORE, {"store": present["key"]})

    def _find_extension(self, *, make: bool) -> None:
        """Find pgvector, which may be in any schema, or enable it."""
        found = self._run(EXTENSION).fetchone()
        if found is None and not self._number(AVAILABLE):
            raise StoreError(f"{self.address.shown}: {NO_EXTENSION}")
        if found is None and make:
            try:
                self._connection.execute(MAKE_EXTENSION)
            except _psycopg().errors.InsufficientPrivilege:
                raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}") from None
            found = self._run(EXTENSION).fetchone()
        if found is None:
            raise StoreError(f"{self.address.shown}: {NO_RIGHT_TO_EXTENSION}")
        if tuple(int(part) for part in found[0].split(".")[:2]) < OLDEST:
            raise StoreError(
                f"{self.address.shown}: pgvector {found[0]} has no bit strings: 0.7 is needed. Install a "
                "newer version there, then run: ALTER EXTENSION vector UPDATE;"
            )
        self._schema = quoted(found[1])

    def _pushes_are_noted(self) -> bool:
        row = self._comment(PUSHES)
        if row is not None and not (read_mark(row[1] or "") or {}).get("pushes"):
            raise StoreExists(
                f"the table {PUSHES!r}, in which pushes are noted, was not made by auxbit. "
                "Rename it, or push to another schema."
            )
        return row is not None

    # ---- adding rows

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """By COPY, in one transaction: all or none."""
        span = {"least": int(rows.ids.min()), "largest": int(rows.ids.max())}
        with self.transaction():
            if upsert and self._number(ANY_BETWEEN, span):
                self._replace(rows, progress)
                return
            try:
                with self._connection.transaction():  # a savepoint
                    self._copy(_psycopg("psycopg.sql").Identifier(self.name), rows, progress)
            except _psycopg().errors.UniqueViolation:
                if not upsert:
                    raise
                self._replace(rows, lambda n: None)  # somebody else has just added one of them

    def _columns(self) -> list[Any]:
        """The names of the columns in the order of COPY, as identifiers."""
        vector = ["vector"] if self.n_features is not None else []
        norm = ["norm"] if self._known().get("decoder") is not None else []
        return [quoted(name) for name in ("id", "code", *vector, *norm, "metadata")]

    def _copy(self, target: Any, rows: Rows, progress: Progress) -> None:
        """COPY into `target`, an identifier in which % stands once: COPY has no parameters."""
        columns = _psycopg("psycopg.sql").SQL(", ").join(self._columns())
        statement = filled(COPY, table=target, columns=columns)
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(HEADER)
            for part in rows.parts(COPY_ROWS):
                copy.write(copy_block(part, self.n_bits))
                progress(len(part))
            copy.write(TRAILER)

    def _replace(self, rows: Rows, progress: Progress) -> None:
        """Add rows of which some may be there: into a temporary table, and from there into ours."""
        sql = _psycopg("psycopg.sql")
        incoming = sql.Identifier("pg_temp", INCOMING)
        self._run(MAKE_INCOMING, incoming=incoming)
        self._run(EMPTY_INCOMING, incoming=incoming)
        with self._translated():
            self._copy(incoming, rows, progress)
        columns = self._columns()
        changes = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(each) for each in columns[1:])
        self._run(TAKE_IN, incoming=incoming, columns=sql.SQL(", ").join(columns), changes=changes)

    # ---- searching

    def _nearest(self, queries: Packed, k: int, where: Any, column: str = "") -> list[Found]:
        extra = filled(BYTES if column == "code" else "NULL")
        if where is not None or self.exact:
            return self._found(EXACT, queries, where, {"k": k}, extra=extra)
        n_bits, wanted = self.n_bits, min(k, self.count())
        found: list[Found] = []
        with self.transaction():
            self._search_as_far_as(max(self.ef_search, k))
            for code in bit_strings(queries, n_bits):
                rows = self._run(APPROXIMATE, {"code": code, "k": k}, bits=n_bits, extra=extra).fetchall()
                ids, distances, codes = _arrays(rows, (np.int64, np.int32, None))
                found.append(Found(distances, ids, self._codes(codes) if column else None).sorted())
        # the index may find too few: these queries are searched exactly
        few = [query for query, answer in enumerate(found) if len(answer.ids) < wanted]
        for query, answer in zip(few, self._found(EXACT, queries[few], None, {"k": k}, extra=extra)):
            found[query] = answer
        return found

    def _within(self, queries: Packed, r: int, where: Any) -> list[Found]:
        return self._found(WITHIN, queries, where, {"r": r})

    def _reranked(self, queries: Packed, X: Float32, k: int, where: Any, candidates: int) -> list[Found]:
        """In the server."""
        found = self._ranked_there(RERANK, queries, where, k, candidates, vectors=vector_texts(X))
        return [Found(distances**2, ids) for distances, ids, _ in found]

    def _decoded(
        self, queries: Packed, X: Array, model: Any, k: int, where: Any, candidates: int
    ) -> list[Found]:
        """In the server, if it has the norms of this decoder's codes."""
        if not self._ranks_by(model):
            return super()._decoded(queries, X, model, k, where, candidates)
        tables, offsets = decoder_tables(model.decoder_, X)
        found = self._ranked_there(DECODE, queries, where, k, candidates, tables=tables)
        return [Found(np.maximum(near + offset, 0), ids) for offset, (near, ids, _) in zip(offsets, found)]

    def _ranked_there(
        self, statement: str, queries: Packed, where: Any, k: int, candidates: int, **more: list[str]
    ) -> list[Found]:
        """What a statement finds among candidates by their codes. more : a parameter for each query."""
        approximate = where is None and not self.exact
        with self.transaction():
            if approximate:
                self._search_as_far_as(max(self.ef_search, candidates))
            ties = filled("" if approximate else " + 0, id")
            values = {"k": k, "candidates": candidates}
            return self._found(statement, queries, where, values, more, exactly=ties)

    def _found(
        self, statement: str, queries: Packed, where: Any, values: dict[str, Any],
        more: dict[str, list[str]] | None = None, **parts: Any,
    ) -> list[Found]:  # fmt: skip
        """What a statement finds for each query, many in one go."""
        n_bits, found = self.n_bits, list[Found]()
        for some in block_slices(len(queries), QUERIES_AT_ONCE):
            parameters = Parameters(values | {"codes": bit_strings(queries[some], n_bits)})
            parameters |= {name: texts[some] for name, texts in (more or {}).items()}
            condition = condition_sql(where, parameters)
            rows = self._run(statement, parameters, where=condition, bits=n_bits, **parts).fetchall()
            kinds = (np.int64, np.int64, np.float64 if more else np.int32, None)
            numbers, ids, distances, codes = _arrays(rows, kinds)
            lims = np.searchsorted(numbers, np.arange(1, some.stop - some.start + 2))
            for a, b in itertools.pairwise(lims):
                carried = self._codes(codes[a:b]) if rows and rows[0][3] is not None else None
                found.append(Found(distances[a:b], ids[a:b], carried))
        return found

    def _codes(self, values: Array) -> Packed:
        """Packed codes, of the bytes of bit strings."""
        raw = np.frombuffer(b"".join(values.tolist()), dtype=np.uint8)
        return _REVERSED[raw].reshape(len(values), bytes_per_code(self.n_bits))

    def _search_as_far_as(self, ef_search: int) -> None:
        """Until the end of the transaction."""
        value = str(min(ef_search, MOST_EF_SEARCH))
        self._run(SETTING, {"name": "hnsw.ef_search", "value": value})

    # ---- statements

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of ours instead of the driver's."""
        try:
            yield
        except _psycopg().Error as error:
            raise _ours(error, self.address, self.name) from None

    def _run(self, statement: str, values: dict[str, Any] | None = None, **parts: Any) -> Any:
        """Run one of the statements above; returns the cursor."""
        names = {"table": self._table, "pushes": self._pushes, "vector_schema": self._schema}
        names |= {"decoder_sum": quoted(DECODER_SUM)} | parts
        used = {name: part for name, part in names.items() if f"{{{name}}}" in statement}
        with self._translated():
            # never prepared: a plan for all values would not use an index on one field of the metadata
            return self._connection.execute(filled(statement, **used), values or {}, prepare=False)

    def _number(self, statement: str, values: dict[str, Any] | None = None, **parts: Any) -> int:
        """The first value of the first row that a statement finds, 0 if there is none."""
        row = self._run(statement, values, **parts).fetchone()
        return int(row[0]) if row else 0

    def _comment(self, name: str) -> Any:
        """Number, comment and kind of the table of that name, None if there is none."""
        name = _psycopg("psycopg.sql").Identifier(name).as_string(self._connection)
        return self._run(FIND_TABLE, {"quoted": name}).fetchone()


def _connected(address: Address) -> Any:
    psycopg = _psycopg()
    try:
        return psycopg.connect(address.text, autocommit=True)
    except psycopg.ProgrammingError:  # its message may quote the password
        raise InvalidParameter(
            "to", address.shown, "a URL that PostgreSQL can read",
            "Write special characters of a password as %40 and the like, and check what is after the ?.",
        ) from None  # fmt: skip
    except psycopg.Error as error:
        raise _unreachable(error, address) from None


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter("name", name, "the name of a table")
    if len(name.encode()) > MOST_NAME_BYTES:
        raise InvalidParameter(
            "name", name, f"at most {MOST_NAME_BYTES} bytes: PostgreSQL would cut longer names"
        )
    return name


def _arrays(rows: list[Any], kinds: tuple[Any, ...]) -> list[Array]:
    """The columns of rows; kind None: of any objects."""
    columns = zip(*rows) if rows else [()] * len(kinds)
    return [
        np.fromiter(column, dtype=object if kind is None else kind, count=len(rows))
        for column, kind in zip(columns, kinds)
    ]
