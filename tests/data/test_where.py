from __future__ import annotations

import json
import random
import re
import sqlite3
import struct
from datetime import date
from operator import ge, gt, le, lt
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from auxbit.data.where import (
    MOST_LEVELS,
    MOST_TERMS,
    OPERATORS,
    Condition,
    Group,
    Where,
    errors_of_functions,
    register,
    scalar_sql,
)
from auxbit.errors import InvalidInput, InvalidParameter

EVERY = [
    *[None, True, False, 0, 1, 1.0, -1, 2.5, "", "a", "ab", "abc", "b", "é", "1", "true", "😀", "a😀", "a,b"],
    *[2**53, 2**53 + 1, float(2**53), 2**63, -(2**63) - 1, 10**23, 1e23, 10**400, -0.0, 5e-324, 1.7e308],
    *[0.1, 0.1 + 2**-56, 3 * 2.0**-1074, 1.7976931348623157e308, 1 + 2**-52, 4.35, 1e16, 1.234567890123e17],
    *["x\ny", "a\0", "a\0b", "\0", "\ud800", "a\ud800", "\ud7ff", "\ud7ffb", "\ue000", "\U0010ffff", "\x7f"],
    *["a\U0010ffff", "a\U0010ffffb", 'a"b', "a\\b", "\\u0000", "'", "null", " and b=1", "(a", "a)", "it?"],
]  # fmt: skip
SCALARS = st.sampled_from(EVERY)
TEXTS = st.sampled_from([each for each in EVERY if isinstance(each, str)])
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2)
)
NAMES = ["a", "b", "a.b", "é", "x'y", 'x"y', "x\\y", "x\ny", "", "a.", "\ud800", "not", "and"]
NAMES += ["a b", "a(b)", "?"]
FIELDS = st.one_of(st.sampled_from(["a", "b", "a.b"]), st.sampled_from(NAMES))
ROWS = st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), max_size=12)
ORDERS = ("<", "<=", ">", ">=")


@st.composite
def conditions(draw, values=VALUES, scalars=SCALARS):
    operator = draw(st.sampled_from(OPERATORS))
    if operator == "exists":
        value = draw(st.booleans())
    elif operator in ORDERS:
        value = draw(scalars.filter(lambda each: each is not None and not isinstance(each, bool)))
    elif operator == "startswith":
        value = draw(st.lists(TEXTS, max_size=2))
    elif operator in ("in", "not in", "contains"):
        value = draw(st.lists(values, max_size=3))
    else:
        value = draw(values)
    return draw(FIELDS), operator, value


def trees(leaves):
    """("and", …), ("or", …) and ("not", one) of leaves."""

    def above(parts):
        several = st.lists(parts, min_size=1, max_size=3)
        return st.one_of(
            st.tuples(st.sampled_from(["and", "or"]), several), st.tuples(st.just("not"), st.tuples(parts))
        )

    return st.recursive(leaves, above, max_leaves=6)


def node_of(tree):
    if len(tree) == 3:
        return Condition(*tree)
    return Group(tree[0], tuple(node_of(part) for part in tree[1]))


# ---- the slow truth


def same(one, other):
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def slow_lookup(row, field):
    if field in row:
        return True, row[field]
    if field == "a.b" and isinstance(row.get("a"), dict) and "b" in row["a"]:
        return True, row["a"]["b"]
    if field == "a." and isinstance(row.get("a"), dict) and "" in row["a"]:
        return True, row["a"][""]
    return False, None


def holds(row, field, operator, value):
    there, own = slow_lookup(row, field)
    if operator == "exists":
        return there == value
    if operator in ("!=", "not in"):
        return not holds(row, field, {"!=": "==", "not in": "in"}[operator], value)
    if operator == "==":
        return there and same(own, value)
    if operator == "in":
        return there and any(same(own, each) for each in value)
    if operator == "contains":
        parts = own if isinstance(own, list) else []
        text = [each for each in value if isinstance(own, str) and isinstance(each, str) and each in own]
        return bool(text) or any(same(each, part) for each in value for part in parts)
    if operator == "startswith":
        return isinstance(own, str) and any(own.startswith(each) for each in value)
    comparable = (isinstance(own, str) and isinstance(value, str)) or (is_number(own) and is_number(value))
    compare = {"<": lt, "<=": le, ">": gt, ">=": ge}[operator]
    return there and comparable and compare(own, value)


def tree_holds(row, tree):
    if len(tree) == 3:
        return holds(row, *tree)
    if tree[0] == "not":
        return not tree_holds(row, tree[1][0])
    return (all if tree[0] == "and" else any)(tree_holds(row, part) for part in tree[1])


# ---- SQLite


def as_text(row):
    """JSON as metadata are kept: only halves of surrogate pairs, which have no UTF-8, are escaped."""
    if row is None:
        return None
    text = json.dumps(row, ensure_ascii=False, default=str)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


