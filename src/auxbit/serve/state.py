"""What all endpoints share: the site with its collection and limits, and what it remembers of it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.concurrency import run_in_threadpool

from auxbit.collection.collection import Collection
from auxbit.collection.storage import State
from auxbit.core.checks import Array, Float32, Float64, Ids, Packed, require
from auxbit.core.maps import pack, unpack
from auxbit.data.vectors import nearest
from auxbit.data.where import Where
from auxbit.errors import CollectionError, Damaged, FileProblem, InvalidInput
from auxbit.evaluate import code_counts, effective_bits_bound
from auxbit.hashers.registry import label_of
from auxbit.images.decode import Decoders
from auxbit.images.pictures import COMPARISON, Pictures
from auxbit.images.sources import natural
from auxbit.serve.security import MAX_K, Limits, Problem, logger, not_found, problem_of

# ---- A collection that changes while it is served

Made = TypeVar("Made")
Place = Callable[[int], str]  # of an item in what came, from 0, to what it is called
Row = dict[str, Any]
Embed = Callable[[list[str]], Any]  # n texts → (n, D)
Moment = tuple[str, int, int, int, int]  # key, generation, items deleted, metadata updated, commit

TRIES = 10  # at a collection that changes while it is read


def moment_of(collection: Collection) -> Moment:
    """What tells one state of a collection from another; the first two change with the codes' meaning."""
    state = collection.state
    return state.key, state.generation, state.deleted, state.updated, state.commit


def consistently(collection: Collection, work: Callable[[], Made]) -> Made:
    """What `work` makes of several reads of a collection, all of one state of its codes.

    It is done again if an item was deleted, or all codes were replaced, between two of them.
    """
    for attempt in range(TRIES):
        before = moment_of(collection)
        try:
            made = work()
        except Exception:  # parts of two states can fail together in any way
            if attempt == TRIES - 1 or moment_of(collection) == before:
                raise
            continue
        if moment_of(collection)[:2] == before[:2]:
            break
    return made


class Cached(Generic[Made]):
    """What is made of a collection, kept until that changes. make : gets what was kept before, or None."""

    def __init__(self, collection: Collection, make: Callable[[Made | None], Made]) -> None:
        self._collection, self._make = collection, make
        self._lock = threading.Lock()
        self._kept: tuple[Moment, Made] | None = None

    def __call__(self) -> Made:
        """As of now."""
        with self._lock:
            moment = moment_of(self._collection)
            if self._kept is None or self._kept[0] != moment:
                self._kept = moment, self._make(None if self._kept is None else self._kept[1])
            return self._kept[1]


# ---- File names in memory, and their orders

Order = npt.NDArray[np.intp]

CHUNK = 16_384  # rows of metadata parsed at once
KEPT_ORDERS = 4


@dataclass(frozen=True)
class Listing:
    """Ids in the order in which they were added, and their names; moment : when it was read."""

    moment: Moment
    ids: Ids
    names: list[str]
    _random: OrderedDict[int, Order] = field(default_factory=OrderedDict)

    def select(self, part: str, order: str, seed: int) -> Ids:
        """The ids whose names have this part, in either case, in the order wanted."""
        if order == "added":
            places: Order = np.arange(len(self.ids))
        else:
            places = self._by_name if order == "name" else self._shuffled(seed)
        if part:
            wanted = part.casefold()
            matches = np.fromiter((wanted in name for name in self._folded), np.bool_, len(self.names))
            places = places[matches[places]]
        found: Ids = self.ids[places]
        return found

    def _shuffled(self, seed: int) -> Order:
        """By a hash of seed and id: what is added later leaves the order of the rest as it was."""
        found = self._random.get(seed)
        if found is None:
            found = np.argsort(_mixed(self.ids.astype(np.uint64), seed), kind="stable")
            self._random[seed] = found
            while len(self._random) > KEPT_ORDERS:
                self._random.popitem(last=False)
        return found

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.names]

    @cached_property
    def _by_name(self) -> Order:
        keys = [natural(name) for name in self.names]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)


