from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.core.parallel import BLOCK_ROWS
from auxbit.data import records
from auxbit.data.records import (
    Records,
    checked_ids,
    encode_metadata,
    read_ids,
    read_records,
    read_table,
    typed_ids,
    without_vectors,
)
from auxbit.errors import AuxbitError, DataFileError, InvalidInput, InvalidParameter

N, D = 250, 4  # more rows than are looked at to find the vectors
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
ROWS = [
    {"id": f"doc-{i}", "embedding": X[i].tolist(), "title": f"ü, {i}", "year": 1990 + i, "score": i / 4}
    | ({"lang": "de"} if i % 3 else {})
    for i in range(N)
]
COLUMNS = {name: [row.get(name) for row in ROWS] for name in ROWS[1]}
METADATA = [{key: value for key, value in row.items() if key not in ("id", "embedding")} for row in ROWS]


def table(columns=COLUMNS, kind=None):
    """Columns as Arrow has them, vectors as float32 in lists of any or of fixed length."""
    made = dict(columns)
    if "embedding" in made:
        made["embedding"] = pa.array(made["embedding"], kind or pa.list_(pa.float32()))
    return pa.table(made)


def frame():
    return pd.DataFrame(COLUMNS | {"embedding": list(X)}, index=range(9, 9 + N))


def write_csv(path, rows=ROWS):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, names)
        out.writeheader()
        for row in rows:
            out.writerow({key: json.dumps(v) if isinstance(v, list) else v for key, v in row.items()})
    return path


def write_lines(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path, rows=ROWS):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_parquet(path, content=None, **options):
    pq.write_table(table() if content is None else content, path, **options)
    return path


def write_folder(path):
    path.mkdir()
    for part, (start, stop) in enumerate([(0, 90), (90, 90), (90, N)]):
        write_parquet(path / f"{part}.parquet", table().slice(start, stop - start))
    return path


def write_ipc(path, new=pa.ipc.new_file):
    with new(path, table().schema) as out:
        out.write_table(table(), max_chunksize=60)
    return path


def write_feather(path):
    pyarrow.feather.write_feather(table(), str(path), compression="zstd")
    return path


SOURCES = {
    "list of dicts": lambda tmp: ROWS,
    "dict of columns": lambda tmp: COLUMNS,
    "pandas": lambda tmp: frame(),
    "pandas of lists": lambda tmp: pd.DataFrame(ROWS),
    "polars": lambda tmp: pl.DataFrame(COLUMNS | {"embedding": pl.Series(X)}),
    "polars of lists": lambda tmp: pl.DataFrame(ROWS),
    "polars, lazy": lambda tmp: pl.LazyFrame(ROWS),
    "Arrow": lambda tmp: table(),
    "Arrow in chunks": lambda tmp: pa.concat_tables([table().slice(0, 60), table().slice(60)]),
    "Arrow, fixed size": lambda tmp: table(kind=pa.list_(pa.float32(), D)),
    "batch": lambda tmp: table().to_batches()[0],
    ".jsonl": lambda tmp: write_lines(tmp / "docs.jsonl"),
    ".ndjson": lambda tmp: str(write_lines(tmp / "docs.ndjson")),
    ".json": lambda tmp: write_json(tmp / "docs.json"),
    ".csv": lambda tmp: write_csv(tmp / "docs.CSV"),
    ".parquet": lambda tmp: write_parquet(tmp / "docs.parquet"),
    ".parquet, fixed size": lambda tmp: write_parquet(
        tmp / "docs.parquet", table(kind=pa.list_(pa.float32(), D))
    ),
    ".parquet in groups": lambda tmp: write_parquet(tmp / "docs.parquet", row_group_size=33),
    ".parquet by column": lambda tmp: f"{write_parquet(tmp / 'docs.parquet')}:embedding",
    "folder of .parquet": lambda tmp: write_folder(tmp / "docs"),
    ".arrow": lambda tmp: write_ipc(tmp / "docs.arrow"),
    ".arrow as a stream": lambda tmp: write_ipc(tmp / "docs.arrow", pa.ipc.new_stream),
    ".feather": lambda tmp: write_feather(tmp / "docs.feather"),
    ".ipc": lambda tmp: write_ipc(tmp / "docs.ipc"),
}
every_source = pytest.mark.parametrize("kind", SOURCES)