class Database(sqlite3.Connection):
    """Closed with its last reference, in any thread: Python 3.13 warns of what is left open."""

    def __init__(self):
        super().__init__(":memory:", check_same_thread=False)

    __del__ = sqlite3.Connection.close


def database(texts, indexed=()):
    connection = Database()
    register(connection)
    connection.execute("CREATE TABLE items (number INTEGER PRIMARY KEY, id, metadata TEXT)")
    for number, field in enumerate(indexed):
        connection.execute(f"CREATE INDEX by_{number} ON items ({scalar_sql(field)})")
    connection.executemany("INSERT INTO items VALUES (?, NULL, ?)", enumerate(texts))
    return connection


def select(connection, where, indexed=None):
    """Which rows the SQL of the conditions holds for, as a value and after WHERE."""
    expression, values = Where.of(where).sql(indexed=indexed)
    judged = connection.execute(f"SELECT {expression} FROM items ORDER BY number", values).fetchall()
    assert {value for (value,) in judged} <= {0, 1}
    for condition, truth in ((expression, 1), (f"NOT {expression}", 0)):
        found = connection.execute(f"SELECT number FROM items WHERE {condition} ORDER BY number", values)
        assert found.fetchall() == [(number,) for number, value in enumerate(judged) if value == (truth,)]
    return [bool(value) for (value,) in judged]


def mask_of(where, rows):
    """Which rows fulfil it, by SQL with and without indexes, and by plain Python."""
    texts, where = [as_text(row) for row in rows], Where.of(where)
    found = [select(database(texts, indexed), where) for indexed in ((), ("a", "b", "a.b"))]
    found.append(select(database(texts), where, indexed=()))
    stored = [{} if text is None else json.loads(text) for text in texts]
    assert found[0] == found[1] == found[2] == [where.matches(row) for row in stored]
    return found[0]


@given(rows=ROWS, wanted=conditions())
def test_one_condition_is_what_plain_python_says_of_each_row(rows, wanted):
    field, operator, value = wanted
    truth = [holds(row, *wanted) for row in rows]
    assert mask_of(Where([Condition(*wanted)]), rows) == truth
    if field not in ("and", "not"):  # which may be connectives in a dict
        assert mask_of({field: {operator: value}}, rows) == truth


@given(rows=ROWS, tree=trees(conditions()))
def test_a_tree_of_conditions_is_what_plain_python_says_of_each_row(rows, tree):
    where, truth = Where([node_of(tree)]), [tree_holds(row, tree) for row in rows]
    assert mask_of(where, rows) == truth
    assert mask_of(where.opposite, rows) == [not holds for holds in truth]


@pytest.mark.parametrize("operator", [*ORDERS, "startswith", "contains", "==", "!=", "in"])
def test_every_value_is_compared_with_every_other_as_plain_python_does(operator):
    rows = [{"a": value} for value in EVERY] + [{"a": [value]} for value in EVERY] + [{}, None]
    for value in EVERY:
        fits = isinstance(value, str) or (is_number(value) and operator != "startswith")
        if fits or operator in ("contains", "==", "!=", "in"):
            wanted = [value] if operator in ("contains", "startswith", "in") else value
            truth = [holds(row or {}, "a", operator, wanted) for row in rows]
            assert mask_of({"a": {operator: wanted}}, rows) == truth


@given(
    numbers=st.lists(st.floats(-1e308, 1e308) | st.floats(-9, 9) | st.integers(), min_size=1, max_size=4),
    data=st.data(),
)
@example(numbers=[0.1, 5e-324, 2.2250738585072014e-308], data=None)
def test_numbers_are_compared_exactly_however_they_are_written(numbers, data):
    """SQLite reads some floats wrong in the last place: neighbours must not be taken for each other."""
    numbers = numbers + [each for x in numbers if isinstance(x, float) for each in neighbours(x)]
    texts = [f'{{"a":{form}}}' for x in numbers for form in writings(x)]
    connections = [database(texts), database(texts, ["a"])]
    rows = [json.loads(text) for text in texts]
    for bound in numbers if data is None else [data.draw(st.sampled_from(numbers))]:
        for operator in (*ORDERS, "==", "!="):
            truth = [holds(row, "a", operator, bound) for row in rows]
            for connection in connections:
                for indexed in (None, ()):
                    assert select(connection, {"a": {operator: bound}}, indexed) == truth


def neighbours(x):
    found = [float(np.nextafter(x, np.inf)), float(np.nextafter(x, -np.inf))]
    return [each for each in found if np.isfinite(each)]


def writings(x):
    """The number as JSON, by our writer and by others."""
    return {json.dumps(x), f"{x:.17e}", f"{x:.40g}"} if isinstance(x, float) else {json.dumps(x)}


