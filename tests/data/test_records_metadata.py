from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import checks
from auxbit.data import records
from auxbit.data.records import encode_metadata, read_csv, read_jsonl, read_table
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


def kept(rows, n):
    """What is read back of n rows."""
    texts = encode_metadata(rows, n)
    assert len(texts) == n
    return [{} if text is None else json.loads(text) for text in texts]


@pytest.fixture(params=[3, 2**14])
def chunks(request, monkeypatch):
    monkeypatch.setattr(records, "CHUNK_ROWS", request.param)


# ---- rows


@pytest.mark.usefixtures("chunks")
@given(rows=ROWS)
def test_rows_are_read_back_as_they_were_written(rows):
    assert exactly(kept(rows, len(rows))) == exactly(rows)
    for row, text in zip(rows, encode_metadata(rows, len(rows))):
        assert (text is None) == (not row)
        assert text is None or (text == text.strip() and "\n" not in text and text.encode())


@pytest.mark.usefixtures("chunks")
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.lists(VALUES, min_size=5, max_size=5), max_size=4))
def test_columns_are_the_rows_that_they_make_without_what_is_missing(columns):
    rows = [{field: values[i] for field, values in columns.items()} for i in range(5)]
    rows = [{field: value for field, value in row.items() if value is not None} for row in rows]
    assert encode_metadata(columns, 5) == encode_metadata(rows, 5)


def test_text_is_compact_utf8():
    rows = [{"é": ["ü", {"a": 1}]}, None, {"b": 2, "c": "x, y"}]
    assert encode_metadata(rows, 3) == ['{"é":["ü",{"a":1}]}', None, '{"b":2,"c":"x, y"}']


def test_half_a_surrogate_pair_is_kept():
    rows = [{"name": "broken \ud800 name"}, {"name": "whole"}]
    assert kept(rows, 2) == rows
    assert "".join(encode_metadata(rows, 2)).encode()


@pytest.mark.parametrize("rows", [None, [None, None, None], [{}, None, {}], {}, (row for row in [{}] * 3)])
def test_items_may_have_no_metadata(rows):
    assert encode_metadata(rows, 3) == [None, None, None]


@pytest.mark.parametrize(
    ("value", "wanted"),
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
        (pd.Timestamp("2020-01-02 03:04:05.000000001"), "2020-01-02T03:04:05.000000001"),
        (time(3, 4), "03:04:00"),
        (Decimal("1.10"), 1.1),
        (Decimal("-3"), -3),
        (Decimal("1e30"), 10**30),
        (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
        (Decimal("1e999"), "1E+999"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (PurePosixPath("a/b.jpg"), "a/b.jpg"),
        (MappingProxyType({"a": np.int32(1)}), {"a": 1}),
        pytest.param(10**4000, 10**4000, id="a large integer"),
    ],
)  # fmt: skip
def test_values_of_numpy_dates_and_paths_become_json(value, wanted):
    for rows in ([{"x": value}, None], {"x": [value, value]}):
        assert exactly(kept(rows, 2)[0]) == exactly({"x": wanted})


def test_rows_may_be_any_mappings_and_columns_any_arrays():
    rows = (OrderedDict(a=1), MappingProxyType({"b": 2}), None)
    assert kept(rows, 3) == [{"a": 1}, {"b": 2}, {}]
    columns = {
        "n": np.arange(2, dtype=np.int16),
        "day": np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
        "pair": np.ones((2, 2), dtype=np.float32),
        "hidden": np.ma.array([1, 2], mask=[True, False]),
    }
    assert kept(columns, 2) == [
        {"n": 0, "day": "2020-01-01", "pair": [1.0, 1.0]},
        {"n": 1, "day": "2020-01-02", "pair": [1.0, 1.0], "hidden": 2},
    ]


FRAME = pd.DataFrame(
    {
        "n": [1, 2, 3],
        "score": [0.5, np.nan, 2.5],
        "name": ["a", None, "ü"],
        "whole": pd.array([1, None, 3], dtype="Int64"),
        "flag": pd.array([True, None, False], dtype="boolean"),
        "day": pd.to_datetime(["2020-01-02T00:00:00", None, "2020-01-03T04:05:06"]),
        "kind": pd.Categorical(["x", None, "y"]),
        "tags": [["p", "q"], None, []],
    },
    index=[7, 8, 9],
)
WANTED = [
    {"n": 1, "score": 0.5, "name": "a", "whole": 1, "flag": True, "day": "2020-01-02T00:00:00", "kind": "x",
     "tags": ["p", "q"]},
    {"n": 2},
    {"n": 3, "score": 2.5, "name": "ü", "whole": 3, "flag": False, "day": "2020-01-03T04:05:06", "kind": "y",
     "tags": []},
]  # fmt: skip


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME.astype({"name": object}),
        FRAME.convert_dtypes(dtype_backend="pyarrow"),
        pl.from_pandas(FRAME),
        pa.Table.from_pandas(FRAME, preserve_index=False),
        pa.Table.from_pandas(FRAME, preserve_index=False).to_batches()[0],
        dict(FRAME),
        pl.from_pandas(FRAME).to_dict(),
        {name: FRAME[name].tolist() for name in FRAME},
        pa.concat_tables([pa.Table.from_pandas(FRAME[i : i + 1], preserve_index=False) for i in range(3)],
                         promote_options="permissive"),
    ],
    ids=["pandas", "objects", "of Arrow", "polars", "Arrow", "batch", "Series", "polars Series", "lists",
         "chunks"],
)  # fmt: skip
def test_frames_of_any_kind_leave_out_what_is_missing(frame):
    assert exactly(kept(frame, 3)) == exactly(WANTED)