def read_listing(collection: Collection, before: Listing | None) -> Listing:
    """The listing as of now; if the collection has only grown since `before`, only what is new is read."""
    for attempt in range(TRIES):
        moment, ids = moment_of(collection), collection.ids
        grown = before is not None and before.moment[:4] == moment[:4]
        names = list(before.names) if before is not None and grown else []
        try:
            for first in range(len(names), len(ids), CHUNK):
                names += map(name_in, collection.metadata(ids[first : first + CHUNK]))
        except InvalidInput:  # one of them has been deleted meanwhile
            if attempt == TRIES - 1:
                raise
            continue
        if len(names) == len(ids) and moment_of(collection) == moment:
            break
    # if the collection never rests, what was read last
    return Listing(moment, ids[: len(names)], names[: len(ids)])


def name_in(row: dict[str, object]) -> str:
    """The file name in an item's metadata, as text that UTF-8 has."""
    return str(row.get("file", "")).encode(errors="replace").decode()


def _mixed(ids: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """A number for each id and seed that looks random: the finaliser of splitmix64."""
    x = ids + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


# ---- What answers say of items

ITEMS = "/api/v1/items"
OWN_FIELDS = {"file", "root", "sha256", "bytes", "mtime_ns", "width", "height", "format", "taken"}
SECRET_FIELDS = {"root"}
MOST = 50_000  # items; a few hundred bytes each


class Known(NamedTuple):
    """An item: its document, its code as bytes, and as text of 0 and 1; both empty if not asked for."""

    item: dict[str, Any]
    code: bytes = b""
    bits: str = ""


class KnownItems:
    """Items that have been in an answer, kept while the collection stays as it is.

    To parse their metadata takes longer than to search.
    """

    def __init__(self, collection: Collection, item_of: Callable[[Any, Row], Row]) -> None:
        self._collection, self._item_of, self._lock = collection, item_of, threading.Lock()
        self._moment: Moment | None = None
        self._kept: dict[Any, Known] = {}

    def of(self, ids: Sequence[Any], *, codes: bool) -> list[Known]:
        """What is known of these items, with their codes; InvalidInput if one is not in the collection."""
        collection, moment = self._collection, moment_of(self._collection)
        with self._lock:
            if moment != self._moment or len(self._kept) > MOST:
                self._moment, self._kept = moment, {}
            kept = self._kept
        found = {id_: each for id_ in ids if (each := kept.get(id_)) is not None and (each.code or not codes)}
        missing = [id_ for id_ in ids if id_ not in found]
        if missing:
            rows = collection.metadata(missing)
            made = {id_: Known(self._item_of(id_, row)) for id_, row in zip(missing, rows, strict=True)}
            if codes:
                packed = collection.codes(missing)
                texts = bits_text(packed, collection.n_bits)
                for id_, code, text in zip(missing, packed, texts, strict=True):
                    made[id_] = Known(made[id_].item, code.tobytes(), text)
            found |= made
            if moment_of(collection) == moment:  # else what was read is for this answer alone
                kept.update(made)
        return [found[id_] for id_ in ids]


def bits_text(codes: Packed, n_bits: int) -> list[str]:
    """Codes as text of 0 and 1. codes : (n, bytes) packed → n texts of n_bits characters."""
    text = (unpack(codes, n_bits) + ord("0")).tobytes().decode("ascii")
    return [text[first : first + n_bits] for first in range(0, len(text), n_bits)]


def version_of(row: Row) -> str:
    """What changes when the picture of an item does, from its metadata."""
    return str(row.get("sha256", ""))[:12]


def item_of(id_: Any, row: Row) -> Row:
    """What every listing says of an item, from its metadata."""
    return {"id": plain_id(id_), "metadata": row}


def picture_of(id_: int, row: Row) -> Row:
    """The same of a picture; where on this machine its file is, is not told."""
    return {
        "id": id_,
        "metadata": {name: value for name, value in row.items() if name not in OWN_FIELDS},
        "file": name_in(row),
        "width": row.get("width", 0),
        "height": row.get("height", 0),
        "thumbnail": f"{ITEMS}/{id_}/thumbnail?v={version_of(row)}",
    }


def plain_id(id_: Any) -> int | str:
    """An id for JSON, which has no UUIDs."""
    return id_ if isinstance(id_, int) else str(id_)


# ---- The model, and how its codes use their bits

BLOCK = 8192
FIELDS = ("iteration", "mu", "E_Q", "E_BA", "changed", "mismatched", "precision")


def report(collection: Collection) -> bytes:
    """The report as JSON; it takes a pass over all codes."""

    def document() -> dict[str, Any]:
        if collection.state.model is None:
            raise Problem(404, "no_model", "The collection holds codes without a model.")
        model, codes, n_bits = collection.model, collection.codes(), collection.n_bits
        balance, correlation = bit_statistics(codes, n_bits)
        counts = code_counts(codes) if len(codes) else np.zeros(0, dtype=np.int64)
        share = counts / max(1, counts.sum())
        sizes, buckets = (each.tolist() for each in np.unique(counts, return_counts=True))
        training = getattr(model, "training_", None)
        return {
            "method": label_of(model),
            "bits": n_bits,
            "items": len(codes),
            "dimension": int(model.n_features_in_),
            "parameters": {name: _plain(value) for name, value in model.get_params(deep=False).items()},
            "history": [
                {name: _plain(getattr(record, name)) for name in FIELDS}
                for record in getattr(model, "history_", [])
            ],
            "effective_bits": {
                "bits": n_bits,
                "effective": round(max(0.0, float(-(share * np.log2(share)).sum())), 4),
                "bound": round(effective_bits_bound(n_bits, len(codes)), 4) if len(codes) else 0.0,
            },
            "balance": np.round(balance, 4).tolist(),
            "correlation": (np.round(correlation, 3) + 0.0).tolist(),
            "buckets": {
                "distinct": len(counts),
                "largest": int(counts[0]) if len(counts) else 0,
                "sizes": [{"items": size, "buckets": n} for size, n in zip(sizes, buckets)],
            },
            "training": None if training is None else {
                "rows": int(training.n_rows), "error": float(training.error), "coding": training.coding,
                "mu": float(training.mu),
            },
        }  # fmt: skip

    return json.dumps(consistently(collection, document), allow_nan=False, separators=(",", ":")).encode()


def bit_statistics(codes: Packed, n_bits: int) -> tuple[Float64, Float64]:
    """The share of ones of each bit, (L,), and the correlations of bits, (L, L); 0 of one that never varies.

    codes : (n, ceil(L/8)) packed
    """
    ones, both = np.zeros(n_bits), np.zeros((n_bits, n_bits))
    for first in range(0, len(codes), BLOCK):
        Z = unpack(codes[first : first + BLOCK], n_bits).astype(np.float32)  # sums of a block are exact
        ones += Z.sum(axis=0)
        both += Z.T @ Z
    n = max(1, len(codes))
    share = ones / n
    covariance = both / n - np.outer(share, share)
    spread = np.sqrt(share * (1 - share))
    scale = np.outer(spread, spread)
    correlation = np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)
    np.fill_diagonal(correlation, np.where(spread > 0, 1.0, 0.0))
    return share, np.clip(correlation, -1.0, 1.0)