@every_source
def test_every_source_gives_the_same_records(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BATCH_ROWS", 64)
    found = read_records(SOURCES[kind](tmp_path), ids="id")
    assert isinstance(found, Records)
    assert len(found) == found.X.shape[0] == N
    np.testing.assert_array_equal(found.X[:], X)
    assert found.X.dtype in (np.float32, np.float64)
    assert found.ids == [row["id"] for row in ROWS]
    assert list(found.metadata) == METADATA
    assert encode_metadata(found.metadata, N) == encode_metadata(METADATA, N)


@every_source
def test_some_records_are_read_by_slices(kind, tmp_path):
    found = read_records(SOURCES[kind](tmp_path), ids="id", metadata=["year", "lang"])
    for rows in (slice(200, 260), slice(0, 3), slice(90, 200), slice(5, 5)):
        some = found[rows]
        assert type(some.X) is np.ndarray
        np.testing.assert_array_equal(some.X, X[rows])
        assert some.ids == [row["id"] for row in ROWS[rows]]
        wanted = [{key: row[key] for key in ("year", "lang") if key in row} for row in ROWS[rows]]
        assert list(some.metadata) == wanted
    assert found.metadata[-1] == {"year": 1990 + N - 1} | ({"lang": "de"} if (N - 1) % 3 else {})


@every_source
def test_columns_may_be_named_or_left_out(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    found = read_records(source, vectors="embedding", ids="year", metadata=())
    assert found.metadata is None
    assert found.ids.dtype == np.int64
    assert found.ids.tolist() == [row["year"] for row in ROWS]
    found = read_records(source, metadata="title")
    assert found.ids is None
    assert list(found.metadata) == [{"title": row["title"]} for row in ROWS]
    assert set(read_records(source).metadata[1]) == set(ROWS[1]) - {"embedding"}


@every_source
def test_a_column_that_is_not_there_is_named_with_those_that_are(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    for wanted in ({"ids": "idd"}, {"metadata": ["yaer"]}, {"vectors": "embeding"}):
        (name,) = wanted.values()
        if str(source).endswith(":embedding") and "vectors" in wanted:
            continue
        with pytest.raises(InvalidInput, match=r"has no column .*'title', 'year'.* Did you mean") as error:
            read_records(source, **wanted)
        assert repr(name if isinstance(name, str) else name[0]) in str(error.value)


def test_a_float32_in_text_is_read_exactly_and_a_larger_number_too(tmp_path):
    found = read_records(write_csv(tmp_path / "a.csv"))
    assert found.X.dtype == np.float32
    large = read_records(write_lines(tmp_path / "a.jsonl", [{"v": [1e300, 0.5]}, {"v": [1, 2]}]))
    assert large.X.tolist() == [[1e300, 0.5], [1, 2]]
    whole = read_records(write_lines(tmp_path / "b.jsonl", [{"v": [0, 255]}, {"v": [1, 2]}]))
    assert whole.X.dtype == np.int64


@pytest.mark.parametrize(
    ("ending", "lines"),
    [
        ("jsonl", '{"v": [1.0, 2]}\n{"v": [1e400, 2]}\n'),
        ("json", '[{"x": 1, "y": 2.0}, {"x": -1e400, "y": 2}]'),
        ("csv", 'v\n"[1.0, 2]"\n"[1e400, 2]"\n'),
    ],
)
def test_a_number_of_text_that_no_float_can_hold_is_refused(ending, lines, tmp_path):
    path = tmp_path / f"rows.{ending}"
    path.write_text(lines)
    with pytest.raises(InvalidInput, match="has a number in row 1 that is infinite or too large"):
        read_records(path)


def test_integers_of_more_than_64_bits_are_read_as_floats(tmp_path):
    (tmp_path / "a.csv").write_text(f"a,b\n{10**30},2\n1,2\n")
    expected = [[1e30, 2], [1, 2]]
    for source in (tmp_path / "a.csv", [{"a": 10**30, "b": 2}, {"a": 1, "b": 2}]):
        np.testing.assert_allclose(read_records(source).X, expected, rtol=1e-7)


def test_vectors_are_read_from_csv_as_numpy_prints_them(tmp_path):
    X = np.array([[0.5, -2.0, 1e-8], [3.0, 4.0, 5.0]])
    (tmp_path / "a.csv").write_text("".join(["v\n", *(f"{row}\n" for row in X)]))
    np.testing.assert_allclose(read_records(tmp_path / "a.csv").X, X, rtol=1e-6)


def test_a_cell_of_csv_may_be_as_long_as_a_vector(tmp_path):
    rows = [{"v": np.arange(30_000).tolist(), "n": 1}]
    assert read_records(write_csv(tmp_path / "a.csv", rows)).X.shape == (1, 30_000)


# ---- which column is that of the vectors


def test_lists_of_different_lengths_are_no_vectors():
    rows = [row | {"tags": list(range(i % 3 + 1)), "box": "x"} for i, row in enumerate(ROWS)]
    for source in (rows, pa.Table.from_pylist(rows), pd.DataFrame(rows)):
        found = read_records(source)
        np.testing.assert_allclose(found.X[:], X)
        assert found.metadata[4]["tags"] == [0, 1]


def test_two_columns_of_vectors_are_named():
    rows = [row | {"box": [1, 2, 3, 4]} for row in ROWS]
    for source in (rows, pa.Table.from_pylist(rows), pd.DataFrame(rows)):
        with pytest.raises(
            InvalidInput, match=r"several columns of lists of numbers: 'embedding', 'box'\. .*vectors_column"
        ):
            read_records(source)
        assert read_records(source, vectors="embedding").metadata[0]["box"] == [1, 2, 3, 4]
        assert read_records(source, vectors="box").X[:].tolist() == [[1, 2, 3, 4]] * N


NUMBERS = {"a": [1.5, 2.0, 3.0], "b": [4, 5, 6], "c": [7, 8, 9]}


@pytest.mark.parametrize("kind", ["pandas", "polars", "Arrow", "dict", "rows", ".csv", ".parquet", ".jsonl"])
def test_columns_of_numbers_alone_are_the_vectors(kind, tmp_path):
    rows = pd.DataFrame(NUMBERS).to_dict("records")
    source = {
        "pandas": lambda: pd.DataFrame(NUMBERS),
        "polars": lambda: pl.DataFrame(NUMBERS),
        "Arrow": lambda: pa.table(NUMBERS),
        "dict": lambda: NUMBERS,
        "rows": lambda: rows,
        ".csv": lambda: write_csv(tmp_path / "a.csv", rows),
        ".parquet": lambda: write_parquet(tmp_path / "a.parquet", pa.table(NUMBERS)),
        ".jsonl": lambda: write_lines(tmp_path / "a.jsonl", rows),
    }[kind]()
    whole = np.array(list(NUMBERS.values())).T
    found = read_records(source)
    np.testing.assert_array_equal(found.X[:], whole)
    assert (found.ids, found.metadata) == (None, None)
    found = read_records(source, ids="b", metadata=["a"])
    np.testing.assert_array_equal(found.X[:], whole[:, 2:])
    assert found.ids.tolist() == [4, 5, 6]
    assert list(found.metadata) == [{"a": 1.5}, {"a": 2.0}, {"a": 3.0}]


@pytest.mark.parametrize(
    "source",
    [
        lambda tmp: X,
        lambda tmp: pd.Series(list(X)),
        lambda tmp: list(X),
        lambda tmp: X.tolist(),
        lambda tmp: pd.DataFrame(X),
        lambda tmp: _saved(tmp / "x.npy"),
        lambda tmp: f"{_saved(tmp / 'x.npz')}:x",
        lambda tmp: _hdf5(tmp / "x.h5"),
        lambda tmp: f"{_hdf5(tmp / 'x.h5', 'other')}:other",
    ],
)
def test_vectors_alone_have_neither_ids_nor_metadata(source, tmp_path):
    found = read_records(source(tmp_path))
    np.testing.assert_array_equal(found.X[:], X)
    assert (found.ids, found.metadata) == (None, None)
    np.testing.assert_array_equal(found[3:7].X, X[3:7])


def _saved(path):
    np.save(path, X) if path.suffix == ".npy" else np.savez(path, x=X, y=X[:3])
    return path


def _hdf5(path, name="train"):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file[name] = X
    return path


def test_the_digits_are_a_source():
    assert read_records("digits").X.shape == (1797, 64)


# ---- memory


def test_a_large_parquet_file_is_read_by_chunks(tmp_path, monkeypatch):
    n = 3 * BLOCK_ROWS
    columns = {
        "v": pa.array([[float(i), 1.0] for i in range(n)]),
        "n": range(n),
        "t": [f"t{i}" for i in range(n)],
    }
    path = write_parquet(tmp_path / "a.parquet", pa.table(columns), row_group_size=n)
    decoded = []
    from auxbit.data import vectors

    whole = vectors.parquet_batches

    def counting(source, file, names=None, group=0):
        for row, batch in whole(source, file, names, group):
            decoded.append((tuple(names), len(batch)))
            yield row, batch

    monkeypatch.setattr(vectors, "parquet_batches", counting)
    found = read_records(path, metadata=["n"])
    head = [n_rows for names, n_rows in decoded]
    assert head == [BLOCK_ROWS]  # to find the vectors
    decoded.clear()
    for start in range(0, n, 1000):
        some = found[start : start + 1000]
        assert some.metadata == [{"n": i} for i in range(start, min(start + 1000, n))]
        assert some.X[:, 0].tolist() == list(range(start, min(start + 1000, n)))
    assert sorted(decoded) == [(("n",), BLOCK_ROWS)] * 3 + [(("v",), BLOCK_ROWS)] * 3


# ---- ids


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([3, 1, -2], [3, 1, -2]),
        (np.array([3, 1], dtype=np.uint8), [3, 1]),
        (np.array([3, 1], dtype=np.uint64), [3, 1]),
        ([np.int32(3), 4], [3, 4]),
        (["b", "a", ""], ["b", "a", ""]),
        (np.array(["b", "a"]), ["b", "a"]),
        ([UUID(int=1), UUID(int=0)], [UUID(int=1), UUID(int=0)]),
        ([], []),
    ],
)  # fmt: skip
def test_ids_keep_their_type(values, wanted):
    found = checked_ids(values, "ids")
    assert list(found) == wanted
    assert isinstance(found, np.ndarray) == (not wanted or isinstance(wanted[0], int))


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pa.table, lambda columns: pd.DataFrame(columns).to_dict("records")]
)
def test_uuids_are_ids(make):
    ids = [UUID(int=i) for i in range(3)]
    column = pa.array([each.bytes for each in ids], pa.uuid()) if make is pa.table else ids
    assert read_records(make({"v": [[1.0]] * 3, "id": column}), ids="id").ids == ids


