"""Conditions on metadata, `where`: which rows a search may return, as a tree of comparisons.

The same tree is read from a dict or from text, judged in plain Python (`matches`) and written as SQL (`sql`).
Values of other types are never equal, never less or greater: "1", 1 and true are three things, 1 and 1.0 are
one. A row without the field fulfils `!=`, `not in` and `exists: False`, which say what is not there, and
nothing else; `not` holds for every row that does not fulfil what follows it.
"""

from __future__ import annotations

import itertools
import json
import operator as comparison
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from auxbit.core.checks import warn
from auxbit.data.records import MAX_DEPTH, Row, key_of, to_json
from auxbit.data.vectors import nearest
from auxbit.errors import InvalidInput, InvalidParameter

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "startswith", "exists")
EXAMPLE = 'Try {"label": "cat", "year": {">=": 2000, "<": 2010}, "tag": ["a", "b"]}.'
TEXT_FORMS = (
    "label=cat, label=cat,dog or label in (cat, dog), label!=cat, year>=2000, name~part, name^=start, "
    "label? or !label, "
    "joined by and, or, not and parentheses"
)

_ORDERS = {"<": comparison.lt, "<=": comparison.le, ">": comparison.gt, ">=": comparison.ge}
_ANY_OF = ("in", "not in", "contains", "startswith")  # their value is a list of alternatives
_MISSING: Any = object()


# ---- The tree


@dataclass(frozen=True)
class Condition:
    """One comparison of a field with a value, or with several of which one must hold."""

    field: str
    operator: str
    value: Any

    def holds(self, row: Row) -> bool:
        """Whether the row fulfils it."""
        own = _value(row, self.field)
        if self.operator == "exists":
            return bool((own is not _MISSING) == self.value)
        if self.operator in ("!=", "not in"):
            return own is _MISSING or key_of(own) not in self._keys
        if own is _MISSING:
            return False
        if self.operator in ("==", "in"):
            return key_of(own) in self._keys
        if self.operator == "contains" and isinstance(own, list):
            return not self._keys.isdisjoint(map(key_of, own))
        if self.operator in ("contains", "startswith"):
            inside = comparison.contains if self.operator == "contains" else str.startswith
            return isinstance(own, str) and any(
                inside(own, part) for part in self.value if isinstance(part, str)
            )
        return _kind(own) == _kind(self.value) and bool(_ORDERS[self.operator](own, self.value))

    @cached_property
    def _keys(self) -> set[Any]:
        return set(map(key_of, self.value if self.operator in _ANY_OF else [self.value]))

    def __str__(self) -> str:
        plain = _PLAIN_NAME.fullmatch(self.field) and self.field.lower() not in ("and", "or", "not")
        field = self.field if plain else json.dumps(self.field, ensure_ascii=False)
        if self.operator == "exists":
            return f"{field} {'exists' if self.value else 'is missing'}"
        if self.operator == "!=" and isinstance(self.value, list):  # x != [1, 2] is read as none of these
            return f"not {Condition(self.field, '==', self.value)}"
        alone = self.operator in ("contains", "startswith") and len(self.value) == 1
        value = self.value[0] if alone and not isinstance(self.value[0], list) else self.value
        return f"{field} {self.operator} {json.dumps(value, ensure_ascii=False)}"


@dataclass(frozen=True)
class Group:
    """Parts that must all hold ("and"), of which one must ("or"), or one that must not ("not")."""

    word: str
    parts: tuple[Node, ...]

    def holds(self, row: Row) -> bool:
        """Whether the row fulfils it."""
        if self.word == "not":
            return not self.parts[0].holds(row)
        return (all if self.word == "and" else any)(part.holds(row) for part in self.parts)

    def __str__(self) -> str:
        if not self.parts:
            return "every row"
        parts = [f"({part})" if isinstance(part, Group) and part.parts else str(part) for part in self.parts]
        return f"not {parts[0]}" if self.word == "not" else f" {self.word} ".join(parts)


Node = Condition | Group


