"""MilvusStore: codes in a collection of a Milvus server, or of a file of Milvus Lite, by Hamming distance.

Milvus wants dimensions that are multiples of 8: codes of other lengths end in zeros, which no distance sees.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Ids, Packed, check_integer, require
from auxbit.core.maps import bytes_per_code
from auxbit.core.parallel import block_slices
from auxbit.data.where import Condition, Node, Where, end_of_prefix
from auxbit.errors import (
    AuxbitError,
    FileProblem,
    InvalidInput,
    InvalidParameter,
    StoreError,
    StoreUnreachable,
)
from auxbit.index.codes import MAX_ID, check_ids
from auxbit.stores.base import (
    DEFAULT_NAME,
    MILVUS_PORT,
    QUERIES_AT_ONCE,
    Address,
    Found,
    Progress,
    Rows,
    Store,
    mark,
    parse,
    sought_ids,
)

# ---- A client of Milvus, a server or a file, with errors of ours instead of its own

FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")
OWN_TABLE = "collection_meta"  # that every file of Milvus Lite has
GONE = ("UNAVAILABLE", "DEADLINE", "Retry timeout", "Fail connecting", "server unavailable", "closed channel")
RETRY_SECONDS = 0.2

_open_files: dict[str, int] = {}  # by path: Milvus Lite runs one process per file, ended with its last user
_opening = threading.Lock()


class Client:
    """pymilvus's client, `milvus`, for an address; `call` names a method of it."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._file: str | None = None
        self._is_new = False  # the file was not there before
        self._driver = require("pymilvus", extra="milvus", purpose="Milvus")
        self._rpc_error = require("grpc", extra="milvus", purpose="Milvus").RpcError
        with self.translated():
            self.milvus = self._of_file() if address.kind == "milvus file" else self._of_server()

    @property
    def is_file(self) -> bool:
        """Whether it is a file of Milvus Lite."""
        return self._file is not None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client, which gives up after `timeout` seconds by default."""
        with self.translated():
            return getattr(self.milvus, method)(*arguments, **{"timeout": self.timeout} | options)

    def version(self) -> tuple[int, ...]:
        """The server's version; that of a file is one that knows everything used here."""
        if self.is_file:
            return (2, 5)
        text = str(self.call("get_server_version"))
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    def close(self) -> None:
        """End the connection, and the process of a file that nobody else here uses.

        Milvus Lite makes a file when it is opened: one that was not there before, and is empty, is removed.
        """
        unused = False
        if self._is_new:
            with suppress(AuxbitError):
                unused = not self.call("list_collections")
        self.milvus.close()
        if self._file is not None:
            with _opening:
                _open_files[self._file] -= 1
                if not _open_files[self._file]:
                    del _open_files[self._file]
                    _manager().release_server(self._file)
                    if unused:
                        Path(self._file).unlink(missing_ok=True)
            self._file = None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of ours instead of Milvus's and gRPC's."""
        try:
            yield
        except (self._driver.MilvusException, self._rpc_error) as error:
            raise self._ours(error) from None

    def _ours(self, error: Any) -> Exception:
        text = " ".join(str(getattr(error, "message", "") or error).split())
        text = self.address.hide(re.sub(r"\s*at /\S+", "", text))[:400]
        if type(error).__name__ == "DataNotMatchException":
            return InvalidInput(
                f"Milvus cannot keep this metadata: its integers must be within 64 bits. ({text[:120]}) "
                "Leave metadata out (--without-metadata)."
            )
        if "auth" in text.lower():
            return StoreUnreachable(f"{self.address.shown}: {text}. Check the user and password in the URL.")
        if self.is_file and "StatusCode.UNKNOWN" in text:  # all that it says of a full disk
            return StoreError(f"{self.address.shown}: Milvus Lite says: {text}. Is there room on the disk?")
        if any(sign in text for sign in GONE):
            return StoreUnreachable(
                f"{self.address.shown} cannot be reached, or no longer: {text}. Is it running? What it has "
                "taken in is there; resume once it is back (push --resume)."
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
        return self._driver.MilvusClient(uri, timeout=self.timeout, **options)

    def _of_file(self) -> Any:
        path = Path(self.address.text).absolute()
        _lite("milvus_lite")
        _check_file(path)
        self._is_new = not path.exists()
        with _opening:
            client = self._once_it_listens(str(path))
            self._file = str(path)
            _open_files[self._file] = _open_files.get(self._file, 0) + 1
        return client

    def _once_it_listens(self, path: str) -> Any:
        """A client of a file. pymilvus gives its process half a second to start, which may be too short."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self._driver.MilvusClient(path, timeout=self.timeout)
            except self._driver.MilvusException as error:
                if "Fail connecting" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _lite(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # which Milvus Lite asks
        return require(module, extra="milvus", purpose="a file of Milvus")


def _manager() -> Any:
    return _lite("milvus_lite.server_manager").server_manager_instance


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
# written as literals, quoted. What it cannot express exactly (`exists`, null, lists and objects as
# values, integers of more than 53 bits, control characters) is refused. Fields with a dot in their name
# are refused by `add`, so that "a.b" can only mean b within a.

LARGEST = 2**53  # integers below it are doubles
NOTHING, EVERYTHING = "id < 0", "id >= 0"
OPPOSITE = {"==": "!=", "!=": "==", "in": "not in", "not in": "in"}

_CONTROL = re.compile(r"[\x00-\x1f]")
_PLACE_IN_LIST = re.compile(r"-|-?\d+", re.ASCII)  # Milvus would take it so


def expression(where: Any, *, parts_of_text: bool = True, any_not: bool = True) -> str:
    """The expression, empty for no condition.

    parts_of_text : whether this Milvus can search inside text; any_not : whether it can negate everything
    """
    if where is None:
        return ""
    wanted = Where.of(where)
    if wanted.function is not None:
        raise InvalidInput("Milvus cannot run a Python function as a condition. Give where as text or dict.")
    everything = wanted.tree == Where().tree
    return "" if everything else _tree(wanted.tree, parts_of_text, any_not, negated=False)


def _tree(node: Node, parts_of_text: bool, any_not: bool, *, negated: bool) -> str:
    """The expression for a tree, or for its opposite, in which `not` stands before single conditions only."""
    if isinstance(node, Condition):
        if negated and node.operator in OPPOSITE:
            node = Condition(node.field, OPPOSITE[node.operator], node.value)
            negated = False
        found = _one(node, parts_of_text)
        if negated and not any_not:
            _refuse(node, "for the opposite of this in a file of Milvus Lite")
        return f"(not ({found}))" if negated else f"({found})"
    if node.word == "not":
        return _tree(node.parts[0], parts_of_text, any_not, negated=not negated)
    all_must = (node.word == "and") != negated
    parts = [_tree(part, parts_of_text, any_not, negated=negated) for part in node.parts]
    joined = (" and " if all_must else " or ").join(parts)
    return f"({joined or (EVERYTHING if all_must else NOTHING)})"


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
    return joint.join(groups) or (NOTHING if operator == "in" else EVERYTHING)


def _by_type(condition: Condition, values: list[Any]) -> list[list[str]]:
    """Literals that may stand in one list: Milvus wants them of one type."""
    texts = [each for each in values if isinstance(each, str)]
    flags = [each for each in values if isinstance(each, bool)]
    rest = [each for each in values if not isinstance(each, str | bool)]
    numbers = [float(each) if isinstance(each, int) and abs(each) < LARGEST else each for each in rest]
    return [[_literal(condition, each) for each in group] for group in (texts, flags, numbers) if group]


def _starts(condition: Condition, x: str, start: str) -> str:
    """From `start` up to the first text that cannot start so: `like` would take % and _ as wildcards."""
    first = f"{x} >= {_literal(condition, start)}"
    end = end_of_prefix(start)
    return f"({first} and {x} < {_literal(condition, end)})" if end else first


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


# ---- MilvusStore

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MANY_IDS = 8192  # in one expression
SLOW = 600.0  # seconds, for what may have to build an index
STRONG = {"consistency_level": "Strong"}  # what was added is found
SEVERAL_VECTORS = PARTS_OF_TEXT = (2, 4)  # versions from which Milvus has them
REQUEST_ROWS, REQUEST_BYTES = 8192, 2**23
MOST_LISTS = 65_536
MOST_FOUND = 16_384  # that Milvus returns for a query


class MilvusStore(Store):
    """Codes in a Milvus collection with the fields id, code, metadata (JSON) and optionally vector.

    name : the collection; its description marks it as auxbit's. timeout : seconds to wait for a server that
    does not respond. n_probe : how many lists of an approximate index (create_index) are searched; without
    such an index, searches are exact.
    """

    batch_rows = 32_768
    place = "collection"
    dimensions = (2, 32_768)

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, timeout: float = 30.0, n_probe: int = 32
    ) -> None:
        self.n_probe = check_integer("n_probe", n_probe, 1, MOST_LISTS)
        super().__init__(url if isinstance(url, Address) else parse(url), name)
        self._client = Client(self.address, timeout)
        self.indexes = () if self._client.is_file else ("ivf",)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self._client.close()
            raise InvalidParameter("name", name, "letters, digits and _, not a digit first, for Milvus")
        self._n_lists: int | None = None  # once known; 0: searches read all codes

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        return self.n_probe >= self._lists()

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        unwanted, deleted = np.unique(check_ids(ids)), 0
        for first in range(0, len(unwanted), MANY_IDS):
            some = unwanted[first : first + MANY_IDS].tolist()
            deleted += self._count(f"id in {some}")
            self._client.call("delete", self.name, ids=some)
        return deleted

    def create_index(self, kind: str = "ivf", *, n_lists: int | None = None) -> None:
        """Sort the codes into lists (BIN_IVF_FLAT), by default 4 √n of them; a server can, a file cannot."""
        if kind != "ivf":
            raise InvalidParameter("kind", kind, "'ivf', Milvus's BIN_IVF_FLAT")
        if self._client.is_file:
            raise StoreError("Milvus Lite has no approximate index for bits. Use a Milvus server.")
        n_lists = max(1, min(MOST_LISTS, int(4 * np.sqrt(self.count())))) if n_lists is None else n_lists
        n_lists = check_integer("n_lists", n_lists, 1, MOST_LISTS)
        indexes = self._client.milvus.prepare_index_params()
        settings = {"metric_type": "HAMMING", "params": {"nlist": n_lists}}
        indexes.add_index("code", index_type="BIN_IVF_FLAT", **settings)
        for step in ("flush", "release_collection"):  # only what is flushed is indexed
            self._client.call(step, self.name, timeout=SLOW)
        self._client.call("drop_index", self.name, "code", timeout=SLOW)
        self._client.call("create_index", self.name, indexes, timeout=SLOW)
        self._client.call("load_collection", self.name, timeout=SLOW)
        self._n_lists = n_lists

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        return self._count(self._condition(where))

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} for one that has none or is not there."""
        wanted = sought_ids(ids)
        by_id = {row["id"]: row["metadata"] for row in self._read(wanted, "metadata")}
        return [by_id.get(each, {}) for each in wanted.tolist()]

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    # ---- making the collection, adding and reading rows

    def _description(self) -> str | None:
        if not self._client.call("has_collection", self.name):
            return None
        return str(self._client.call("describe_collection", self.name).get("description", ""))

    def _prepare(self, n_features: int | None) -> None:
        if n_features is not None and self._client.version() < SEVERAL_VECTORS:
            raise StoreError("this Milvus keeps one vector per row, the code. Use 2.4 or later for more.")

    def _load(self) -> None:
        self._client.call("load_collection", self.name, timeout=SLOW)

    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        """With an exact index."""
        if present is not None:
            self._drop(present)
        kinds, milvus = require("pymilvus", extra="milvus", purpose="Milvus").DataType, self._client.milvus
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False, description=mark(**about))
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("code", kinds.BINARY_VECTOR, dim=8 * bytes_per_code(about["n_bits"]))
        schema.add_field("metadata", kinds.JSON)
        indexes = milvus.prepare_index_params()
        indexes.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        if about["n_features"] is not None:
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=about["n_features"])
            indexes.add_index("vector", index_type="FLAT", metric_type="L2")
        self._client.call("create_collection", self.name, schema=schema, index_params=indexes, **STRONG)
        self._n_lists = 0

    def _drop(self, present: dict[str, Any]) -> None:
        self._client.call("drop_collection", self.name)

    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """Some thousand rows per request. An error may leave the first in, which the same call replaces."""
        known = [] if upsert else self._read(rows.ids)
        if known:
            raise InvalidInput(
                f"id {known[0]['id']} is already in {self.name!r}; nothing was added. upsert=True replaces "
                "its row."
            )
        for part in rows.parts(max(1, min(REQUEST_ROWS, REQUEST_BYTES * len(rows) // rows.nbytes))):
            span = f"id >= {part.ids.min()} and id <= {part.ids.max()}"
            # upsert deletes first, which takes longer; insert would keep two rows of one id
            method = "upsert" if self._count(span) else "insert"
            self._client.call(method, self.name, _as_dicts(part))
            progress(len(part))

    def _condition(self, where: Any) -> str:
        """The expression for these conditions, empty for none."""
        if where is None:
            return ""
        parts_of_text = self._client.version() >= PARTS_OF_TEXT
        return expression(where, parts_of_text=parts_of_text, any_not=not self._client.is_file)

    def _count(self, condition: str) -> int:
        """How many rows fulfil it."""
        _ = self._known()
        found = self._client.call("query", self.name, filter=condition, output_fields=["count(*)"], **STRONG)
        return int(found[0]["count(*)"])

    def _read(self, ids: Ids, *fields: str) -> list[dict[str, Any]]:
        """The rows with these ids, of which some may be missing, in any order."""
        _ = self._known()
        found: list[dict[str, Any]] = []
        unique = np.unique(ids[ids >= 0])
        for first in range(0, len(unique), MANY_IDS):
            condition = f"id in {unique[first : first + MANY_IDS].tolist()}"
            names = ["id", *fields]
            found += self._client.call("query", self.name, filter=condition, output_fields=names, **STRONG)
        return found

    # ---- searching

    def _lists(self) -> int:
        """How many lists the codes are sorted into, 0 if searches read all codes."""
        if self._n_lists is None:
            _ = self._known()
            about = self._client.call("describe_index", self.name, "code") or {}
            self._n_lists = int(about.get("nlist", 0)) if about.get("index_type") == "BIN_IVF_FLAT" else 0
        return self._n_lists

    def default_candidates(self, k: int, ranked: str = "vectors") -> int:
        """As many as Milvus finds at once."""
        return min(super().default_candidates(k, ranked), max(k, MOST_FOUND))

    def _nearest(self, queries: Packed, k: int, where: Any, column: str = "") -> list[Found]:
        condition = self._condition(where)
        if k > MOST_FOUND and self._count(condition) > MOST_FOUND:
            raise InvalidParameter("k", k, f"at most {MOST_FOUND:,}, which is all that Milvus returns")
        n_probe = self._lists() if condition else self.n_probe
        return self._found(queries, min(k, MOST_FOUND), condition, n_probe, column=column)

    def _within(self, queries: Packed, r: int, where: Any) -> list[Found]:
        condition = self._condition(where)
        first = self._found(queries, MOST_FOUND, condition, self._lists(), r)
        return [
            self._all_within(queries[[row]], r, condition, (0, MAX_ID), answer).sorted()
            for row, answer in enumerate(first)
        ]

    def _all_within(
        self, query: Packed, r: int, condition: str, span: tuple[int, int], answer: Found
    ) -> Found:
        """All with ids in the span, halved until Milvus returns all of it. answer : the first try."""
        if len(answer.ids) < MOST_FOUND:
            return answer
        middle = int(np.median(answer.ids))
        halves = []
        for low, high in ((span[0], middle), (middle + 1, span[1])):
            both = " and ".join(filter(None, [condition, f"id >= {low}", f"id <= {high}"]))
            (half,) = self._found(query, MOST_FOUND, both, self._lists(), r)
            halves.append(self._all_within(query, r, condition, (low, high), half))
        return Found(
            np.concatenate([each[0] for each in halves]), np.concatenate([each[1] for each in halves])
        )

    def _found(
        self, queries: Packed, limit: int, condition: str, n_probe: int, r: int | None = None,
        column: str = "",
    ) -> list[Found]:  # fmt: skip
        """What each query finds, within distance r if that is given."""
        parameters: dict[str, Any] = {} if r is None else {"radius": r + 1}  # Milvus leaves the radius out
        if self._lists():
            parameters["nprobe"] = min(n_probe, self._lists())
        found = []
        for some in block_slices(len(queries), QUERIES_AT_ONCE):
            hits = self._client.call(
                "search",
                self.name,
                data=[code.tobytes() for code in queries[some]],
                anns_field="code",
                limit=limit,
                filter=condition,
                output_fields=[column] if column and not self._client.is_file else None,
                search_params={"metric_type": "HAMMING", "params": parameters},
                **STRONG,
            )
            for answer in hits:
                distances = np.array([round(hit["distance"]) for hit in answer], dtype=np.int32)
                ids = np.array([hit["id"] for hit in answer], dtype=np.int64)
                values = self._values(answer, ids, column) if column else None
                found.append(Found(distances, ids, values).sorted())
        return found

    def _values(self, answer: Any, ids: Ids, column: str) -> Array:
        """Codes or vectors of what was found; Milvus Lite has to be asked for them again."""
        if self._client.is_file:
            by_id = {row["id"]: row[column] for row in self._read(ids, column)}
            values = [by_id[each] for each in ids.tolist()]
        else:
            values = [hit["entity"][column] for hit in answer]
        if column == "vector":
            return np.array(values, dtype=np.float32).reshape(len(values), self.n_features or 0)
        raw = b"".join(each if isinstance(each, bytes) else each[0] for each in values)
        return np.frombuffer(raw, dtype=np.uint8).reshape(len(values), bytes_per_code(self.n_bits))


def _as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Rows as pymilvus takes them."""
    texts = [b"{}"] * len(rows) if rows.texts is None else rows.texts
    made: list[dict[str, Any]] = []
    for row, (number, text) in enumerate(zip(rows.ids.tolist(), texts)):
        fields = json.loads(text)
        dotted = next((name for name in fields if "." in name), None)
        if dotted is not None:
            raise InvalidInput(
                f"metadata field {dotted!r} has a dot, which conditions on Milvus take for a step into an "
                "object. Rename it, or leave metadata out (--without-metadata)."
            )
        made.append({"id": number, "code": rows.codes[row].tobytes(), "metadata": fields})
        if rows.vectors is not None:
            made[-1]["vector"] = rows.vectors[row]
    return made