def test_ids_of_csv_are_integers_only_if_all_are(tmp_path):
    for cells, wanted in ((["7", "8"], [7, 8]), (["007", "8"], ["007", "8"]), (["1.5", "x"], ["1.5", "x"])):
        rows = [{"id": cell, "v": [1.0, 2.0]} for cell in cells]
        assert list(read_records(write_csv(tmp_path / "a.csv", rows), ids="id").ids) == wanted
        (tmp_path / "ids.txt").write_text("\n".join(cells) + "\n")
        assert list(read_ids(tmp_path / "ids.txt")) == wanted


def test_typed_integers_are_digits_and_nothing_else():
    assert typed_ids(["7", " 8\n", 9, "-1"], "integer") == [7, 8, 9, -1]
    for text in ("1_0", "\u0661", "+1", "1.0", "", "9" * 5000):
        with pytest.raises(InvalidInput, match="cannot be an id of the collection: its ids are integers"):
            typed_ids([text], "integer")


def test_a_file_of_ids_or_labels_with_many_columns_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4), dtype=np.int64))
    with pytest.raises(InvalidInput, match=r"a\.npy must hold one value for each row, got shape \(3, 4\)"):
        read_ids(tmp_path / "a.npy")


def test_ids_are_read_from_npy(tmp_path):
    for array in (np.arange(3), np.arange(3)[:, None], np.array(["a", "ü"]), np.array([5, 5])):
        np.save(tmp_path / "ids.npy", array)
        assert list(read_ids(str(tmp_path / "ids.npy"))) == array.ravel().tolist()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, "a"], "has 1 in row 0 and 'a' in row 1: ids must be of one type"),
        ([1, None], r"has no id in row 1\. Give each row one"),
        ([float("nan"), 1.0], "has no id in row 0"),
        ([1.0, 2.0], "has 1.0 in row 0: ids are integers, text or UUIDs"),
        ([True, False], "has True in row 0: ids are"),
        ([1, True], "has True in row 1: ids are"),
        ([b"a"], "has b'a' in row 0: ids are"),
        ([1, 2**63], "has the id 9223372036854775808 in row 1, which has more than 64 bits"),
        ([4, 5, 4], "has the id 4 twice, in rows 0 and 2"),
        (["x", "y", "y"], "has the id 'y' twice, in rows 1 and 2"),
    ],
)
def test_ids_that_cannot_be_kept_are_refused_by_row(values, why):
    rows = [{"v": [1.0], "id": value} for value in values]
    with pytest.raises(InvalidInput, match=f"column 'id' of the list {why}"):
        read_records(rows, ids="id")
    with pytest.raises(InvalidInput, match=f"column 'id' of the dict {why}"):
        read_records({"v": [[1.0]] * len(values), "id": values}, ids="id")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.npy", None, "none.npy does not exist"),
        ("a.npy", b"", "is empty"),
        ("a.npy", b"abc", "cannot be read as .npy"),
        ("a.txt", b"a\n\xff\n", "line 2 is not UTF-8"),
    ],
)
def test_files_of_ids_that_are_none_are_explained(name, content, why, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=why):
        read_ids(tmp_path / name)