def _group(word: str, parts: Iterable[Node]) -> Node:
    """A group without groups of the same word inside, and none around one part."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Group) and part.word == word else [part]
    return flat[0] if len(flat) == 1 else Group(word, tuple(flat))


_OPPOSITES = {"==": "!=", "!=": "==", "in": "not in", "not in": "in"}


def _opposite(node: Node) -> Node:
    """The negation, with `not` only before comparisons that have no opposite."""
    if isinstance(node, Condition):
        if node.operator == "exists":
            return Condition(node.field, "exists", not node.value)
        other = _OPPOSITES.get(node.operator)
        return Condition(node.field, other, node.value) if other else Group("not", (node,))
    if node.word == "not":
        return _opposite(_opposite(node.parts[0])) if isinstance(node.parts[0], Group) else node.parts[0]
    return Group("or" if node.word == "and" else "and", tuple(map(_opposite, node.parts)))


def _leaves(node: Node) -> Iterator[Condition]:
    if isinstance(node, Condition):
        yield node
    else:
        for part in node.parts:
            yield from _leaves(part)


def _depth(node: Node) -> int:
    return 1 + max(map(_depth, node.parts), default=0) if isinstance(node, Group) else 0


def _value(row: Row, field: str) -> Any:
    """The row's value of `field`; of "a.b" that of b within a, if it has no field "a.b"."""
    value: Any = row.get(field, _MISSING)
    if value is _MISSING and "." in field:
        value = row
        for part in field.split("."):
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _kind(value: Any) -> str:
    """What may be less or greater than each other: numbers, of which true and false are none, and text."""
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


class Where:
    """Conditions that must all hold, each a comparison or a group of them; or a function of a whole row.

    tree : the conditions, a Condition or a Group; function : None, or what judges rows instead of the tree
    """

    def __init__(self, parts: Iterable[Node] = (), function: Callable[[Row], Any] | None = None):
        self.tree = _group("and", parts)
        self.function = function

    @staticmethod
    def of(where: Any) -> Where:
        """Conditions from a dict, from text, from a list of these, or from a function of a row to bool.

        {"label": "cat", "year": {">=": 2000}, "tag": ["a", "b"]}, "label=cat and year>=2000 and tag=a,b",
        {"or": [{"label": "cat"}, {"not": {"year": {"<": 2000}}}]}, "label=cat or not year<2000".
        """
        if isinstance(where, Where):
            return where
        if isinstance(where, list | tuple):
            wanted = list(where)
        elif isinstance(where, Mapping | str):
            wanted = [where]
        elif callable(where):
            return Where(function=where)
        else:
            raise InvalidParameter(
                "where", where, "a dict, conditions as text, or a function of a row", EXAMPLE
            )
        try:
            made = Where(map(_node, wanted))
            if _depth(made.tree) <= MAX_DEPTH:
                return made
        except RecursionError:
            pass
        raise InvalidParameter("where", "…", f"at most {MAX_DEPTH} levels of and, or and not", EXAMPLE)

    @property
    def fields(self) -> set[str]:
        """The fields that the conditions name; those of a function are not known."""
        return {leaf.field for leaf in _leaves(self.tree)}

    def matches(self, row: Row) -> bool:
        """Whether a row of metadata fulfils the conditions."""
        return self.tree.holds(row) if self.function is None else bool(self.function(row))

    @property
    def opposite(self) -> Where:
        """What holds for all other rows, with each `not` inside, so that indexes can be used."""
        if self.function is not None:
            return Where(function=lambda row: not self.matches(row))
        return Where([_opposite(self.tree)])

    def sql(self, column: str = "metadata", indexed: Container[str] | None = None) -> tuple[str, list[Any]]:
        """An expression of SQLite, 1 for rows that fulfil it and else 0, and the values of its ?.

        indexed : fields with an index; what is compared with others is looked at in the cheapest way first.
        column : of JSON objects as `json` writes them with ensure_ascii=False, or NULL, which is {}. The
        connection needs `register`. A function of a row is called by its number, as long as the values are
        kept.
        """
        few = _depth(self.tree) <= MOST_LEVELS and sum(1 for _ in _leaves(self.tree)) <= MOST_TERMS
        if self.function is None and few:
            expression, values = _sql(self.tree, column, indexed)
            if len(expression) <= MOST_LETTERS:
                return expression, values
        return self.judged(column)

    def judged(self, column: str = "metadata") -> tuple[str, list[Any]]:
        """The same with every row left to Python, for databases that have `judge` as auxbit_holds."""
        if self.function is not None:
            return f"auxbit_holds({column}, ?)", [_Called.of(self.function)]
        return _by_python(self.tree, column)

    def __str__(self) -> str:
        if self.function is not None:
            return f"{getattr(self.function, '__name__', 'function')}(row)"
        return str(self.tree)

    def __repr__(self) -> str:
        return f"<Where {self}>"