def _plain(value: Any) -> Any:
    """A value for JSON; anything but numbers, text and lists or dicts of them is named by its type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= 100:
        return [_plain(each) for each in value]
    return type(value).__name__


def modes_of(state: State) -> tuple[list[str], str]:
    """How a collection can be searched, and how it is by default."""
    modes = [] if state.by_decoder else ["hamming"]
    if state.model is not None:
        modes.append("asymmetric")
    if state.vectors is not None:
        return [*modes, "reranked"], "reranked"
    return modes, "asymmetric" if state.coding == "optimal" and state.model is not None else modes[0]


def measure(site: Site) -> dict[str, Any]:
    """The collection in figures, which change only with it, and what the server allows."""
    collection, recipe = site.collection, None if site.pictures is None else site.pictures.recipe
    state, found = collection.state, collection.stats()
    modes, default = modes_of(state)
    return {
        "name": "collection" if site.path is None else site.path.name.removesuffix(".auxbit"),
        "items": found.items,
        "bits": found.n_bits,
        "method": None if state.model is None else label_of(collection.model),
        "metric": site.metric,
        "coding": state.coding,
        "mu": float(state.mu),
        "dimension": found.n_features or 0,
        "vectors": state.vectors,
        "ids": state.ids,
        "fields": site.fields(),
        "features": None if recipe is None else {
            "kind": recipe.kind, "side": recipe.side, "colour": float(recipe.colour), "grey": recipe.grey
        },
        "modes": modes,
        "default_mode": default,
        "has_radius": not state.by_decoder,
        "has_pictures": recipe is not None,
        "has_text_search": site.embed is not None,
        "writable": site.writable,
        "reconstructs": site.reconstructs,
        "bytes": found.bytes,
        "added_since_training": found.added,
        "retrain": found.retrain,
        "reasons": found.reasons,
        "max_k": MAX_K,
        "max_upload_bytes": site.limits.upload_bytes,
        "max_upload_pixels": site.limits.upload_pixels,
    }  # fmt: skip


# ---- Duplicates


@dataclass(frozen=True)
class Duplicates:
    """Groups of ids, first of each what is worth keeping: a larger picture, or what was added earlier.

    spare : what is left over if that is kept
    """

    groups: list[list[Any]]
    spare: list[Any]


def find_duplicates(site: Site, radius: int | None) -> Duplicates:
    """Groups of the same files, or of the same vectors and codes; or of codes within a Hamming radius."""
    if site.pictures is not None:
        copies = [
            sorted(group, key=lambda each: each.action != "keep")
            for group in site.pictures.duplicates(radius)
        ]
        spare = [each.id for group in copies for each in group if each.action != "keep"]
        return Duplicates([[each.id for each in group] for group in copies], spare)
    collection = site.collection
    groups = [group.tolist() for group in collection.duplicates(radius or 0)]
    if radius is None and collection.state.vectors is not None:
        groups = [part for group in groups for part in _same_vectors(collection, group)]
    return Duplicates(groups, [id_ for group in groups for id_ in group[1:]])


def _same_vectors(collection: Collection, ids: list[Any]) -> list[list[Any]]:
    found: dict[bytes, list[Any]] = {}
    for id_, vector in zip(ids, collection.vectors(ids)):
        found.setdefault(vector.tobytes(), []).append(id_)
    return [group for group in found.values() if len(group) > 1]


# ---- Uploads, remembered so that they can be searched from again by their hash


@dataclass(frozen=True, eq=False)
class Upload:
    """hash : SHA-256 of the file; file : the name that it came with; vector : (D,) float32.

    key : of the collection whose recipe made the vector
    """

    hash: str
    key: str
    file: str
    thumbnail: bytes
    width: int
    height: int
    vector: npt.NDArray[np.float32]

    @property
    def n_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.thumbnail) + self.vector.nbytes + 1000


class Uploads:
    """At most `most`, of at most `most_bytes` together; those used last are kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Upload] = OrderedDict()
        self._bytes = 0

    def find(self, hash_: str, key: str) -> Upload | None:
        """The upload, which now is the one used last; None if it is unknown in this collection."""
        with self._lock:
            found = self._kept.get(hash_)
            if found is None or found.key != key:
                return None
            self._kept.move_to_end(hash_)
            return found

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, upload: Upload) -> None:
        """Remember one, and forget those that were not used for longest."""
        with self._lock:
            before = self._kept.pop(upload.hash, None)
            self._bytes += upload.n_bytes - (before.n_bytes if before is not None else 0)
            self._kept[upload.hash] = upload
            while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
                self._bytes -= self._kept.popitem(last=False)[1].n_bytes