def test_arrays_that_are_no_ids_are_explained(tmp_path):
    np.savez(tmp_path / "a.npy.npz", np.arange(3))
    (tmp_path / "a.npy.npz").rename(tmp_path / "a.npy")
    with pytest.raises(DataFileError, match="holds several arrays"):
        read_ids(tmp_path / "a.npy")
    for array, why in (
        (np.ones((2, 2), dtype=int), "got shape"),
        (np.ones(2), "row 0: ids are integers, text"),
    ):
        np.save(tmp_path / "b.npy", array)
        with pytest.raises(InvalidInput, match=why):
            read_ids(tmp_path / "b.npy")


# ---- bad input


def bad(value, at=200):
    """The records with another vector in one row, past those that are looked at to find the vectors."""
    rows = [dict(row) for row in ROWS]
    rows[at]["embedding"] = value
    return rows


@pytest.mark.parametrize("at", [0, 200])
@pytest.mark.parametrize(
    ("value", "by_rows", "by_columns"),
    [
        (None, "has None in row {at}", "null in row {at}|None in row {at}"),
        (
            [1.0],
            "a vector of . numbers in row {next}",
            "list of . values in row {next}|numbers in row {next}",
        ),
        ([1.0, 2.0, None, 4.0], "None among the numbers of row {at}", "null in row {at}|numbers of row {at}"),
    ],
)
def test_a_row_without_its_vector_is_named(value, by_rows, by_columns, at, tmp_path):
    rows = bad(value, at)
    places = {"at": at, "next": at or 1}  # if the first is another, the second differs from it
    columns = {name: [row.get(name) for row in rows] for name in ROWS[1]}
    for source in (rows, write_lines(tmp_path / "a.jsonl", rows), write_csv(tmp_path / "a.csv", rows)):
        with pytest.raises(InvalidInput, match=f"column 'embedding' of .*{by_rows.format(**places)}"):
            read_records(source)
    for source in (columns, pd.DataFrame(columns), pl.DataFrame(columns), table(columns)):
        with pytest.raises(InvalidInput, match=f"column 'embedding' of .*({by_columns.format(**places)})"):
            read_records(source)
    with pytest.raises(DataFileError, match=f"column 'embedding' has .*({by_columns.format(**places)})"):
        _ = read_records(write_parquet(tmp_path / "a.parquet", table(columns))).X[:]


