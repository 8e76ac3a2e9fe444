"""MilvusStore: codes in a collection of a Milvus server, or of a file of Milvus Lite, by HAMMING distance.

Milvus wants dimensions that are multiples of 8: codes of other lengths end in zeros, which no distance sees.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from auxbit.collection.where import Condition, Where
from auxbit.core.checks import check_integer, require
from auxbit.core.codes import bytes_per_code, check_n_bits, check_packed
from auxbit.core.types import Array, Distances, Ids, Packed
from auxbit.errors import (
    FileProblem,
    InvalidInput,
    InvalidParameter,
    StoreError,
    StoreExists,
    StoreUnreachable,
)
from auxbit.index.codes import MAX_ID, check_ids
from auxbit.stores.base import (
    CANDIDATES,
    DEFAULT_NAME,
    MILVUS_PORT,
    MOST_ANSWERS,
    Address,
    MarkedStore,
    Progress,
    Rows,
    by_distance_then_id,
    checked_floats,
    checked_rows,
    joined,
    padded,
    parse,
)
from auxbit.stores.push import LocalPushes

# ---- A client of Milvus, a server or a file, with errors of ours in the place of its own

FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")
OWN_TABLE = "collection_meta"  # that every file of Milvus Lite has
GONE = ("UNAVAILABLE", "DEADLINE", "Retry timeout", "Fail connecting", "server unavailable", "closed channel")
PURPOSE = "Milvus"
RETRY_SECONDS = 0.2

_open_files: dict[str, int] = {}  # by path: Milvus Lite runs one process a file, ended with its last user
_opening = threading.Lock()


class Client:
    """pymilvus's client for an address; `call` names a method of it."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._file: str | None = None
        self._milvus = require("pymilvus", extra="milvus", purpose=PURPOSE)
        self._rpc_error = require("grpc", extra="milvus", purpose=PURPOSE).RpcError
        with self.translated():
            self._client = self._of_file() if address.kind == "milvus file" else self._of_server()

    @property
    def is_file(self) -> bool:
        """Whether it is a file of Milvus Lite."""
        return self._file is not None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client, which gives up after `timeout` seconds unless told another."""
        with self.translated():
            return getattr(self._client, method)(*arguments, **{"timeout": self.timeout} | options)

    def schema(self, **options: Any) -> Any:
        """An empty schema."""
        return self._client.create_schema(auto_id=False, enable_dynamic_field=False, **options)

    def index_parameters(self) -> Any:
        """An empty list of indexes."""
        return self._client.prepare_index_params()

    def version(self) -> tuple[int, ...]:
        """The server's version; that of a file is one that knows everything asked for here."""
        if self.is_file:
            return (2, 5)
        text = str(self.call("get_server_version"))
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    def close(self) -> None:
        """End the connection, and the process of a file that nobody else here uses."""
        self._client.close()
        if self._file is not None:
            with _opening:
                _open_files[self._file] -= 1
                if not _open_files[self._file]:
                    del _open_files[self._file]
                    _manager().release_server(self._file)
            self._file = None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of ours in the place of Milvus's and gRPC's."""
        try:
            yield
        except (self._milvus.MilvusException, self._rpc_error) as error:
            raise self._ours(error) from None

    def _ours(self, error: Any) -> Exception:
        text = " ".join(str(getattr(error, "message", "") or error).split())
        text = self.address.hide(re.sub(r"\s*at /\S+", "", text))[:400]
        if type(error).__name__ == "DataNotMatchException":
            return InvalidInput(
                f"Milvus cannot keep this metadata: its integers must be within 64 bits. ({text[:120]})"
            )
        if "auth" in text.lower():
            return StoreUnreachable(f"{self.address.shown}: {text}. Check the user and password in the URL.")
        if any(sign in text for sign in GONE):
            return StoreUnreachable(
                f"{self.address.shown} cannot be reached, or no longer: {text}. Is it running? What it has "
                "taken in is there; go on once it is back (push --resume)."
            )
        return StoreError(f"{self.address.shown}: Milvus says: {text}")

    def _of_server(self) -> Any:
        parts = self.address.parts
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        given = {
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "db_name": unquote(parts.path.strip("/")),
        }
        options = {name: value for name, value in given.items() if value}
        uri = f"http://{host}:{parts.port or MILVUS_PORT}"
        return self._milvus.MilvusClient(uri, timeout=self.timeout, **options)

    def _of_file(self) -> Any:
        path = Path(self.address.text).absolute()
        require("milvus_lite", extra="milvus", purpose="a file of Milvus")
        _check_file(path)
        with _opening:
            client = self._once_it_listens(str(path))
            self._file = str(path)
            _open_files[self._file] = _open_files.get(self._file, 0) + 1
        return client

    def _once_it_listens(self, path: str) -> Any:
        """A client of a file: its process is given half a second to start, which a busy machine exceeds."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self._milvus.MilvusClient(path, timeout=self.timeout)
            except self._milvus.MilvusException as error:
                if "Fail connecting" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _manager() -> Any:
    module = require("milvus_lite.server_manager", extra="milvus", purpose="a file of Milvus")
    return module.server_manager_instance