def test_nan_and_nat_in_a_dict_are_null():
    wanted = dict.fromkeys(FRAME) | {"n": 2}
    assert kept(FRAME.to_dict("records"), 3)[1] == wanted
    nothing = [
        float("nan"),
        None,
        np.float32("nan"),
        np.datetime64("NaT", "s"),
        pd.NaT,
        pd.NA,
        Decimal("nan"),
    ]
    for value in nothing:
        assert encode_metadata([{"a": value, "b": 1}], 1) == ['{"a":null,"b":1}']
        assert encode_metadata({"a": [value], "b": [1]}, 1) == ['{"b":1}']


def test_an_index_with_a_name_is_a_column():
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index(["x", "y"], name="key"))
    assert kept(frame, 2) == [{"key": "x", "a": 1}, {"key": "y", "a": 2}]


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
        (float("-inf"), "-inf is not JSON"),
        ([1, {"a": float("nan")}], "nan is not JSON"),
        (np.float32("inf"), "inf.* is not JSON"),
        (np.array([1.0, np.nan]), r"array\(.* is not JSON"),
        ({1, 2}, r"\{1, 2\} is not JSON \(set\)"),
        (b"bytes", r"b'bytes' is not JSON \(bytes\): decode it to text, or write it in base64"),
        (np.array([b"bytes"]), "is not JSON"),
        (1j, "is not JSON"),
        (Decimal("inf"), "is not JSON"),
        (timedelta(1), "is not JSON"),
        (np.timedelta64(1, "D"), "is not JSON"),
        (np.timedelta64(1, "ns"), "is not JSON"),
        (np.array([1], dtype="m8[D]"), "is not JSON"),
        ([np.datetime64("NaT", "s")], "NaT.* is not JSON"),
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
    monkeypatch.setattr(records, "CHUNK_ROWS", 3)
    rows = [{"fine": [1, {"a": "x"}]}] * first + [{"fine": 1, "bad": value}, {"bad": value}]
    with pytest.raises(InvalidInput, match=rf"metadata row {first}, field 'bad': .*{why}.*\. Give text, num"):
        encode_metadata(rows, len(rows))


def test_depth_of_64_levels_is_kept():
    assert kept([{"a": nested(64)}], 1) == [{"a": nested(64)}]