# ---- From a dict


def _node(wanted: Any) -> Node:
    if isinstance(wanted, Where):
        if wanted.function is not None:
            raise InvalidParameter("where", str(wanted), "a function, not combined with others", EXAMPLE)
        return wanted.tree
    if isinstance(wanted, str):
        return _Reader(wanted).read()
    if not isinstance(wanted, Mapping):
        raise InvalidParameter("where", wanted, "conditions as text", f"Known forms: {TEXT_FORMS}.")
    return _group("and", [each for field, value in wanted.items() for each in _of_field(field, value)])


def _of_field(field: Any, wanted: Any) -> list[Node]:
    if not isinstance(field, str):
        raise InvalidParameter("where", field, "fields as text", EXAMPLE)
    if field in ("and", "or"):
        listed = isinstance(wanted, list | tuple)
        nested = [isinstance(each, Mapping | Where) for each in (wanted if listed else ())]
        # an empty list would find every row or none, and what is no list would be taken for operators
        slip = isinstance(wanted, Mapping) and not {*wanted} <= {*OPERATORS}
        if slip or (listed and any(nested) != all(nested)):
            remedy = f'A field of this name is compared by {{"{field}": {{"in": [...]}}}}.'
            _refuse(field, wanted, "a list of dicts, at least one", remedy)
        if any(nested):
            return [_group(field, map(_node, wanted))]
    compared = isinstance(wanted, Mapping) and wanted and {*wanted} <= {*OPERATORS}  # a field of this name
    if field == "not" and isinstance(wanted, Mapping | Where) and not compared:
        return [Group("not", (_node(wanted),))]
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
    elif operator in _ORDERS and _kind(value) not in ("number", "str"):
        wrong = "a number or text"
    if wrong:
        _refuse(field, {operator: value}, f"{wrong} after {operator!r}")
    return Condition(field, operator, value)


def _refuse(field: str, value: Any, expected: str, remedy: str = "") -> NoReturn:
    remedy = f"{remedy} Operators are {', '.join(OPERATORS)}.".lstrip()
    raise InvalidParameter("where", {field: value}, expected, remedy)


# ---- From text
#
# either = both ("or" both)*
# both   = one (("and" | ",") one)*
# one    = "not" one | "(" either ")" | "!" field | field "?" | field "exists" | field "is missing"
#        | field sign values | field word JSON | field ("in" | "not in") "(" values ")"
#
# Fields and values stand in quotes, as JSON, or bare: bare ones end at a comma, at and, at or, or at a
# parenthesis that they did not open. Values may stand in single quotes as in SQL, where '' is a quote.

_SIGN = r"(?:==|!=|<=|>=|\^=|=|<|>|~)"
_JOINT = r"\s+(?:and|or|AND|OR)(?=[\s(]|\Z)"
_END = rf"(?=\s*(?:\Z|[,)])|{_JOINT})"


def _bare(but: str = "") -> str:
    """The pattern of one piece of bare text: a character that is not in `but`, or a pair of parentheses."""
    return rf"(?:(?!{_JOINT})[^,(){but}]|\((?:(?!{_JOINT})[^,(){but}])*\))"


def _field_then(rest: str, bare: str, first: str = "") -> re.Pattern[str]:
    """The pattern of a field, in quotes or as `bare` has it, and what follows; `first` stands before it."""
    no = rf"(?!\s|(?:and|or|not|AND|OR|NOT)[\s(](?!\s*{_SIGN}))"  # what no bare field may start with
    return re.compile(rf'\s*{first}(?P<field>"(?:[^"\\]|\\.)*"|{no}{bare}){rest}', re.DOTALL)


