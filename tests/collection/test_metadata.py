from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.collection import metadata
from auxbit.collection.metadata import Fields, encode_rows, read_csv, read_jsonl, read_table, rows_at
from auxbit.core import checks
from auxbit.errors import DataFileError, InvalidInput, MissingExtra

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


# ---- rows


@pytest.mark.usefixtures("chunks")
@given(rows=ROWS)
def test_rows_are_read_back_as_they_were_written(rows):
    offsets, text = encode_rows(rows, len(rows))
    assert offsets.dtype == np.int64
    assert text.dtype == np.uint8
    assert offsets.shape == (len(rows) + 1,)
    assert (offsets[0], offsets[-1]) == (0, len(text))
    assert exactly(rows_at(offsets, text, np.arange(len(rows)))) == exactly(rows)
    for row, start, stop in zip(rows, offsets, offsets[1:]):
        stored = text[start:stop].tobytes().decode()
        assert exactly(json.loads(stored)) == exactly(row) if row else stored == ""


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.lists(VALUES, min_size=5, max_size=5), max_size=4))
def test_columns_are_the_rows_that_they_make(columns):
    rows = [{field: values[i] for field, values in columns.items()} for i in range(5)]
    for one, other in zip(encode_rows(columns, 5), encode_rows(rows, 5)):
        np.testing.assert_array_equal(one, other)


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


def test_text_is_compact_utf8():
    _, text = encode_rows([{"é": ["ü", {"a": 1}]}, None, {"b": 2, "c": "x, y"}], 3)
    assert text.tobytes().decode() == '{"é":["ü",{"a":1}]}{"b":2,"c":"x, y"}'


def test_half_a_surrogate_pair_is_kept():
    rows = [{"name": "broken \ud800 name"}, {"name": "whole"}]
    assert rows_at(*encode_rows(rows, 2), [0, 1]) == rows


@pytest.mark.parametrize("rows", [None, [None, None, None], [{}, None, {}], {}, (row for row in [{}] * 3)])
def test_items_may_have_no_metadata(rows):
    offsets, text = encode_rows(rows, 3)
    assert offsets.tolist() == [0, 0, 0, 0]
    assert len(text) == 0
    assert rows_at(offsets, text, [0, 2, -1]) == [{}, {}, {}]
    assert Fields(offsets, text).column("a").codes.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(2.5), 2.5),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.True_, True),
        (np.str_("x"), "x"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["a", None, 1.5], dtype=object), ["a", None, 1.5]),
        (np.array(3), 3),
        ((1, "a"), [1, "a"]),
        (date(2020, 1, 2), "2020-01-02"),
        (datetime(2020, 1, 2, 3, 4, 5), "2020-01-02T03:04:05"),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00"),
        (np.datetime64("2020-01-02"), "2020-01-02"),
        (np.datetime64("2020-01-02T03:04:05", "ns"), "2020-01-02T03:04:05"),
        (np.datetime64("2020-01-02T03:04:05.000000001"), "2020-01-02T03:04:05.000000001"),
        (np.datetime64("20000-01-02", "D"), "20000-01-02"),
        (np.array([["2020-01-02T03"]], dtype="M8[ns]"), [["2020-01-02T03:00:00"]]),
        (PurePosixPath("a/b.jpg"), "a/b.jpg"),
        (MappingProxyType({"a": np.int32(1)}), {"a": 1}),
        pytest.param(10**4000, 10**4000, id="a large integer"),
    ],
)  # fmt: skip
def test_values_of_numpy_dates_and_paths_become_json(value, kept):
    for rows in ([{"x": value}, None], {"x": [value, value]}):
        assert exactly(rows_at(*encode_rows(rows, 2), [0])) == exactly([{"x": kept}])


def test_rows_may_be_any_mappings_and_columns_any_arrays():
    rows = (OrderedDict(a=1), MappingProxyType({"b": 2}), None)
    assert rows_at(*encode_rows(rows, 3), [0, 1, 2]) == [{"a": 1}, {"b": 2}, {}]
    columns = {
        "n": np.arange(2, dtype=np.int16),
        "day": np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
        "pair": np.ones((2, 2), dtype=np.float32),
        "hidden": np.ma.array([1, 2], mask=[True, False]),
    }
    assert rows_at(*encode_rows(columns, 2), [0, 1]) == [
        {"n": 0, "day": "2020-01-01", "pair": [1.0, 1.0], "hidden": None},
        {"n": 1, "day": "2020-01-02", "pair": [1.0, 1.0], "hidden": 2},
    ]


ITSELF: list[object] = []
ITSELF.append(ITSELF)