@pytest.mark.parametrize(
    ("source", "wanted", "why"),
    [
        ([], {}, "X must have rows and columns"),
        ({"v": []}, {}, "the dict has no rows"),
        (pd.DataFrame({"v": []}), {}, "the DataFrame has no rows"),
        ([{"v": [1.0]}, "x"], {}, "row 1 of the list is a str; expected a dict"),
        ([{"a": "x", "b": 1}], {}, "the list has no column of vectors: none of 'a', 'b' holds"),
        ([{"a": "x"}], {"vectors": "a"}, "column 'a' of the list has 'x' in row 0"),
        (pd.DataFrame({"a": ["x"]}), {"vectors": "a"}, "column 'a' of the DataFrame holds no vectors"),
        (pa.table({"a": ["x"]}), {"vectors": "a"}, "column 'a' of the Table holds no vectors"),
        (pa.table({"a": [["x"]]}), {"vectors": "a"}, "column 'a' of the Table is a column of list"),
        ([{"v": [1.0]}], {"ids": "v", "vectors": "v"}, "column 'v' of the list cannot be both"),
        ([{"v": [1.0]}], {"ids": "v"}, "the list has no column of vectors"),
        ([{"v": [1.0], "i": 1}], {"ids": "i", "metadata": ["i"]}, "holds the ids: leave it out"),
        ([{"v": [1.0], "i": 1}], {"vectors": "v", "metadata": ["v"]}, "holds the vectors: leave it out"),
        ({"v": [[1.0], [2.0]], "i": [1]}, {}, "column 'i' of the dict has 1 values, others have 2"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "two columns are named 'a'"),
        (X, {"ids": "id"}, "X holds only vectors, without columns, so there is no column 'id'"),
        ("digits", {"vectors": "v"}, "digits holds only vectors"),
        (X[0], {}, "X must have rows and columns"),
        ([{"a": 1, "b": 2}, {"a": 1}], {}, "no column of vectors"),
        (pa.table({"a": [1] * 200 + [None]}), {}, "'a' of the Table has None in row 200; expected"),
        (pd.DataFrame({"a": pd.array([1] * 200 + [None], dtype="Int64")}), {}, "None in row 200"),
        ([{"a": 1}] * 200 + [{"a": "x"}], {}, "column 'a' of the list has 'x' in row 200; expected numbers"),
        ([{"a": 1}] * 200 + [{"a": 10**5000}], {}, "'a' of the list has an integer of 16610 bits in row 200"),
        (pd.DataFrame({"a": [1, 10**5000], "b": 0}), {"vectors": "a,b"}, "an integer of 16610 bits in row 1"),
        ([{"a": 10**400}], {}, "none of 'a' holds equally long lists of numbers, and not all are numbers"),
    ],
)  # fmt: skip
def test_what_is_no_records_is_explained(source, wanted, why):
    with pytest.raises(InvalidInput, match=why):
        read_records(source, **wanted)