_WORD_FIELD, _WITHOUT_SIGN = r'[^\s,()"!=<>~^]+', _bare('"!=<>~') + "+?"
_COMPARED = _field_then(rf"\s*(?P<how>{_SIGN})", r"(?![!=<>~^])" + _bare('"') + "+?")
_WORD = _field_then(r'\s+(?P<how>not\s+in|NOT\s+IN|in|IN|contains|startswith)(?=[\s["\'{(])', _WORD_FIELD)
_PRESENT = _field_then(rf"\s*\?{_END}", _WITHOUT_SIGN)
_PRESENT_WORD = _field_then(rf"\s+(?P<how>exists|is\s+missing){_END}", _WORD_FIELD)
_ABSENT = _field_then(rf"(?<![?\s]){_END}", _WITHOUT_SIGN, r"!\s*")
_NOT = re.compile(rf"\s*(?:not|NOT)(?=[\s(])(?!\s*{_SIGN})")
_AND, _OR = re.compile(r"\s*(?:,|(?:and|AND)(?=[\s(]))"), re.compile(r"\s*(?:or|OR)(?=[\s(])")
_OPEN, _CLOSE, _COMMA, _SPACE = (re.compile(rf"\s*{each}") for each in (r"\(", r"\)", ",", ""))
_BARE_VALUE, _ENDED = re.compile(_bare() + "*"), re.compile(_END)
_QUOTED = re.compile(rf"'(?P<text>(?:[^']|'')*)'{_END}")
_SLIP = re.compile(r'["=<>!]|(?:and|or|AND|OR)(?:\s|\Z)')  # what no bare value may start with
_PLAIN_NAME = re.compile(r"[\w.-]+")


class _Reader:
    """Reads conditions from text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def read(self) -> Node:
        """The tree of the whole text."""
        tree = self._either()
        self._take(_SPACE)
        return tree if self._place == len(self._text) else self._malformed()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move past the pattern, if it is next."""
        found = pattern.match(self._text, self._place)
        if found:
            self._place = found.end()
        return found

    def _either(self) -> Node:
        parts = [self._both()]
        while self._take(_OR):
            parts.append(self._both())
        return _group("or", parts)

    def _both(self) -> Node:
        parts = [self._one()]
        while self._take(_AND):
            parts.append(self._one())
        return _group("and", parts)

    def _one(self) -> Node:
        if self._take(_NOT):
            return Group("not", (self._one(),))
        if self._take(_OPEN):
            inside = self._either()
            return inside if self._take(_CLOSE) else self._malformed()
        found = self._take(_ABSENT) or self._take(_PRESENT) or self._take(_PRESENT_WORD)
        if found:
            gone = found.re is _ABSENT or (found.re is _PRESENT_WORD and found["how"] != "exists")
            return _condition(self._field(found), "exists", not gone)
        return self._by_word() or self._by_sign()

    def _by_word(self) -> Condition | None:
        start, found = self._place, self._take(_WORD)
        if found:
            self._take(_SPACE)
            how, value = " ".join(found["how"].lower().split()), self._json()
            if how.endswith("in") and self._take(_OPEN):
                value, _ = self._values(may_be_empty=False)
                value = value if self._take(_CLOSE) else self._malformed()
            if value is not _MISSING:
                return _condition(self._field(found), how, value)
        self._place = start
        return None

    def _by_sign(self) -> Condition:
        found = self._take(_COMPARED)
        if not found:
            self._malformed()
        field, sign = self._field(found), found["how"]
        self._take(_SPACE)
        first = self._place
        values, raws = self._values(may_be_empty=sign in ("=", "==", "!="))
        if sign in _ORDERS:
            if len(values) > 1:  # name<b,c is a text with a comma, year>2000,2010 a slip
                text = self._text[first : self._place].rstrip()
                values = [text] if values[0] is raws[0] and text[0] != '"' else [self._malformed()]
            return _condition(field, sign, values[0])
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

    def _field(self, found: re.Match[str]) -> str:
        name = found["field"].strip()
        if not name.startswith('"'):
            return name
        try:
            return str(json.loads(name))
        except ValueError:
            self._malformed()

    def _values(self, *, may_be_empty: bool) -> tuple[list[Any], list[str]]:
        """What stands between commas, as JSON if it is that, else as text; and all of it as text."""
        values, raws = list[Any](), list[str]()
        while True:
            start = self._place
            value = self._json()
            if value is _MISSING:
                found = self._take(_BARE_VALUE)
                value = found[0].strip() if found else ""
                if _SLIP.match(value) or not _ENDED.match(self._text, self._place):
                    self._malformed(start)
                if not value and not (may_be_empty and not values and self._text[start : start + 1] != ","):
                    self._malformed(start)
            values.append(value)
            raws.append(value if isinstance(value, str) else self._text[start : self._place].strip())
            before = self._place
            if not self._take(_COMMA):
                return values, raws
            if self._condition_is_next():
                self._place = before
                return values, raws
            self._take(_SPACE)

    def _condition_is_next(self) -> bool:
        """Whether a further condition, and not a further value, stands after a comma."""
        patterns = (_NOT, _OPEN, _COMPARED, _PRESENT, _PRESENT_WORD, _ABSENT)
        found = next(filter(None, (each.match(self._text, self._place) for each in patterns)), None)
        if found and found.re in (_PRESENT, _PRESENT_WORD):  # in label=who,why? it would be a guess
            self._malformed()
        start = self._place
        by_word = found is None and self._by_word() is not None
        self._place = start
        return by_word or found is not None

    def _json(self) -> Any:
        """The text in single quotes or JSON value that is next and ends as a value must, else _MISSING."""
        if quoted := self._take(_QUOTED):
            return quoted["text"].replace("''", "'")
        try:
            value, end = _DECODER.raw_decode(self._text, self._place)
        except (ValueError, RecursionError):
            return _MISSING
        if not _ENDED.match(self._text, end):
            return _MISSING
        self._place = end
        return value

    def _malformed(self, place: int | None = None) -> NoReturn:
        rest = self._text[self._place if place is None else place :].strip()
        here = f" at {rest!r}" if rest and rest != self._text.strip() else ""
        remedy = f'Known forms: {TEXT_FORMS}; quote as in label="a,b".'
        raise InvalidParameter("where", self._text, f"a field, an operator and a value{here}", remedy)


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


