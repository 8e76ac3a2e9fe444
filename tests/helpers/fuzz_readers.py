"""Every reader of what strangers may send, as a function of bytes, with mutations of files that are fine.

A reader may return or raise an error of ours; all else is a fault: another error, a hang, more memory than
LIMIT, a file that is opened outside the folder. `tests/system/test_fuzz.py` tries some thousands of inputs,
`benchmarks/fuzz.py` many more.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import struct
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import auxbit
from auxbit import ITQ, Collection, HammingIndex
from auxbit.collection.storage import DATABASE, State, write_state
from auxbit.core import files
from auxbit.data.datasets import read_cifar, read_idx
from auxbit.data.records import read_ids, read_table, records_of
from auxbit.data.vectors import open_rows, read_vectors
from auxbit.data.where import Where
from auxbit.errors import AuxbitError
from auxbit.stores.base import parse
from helpers.vector_files import save_lists

CORPUS = Path(__file__).parents[1] / "corpus"
LIMIT = 2**30  # bytes of memory that a reader may take more than there were
SECONDS = 60  # of CPU time for one input, which may be the first that a kernel is compiled for
Read = Callable[[Path, bytes], object]


class Fault(Exception):
    """What a reader must not do."""


# ---- Readers: of a folder to write in, and the bytes


def _file(name: str, *reads: Callable[[Path], object]) -> Read:
    def read(folder: Path, content: bytes) -> None:
        path = folder / name
        path.write_bytes(content)
        for each in reads:
            with contextlib.suppress(AuxbitError):
                each(path)

    return read


def _all_rows(path: Path) -> None:
    rows = open_rows(path)
    for start in range(0, len(rows), 4096):
        np.asarray(rows[start : start + 4096])


def _records(path: Path) -> None:
    found = records_of(str(path))
    list(found.metadata if found.metadata is not None else ())


def _model(path: Path) -> None:
    model = auxbit.load(path)
    X = np.zeros((3, model.n_features_in_), np.float32)
    model.decode(model.encode(X))


def _index(path: Path) -> None:
    index = HammingIndex.load(path, n_jobs=1)
    index.search(np.zeros((2, -(-index.n_bits // 8)), np.uint8), k=3)
    index.find_duplicates()
    if index.decoder is not None:
        index.search_asymmetric(np.zeros((2, index.decoder.n_features), np.float32), k=3)


def resealed(content: bytes) -> bytes:
    """A safetensors file with the checksum of its content, which whoever crafts a file makes, too."""
    try:
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:end])
        metadata = {name: str(value) for name, value in header["__metadata__"].items() if name != "checksum"}
        from safetensors.numpy import load, save

        tensors = load(content)
        metadata["checksum"] = files._checksum(metadata, tensors)
        return bytes(save(tensors, metadata))
    except Exception:  # of what is no such file any more: read as it is
        return content


def _crafted(read: Callable[[Path], object]) -> Read:
    def both(folder: Path, content: bytes) -> None:
        for each in (content, resealed(content)):
            _file("crafted.safetensors", read)(folder, each)

    return both


def _use(path: Path, damaged: str) -> None:
    with Collection.open(path, n_jobs=1, damaged=damaged) as collection:
        width = -(-collection.n_bits // 8)
        calls: list[Callable[[], object]] = [
            lambda: collection.search(codes=np.zeros((2, min(width, 2**20)), np.uint8), k=3),
            lambda: collection.search(np.zeros((2, 8), np.float32), k=3),
            lambda: collection.search(np.zeros((1, 8), np.float32), where="label=1"),
            lambda: collection.ids[:5], lambda: collection.get([0]), collection.check,
            lambda: collection.stats(), lambda: collection.duplicates(),
            lambda: collection.count("label=1"), lambda: collection.vectors([0]),
        ]  # fmt: skip
        for call in calls:
            with contextlib.suppress(AuxbitError):
                call()


@functools.cache
def _template() -> Path:
    """A small collection with metadata, vectors, ids of its own and deletions."""
    folder = Path(tempfile.mkdtemp(dir=memory()))
    X = _rows()
    with Collection.create(folder / "c", ITQ(8, random_state=0).fit(X), vectors="float16", n_jobs=1) as made:
        made.add(X, metadata=[{"label": i % 3, "name": f"row {i}"} for i in range(len(X))])
        made.delete([3, 4])
    with contextlib.closing(sqlite3.connect(folder / "c" / DATABASE)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
    return folder / "c"


def _collection(folder: Path, content: bytes) -> None:
    """One of the files of a collection is another: its first byte says which."""
    names = sorted(each.name for each in _template().iterdir() if each.name != "writer.lock")
    for damaged in ("error", "skip"):
        shutil.rmtree(folder / "c", ignore_errors=True)
        path = shutil.copytree(_template(), folder / "c")
        (path / names[content[0] % len(names) if content else 0]).write_bytes(content[1:])
        with contextlib.suppress(AuxbitError):
            _use(path, damaged)


def _settings(folder: Path, content: bytes) -> None:
    """A collection whose database was changed by somebody who makes its checksums again.

    The input is JSON: new values of settings, or [statement, values] of SQL.
    """
    try:
        asked = json.loads(content)
    except (ValueError, RecursionError):
        return
    shutil.rmtree(folder / "c", ignore_errors=True)
    path = shutil.copytree(_template(), folder / "c")
    with contextlib.closing(sqlite3.connect(path / DATABASE)) as connection:
        found = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        found.pop("checksum")
        with contextlib.suppress(sqlite3.Error, OverflowError, TypeError, ValueError, AttributeError):
            for name, value in asked.items() if isinstance(asked, dict) else ():
                if name.startswith("="):
                    connection.execute(name[1:], value)
                elif name in found:
                    found[name] = value.encode() if isinstance(found[name], bytes) else value
            found["layout"] = _layout(connection)
            write_state(connection, State(**found))
            connection.commit()
    with contextlib.suppress(AuxbitError):
        _use(path, "error")


def _layout(connection: sqlite3.Connection) -> int:
    from auxbit.collection.snapshot import runs_check

    gone = files.integers(connection, "SELECT in_commit, first_number, count FROM deleted")
    query = "SELECT first_position, count, first_number FROM stretches ORDER BY first_position"
    return int(runs_check(files.integers(connection, query), runs_check(gone, 0)))


def _picture(folder: Path, content: bytes) -> None:
    from auxbit.images.decode import decode, preview

    for read in (lambda: decode(content, 16, max_pixels=10**6), lambda: preview(content, max_pixels=10**6)):
        with contextlib.suppress(AuxbitError):
            read()


def _conditions(folder: Path, content: bytes) -> None:
    text = content.decode(errors="replace")
    given: list[Any] = [text]
    with contextlib.suppress(ValueError, RecursionError):
        given.append(json.loads(text))
    for each in given:
        with contextlib.suppress(AuxbitError):
            where = Where.of(each)
            where.matches({"year": 2020, "tag": ["a", "b"], "label": "cat"})
            where.opposite.sql()
            str(where)


def _address(folder: Path, content: bytes) -> None:
    with contextlib.suppress(AuxbitError):
        parse(content.decode(errors="replace"))


@functools.cache
def _client() -> Any:
    from helpers.serve_cases import Client

    return Client(
        shutil.copytree(_template(), Path(tempfile.mkdtemp(dir=memory())) / "c"), writable=True
    ).__enter__()


ROUTES = (
    "POST /search/vector", "POST /items", "POST /items/get", "POST /items/delete", "POST /search/vectors",
    "GET /items?", "GET /search?", "GET /duplicates?",
)  # fmt: skip


def _body(folder: Path, content: bytes) -> None:
    method, path = ROUTES[content[0] % len(ROUTES) if content else 0].split()
    rest = content[1:]
    if method == "GET":
        path, rest = path + "".join(chr(each) for each in rest if 32 < each < 127 and each != 35), b""
    headers = {"content-type": "application/json"}
    try:
        answer = _client().request(method, f"/api/v1{path}", content=rest, headers=headers)
    except Exception as error:
        if type(error).__module__.startswith("httpx"):
            return  # an address that no client sends
        raise
    if answer.status_code >= 500 and answer.status_code not in (501, 503):
        raise Fault(f"{method} {path}: {answer.status_code} {answer.text[:200]}")


READERS: dict[str, Read] = {
    "npy": _file("a.npy", read_vectors), "npz": _file("a.npz", read_vectors),
    "fvecs": _file("a.fvecs", read_vectors), "bvecs": _file("a.bvecs", read_vectors),
    "ivecs": _file("a.ivecs", read_vectors), "hdf5": _file("a.h5", read_vectors, _all_rows),
    "parquet": _file("a.parquet", read_vectors, _all_rows, _records),
    "csv": _file("a.csv", read_table, read_ids, _records),
    "jsonl": _file("a.jsonl", read_table, read_ids, _records),
    "json": _file("a.json", lambda path: list(read_table(path)), _records),
    "cifar": _file("a.tar.gz", read_cifar), "idx": _file("a-idx3-ubyte", read_idx),
    "model": _crafted(_model), "index": _crafted(_index),
    "collection": _collection, "settings": _settings, "picture": _picture, "conditions": _conditions,
    "address": _address, "body": _body,
}  # fmt: skip


# ---- Inputs that are fine, written by the code itself


def memory() -> str | None:
    """A folder in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _rows(n: int = 70) -> Any:
    return np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32)