def test_random_floats_of_any_size_are_found_among_their_neighbours():
    rng = random.Random(0)
    drawn = [struct.unpack("d", rng.randbytes(8))[0] for _ in range(300)]
    floats = [x for x in drawn if np.isfinite(x)] + [round(rng.random() * 1000, 3) for _ in range(300)]
    rows = [{"a": each} for x in floats for each in (x, *neighbours(x))]
    connection = database([as_text(row) for row in rows], ["a"])
    for x in floats[::7]:
        assert select(connection, {"a": x}) == [row["a"] == x for row in rows]
        assert select(connection, {"a": {"<": x}}) == [row["a"] < x for row in rows]
    assert select(connection, {"a": floats[:50]}) == [row["a"] in floats[:50] for row in rows]
    assert select(connection, {"a": floats}) == [row["a"] in floats for row in rows]


@given(rows=ROWS, wanted=st.lists(conditions(), max_size=3))
def test_several_conditions_are_joined_by_and(rows, wanted):
    truth = [all(holds(row, *each) for each in wanted) for row in rows]
    assert mask_of(Where(Condition(*each) for each in wanted), rows) == truth


@given(
    rows=ROWS,
    where=st.dictionaries(
        st.sampled_from(["a", "b", "a.b", "é"]),
        st.one_of(SCALARS, st.lists(VALUES, max_size=3)), max_size=2,
    ),
)  # fmt: skip
def test_a_bare_value_is_equality_and_a_list_is_any_of(rows, where):
    truth = [
        all(
            holds(row, field, "in", value if isinstance(value, list) else [value])
            for field, value in where.items()
        )
        for row in rows
    ]
    assert mask_of(where, rows) == truth


@given(rows=ROWS)
def test_a_function_sees_whole_rows(rows):
    assert mask_of(lambda row: len(row) % 2 == 0, rows) == [len(row) % 2 == 0 for row in rows]
    assert mask_of(lambda row: row.get("a"), rows) == [bool(row.get("a")) for row in rows]


def test_what_a_function_raises_is_raised_and_not_what_sqlite_makes_of_it():
    where = Where.of(lambda row: row["a"] > 1)
    assert mask_of(where, [{"a": 1}, {"a": 2}]) == [False, True]
    with pytest.raises(KeyError, match="a"), errors_of_functions():
        select(database(["{}"]), where)
    with pytest.raises(sqlite3.OperationalError, match="no such table"), errors_of_functions():
        database([]).execute("SELECT * FROM elsewhere")


def test_a_function_is_called_as_long_as_the_values_of_its_sql_are_kept():
    expression, values = Where.of(lambda row: len(row) == 1).sql()
    connection = database(["{}", '{"a":1}'])
    assert connection.execute(f"SELECT number FROM items WHERE {expression}", values).fetchall() == [(1,)]
    (name,) = map(str, values)
    del values
    with pytest.raises(sqlite3.OperationalError, match="raised exception"):
        connection.execute(f"SELECT number FROM items WHERE {expression}", [name]).fetchall()


# ---- indexes, and what is too much for SQLite


@pytest.fixture(scope="module")
def many():
    """100,000 rows with indexes on three fields, and a plain table of the same values."""
    rng = random.Random(0)
    texts = [
        json.dumps({"year": rng.randrange(1900, 2020), "name": f"{rng.randrange(10**6):06}", "x": {"y": i}})
        for i in range(100_000)
    ]
    return database(texts, ["year", "name", "x.y"])


@pytest.mark.parametrize(
    "where",
    [
        "year=2000", "year=2000,2001", "year<1902", "year<=1901", "year>2018", "year>=2018.5", "year=2000.5",
        "name=000123", "name^=00012", 'name<"0001"', 'name>"9999"', "x.y=77", "x.y=77,78", "x.y>=99990",
        "year=2000 and name^=0001", "year=2000 or name=000123", "year=2000 or name^=0001 or x.y<3",
        "(year<1901 or year>2018) and name?", "name^=00012,00013",
    ],
)  # fmt: skip
def test_comparisons_use_an_index_on_the_field(many, where):
    expression, values = Where.of(where).sql()
    plan = many.execute(f"EXPLAIN QUERY PLAN SELECT number FROM items WHERE {expression}", values).fetchall()
    steps = [step for *_, step in plan if "items" in step]
    assert steps
    assert all(re.search("USING (COVERING )?INDEX by_", step) for step in steps), plan
    unlike = Where.of(f"not ({where})").opposite.sql()  # that a collection asks for what does not match
    again = many.execute(f"EXPLAIN QUERY PLAN SELECT number FROM items WHERE {unlike[0]}", unlike[1])
    assert again.fetchall() == plan


