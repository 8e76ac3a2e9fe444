"""A collection of pictures, opened to be searched: what it says of itself, and `Pictures`."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import stat
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit import __version__
from auxbit.collection import storage
from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.core.checks import Float32, Packed, PathLike, check_integer
from auxbit.core.parallel import sample_rows
from auxbit.data.where import Where
from auxbit.errors import (
    AuxbitError,
    BadPicture,
    CollectionError,
    Damaged,
    FileProblem,
    InvalidInput,
    InvalidParameter,
)
from auxbit.images import features
from auxbit.images.decode import Decoded, decode
from auxbit.images.features import Describer, Recipe, Words
from auxbit.images.sources import items_of, read_file
from auxbit.images.views import NAMES, Seen, Views

FORMAT, VERSION = "auxbit pictures", 1
MODES = ("hamming", "asymmetric", "reranked")
VECTORS = "float16"  # as which vectors are kept
MADE_BY = "Collections of pictures are made by `auxbit images create DIR --out NAME`."
MAKE_AGAIN = "make the collection again by `auxbit images create … --force`."
OF_WORDS = (features.TEXT_FILE, features.TOKENIZER_FILE)
COMPARISON, COMPARISON_ROWS = "comparison.json", "comparison-rows.jsonl"
BESIDE = (
    features.FILE,
    *OF_WORDS,
    COMPARISON,
    COMPARISON_ROWS,
)  # files of ours in the folder of the collection
ALIKE = 0.05  # of the mean squared distance of two pictures: what is nearer is taken for a copy
SPREAD_ROWS = 10_000  # of which that mean is
SAME = "the same bytes"  # why a duplicate can be deleted
OF_PICTURES = {"file", "root", "sha256"}  # metadata that every picture has

# ---- What makes a collection one of pictures


@dataclass(frozen=True)
class About:
    """How the vectors and codes of pictures are made, and which folders they come from.

    bits, method, seed : of the model that is fitted once all pictures are read
    roots : absolute folders, in which items name files
    views : whether pictures have further codes, mirrored, turned and cropped
    words : the checksum of the network that makes vectors of words, and of its tokenizer; "" for none
    """

    recipe: Recipe
    bits: int
    method: str
    seed: int
    roots: tuple[str, ...] = ()
    views: bool = False
    words: str = ""

    @property
    def text(self) -> str:
        """As it is kept with the collection, in JSON."""
        document = {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__}
        return json.dumps(document | asdict(self) | {"recipe": self.recipe.document()})

    @classmethod
    def parse(cls, text: str, place: object) -> About:
        """What `text` made. place : where it is kept, for errors."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{place} is damaged: it is not JSON. Restore it, or {MAKE_AGAIN}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise Damaged(f"{place} has unexpected contents. Restore it, or {MAKE_AGAIN}")
        if document.get("format_version") != VERSION:
            raise CollectionError(
                f"{place} was written by auxbit {document.get('auxbit_version')}, and this version cannot "
                "read it. Upgrade: pip install -U auxbit."
            )
        try:
            recipe = Recipe.from_document(document["recipe"])
            roots = tuple(map(str, document["roots"]))
            model = int(document["bits"]), str(document["method"]), int(document["seed"])
            more = bool(document.get("views", False)), str(document.get("words", ""))
            return cls(recipe, *model, roots, *more)
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise Damaged(f"{place} is not complete: {error!r}. Restore it, or {MAKE_AGAIN}") from error

    @classmethod
    def of(cls, collection: Collection, *, finished: bool = False) -> About:
        """What makes a collection one of pictures, and, if `finished`, one that has a model.

        CollectionError if it is not.
        """
        path, state = collection.path, collection.state
        if state.about is None:
            raise CollectionError(f"{path} is a collection, but not of pictures. {MADE_BY}")
        about = cls.parse(state.about, f"{path}: the description of its pictures")
        if finished and state.model is None:
            root = about.roots[0] if about.roots else "DIR"
            resume = shlex.join(["auxbit", "images", "create", root, "--out", str(path)])
            raise CollectionError(
                f"{path} is not finished: its {state.items:,} pictures have no codes yet. "
                f"Resume with: {resume}"
            )
        return about


