from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.collection import metadata
from auxbit.collection.metadata import Fields, encode_rows, rows_at

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(["},\n{", "},\\n{", '"', "{", "[", ",", "é😀\u2028", "\x00"]),
)
NAMES = st.one_of(st.sampled_from(["a", "b", "a.b", "a.b.c", "", "},\n{"]), st.text(max_size=3))
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3))
)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=12)


def exactly(value):
    """Text that is equal for values of equal types and content only, in any order of keys."""
    return json.dumps(value, sort_keys=True)


@pytest.fixture(params=[(3, 40), (2**14, 2**23)])
def chunks(request, monkeypatch):
    monkeypatch.setattr(metadata, "CHUNK_ROWS", request.param[0])
    monkeypatch.setattr(metadata, "CHUNK_BYTES", request.param[1])


@given(rows=ROWS, seed=st.integers(0, 99))
def test_any_positions_in_any_order_are_read(rows, seed):
    positions = np.random.default_rng(seed).integers(-1, len(rows), 10)
    found = rows_at(*encode_rows(rows, len(rows)), positions)
    assert exactly(found) == exactly([rows[each] if each >= 0 else {} for each in positions])


def test_text_may_be_a_read_only_memory_map(tmp_path):
    rows = [{"name": f"ä{i}"} for i in range(50)]
    offsets, text = encode_rows(rows, 50)
    text.tofile(tmp_path / "text")
    mapped = np.memmap(tmp_path / "text", dtype=np.uint8, mode="r")
    assert rows_at(offsets, mapped, [7, 3]) == [rows[7], rows[3]]
    assert Fields(offsets, mapped).column("name").values == [row["name"] for row in rows]


# ---- columns


def slow_lookup(row, field):
    """[the value] of a field, [] if it is missing: a literal name first, else down the dots."""
    if field in row:
        return [row[field]]
    for part in field.split("."):
        if not isinstance(row, dict) or part not in row:
            return []
        row = row[part]
    return [row]


def merged(value):
    """JSON text in which 1.0 is 1, since they are one value."""
    if isinstance(value, list):
        return [merged(each) for each in value]
    if isinstance(value, dict):
        return {key: merged(each) for key, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.usefixtures("chunks")
@given(rows=ROWS, together=st.booleans())
def test_columns_hold_each_value_once_and_say_who_has_it(rows, together):
    fields = Fields(*encode_rows(rows, len(rows)))
    names = ["a", "b", "a.b", "a.b.c", "", "absent"]
    if together:
        fields.load(names)
    for name in names:
        column = fields.column(name)
        assert column.codes.dtype == np.int32
        assert column.codes.shape == (len(rows),)
        found = [[column.values[code]] if code >= 0 else [] for code in column.codes]
        wanted = [slow_lookup(row, name) for row in rows]
        assert exactly(merged(found)) == exactly(merged(wanted))
        texts = [exactly(merged(value)) for value in column.values]
        assert len(set(texts)) == len(texts) == len(np.unique(column.codes[column.codes >= 0]))
        assert all(column.find(value) == [code] for code, value in enumerate(column.values))
        assert column.find("no such value") == []


def test_true_is_not_one_and_one_is_one_point_zero():
    column = Fields(
        *encode_rows([{"x": x} for x in (1, True, 1.0, 0, False, "1", [1], [True], [1.0], None)], 10)
    ).column("x")
    assert column.codes.tolist() == [0, 1, 0, 2, 3, 4, 5, 6, 5, 7]
    assert exactly(column.values) == exactly([1, True, 0, False, "1", [1], [True], None])


@pytest.mark.usefixtures("chunks")
@given(rows=ROWS, seed=st.integers(0, 99))
def test_damaged_rows_count_as_rows_without_metadata(rows, seed):
    rng = np.random.default_rng(seed)
    lost = rng.random(len(rows)) < 0.4
    offsets, text = encode_rows(rows, len(rows))
    text = text.copy()
    for start, stop in zip(offsets[:-1][lost], offsets[1:][lost]):
        text[start:stop] = rng.integers(0, 256, stop - start)
    for name in ("a", "b"):
        found = Fields(offsets, text, lost).column(name)
        wanted = Fields(*encode_rows([{} if gone else row for row, gone in zip(rows, lost)], len(rows)))
        assert found.codes.tolist() == wanted.column(name).codes.tolist()
        assert exactly(found.values) == exactly(wanted.column(name).values)


def test_damaged_offsets_do_no_harm_to_other_rows():
    offsets, text = encode_rows([{"a": i} for i in range(9)], 9)
    lost = np.isin(np.arange(9), [3, 4])
    offsets = offsets.copy()
    offsets[4] = -(2**60)
    column = Fields(offsets, text, lost).column("a")
    assert [column.values[code] if code >= 0 else None for code in column.codes] == [
        0,
        1,
        2,
        None,
        None,
        5,
        6,
        7,
        8,
    ]


def test_a_field_is_parsed_once(monkeypatch):
    fields = Fields(*encode_rows([{"a": 1, "b": 2}], 1))
    fields.load(["a", "b"])
    monkeypatch.setattr(fields, "chunks", lambda: pytest.fail("parsed again"))
    assert fields.column("a") is fields.column("a")
    assert fields.column("b").values == [2]


def test_numbers_and_texts_rise_exactly():
    values = [2**53 + 1, float(2**53), "b", -1.5, True, None, "a", 10**400, "", [1]]
    column = Fields(*encode_rows([{"x": value} for value in values], len(values))).column("x")
    numbers, places = column.numbers
    assert numbers == [-1.5, float(2**53), 2**53 + 1, 10**400]
    assert [values[place] for place in places] == numbers
    assert column.texts[0] == ["", "a", "b"]