def write_corpus(folder: Path = CORPUS) -> None:
    """Write the inputs that mutations begin with: `python benchmarks/fuzz.py corpus`."""
    import h5py
    import pyarrow as pa
    from PIL import Image

    X = _rows(6)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        np.save(made / "a.npy", X)
        np.savez_compressed(made / "a.npz", X)
        for suffix, rows in ((".fvecs", X), (".bvecs", X.astype(np.uint8)), (".ivecs", X.astype(np.int32))):
            auxbit.data.vectors.write_vectors(made / f"a{suffix}", rows)
        with h5py.File(made / "a.h5", "w") as file:
            file.create_dataset("train", data=X, chunks=(3, 4), compression="gzip")
        with h5py.File(made / "b.h5", "w") as file:
            file["train"] = X
        save_lists(made / "a.parquet", list(X), pa.list_(pa.float32()))
        table = [{"id": i, "name": f"ä {i}", "vector": [0.5 * i, 1e-3]} for i in range(3)]
        lines = [json.dumps(row, ensure_ascii=False) for row in table]
        texts = {
            "jsonl": "\n".join(lines),
            "json": json.dumps(table),
            "csv": 'id,name,x\n1,"a ""b"" c",0.5\n2,,1e3\n',
        }
        batches = io.BytesIO()
        with tarfile.open(fileobj=batches, mode="w:gz") as archive:
            for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
                about = tarfile.TarInfo(f"cifar-10-batches-bin/{batch}.bin")
                about.size = 3073
                archive.addfile(about, io.BytesIO(bytes(3073)))
        model = ITQ(8, random_state=0).fit(_rows())
        model.save(made / "itq.safetensors")
        unsigned = (made / "itq.safetensors").read_bytes().replace(b"auxbit_version", b"another_number")
        (made / "unsigned.safetensors").write_bytes(unsigned)
        ba = auxbit.BinaryAutoencoder(8, random_state=0, max_iter=30, n_jobs=1).fit(_rows())
        ba.save(made / "ba.safetensors")
        index = HammingIndex(model=ba)
        index.add(ba.encode(_rows()))
        index.save(made / "i.safetensors")
        pictures = {}
        for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
            out = io.BytesIO()
            Image.fromarray(np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3)).save(out, kind)
            pictures[kind.lower()] = out.getvalue()
        names = sorted(each.name for each in _template().iterdir() if each.name != "writer.lock")
        parts = {part: bytes([i]) + (_template() / part).read_bytes() for i, part in enumerate(names)}
        shown: dict[str, Any] = {
            "sizes": {"n_bits": 9, "n_features": 7, "vectors": "float32", "positions": 10**12, "deleted": -1},
            "names": {
                "model": "../../m.safetensors",
                "codes": "codes.1",
                "vectors_file": "/etc/passwd",
                "ids": "uuid",
            },
            "kinds": {
                "coding": "optimal",
                "mu": -1.0,
                "lists": 8,
                "list_bits": 3,
                "own_ids": 1,
                "about": "[" * 9,
            },
            "counts": {
                "next_number": -5,
                "generation": 2**40,
                "commit": 9,
                "last_codes": "abc",
                "trained": 1,
            },
            "stretches": {"=UPDATE stretches SET count = ?": [2**40]},
            "deleted": {"=UPDATE deleted SET first_number = ?": [-7]},
            "items": {"=UPDATE items SET metadata = ?, checksum = NULL": ["[" * 2000]},
            "ids": {
                "=UPDATE items SET id = number || ?, checksum = NULL": ["x"],
                "own_ids": 1,
                "ids": "uuid",
            },
        }
        where = ["label=cat and year>=2000 and tag=a,b", 'not (year in (2001, 2002)) or "a b"~"x"',
                 '{"or": [{"label": "cat"}, {"not": {"year": {"<": 2000}}}]}']  # fmt: skip
        urls = [
            "postgresql://user:secret@host:5432/db?sslmode=require",
            "milvus://[::1]:19530/a",
            "sqlite:a.db",
            "x.duckdb",
        ]
        query = {"vector": [0.0] * 8, "k": 3, "where": "label=1", "mode": "hamming"}
        item = {"id": 900, "vector": [0.5] * 8, "metadata": {"label": 1}}
        bodies = [query, {"items": [item]}, {"ids": [1, 2]}, {"ids": [5]}, query]
        queries = ["limit=3&where=label%3D1&after=2", "id=1&k=3&mode=hamming", "radius=1"]
        idx = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 4) + bytes(24)
        models = ("itq", "ba", "unsigned")
        kinds = ("npy", "npz", "fvecs", "bvecs", "ivecs", "parquet")
        seeds: dict[str, dict[str, bytes]] = {
            **{kind: {"a": (made / f"a.{kind}").read_bytes()} for kind in kinds},
            "hdf5": {name: (made / f"{name}.h5").read_bytes() for name in ("a", "b")},
            **{kind: {"a": text.encode()} for kind, text in texts.items() if kind != "csv"},
            "csv": {"a": texts["csv"].encode(), "brackets": b"id,x\n1," + b"[" * 3000},
            "cifar": {"a": batches.getvalue()}, "idx": {"a": idx},
            "model": {name: (made / f"{name}.safetensors").read_bytes() for name in models},
            "index": {"a": (made / "i.safetensors").read_bytes()}, "picture": pictures, "collection": parts,
            "settings": {name: json.dumps(value).encode() for name, value in shown.items()},
            "conditions": {str(i): text.encode() for i, text in enumerate(where)},
            "address": {str(i): text.encode() for i, text in enumerate(urls)},
            "body": {str(i): bytes([i]) + json.dumps(body).encode() for i, body in enumerate(bodies)}
            | {str(5 + i): bytes([5 + i]) + text.encode() for i, text in enumerate(queries)},
        }  # fmt: skip
    for reader, inputs in seeds.items():
        (folder / reader).mkdir(parents=True, exist_ok=True)
        for name, content in inputs.items():
            (folder / reader / name).write_bytes(content)