def open_pictures(
    path: PathLike, *, read_only: bool = False, n_jobs: int | None = None
) -> tuple[Collection, About]:
    """The collection of pictures in a folder; CollectionError if there is none, or it is not finished."""
    storage.check_folder(Path(path), MADE_BY)
    collection = Collection(path, read_only=read_only, n_jobs=n_jobs)
    try:
        return collection, About.of(collection, finished=True)
    except BaseException:
        collection.close()
        raise


# ---- Pictures


class Picture(NamedTuple):
    """A result: the item, its file's name, and how far it is, in bits or as a Euclidean distance.

    view : which view of it that is, "" for the picture as it is
    """

    id: int
    file: str
    distance: float | int
    view: str = ""


class Copy(NamedTuple):
    """A picture of a group of duplicates.

    path : of its file; action : "keep" or "delete", and why; of : which picture that is kept it is a copy of
    """

    id: int
    path: str
    action: str
    why: str
    of: int
    bytes: int
    width: int
    height: int


class _File(NamedTuple):
    """A file that is there, as it was when its item was made."""

    id: int
    path: str
    sha256: str
    bytes: int
    width: int
    height: int


class _Parts(NamedTuple):
    """What belongs to the collection of this key, which another may replace."""

    key: str
    recipe: Recipe
    describer: Describer


