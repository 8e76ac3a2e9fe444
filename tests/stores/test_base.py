"""Addresses of stores, and rows as PostgreSQL reads them: nothing here needs a server."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core.maps import pack, unpack
from auxbit.errors import InvalidInput, InvalidParameter, MissingExtra
from auxbit.stores import connect
from auxbit.stores.base import LocalPushes, checked_rows, parse, sought_ids
from auxbit.stores.pgvector import bit_strings, copy_block, exact_numbers, vector_texts
from auxbit.stores.push import of_arrays

ENDINGS = {"sqlite": "sqlite", "duckdb": "duckdb", "lancedb": "lancedb", "chdb": "clickhouse"}


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("postgresql://localhost/db", "pgvector", "postgresql://localhost/db"),
        ("postgres://ann:s%40crt@db.example:5433/x", "pgvector", "postgres://ann@db.example:5433/x"),
        ("postgresql:///db?host=/var/run", "pgvector", "postgresql:///db"),
        ("postgresql://[::1]:5432/db", "pgvector", "postgresql://[::1]:5432/db"),
        ("milvus://localhost", "milvus", "milvus://localhost:19530"),
        ("milvus://root:Milvus@10.0.0.1:19531/photos", "milvus", "milvus://root@10.0.0.1:19531/photos"),
        ("codes.db", "milvus file", "codes.db"),
        ("/a/b/Codes.DB", "milvus file", "/a/b/Codes.DB"),
        ("codes.sqlite", "sqlite", "codes.sqlite"),
        ("sqlite:/a/app.db", "sqlite", "/a/app.db"),
        ("a/codes.duckdb", "duckdb", "a/codes.duckdb"),
        ("codes.lancedb", "lancedb", "codes.lancedb"),
        ("chdb:folder", "chdb", "folder"),
    ],
)
def test_addresses_are_told_apart_and_shown_without_passwords(url, kind, shown):
    address = parse(url)
    assert (address.kind, address.shown) == (kind, shown)
    assert "s%40crt" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cret@h/db", "postgresql://u:s3@cret@h/db", "postgresql://u:s3cret@h:port/db",
        "postgresql://u:s3#cret@h/db", "milvus://u:s3cret@h/a/b", "milvus://u:s3cret@h?x=1", "milvus://:s3cret@",
        "postgresql://u@h:port/db?password=s3cret", "mysql://h/db?password=s3cret", "u:s3cret@h/db",
        "postgresql://u:s3cret@[::1/db", "s3://bucket", "codes", "codes.txt", "", "milvus:///",
        "codes.faiss", "faiss:codes", "faiss://codes",
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_meant_are_refused_without_their_passwords(url):
    with pytest.raises(
        InvalidParameter, match="expected postgresql://user@host/database, milvus://"
    ) as found:
        parse(url)
    assert "cret" not in str(found.value)
    assert found.value.__cause__ is None


@pytest.mark.parametrize("url", ["codes.faiss", "/a/b/Codes.FAISS", "faiss:codes", "faiss://codes"])
def test_faiss_files_are_left_to_export(url):
    with pytest.raises(InvalidParameter, match="FAISS files are written by `auxbit export`"):
        connect(url)


def test_a_missing_driver_names_its_extra(monkeypatch, tmp_path):
    import importlib

    real = importlib.import_module

    def without_drivers(name, *more):
        if name.partition(".")[0] in ("psycopg", "pymilvus", "apsw", "duckdb", "lancedb", "chdb"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without_drivers)
    with pytest.raises(MissingExtra, match=r"pip install 'auxbit\[pgvector\]'"):
        connect("postgresql://127.0.0.1:1/db")
    with pytest.raises(MissingExtra, match=r"pip install 'auxbit\[milvus\]'"):
        connect("milvus://127.0.0.1:1")
    with pytest.raises(MissingExtra, match=r"pip install 'auxbit\[milvus\]'"):
        connect(str(tmp_path / "codes.db"))
    for ending, extra in ENDINGS.items():
        with pytest.raises(MissingExtra, match=rf"pip install 'auxbit\[{extra}\]'"):
            connect(str(tmp_path / f"codes.{ending}"))


# ---- bits


@given(st.integers(1, 70), st.integers(0, 9), st.integers(0, 99))
def test_bit_strings_have_the_bits_of_a_code_in_their_order(n_bits, n, seed):
    bits = np.random.default_rng(seed).integers(0, 2, (n, n_bits), dtype=np.uint8)
    codes = pack(bits).reshape(n, -(-n_bits // 8))
    strings = bit_strings(codes, n_bits)
    assert strings == ["".join(map(str, row)) for row in bits.tolist()]


@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 99), st.booleans(), st.booleans())
def test_blocks_of_copy_are_what_the_format_says(n_bits, n, seed, with_vectors, with_metadata):
    rng = np.random.default_rng(seed)
    codes = pack(rng.integers(0, 2, (n, n_bits), dtype=np.uint8)).reshape(n, -(-n_bits // 8))
    ids = rng.permutation(1000)[:n]
    vectors = rng.normal(size=(n, 3)).astype(np.float32) if with_vectors else None
    metadata = [{"a": "é" * int(size)} if size else None for size in rng.integers(0, 4, n)]
    rows = checked_rows(
        codes, ids, metadata if with_metadata else None, vectors,
        n_bits=n_bits, n_features=3 if with_vectors else None, upsert=True,
    )  # fmt: skip
    expected = b""
    for row in range(n):
        bits = unpack(codes[[row]], n_bits)[0]
        packed = np.packbits(bits).tobytes()  # the first bit highest
        expected += (
            struct.pack(">hiqiI", 4 if with_vectors else 3, 8, ids[row], 4 + len(packed), n_bits) + packed
        )
        if vectors is not None:
            expected += struct.pack(">ihh3f", 16, 3, 0, *vectors[row])
        text = '{"a":"' + metadata[row]["a"] + '"}' if with_metadata and metadata[row] else "{}"
        expected += struct.pack(">iB", 1 + len(text.encode()), 1) + text.encode()
    assert copy_block(rows, n_bits) == expected


def test_masked_ids_and_vectors_are_refused():
    masked = np.ma.array([1, 2], mask=[0, 1])
    with pytest.raises(InvalidInput, match="ids has masked numbers, 1 of"):
        sought_ids(masked)
    codes, vectors = np.zeros((2, 1), np.uint8), np.ma.array(np.ones((2, 1)), mask=[[0], [1]])
    with pytest.raises(InvalidInput, match="vectors has masked numbers, 1 of"):
        checked_rows(codes, [1, 2], None, vectors, n_bits=8, n_features=1, upsert=True)
    with pytest.raises(InvalidInput, match="vectors has masked numbers, 1 of"):
        of_arrays(codes, 8, vectors=vectors)


def test_large_floats_are_written_as_the_integers_they_are():
    assert exact_numbers(b'{"a":1e+23,"b":[1.5,-1e+300]}').startswith(
        b'{"a": 99999999999999991611392, "b": [1.5,'
    )
    assert exact_numbers(b'{"a":"1e+23"}') == b'{"a": "1e+23"}'
    assert exact_numbers(b'{"a":1e-7}') == b'{"a":1e-7}'


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_vectors_are_read_back_from_their_text(numbers):
    row = np.array([numbers], dtype=np.float32)
    (text,) = vector_texts(row)
    np.testing.assert_array_equal(np.array(text[1:-1].split(","), dtype=np.float32), row[0])


# ---- notes about pushes


def test_notes_about_pushes_are_kept_until_a_push_is_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    notes = LocalPushes("key")
    assert notes.pushed("one") == 0
    notes.remember("one", 10)
    notes.remember("two", 20)
    notes.remember("one", 30)
    assert (LocalPushes("key").pushed("one"), LocalPushes("key").pushed("two")) == (30, 20)
    assert LocalPushes("other").pushed("one") == 0
    notes.remember("one", None)
    assert (notes.pushed("one"), notes.pushed("two")) == (0, 20)
    notes.remember("two", None)
    assert list((tmp_path / "auxbit" / "pushes").iterdir()) == []


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"one": "x"}'])
def test_a_damaged_note_lets_everything_be_pushed_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    notes = LocalPushes("key")
    notes.remember("one", 10)
    (tmp_path / "auxbit" / "pushes" / "key.json").write_text(damage)
    assert notes.pushed("one") == 0
    notes.remember("one", 5)
    assert notes.pushed("one") == 5
