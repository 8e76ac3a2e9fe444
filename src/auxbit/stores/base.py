"""Store: what every place for codes outside of auxbit can do, and the rows that are put there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from auxbit.collection.metadata import Offsets, Text, encode_rows
from auxbit.core.checks import check_finite
from auxbit.core.codes import check_packed
from auxbit.core.parallel import Workers
from auxbit.core.types import Array, Distances, Ids, Packed
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.index.codes import check_ids, repeats

Vectors = npt.NDArray[np.float32]
Progress = Callable[[int], object]

PADDING_DISTANCE, PADDING_ID = np.iinfo(np.int32).max, -1
MOST_ANSWERS = 2**31 - 1
CANDIDATES = 10  # for each answer, where these are ranked anew, unless told
DEFAULT_NAME = "auxbit_codes"


class Store(Protocol):
    """Codes with ids, metadata and perhaps vectors, kept by another program, searched there.

    Answers are those of HammingIndex where the store is exact (`exact`); equal distances are ordered by id
    where the store can. `where` means what it means to a Collection; a store that cannot ask for it exactly
    says so. Ids are integers of 0 and up.
    """

    batch_rows: int  # that are best added at once

    @property
    def n_bits(self) -> int:
        """Bits of a code."""

    @property
    def n_features(self) -> int | None:
        """Numbers of a vector, None where only codes are kept."""

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing; searches within a radius and with `where` never do."""

    @property
    def exists(self) -> bool:
        """Whether a store of ours is there, made by `create`."""

    def create(self, n_bits: int, *, n_features: int | None = None, overwrite: bool = False) -> None:
        """Make an empty store. overwrite : replace one of ours; what is not ours is never touched.

        n_features : keep vectors of so many numbers beside the codes, to rank answers anew by them.
        """

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
        """Add packed codes (n, ceil(n_bits/8)) uint8 under ids (n,); rows of ids that are there are replaced.

        metadata : as Collection.add takes it. vectors : (n, n_features). upsert=False : an id that is there
        is an error, and nothing is added. progress : called with numbers of rows as they go in.
        """

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""

    def search(
        self,
        codes: npt.ArrayLike,
        k: int = 10,
        *,
        where: Any = None,
        rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:
        """The k nearest codes to each query: distances (q, k) int32 and ids (q, k) int64, nearest first.

        Rows end in ids of -1 at distance 2**31 - 1 where there are fewer. rerank : the queries as vectors,
        (q, n_features): `candidates` (10 k) are found by their codes and ranked by ‖x − y‖², float32.
        """

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive: lims (q+1,), distances, ids, as HammingIndex has them."""

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} where one has none or is not there."""

    def create_index(self, kind: str) -> None:
        """Build an approximate index over what is there, of a kind that the store has."""

    def transaction(self) -> AbstractContextManager[object]:
        """What is changed inside is changed as a whole, where the store can do that."""

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has brought here."""

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is; None: it is complete, and forgotten."""

    def close(self) -> None:
        """End the connection."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@dataclass(frozen=True)
class Rows:
    """Rows to add: codes (n, w), ids (n,), metadata as text with offsets (n+1,), vectors (n, D) or None."""

    codes: Packed
    ids: Ids
    offsets: Offsets
    text: Text
    vectors: Vectors | None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_metadata(self) -> bool:
        """Whether any row has metadata."""
        return len(self.text) > 0

    def texts(self) -> list[bytes]:
        """The metadata of each row as JSON."""
        content, ends = self.text.tobytes(), self.offsets.tolist()
        return [content[start:stop] or b"{}" for start, stop in itertools.pairwise(ends)]

    def parts(self, size: int) -> list[Rows]:
        """The same rows, at most `size` at a time."""
        found = []
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            ends = self.offsets[first : first + size + 1]
            text = self.text[int(ends[0]) : int(ends[-1])]
            vectors = None if self.vectors is None else self.vectors[rows]
            found.append(Rows(self.codes[rows], self.ids[rows], ends - ends[0], text, vectors))
        return found


def checked_rows(
    codes: npt.ArrayLike,
    ids: npt.ArrayLike,
    metadata: Any,
    vectors: npt.ArrayLike | None,
    *,
    n_bits: int,
    n_features: int | None,
    upsert: bool,
) -> Rows:
    """Rows that go with a store, each id once: of ids that come again, the last row counts with `upsert`."""
    packed = np.ascontiguousarray(check_packed(codes, n_bits))
    numbers = np.ascontiguousarray(check_ids(ids, len(packed)))
    offsets, text = encode_rows(metadata, len(packed))
    rows = Rows(packed, numbers, offsets, text, _checked_vectors(vectors, len(packed), n_features))
    twice = repeats(numbers)
    if not twice.any():
        return rows
    if not upsert:
        raise InvalidInput(f"id {numbers[twice][0]} comes twice; nothing was added.")
    _, last = np.unique(numbers[::-1], return_index=True)
    keep = np.sort(len(numbers) - 1 - last)
    texts = rows.texts()
    kept = [texts[row] for row in keep.tolist()] if rows.has_metadata else []
    ends = np.zeros(len(keep) + 1, dtype=np.int64)
    if kept:
        ends[1:] = np.cumsum([len(each) for each in kept])
    content = np.frombuffer(b"".join(kept), dtype=np.uint8)
    dense = None if rows.vectors is None else rows.vectors[keep]
    return Rows(packed[keep], numbers[keep], ends, content, dense)


def _checked_vectors(vectors: npt.ArrayLike | None, n: int, n_features: int | None) -> Vectors | None:
    if vectors is None:
        if n_features is not None and n:
            raise InvalidInput(f"the store keeps vectors of {n_features} numbers: give vectors=…, too.")
        return None if n_features is None else np.zeros((0, n_features), dtype=np.float32)
    if n_features is None:
        raise InvalidInput("the store keeps no vectors: create it with n_features, or leave vectors out.")
    return checked_floats(vectors, n_features, n, "vectors")


def checked_floats(X: npt.ArrayLike, n_features: int, n: int, name: str) -> Vectors:
    """X : (n, n_features), finite, as float32."""
    rows = np.asarray(X)
    if rows.shape != (n, n_features) or rows.dtype.kind not in "fiub":
        raise InvalidInput(
            f"{name} must be rows of {n_features} numbers, shape ({n}, {n_features}); got shape "
            f"{rows.shape} of {rows.dtype}."
        )
    with Workers(1, blas=False) as workers:
        check_finite(rows, workers, name)
    with np.errstate(over="ignore"):
        dense = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(dense).all():
        raise InvalidInput(f"{name} has numbers too large for float32. Rescale them.")
    return dense


def padded(found: list[tuple[Array, Array]], k: int, *, real: bool = False) -> tuple[Array, Ids]:
    """Distances and ids of each query's answers as (q, k), the rest padded."""
    far: Any = np.float32(np.inf) if real else PADDING_DISTANCE
    distances = np.full((len(found), k), far, dtype=np.float32 if real else np.int32)
    ids = np.full((len(found), k), PADDING_ID, dtype=np.int64)
    for query, (near, numbers) in enumerate(found):
        distances[query, : len(near)], ids[query, : len(numbers)] = near, numbers
    return distances, ids


def joined(found: list[tuple[Array, Array]]) -> tuple[Ids, Distances, Ids]:
    """Each query's answers end to end: lims (q+1,), distances, ids; by distance, then id."""
    lims = np.zeros(len(found) + 1, dtype=np.int64)
    lims[1:] = np.cumsum([len(ids) for _, ids in found])
    distances = np.concatenate([np.zeros(0), *(near for near, _ in found)]).astype(np.int32)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(numbers for _, numbers in found)]).astype(np.int64)
    return lims, distances, ids


