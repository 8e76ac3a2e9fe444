"""Conditions on metadata as SQL over a jsonb column: the same rows as a Collection finds.

Values and names of fields are parameters. A JSON number never equals text or true in jsonb either, and 1
equals 1.0. Text is ordered by code points, whatever the collation of the database. A row without the field
fulfils `!=`, `not in` and `exists: False`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auxbit.collection.where import Condition, Where
from auxbit.errors import InvalidInput
from auxbit.extras import require
from auxbit.stores.pgvector_rows import json_parameter

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