@pytest.mark.parametrize(
    "where",
    [
        "year=2000", "year!=2000,x", "year>=2000 or year<5", "score=0.5,0.25", "score!=0.5", "score<0.3",
        "name~a", "name~a,b", "tag~x", "not tag~x,y", "name^=a", "a.b=1", "not a.b>=1", "a.b?", "flag=true",
    ],
)  # fmt: skip
def test_python_is_not_asked_about_rows_that_sqlite_reads_well(where):
    rows = [
        {"year": 2000 + i % 3, "score": [0.5, 0.25, 0.123456789, i][i % 4], "name": "abcé"[i % 4] * 2,
         "tag": ["x", "z"][: i % 3], "a": {"b": i % 2}, "flag": bool(i % 2)}
        for i in range(12)
    ]  # fmt: skip
    connection = database([as_text(row) for row in rows], ["year", "score"])
    connection.create_function("auxbit_holds", 2, lambda *given: pytest.fail(f"{given}"), deterministic=True)
    expression, values = Where.of(where).sql()
    for condition, truth in ((expression, True), (f"NOT {expression}", False)):
        found = connection.execute(f"SELECT number FROM items WHERE {condition} ORDER BY number", values)
        expected = [(i,) for i, row in enumerate(rows) if Where.of(where).matches(row) == truth]
        assert found.fetchall() == expected


def test_a_list_may_be_long_and_many_conditions_too():
    rows = [{"a": i, "b": f"t{i}"} for i in range(50)]
    long = list(range(25, 100_000))
    assert mask_of({"a": long}, rows) == [i >= 25 for i in range(50)]
    assert mask_of({"b": [f"t{i}" for i in long]}, rows) == [i >= 25 for i in range(50)]
    assert mask_of({"a": [i + 0.5 for i in long] + [1]}, rows) == [i == 1 for i in range(50)]
    assert mask_of({"b": {"startswith": [f"t{i}" for i in range(5, 3000)]}}, rows) == [
        any(f"t{i}".startswith(f"t{k}") for k in range(5, 50)) for i in range(50)
    ]
    for count in (100, 101, 1100):  # which would be too deep, but not too long
        assert mask_of({"a": [i + 0.5 for i in range(count)]}, [{"a": 3.5}, {"a": 3}]) == [True, False]
    for count in (MOST_TERMS, MOST_TERMS + 1, 2000):
        assert mask_of({"or": [{"a": 25 + i} for i in range(count)]}, rows) == [i >= 25 for i in range(50)]
        assert mask_of([f"a!={25 + i}" for i in range(count)], rows) == [i < 25 for i in range(50)]


@pytest.mark.parametrize("levels", [2, MOST_LEVELS - 1, MOST_LEVELS, MOST_LEVELS + 1, 64])
def test_trees_may_be_deep(levels):
    tree = ("a.b", "<=", 0.5)
    for level in range(levels):
        joint = ("and", [("b", ">", level), tree]) if level % 3 else ("or", [tree, ("b", "<", "x")])
        tree = joint if level % 2 else ("not", [tree])
    rows = [{"a": {"b": x}, "b": y} for x in (0.4, 0.5, 0.6) for y in (-1, 5, 500, "a", "z")]
    assert mask_of(Where([node_of(tree)]), rows) == [tree_holds(row, tree) for row in rows]


def test_trees_that_are_too_deep_are_refused():
    for where in ("not " * 70 + "a=1", "(" * 5000 + "a=1" + ")" * 5000, nested(70), nested(3000)):
        with pytest.raises(InvalidParameter, match="at most 64 levels of and, or and not"):
            Where.of(where)
    assert mask_of("(" * 70 + "a=1" + ")" * 70, [{"a": 1}, {}]) == [True, False]


def nested(levels):
    where = {"a": 1}
    for _ in range(levels):
        where = {"not": where}
    return where


def test_the_scalar_of_a_field_is_a_fixed_expression():
    assert scalar_sql("a'b") == (
        """CASE json_type(metadata, '$."a''b"') WHEN 'text' THEN """
        """CASE WHEN instr(metadata, '\\u0000') """
        """AND instr(replace(metadata -> '$."a''b"', '\\\\', ''), '\\u0000') """
        """THEN (metadata ->> '$."a''b"') || char(0) ELSE metadata ->> '$."a''b"' END """
        """WHEN 'integer' THEN metadata ->> '$."a''b"' WHEN 'real' THEN metadata ->> '$."a''b"' END"""
    )
    assert scalar_sql("a.b", "items.metadata").count("?") == 0
    for field in ("", "a.", 'a"', "a\\", "a\n", "\ud800"):
        with pytest.raises(InvalidInput, match="cannot be indexed"):
            scalar_sql(field)


def test_the_column_may_have_another_name():
    connection = Database()
    register(connection)
    for text, truth in (('{"a":1}', [1, 0, 1]), (None, [0, 1, 0]), ('{"a":[1]}', [0, 1, 1])):
        for where, expected in zip(("a=1", "not a=1", {"a": {"in": [1, [1]]}}), truth):
            expression, values = Where.of(where).sql("t.m")
            found = connection.execute(f"SELECT {expression} FROM (SELECT ? AS m) AS t", [*values, text])
            assert found.fetchone() == (expected,)