# ---- To SQL
#
# A field's number or text is one expression, `scalar_sql`, which an index can hold; comparisons have it alone
# on one side, and need the row itself only for floats at the edge: SQLite may read a float wrong in its last
# places, and an integer of more than 64 bits as a float. So a little too much is looked up, and what lies at
# the edge is compared as JSON text, or, if that is not as we write it, by Python. What SQLite cannot say at
# all is left to Python as a whole. Nothing is ever NULL, so that NOT is the opposite.

Sql = tuple[str, list[Any]]

MOST_LEVELS, MOST_TERMS, MOST_LETTERS = 12, 500, 900_000  # that SQLite's parser takes in any case
MOST_RANGES = 100  # of one condition
EXACT = 2**53  # up to here an integer is the same as a float
LARGEST = sys.float_info.max
SLACK, LEAST = 2.0**-40, 1e-300  # far more than what SQLite may be wrong by
LAST_CHARACTER = chr(0x10FFFF)
SURROGATES = range(0xD800, 0xE000)

_ODD_NAME = re.compile('["\\\\\x00-\x1f\ud800-\udfff]')  # JSON may escape these, and SQLite's paths not
_ODD_TEXT = re.compile("[\x00\ud800-\udfff]")
_NUL = "'\\u0000'"  # as JSON has it


def scalar_sql(field: str, column: str = "metadata") -> str:
    """The number or text that a row has for `field`, NULL if it has another value or none.

    It is the expression that an index on the field must have for `Where.sql` to use it.
    """
    paths = _paths(field)
    if not paths:
        raise InvalidInput(
            f"the field {field!r} cannot be indexed: it has an empty name, quotes, backslashes or control "
            "characters. Conditions on it work without an index; to have one, rename the field."
        )
    found = [_scalar(column, path) for path in paths]
    if len(found) == 1:
        return found[0]
    return f"CASE WHEN json_type({column}, {paths[0]}) IS NULL THEN {found[1]} ELSE {found[0]} END"


def _scalar(column: str, path: str) -> str:
    value = f"{column} ->> {path}"
    # SQLite reads text up to a NUL: with one at its end it has its place among texts without, and equals none
    escaped = f"instr(replace({column} -> {path}, '\\\\', ''), {_NUL})"
    text = f"CASE WHEN instr({column}, {_NUL}) AND {escaped} THEN ({value}) || char(0) ELSE {value} END"
    kinds = f"WHEN 'text' THEN {text} WHEN 'integer' THEN {value} WHEN 'real' THEN {value}"
    return f"CASE json_type({column}, {path}) {kinds} END"