def _check_file(path: Path) -> None:
    """Refuse what is no file of Milvus Lite, which would write its tables into any database."""
    if not FILE_NAME.fullmatch(path.name):
        raise InvalidParameter("to", str(path), "a file name of up to 36 letters, digits, dots, - and _")
    if not path.parent.is_dir():
        raise FileProblem(f"{path} cannot be made: there is no folder {path.parent}.")
    if path.is_dir():
        raise FileProblem(f"{path} is a folder; expected a file of Milvus Lite.")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", [OWN_TABLE])
            ours = bool(found.fetchone()[0])
    except sqlite3.Error:
        ours = False
    if not ours:
        raise FileProblem(f"{path} is not a file of Milvus Lite, and is left alone. Choose another name.")


# ---- Conditions on metadata as Milvus expressions over a JSON field: the same rows as a Collection finds
#
# Milvus compares numbers as doubles and has no parameters that all its versions know, so values are
# written as literals, quoted. What it cannot be asked exactly (`exists`, null, lists and objects as
# values, integers of more than 53 bits, control characters) is refused. Fields with a dot in their name
# are refused by `add`, so that "a.b" can only mean b within a.

LARGEST = 2**53  # integers below it are doubles
NOTHING = "id < 0"
LAST_CHARACTER = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)

_CONTROL = re.compile(r"[\x00-\x1f]")
_PLACE_IN_LIST = re.compile(r"-|-?\d+", re.ASCII)  # Milvus would take it so


def expression(where: Any, *, parts_of_text: bool = True) -> str:
    """The expression, empty for no condition. parts_of_text : whether this Milvus can look inside of text."""
    if where is None:
        return ""
    wanted = Where.of(where)
    if wanted.function is not None:
        raise InvalidInput("a function of Python cannot judge rows in Milvus. Give where as a dict or text.")
    return " and ".join(f"({_one(each, parts_of_text)})" for each in wanted.conditions)


def _one(condition: Condition, parts_of_text: bool) -> str:
    x, operator, value = _field(condition), condition.operator, condition.value
    if operator == "exists":
        _refuse(condition, "whether a field exists")
    if operator in ("==", "!=", "<", "<=", ">", ">="):
        return f"{x} {operator} {_literal(condition, value)}"
    if operator == "startswith":
        return " or ".join(_starts(condition, x, each) for each in value) or NOTHING
    if operator == "contains":
        return " or ".join(_contains(condition, x, each, parts_of_text) for each in value) or NOTHING
    groups = [f"{x} {operator} [{', '.join(each)}]" for each in _by_type(condition, value)]
    joint = " or " if operator == "in" else " and "
    return joint.join(groups) or (NOTHING if operator == "in" else "id >= 0")


def _by_type(condition: Condition, values: list[Any]) -> list[list[str]]:
    """Literals that may stand in one list: Milvus wants them of one type."""
    texts = [each for each in values if isinstance(each, str)]
    flags = [each for each in values if isinstance(each, bool)]
    rest = [each for each in values if not isinstance(each, str | bool)]
    numbers = [float(each) if isinstance(each, int) and abs(each) < LARGEST else each for each in rest]
    return [[_literal(condition, each) for each in group] for group in (texts, flags, numbers) if group]


