"""Store: what every place for codes outside of auxbit can do, its address, and the rows put there."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Array, Distances, Float32, Ids, Packed, check_finite, check_integer
from auxbit.core.maps import check_n_bits, check_packed, refuse_hamming
from auxbit.core.parallel import Workers
from auxbit.data.records import encode_metadata
from auxbit.errors import InvalidInput, InvalidParameter, StoreError, StoreExists
from auxbit.index.codes import check_ids, repeats

Progress = Callable[[int], object]
Answer = tuple[Array, Array]  # distances and ids of one query

PADDING_DISTANCE, PADDING_ID = np.iinfo(np.int32).max, -1
MOST_ANSWERS = 2**31 - 1
CANDIDATES, FEWEST = 10, 100  # for each answer, if these are ranked again, by default, and at least
DEFAULT_NAME = "auxbit_codes"
MARK = "auxbit store: "  # in front of what a comment or description says about a place of ours


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
        """A message from elsewhere, without the password."""
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


# ---- Rows that are added, and answers


@dataclass(frozen=True)
class Rows:
    """Rows to add: codes (n, w), ids (n,), metadata as JSON, n texts or None, vectors (n, D) or None."""

    codes: Packed
    ids: Ids
    texts: list[bytes] | None
    vectors: Float32 | None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """How many bytes they are."""
        dense = 0 if self.vectors is None else self.vectors.nbytes
        return self.codes.nbytes + dense + sum(map(len, self.texts or ()))

    def parts(self, size: int) -> list[Rows]:
        """The same rows, at most `size` at a time."""
        found = []
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            texts = None if self.texts is None else self.texts[rows]
            vectors = None if self.vectors is None else self.vectors[rows]
            found.append(Rows(self.codes[rows], self.ids[rows], texts, vectors))
        return found


def checked_rows(
    codes: npt.ArrayLike, ids: npt.ArrayLike, metadata: Any, vectors: npt.ArrayLike | None, *, n_bits: int,
    n_features: int | None, upsert: bool,
) -> Rows:  # fmt: skip
    """Rows that fit a store, each id once: if an id comes again, its last row counts with `upsert`."""
    packed = np.ascontiguousarray(check_packed(codes, n_bits))
    numbers = np.ascontiguousarray(check_ids(ids, len(packed)))
    metadata = encode_metadata(metadata, len(packed))
    texts = [b"{}" if text is None else text.encode() for text in metadata] if any(metadata) else None
    rows = Rows(packed, numbers, texts, _checked_vectors(vectors, len(packed), n_features))
    twice = repeats(numbers)
    if not twice.any():
        return rows
    if not upsert:
        raise InvalidInput(f"id {numbers[twice][0]} comes twice; nothing was added.")
    _, last = np.unique(numbers[::-1], return_index=True)
    keep = np.sort(len(numbers) - 1 - last)
    kept = None if texts is None else [texts[row] for row in keep.tolist()]
    dense = None if rows.vectors is None else rows.vectors[keep]
    return Rows(packed[keep], numbers[keep], kept, dense)


def _checked_vectors(vectors: npt.ArrayLike | None, n: int, n_features: int | None) -> Float32 | None:
    if vectors is None:
        if n_features is not None and n:
            raise InvalidInput(f"the store keeps vectors of {n_features} numbers: give vectors=…, too.")
        return None if n_features is None else np.zeros((0, n_features), dtype=np.float32)
    if n_features is None:
        raise InvalidInput("the store keeps no vectors: create it with n_features, or leave vectors out.")
    return checked_floats(vectors, n_features, n, "vectors")


def checked_floats(X: npt.ArrayLike, n_features: int, n: int, name: str) -> Float32:
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


def padded(found: list[Answer], k: int, *, real: bool = False) -> tuple[Array, Ids]:
    """Distances and ids of each query's answers as (q, k), the rest padded."""
    far: Any = np.float32(np.inf) if real else PADDING_DISTANCE
    distances = np.full((len(found), k), far, dtype=np.float32 if real else np.int32)
    ids = np.full((len(found), k), PADDING_ID, dtype=np.int64)
    for query, (near, numbers) in enumerate(found):
        distances[query, : len(near)], ids[query, : len(numbers)] = near, numbers
    return distances, ids