def _paths(field: str) -> list[str]:
    """Where the field is, as literals of SQL, the first choice first; none if SQLite cannot find it."""
    ways = [[field], field.split(".")] if "." in field else [[field]]
    if any(not part or _ODD_NAME.search(part) for way in ways for part in way):
        return []
    paths = ["$" + "".join(f'."{part}"' for part in way) for way in ways]
    return ["'" + path.replace("'", "''") + "'" for path in paths]


def end_of_prefix(start: str) -> str:
    """The first text after all that begin with `start`, empty if there is none."""
    head = start.rstrip(LAST_CHARACTER)
    if not head:
        return ""
    following = ord(head[-1]) + 1
    return head[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)


def _sql(node: Node, column: str, indexed: Container[str] | None) -> Sql:
    if isinstance(node, Condition):
        scanned = indexed is not None and node.field not in indexed
        return _Leaf(node, column, scanned).sql() if _paths(node.field) else _by_python(node, column)
    parts = [_sql(part, column, indexed) for part in node.parts]
    if node.word == "not":
        return f"(NOT {parts[0][0]})", parts[0][1]
    return _joined(parts, node.word)


def _joined(parts: list[Sql], word: str) -> Sql:
    if not parts:
        return ("1" if word == "and" else "0"), []
    text = f" {word.upper()} ".join(text for text, _ in parts)
    return f"({text})" if len(parts) > 1 else text, [value for _, values in parts for value in values]


def _by_python(node: Node, column: str) -> Sql:
    return f"auxbit_holds({column}, ?)", [json.dumps(_packed(node))]


