"""Store: what every place for codes outside of auxbit can do, its address, and the rows put there."""

from __future__ import annotations

import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Array, Distances, Float32, Ids, Packed, as_array, check_finite, check_integer
from auxbit.core.decoders import Decoder, squared_distances
from auxbit.core.maps import (
    Scaling,
    bytes_per_code,
    check_n_bits,
    check_packed,
    lifted,
    lifted_queries,
    refuse_hamming,
)
from auxbit.core.parallel import Workers, block_slices
from auxbit.data.records import encode_metadata
from auxbit.data.vectors import as_rows
from auxbit.errors import InvalidInput, InvalidParameter, StoreError, StoreExists
from auxbit.index.codes import check_ids, repeats
from auxbit.index.hamming import coding_for

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

Progress = Callable[[int], object]

PADDING_DISTANCE, PADDING_ID = np.iinfo(np.int32).max, -1
MOST_ANSWERS = 2**31 - 1
CANDIDATES, FEWEST = 10, 100  # for each answer, if these are ranked by vectors, by default, and at least
RANKED, FEWEST_RANKED = 50, 500  # the same, if they are ranked by the decoder
QUERIES_AT_ONCE = 64  # in one request, or ranked together
MODES = ("hamming", "asymmetric")
DEFAULT_NAME = "auxbit_codes"
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
MARK = "auxbit store: "  # in front of what a comment or description says about a place of ours


# ---- Addresses of stores: postgresql://…, milvus://…, file.db, file.sqlite …. Passwords are never shown

ENDINGS = {
    ".sqlite": "sqlite", ".sqlite3": "sqlite", ".duckdb": "duckdb", ".lancedb": "lancedb", ".chdb": "chdb",
    ".db": "milvus file",
}  # fmt: skip
FORMS = (
    "postgresql://user@host/database, milvus://host:19530, a file.sqlite, a file.duckdb, a folder.lancedb, a "
    "folder.chdb (ClickHouse) or a file.db of Milvus Lite; sqlite:PATH and the like for other names"
)
MILVUS_PORT = 19530
HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """Where a store is. kind : "pgvector", "milvus", or one of ENDINGS; shown : without the password.

    text : the URL, or the path of a file or folder.
    """

    kind: str
    text: str = field(repr=False)
    shown: str
    parts: SplitResult = field(repr=False)

    def hide(self, message: str) -> str:
        """A message from elsewhere, without the password."""
        for word in {self.parts.password or "", unquote(self.parts.password or "")} - {""}:
            message = message.replace(word, HIDDEN)
        return message


def parse(url: str) -> Address:
    """The address in a text; InvalidParameter, with the forms that are known, if it is none."""
    text = str(url)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    before, _, path = text.partition(":")
    if not scheme and before in ENDINGS.values() and path:
        return Address(before, path, path, urlsplit(""))
    if not scheme and Path(text).suffix.lower() in ENDINGS:
        return Address(ENDINGS[Path(text).suffix.lower()], text, text, urlsplit(""))
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
    """What may be shown of an address that cannot be parsed: the scheme, and what is from an @ to a ?."""
    scheme, slashes, rest = text.partition("://") if "://" in text else ("", "", text)
    _, at, place = rest.rpartition("@")
    return scheme + slashes + (HIDDEN + at if at else "") + place.partition("?")[0]


def _malformed(text: str, why: str) -> InvalidParameter:
    return InvalidParameter("to", _without_password(text), FORMS, f"This one cannot be read: {why}.")


# ---- Rows that are added, and answers


@dataclass(frozen=True)
class Rows:
    """Rows to add: codes (n, w), ids (n,), metadata as JSON, n texts or None, vectors (n, D) or None.

    norms : (n,) float32, what the decoder adds to the sums of its tables; None if no decoder is kept.
    """

    codes: Packed
    ids: Ids
    texts: list[bytes] | None
    vectors: Float32 | None
    norms: Float32 | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """How many bytes they are."""
        dense = 0 if self.vectors is None else self.vectors.nbytes
        return self.codes.nbytes + dense + sum(map(len, self.texts or ()))

    def take(self, places: Array) -> Rows:
        """Some of the rows."""
        texts = None if self.texts is None else [self.texts[place] for place in places.tolist()]
        vectors, norms = (None if each is None else each[places] for each in (self.vectors, self.norms))
        return Rows(self.codes[places], self.ids[places], texts, vectors, norms)

    def parts(self, size: int) -> Iterator[Rows]:
        """The same rows, at most `size` at a time."""
        for some in block_slices(len(self), size):
            yield self.take(np.arange(some.start, some.stop))


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
    return rows.take(np.sort(len(numbers) - 1 - last))