def corpus(reader: str) -> list[bytes]:
    """The inputs that are kept, of one reader."""
    return [path.read_bytes() for path in sorted((CORPUS / reader).iterdir())]


# ---- Mutations

NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**60,
    2**63 - 1,
    2**64 - 1,
)
TEXTS = (
    b"[" * 5000, b"{" * 3000, b"null", b"NaN", b"1e999", b"-1", b"0.5", b"\xff\xfe", b"\0", b'"', b"'",
    b"\\u0000", b"../../x", b"/etc/passwd", b"true", b"(", b" not ", b" or ", b"\r\n", b"9" * 400, b"-",
    b"float64", b"hash",
)  # fmt: skip


def mutated(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few changes: bits, bytes, numbers, pieces left out, repeated, or of another input."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 16, 64))
        kind = rng.randrange(9)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % 2 ** (8 * width)
            data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            data[at:at] = rng.choice(TEXTS)
        elif kind == 7:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[at : at + size] = other[start : start + size]
        elif found := list(re.finditer(rb"-?\d+(\.\d+)?|true|false|null|\"[^\"]{0,40}\"", bytes(data))):
            chosen = rng.choice(found)
            text = rng.choice((*(str(number).encode() for number in NUMBERS), *TEXTS, b'"x"', b"[]", b"{}"))
            data[chosen.start() : chosen.end()] = text
    return bytes(data)


def inputs(reader: str, seed: int) -> Iterator[bytes]:
    """The corpus itself, then mutations of it without end; the same for the same seed."""
    rng, kept = random.Random(f"{reader} {seed}"), corpus(reader)
    yield from kept
    while True:
        yield mutated(rng.choice(kept), rng, kept)


# ---- Watching


@contextlib.contextmanager
def watched() -> Iterator[Path]:
    """A folder for readers; within the block memory is limited, and files are opened below it alone."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name) / "in"
        folder.mkdir()
        resource.setrlimit(resource.RLIMIT_AS, (taken + LIMIT, before[1]))
        try:
            yield folder
            if (beside := os.listdir(name)) != ["in"]:
                raise Fault(f"files were made outside the folder: {beside}")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


_AUDIT = {"folder": ""}
ALLOWED = (
    sys.prefix,
    sys.base_prefix,
    str(Path(auxbit.__file__).parent),
    "/proc",
    "/sys",
    "/dev/",
    "/usr",
    "/etc/mime",
    str(Path(__file__).parent),
    tempfile.gettempdir() + "/auxbit",
    os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache"),  # of compiled kernels
)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _AUDIT["folder"] and event == "open" and isinstance(arguments[0], str | os.PathLike):
        path = os.path.abspath(arguments[0])
        if not path.startswith((_AUDIT["folder"], *ALLOWED)):
            raise Fault(f"opened {path}")


@functools.cache
def _listen() -> None:
    sys.addaudithook(_audit)


def _too_long(number: int, frame: Any) -> None:
    raise Fault(f"took longer than {SECONDS} s")


def try_input(reader: str, folder: Path, content: bytes) -> None:
    """Read it; raises Fault, from what was raised, if the reader did what it must not do."""
    _listen()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    _AUDIT["folder"] = str(folder)
    try:
        READERS[reader](folder, content)
    except (AuxbitError, Fault) as error:
        if isinstance(error, Fault):
            raise
    except Exception as error:
        raise Fault(f"{type(error).__name__}: {str(error)[:200]}") from error
    finally:
        _AUDIT["folder"] = ""
        signal.setitimer(signal.ITIMER_PROF, 0)