class _Leaf:
    """One condition as SQL. x : its field's number or text; raw : its JSON text; kind : its JSON type.

    scanned : all rows are read, so that `plain`, which is cheap and holds wherever x does, is asked first
    """

    def __init__(self, condition: Condition, column: str, scanned: bool) -> None:
        self.condition, self.column = condition, column
        self.x = scalar_sql(condition.field, column)
        self.path, *second = _paths(condition.field)
        self.plain = f"{column} ->> {self.path}" if scanned and not second else ""
        if second:
            self.path = (
                f"CASE WHEN json_type({column}, {self.path}) IS NULL THEN {second[0]} ELSE {self.path} END"
            )
        self.raw, self.kind = f"({column} -> {self.path})", f"json_type({column}, {self.path})"

    def sql(self) -> Sql:
        """The expression and the values of its ?."""
        operator, value = self.condition.operator, self.condition.value
        if operator == "exists":
            return f"({self.kind} IS {'NOT ' if value else ''}NULL)", []
        if operator in ("!=", "not in"):
            text, values = self._among([value] if operator == "!=" else value)
            return f"(NOT {text})", values
        if operator in ("==", "in"):
            return self._among([value] if operator == "==" else value)
        if operator == "contains":
            return self._contains(value)
        if operator == "startswith":
            return self._starts(value)
        return self._ordered(operator, value)

    def _python(self, operator: str, value: Any) -> Sql:
        return _by_python(Condition(self.condition.field, operator, value), self.column)

    def _among(self, values: list[Any]) -> Sql:
        """Equal to one of the values."""
        names = {json.dumps(each) for each in values if each is None or isinstance(each, bool)}
        others = [each for each in values if each is not None and not isinstance(each, bool)]
        exact = [each for each in others if _is_exact(each)]
        near = [each for each in others if not _is_exact(each) and _bounds(each)]
        rest = [each for each in others if not _bounds(each)]
        if len(near) > MOST_RANGES:
            near, rest = [], rest + near
        parts: list[Sql] = []
        if names:
            listed = ", ".join(f"'{name}'" for name in sorted(names))
            parts.append((f"ifnull({self.kind} IN ({listed}), 0)", []))
        if exact:
            parts.append(self._equal(exact))
        parts += [self._near(each) for each in near]
        if rest:
            parts.append(self._python("in", rest))
        return _joined(parts, "or")

    def _equal(self, exact: list[Any]) -> Sql:
        numbers = [int(each) if isinstance(each, float) else each for each in exact]
        place: Sql = ("= ?", numbers)
        if len(exact) > 1:
            place = ("IN (SELECT value FROM json_each(?))", [json.dumps(numbers, ensure_ascii=False)])
        edge, values = self._edge("in", exact, exact=True)
        first = self._first([(place[0], place[1])])
        return f"({first[0]}{self.x} {place[0]} AND {edge})", first[1] + place[1] + values

    def _first(self, comparisons: list[Sql]) -> Sql:
        """The same comparisons of what SQLite itself reads, whatever its type."""
        if not self.plain:
            return "", []
        values = [value for _, some in comparisons for value in some]
        return "".join(f"{self.plain} {text} AND " for text, _ in comparisons), values

    def _near(self, number: Any) -> Sql:
        edge, values = self._edge("==", number, exact=False)
        low, high = _bounds(number)
        first = self._first([(">= ?", [low]), ("<= ?", [high])])
        return f"({first[0]}{self.x} >= ? AND {self.x} <= ? AND {edge})", [*first[1], low, high, *values]

    def _ordered(self, operator: str, bound: Any) -> Sql:
        """Less or greater than a number or text, of which SQLite has all numbers first."""
        limits = _bounds(bound)
        if not limits:
            return self._python(operator, bound)
        low, high = limits
        if operator in (">", ">="):
            wide, sure, values = f"{self.x} >= ?", f"{self.x} > ?", [low, high]
            wide += "" if isinstance(bound, str) else f" AND {self.x} < ''"
        else:
            wide, sure, values = f"{self.x} <= ?", f"{self.x} < ?", [high, low]
            wide += f" AND {self.x} >= ''" if isinstance(bound, str) else ""
        edge, others = self._edge(operator, bound, exact=_is_exact(bound))
        if self.plain and not isinstance(bound, str):  # which is x, if that is a number
            judged: Sql = (
                f"CASE WHEN {self.plain} {operator[0]} ? THEN 1 ELSE {edge} END",
                values[1:] + others,
            )
            integer = ("1", []) if _is_exact(bound) and operator in ("<=", ">=") else judged
            kinds = f"WHEN 'integer' THEN {integer[0]} WHEN 'real' THEN {judged[0]} ELSE 0"
            text = f"({self.plain} {operator[0]}= ? AND CASE {self.kind} {kinds} END)"
            return text, values[:1] + integer[1] + judged[1]
        first = self._first([(f"{operator[0]}= ?", values[:1])])
        return f"({first[0]}{wide} AND (({sure}) IS TRUE OR {edge}))", first[1] + values + others

    def _edge(self, operator: str, value: Any, *, exact: bool) -> Sql:
        """Whether a row holds that has the value, or one that SQLite may have taken for it.

        exact : nothing but a float can be taken for it
        """
        python, values = self._python(operator, value)
        equal = int(operator not in ("<", ">"))
        kinds = f"WHEN 'integer' THEN {equal} WHEN 'text' THEN {equal} " if exact else ""
        same = f"{self.raw} = " + (f"json_quote({self.x})" if exact else "?")
        other = f"CASE WHEN {same} THEN {equal} ELSE {python} END"
        text = f"CASE typeof({self.x}) WHEN 'null' THEN 0 {kinds}ELSE {other} END"
        return text, values if exact else [json.dumps(value), *values]

    def _starts(self, starts: list[str]) -> Sql:
        # after U+D7FF stand halves of surrogate pairs, which SQLite does not take as values
        before = chr(SURROGATES.start - 1)
        odd = [
            each for each in starts
            if _ODD_TEXT.search(each) or each.rstrip(LAST_CHARACTER).endswith(before)
        ]  # fmt: skip
        if odd or len(starts) > MOST_RANGES:
            return self._python("startswith", starts)
        return _joined([self._between(each, end_of_prefix(each)) for each in starts], "or")

    def _between(self, start: str, end: str) -> Sql:
        upper = f" AND {self.x} < ?" if end else ""
        values = [start, end] if end else [start]
        first = self._first([(">= ?", [start])])
        return f"({first[0]}{self.x} >= ?{upper} AND {self.x} IS NOT NULL)", first[1] + values

    def _contains(self, wanted: list[Any]) -> Sql:
        """Texts with a part, lists with a member."""
        texts = [each for each in wanted if isinstance(each, str)]
        python = self._python("contains", wanted)
        if any(map(_ODD_TEXT.search, texts)):
            return python
        listed = json.dumps(texts, ensure_ascii=False)
        part, values = f"EXISTS (SELECT 1 FROM json_each(?) WHERE instr({self.x}, value))", [listed]
        if len(texts) == 1:
            part, values = f"instr({self.x}, ?) > 0", texts
        # as CASE and not as AND, both sides of which SQLite may evaluate
        in_text = f"CASE WHEN {part} THEN 1 WHEN NOT instr({self.x}, char(0)) THEN 0 ELSE {python[0]} END"
        in_list = python
        if len(texts) == len(wanted):
            known = "type = 'text' AND value IN (SELECT value FROM json_each(?))"
            member = f"EXISTS (SELECT 1 FROM json_each({self.column}, {self.path}) WHERE {known})"
            whole = f"WHEN NOT instr({self.raw}, {_NUL}) THEN 1 ELSE {python[0]}"
            in_list = f"CASE WHEN NOT {member} THEN 0 {whole} END", [listed, *python[1]]
        text = f"(CASE {self.kind} WHEN 'text' THEN {in_text} WHEN 'array' THEN {in_list[0]} ELSE 0 END)"
        return text, values + python[1] + in_list[1]