# ---- The site

DECODING_THREADS = 8
QUICK_ITEMS = 200_000  # a search of that many takes a few milliseconds
QUICK_BITS = 2**27  # so does a search of that many bits by Hamming distance
LONGEST_NAME = 300


class Site:
    """A collection that is being served, of pictures or of any vectors.

    decoders : what decodes uploads, closed by whoever made them; None: processes of the site's own
    embed : makes vectors of texts, to search by words; by default the network for words that pictures may
        have. writable : whether clients may add and delete
    """

    def __init__(
        self, source: Pictures | Collection, limits: Limits, decoders: Decoders | None = None, *,
        embed: Embed | None = None, writable: bool = False,
    ) -> None:  # fmt: skip
        self.pictures = source if isinstance(source, Pictures) else None
        self.collection = source.collection if isinstance(source, Pictures) else source
        self.path, self.limits = self.collection.path, limits
        self.embed = embed
        if embed is None and self.pictures is not None and self.pictures.has_words:
            self.embed = self.pictures.vectors_of
        self.writable = writable and self.pictures is None
        self._given = decoders
        self._own: Decoders | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock, self._embedding = threading.Lock(), threading.Lock()
        self.uploads = Uploads(limits.uploads, limits.uploads_bytes)
        self.item_of = item_of if self.pictures is None else picture_of
        self.known = KnownItems(self.collection, self.item_of)
        collection = self.collection
        self.listing: Cached[Listing] = Cached(collection, lambda before: read_listing(collection, before))
        self.report: Cached[bytes] = Cached(collection, lambda _: report(collection))
        self.stats: Cached[dict[str, Any]] = Cached(collection, lambda _: measure(self))
        self.fields: Cached[list[str]] = Cached(collection, lambda _: self._fields())
        self._duplicates: Cached[dict[int | None, Duplicates]] = Cached(collection, lambda _: {})

    def _fields(self) -> list[str]:
        hidden = SECRET_FIELDS if self.pictures is not None else set()
        return [name for name in self.collection.describe()["fields"] if name not in hidden]

    def problem_of(self, error: Exception) -> Problem | None:
        """What to answer to an error, without where on this machine the collection is."""
        found = problem_of(error)
        if found is None:
            return None
        folder = f"{(self.path or Path()).absolute().parent}{os.sep}"
        return Problem(found.status, found.code, str(found).replace(folder, ""))

    # ---- what clients name

    def parse_id(self, text: object) -> Any:
        """An id from an address or a document; a problem if no item could have it."""
        try:
            return self.collection.parse_ids([text])[0]
        except InvalidInput:
            raise not_found(f"Item {str(text)[:100]!r}") from None

    def conditions(self, where: str | Row | None) -> Where | None:
        """Conditions on metadata; a problem if they name a field that no item has."""
        if where is None or where == "":
            return None
        wanted = Where.of(where)
        self.check_fields("where", wanted.fields)
        return wanted

    def check_fields(self, parameter: str, names: Iterable[str]) -> None:
        """Refuse fields that no item has: what is then found is seldom what was meant."""
        known = self.fields()
        for name in sorted(names):
            if name not in known and name.partition(".")[0] not in known:
                there = f" Fields are: {', '.join(known[:20])}." if known else " No item has metadata."
                text = f"{parameter}: no item has the field {name!r}.{nearest(name, known)}{there}"
                raise Problem(422, "invalid", text)

    def with_pictures(self) -> Pictures:
        """The pictures; a problem if the collection has none."""
        if self.pictures is None:
            raise Problem(404, "no_pictures", "This is not a collection of pictures.")
        return self.pictures

    def vectors_of(self, texts: list[str]) -> Float32:
        """Texts as vectors, (n, D), by the function that the server was started with."""
        if self.embed is None:
            text = "Search by text needs `auxbit serve --embed module:function`, or, of pictures, "
            text += "`auxbit images create --text-model`."
            raise Problem(422, "no_text_search", text)
        with self._embedding:  # few of such functions are made for several threads
            try:
                found = np.asarray(self.embed(texts), dtype=np.float32)
            except Exception as error:
                logger.exception("the function of --embed failed")
                text = "The function that makes vectors of texts failed; the server's log says how."
                raise Problem(502, "embed_failed", text) from error
        if found.shape != (len(texts), self.collection.state.n_features) or not np.isfinite(found).all():
            logger.error("the function of --embed returned shape %s for %d texts", found.shape, len(texts))
            text = f"The function that makes vectors of texts returned shape {found.shape}, or no numbers."
            raise Problem(502, "embed_failed", text)
        return found

    def duplicates(self, radius: int | None) -> Duplicates:
        """Items that are the same, or near each other, remembered while the collection stays as it is."""
        if radius and self.collection.state.by_decoder:
            text = "Codes of this collection are for the decoder: they have no radius. Leave it out."
            raise Problem(422, "invalid", text)
        kept = self._duplicates()
        if radius not in kept:
            kept[radius] = find_duplicates(self, radius)
        return kept[radius]

    # ---- changes

    def check_writable(self) -> None:
        """Refuse to change what is only to be read."""
        if self.pictures is not None:
            text = "Pictures are added by `auxbit images add`, and nothing is deleted here."
            raise Problem(403, "read_only", text)
        if not self.writable:
            text = "This server only reads. Started with --token SECRET, it lets those add who know it."
            raise Problem(403, "read_only", text)

    def add(self, items: Sequence[Any], *, upsert: bool, place: Place = "items.{}".format) -> list[int | str]:
        """Add items, all or none; returns their ids.

        items : as schemas.NewItem has them. place : what problems call them, counted from 0.
        """
        state = self.collection.state
        X = _rows([each.vector for each in items], "vector", state.n_features, place)
        bits = _rows([each.code and list(map(int, each.code)) for each in items], "code", state.n_bits, place)
        if X is None and bits is None:
            raise Problem(422, "invalid", f"{place(0)} has neither a vector nor a code.")
        ids = _all_or_none([each.id for each in items], "id", place)
        if ids is not None and state.ids is not None:
            ids = list(self.collection.parse_ids(ids))
        metadata = [each.metadata for each in items]
        codes = None if bits is None else pack(bits.astype(np.uint8))
        added = self.collection.add(X, codes=codes, ids=ids, metadata=metadata, upsert=upsert)
        return list(map(plain_id, added.tolist()))

    # ---- pictures

    @property
    def decoders(self) -> Decoders:
        """What decodes uploads."""
        with self._lock:
            if self._given is not None:
                return self._given
            self._own = self._own or Decoders()
            return self._own

    @property
    def decoding(self) -> ThreadPoolExecutor:
        """Threads that wait for decoders: slow pictures must not keep searches waiting."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(DECODING_THREADS, "decoding")
            return self._pool

    @property
    def reconstructs(self) -> bool:
        """Whether a code can be shown as the picture that the decoder makes of it."""
        return self.pictures is not None and self.pictures.recipe.kind == "pixels"

    @property
    def metric(self) -> str:
        """By which neighbours are meant: that of the model."""
        if self.collection.state.model is None:
            return "euclidean"
        return str(self.collection.model.scaling_.metric)

    def code_of(self, X: npt.ArrayLike, state: State) -> Packed:
        """The code of what is searched for, as items have theirs at a state, (n, bytes)."""
        coding = "optimal" if state.by_decoder else "hash"
        return self.collection.model.encode(X, coding=coding, queries=True)

    async def soon(self, work: Callable[[], Made], mode: str | None) -> Made:
        """Search at once, in this thread, if that is short: in another it would mostly wait for its turn.

        In a large collection a search is not short, but for one by Hamming distance.
        """
        state = self.collection.state
        by_bits = (mode or modes_of(state)[1]) == "hamming"
        if state.items <= (QUICK_BITS // state.n_bits if by_bits else QUICK_ITEMS):
            return work()
        return await run_in_threadpool(work)

    def comparison(self) -> Any:
        """The comparison that was run on the collection."""
        path = (self.path or Path()) / COMPARISON
        if self.pictures is None:
            raise Problem(
                404, "no_comparison", "Comparisons are of pictures: `auxbit compare` is for vectors."
            )
        try:
            document = json.loads(path.read_bytes(), parse_constant=lambda name: None)
        except FileNotFoundError:
            command = f"auxbit images compare {path.parent.name}"
            raise Problem(404, "no_comparison", f"No comparison was run here yet: {command}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{path} cannot be read: {error}.") from error
        if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
            raise Damaged(f"{path} is not a comparison.")
        return document

    def metadata(self, id_: Any) -> Row:
        """The metadata of an item; a problem if it is not there."""
        try:
            return self.collection.metadata([id_])[0]
        except InvalidInput:
            raise not_found(f"Item {id_}") from None

    def thumbnail(self, id_: int) -> tuple[bytes, str]:
        """The small picture of an item, and its version."""
        pictures, version = self.with_pictures(), version_of(self.metadata(id_))
        try:
            return pictures.thumbnail(id_), version
        except InvalidInput as error:  # an item that was added without a picture
            raise Problem(404, "not_found", str(error)) from error

    def preview(self, id_: int, row: dict[str, Any]) -> bytes:
        """The picture of an item, read from its file."""
        try:
            content = self.with_pictures().original(id_)
        except CollectionError:
            raise
        except InvalidInput as error:
            raise Problem(404, "not_found", str(error)) from error
        except FileProblem as error:
            raise Problem(
                404, "file_gone",
                f"The file {name_in(row)} is gone, or has changed since item {id_} was made. "
                "Update the collection by `auxbit images add`.",
            ) from error  # fmt: skip
        return self.decoders.preview(content)

    def reconstruction(self, code: Packed) -> bytes:
        """The picture f(z) of a code, (1, bytes), as PNG."""
        if not self.reconstructs:
            raise Problem(404, "no_reconstruction", "Only features of pixels can be shown as pictures.")
        return png(self.with_pictures().describer.picture_of(self.collection.model.decode(code))[0])

    def remember(self, content: bytes, name: str) -> Upload:
        """Decode and describe an uploaded picture, unless it is remembered."""
        if not content:
            raise Problem(422, "empty_file", "The file is empty: 0 bytes came.")
        # the last part of a name from outside: it is shown, and never opened
        last = name.replace("\\", "/").rpartition("/")[2]
        name = "".join(each for each in last if each.isprintable())[:LONGEST_NAME]
        hash_, key = hashlib.sha256(content).hexdigest(), self.collection.state.key
        upload, pictures = self.uploads.find(hash_, key), self.with_pictures()
        if upload is None:
            side, most = pictures.recipe.side, self.limits.upload_pixels
            decoded = self.decoders.decode(content, side, max_pixels=most)
            vector = pictures.describe(decoded)
            upload = Upload(hash_, key, name, decoded.thumbnail, decoded.width, decoded.height, vector)
        upload = replace(upload, file=name)
        self.uploads.keep(upload)
        return upload

    def item_of_upload(self, upload: Upload) -> int | None:
        """The item whose file is the same as an upload, to the byte; None if there is none."""
        found = self.with_pictures().known(upload.hash)
        return found[0] if found else None

    def upload(self, hash_: str) -> Upload:
        """A picture that was uploaded before; a problem if it is forgotten."""
        found = self.uploads.find(hash_, self.collection.state.key)
        if found is None:
            text = "This upload is not remembered any more: upload the picture again."
            raise Problem(404, "upload_gone", text)
        return found

    def close(self) -> None:
        """Wait for what is being decoded; the pictures stay open, and all can be used again."""
        with self._lock:
            pool, own = self._pool, self._own
            self._pool = self._own = None
        if pool is not None:
            pool.shutdown()
        if own is not None:
            own.close()


def _all_or_none(values: list[Any], name: str, place: Place) -> list[Any] | None:
    """The values, or None if no item has one; a problem if some have and some have not."""
    missing = [row for row, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise Problem(422, "invalid", f"{place(missing[0])} has no {name}, but others have one.")
    return values


def _rows(values: list[Any], name: str, length: int | None, place: Place) -> Array | None:
    """Vectors or codes of items as rows of numbers, (n, length); None if no item has one."""
    rows = _all_or_none(values, name, place)
    for row, value in enumerate(rows or ()):
        if len(value) != length:
            text = f"{place(row)}: {name} has {len(value)} numbers; those of this collection have {length}."
            raise Problem(422, "invalid", text)
    with np.errstate(over="ignore"):
        found = None if rows is None else np.array(rows, dtype=np.float32)
    if found is not None and not np.isfinite(found).all():
        row = int(np.isfinite(found).all(axis=1).argmin())
        raise Problem(422, "invalid", f"{place(row)}: {name} has numbers that are too large for float32.")
    return found


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture, (h, w) or (h, w, 3), as PNG."""
    image: Any = require("PIL.Image", extra="web", purpose="drawing pictures").fromarray(pixels)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