# ---- what is decided, by example


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"==": 1}, "1 1.0"),
        ({"==": True}, "true"),
        ({"==": None}, "null"),
        ({"!=": 1}, "missing null true text list"),
        ({"not in": [1, "1"]}, "missing null true list"),
        ({"exists": True}, "null true 1 1.0 text list"),
        ({"exists": False}, "missing"),
        ({"<": 2}, "1 1.0"),
        ({">=": "0"}, "text"),
        ({"contains": 1}, "list"),
        ({"contains": "1"}, "text"),
        ({"contains": True}, ""),
        ({"startswith": "1"}, "text"),
        ({">": 0, "<=": 1}, "1 1.0"),
        ({">": "0", "<=": 1}, ""),
    ],
)
def test_types_are_never_mixed_and_missing_fields_only_are_what_is_not_there(condition, rows):
    kinds = ["missing", "null", "true", "1", "1.0", "text", "list"]
    values = [{}, {"x": None}, {"x": True}, {"x": 1}, {"x": 1.0}, {"x": "1"}, {"x": [1]}]
    found = [kind for kind, fits in zip(kinds, mask_of({"x": condition}, values)) if fits]
    assert found == rows.split()


def test_values_are_converted_as_metadata_are():
    rows = [{"day": date(2020, 1, 1), "n": 3, "path": "a/b"}, {"day": date(2021, 1, 1), "n": 4, "path": "c"}]
    assert mask_of({"day": {"<": date(2020, 6, 1)}}, rows) == [True, False]
    assert mask_of({"n": np.int32(4)}, rows) == [False, True]
    assert mask_of({"n": np.array([3, 5])}, rows) == [True, False]
    assert mask_of({"n": {3, 5}}, rows) == [True, False]
    assert mask_of({"n": range(4, 9)}, rows) == [False, True]
    assert mask_of({"path": PurePosixPath("a/b")}, rows) == [True, False]


def test_a_list_inside_of_a_list_is_not_its_text():
    rows = [{"a": [["x"], {"b": 1}]}, {"a": ['["x"]']}, {"a": '["x"]{"b":1}'}]
    assert mask_of({"a": {"contains": '["x"]'}}, rows) == [False, True, True]
    assert mask_of({"a": {"contains": ['{"b":1}', "1"]}}, rows) == [False, False, True]
    assert mask_of({"a": {"contains": [["x"]]}}, rows) == [True, False, False]


def test_and_or_and_not_are_fields_if_their_values_are_no_conditions():
    rows = [{"or": 1, "not": 1}, {"or": 2, "not": [2]}, {"and": True}]
    assert mask_of({"or": [1, 3]}, rows) == mask_of({"not": 1}, rows) == [True, False, False]
    assert mask_of({"or": {">=": 2}}, rows) == mask_of({"not": [[2]]}, rows) == [False, True, False]
    assert mask_of({"and": True}, rows) == mask_of({"or": [{"and": True}]}, rows) == [False, False, True]
    assert mask_of({"not": {"==": 1}}, rows) == [True, False, False]
    assert mask_of({"not": {"not": {"==": 1}}}, rows) == [False, True, True]
    assert mask_of({"not": {}}, rows) == [False] * 3  # every row


def test_a_literal_name_goes_before_the_dots_row_by_row():
    rows = [{"a.b": 1, "a": {"b": 2}}, {"a": {"b": 2}}, {"a": [2]}, {"a": {"b": {"c": 2}}}]
    assert mask_of({"a.b": 1}, rows) == [True, False, False, False]
    assert mask_of({"a.b": 2}, rows) == [False, True, False, False]
    assert mask_of({"a.b": {"==": {"c": 2.0}}}, rows) == [False, False, False, True]


# ---- text


