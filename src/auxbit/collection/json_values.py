"""Values as JSON keeps them: what becomes of Python's and NumPy's types, what is refused, what is equal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import PurePath
from types import NoneType
from typing import Any

import numpy as np

from auxbit.errors import InvalidInput

MAX_DEPTH = 64  # deeper rows could be written, but not read from a deep call stack
REMEDY = "Give text, numbers, true or false, None, lists or dicts of these, dates or paths"
PLAIN = {str, int, float, NoneType}  # types whose values are equal only if JSON's are
_SAFE = {str, bool, NoneType}  # nothing can be wrong with these
ENCODABLE = PLAIN | _SAFE  # nor with these, once they have been encoded


def to_json(value: Any) -> Any:
    """`value` as it will be read back: Python's own types, lists for arrays, ISO text for dates."""
    why = problem(value)
    if why:
        raise InvalidInput(f"{why}. {REMEDY}.")
    return json.loads(ENCODER.encode(value))


def key_of(value: Any) -> Any:
    """A key that is equal for equal JSON values only: 1 is 1.0, but neither is true."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, list):
        return ("list", *map(key_of, value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, key_of(each)) for key, each in value.items()))
    return ("bool", value)


def problem(value: Any, fine: set[type] = _SAFE, depth: int = 0) -> str:
    """Why `value` cannot be kept, empty if it can; types in `fine` need no look."""
    if depth >= MAX_DEPTH and isinstance(value, Mapping | list | tuple | np.ndarray):
        return f"it is nested more than {MAX_DEPTH} levels deep"
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            return f"it has the key {wrong[0]!r}, which is not text"
        inner = [each for each in value.values() if type(each) not in fine]
    elif isinstance(value, list | tuple):
        inner = value if set(map(type, value)) - fine else ()
    elif isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return problem(value.tolist(), fine, depth)
    elif type(value) not in fine:
        try:
            ENCODER.encode(value)
        except (TypeError, ValueError):
            shown = "so large an integer" if isinstance(value, int) else repr(value)[:80]
            return f"{shown} is not JSON ({type(value).__name__})"
    for each in inner:
        why = problem(each, fine, depth + 1)
        if why:
            return why
    return ""


def _python(value: Any) -> Any:
    """What json does not know, as something that it does."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        return value.tolist()
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        return [_python(part) for part in value] if value.ndim else _python(value[()])
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.datetime64 | date) and value == value:  # the missing date is not itself
        return _iso(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _iso(moment: np.datetime64 | date) -> str:
    day: Any = moment
    if isinstance(moment, np.datetime64):
        coarser = moment.astype("M8[us]")  # Python knows no finer dates, and no years beyond 9999
        day = moment.item() if isinstance(moment.item(), date) or coarser != moment else coarser.item()
    return str(day.isoformat() if isinstance(day, date) else moment)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",\n", ":"), default=_python)