class Pictures:
    """A collection of pictures; made by `auxbit.images.build.create`, opened by `open`.

    >>> with Pictures.open("pets.auxbit") as pets:
    ...     for found in pets.search("cat.jpg", k=5):
    ...         print(found.file, found.distance)
    """

    def __init__(self, collection: Collection) -> None:
        assert collection.path is not None  # pictures are never kept in memory alone
        self.collection, self.path = collection, collection.path
        self._changing = threading.Lock()
        self._views: Views | None = None
        self._read_words: tuple[str, Words] | None = None  # with their checksum
        self._parts = self._opened()

    @classmethod
    def open(cls, path: PathLike, *, n_jobs: int | None = None, read_only: bool = True) -> Self:
        """Open a finished collection of pictures; searches see what another process adds."""
        collection, _ = open_pictures(path, read_only=read_only, n_jobs=n_jobs)
        try:
            return cls(collection)
        except BaseException:
            collection.close()
            raise

    def _opened(self) -> _Parts:
        state, recipe = self.collection.state, About.of(self.collection, finished=True).recipe
        describer = Describer(recipe, self.path, n_jobs=self.collection.n_jobs)
        if describer.dimension != state.n_features:
            raise CollectionError(
                f"{self.path} holds vectors of {state.n_features} numbers, and its recipe makes "
                f"{describer.dimension}: {MAKE_AGAIN}"
            )
        return _Parts(state.key, recipe, describer)

    def _now(self) -> _Parts:
        """The parts of the collection that is there now: `create --force` puts another in its place."""
        if self.collection.state.key == self._parts.key:
            return self._parts
        with self._changing:
            if self.collection.state.key != self._parts.key:
                self._views = None  # those that others still search with are closed when they are forgotten
                self._parts = self._opened()
            return self._parts

    def views(self) -> Views | None:
        """The views of the pictures, if there are any and their codes are from the present model."""
        self._now()
        with self._changing:
            if self._views is None:
                self._views = Views.open(self.path, n_jobs=self.collection.n_jobs)
            found = self._views
        return found if found is not None and found.suits(self.collection.state) else None

    @property
    def recipe(self) -> Recipe:
        """How pictures become vectors."""
        return self._now().recipe

    @property
    def describer(self) -> Describer:
        """Makes vectors of pixels."""
        return self._now().describer

    @property
    def roots(self) -> Sequence[str]:
        """The folders that pictures were read from."""
        return About.of(self.collection).roots

    def describe(self, decoded: Decoded) -> Float32:
        """The vector of a picture that was decoded for this recipe's side, (D,), rounded as items' are."""
        vector: Float32 = self.describer(decoded.pixels[None])[0].astype(VECTORS).astype(np.float32)
        return vector

    def known(self, sha256: str) -> list[int]:
        """The ids of the pictures whose files have this SHA-256, in the order in which they were added."""
        return [each["id"] for each in self.collection.list({"sha256": sha256}, limit=None)]

    def about(self, id_: int) -> dict[str, Any]:
        """The metadata of an item; InvalidInput if there is no item with this id."""
        found = self.collection.metadata([id_])[0]
        if not set(found) >= OF_PICTURES:
            raise InvalidInput(f"item {id_} is not a picture: it was added without one.")
        return found

    def thumbnail(self, id_: int) -> bytes:
        """The small picture of an item, PNG or JPEG."""
        self.about(id_)
        try:
            return self.collection.attachment(id_)
        except InvalidInput as error:
            raise Damaged(
                f"{self.path}: the thumbnail of item {id_} is missing. Restore it, or {MAKE_AGAIN}"
            ) from error

    def original(self, id_: int) -> bytes:
        """The file that an item was made from; FileProblem if it is gone, or has changed."""
        about = self.about(id_)
        path = Path(about["root"], about["file"])
        try:
            content = read_file(path)
        except (OSError, BadPicture) as error:
            reason = getattr(error, "strerror", None) or error
            raise FileProblem(f"{path}, from which item {id_} was made, cannot be read: {reason}.") from error
        if files.checksum([content]) != about["sha256"]:
            raise FileProblem(
                f"{path} has changed since item {id_} was made from it. Update the collection by "
                "`auxbit images add`."
            )
        return content

    def search(
        self, picture: PathLike | bytes | int, k: int = 10, *, mode: str | None = None
    ) -> list[Picture]:
        """The k pictures that look most like one: a file, its bytes, or the id of an item.

        mode : "hamming", distances in bits; "asymmetric", from the picture's vector to those that codes
            decode to; "reranked", true distances of the best of these, which is the default.
        An item is not among its own results. A file that is in the collection is recognised by its content,
        and found at distance 0. With views a picture is found by the best of them. BadPicture if a file is
        not a picture.
        """
        k = check_integer("k", k, 1, None, "Try k=10.")
        if isinstance(picture, int | np.integer):
            own = int(picture)
            found = self.nearest(self._vector_of(picture), k + 1, mode=mode)
            return self._named([each for each in found if each.id != own][:k], mode)
        content = picture if isinstance(picture, bytes) else _content(picture)
        known = self.known(files.checksum([content]))
        vector = self._vector_of(known[0]) if known else self._described(picture, content)
        found = self.nearest(vector, k, mode=mode)
        if mode != "asymmetric":
            found = [Seen(id_, 0, "") for id_ in known] + [each for each in found if each.id not in known]
        return self._named(found[:k], mode)

    def search_text(self, text: str, k: int = 10, *, mode: str | None = None) -> list[Picture]:
        """The k pictures that best match a text, if the collection was made with a network for texts."""
        k = check_integer("k", k, 1, None, "Try k=10.")
        return self._named(self.nearest(self._words()(text), k, mode=mode), mode)

    @property
    def has_words(self) -> bool:
        """Whether the collection has a network for words, and can be searched by them."""
        return bool(About.of(self.collection).words)

    def _words(self) -> Words:
        """What makes vectors of words, loaded at first use."""
        wanted = About.of(self.collection).words
        if not wanted:
            raise InvalidInput(
                f"{self.path} cannot be searched by words: it has no network for them. Networks for words "
                "and pictures, like CLIP, have two parts: give that for words to `auxbit images create`, as "
                "--text-model and --tokenizer."
            )
        with self._changing:
            if self._read_words is None or self._read_words[0] != wanted:
                contents = [features.read_network(self.path / name) for name in OF_WORDS]
                if files.checksum(contents) != wanted:
                    raise CollectionError(
                        f"{self.path}: {' or '.join(OF_WORDS)} has changed. Give them again to "
                        "`auxbit images create`, as --text-model and --tokenizer."
                    )
                self._read_words = wanted, Words(contents[0], contents[1])
            return self._read_words[1]

    def nearest(
        self, vector: Float32 | None, k: int, *, mode: str | None = None, codes: Packed | None = None,
        where: Any = None,
    ) -> list[Seen]:  # fmt: skip
        """The k nearest to a vector, (D,), by the best of their views: distances in bits, or squared.

        codes, where : as in Collection.search.
        """
        if mode is not None and mode not in MODES:
            raise InvalidParameter("mode", mode, f"one of {', '.join(MODES)}")
        how: dict[str, Any] = {"rerank": True} if mode == "reranked" else {"mode": mode}
        how["codes"] = codes
        distances, ids = self.collection.search(vector, k, where=where, **how)
        found = [
            Seen(id_, distance, "") for id_, distance in zip(ids.ravel().tolist(), distances.ravel().tolist())
        ]
        views = self.views()
        if views is None:
            return found
        wanted, enough = None if where is None else Where.of(where), k
        while True:  # views of pictures that are not wanted may come first
            seen = views.search(vector, enough, **how)
            nearest = self._best(found + seen, wanted)[:k]
            is_all = len(seen) < enough * len(NAMES)
            if is_all or (len(nearest) == k and nearest[-1].distance <= seen[-1].distance):
                return nearest
            enough *= 8

    def _best(self, seen: list[Seen], wanted: Where | None) -> list[Seen]:
        """Of each picture that is there, and wanted, the nearest view, nearest first."""
        best: dict[int, Seen] = {}
        for each in sorted(seen, key=lambda each: each.distance):
            best.setdefault(each.id, each)
        ids = np.array(list(best), dtype=np.int64)
        ids = ids[self.collection.holds(ids)]
        if wanted is not None and len(ids):
            ids = ids[[wanted.matches(row) for row in self.collection.metadata(ids)]]
        return [best[id_] for id_ in ids.tolist()]

    def vectors_of(self, texts: Sequence[str]) -> Float32:
        """Texts as vectors, (n, D), by the collection's network for them."""
        words = self._words()
        return np.stack([words(text) for text in texts])

    def _named(self, found: list[Seen], mode: str | None) -> list[Picture]:
        about = self.collection.metadata([each.id for each in found]) if found else []
        return [
            Picture(
                each.id, str(row.get("file", "")),
                each.distance if mode == "hamming" else sqrt(max(0.0, each.distance)), each.view,
            )
            for each, row in zip(found, about)
        ]  # fmt: skip

    def _vector_of(self, id_: int) -> Float32:
        if isinstance(id_, bool) or int(id_) not in self.collection:
            raise InvalidInput(f"item {id_} is not in the collection of {len(self):,} pictures.")
        return np.asarray(self.collection.vectors([int(id_)])[0], dtype=np.float32)

    def _described(self, picture: PathLike | bytes, content: bytes) -> Float32:
        try:
            return self.describe(decode(content, self.recipe.side))
        except BadPicture as error:
            if isinstance(picture, bytes):
                raise
            raise BadPicture(f"{os.fspath(picture)} {error}.") from error

    def duplicates(self, radius: int | None = None) -> list[list[Copy]]:
        """Groups of at least two pictures with the same content, or that look the same.

        radius : bits that codes may differ in; None: only files of the same bytes
        At least one of each group is marked "keep": the one with most pixels, then most bytes, then the
        first. A picture that is marked "delete" has the content of one that is kept; or its code is within
        the radius, and its vector much nearer than those of other pictures. Files that are gone, have
        changed, or are links are left out. Nothing is deleted here.
        """
        here = self._files()
        joined = list(_by_content(here.values()))
        if radius is not None:
            joined += self._alike(check_integer("radius", radius, 0, self.collection.n_bits, "Try radius=4."))
        groups = [[here[id_] for id_ in group if id_ in here] for group in _united(joined)]
        most = 0.0 if radius is None else self._most_alike()
        found = [self._sorted_out(group, radius, most) for group in groups if len(group) > 1]
        return [group for group in found if any(each.action == "delete" for each in group)]

    def _files(self) -> dict[int, _File]:
        """The items whose files are there and unchanged, each file once, whatever links lead to it."""
        found: dict[tuple[int, int], _File] = {}
        for path, item in items_of(self.collection).items():
            with suppress(OSError):
                about = os.lstat(path)
                same = (about.st_size, about.st_mtime_ns) == (item.size, item.mtime_ns)
                if same and stat.S_ISREG(about.st_mode) and os.path.realpath(path) == path:
                    one = _File(item.id, path, item.sha256, item.size, item.width, item.height)
                    found.setdefault((about.st_dev, about.st_ino), one)
        return {each.id: each for each in found.values()}

    def _alike(self, radius: int) -> list[list[int]]:
        """Pictures whose codes, or the code of one and a view of the other, are within a radius."""
        joined = [group.tolist() for group in self.collection.duplicates(radius)]
        views = self.views()
        if views is not None:
            for batch in self.collection.batches():
                found = views.within(batch["codes"], radius)
                joined += [[id_, *near] for id_, near in zip(batch["ids"].tolist(), found) if near]
        return joined

    def _sorted_out(self, group: list[_File], radius: int | None, most: float) -> list[Copy]:
        """What to keep of a group, and what can be deleted, the best first."""
        order = sorted(group, key=lambda each: (-each.width * each.height, -each.bytes, each.id))
        looks = {each.id: self._looks_of(each.id) for each in order} if radius is not None else {}
        kept: list[_File] = []
        copies = []
        for each in order:
            copy = next(((one.id, SAME) for one in kept if one.sha256 == each.sha256), None)
            if copy is None and radius is not None:
                apart = [(*_apart(looks[one.id], looks[each.id], radius), one.id) for one in kept]
                squared, why, of = min(apart, default=(np.inf, "", 0))
                copy = (of, why) if squared <= most else None
            if copy is None:
                kept.append(each)
            action, (of, why) = "delete", copy or (each.id, _why_kept(each, order, kept))
            size = each.bytes, each.width, each.height
            copies.append(Copy(each.id, each.path, action if copy else "keep", why, of, *size))
        return copies

    def _looks_of(self, id_: int) -> tuple[Packed, Float32]:
        """Codes and vectors of a picture and of its views, (1 + views, …)."""
        views = self.views()
        code, vector = self.collection.codes([id_]), self.collection.vectors([id_]).astype(np.float32)
        if views is None:
            return code, vector
        codes, vectors = views.of(id_)
        return np.concatenate([code, codes]), np.concatenate([vector, vectors])

    def _most_alike(self) -> float:
        """The squared distance up to which two pictures are taken for copies."""
        ids = self.collection.ids
        X = self.collection.vectors(ids[sample_rows(len(ids), SPREAD_ROWS)]).astype(np.float64)
        return float(ALIKE * 2 * X.var(axis=0).sum())

    def close(self) -> None:
        """Close the collection's files."""
        self.collection.close()
        if self._views is not None:
            self._views.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.collection)

    def __repr__(self) -> str:
        return f"Pictures({str(self.path)!r})"