@pytest.mark.parametrize(
    ("text", "field", "operator", "value"),
    [
        ("label=cat", "label", "==", "cat"),
        (" label = big cat ", "label", "==", "big cat"),
        ("label==cat", "label", "==", "cat"),
        ("label!=dog", "label", "!=", "dog"),
        ("label=cat,dog", "label", "in", ["cat", "dog"]),
        ("label=cat, 1 ,null", "label", "in", ["cat", 1, None]),
        ("label!=cat,dog", "label", "not in", ["cat", "dog"]),
        ('label="a,b"', "label", "==", "a,b"),
        ('label="a,b",c', "label", "in", ["a,b", "c"]),
        ('label="7"', "label", "==", "7"),
        ("label=", "label", "==", ""),
        ("label=007", "label", "==", "007"),
        ("label=NaN", "label", "==", "NaN"),
        ("label=nullable", "label", "==", "nullable"),
        ("label=what?", "label", "==", "what?"),
        ("label=é😀", "label", "==", "é😀"),
        ("year>=2000", "year", ">=", 2000),
        ("year > -1.5e3", "year", ">", -1500.0),
        ("year<2000", "year", "<", 2000),
        ("year<=2000", "year", "<=", 2000),
        ("day>=2020-01-01", "day", ">=", "2020-01-01"),
        ('day>="2020"', "day", ">=", "2020"),
        ("name<b,c", "name", "<", "b,c"),
        ("tag~substr", "tag", "contains", ["substr"]),
        ("tag~a,b", "tag", "contains", ["a", "b"]),
        ("name~2023", "name", "contains", [2023, "2023"]),
        ('tag~["a", 1]', "tag", "contains", ["a", 1]),
        ("name^=IMG_", "name", "startswith", ["IMG_"]),
        ("name^=100,a", "name", "startswith", ["100", "a"]),
        ("flag=true", "flag", "==", True),
        ("x=null", "x", "==", None),
        ("x=[1,2]", "x", "in", [1, 2]),
        ("x!=[1,2]", "x", "not in", [1, 2]),
        ("x==[1,2]", "x", "==", [1, 2]),
        ("x=[1,2],[3]", "x", "in", [[1, 2], [3]]),
        ('x={"a": 1, "b": 2}', "x", "==", {"a": 1, "b": 2}),
        ("label?", "label", "exists", True),
        (" ! label ", "label", "exists", False),
        ('"a=b"=c', "a=b", "==", "c"),
        ('"a=b"?', "a=b", "exists", True),
        ('!"!"', "!", "exists", False),
        ("x^2=4", "x^2", "==", 4),
        ("camera.model=X", "camera.model", "==", "X"),
    ],
)
def test_conditions_are_read_from_text(text, field, operator, value):
    condition = Where.of([text]).tree
    assert (condition.field, condition.operator) == (field, operator)
    assert repr(condition.value) == repr(value)  # so that 1 is not True
    assert Where.of(text).tree == Where.of(f" ( {text} ) ").tree == condition


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "label",
            "=cat",
            "=a=b",
            "^=a",
            "!label=cat",
            "!!label",
            "!label?",
            "?",
            "!",
            "year>=",
            "name~",
        ],
        *[
            "name^=",
            'label="abc',
            'label="a"b',
            'label=a,"b',
            "label=a,",
            "label=,a",
            '"x',
            '"a\\q"=1',
            'x<"a',
            '""x=1',
        ],
    ],
)
def test_malformed_text_is_answered_with_the_known_forms(text):
    with pytest.raises(
        InvalidParameter, match=r"where=.* is invalid: expected a field, an operator.*year>=2000"
    ):
        Where.of([text])


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"a": {"=": 1}}, r"expected an operator, not .*Operators are ==, !=, <, <=, >, >=, in, not in"),
        ({"a": {"x": 1}}, r'Objects are compared by \{"==": \{\.\.\.\}\}'),
        ({"a": {}}, "expected at least one operator"),
        ({1: 2}, "where=1 is invalid: expected fields as text"),
        ({"a": {"in": 3}}, r"where=\{'a': \{'in': 3\}\} is invalid: expected a list after 'in'"),
        ({"a": {"not in": "abc"}}, "expected a list after 'not in'"),
        ({"a": {"exists": 1}}, "expected True or False after 'exists'"),
        ({"a": {"startswith": 1}}, "expected text after 'startswith'"),
        ({"a": {"<": None}}, "expected a number or text after '<'"),
        ({"a": {">=": True}}, "expected a number or text after '>='"),
        ({"a": {">": [1]}}, "expected a number or text after '>'"),
        ({"a": float("nan")}, "nan is not JSON"),
        ({"a": {"in": [b"x"]}}, "b'x' is not JSON"),
        (["x>null"], "expected a number or text after '>'"),
        (["x=1e999"], "inf is not JSON"),
        ([3], "where=3 is invalid: expected conditions as text. Known forms: label=cat"),
        (5, "expected a dict, conditions as text, or a function of a row"),
        (None, "expected a dict"),
        ({"or": []}, r'a list of dicts, at least one. A field of this name is compared by \{"or": \{"in"'),
        ({"and": [{"a": 1}, "b=1"]}, "a list of dicts, at least one"),
        ({"or": {"a": 1, "b": 2}}, "a list of dicts, at least one"),
        ([len, "a=1"], "expected conditions as text"),
        ([Where.of(len)], r"where='len\(row\)' is invalid: expected a function, not combined with others"),
        ({"or": [{"a": {"=": 1}}]}, "expected an operator, not '='"),
        ("a=1 and b>null", "expected a number or text after '>'"),
        ("a=salt and pepper", "a field, an operator and a value at 'pepper'"),
    ],
)
def test_wrong_conditions_are_refused_with_a_remedy(where, why):
    with pytest.raises(InvalidParameter, match=why):
        Where.of(where)