@pytest.mark.parametrize(
    ("name", "content", "error", "why"),
    [
        ("none.parquet", None, DataFileError, "none.parquet does not exist"),
        ("none.jsonl", None, DataFileError, "none.jsonl does not exist"),
        ("a.parquet", b"PAR1PAR1", DataFileError, "a.parquet cannot be read as .parquet"),
        ("a.arrow", b"ARROW1\0\0", DataFileError, "a.arrow cannot be read as .arrow"),
        ("a.feather", b"abc", DataFileError, "a.feather cannot be read as .feather"),
        ("a.jsonl", b'{"v": [1]}\n\n{"v": [1]}\n', DataFileError, "line 2 is empty"),
        ("a.jsonl", b'{"v": [1]}\n[]\n', DataFileError, "line 2 is "),
        ("a.json", b'{"v": [1]}', DataFileError, "holds no list"),
        ("a.json", b"[]", InvalidInput, "a.json has no rows"),
        ("a.csv", b"a,b\n", InvalidInput, "a.csv has no rows"),
        ("a.csv", b"v\n[1; 2]\n", InvalidInput, "has no column of vectors"),
        ("a.csv", b'v\n"[1, 2]"\n[1 ... 2]\n', InvalidInput, r"'v' of .*a.csv has '\[1 \.\.\. 2\]' in row 1"),
        ("a.xyz", b"a", DataFileError, r"unknown extension '.xyz'\. Known: \.npy, .*\.csv, .*\.ipc\.$"),
        ("a.npy:v", b"a", DataFileError, "unknown extension"),
    ],
)
def test_a_broken_file_is_named(name, content, error, why, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=why):
        read_records(tmp_path / name)


