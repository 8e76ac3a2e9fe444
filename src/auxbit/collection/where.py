"""Conditions on metadata, `where`: which rows a search may return.

A condition is judged once for each distinct value of its field, then looked up for every row. Values of other
types are never equal, never less or greater: "1", 1 and true are three things, 1 and 1.0 are one. A row
without the field fulfils `!=`, `not in` and `exists: False`, which say what is not there, and nothing else.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from auxbit.collection.metadata import Column, Fields, Row, key_of, to_json
from auxbit.core.checks import Mask
from auxbit.errors import InvalidInput, InvalidParameter

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "startswith", "exists")
EXAMPLE = 'Try {"label": "cat", "year": {">=": 2000, "<": 2010}, "tag": ["a", "b"]}.'
TEXT_FORMS = "label=cat, label=cat,dog, label!=cat, year>=2000, name~part, name^=start, label? or !label"

_ORDERS = ("<", "<=", ">", ">=")
_ANY_OF = ("in", "not in", "contains", "startswith")  # their value is a list of alternatives
_NAME = r'(?P<field>"(?:[^"\\]|\\.)*"|'  # quoted, or what may stand without quotes
_COMPARISON = re.compile(
    _NAME + r'[^"!=<>~^].*?)\s*(?P<sign>==|!=|<=|>=|\^=|=|<|>|~)\s*(?P<value>.*)', re.DOTALL
)
_PRESENCE = re.compile(r"(?P<no>!?)\s*" + _NAME + r'[^"!=<>~]+?)\s*(?P<yes>\??)', re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """One comparison of a field with a value, or with several of which one must hold."""

    field: str
    operator: str
    value: Any

    def __str__(self) -> str:
        if self.operator == "exists":
            return f"{self.field} {'exists' if self.value else 'is missing'}"
        alone = self.operator in ("contains", "startswith") and len(self.value) == 1
        value = self.value[0] if alone else self.value
        return f"{self.field} {self.operator} {json.dumps(value, ensure_ascii=False)}"

    def mask(self, column: Column) -> Mask:
        """Which rows of the column fulfil it, (n,)."""
        truth = np.zeros(len(column.values) + 1, dtype=np.bool_)  # the last is of rows without the field
        if self.operator == "exists":
            truth[:-1] = True
        elif self.operator == "contains":
            truth[:-1] = _contain(column.values, self.value)
        elif self.operator in (*_ORDERS, "startswith"):
            for bound in self.value if self.operator == "startswith" else [self.value]:
                rising, places = column.texts if isinstance(bound, str) else column.numbers
                truth[places[_range(self.operator, rising, bound)]] = True
        else:
            for value in self.value if self.operator in _ANY_OF else [self.value]:
                truth[column.find(value)] = True
        if self.operator in ("!=", "not in") or (self.operator == "exists" and not self.value):
            truth = ~truth
        return truth[column.codes]


def _range(operator: str, rising: list[Any], bound: Any) -> slice:
    if operator == "startswith":
        begin = len(bound)
        return slice(bisect_left(rising, bound), bisect_right(rising, bound, key=lambda text: text[:begin]))
    place = bisect_left(rising, bound) if operator in ("<", ">=") else bisect_right(rising, bound)
    return slice(0, place) if operator in ("<", "<=") else slice(place, None)


def _contain(values: list[Any], wanted: list[Any]) -> Mask:
    """Which values are lists with one of the `wanted` as a member, or texts with one as a part."""
    keys = set(map(key_of, wanted))
    found = np.array(
        [type(each) is list and not keys.isdisjoint(map(key_of, each)) for each in values], np.bool_
    )
    for part in wanted:
        if isinstance(part, str):
            found |= np.array([type(each) is str and part in each for each in values], np.bool_)
    return found


class Where:
    """Conditions that must all hold, or a function that judges whole rows."""

    def __init__(self, conditions: Iterable[Condition] = (), function: Callable[[Row], Any] | None = None):
        self.conditions = tuple(conditions)
        self.function = function

    @staticmethod
    def of(where: Any) -> Where:
        """Conditions from a dict, from text or a list of text, or from a function of a row to bool.

        {"label": "cat", "year": {">=": 2000}, "tag": ["a", "b"]}, or ["label=cat", "year>=2000", "tag=a,b"].
        """
        if isinstance(where, Where):
            return where
        if isinstance(where, Mapping):
            return Where(each for field, wanted in where.items() for each in _of_field(field, wanted))
        if isinstance(where, str):
            return Where([_of_text(where)])
        if isinstance(where, list | tuple):
            return Where(_of_text(text) for text in where)
        if callable(where):
            return Where(function=where)
        raise InvalidParameter("where", where, "a dict, conditions as text, or a function of a row", EXAMPLE)

    def __str__(self) -> str:
        if self.function is not None:
            return f"{getattr(self.function, '__name__', 'function')}(row)"
        return " and ".join(map(str, self.conditions)) or "every row"

    def __repr__(self) -> str:
        return f"<Where {self}>"

    def mask(self, fields: Fields, n: int) -> Mask:
        """Which of the n rows fulfil all conditions, (n,)."""
        if fields.n != n:
            raise InvalidInput(f"there are {fields.n} rows of metadata for {n} items.")
        if self.function is not None:
            return self._judge_rows(self.function, fields)
        fields.load(condition.field for condition in self.conditions)
        mask = np.ones(n, dtype=np.bool_)
        for condition in self.conditions:
            mask &= condition.mask(fields.column(condition.field))
        return mask

    def _judge_rows(self, function: Callable[[Row], Any], fields: Fields) -> Mask:
        mask, empty = np.zeros(fields.n, dtype=np.bool_), np.ones(fields.n, dtype=np.bool_)
        for positions, rows in fields.chunks():
            mask[positions] = [bool(function(row)) for row in rows]
            empty[positions] = False
        if empty.any():
            mask[empty] = bool(function({}))
        return mask


# ---- from a dict


def _of_field(field: Any, wanted: Any) -> list[Condition]:
    if not isinstance(field, str):
        raise InvalidParameter("where", field, "fields as text", EXAMPLE)
    if not isinstance(wanted, Mapping):
        several = isinstance(wanted, list | tuple | set | frozenset | np.ndarray | range)
        return [_condition(field, "in" if several else "==", wanted)]
    if not wanted:
        _refuse(field, wanted, "at least one operator")
    return [_condition(field, operator, value) for operator, value in wanted.items()]


def _condition(field: str, operator: Any, value: Any) -> Condition:
    """A condition whose operator is known and whose value is of a type that it can compare with."""
    if operator not in OPERATORS:
        remedy = 'Objects are compared by {"==": {...}}.'
        _refuse(field, {operator: value}, f"an operator, not {operator!r}", remedy)
    if isinstance(value, set | frozenset | range):
        value = list(value)
    if operator in ("contains", "startswith") and not isinstance(value, list | tuple | np.ndarray):
        value = [value]
    try:
        value = to_json(value)
    except InvalidInput as error:
        raise InvalidParameter("where", {field: value}, "values that JSON has", str(error)) from error
    wrong = ""
    if operator in _ANY_OF and not isinstance(value, list):
        wrong = "a list"
    elif operator == "startswith" and not all(isinstance(each, str) for each in value):
        wrong = "text"
    elif operator == "exists" and not isinstance(value, bool):
        wrong = "True or False"
    elif operator in _ORDERS and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        wrong = "a number or text"
    if wrong:
        _refuse(field, {operator: value}, f"{wrong} after {operator!r}")
    return Condition(field, operator, value)


def _refuse(field: str, value: Any, expected: str, remedy: str = "") -> NoReturn:
    remedy = f"{remedy} Operators are {', '.join(OPERATORS)}.".lstrip()
    raise InvalidParameter("where", {field: value}, expected, remedy)


# ---- from text


def _of_text(text: Any) -> Condition:
    if not isinstance(text, str):
        raise InvalidParameter("where", text, "conditions as text", f"Known forms: {TEXT_FORMS}.")
    present = _PRESENCE.fullmatch(text.strip())
    if present and bool(present["no"]) != bool(present["yes"]):
        return _condition(_field(text, present["field"]), "exists", bool(present["yes"]))
    parts = _COMPARISON.fullmatch(text.strip())
    if parts is None or (not parts["value"] and parts["sign"] not in ("=", "==", "!=")):
        _malformed(text)
    field, sign = _field(text, parts["field"]), parts["sign"]
    # a=>3 and a<>3 are typing errors, and so are "a=1 and b=2" and year>2000,2010: such text must be quoted
    if parts["value"].startswith(("=", "<", ">", "!")) or " and " in parts["value"].split('"')[0]:
        _malformed(text)
    if sign in _ORDERS:
        if "," in parts["value"] and isinstance(_json_at(parts["value"], 0)[0], int | float):
            _malformed(text)
        value, end = _json_at(parts["value"], 0)
        if end != len(parts["value"]):
            value = parts["value"] if not parts["value"].startswith('"') else _malformed(text)
        return _condition(field, sign, value)
    values, raws = _split(text, parts["value"])
    listed = len(values) == 1 and isinstance(values[0], list) and sign != "=="
    alternatives = values[0] if listed else values
    if sign == "^=":
        return _condition(field, "startswith", alternatives if listed else raws)
    if sign == "~":  # name~2023 finds the number in lists, and its digits in text
        digits = [] if listed else [raw for value, raw in zip(values, raws) if not isinstance(value, str)]
        return _condition(field, "contains", alternatives + digits)
    if listed or len(values) > 1:
        return _condition(field, "not in" if sign == "!=" else "in", alternatives)
    return _condition(field, "!=" if sign == "!=" else "==", values[0])


def _field(text: str, name: str) -> str:
    if not name.startswith('"'):
        return name
    value, end = _json_at(name, 0)
    return str(value) if end == len(name) else _malformed(text)


def _split(text: str, values: str) -> tuple[list[Any], list[str]]:
    """What stands between commas, as JSON if it is that, else as text; and all of it as text."""
    found: list[Any] = []
    raws: list[str] = []
    place = 0
    while not found or place <= len(values):
        place += len(values[place:]) - len(values[place:].lstrip())
        value, end = _json_at(values, place)
        if end < 0:
            comma = values.find(",", place)
            end = comma if comma >= 0 else len(values)
            value = values[place:end].rstrip()
            if value.startswith('"') or (not value and values):
                _malformed(text)
        found.append(value)
        raws.append(value if isinstance(value, str) else values[place:end].rstrip())
        place = end + 1
    return found, raws


def _json_at(text: str, place: int) -> tuple[Any, int]:
    """The JSON value that starts at `place` and ends before a comma or at the end; -1 if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None, -1
    end += len(text[end:]) - len(text[end:].lstrip())
    return value, end if text[end : end + 1] in ("", ",") else -1


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _malformed(text: str) -> NoReturn:
    remedy = f'Known forms: {TEXT_FORMS}; quote as in label="a,b".'
    raise InvalidParameter("where", text, "a field, an operator and a value", remedy)