def test_conditions_can_be_read_aloud():
    where = {
        "label": "é",
        "year": {">=": 2000, "<": 2010},
        "tag": ["a", 1],
        "name": {"startswith": "IMG"},
        "x": None,
    }
    assert str(Where.of(where)) == (
        'label == "é" and year >= 2000 and year < 2010 and tag in ["a", 1] '
        'and name startswith "IMG" and x == null'
    )
    assert (
        str(Where.of(["label?", "!x", "tag~a,b"]))
        == 'label exists and x is missing and tag contains ["a", "b"]'
    )
    assert str(Where.of({})) == "every row"
    assert str(Where.of(len)) == "len(row)"
    assert repr(Where.of("a=1")) == "<Where a == 1>"
    assert Where.of(Where.of(where)).tree == Where.of(where).tree
    either = {"or": [{"a": 1, "b c": 2}, {"not": {"or": [{"a": {"exists": True}}, {"b": [3]}]}}], "d": True}
    assert str(Where.of(either)) == (
        '((a == 1 and "b c" == 2) or (not (a exists or b in [3]))) and d == true'
    )
    assert Where.of(either).fields == {"a", "b", "b c", "d"}
    assert Where.of(len).fields == Where.of({}).fields == set()


def test_no_condition_holds_for_every_row():
    assert mask_of({}, [{}, {"a": 1}]) == mask_of([], [{}, {"a": 1}]) == [True, True]
    assert mask_of({"a": 1}, []) == []
    assert mask_of({"a": []}, [{}, {"a": 1}]) == [False, False]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a=1 and b=2", {"a": 1, "b": 2}),
        ("a=1 AND b=2 OR NOT c=3", {"or": [{"a": 1, "b": 2}, {"not": {"c": 3}}]}),
        ("a=1 or b=2 and c=3", {"or": [{"a": 1}, {"b": 2, "c": 3}]}),
        ("(a=1 or b=2) and c=3", {"and": [{"or": [{"a": 1}, {"b": 2}]}, {"c": 3}]}),
        ("(a=1)and(b=2)or(c=3)", {"or": [{"a": 1, "b": 2}, {"c": 3}]}),
        ("not(a=1 or b=2)", {"not": {"or": [{"a": 1}, {"b": 2}]}}),
        ("not not a=1", {"not": {"not": {"a": 1}}}),
        ("not a? and !b", {"and": [{"not": {"a": {"exists": True}}}, {"b": {"exists": False}}]}),
        ("lang=de,year>=2010", {"lang": "de", "year": {">=": 2010}}),
        ("lang=de,en,year>=2010,x~y", {"lang": ["de", "en"], "year": {">=": 2010}, "x": {"contains": ["y"]}}),
        ("lang=de,year>=2010 or a=1", {"or": [{"lang": "de", "year": {">=": 2010}}, {"a": 1}]}),
        ("lang=de , year >= 2010", {"lang": "de", "year": {">=": 2010}}),
        ('lang="de","x=y"', {"lang": ["de", "x=y"]}),
        ('lang=de,"big year">=2010', {"lang": "de", "big year": {">=": 2010}}),
        ("year>=2000,year<2010", {"year": {">=": 2000, "<": 2010}}),
        ("name<b,c,year<2010", {"name": {"<": "b,c"}, "year": {"<": 2010}}),
        ("lang=de,!year", {"lang": "de", "year": {"exists": False}}),
        ("lang=de,not year=1,2", {"lang": "de", "not": {"year": [1, 2]}}),
        ("lang=de,(a=1 or b=2)", {"and": [{"lang": "de"}, {"or": [{"a": 1}, {"b": 2}]}]}),
        ("lang=de,tag in [1]", {"lang": "de", "tag": [1]}),
        ("lang=de,born in Rome", {"lang": ["de", "born in Rome"]}),
        ("lang?,year=1", {"lang": {"exists": True}, "year": 1}),
        ('tag in ["a, b", 1] and x not in []', {"tag": ["a, b", 1], "x": {"not in": []}}),
        ('tag contains "a" or name startswith ["b"]', {"or": [{"tag": {"contains": "a"}},
                                                               {"name": {"startswith": "b"}}]}),
        ("a exists and b is missing", {"a": {"exists": True}, "b": {"exists": False}}),
        ("logged in=true", {"logged in": True}),
        ("logged in = true", {"logged in": True}),
        ("size (mm)=3 and b=(c) d", {"size (mm)": 3, "b": "(c) d"}),
        ("not=1", {"not": 1}),
        ("not = 1 and and=2", {"not": 1, "and": 2}),
        ("label=Black And White", {"label": "Black And White"}),
        ("label=andy,orwell,not", {"label": ["andy", "orwell", "not"]}),
        ("label=not a cat", {"label": "not a cat"}),
        ("a=1\nand\tb=1\n", {"a": 1, "b": 1}),
    ],
)  # fmt: skip
def test_text_means_the_dict(text, where):
    assert Where.of(text).tree == Where.of(where).tree
    assert Where.of([text]).tree == Where.of(where).tree
    assert Where.of(str(Where.of(text))).tree == Where.of(where).tree