def joined(found: list[Answer]) -> tuple[Ids, Distances, Ids]:
    """Each query's answers end to end: lims (q+1,), distances, ids."""
    lims = np.zeros(len(found) + 1, dtype=np.int64)
    lims[1:] = np.cumsum([len(ids) for _, ids in found])
    distances = np.concatenate([np.zeros(0), *(near for near, _ in found)]).astype(np.int32)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(numbers for _, numbers in found)]).astype(np.int64)
    return lims, distances, ids


def by_distance_then_id(distances: Array, ids: Array) -> tuple[Array, Array]:
    """Answers in the order that all stores use."""
    order = np.lexsort((ids, distances))
    return distances[order], ids[order]


# ---- Store


class Store(ABC):
    """Codes with ids, metadata and perhaps vectors, kept by another program, searched there.

    Results are those of HammingIndex if the store is exact (`exact`); equal distances are ordered by id
    if the store can. `where` means what it means to a Collection; a store that cannot express it exactly
    says so. Ids are integers of 0 and up. A store is one place, a table or collection, with a mark of ours
    that says what it holds; what has no such mark is never touched.
    """

    batch_rows: int  # that are best added at once
    place: str  # "table" or "collection"
    dimensions: tuple[int, int]  # the fewest and the most that a vector may have

    def __init__(self, address: Address, name: str) -> None:
        self.address, self.name = address, name
        self._about: dict[str, Any] | None = None  # what the mark says, once it has been read

    # ---- what every store does in the same way

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return int(self._known()["n_bits"])

    @property
    def n_features(self) -> int | None:
        """Numbers of a vector, None if only codes are kept."""
        found: int | None = self._known()["n_features"]
        return found

    @property
    def model(self) -> str | None:
        """The fingerprint of the model that makes the codes, None if that is not known."""
        found: str | None = self._known().get("model")
        return found

    @property
    def exists(self) -> bool:
        """Whether the place is there and ours, made by `create`; an error if it is somebody else's."""
        return self._find() is not None

    def create(
        self, n_bits: int, *, n_features: int | None = None, coding: str = "hash", mu: float = 0.0,
        model: str | None = None, overwrite: bool = False,
    ) -> None:  # fmt: skip
        """Make an empty store. overwrite : replace one of ours; what is not ours is never touched.

        n_features : keep vectors of that many numbers beside the codes, to rank results again by them.
        coding, mu, model : what the codes will be, and the fingerprint of the hasher that makes them.
        """
        n_bits = check_n_bits(n_bits)
        refuse_for_decoder(coding, mu)
        if n_features is not None:
            n_features = check_integer("n_features", n_features, *self.dimensions)
        about = {
            "n_bits": n_bits, "n_features": n_features, "coding": coding, "mu": mu, "model": model,
            "key": secrets.token_hex(16), "version": 1,
        }  # fmt: skip
        with self.transaction():
            self._prepare(n_features)
            present = self._find()
            if present is not None and not overwrite:
                raise StoreExists(
                    f"the {self.place} {self.name!r} exists, with codes of {present['n_bits']} bits. Choose "
                    "another name, or replace it with --force (overwrite=True)."
                )
            self._make(about, present)
        self._about = about

    def add(
        self, codes: npt.ArrayLike, ids: npt.ArrayLike, *, metadata: Any = None,
        vectors: npt.ArrayLike | None = None, upsert: bool = True, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Add packed codes (n, ceil(n_bits/8)) uint8 under ids (n,); rows of ids that are there are replaced.

        metadata : as Collection.add takes it. vectors : (n, n_features). upsert=False : an id that is there
        is an error, and nothing is added. progress : called with numbers of rows as they go in.
        """
        rows = checked_rows(
            codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=self.n_features, upsert=upsert
        )
        if len(rows):
            self._add(rows, upsert, progress or (lambda n: None))

    def search(
        self, codes: npt.ArrayLike, k: int = 10, *, where: Any = None, rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:  # fmt: skip
        """The k nearest codes to each query: distances (q, k) int32 and ids (q, k) int64, nearest first.

        If there are fewer, rows end in ids of -1 at distance 2**31 - 1. rerank : the queries as vectors,
        (q, n_features): `candidates` (10 k) are found by their codes and ranked by ‖x − y‖², float32.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = check_packed(codes, self.n_bits, "codes")
        if rerank is None:
            return padded(self._nearest(queries, k, where), k)
        if self.n_features is None:
            raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
        X = checked_floats(rerank, self.n_features, len(queries), "rerank")
        most = self.default_candidates(k) if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        return padded(self._reranked(queries, X, k, where, most), k, real=True)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive: lims (q+1,), distances, ids, as HammingIndex has them."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        return joined(self._within(queries, min(r, self.n_bits), where))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.shown!r}, {self.name!r})"

    def _find(self) -> dict[str, Any] | None:
        """What the mark says, None if the place is not there; an error if it is not ours."""
        text = self._description()
        if text is None:
            return None
        about = read_mark(text)
        if about is None or "n_bits" not in about:
            raise StoreExists(
                f"there is a {self.place} {self.name!r} that auxbit has not made, and it is left alone. "
                "Choose another name."
            )
        return about

    def _known(self) -> dict[str, Any]:
        """What the mark says, read once; an error if the place is not there."""
        if self._about is None:
            found = self._find()
            if found is None:
                where = f"{self.name!r} in {self.address.shown}"
                raise StoreError(f"there is no {self.place} {where}: create it first.")
            self._load()
            self._about = found
        return self._about

    def default_candidates(self, k: int) -> int:
        """How many are ranked again for k answers, by default."""
        return max(CANDIDATES * k, FEWEST)

    # ---- what a store has to say

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether `search` misses nothing; searches within a radius and with `where` never do."""

    @abstractmethod
    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""

    @abstractmethod
    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""

    @abstractmethod
    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} for one that has none or is not there."""

    @abstractmethod
    def create_index(self, kind: str) -> None:
        """Build an approximate index over what is there, of a kind that the store has."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """What is changed inside is changed as a whole, if the store can do that."""

    @abstractmethod
    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push has brought here."""

    @abstractmethod
    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how far a push is; None: it is complete, and forgotten."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def _description(self) -> str | None:
        """The text that the mark is in, None if the place is not there."""

    @abstractmethod
    def _prepare(self, n_features: int | None) -> None:
        """Refuse what cannot be made, before anything is looked for."""

    @abstractmethod
    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        """Make the place, with a mark, instead of the present one if there is one."""

    @abstractmethod
    def _load(self) -> None:
        """Get ready for searches of a place that is there."""

    @abstractmethod
    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """Bring in rows, of which there is at least one."""

    @abstractmethod
    def _nearest(self, queries: Packed, k: int, where: Any) -> list[Answer]:
        """Each query's k nearest."""

    @abstractmethod
    def _within(self, queries: Packed, r: int, where: Any) -> list[Answer]:
        """All within distance r of each query, equal distances by id."""

    @abstractmethod
    def _reranked(self, queries: Packed, X: Float32, k: int, where: Any, candidates: int) -> list[Answer]:
        """Each query's k nearest by ‖x − y‖², of candidates by their codes."""


def refuse_for_decoder(coding: str, mu: float) -> None:
    """Refuse codes that a store cannot search."""
    refuse_hamming(
        "what is pushed", coding, mu,
        "Stores search by Hamming distance: push hash codes (--coding hash), a collection that keeps its "
        "vectors (--vectors float16), from which they are made, or optimal codes of a mu of 0.03 and more.",
    )  # fmt: skip


def mark(**about: Any) -> str:
    """The text that marks a place as ours."""
    return MARK + json.dumps(about, sort_keys=True)


def read_mark(text: str) -> dict[str, Any] | None:
    """What such a text says about a place, None if that is not ours."""
    if not text.startswith(MARK):
        return None
    try:
        about = json.loads(text[len(MARK) :])
    except ValueError:
        return None
    return about if isinstance(about, dict) and isinstance(about.get("n_bits", 0), int) else None