def _content(picture: PathLike) -> bytes:
    """The bytes of a picture's file."""
    try:
        return read_file(Path(picture))
    except BadPicture as error:
        raise BadPicture(f"{os.fspath(picture)} {error}.") from error
    except (OSError, ValueError) as error:  # of a name with NUL
        why = getattr(error, "strerror", None) or error
        raise FileProblem(f"{os.fspath(picture)} cannot be read: {why}.") from error


# ---- Groups of duplicates


def _by_content(found: Iterable[_File]) -> Iterable[list[int]]:
    groups: dict[str, list[int]] = {}
    for each in found:
        groups.setdefault(each.sha256, []).append(each.id)
    return groups.values()


def _united(joined: Iterable[Sequence[int]]) -> list[list[int]]:
    """Groups that share a member become one; in the order of their first members."""
    leader: dict[int, int] = {}

    def lead(id_: int) -> int:
        while leader.setdefault(id_, id_) != id_:
            leader[id_] = id_ = leader[leader[id_]]
        return id_

    for group in joined:
        for id_ in group:
            one, other = sorted((lead(group[0]), lead(id_)))
            leader[other] = one
    groups: dict[int, list[int]] = {}
    for id_ in sorted(leader):
        groups.setdefault(lead(id_), []).append(id_)
    return list(groups.values())