def nested(levels):
    value: object = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), r"nan is not JSON \(float\)"),
        (float("-inf"), "-inf is not JSON"),
        ([1, {"a": float("nan")}], "nan is not JSON"),
        (np.float32("inf"), "inf.* is not JSON"),
        (np.array([1.0, np.nan]), r"array\(.* is not JSON"),
        ({1, 2}, r"\{1, 2\} is not JSON \(set\)"),
        (b"bytes", r"b'bytes' is not JSON \(bytes\)"),
        (np.array([b"bytes"]), "is not JSON"),
        (1j, "is not JSON"),
        (Decimal("1.5"), "is not JSON"),
        (timedelta(1), "is not JSON"),
        (np.timedelta64(1, "D"), "is not JSON"),
        (np.timedelta64(1, "ns"), "is not JSON"),
        (np.array([1], dtype="m8[D]"), "is not JSON"),
        (np.datetime64("NaT"), "NaT.* is not JSON"),
        (np.array(["NaT"], dtype="M8[D]"), "NaT.* is not JSON"),
        ({1: 2}, "it has the key 1, which is not text"),
        ([{"a": {None: 2}}], "it has the key None, which is not text"),
        (np.array([{2: 3}], dtype=object), "it has the key 2, which is not text"),
        (ITSELF, "nested more than 64 levels deep"),
        (nested(65), "nested more than 64 levels deep"),
        pytest.param(10**5000, "so large an integer is not JSON", id="a large integer"),
    ],
)
@pytest.mark.parametrize("first", [0, 7])
def test_what_json_has_not_is_refused_by_row_and_field(value, why, first, monkeypatch):
    monkeypatch.setattr(metadata, "CHUNK_ROWS", 3)
    rows = [{"fine": [1, {"a": "x"}]}] * first + [{"fine": 1, "bad": value}, {"bad": value}]
    with pytest.raises(InvalidInput, match=rf"metadata row {first}, field 'bad': .*{why}.*\. Give text, num"):
        encode_rows(rows, len(rows))


def test_depth_of_64_levels_is_kept():
    assert rows_at(*encode_rows([{"a": nested(64)}], 1), [0]) == [{"a": nested(64)}]


@pytest.mark.parametrize(
    ("rows", "n", "why"),
    [
        ([{}], 2, "metadata has 1 rows for 2 items"),
        ([{1: "a"}], 1, "metadata row 0 has the field 1; use text"),
        ([{}, {"a": 1, None: "a"}], 2, "metadata row 1 has the field None"),
        (["label"], 1, r"metadata row 0 is a str; expected a dict, or None.*to_dict\('records'\)"),
        ([{}, []], 2, "metadata row 1 is a list"),
        ([[("a", 1)]], 1, "metadata row 0 is a list"),
        ([0], 1, "metadata row 0 is a int"),
        ("ab", 2, "metadata is a str; expected a list"),
        (3, 1, "metadata is a int"),
        ({"a": "xy"}, 2, "metadata field 'a' is a str; expected a list"),
        ({"a": {1, 2}}, 2, "metadata field 'a' is a set"),
        ({"a": 1}, 1, "metadata field 'a' is a int"),
        ({"a": np.array(1)}, 1, "metadata field 'a' is a ndarray"),
        ({"a": [1, 2], "b": [1]}, 2, "metadata field 'b' has 1 values for 2 items.*mapping is of columns"),
        ({"a": [1, float("nan")]}, 2, "metadata row 1, field 'a': nan"),
        ({5: [1, 2]}, 2, "metadata row 0 has the field 5"),
    ],
)
def test_rows_that_cannot_be_kept_are_explained(rows, n, why):
    with pytest.raises(InvalidInput, match=why):
        encode_rows(rows, n)


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
    column = Fields(*encode_rows({"x": [1, True, 1.0, 0, False, "1", [1], [True], [1.0], None]}, 10)).column(
        "x"
    )
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
    column = Fields(*encode_rows({"x": values}, len(values))).column("x")
    numbers, places = column.numbers
    assert numbers == [-1.5, float(2**53), 2**53 + 1, 10**400]
    assert [values[place] for place in places] == numbers
    assert column.texts[0] == ["", "a", "b"]