@pytest.mark.parametrize(
    "text",
    [
        "a=1 and", "and a=1", "and a?", "a=1 or or b=2", "(a=1", "a=1)", "a=:)", "a=:(", "()", "not", "not ",
        "a=salt and pepper", "a=rock or roll", "a=x (b and c)", "a=1 and and", "a,b=3", "label and year>3",
        "a=x,,b", "a=de,year?", "a=de,b exists", "x in cat", "x in", "x contains", "a= and b=1",
        'a="x" y=1', "a=cat,not a dog", "a=cat,(big)", "(a=1) b=2", "a=1 and (b=2", "x is missing y", "a=1,",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_as_a_whole(text):
    with pytest.raises(InvalidParameter, match=r"Known forms: label=cat.*joined by and, or, not"):
        Where.of(text)


@given(tree=trees(conditions(SCALARS | st.dictionaries(TEXTS, SCALARS, max_size=2))))
def test_what_is_written_is_read_again(tree):
    where = Where([node_of(tree)])
    again = Where.of(str(where))
    assert again.fields == where.fields
    assert repr(Where.of(str(again)).tree) == repr(again.tree)
    if len(tree) == 3:
        assert repr(again.tree) == repr(where.tree)


@given(tree=trees(conditions()), rows=ROWS)
@example(tree=("a", "!=", [1, 2]), rows=[{"a": [1, 2]}, {"a": 1}, {}])
@example(tree=("a", "contains", [[1, 2]]), rows=[{"a": [[1, 2]]}, {"a": [1]}, {}])
def test_what_is_written_means_the_same_when_it_is_read_again(tree, rows):
    again = Where.of(str(Where([node_of(tree)])))
    assert [again.matches(row) for row in rows] == [tree_holds(row, tree) for row in rows]


@given(st.text(alphabet="ab=<>!~^?,()\" \\'[]1 andornti", max_size=25))
def test_any_text_is_read_or_refused_and_means_the_same_when_it_is_written(text):
    try:
        where = Where.of(text)
    except InvalidParameter:
        return
    assert repr(Where.of(str(where)).tree) == repr(where.tree)


@pytest.mark.parametrize("slip", ["a=>3", "a=<3", "a<>3", "year>2000,2010", "a>=<3"])
def test_slips_are_refused_rather_than_taken_for_text(slip):
    with pytest.raises(InvalidParameter, match="Known forms"):
        Where.of([slip])


@pytest.mark.parametrize("quoted", ['a="=>3"', 'a="1 and 2"', 'a>"x,y"'])
def test_text_that_looks_like_a_slip_may_be_quoted(quoted):
    assert isinstance(Where.of([quoted]).tree, Condition)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("year in (2001, 2002)", {"year": [2001, 2002]}),
        ("year in(2001)", {"year": [2001]}),
        ('"not" in (a, "b,c")', {"not": ["a", "b,c"]}),
        ("lang not in (de, en) and year in (1, 2)", {"lang": {"not in": ["de", "en"]}, "year": [1, 2]}),
        ("lang NOT IN ('de', 'en') AND year IN (1, 2)", {"lang": {"not in": ["de", "en"]}, "year": [1, 2]}),
        ("(a in (1, 2) or b = (x)), c in (y (z), w)", "(a = 1,2 or b = (x)) and c = y (z),w"),
    ],
)
def test_alternatives_may_stand_in_parentheses_as_in_sql(text: str, wanted: dict[str, object] | str) -> None:
    assert str(Where.of(text)) == str(Where.of(wanted))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lang='de' and year>=2000", {"lang": "de", "year": {">=": 2000}}),
        ("name = 'O''Brien, Flann'", {"name": "O'Brien, Flann"}),
        ("year='2001'", {"year": "2001"}),
        ("lang in ('de', 'en')", {"lang": ["de", "en"]}),
        ("name startswith 'O'", {"name": {"startswith": "O"}}),
        ("name=O'Brien", {"name": "O'Brien"}),
        ("name='tis", {"name": "'tis"}),
    ],
)
def test_values_may_stand_in_single_quotes_as_in_sql(text: str, wanted: dict[str, object]) -> None:
    assert str(Where.of(text)) == str(Where.of(wanted))


@pytest.mark.parametrize(
    "text", ["year in (", "year in ()", "year in (1, 2", "year in (1) 2", "year in (,1)"]
)
def test_alternatives_in_parentheses_are_whole(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"Known forms: .*label in \(cat, dog\)"):
        Where.of(text)