def _checked_vectors(vectors: npt.ArrayLike | None, n: int, n_features: int | None) -> Float32 | None:
    if vectors is None:
        if n_features is not None and n:
            raise InvalidInput(f"the store keeps vectors of {n_features} numbers: give vectors, too.")
        return None if n_features is None else np.zeros((0, n_features), dtype=np.float32)
    if n_features is None:
        raise InvalidInput("the store keeps no vectors: create it with n_features, or leave out vectors.")
    return checked_floats(vectors, n_features, n, "vectors")


def checked_floats(X: npt.ArrayLike, n_features: int, n: int, name: str) -> Float32:
    """X : (n, n_features), finite, as float32."""
    rows = as_array(X, name)
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


def sought_ids(ids: npt.ArrayLike) -> Ids:
    """Ids to look up, (n,), of which some may not be there, such as the -1 of a missing result."""
    given = as_array(ids, "ids")
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise InvalidInput(f"ids must be a list of integers; got shape {given.shape} of {given.dtype}.")
    return given.astype(np.int64)


class Found(NamedTuple):
    """What one query finds: distances (n,), ids (n,), and if they are wanted, codes or vectors (n, …)."""

    distances: Array
    ids: Array
    values: Array | None = None

    def sorted(self, k: int | None = None) -> Found:
        """In the order that all stores use, by distance, then id; the first k."""
        order = np.lexsort((self.ids, self.distances))[:k]
        return Found(*(None if each is None else each[order] for each in self))  # type: ignore[arg-type]


def padded(found: list[Found], k: int, *, real: bool = False) -> tuple[Array, Ids]:
    """Distances and ids of each query's answers as (q, k), the rest padded."""
    far: Any = np.float32(np.inf) if real else PADDING_DISTANCE
    distances = np.full((len(found), k), far, dtype=np.float32 if real else np.int32)
    ids = np.full((len(found), k), PADDING_ID, dtype=np.int64)
    for query, (near, numbers, _) in enumerate(found):
        distances[query, : len(near)], ids[query, : len(numbers)] = near, numbers
    return distances, ids


def joined(found: list[Found]) -> tuple[Ids, Distances, Ids]:
    """Each query's answers end to end: lims (q+1,), distances, ids."""
    lims = np.zeros(len(found) + 1, dtype=np.int64)
    lims[1:] = np.cumsum([len(each.ids) for each in found])
    distances = np.concatenate([np.zeros(0), *(each.distances for each in found)]).astype(np.int32)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(each.ids for each in found)]).astype(np.int64)
    return lims, distances, ids


# ---- Ranking again: by the decoder, and by vectors


def by_decoder(decoder: Decoder, X: Array, found: list[Found], k: int) -> list[Found]:
    """Each query's k nearest by ‖x − f(z)‖², of what was found with codes. X : (q, D), not scaled."""
    best = []
    for x, (_, ids, codes) in zip(X, found):
        squared = np.zeros(0) if codes is None else squared_distances(decoder, x, codes)
        best.append(Found(np.maximum(squared, 0).astype(np.float32), ids).sorted(k))
    return best


def by_vectors(X: Float32, found: list[Found], k: int) -> list[Found]:
    """Each query's k nearest by ‖x − y‖², of what was found with vectors. X : (q, D)."""
    best = []
    for x, (_, ids, vectors) in zip(X.astype(np.float64), found):
        assert vectors is not None
        best.append(Found(((vectors - x) ** 2).sum(axis=1), ids).sorted(k))
    return best


def comparable(X: Array, scaling: Scaling, *, queries: bool = False) -> Array:
    """Rows whose Euclidean distances are those that the model of that scaling is for."""
    if scaling.lift:
        return (lifted_queries if queries else lifted)(X, scaling.lift).astype(np.float32)
    if not scaling.normalize:
        return X
    norms = np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    divided: Array = (X / np.where(norms > 0, norms, 1)).astype(np.float32)
    return divided


# ---- How far pushes are: what has no transaction to note it in is noted in a small file here