def test_a_file_of_vectors_alone_has_no_columns(tmp_path):
    path = _saved(tmp_path / "x.npy")
    with pytest.raises(InvalidParameter, match=r"None for .*x\.npy: a \.npy file holds one array"):
        read_records(path, vectors="v")
    with pytest.raises(InvalidInput, match="holds only vectors, without columns, so there is no column 'id'"):
        read_records(path, ids="id")


def test_files_of_a_folder_must_have_the_same_columns(tmp_path):
    write_parquet(tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", table().drop_columns("year"))
    with pytest.raises(DataFileError, match=r"b\.parquet has no column 'year'"):
        read_records(tmp_path)


def test_a_changed_byte_in_arrow_is_found_or_leaves_rows_that_can_be_read(tmp_path):
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(path, table().schema) as out:
        out.write_table(table().slice(0, 5))
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            found = read_records(path, vectors="embedding", ids="id")
            assert len(list(found.metadata)) == len(found.X[:]) == len(found.ids)
        except AuxbitError:
            refused += 1
    assert refused > 50


# ---- metadata of its own file, and the truth beside the columns


def test_files_of_metadata_are_the_same_by_every_format(tmp_path):
    rows = METADATA
    frame = pd.DataFrame(rows)
    write_parquet(tmp_path / "a.parquet", pa.Table.from_pandas(frame))
    pyarrow.feather.write_feather(frame, str(tmp_path / "a.feather"))
    paths = [write_lines(tmp_path / "a.jsonl", rows), write_json(tmp_path / "a.json", rows)]
    paths += [write_csv(tmp_path / "a.csv", rows), tmp_path / "a.parquet", tmp_path / "a.feather"]
    for path in paths:
        assert list(read_table(path)) == rows, path


# cells of .csv are text, and a folder or a column is no file of metadata
@pytest.mark.parametrize(
    "kind", sorted(SOURCES.keys() - {".csv", "folder of .parquet", ".parquet by column"})
)
def test_the_vectors_are_left_out_of_metadata(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    rows = read_table(source) if isinstance(source, str | Path) else source
    wanted = [{key: value for key, value in row.items() if key != "embedding"} for row in ROWS]
    found = encode_metadata(without_vectors(rows, X), N)
    assert [json.loads(text) for text in found] == wanted
    others = encode_metadata(without_vectors(rows, X[::-1]), N)
    assert [set(json.loads(text)) for text in others] == [set(row) for row in ROWS]


def test_metadata_without_vectors_stays_as_it_is():
    for rows in (METADATA, [None] * N, [{"embedding": [1.0]}] + [None] * (N - 1), pd.DataFrame(METADATA)):
        assert without_vectors(rows, X) is rows
    some = [None, *ROWS[1:]]
    assert without_vectors(some, X) is some  # one row has none: these are not the vectors
    numbers = [{"n": np.array(5)}] * N
    assert without_vectors(numbers, X) is numbers


CELLS = {
    "whole": st.integers(-(2**53), 2**53),
    "real": st.floats(allow_nan=False, allow_infinity=False),
    "text": st.text(max_size=5).filter(lambda text: "\x00" not in text),
    "flag": st.booleans(),
    "day": st.datetimes(min_value=pd.Timestamp(1900, 1, 1), max_value=pd.Timestamp(2100, 1, 1)),
    "tags": st.lists(st.text("abü", max_size=3), max_size=3),
}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.fixed_dictionaries(
            {name: st.lists(st.none() | cells, min_size=n, max_size=n) for name, cells in CELLS.items()}
        )
    )
)
def test_frames_are_the_rows_that_they_were_made_of(columns):
    n = len(columns["whole"])
    vectors = [[float(i), 0.5] for i in range(n)]
    truth = [{name: values[i] for name, values in columns.items() if values[i] is not None} for i in range(n)]
    types = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string(), "flag": pa.bool_(),
             "day": pa.timestamp("us"), "tags": pa.list_(pa.string())}  # fmt: skip
    arrow = pa.table({"v": vectors} | {name: pa.array(columns[name], types[name]) for name in columns})
    file = io.BytesIO()
    pq.write_table(arrow, file)
    objects = pd.DataFrame(
        {"v": vectors} | {name: pd.Series(columns[name], dtype=object) for name in columns}
    )
    sources = [arrow, pl.from_arrow(arrow), objects, arrow.to_pandas(types_mapper=pd.ArrowDtype)]
    sources += [pq.read_table(io.BytesIO(file.getvalue())), {"v": vectors} | columns]
    for source in sources:
        found = read_records(source, vectors="v")
        assert found.X[:].tolist() == vectors
        assert encode_metadata(found.metadata, n) == encode_metadata(truth, n)


