"""The statements of the pgvector store. Names are quoted identifiers, values are parameters.

{table}, {vector_schema}, {where} and {bits} are filled in as SQL; %(name)s are parameters.
"""

from __future__ import annotations

import json
from typing import Any

from auxbit.extras import require

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
