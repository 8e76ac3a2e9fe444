"""Conditions on metadata as Milvus expressions over a JSON field: the same rows as a Collection finds.

Milvus compares numbers as doubles and has no parameters that all its versions know, so values are written
as literals, quoted. What it cannot be asked exactly (`exists`, null, lists and objects as values, integers
of more than 53 bits, control characters) is refused. Fields with a dot in their name are refused by `add`,
so that "a.b" can only mean b within a.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from auxbit.collection.where import Condition, Where
from auxbit.errors import InvalidInput

LARGEST = 2**53  # integers below it are doubles
NOTHING = "id < 0"
LAST_CHARACTER = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)

_CONTROL = re.compile(r"[\x00-\x1f]")
_PLACE_IN_LIST = re.compile(r"-|-?\d+", re.ASCII)  # Milvus would take it so


def expression(where: Any, *, parts_of_text: bool = True) -> str:
    """The expression, empty for no condition. parts_of_text : whether this Milvus can look inside of text."""
    if where is None:
        return ""
    wanted = Where.of(where)
    if wanted.function is not None:
        raise InvalidInput("a function of Python cannot judge rows in Milvus. Give where as a dict or text.")
    return " and ".join(f"({_one(each, parts_of_text)})" for each in wanted.conditions)


def _one(condition: Condition, parts_of_text: bool) -> str:
    x, operator, value = _field(condition), condition.operator, condition.value
    if operator == "exists":
        _refuse(condition, "whether a field exists")
    if operator in ("==", "!=", "<", "<=", ">", ">="):
        return f"{x} {operator} {_literal(condition, value)}"
    if operator == "startswith":
        return " or ".join(_starts(condition, x, each) for each in value) or NOTHING
    if operator == "contains":
        return " or ".join(_contains(condition, x, each, parts_of_text) for each in value) or NOTHING
    groups = [f"{x} {operator} [{', '.join(each)}]" for each in _by_type(condition, value)]
    joint = " or " if operator == "in" else " and "
    return joint.join(groups) or (NOTHING if operator == "in" else "id >= 0")


def _by_type(condition: Condition, values: list[Any]) -> list[list[str]]:
    """Literals that may stand in one list: Milvus wants them of one type."""
    texts = [each for each in values if isinstance(each, str)]
    flags = [each for each in values if isinstance(each, bool)]
    rest = [each for each in values if not isinstance(each, str | bool)]
    numbers = [float(each) if isinstance(each, int) and abs(each) < LARGEST else each for each in rest]
    return [[_literal(condition, each) for each in group] for group in (texts, flags, numbers) if group]


def _starts(condition: Condition, x: str, start: str) -> str:
    """Text from `start` on and before what follows all that start so: `like` would take % and _ as signs."""
    first = f"{x} >= {_literal(condition, start)}"
    head = start.rstrip(chr(LAST_CHARACTER))
    if not head:
        return first
    following = ord(head[-1]) + 1
    following = SURROGATES.stop if following in SURROGATES else following
    return f"({first} and {x} < {_literal(condition, head[:-1] + chr(following))})"


def _contains(condition: Condition, x: str, value: Any, parts_of_text: bool) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        value = float(value)  # an integer would not be found among floats
    member = f"json_contains({x}, {_literal(condition, value)})"
    if not isinstance(value, str):
        return member
    if not parts_of_text:
        _refuse(condition, "for a part of a text before its version 2.4")
    if re.search(r"[%_\\]", value):
        _refuse(condition, "for a part of a text with %, _ or \\ in it")
    inside = f'{x} >= ""' if not value else f"{x} like {_literal(condition, f'%{value}%')}"
    return f"{member} or {inside}"


def _field(condition: Condition) -> str:
    path = condition.field.split(".")
    if any(not part or _PLACE_IN_LIST.fullmatch(part) for part in path):
        _refuse(condition, "for a field that is a number or has no name")
    return "metadata" + "".join(f"[{_text(condition, part)}]" for part in path)


def _literal(condition: Condition, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(condition, value)
    if isinstance(value, int | float) and abs(value) < LARGEST:
        return repr(value)
    if isinstance(value, int | float):
        _refuse(condition, "for numbers of 2**53 and more: it compares doubles")
    _refuse(condition, "for null, lists or objects")


def _text(condition: Condition, text: str) -> str:
    if _CONTROL.search(text):
        _refuse(condition, "for text with control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _refuse(condition: Condition, what: str) -> NoReturn:
    raise InvalidInput(
        f"where: {condition} has no exact counterpart: Milvus cannot be asked {what}. Leave it out, or "
        "search a Collection or PostgreSQL."
    )