def _starts(condition: Condition, x: str, start: str) -> str:
    """Text from `start` on and before what follows all that start so: `like` would take % and _ as signs."""
    first = f"{x} >= {_literal(condition, start)}"
    head = start.rstrip(chr(LAST_CHARACTER))
    if not head:
        return first
    following = ord(head[-1]) + 1
    following = SURROGATES.stop if following in SURROGATES else following
    return f"({first} and {x} < {_literal(condition, head[:-1] + chr(following))})"


def _contains(condition: Condition, x: str, value: Any, parts_of_text: bool) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        value = float(value)  # an integer would not be found among floats
    member = f"json_contains({x}, {_literal(condition, value)})"
    if not isinstance(value, str):
        return member
    if not parts_of_text:
        _refuse(condition, "for a part of a text before its version 2.4")
    if re.search(r"[%_\\]", value):
        _refuse(condition, "for a part of a text with %, _ or \\ in it")
    inside = f'{x} >= ""' if not value else f"{x} like {_literal(condition, f'%{value}%')}"
    return f"{member} or {inside}"


def _field(condition: Condition) -> str:
    path = condition.field.split(".")
    if any(not part or _PLACE_IN_LIST.fullmatch(part) for part in path):
        _refuse(condition, "for a field that is a number or has no name")
    return "metadata" + "".join(f"[{_text(condition, part)}]" for part in path)