def by_distance_then_id(distances: Array, ids: Array) -> tuple[Array, Array]:
    """Answers in the order that all stores use."""
    order = np.lexsort((ids, distances))
    return distances[order], ids[order]


# ---- What stores on servers share: a table or collection with a mark of ours that says what it holds


class Place(Protocol):
    """A table or collection."""

    name: str

    def find(self) -> dict[str, Any] | None:
        """What its mark says, None where it is not there; an error where it is not ours."""

    def known(self) -> dict[str, Any]:
        """What its mark says, read once; an error where it is not there."""


class MarkedStore:
    """A store that is one place, `_place`, of a connection that `close` ends."""

    _place: Place

    @property
    def name(self) -> str:
        """Of the table or collection."""
        return self._place.name

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return int(self._place.known()["n_bits"])

    @property
    def n_features(self) -> int | None:
        """Numbers of a vector, None where only codes are kept."""
        found: int | None = self._place.known()["n_features"]
        return found

    @property
    def exists(self) -> bool:
        """Whether it is there and ours; an error where it is somebody else's."""
        return self._place.find() is not None

    def close(self) -> None:
        """End the connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---- Addresses of stores: postgresql://…, milvus://…, file.db. Passwords are never shown

FORMS = "postgresql://user@host/database, milvus://host:19530 or a file.db of Milvus Lite"
MILVUS_PORT = 19530
HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """Where a store is. kind : "pgvector", "milvus", "milvus file"; shown : without the password."""

    kind: str
    text: str
    shown: str
    parts: SplitResult

    def hide(self, message: str) -> str:
        """A message of somebody else, without the password."""
        for word in {self.parts.password or "", unquote(self.parts.password or "")} - {""}:
            message = message.replace(word, HIDDEN)
        return message


def parse(url: str) -> Address:
    """The address that is meant, or an error with the forms that there are."""
    text = str(url)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if not scheme and Path(text).suffix.lower() == ".db":
        return Address("milvus file", text, text, urlsplit(""))
    if scheme not in ("postgresql", "postgres", "milvus"):
        is_faiss = text.lower().startswith("faiss:") or text.lower().endswith(".faiss")
        hint = "FAISS files are written by `auxbit export`." if is_faiss else ""
        raise InvalidParameter("to", _without_password(text), FORMS, hint)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its message may quote the password
        raise _malformed(text, "its port or host cannot be read") from None
    if parts.netloc.count("@") > 1:
        raise _malformed(text, "it has two @: write one that is part of a password as %40")
    if scheme == "milvus":
        if not parts.hostname or parts.query or parts.fragment or "/" in parts.path.strip("/"):
            raise _malformed(text, "expected milvus://[user:password@]host[:port][/database]")
        return Address("milvus", text, _shown(parts, port or MILVUS_PORT), parts)
    if parts.fragment:
        raise _malformed(text, "it has a #: write one that is part of a password as %23")
    return Address("pgvector", text, _shown(parts, port), parts)


def _shown(parts: SplitResult, port: int | None) -> str:
    user = f"{parts.username}@" if parts.username else ""
    host = parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{user}{place}{f':{port}' if port else ''}{parts.path}"


def _without_password(text: str) -> str:
    """What may be shown of an address that cannot be parsed: nothing between the scheme and the last @."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}" if "@" in rest else text


def _malformed(text: str, why: str) -> InvalidParameter:
    return InvalidParameter("to", _without_password(text), FORMS, f"Of this one, {why}.")


# ---- A store by its address


def connect(url: str, name: str = DEFAULT_NAME, **options: Any) -> Store:
    """The store at postgresql://…, milvus://host:port, or in a file.db of Milvus Lite.

    name : of the table or collection there. options : as the store's class takes them.

    >>> with connect("postgresql://localhost/photos", "codes") as store:
    ...     store.create(n_bits=64)
    ...     store.add(codes, ids, metadata=rows)
    ...     distances, ids = store.search(query_codes, k=10, where={"year": {">=": 2020}})
    """
    address = parse(url)
    if address.kind == "pgvector":
        from auxbit.stores.pgvector import PgvectorStore

        return PgvectorStore(address, name, **options)
    from auxbit.stores.milvus import MilvusStore

    return MilvusStore(address, name, **options)