def _is_exact(value: Any) -> bool:
    """Whether SQLite reads this number or text as what it is, and takes nothing but floats for it."""
    if isinstance(value, str):
        return not _ODD_TEXT.search(value)
    return isinstance(value, int | float) and abs(value) <= EXACT and int(value) == value


def _bounds(value: Any) -> tuple[Any, ...]:
    """What SQLite takes for this number or text lies between these two; nothing if that is not known."""
    if _is_exact(value):
        exact = int(value) if isinstance(value, float) else value
        return exact, exact
    if isinstance(value, str) or not isinstance(value, int | float) or abs(value) > LARGEST:
        return ()
    slack = abs(float(value)) * SLACK + LEAST
    return float(value) - slack, float(value) + slack


# ---- What Python decides for SQLite


class _Called(str):
    """The name by which SQLite calls a function of the user's: once no statement has it, nobody does."""

    function: Callable[[Row], Any]
    known: ClassVar[WeakValueDictionary[str, _Called]] = WeakValueDictionary()
    _numbers = itertools.count()

    @classmethod
    def of(cls, function: Callable[[Row], Any]) -> _Called:
        """A new name."""
        name = cls(f"function {next(cls._numbers)}")
        name.function = function
        cls.known[str(name)] = name
        return name


_RAISED = threading.local()


def register(connection: sqlite3.Connection) -> None:
    """Give a connection auxbit_holds(metadata, conditions), which `Where.sql` uses."""
    connection.create_function("auxbit_holds", 2, judge, deterministic=True)


@contextmanager
def errors_of_functions() -> Iterator[None]:
    """Around statements: raise what a user's function raised, of which SQLite only says that it did."""
    _RAISED.error = None
    try:
        yield
    except sqlite3.OperationalError:
        if _RAISED.error is None:
            raise
        raise _RAISED.error from None
    finally:
        _RAISED.error = None


def judge(metadata: str | None, wanted: str) -> bool:
    """Whether metadata fulfil conditions, given as JSON, or a function, given by its name."""
    try:
        row = json.loads(metadata) if metadata else {}
        called = _Called.known.get(wanted)
        return _unpacked(wanted).holds(row) if called is None else bool(called.function(row))
    except Exception as error:
        _RAISED.error = error
        raise


def _packed(node: Node) -> list[Any]:
    if isinstance(node, Condition):
        return [node.field, node.operator, node.value]
    return [node.word, [_packed(part) for part in node.parts]]


@lru_cache(maxsize=64)
def _unpacked(text: str) -> Node:
    def tree(packed: list[Any]) -> Node:
        if len(packed) == 3:
            return Condition(*packed)
        return Group(packed[0], tuple(tree(part) for part in packed[1]))

    return tree(json.loads(text))


def warn_of_unknown(fields: Iterable[str], known: list[str]) -> None:
    """Say that no item has a field: what is then found is seldom what was meant."""
    for field in sorted(fields):
        if field not in known and field.partition(".")[0] not in known:
            there = f" Fields are {', '.join(known[:20])}." if known else " No item has metadata."
            warn(f"no item has the field {field!r}.{nearest(field, known)}{there}")