def state_folder() -> Path:
    """Where the notes are: $XDG_STATE_HOME/auxbit/pushes, or that of ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "auxbit" / "pushes"


class LocalPushes:
    """Notes about pushes into one store, which its `key` names; a store that is made again has another key.

    A note is written after its rows are in, so it never says too much; rows that are pushed again because it
    says too little replace themselves.
    """

    def __init__(self, key: str) -> None:
        self._path = state_folder() / f"{key}.json"

    def pushed(self, source: str) -> int:
        """How many rows of a source are in, 0 if nothing is known."""
        return self._read().get(source, 0)

    def remember(self, source: str, rows: int | None) -> None:
        """Note that that many rows are in; None: all of them, and the note is removed."""
        notes = self._read()
        notes.pop(source, None)
        if rows is not None:
            notes[source] = rows
        if notes:
            files.write_text(self._path, json.dumps(notes))
        else:
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        try:
            notes = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no note, or one that is damaged: then everything is pushed again
            return {}
        whole = isinstance(notes, dict) and all(isinstance(rows, int) for rows in notes.values())
        return notes if whole else {}


# ---- Store


class Store(ABC):
    """Codes with ids, metadata and optional vectors, stored and searched by another program.

    Results are those of HammingIndex if the store is exact (`exact`); equal distances are ordered by id
    if the store can do that. `where` means the same as in a Collection; a store that cannot express it
    exactly raises an error. Ids are integers of 0 and up. A store is one table or collection, which `create`
    marks as made by auxbit; anything without that mark is never changed.
    """

    batch_rows: int  # that are best added at once
    place: str = "table"  # or "collection"
    dimensions: tuple[int, int] = (1, 16_000)  # the fewest and the most that a vector may have
    indexes: tuple[str, ...] = ()  # kinds of approximate indexes that it can build
    ranks_itself = False  # whether it can rank by a decoder, if it gets norms of codes

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
        """The dimension of the vectors, None if only codes are kept."""
        found: int | None = self._known()["n_features"]
        return found

    @property
    def model(self) -> str | None:
        """The fingerprint of the model that makes the codes, None if it is not known."""
        found: str | None = self._known().get("model")
        return found

    @property
    def coding(self) -> tuple[str, float]:
        """How the codes are made, as in `encode`: coding and mu."""
        return self._known().get("coding", "hash"), self._known().get("mu", 0.0)

    @property
    def exists(self) -> bool:
        """Whether `create` has made the table or collection; an error if something else has its name."""
        return self._find() is not None

    def create(
        self, n_bits: int, *, n_features: int | None = None, coding: str = "hash", mu: float = 0.0,
        model: str | Hasher | None = None, overwrite: bool = False,
    ) -> None:  # fmt: skip
        """Make an empty store. overwrite : replace it if auxbit made it; nothing else is ever replaced.

        n_features : keep vectors of that many numbers with the codes, to rank results again by them.
        coding, mu, model : how the codes will be made, and by which hasher, or its fingerprint. If the
        hasher's decoder suits the codes, PostgreSQL keeps what it needs to rank by the decoder itself.
        """
        n_bits = check_n_bits(n_bits)
        refuse_for_decoder(coding, mu)
        if n_features is not None:
            n_features = check_integer("n_features", n_features, *self.dimensions)
        about = {
            "n_bits": n_bits, "n_features": n_features, "coding": coding, "mu": mu,
            "model": model if model is None or isinstance(model, str) else model.fingerprint(),
            "key": secrets.token_hex(16), "version": 1,
        }  # fmt: skip
        hasher = None if isinstance(model, str) or not self.ranks_itself else model
        if hasher is not None and suits(hasher.decoder_, n_bits, coding, mu):
            about["decoder"] = hasher.fingerprint("optimal")
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
        vectors: npt.ArrayLike | None = None, model: Hasher | None = None, upsert: bool = True,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Add packed codes (n, ceil(n_bits/8)) uint8 under ids (n,); rows with existing ids are replaced.

        metadata : as in Collection.add. vectors : (n, n_features). model : the hasher that made the codes,
        if the store was created with it. upsert=False : an existing id is an error, and nothing is added.
        progress : called with numbers of rows as they are added.
        """
        rows = checked_rows(
            codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=self.n_features, upsert=upsert
        )
        if self._known().get("decoder") is not None:
            if model is None or not self._ranks_by(model):
                raise InvalidInput(
                    f"{self} ranks by the decoder of the model that it was created with: give model, too."
                )
            rows = replace(rows, norms=model.decoder_.squared_norms(rows.codes))
        if len(rows):
            self._add(rows, upsert, progress or (lambda n: None))

    def search(
        self, queries: npt.ArrayLike, k: int = 10, *, model: Hasher | None = None, mode: str | None = None,
        where: Any = None, rerank: npt.ArrayLike | bool | None = None, candidates: int | None = None,
    ) -> tuple[Array, Ids]:  # fmt: skip
        """The k nearest rows to each query: distances (q, k) and ids (q, k) int64, nearest first.

        queries : packed codes, (q, ceil(n_bits/8)) uint8; or with `model`, the hasher that made the codes of
            the store, vectors (q, D). If there are fewer than k rows, ids end in -1, at distance 2**31 - 1 or
            infinity.
        mode : "hamming", distances int32; or "asymmetric", by the model's decoder: `candidates` (50 k, at
            least 500) are found by Hamming distance and ranked by ‖x − f(z)‖², float32. None: asymmetric if
            there is a model whose decoder is for these codes.
        rerank : rank `candidates` (10·k, at least 100) by the vectors y that the store keeps, ‖x − y‖²,
            float32: the queries as vectors, (q, n_features), or True if a model is given. None: rerank if
            the store keeps vectors, and a model but no mode is given; False: do not.
        """
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        codes, X = self._asked(queries, model)
        ranked = self.ranking(model, mode, rerank)
        if ranked == "hamming":
            if candidates is not None:
                raise InvalidInput("candidates is for searches that rank again: give a model or rerank, too.")
            return padded(self._nearest(codes, k, where), k)
        most = self.default_candidates(k, ranked) if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        found: list[Found] = []
        if ranked == "vectors":
            if model is not None:
                rerank = comparable(X, model.scaling_, queries=True)
            X = checked_floats(as_array(rerank, "rerank"), self.n_features or 0, len(codes), "rerank")
        for some in block_slices(len(codes), QUERIES_AT_ONCE):
            if ranked == "vectors":
                found += self._reranked(codes[some], X[some], k, where, most)
            else:
                found += self._decoded(codes[some], X[some], model, k, where, most)
        return padded(found, k, real=True)

    def _asked(self, queries: npt.ArrayLike, model: Hasher | None) -> tuple[Packed, Array]:
        """Codes and vectors of queries; no vectors, (0, 0), if they are codes."""
        if model is None:
            return check_packed(queries, self.n_bits, "codes"), np.zeros((0, 0))
        self.check_model(model)
        X = as_array(as_rows(queries), "queries")
        if X.ndim != 2 or X.shape[1] != model.n_features_in_ or X.dtype.kind not in "fiub":
            raise InvalidInput(
                f"with a model, queries are rows of {model.n_features_in_} numbers; got shape {X.shape} of "
                f"{X.dtype}. To search by codes, leave out the model."
            )
        check_finite(X, name="queries")
        if not len(X):
            return np.zeros((0, bytes_per_code(self.n_bits)), dtype=np.uint8), X
        return model.encode(X, queries=True), X

    def check_model(self, model: Hasher) -> None:
        """Refuse a model that did not make the codes of the store."""
        if self.model not in (None, model.fingerprint()):
            raise InvalidInput(
                f"the codes of {self} were made by another model: give the one whose codes were pushed."
            )
        if model.code_bits("hash") != self.n_bits:
            raise InvalidInput(
                f"the model makes codes of {model.code_bits('hash')} bits, and the store has {self.n_bits}."
            )

    def ranking(self, model: Hasher | None, mode: str | None = None, rerank: Any = None) -> str:
        """What a search will rank by: "hamming", "vectors", or "asymmetric", the decoder."""
        if mode not in (None, *MODES):
            raise InvalidParameter("mode", mode, "'hamming' or 'asymmetric'")
        if rerank is True and model is None:
            raise InvalidInput("rerank=True needs a model to prepare the queries: give rerank=X, or a model.")
        if rerank is None and model is not None and mode is None:
            rerank = self.n_features is not None
        if rerank is not None and rerank is not False:
            if self.n_features is None:
                raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
            return "vectors"
        if mode == "asymmetric" and model is None:
            raise InvalidInput('mode="asymmetric" ranks by a decoder: give vectors as queries, and a model.')
        if model is None or mode == "hamming":
            return "hamming"
        if suits(model.decoder_, self.n_bits, *self.coding):
            return "asymmetric"
        if mode is None:
            return "hamming"
        raise InvalidInput(
            "the decoder of this model is fitted to optimal codes, but the store holds hash codes, which "
            'it cannot rank. Search with mode="hamming", or push codes of a model whose decoder is '
            "fitted to them: --coding hash, or --coding optimal --mu 0.03, which can be searched both ways."
        )

    def _ranks_by(self, model: Hasher | None) -> bool:
        """Whether the store itself can rank by the decoder of this model."""
        own = self._known().get("decoder")
        return own is not None and model is not None and own == model.fingerprint("optimal")

    def _decoded(
        self, queries: Packed, X: Array, model: Any, k: int, where: Any, candidates: int
    ) -> list[Found]:
        """Each query's k nearest by ‖x − f(z)‖², of candidates by their codes, ranked here."""
        return by_decoder(model.decoder_, X, self._nearest(queries, candidates, where, "code"), k)

    def _reranked(self, queries: Packed, X: Float32, k: int, where: Any, candidates: int) -> list[Found]:
        """Each query's k nearest by ‖x − y‖², of candidates by their codes, ranked here."""
        return by_vectors(X, self._nearest(queries, candidates, where, "vector"), k)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive: lims (q+1,), distances, ids, as HammingIndex returns."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        return joined(self._within(queries, min(r, self.n_bits), where))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.shown!r}, {self.name!r})"

    def __str__(self) -> str:
        return f"{self.name} in {self.address.shown}"

    def drop(self) -> None:
        """Remove the table or collection with all its rows, if auxbit made it."""
        present = self._find()
        if present is not None:
            with self.transaction():
                self._drop(present)
        self._about = None

    def _find(self) -> dict[str, Any] | None:
        """What the mark says, None if the place is not there; an error if it is not ours."""
        text = self._description()
        if text is None:
            return None
        about = read_mark(text)
        if about is None or "n_bits" not in about:
            raise StoreExists(
                f"the {self.place} {self.name!r} was not made by auxbit, so it is not changed. "
                "Choose another name."
            )
        return about

    def _known(self) -> dict[str, Any]:
        """What the mark says, read once; an error if the place is not there."""
        if self._about is None:
            found = self._find()
            if found is None:
                where = f"{self.name!r} in {self.address.shown}"
                raise StoreError(f"there is no {self.place} {where}: create it first (auxbit store push).")
            self._load()
            self._about = found
        return self._about

    def default_candidates(self, k: int, ranked: str = "vectors") -> int:
        """How many are ranked again for k answers, by default."""
        return max(CANDIDATES * k, FEWEST) if ranked == "vectors" else max(RANKED * k, FEWEST_RANKED)

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing; searches within a radius and with `where` never do."""
        return True

    def create_index(self, kind: str) -> None:
        """Build an approximate index over the codes, of a kind that the store has."""
        raise InvalidParameter("kind", kind, "none: this store reads all codes, and has no index for bits")

    def transaction(self) -> AbstractContextManager[None]:
        """A `with` block whose changes are made all or none, if the store can do that."""
        return nullcontext()

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push from this machine has added."""
        return LocalPushes(self._known()["key"]).pushed(source)

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note how many rows a push has added; None: it is complete, and the note is removed."""
        LocalPushes(self._known()["key"]).remember(source, rows)

    # ---- what a store has to say

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
    def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def _description(self) -> str | None:
        """The text that the mark is in, None if the place is not there."""

    def _prepare(self, n_features: int | None) -> None:  # noqa: B027
        """Refuse what cannot be made, before anything is looked for."""

    @abstractmethod
    def _make(self, about: dict[str, Any], present: dict[str, Any] | None) -> None:
        """Make the place, with a mark, instead of the present one if there is one."""

    @abstractmethod
    def _drop(self, present: dict[str, Any]) -> None:
        """Remove the place that is there."""

    def _load(self) -> None:  # noqa: B027
        """Get ready for searches of a place that is there."""

    @abstractmethod
    def _add(self, rows: Rows, upsert: bool, progress: Progress) -> None:
        """Bring in rows, of which there is at least one."""

    @abstractmethod
    def _nearest(self, queries: Packed, k: int, where: Any, column: str = "") -> list[Found]:
        """Each query's k nearest; column : "code" or "vector", to be found with them."""

    @abstractmethod
    def _within(self, queries: Packed, r: int, where: Any) -> list[Found]:
        """All within distance r of each query, equal distances by id."""


def suits(decoder: Decoder, n_bits: int, coding: str, mu: float) -> bool:
    """Whether a decoder means something for such codes."""
    try:
        return decoder.n_bits == n_bits and bool(coding_for(decoder, coding, mu))
    except InvalidInput:
        return False


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