def test_no_slow_library_is_imported():
    code = (
        "import sys, auxbit.collection.where, auxbit.collection.metadata; "
        "print({'numba', 'sklearn', 'scipy', 'faiss', 'pyarrow'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


# ---- files


def test_lines_of_json_are_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('\ufeff{"a": "é\u2028"}\r\n null \n{}\n{"b": [1, {"c": null}]}\n\n'.encode())
    assert read_jsonl(path) == read_table(path) == [{"a": "é\u2028"}, {}, {}, {"b": [1, {"c": None}]}]
    assert read_table(path.rename(tmp_path / "rows.NDJSON"))[0] == {"a": "é\u2028"}


def test_a_list_of_json_objects_is_rows(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1},\n null, {"b": "x"}]')
    assert read_table(path) == [{"a": 1}, {}, {"b": "x"}]
    path.write_text("[]")
    assert read_table(path) == []


def test_cells_of_csv_become_numbers_and_empty_ones_are_left_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        '\ufefflabel, n,note\ncat,1,"a, ""b""\nc"\ndog,,\n,-2.5e1,true\n007,0.10,1e999\nnull,+1,.5\n\n',
        encoding="utf-8",
    )
    assert exactly(read_csv(path)) == exactly(
        [
            {"label": "cat", "n": 1, "note": 'a, "b"\nc'},
            {"label": "dog"},
            {"n": -25.0, "note": True},
            {"label": "007", "n": 0.1, "note": "1e999"},
            {"label": "null", "n": "+1", "note": ".5"},
        ]
    )
    path.write_bytes(b"a,b\r\n1,2\r\n")
    assert read_table(path) == [{"a": 1, "b": 2}]
    path.write_text("a,b\n")
    assert read_table(path) == []


def test_rows_of_parquet_leave_nulls_out(tmp_path):
    path = tmp_path / "rows.parquet"
    day = datetime(2020, 1, 2, tzinfo=UTC)
    pq.write_table(pa.table({"a": [1, None], "day": [day, None], "tags": [["x"], []]}), path)
    rows = read_table(path)
    assert rows == [{"a": 1, "day": day, "tags": ["x"]}, {"tags": []}]
    assert rows_at(*encode_rows(rows, 2), [0])[0]["day"] == "2020-01-02T00:00:00+00:00"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a" 1}\n', r"a\.jsonl, line 2, column 6 is not JSON: Expecting ':'"),
        ("a.jsonl", b'{"a": 1}\n\n{"a": 1}\n', r"line 2 is empty\. Write \{\}"),
        ("a.jsonl", b'{"a": 1}\n[1, 2]\n', r"line 2 is \[1, 2\]; expected an object"),
        ("a.jsonl", b'{"a": 1}\n{"a": NaN}\n', "line 2: NaN is not JSON, write null"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "line 2 is not UTF-8 text"),
        pytest.param("a.jsonl", b'{"a": 1}\n' + b"[" * 100_000, "line 2: maximum recursion", id="deep"),
        pytest.param("a.jsonl", b'{"a": ' + b"1" * 5000 + b"}", "line 1: Exceeds the limit", id="long"),
        ("a.jsonl", b"", r"is empty \(0 bytes\)"),
        ("a.json", b'[{"a": 1},\n{"a": 1]', "line 2, column 8 is not JSON"),
        ("a.json", b'{"a": 1}', "holds no list; expected a list of objects"),
        ("a.json", b'[{"a": 1}, "b"]', 'entry 1 is "b"; expected an object'),
        ("a.json", b"[Infinity]", r"a\.json: Infinity is not JSON"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3 has 3 cells, the header 2"),
        ("a.csv", b"a,b\n1,2\n\n1,2\n", "line 3 has 0 cells, the header 2"),
        ("a.csv", b'a,b\n1,"2\n', "line 2: unexpected end of data"),
        ("a.csv", b",a\n0,1\n", "line 1: column 1 has no name. With pandas, write index=False"),
        ("a.csv", b"a,b,a\n", "line 1: two columns are named 'a'"),
        ("a.csv", b"\n\n", "has no header line"),
        ("a.csv", b"a\n1\n\xe9\n", "line 3 is not UTF-8 text"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read"),
        ("a.txt", b"a", r"unknown extension '\.txt'\. Known: \.jsonl, \.ndjson, \.json, \.csv, \.parquet"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=why):
        read_table(tmp_path / name)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_missing_file_is_named(tmp_path, suffix):
    with pytest.raises(DataFileError, match=rf"none\{suffix} cannot be read.*: .*[Nn]o such file"):
        read_table(tmp_path / f"none{suffix}")


def test_a_changed_byte_in_parquet_never_leaves_rows_out(tmp_path):
    rows, path = [{"n": i} for i in range(20)], tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            assert len(read_table(path)) == len(rows), place
        except DataFileError:
            refused += 1
    assert refused > 100


def test_a_missing_extra_names_its_pip_command(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(checks.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"needs pyarrow: pip install 'auxbit\[data\]'"):
        read_table(Path(tmp_path, "a.parquet"))
