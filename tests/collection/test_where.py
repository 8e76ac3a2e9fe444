from __future__ import annotations

from datetime import date
from operator import ge, gt, le, lt
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.collection import metadata
from auxbit.collection.metadata import Fields, encode_rows
from auxbit.collection.where import OPERATORS, Condition, Where
from auxbit.errors import InvalidInput, InvalidParameter

EVERY = [
    *[None, True, False, 0, 1, 1.0, -1, 2.5, "", "a", "ab", "abc", "b", "é", "1", "true", "😀", "a😀"],
    *[2**53, 2**53 + 1, float(2**53), 10**400, -0.0, 5e-324, 1.7e308],
]
SCALARS = st.sampled_from(EVERY)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2)
)
FIELDS = st.sampled_from(["a", "b", "a.b", "é"])
ROWS = st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), max_size=12)
ORDERS = ("<", "<=", ">", ">=")


@st.composite
def conditions(draw):
    operator = draw(st.sampled_from(OPERATORS))
    if operator == "exists":
        value = draw(st.booleans())
    elif operator in ORDERS:
        value = draw(SCALARS.filter(lambda each: each is not None and not isinstance(each, bool)))
    elif operator == "startswith":
        value = draw(st.lists(st.sampled_from(["", "a", "ab", "é", "c"]), max_size=2))
    elif operator in ("in", "not in", "contains"):
        value = draw(st.lists(VALUES, max_size=3))
    else:
        value = draw(VALUES)
    return draw(FIELDS), operator, value


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


def mask_of(where, rows):
    return Where.of(where).mask(Fields(*encode_rows(rows, len(rows))), len(rows)).tolist()


@given(rows=ROWS, wanted=conditions())
def test_one_condition_is_what_plain_python_says_of_each_row(rows, wanted):
    field, operator, value = wanted
    truth = [holds(row, *wanted) for row in rows]
    assert mask_of({field: {operator: value}}, rows) == truth


@pytest.mark.parametrize("operator", [*ORDERS, "startswith", "contains", "==", "!="])
def test_every_value_is_compared_with_every_other_as_plain_python_does(operator):
    rows = [{"a": value} for value in EVERY] + [{"a": [value]} for value in EVERY] + [{}]
    for value in EVERY:
        fits = isinstance(value, str) or (is_number(value) and operator != "startswith")
        if fits or operator in ("contains", "==", "!="):
            wanted = [value] if operator in ("contains", "startswith") else value
            assert mask_of({"a": {operator: value}}, rows) == [
                holds(row, "a", operator, wanted) for row in rows
            ]


@given(rows=ROWS, wanted=st.lists(conditions(), max_size=3))
def test_several_conditions_are_joined_by_and(rows, wanted):
    truth = [all(holds(row, *each) for each in wanted) for row in rows]
    where = Where(Condition(*each) for each in wanted)
    assert where.mask(Fields(*encode_rows(rows, len(rows))), len(rows)).tolist() == truth


@given(rows=ROWS, where=st.dictionaries(FIELDS, st.one_of(SCALARS, st.lists(VALUES, max_size=3)), max_size=2))
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


def test_a_function_is_asked_about_empty_rows_only_if_there_are_some():
    assert mask_of(lambda row: row["a"] > 1, [{"a": 1}, {"a": 2}]) == [False, True]
    with pytest.raises(KeyError, match="a"):
        mask_of(lambda row: row["a"] > 1, [{"a": 1}, None])


@pytest.mark.parametrize("block", [1, 3, 2**14])
def test_rows_without_metadata_and_rows_in_many_blocks_keep_their_places(block, monkeypatch):
    monkeypatch.setattr(metadata, "CHUNK_ROWS", block)
    rows = [{"a": i % 3} if i % 2 else None for i in range(20)]
    assert mask_of({"a": [0, 2]}, rows) == [i % 2 == 1 and i % 3 != 1 for i in range(20)]
    assert mask_of({"a": {"!=": 1}}, rows) == [i % 2 == 0 or i % 3 != 1 for i in range(20)]
    assert mask_of(lambda row: row.get("a", 1) != 1, rows) == [i % 2 == 1 and i % 3 != 1 for i in range(20)]


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
    (condition,) = Where.of([text]).conditions
    assert (condition.field, condition.operator) == (field, operator)
    assert repr(condition.value) == repr(value)  # so that 1 is not True
    assert Where.of(text).conditions == (condition,)


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
    assert Where.of(Where.of(where)).conditions == Where.of(where).conditions


def test_no_condition_holds_for_every_row():
    assert mask_of({}, [{}, {"a": 1}]) == mask_of([], [{}, {"a": 1}]) == [True, True]
    assert mask_of({"a": 1}, []) == []
    assert mask_of({"a": []}, [{}, {"a": 1}]) == [False, False]


def test_metadata_of_another_number_of_rows_are_refused():
    with pytest.raises(InvalidInput, match="there are 1 rows of metadata for 2 items"):
        Where.of("a=1").mask(Fields(*encode_rows([{}], 1)), 2)


@pytest.mark.parametrize("slip", ["a=>3", "a=<3", "a<>3", "a=1 and b=2", "year>2000,2010", "a>=<3"])
def test_slips_are_refused_rather_than_taken_for_text(slip):
    with pytest.raises(InvalidParameter, match="Known forms"):
        Where.of([slip])


@pytest.mark.parametrize("quoted", ['a="=>3"', 'a="1 and 2"', 'a>"x,y"'])
def test_text_that_looks_like_a_slip_may_be_quoted(quoted):
    assert len(Where.of([quoted]).conditions) == 1