def _apart(one: tuple[Packed, Float32], other: tuple[Packed, Float32], radius: int) -> tuple[float, str]:
    """The least squared distance of two pictures, or of one and a view of the other, and how far that is.

    Of those whose codes are within a radius; infinite if none are.
    """
    (codes, vectors), (other_codes, other_vectors) = one, other
    differ = np.concatenate([codes[:1] ^ other_codes, other_codes[:1] ^ codes[1:]])
    between = np.concatenate([vectors[:1] - other_vectors, other_vectors[:1] - vectors[1:]])
    bits = np.bitwise_count(differ).sum(axis=1, dtype=np.int64)
    squared = np.where(bits <= radius, (between.astype(np.float64) ** 2).sum(axis=1), np.inf)
    at = int(squared.argmin())
    view = at - 1 if at < len(other_codes) else at - len(other_codes)
    seen = f", {NAMES[view]}" if at else ""
    return float(squared[at]), f"{bits[at]} bits apart{seen}, at distance {np.sqrt(squared[at]):.3g}"


def _why_kept(one: _File, group: list[_File], kept: list[_File]) -> str:
    if len(kept) > 1:
        return "further from the others that are kept"
    rest = [each for each in group if each is not one]
    if all(each.width * each.height < one.width * one.height for each in rest):
        return "most pixels"
    if all((each.width * each.height, each.bytes) < (one.width * one.height, one.bytes) for each in rest):
        return "most bytes of those with most pixels"
    return "added first of those with most pixels and bytes"


