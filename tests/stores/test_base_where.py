"""`where` in a store finds what it finds in a Collection, or is refused: never something else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auxbit.data.where import OPERATORS, Condition, Group, Where
from auxbit.errors import InvalidInput
from auxbit.stores.milvus import expression

pytest_plugins = ["helpers.store_fixtures"]

EVERY = [
    *[None, True, False, 0, 1, 1.0, -1, 2.5, "", "a", "ab", "abc", "b", "é", "1", "true", "😀", "a😀", "A"],
    *[
        2**53,
        2**53 + 1,
        float(2**53),
        -0.0,
        5e-324,
        1.7e308,
        1e23,
        10**23,
        2**63,
        "x\ny",
        "x",
        "y",
        "\r",
        "a\rb",
        'a"b',
        "a\\b",
        "a%b",
    ],
    *["a_b", "\ud7ff", "\U0010ffff", "a\U0010ffff", "\x01", "'; DROP TABLE x; --", '") or id >= 0 or ("'],
]
SCALARS = st.sampled_from(EVERY)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2)
)
FIELDS = ["a", "b", "a.b", "é", "a.0", "x'y", 'x"y', "{x}", "%s"]
PLAIN_FIELDS = [field for field in FIELDS if "." not in field]
ORDERS = ("<", "<=", ">", ">=")


@st.composite
def conditions(draw, scalars=SCALARS, values=VALUES):
    operator = draw(st.sampled_from(OPERATORS))
    if operator == "exists":
        value = draw(st.booleans())
    elif operator in ORDERS:
        value = draw(scalars.filter(lambda each: each is not None and not isinstance(each, bool)))
    elif operator == "startswith":
        value = draw(st.lists(st.sampled_from([each for each in EVERY if isinstance(each, str)]), max_size=2))
    elif operator in ("in", "not in", "contains"):
        value = draw(st.lists(values, max_size=3))
    else:
        value = draw(values)
    return Condition(draw(st.sampled_from(FIELDS)), operator, value)


def trees(leaves):
    def above(parts):
        several = st.lists(parts, min_size=1, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Group, st.sampled_from(["and", "or"]), several),
            st.builds(Group, st.just("not"), st.tuples(parts)),
        )

    return st.recursive(leaves, above, max_leaves=5)


def truth(rows, where):
    return [number for number, row in enumerate(rows) if where.matches(row)]


def found(store, n, where):
    """The ids that the store finds with it: all codes are equal, so that nothing else decides."""
    ids = store.search(np.zeros((1, 1), dtype=np.uint8), n, where=where)[1][0]
    return ids[ids >= 0].tolist()


def fill(store, rows):
    store.delete(np.arange(500))
    store.add(np.zeros((len(rows), 1), dtype=np.uint8), np.arange(len(rows)), metadata=rows)


def every_row(fields, values=tuple(EVERY)):
    """Rows with every value in every form."""
    forms = [lambda each: each, lambda each: [each, 7], lambda each: {"b": each}]
    rows = [{"a": form(each)} for each in values for form in forms]
    return [*rows, *({field: each} for field in fields for each in (1, "a")), {}, {"z": 1}]


# ---- PostgreSQL


@pytest.fixture(scope="module")
def in_postgres(places, store_folder):
    with places.open("pgvector", store_folder) as store:
        store.create(8)
        yield store


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), min_size=1, max_size=12),
    wanted=st.lists(trees(conditions()), min_size=1, max_size=3),
)
def test_postgres_finds_what_a_collection_finds(in_postgres, rows, wanted):
    fill(in_postgres, rows)
    for where in (Where(wanted), Where(wanted[:1])):
        assert found(in_postgres, 12, where) == truth(rows, where)
        assert in_postgres.count(where) == len(truth(rows, where))


def test_postgres_compares_every_value_with_every_other_as_a_collection_does(in_postgres):
    rows = every_row(FIELDS)
    fill(in_postgres, rows)
    for value in EVERY:
        text = isinstance(value, str)
        number = not text and value is not None and not isinstance(value, bool)
        operators = ["==", "!=", "contains", *(ORDERS if text or number else ()), *(["startswith"] * text)]
        for operator in operators:
            where = Where(
                [Condition("a", operator, [value] if operator in ("contains", "startswith") else value)]
            )
            assert found(in_postgres, 500, where) == truth(rows, where), where


def test_postgres_says_what_jsonb_cannot_keep(in_postgres):
    codes = np.zeros((2, 1), dtype=np.uint8)
    before = in_postgres.count()
    with pytest.raises(InvalidInput, match=r"PostgreSQL cannot keep or compare this, row 1 of a batch: .*"):
        in_postgres.add(codes, [900, 901], metadata=[{"a": "fine"}, {"a": "nul \0"}])
    with pytest.raises(InvalidInput, match="PostgreSQL cannot keep or compare this"):
        in_postgres.add(codes[:1], [900], metadata=[{"a": "\ud800"}])
    with pytest.raises(InvalidInput, match="PostgreSQL cannot keep or compare this"):
        in_postgres.count({"a": "nul \0"})
    with pytest.raises(InvalidInput, match="PostgreSQL cannot keep or compare this"):
        in_postgres.count({"a\0b": 1})
    assert in_postgres.count() == before


# ---- SQLite, DuckDB, LanceDB and ClickHouse, which let Python judge what they cannot


@pytest.fixture(scope="module", params=["sqlite", "duckdb", "lancedb", "chdb"])
def embedded(request, places, store_folder):
    with places.open(request.param, store_folder) as store:
        store.create(8)
        rows = every_row(FIELDS)
        store.add(np.zeros((len(rows), 1), dtype=np.uint8), np.arange(len(rows)), metadata=rows)
        yield store, rows


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=trees(conditions()))
def test_embedded_stores_find_what_a_collection_finds(embedded, tree):
    store, rows = embedded
    where = Where([tree])
    assert found(store, 500, where) == truth(rows, where), where


# ---- Milvus


@pytest.fixture(scope="module", params=["milvus file", "milvus"])
def in_milvus(request, places, store_folder):
    """A store with every value in every form, but fields with dots, which Milvus does not take."""
    with places.open(request.param, store_folder) as store:
        store.create(8)
        rows = every_row(PLAIN_FIELDS, [each for each in EVERY if each != 10**23 or isinstance(each, float)])
        store.add(np.zeros((len(rows), 1), dtype=np.uint8), np.arange(len(rows)), metadata=rows)
        yield store, rows, request.param


def can_be_asked(condition):
    try:
        expression(Where([condition]), parts_of_text=False)
    except InvalidInput:
        return False
    return True


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(conditions(values=SCALARS).filter(can_be_asked)) | conditions(values=SCALARS))
def test_milvus_finds_what_a_collection_finds_or_refuses(in_milvus, tree):
    store, rows, _ = in_milvus
    where = Where([tree])
    try:
        answer = found(store, 500, where)
    except InvalidInput:  # why is told by the tests below
        return
    assert answer == truth(rows, where), where


@pytest.mark.parametrize(
    "where",
    [
        {"a": 1}, {"a": {"!=": 1}}, {"a": True}, {"a": "a"}, {"a": ["a", 1, 2.5, False]}, {"a.b": {"<": 2}},
        {"a": {"not in": ["a", 1, True]}}, {"a": {">=": "ab"}}, {"a": {"startswith": ["a", "é"]}},
        {"a": {"startswith": ["a%", "\U0010ffff"]}}, {"a": []}, {"a": {"not in": []}},
        {"x'y": "a", 'x"y': {"!=": 2}},
        {"a": {"contains": [7, 2.5, True]}}, {"a": {"<": 2**53 - 1}}, {"a": "'; DROP TABLE x; --"},
        {"a": '") or id >= 0 or ("'}, {"a": {"contains": 1}}, {"{x}": 1}, {"%s": "a"}, {}, {"not": {}},
        {"or": [{"a": 1}, {"a": {">=": "b"}}, {}]}, {"or": [{"a": 1, "a.b": 1}, {"%s": 1}]}, "not a=1",
        {"not": {"or": [{"a": {"!=": 1}}, {"not": {"a.b": {">": 0}}}]}}, {"not": {"not": {"a.b": [1, "a"]}}},
        "a=1 and not b=1 or not (a!=a and a.b!=1)", {"not": {"a.b": {"not in": ["a", 1]}}},
    ],
)  # fmt: skip
def test_milvus_can_be_asked_for_these(in_milvus, where):
    store, rows, _ = in_milvus
    wanted = Where.of(where)
    assert found(store, 500, wanted) == truth(rows, wanted)


@pytest.mark.parametrize(
    "where",
    [
        {"not": {"a": {"<": 2}}}, {"not": {"a": {"startswith": "a"}}}, {"not": {"a": {"contains": 7}}},
        {"not": {"or": [{"a": {"!=": 1}}, {"a.b": {">": 0}}]}}, "a=1 or not (a.b>=a or a.b<=0)",
    ],
)  # fmt: skip
def test_a_server_of_milvus_can_negate_everything_and_a_file_says_that_it_cannot(in_milvus, where):
    store, rows, kind = in_milvus
    wanted = Where.of(where)
    if kind == "milvus":
        assert found(store, 500, wanted) == truth(rows, wanted)
    else:
        with pytest.raises(InvalidInput, match="for the opposite of this in a file of Milvus Lite"):
            found(store, 500, wanted)


def test_milvus_looks_inside_of_text_where_it_can(in_milvus):
    store, rows, kind = in_milvus
    wanted = Where.of({"a": {"contains": "b"}})
    if kind == "milvus":  # 2.3
        with pytest.raises(InvalidInput, match=r"for a part of a text before its version 2\.4"):
            found(store, 500, wanted)
    else:
        assert found(store, 500, wanted) == truth(rows, wanted)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"a": {"exists": True}}, "whether a field exists"),
        ({"a": {"==": None}}, "for null, lists or objects"),
        ({"a": {"==": [1]}}, "for null, lists or objects"),
        ({"a": [None]}, "for null, lists or objects"),
        ({"a": 2**53}, r"for numbers of 2\*\*53 and more"),
        ({"a": -1e300}, r"for numbers of 2\*\*53 and more"),
        ({"a": "x\ny"}, "for text with control characters"),
        ({"a\nb": 1}, "for text with control characters"),
        ({"a.0": 1}, "for a field that is a number or has no name"),
        ({"": 1}, "for a field that is a number or has no name"),
        ({"a": {"contains": "5%"}}, "for a part of a text with %, _ or"),
    ],
)
def test_what_milvus_cannot_be_asked_exactly_is_refused(where, why):
    with pytest.raises(InvalidInput, match=f"has no exact counterpart: Milvus cannot be asked {why}"):
        expression(where)


@given(st.text())
def test_text_cannot_leave_its_quotes_in_an_expression(text):
    try:
        made = expression({"a": {"==": text}})
    except InvalidInput:
        assert any(ord(letter) < 32 for letter in text)
        return
    quoted = made.removeprefix('(metadata["a"] == ').removesuffix(")")
    assert json.loads(quoted, strict=False) == text


def test_milvus_refuses_metadata_that_it_cannot_keep(in_milvus):
    store, rows, _ = in_milvus
    code = np.zeros((1, 1), dtype=np.uint8)
    with pytest.raises(InvalidInput, match=r"metadata field 'a\.b' has a dot"):
        store.add(code, [900], metadata=[{"a.b": 1}])
    with pytest.raises(InvalidInput, match="integers must be within 64 bits"):
        store.add(code, [900], metadata=[{"a": 10**30}])
    assert store.count() == len(rows)