def test_vectors_that_are_spread_over_columns_can_be_named_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y,year,title\n1,2.5,2001,one\n3,4,2002,two\n")
    with pytest.raises(
        InvalidInput, match=r"not all are numbers.*metadata-columns.*'x,y,year'.*vectors-column"
    ):
        read_records(path)
    for options in ({"vectors": "x,y"}, {"metadata": ["year", "title"]}):
        found = read_records(path, **options)
        assert np.asarray(found.X[:]).tolist() == [[1, 2.5], [3, 4]]
        assert found.metadata is not None
        assert list(found.metadata[:]) == [{"year": 2001, "title": "one"}, {"year": 2002, "title": "two"}]
    with pytest.raises(InvalidInput, match="has no column 'z'; it has 'x', 'y', 'year', 'title'"):
        read_records(path, vectors="x,z")
    with pytest.raises(InvalidInput, match=r"column 'y' of .* holds the vectors: leave it out"):
        read_records(path, vectors="x,y", metadata=["y"])
    with pytest.raises(InvalidInput, match=r"column 'title' of .* has 'one' in row 0; expected numbers"):
        read_records(path, vectors="x,title")
    rows = [{"x": 1.0, "y": 2.0, "title": "one"}, {"x": 3.0, "y": 4.0, "title": "two"}]
    assert np.asarray(read_records(rows, vectors="x,y").X[:]).tolist() == [[1, 2], [3, 4]]