def write_duplicates(groups: Sequence[Sequence[Copy]], out: PathLike, *, overwrite: bool = False) -> None:
    """Write groups of duplicates to a file, safely for any file names.

    out : .csv, with a row per picture; or .sh, with a command per file that can be deleted. A command
        deletes only if the file to keep exists, and, for files of the same bytes, if they are still the
        same. Files whose names have control characters are only in the .csv.
    """
    files.check_output(out, overwrite=overwrite, endings=[".csv", ".sh"])
    text = _script(groups) if Path(out).suffix.lower() == ".sh" else _rows(groups)
    files.write_text(out, text, overwrite=overwrite)


def _rows(groups: Sequence[Sequence[Copy]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["group", *Copy._fields])
    writer.writerows((number, *each) for number, group in enumerate(groups, 1) for each in group)
    return stream.getvalue()


def _script(groups: Sequence[Sequence[Copy]]) -> str:
    """A script for sh, which can be read on a terminal: names are quoted, and never in comments."""
    lines = ["#!/bin/sh", "# Deletes duplicates. Read it before you run it.", ""]
    for number, group in enumerate(groups, 1):
        paths = {each.id: shlex.quote(each.path) for each in group}
        lines.append(f"# group {number}, of which {sum(each.action == 'keep' for each in group)} are kept")
        for each in group:
            kept, path = paths[each.of], paths[each.id]
            if each.action == "delete" and not (kept + path).isprintable():
                lines.append(f"# item {each.id}: a name has control characters, see the .csv")
            elif each.action == "delete":
                test = f"cmp -s -- {kept} {path}" if each.why == SAME else f"test -f {kept}"
                lines += [f"# {each.why}", f"{test} && rm -- {path}"]
    return "\n".join(lines) + "\n"