def _literal(condition: Condition, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(condition, value)
    if isinstance(value, int | float) and abs(value) < LARGEST:
        return repr(value)
    if isinstance(value, int | float):
        _refuse(condition, "for numbers of 2**53 and more: it compares doubles")
    _refuse(condition, "for null, lists or objects")


def _text(condition: Condition, text: str) -> str:
    if _CONTROL.search(text):
        _refuse(condition, "for text with control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _refuse(condition: Condition, what: str) -> NoReturn:
    raise InvalidInput(
        f"where: {condition} has no exact counterpart: Milvus cannot be asked {what}. Leave it out, or "
        "search a Collection or PostgreSQL."
    )


# ---- One collection of ours in Milvus: finding it, making it, counting and reading its rows

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MARK = "auxbit store: "  # in front of what a collection's description says about it
MANY_IDS = 8192  # in one expression
SLOW = 600.0  # seconds, for what may have to build an index
STRONG = {"consistency_level": "Strong"}  # what was added is found
SEVERAL_VECTORS = PARTS_OF_TEXT = (2, 4)  # versions from which Milvus has them


class MilvusCollection:
    """The collection `name`; its description says that it is ours, and what it holds."""

    def __init__(self, client: Client, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidParameter("name", name, "letters, digits and _, not a digit first, for Milvus")
        self.client, self.name = client, name
        self._about: dict[str, Any] | None = None
        self._n_lists: int | None = None

    def find(self) -> dict[str, Any] | None:
        """What its description says about it, None where there is none; an error if it is not ours."""
        if not self.client.call("has_collection", self.name):
            return None
        text = str(self.client.call("describe_collection", self.name).get("description", ""))
        about: Any = None
        if text.startswith(MARK):
            about = json.loads(text[len(MARK) :])
        if not isinstance(about, dict) or "n_bits" not in about:
            raise StoreExists(
                f"there is a collection {self.name!r} that auxbit has not made, and it is left alone. "
                "Choose another name."
            )
        return about

    def known(self) -> dict[str, Any]:
        """What the collection is; read once, when it is also loaded for searches."""
        if self._about is None:
            found = self.find()
            if found is None:
                place = self.client.address.shown
                raise StoreError(f"there is no collection {self.name!r} in {place}: create it first.")
            self.client.call("load_collection", self.name, timeout=SLOW)
            self._about = found
        return self._about

    def create(self, n_bits: int, n_features: int | None, *, overwrite: bool) -> None:
        """Make it, with an exact index."""
        if n_features is not None and self.client.version() < SEVERAL_VECTORS:
            raise StoreError("this Milvus keeps one vector a row, the code: 2.4 and later keep others, too.")
        present = self.find()
        if present is not None and not overwrite:
            raise StoreExists(
                f"the collection {self.name!r} exists, with codes of {present['n_bits']} bits. Choose "
                "another name, or replace it with --force (overwrite=True)."
            )
        if present is not None:
            self.client.call("drop_collection", self.name)
        about = {"n_bits": n_bits, "n_features": n_features, "key": secrets.token_hex(16), "version": 1}
        kinds = require("pymilvus", extra="milvus", purpose=PURPOSE).DataType
        schema = self.client.schema(description=MARK + json.dumps(about, sort_keys=True))
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("code", kinds.BINARY_VECTOR, dim=8 * bytes_per_code(n_bits))
        schema.add_field("metadata", kinds.JSON)
        indexes = self.client.index_parameters()
        indexes.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        if n_features is not None:
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=n_features)
            indexes.add_index("vector", index_type="FLAT", metric_type="L2")
        self.client.call("create_collection", self.name, schema=schema, index_params=indexes, **STRONG)
        self._about, self._n_lists = about, 0

    def n_lists(self) -> int:
        """How many lists the codes are sorted into, 0 where searches look at all of them."""
        if self._n_lists is None:
            _ = self.known()
            about = self.client.call("describe_index", self.name, "code") or {}
            self._n_lists = int(about.get("nlist", 0)) if about.get("index_type") == "BIN_IVF_FLAT" else 0
        return self._n_lists

    def sort_into_lists(self, n_lists: int) -> None:
        """Replace the index by an approximate one over what is there."""
        indexes = self.client.index_parameters()
        settings = {"metric_type": "HAMMING", "params": {"nlist": n_lists}}
        indexes.add_index("code", index_type="BIN_IVF_FLAT", **settings)
        for step in ("flush", "release_collection"):  # only what is flushed is indexed
            self.client.call(step, self.name, timeout=SLOW)
        self.client.call("drop_index", self.name, "code", timeout=SLOW)
        self.client.call("create_index", self.name, indexes, timeout=SLOW)
        self.client.call("load_collection", self.name, timeout=SLOW)
        self._n_lists = n_lists

    def condition(self, where: Any) -> str:
        """The expression for these conditions, empty for none."""
        if where is None:
            return ""
        return expression(where, parts_of_text=self.client.version() >= PARTS_OF_TEXT)

    def count(self, condition: str) -> int:
        """How many rows fulfil it."""
        _ = self.known()
        found = self.client.call("query", self.name, filter=condition, output_fields=["count(*)"], **STRONG)
        return int(found[0]["count(*)"])

    def read(self, ids: Ids, *fields: str) -> list[dict[str, Any]]:
        """The rows with these ids, of which some may be missing, in any order."""
        _ = self.known()
        found: list[dict[str, Any]] = []
        unique = np.unique(ids[ids >= 0])
        for first in range(0, len(unique), MANY_IDS):
            condition = f"id in {unique[first : first + MANY_IDS].tolist()}"
            names = ["id", *fields]
            found += self.client.call("query", self.name, filter=condition, output_fields=names, **STRONG)
        return found

    def put(self, rows: Rows) -> None:
        """Add rows, in the place of those with the same ids."""
        span = f"id >= {rows.ids.min()} and id <= {rows.ids.max()}"
        # upsert deletes first, which takes longer; insert would keep two rows of one id
        method = "upsert" if self.count(span) else "insert"
        self.client.call(method, self.name, _as_dicts(rows))


def _as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Rows as pymilvus takes them."""
    texts = rows.texts() if rows.has_metadata else [b"{}"] * len(rows)
    made: list[dict[str, Any]] = []
    for row, (number, text) in enumerate(zip(rows.ids.tolist(), texts)):
        fields = json.loads(text)
        dotted = next((name for name in fields if "." in name), None)
        if dotted is not None:
            raise InvalidInput(
                f"metadata field {dotted!r} has a dot, which conditions on Milvus take for a step into an "
                "object. Rename it."
            )
        made.append({"id": number, "code": rows.codes[row].tobytes(), "metadata": fields})
        if rows.vectors is not None:
            made[-1]["vector"] = rows.vectors[row]
    return made


# ---- Searches of the Milvus store, around the 16,384 answers that it gives at most

MOST_FOUND = 16_384
QUERIES = 64  # in one call

Answer = tuple[Array, Array]  # distances and ids


def nearest(
    collection: MilvusCollection, queries: Packed, k: int, condition: str, n_probe: int
) -> list[Answer]:
    """The k nearest that fulfil the condition."""
    if k > MOST_FOUND and collection.count(condition) > MOST_FOUND:
        raise InvalidParameter("k", k, f"at most {MOST_FOUND:,}, which is all that Milvus answers with")
    n_probe = n_probe if not condition else collection.n_lists()
    return _found(collection, queries, min(k, MOST_FOUND), condition, n_probe)


def within(collection: MilvusCollection, queries: Packed, r: int, condition: str) -> list[Answer]:
    """All within distance r that fulfil the condition."""
    first = _found(collection, queries, MOST_FOUND, condition, collection.n_lists(), r)
    return [
        by_distance_then_id(*_all(collection, queries[[row]], r, condition, (0, MAX_ID), answer))
        for row, answer in enumerate(first)
    ]


def ranked(collection: MilvusCollection, x: npt.NDArray[np.float32], ids: Ids, k: int) -> Answer:
    """Of these candidates the k nearest by ‖x − y‖²."""
    rows = collection.read(ids, "vector")
    numbers = np.array([row["id"] for row in rows], dtype=np.int64)
    vectors = np.array([row["vector"] for row in rows], dtype=np.float64).reshape(len(rows), len(x))
    squared = ((vectors - x.astype(np.float64)) ** 2).sum(axis=1)
    near, best = by_distance_then_id(squared, numbers)
    return near[:k], best[:k]


def _found(
    collection: MilvusCollection,
    queries: Packed,
    limit: int,
    condition: str,
    n_probe: int,
    r: int | None = None,
) -> list[Answer]:
    """What each query finds, within distance r where that is given."""
    parameters: dict[str, Any] = {} if r is None else {"radius": r + 1}  # Milvus leaves the radius out
    if collection.n_lists():
        parameters["nprobe"] = min(n_probe, collection.n_lists())
    found = []
    for first in range(0, len(queries), QUERIES):
        hits = collection.client.call(
            "search",
            collection.name,
            data=[code.tobytes() for code in queries[first : first + QUERIES]],
            anns_field="code",
            limit=limit,
            filter=condition,
            search_params={"metric_type": "HAMMING", "params": parameters},
            **STRONG,
        )
        for answer in hits:
            distances = np.array([round(hit["distance"]) for hit in answer], dtype=np.int32)
            ids = np.array([hit["id"] for hit in answer], dtype=np.int64)
            found.append(by_distance_then_id(distances, ids))
    return found


def _all(
    collection: MilvusCollection,
    query: Packed,
    r: int,
    condition: str,
    span: tuple[int, int],
    answer: Answer,
) -> Answer:
    """All answers with ids in the span, halved until Milvus gives all of one; `answer` is the first try."""
    if len(answer[1]) < MOST_FOUND:
        return answer
    middle = int(np.median(answer[1]))
    halves = []
    for low, high in ((span[0], middle), (middle + 1, span[1])):
        both = " and ".join(filter(None, [condition, f"id >= {low}", f"id <= {high}"]))
        (half,) = _found(collection, query, MOST_FOUND, both, collection.n_lists(), r)
        halves.append(_all(collection, query, r, condition, (low, high), half))
    return np.concatenate([each[0] for each in halves]), np.concatenate([each[1] for each in halves])


# ---- MilvusStore

REQUEST_ROWS, REQUEST_BYTES = 8192, 2**23
MOST_LISTS = 65_536


class MilvusStore(MarkedStore):
    """Codes in a collection with the fields id, code, metadata (JSON) and perhaps vector.

    timeout : seconds after which a call to a server that does not answer is given up. n_probe : how many
    lists an approximate index looks at (create_index); without one, searches are exact.
    """

    batch_rows = 32_768

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, timeout: float = 30.0, n_probe: int = 32
    ) -> None:
        self.n_probe = check_integer("n_probe", n_probe, 1, MOST_LISTS)
        self._client = Client(url if isinstance(url, Address) else parse(url), timeout)
        try:
            self._place = self._collection = MilvusCollection(self._client, name)
        except InvalidParameter:
            self._client.close()
            raise

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        return self.n_probe >= self._collection.n_lists()

    def create(self, n_bits: int, *, n_features: int | None = None, overwrite: bool = False) -> None:
        """Make the collection; see Store.create."""
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 2, 32_768)
        self._collection.create(check_n_bits(n_bits), n_features, overwrite=overwrite)

    def add(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike,
        *,
        metadata: Any = None,
        vectors: npt.ArrayLike | None = None,
        upsert: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Add rows, some thousand a request; see Store.add.

        Milvus has no transactions: an error may leave the first of them in, which the same call replaces.
        """
        rows = checked_rows(
            codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=self.n_features, upsert=upsert
        )
        if not upsert:
            self._refuse_known(rows.ids)
        size = rows.codes.nbytes + rows.text.nbytes + (0 if rows.vectors is None else rows.vectors.nbytes)
        at_once = max(1, min(REQUEST_ROWS, REQUEST_BYTES * len(rows) // max(1, size)))
        for part in rows.parts(at_once):
            self._collection.put(part)
            if progress is not None:
                progress(len(part))

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        unwanted, deleted = np.unique(check_ids(ids)), 0
        for first in range(0, len(unwanted), MANY_IDS):
            some = unwanted[first : first + MANY_IDS].tolist()
            deleted += self._collection.count(f"id in {some}")
            self._client.call("delete", self.name, ids=some)
        return deleted

    def create_index(self, kind: str = "ivf", *, n_lists: int | None = None) -> None:
        """Sort the codes into lists (BIN_IVF_FLAT), 4 √n of them unless told; a server can, a file cannot."""
        if kind != "ivf":
            raise InvalidParameter("kind", kind, "'ivf', Milvus's BIN_IVF_FLAT")
        if self._client.is_file:
            raise StoreError("Milvus Lite has no approximate index for bits; a Milvus server has.")
        n_lists = max(1, min(MOST_LISTS, int(4 * np.sqrt(self.count())))) if n_lists is None else n_lists
        self._collection.sort_into_lists(check_integer("n_lists", n_lists, 1, MOST_LISTS))

    def search(
        self,
        codes: npt.ArrayLike,
        k: int = 10,
        *,
        where: Any = None,
        rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:
        """The k nearest codes to each query, 16,384 at most; see Store.search."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = check_packed(codes, self.n_bits, "codes")
        condition = self._collection.condition(where)
        if rerank is None:
            return padded(nearest(self._collection, queries, k, condition, self.n_probe), k)
        if self.n_features is None:
            raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
        X = checked_floats(rerank, self.n_features, len(queries), "rerank")
        most = min(CANDIDATES * k, max(k, MOST_FOUND)) if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        near = nearest(self._collection, queries, most, condition, self.n_probe)
        best = [ranked(self._collection, x, ids, k) for x, (_, ids) in zip(X, near)]
        return padded(best, k, real=True)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive; see Store.search_radius."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        condition = self._collection.condition(where)
        return joined(within(self._collection, queries, min(r, self.n_bits), condition))

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        return self._collection.count(self._collection.condition(where))

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} where one has none or is not there."""
        wanted = np.asarray(ids, dtype=np.int64)
        by_id = {row["id"]: row["metadata"] for row in self._collection.read(wanted, "metadata")}
        return [by_id.get(each, {}) for each in wanted.tolist()]

    def transaction(self) -> AbstractContextManager[None]:
        """Nothing: Milvus has no transactions."""
        return nullcontext()

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push from this machine has brought here."""
        return LocalPushes(self._collection.known()["key"]).pushed(source)

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note on this machine how far a push is; None: it is complete."""
        LocalPushes(self._collection.known()["key"]).remember(source, rows)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def __repr__(self) -> str:
        return f"MilvusStore({self._client.address.shown!r}, {self.name!r})"

    def _refuse_known(self, ids: Ids) -> None:
        known = self._collection.read(ids)
        if known:
            raise InvalidInput(
                f"id {known[0]['id']} is already in {self.name!r}; nothing was added. upsert=True replaces "
                "its row."
            )