@pytest.mark.parametrize(
    ("rows", "n", "why"),
    [
        ([{}], 2, "metadata has 1 rows for 2 items"),
        ([{1: "a"}], 1, "metadata row 0 has the field 1; use a text"),
        ([{}, {"a": 1, None: "a"}], 2, "metadata row 1 has the field None"),
        (["label"], 1, "metadata row 0 is a str; expected a dict, or None"),
        ([{}, []], 2, "metadata row 1 is a list"),
        ([[("a", 1)]], 1, "metadata row 0 is a list"),
        ([0], 1, "metadata row 0 is a int"),
        ("ab", 2, "metadata is a str; expected a list"),
        (3, 1, "metadata is a int"),
        ({"a": "xy"}, 2, "metadata field 'a' is a str; expected a list"),
        ({"a": {1, 2}}, 2, "metadata field 'a' is a set"),
        ({"a": 1}, 1, "metadata field 'a' is a int"),
        ({"a": np.array(1)}, 1, "metadata field 'a' is a ndarray"),
        (
            {"a": [1, 2], "b": [1]},
            2,
            "metadata field 'b' has 1 values for 2 items.*columns give one value per item",
        ),
        ({"a": [1, float("inf")]}, 2, "metadata row 1, field 'a': inf"),
        (pd.DataFrame({"a": [1.0, np.inf]}), 2, "metadata row 1, field 'a': inf"),
        (pd.DataFrame({"a": [1, 2]}), 3, "metadata field 'a' has 2 values for 3 items"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), 1, "two columns are named 'a'"),
        (pd.DataFrame([[1, 2]]), 1, "metadata row 0 has the field 0; use a text"),
        (pd.DataFrame({"a": [pd.Timedelta("1s")]}), 1, "metadata row 0, field 'a': .* is not JSON"),
        (pa.table({"a": [b"x"]}), 1, "metadata row 0, field 'a': b'x' is not JSON .*base64"),
        ({5: [1, 2]}, 2, "metadata row 0 has the field 5"),
    ],
)
def test_rows_that_cannot_be_kept_are_explained(rows, n, why):
    with pytest.raises(InvalidInput, match=why):
        encode_metadata(rows, n)


def test_no_slow_library_is_imported():
    code = (
        "import sys, auxbit.data.records; "
        "print({'numba', 'sklearn', 'scipy', 'faiss', 'pyarrow', 'pandas', 'polars'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


# ---- files


def test_lines_of_json_are_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('\ufeff{"a": "é\u2028"}\r\n null \n{}\n{"b": [1, {"c": null}]}\n\n'.encode())
    assert list(read_jsonl(path)) == read_table(path) == [{"a": "é\u2028"}, {}, {}, {"b": [1, {"c": None}]}]
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
    assert exactly(list(read_csv(path))) == exactly(
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
    assert list(rows) == [{"a": 1, "day": day, "tags": ["x"]}, {"tags": []}]
    assert kept(rows, 2)[0]["day"] == "2020-01-02T00:00:00+00:00"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a" 1}\n', r"a\.jsonl, line 2, column 6 is not JSON: Expecting ':'"),
        ("a.jsonl", b'{"a": 1}\n\n{"a": 1}\n', r"line 2 is empty\. Write \{\}"),
        ("a.jsonl", b'{"a": 1}\n[1, 2]\n', r"line 2 is \[1, 2\]; expected an object"),
        ("a.jsonl", b'{"a": 1}\n{"a": NaN}\n', "line 2: NaN is not JSON, write null"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "line 2 is not UTF-8 text"),
        pytest.param(
            "a.jsonl", b'{"a": 1}\n' + b"[" * 100_000, "line 2: (maximum recursion|Stack over)", id="deep"
        ),
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
        ("a.txt", b"a", r"unknown extension '\.txt'\. Known: \.jsonl, .*\.csv, \.parquet, \.arrow"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=why):
        read_table(tmp_path / name)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_missing_file_is_named(tmp_path, suffix):
    with pytest.raises(DataFileError, match=rf"none\{suffix} does not exist"):
        read_table(tmp_path / f"none{suffix}")


def test_a_changed_byte_in_parquet_never_leaves_rows_out(tmp_path):
    rows, path = [{"n": i} for i in range(20)], tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            assert len(list(read_table(path))) == len(rows), place
        except DataFileError:
            refused += 1
    assert refused > 100


def test_a_missing_extra_names_its_pip_command(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(checks.importlib, "import_module", missing)
    for path in (tmp_path / "a.parquet", tmp_path / "a.arrow"):
        path.write_bytes(b"PAR1")
        with pytest.raises(MissingExtra, match=r"needs pyarrow: pip install 'auxbit\[data\]'"):
            read_table(path)
