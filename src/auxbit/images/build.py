"""Making a collection of pictures, and adding to it: pictures are read, a model is trained, codes are made.

Pictures are read in batches, each of which is on disk before the next begins. While there is no model their
codes are zeros; at the end one model is fitted to all vectors, and makes the codes. So work that was stopped
anywhere resumes when it is run again, and ends as if it had never been stopped.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.collection.collection import Collection
from auxbit.collection.storage import is_collection, refuse_existing
from auxbit.core import files
from auxbit.core.checks import Float32, PathLike, check_integer, require
from auxbit.core.maps import bytes_per_code
from auxbit.core.parallel import resolve_n_jobs, sample_rows
from auxbit.core.progress import Progress, Silent
from auxbit.errors import FileProblem, InvalidInput, InvalidParameter, printable
from auxbit.experiments.compare import cells, compare, known_rows, mean_over_seeds
from auxbit.experiments.measure import find_candidates
from auxbit.experiments.study import KeptRows, Row, array_checksum
from auxbit.hashers.files import TRAINING_ROWS
from auxbit.hashers.registry import HASHER_NAMES, find_method, fit_reporting, make_hasher
from auxbit.images import features, pictures, sources
from auxbit.images.decode import Decoders
from auxbit.images.features import Channels, Describer, Recipe, Words
from auxbit.images.pictures import COMPARISON, COMPARISON_ROWS, VECTORS, About, Pictures
from auxbit.images.sources import Bad, Decode, Item, Read, Same, Source, find_sources, fitting, read_pictures
from auxbit.images.views import FOLDER, NAMES, Views, views_of
from auxbit.quantiser.fit import TURNS

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

SIDES = {"gist": (32, 128), "pixels": (8, 32)}  # least and most that is chosen by default
MEASURED = 64  # pictures whose sizes choose the side
BATCH = 256  # pictures at most per batch, which is on disk before the next one is described
MU = 0.01  # on CIFAR-10 at 64 bits this serves Hamming search as well as asymmetric search
LEAST_PICTURES = 2
LARGEST_SEED = 2**32 - 1
SHOWN_BAD = 5
DEFAULT_BITS, DEFAULT_METHOD = 64, "ba"


class _Timed:
    """Passes progress on, and notes the seconds of each stage."""

    def __init__(self, to: Progress | None) -> None:
        self._to = to or Silent()
        self.advance, self.say = self._to.advance, self._to.say
        self._present: tuple[str, float] | None = None
        self._seconds: dict[str, float] = {}

    def stage(self, what: str, total: int | None) -> None:
        self.seconds()
        self._present = what, time.perf_counter()
        self._to.stage(what, total)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage; the stage that runs ends now."""
        if self._present is not None:
            what, since = self._present
            self._seconds[what] = self._seconds.get(what, 0.0) + time.perf_counter() - since
            self._present = None
        return dict(self._seconds)


# ---- Create, build, add


@dataclass
class Report:
    """What was done. bad : name and reason of what could not be read; seconds : by stage.

    moved : pictures that are at another path than before, and keep their items
    missing : items whose file is gone, except those that `prune` removed
    others : how many files do not end as pictures do, by their ending
    fitted : how many pictures there were when the model was fitted
    views : how many further codes each picture has
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    moved: int = 0
    removed: int = 0
    missing: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    items: int = 0
    trained: bool = False
    fitted: int = 0
    views: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def create(
    folder: PathLike,
    out: PathLike,
    *,
    bits: int | None = None,
    method: str | None = None,
    features: str | None = None,
    side: int | None = None,
    colour: float | None = None,
    grey: bool | None = None,
    model: PathLike | None = None,
    mean: Channels | None = None,
    std: Channels | None = None,
    text_model: PathLike | None = None,
    tokenizer: PathLike | None = None,
    seed: int | None = None,
    views: bool | None = None,
    prune: bool = False,
    retrain: bool | None = None,
    overwrite: bool = False,
    n_jobs: int | None = None,
    decoders: Decoders | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make a collection of the pictures in a folder, or resume or update an existing one.

    InvalidInput if it was made from other folders: use `add` for further ones.

    bits, method, seed : parameters of the model; by default 64, "ba", 0
    features : "gist" (the default), "pixels", or "onnx", which is implied by `model`, the file of a network
    side, colour, grey, mean, std : as in Recipe; a side of None suits the pictures
    text_model, tokenizer : the network that makes vectors of the same space from words; its tokenizer.json
    views : also keep codes of each picture mirrored, turned and cropped, so that such copies find it
    prune : delete items whose file is gone
    retrain : fit a new model to all pictures; None: if most of them came after the model was fitted
    overwrite : replace an existing collection; otherwise it is resumed, with the same recipe
    """
    require("PIL.Image", extra="images", purpose="reading pictures")
    wanted = Wanted(features, side, colour, grey, model, mean, std, bits, method, seed, views)
    wanted.check()
    words = _read_words(text_model, tokenizer)
    timed, report, place = _Timed(progress), Report(), Path(out)
    with _present(place, overwrite) as present, _decoding(decoders, n_jobs) as decode:
        if present is not None:
            _refuse_other_folder(folder, *present)
        timed.stage("finding", None)
        if present is not None:
            _refuse_gone([folder], *present)
        found = find_sources([folder], present[1].roots if present else (), report.bad, report.others)
        recipe, network = wanted.recipe(present and present[1].recipe, found, decode, n_jobs)
        with wanted.target(place, present, recipe, timed, report, network=network, n_jobs=n_jobs) as target:
            target.check_words(words)
            target.read(found, decode, sources.scope([folder]), prune=prune)
            target.keep_words(words)
            return target.finish(retrain)


def _read_words(text_model: PathLike | None, tokenizer: PathLike | None) -> list[bytes]:
    """The network for texts and its tokenizer, or neither."""
    given = [each for each in (text_model, tokenizer) if each is not None]
    if len(given) == 1:
        raise InvalidInput(
            "a network for texts and its tokenizer go together: give both --text-model FILE.onnx and "
            "--tokenizer FILE.json."
        )
    return [features.read_network(each) for each in given]


def build(
    sources: Sequence[Source],
    out: PathLike,
    recipe: Recipe,
    *,
    bits: int = DEFAULT_BITS,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    overwrite: bool = False,
    n_jobs: int | None = None,
    decode: Decode,
    progress: Progress | None = None,
) -> Report:
    """Like `create`, for pictures from any source, and a recipe without a network.

    decode : content, side → Decoded: `decode` of auxbit.images.decode for pictures that you made yourself
    """
    wanted = Wanted(bits=bits, method=method, seed=seed)
    wanted.check()
    with (
        _present(Path(out), overwrite) as present,
        wanted.target(Path(out), present, recipe, _Timed(progress), Report(), n_jobs=n_jobs) as target,
    ):
        target.read(sources, decode)
        return target.finish()


def add(
    places: Iterable[PathLike],
    path: PathLike,
    *,
    prune: bool = False,
    retrain: bool | None = None,
    n_jobs: int | None = None,
    decoders: Decoders | None = None,
    progress: Progress | None = None,
) -> Report:
    """Add pictures and folders of them to a collection, encoded by its model.

    Files that are in it already and have not changed are not read again. prune : delete items of these places
    whose file is gone; retrain : then fit a new model to all vectors; None: if most pictures came after it.
    """
    timed, report, places = _Timed(progress), Report(), list(places)
    require("PIL.Image", extra="images", purpose="reading pictures")
    collection, about = pictures.open_pictures(path, n_jobs=n_jobs)
    with collection:
        collection.lock()
        timed.stage("finding", None)
        _refuse_gone(places, collection, about)
        found = find_sources(places, about.roots, report.bad, report.others)
        target = _Target(Path(path), about, timed, report, collection=collection, n_jobs=n_jobs)
        with target, _decoding(decoders, n_jobs) as decode:
            target.read(found, decode, sources.scope(places), prune=prune)
            return target.finish(retrain)


@contextmanager
def _decoding(decoders: Decoders | None, n_jobs: int | None) -> Iterator[Decode]:
    """What decodes: the caller's processes, or ones that end with this."""
    if decoders is not None:
        yield decoders.decode
        return
    with Decoders(resolve_n_jobs(n_jobs)) as own:
        yield own.decode


@contextmanager
def _present(out: Path, overwrite: bool) -> Iterator[tuple[Collection, About] | None]:
    """The collection of pictures at `out`, locked; None if one is to be made."""
    if overwrite or not is_collection(out):
        refuse_existing(out, overwrite=overwrite)
        yield None
        return
    with Collection(out) as collection:
        state = collection.state
        if state.about is None and state.model is None and not state.items:
            collection.close()  # it was stopped before the first picture was in it
            yield None
            return
        about = About.of(collection)
        collection.lock()
        yield collection, about


def _refuse_other_folder(folder: PathLike, collection: Collection, about: About) -> None:
    """Refuse to resume with a folder that the collection does not have its pictures from."""
    place = os.path.realpath(folder)
    if not collection.state.items or any(sources.is_within(place, root) for root in about.roots):
        return
    has = ", ".join(about.roots) or "no folder"
    command = shlex.join(["auxbit", "images", "add", str(collection.path), os.fspath(folder)])
    raise InvalidInput(
        f"{collection.path} has its pictures from {has}, not from {place}. If they were moved there, or "
        f"to add those as well: {command}. Or choose another --out, or add --force to replace it."
    )


def _refuse_gone(places: Iterable[PathLike], collection: Collection, about: About) -> None:
    """Refuse a folder that pictures came from and that is gone, as it may be on a disk that is not there."""
    for place in places:
        root = os.path.realpath(place)
        if root in about.roots and sources.is_gone(root):
            where = f"root={json.dumps(root, ensure_ascii=False)}"
            path = str(collection.path)
            raise FileProblem(
                f"{place} does not exist. If its pictures were moved, name the folder where they are now: "
                "they keep their items. To delete the items of those that are not anywhere: "
                f"{shlex.join(['auxbit', 'collection', 'delete', path, '--where', where])}"
            )


# ---- What is wanted, and what a collection has already


@dataclass(frozen=True)
class Wanted:
    """The settings that were requested; None for what the collection has, or for the default."""

    features: str | None = None
    side: int | None = None
    colour: float | None = None
    grey: bool | None = None
    model: PathLike | None = None
    mean: Channels | None = None
    std: Channels | None = None
    bits: int | None = None
    method: str | None = None
    seed: int | None = None
    views: bool | None = None

    @property
    def kind(self) -> str | None:
        """The features, which a network implies."""
        return "onnx" if self.model is not None else self.features

    def check(self) -> None:
        """Refuse invalid values before any work is done."""
        method = find_method(self.method or DEFAULT_METHOD, HASHER_NAMES)
        if self.bits is not None:
            method.check_bits(self.bits)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, LARGEST_SEED)
        if self.model is not None and self.features not in (None, "onnx"):
            raise InvalidParameter("features", self.features, "'onnx' with the file of a network")
        if self.kind not in (None, "onnx"):
            self._of_pixels(self.kind, self.side or SIDES["gist"][0])

    def recipe(
        self, present: Recipe | None, found: Sequence[Source], decode: Decode, n_jobs: int | None
    ) -> tuple[Recipe, bytes | None]:
        """The recipe, and the bytes of its network if that is to be kept.

        present : of the collection that is resumed, which has what is not requested
        """
        kind = self.kind or (present.kind if present is not None else "gist")
        if kind != "onnx" and (self.mean is not None or self.std is not None):
            raise InvalidParameter("mean", self.mean or self.std, "none without the file of a network")
        before = present if present is not None and present.kind == kind else None
        if before is not None and self.model is None:
            names = ("side", "colour", "grey", "mean", "std")
            changes = {name: value for name in names if (value := getattr(self, name)) is not None}
            return replace(before, **changes), None
        if kind != "onnx":
            return self._of_pixels(kind, self.side or _fitting_side(kind, found, decode, n_jobs)), None
        if self.model is None:
            raise InvalidParameter("features", kind, "the file of a network beside it", "Add --model FILE.")
        mean = self.mean or (before.mean if before is not None else features.NO_MEAN)
        std = self.std or (before.std if before is not None else features.NO_STD)
        content = features.read_network(self.model)
        return features.network_recipe(content, str(self.model), self.side, mean, std), content

    def _of_pixels(self, kind: str, side: int) -> Recipe:
        return Recipe(kind, side, colour=self.colour or 0.0, grey=self.grey or False)

    def target(
        self, out: Path, present: tuple[Collection, About] | None, recipe: Recipe, progress: _Timed,
        report: Report, *, network: bytes | None = None, n_jobs: int | None = None,
    ) -> _Target:  # fmt: skip
        """Where pictures go: the collection that is present, or one that is still to be made."""
        if present is None:
            bits, method = self.bits or DEFAULT_BITS, self.method or DEFAULT_METHOD
            about = About(recipe, bits, method, self.seed or 0, views=self.views or False)
            return _Target(out, about, progress, report, network=network, n_jobs=n_jobs)
        collection, about = present
        self._check_same(collection, about.recipe, recipe)
        about = replace(
            about, bits=self.bits or about.bits, method=self.method or about.method,
            seed=about.seed if self.seed is None else self.seed, views=self.views or about.views,
        )  # fmt: skip
        return _Target(out, about, progress, report, collection=collection, n_jobs=n_jobs)

    def _check_same(self, collection: Collection, before: Recipe, after: Recipe) -> None:
        """Refuse to resume with another recipe, or with another model once there is one."""
        out, old, new = collection.path, before.document(), after.document()
        for key in ("kind", "side", "colour", "grey", "sha256", "mean", "std"):
            if old.get(key) != new.get(key):
                option = {"kind": "--features", "sha256": "--model"}.get(key, f"--{key}")
                which = f"{option} {_shown(old.get(key))}, not {_shown(new.get(key))}"
                which = "another --model" if key == "sha256" else which
                raise InvalidInput(
                    f"{out} was made with {which}. Leave the option out to resume it, choose another --out, "
                    "or add --force to replace it."
                )
        if collection.state.model is not None and self._is_other_model(collection):
            raise InvalidInput(
                f"{out} has a model already. Leave --bits, --method and --seed out to resume it, or fit "
                f"another by `auxbit collection retrain {out}` with these options."
            )

    def _is_other_model(self, collection: Collection) -> bool:
        if self.bits not in (None, collection.n_bits):
            return True
        if self.method is None and self.seed is None:
            return False  # before the model is loaded
        model = collection.model
        if self.method is not None:
            method, has = find_method(self.method), model.get_params(deep=False)
            same = all(has.get(key) == value for key, value in method.options.items())
            if type(model).__name__ != method.estimator or not same:
                return True
        return self.seed not in (None, model.random_state)


def _fitting_side(kind: str, found: Sequence[Source], decode: Decode, n_jobs: int | None) -> int:
    """The median of the shorter sides of some pictures, within SIDES."""
    least, most = SIDES[kind]
    some = found[:: -(-len(found) // MEASURED)]
    read = read_pictures([(source, None) for source in some], decode, least, n_jobs)
    shorter = [min(each.decoded.width, each.decoded.height) for each in read if isinstance(each, Read)]
    return min(max(median_low(shorter), least), most) if shorter else least


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)


# ---- Reading and training


class _Target:
    """The collection that pictures go to, made when the first of them can be added.

    So a folder without a picture that can be read leaves nothing behind.

    network : to be kept with a collection that is still to be made
    collection : one that is open, which is closed by whoever opened it
    """

    def __init__(
        self, out: Path, about: About, progress: _Timed, report: Report, *,
        collection: Collection | None = None, network: bytes | None = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.out, self.about, self.collection = out, about, collection
        self._progress, self._report, self._network, self._n_jobs = progress, report, network, n_jobs
        self._made: Collection | None = None
        self._views: Views | None = None
        self._known: dict[str, Item] = {}
        self._replaces = collection is None and is_collection(out)
        self._keep_about()

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *error: object) -> None:
        for opened in (self._made, self._views):
            if opened is not None:
                opened.close()

    @cached_property
    def _describer(self) -> Describer:
        return Describer(self.about.recipe, self.out, network=self._network, n_jobs=self._n_jobs)

    def read(
        self, found: Sequence[Source], decode: Decode, here: Callable[[str], bool] = lambda path: False,
        *, prune: bool = False,
    ) -> None:  # fmt: skip
        """Bring the items up to date with the sources. here : whether a path is where sources were found."""
        known = sources.items_of(self.collection) if self.collection is not None else {}
        self._want_views(known)
        self._known = known
        to_read: list[tuple[Source, Item | None]] = []
        for source in found:
            item = known.get(source.path)
            if item is not None and (item.size, item.mtime_ns) == (source.size, source.mtime_ns):
                self._report.unchanged += 1
            else:
                to_read.append((source, item))
        if to_read:
            self._progress.stage("reading", len(to_read))
            self._note_roots(source.root for source, _ in to_read)
            self._read(to_read, decode)
        paths = {source.path for source in found}
        gone = [
            item.id for path, item in known.items()
            if path not in paths and here(path) and sources.is_gone(path)
        ]  # fmt: skip
        if gone and prune and self.collection is not None:
            self._report.removed = self.collection.delete(gone)  # their views follow
        else:
            self._report.missing = len(gone)

    def check_words(self, words: list[bytes]) -> None:
        """Refuse, before pictures are read, a network for texts that makes other vectors than theirs."""
        if not words:
            return
        made = Words(words[0], words[1]).dimension
        if made != self._describer.dimension:
            raise InvalidInput(
                f"the network for texts makes {made:,} numbers, and vectors of pictures have "
                f"{self._describer.dimension:,}: they must be of one model, and the first output the vector."
            )

    def keep_words(self, words: list[bytes]) -> None:
        """Keep the network for texts and its tokenizer with the collection."""
        if words and self.collection is not None:
            for name, content in zip(pictures.OF_WORDS, words):
                files.write_bytes(self.out / name, content)
            self.about = replace(self.about, words=files.checksum(words))
            self._keep_about()

    def _want_views(self, known: dict[str, Item]) -> None:
        """Let pictures that have no views, or others, be read as if their content were new."""
        if not self.about.views or self.collection is None:
            return
        have = self._opened_views().checksums()
        for path, item in known.items():
            if have.get(item.id) != item.sha256:
                known[path] = item._replace(size=-1, sha256="")

    def _opened_views(self) -> Views:
        if self._views is None:
            collection = self._ready()
            opened = Views.open(self.out, read_only=False, n_jobs=self._n_jobs)
            self._views = opened or Views.create(collection, n_jobs=self._n_jobs)
        return self._views

    def _note_roots(self, roots: Iterable[str]) -> None:
        """Keep these folders among those that pictures come from."""
        after = tuple(dict.fromkeys([*self.about.roots, *(root for root in roots if root)]))
        self.about = replace(self.about, roots=after)
        self._keep_about()

    def _keep_about(self) -> None:
        """Let the collection say of its pictures what we know, if it is there and says something else."""
        if self.collection is not None and self.collection.about != self.about.text:
            self.collection.about = self.about.text

    def _read(self, wanted: Sequence[tuple[Source, Item | None]], decode: Decode) -> None:
        """Read pictures in batches; add them, or replace the items that they are known by."""
        side = self.about.recipe.side
        batch = fitting(BATCH, side)
        fresh: list[Read] = []
        same: list[Same] = []
        elsewhere = self._elsewhere({source.path for source, _ in wanted})
        with closing(read_pictures(wanted, decode, side, self._n_jobs)) as read:
            for done, each in enumerate(read, 1):
                if isinstance(each, Bad):
                    self._report.bad.append((each.source.name, each.reason))
                elif isinstance(each, Same):
                    same.append(each)
                elif each.known is None and (item := self._moved(elsewhere.get(each.sha256, []))):
                    same.append(Same(each.source, item, moved=True))
                else:
                    fresh.append(each)
                if max(len(fresh), len(same)) >= batch or done == len(wanted):
                    self._add(fresh)
                    self._note_dates(same)
                    fresh, same = [], []
                self._progress.advance(1)

    def _elsewhere(self, paths: set[str]) -> dict[str, list[str]]:
        """The paths of the items that are at none of these, by their SHA-256."""
        found: dict[str, list[str]] = {}
        for path, item in self._known.items():
            if path not in paths and os.path.isabs(path):  # else it was made without a file
                found.setdefault(item.sha256, []).append(path)
        return found

    def _moved(self, paths: list[str]) -> Item | None:
        """The first of the items at these paths whose file is gone; it will have another path."""
        gone = next(filter(sources.is_gone, paths), None)
        if gone is None:
            return None
        paths.remove(gone)
        return self._known.pop(gone)

    def _add(self, batch: list[Read]) -> None:
        """Add pictures with their thumbnails and views."""
        batch, vectors = self._described(batch)
        if not batch:
            return
        collection = self._ready()
        views = self._opened_views() if self.about.views else None
        codes = None
        if collection.state.model is None:
            codes = np.zeros((len(batch), bytes_per_code(collection.n_bits)), dtype=np.uint8)
        is_new = np.array([each.known is None for each in batch])
        for some in (np.flatnonzero(is_new), np.flatnonzero(~is_new)):
            if len(some):
                added = [batch[place] for place in some]
                ids = [each.known.id for each in added if each.known is not None]
                if views is not None:
                    views.drop(ids)  # first: a picture may lack views, but not have those of another
                numbers = collection.add(
                    vectors[some], codes=None if codes is None else codes[some], ids=ids or None,
                    metadata=[each.metadata() for each in added], upsert=bool(ids),
                    attachments=[each.decoded.thumbnail for each in added],
                )  # fmt: skip
                if views is not None:
                    seen = self._seen(np.stack([each.decoded.pixels for each in added]))
                    views.put(numbers.tolist(), [each.sha256 for each in added], seen)
        self._report.added += int(is_new.sum())
        self._report.replaced += int((~is_new).sum())

    def _described(self, batch: list[Read]) -> tuple[list[Read], Float32]:
        """The pictures that vectors can be made of, and their vectors, rounded as they will be kept."""
        if not batch:
            return [], np.empty((0, 0), dtype=np.float32)
        pixels = np.stack([each.decoded.pixels for each in batch])
        try:
            vectors = self._describer(pixels)
        except InvalidInput:  # because of one picture: the others must not be lost
            fine, rows = [], []
            for each, picture in zip(batch, pixels):
                try:
                    rows.append(self._describer(picture[None])[0])
                    fine.append(each)
                except InvalidInput as error:
                    self._report.bad.append((each.source.name, f"cannot be described: {error}"))
            batch, vectors = fine, np.array(rows, dtype=np.float32)
        return batch, _rounded(vectors)

    def _seen(self, pixels: features.Pixels) -> Float32:
        """The vectors of the views of pictures, (n, views, D)."""
        return np.stack([_rounded(self._describer(each)) for each in views_of(pixels)], axis=1)

    def _note_dates(self, same: list[Same]) -> None:
        """Store dates and places of unchanged files, so that they need not be read next time."""
        if same:
            self._ready().update_metadata(
                [each.known.id for each in same], [each.metadata() for each in same]
            )
        moved = sum(each.moved for each in same)
        self._report.moved += moved
        self._report.unchanged += len(same) - moved

    def _ready(self) -> Collection:
        """The collection, made now if it is not there yet."""
        if self.collection is None:
            self.collection = self._made = made = Collection.create(
                self.out, bits=self.about.bits, n_features=self._describer.dimension, vectors=VECTORS,
                overwrite=self._replaces, n_jobs=self._n_jobs,
            )  # fmt: skip
            made.lock()
            # files that a collection which was here before has left
            for left in pictures.BESIDE:
                (self.out / left).unlink(missing_ok=True)
            shutil.rmtree(self.out / FOLDER, ignore_errors=True)
            if self._network is not None:
                files.write_bytes(self.out / features.FILE, self._network)
            self._keep_about()  # last: this is what makes it a collection of pictures
        return self.collection

    def finish(self, retrain: bool | None = None) -> Report:
        """Train if there is no model yet, or it is outgrown; return what was done."""
        report, about = self._report, self.about
        if self.collection is None:
            bad = report.bad
            raise InvalidInput(f"none of the {len(bad):,} pictures could be read.{_some_of(bad)}")
        if self.collection.state.model is None:
            self.collection.index_field("sha256")  # by which a file is recognised
            if len(self.collection) < LEAST_PICTURES:
                raise InvalidInput(
                    f"{self.out} has {len(self.collection)} picture; a model needs at least "
                    f"{LEAST_PICTURES}. Put more into the folder, and run this again.{_some_of(report.bad)}"
                )
            self.train(make_hasher(about.method, about.bits, random_state=about.seed, n_jobs=self._n_jobs))
        elif retrain or (retrain is None and self._is_outgrown()):
            from sklearn.base import clone

            self.train(clone(self.collection.model))
        if self.about.views:
            self._opened_views().follow(self.collection, self._progress)
        report.fitted, report.views = self._fitted(), len(NAMES) if self.about.views else 0
        report.items, report.seconds = len(self.collection), self._progress.seconds()
        return report

    def _fitted(self) -> int:
        """How many of the pictures were there when the model was fitted."""
        assert self.collection is not None
        return int((np.asarray(self.collection.ids, dtype=np.int64) < self.collection.state.trained).sum())

    def _is_outgrown(self) -> bool:
        """Whether more pictures came since the model was fitted than it was fitted to."""
        assert self.collection is not None
        fitted = self._fitted()
        return fitted < min(len(self.collection) - fitted, TRAINING_ROWS)

    def train(self, model: Hasher) -> None:
        """Fit a model to the vectors, make the codes by it, and switch to both in one step.

        Three stages: training, decoder, encoding. If it is stopped, the collection is as it was.
        """
        assert self.collection is not None
        ids, state, progress = self.collection.ids, self.collection.state, self._progress
        some = ids[sample_rows(len(ids), TRAINING_ROWS)]
        X = np.asarray(self.collection.vectors(some), dtype=np.float32)
        try:
            with warnings.catch_warnings():
                # about few pictures, which the user cannot change
                for about in (".*has axes for", "the first Z step"):
                    warnings.filterwarnings("ignore", message=about, category=UserWarning)
                fit_reporting(model, X, progress)
        except InvalidInput as error:
            if isinstance(error.__cause__, InvalidParameter):  # that few pictures cannot have that many bits
                raise InvalidInput(f"{error} For {len(X):,} pictures, lower --bits or use ba.") from error
            raise
        if state.model is None or state.coding == "optimal":  # otherwise codes are h(x), and stay so
            progress.stage("decoder", TURNS)
            model.fit_decoder(
                X, "auto", mu=MU if state.model is None else state.mu, n_iter=TURNS,
                callback=lambda turn, turns: progress.advance(1),
            )  # fmt: skip
        self.collection.retrain(model, progress=progress)
        self._report.trained = True


def _rounded(vectors: Float32) -> Float32:
    """As vectors are kept: codes are made of these, so that making them again gives the same codes."""
    rounded: Float32 = vectors.astype(VECTORS).astype(np.float32)
    return rounded


def _some_of(bad: list[tuple[str, str]]) -> str:
    listed = "".join(f"\n  {printable(name)} {reason}" for name, reason in bad[:SHOWN_BAD])
    return listed + (f"\n  and {len(bad) - SHOWN_BAD:,} more" if len(bad) > SHOWN_BAD else "")


# ---- Methods side by side on the vectors of a collection, kept with it

MOST_ROWS = 50_000  # of the pictures that are trained on and searched
LEAST_COMPARED = 10
SHARE = 5  # at most one picture in this many is a query
KEPT = (
    "method", "bits", "search", "seeds", "skipped", "precision", "recall", "map", "reconstruction_error",
    "effective_bits", "effective_bits_bound", "seconds_fit",
)  # fmt: skip
SHOWN_AS = {"reconstruction_error": "squared_error", "seconds_fit": "seconds"}


@dataclass(frozen=True)
class Plan:
    """Methods and bits to compare; n_queries, k and true neighbours are fewer if pictures are few."""

    methods: Sequence[str]
    bits: Sequence[int]
    n_queries: int = 500
    K: int = 50
    k: int = 50
    seeds: int = 1


def compare_pictures(
    folder: PathLike,
    plan: Plan,
    *,
    command: str = "",
    overwrite: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare, and keep the table as comparison.json in the folder of the collection; returns it.

    Some pictures are set aside as queries, and searched for among the others. What is finished is kept, so
    that it resumes where it was stopped; overwrite : measure all of it again.
    """
    timed, path = _Timed(progress), Path(folder)
    seeds, found = range(check_integer("seeds", plan.seeds, 1)), find_candidates(plan.methods)
    cells(found, plan.bits, seeds, 1)  # what is wrong is said before rows are read
    with Pictures.open(path, n_jobs=n_jobs) as opened:
        base, queries = _rows(opened.collection, plan.n_queries)
    wanted = cells(found, plan.bits, seeds, base.shape[1])
    k, K = (min(check_integer(name, getattr(plan, name), 1), len(base)) for name in ("k", "K"))
    settings = {"base": array_checksum(base), "queries": array_checksum(queries)}
    kept = KeptRows(path / COMPARISON_ROWS, settings | {"K": K, "k": k})
    known = {} if overwrite else known_rows(kept, found)
    timed.stage("comparing", len(wanted))
    timed.advance(sum(cell in known for cell in wanted))

    def finished(row: Row) -> None:
        if found[row["method"]].is_known:
            kept.add(row)
        timed.advance(1)
        timed.say(f"{row['method']}, {row['bits']} bits")

    rows = compare(
        base, base, queries, found, plan.bits, K=K, k=k, seeds=seeds, n_jobs=n_jobs,
        known=known, on_row=finished,
    )  # fmt: skip
    made, means = datetime.now(UTC).isoformat(timespec="seconds"), map(_summary, mean_over_seeds(rows))
    about = {"queries": len(queries), "items": len(base), "K": K, "k": k, "command": command, "made": made}
    result = {"rows": list(means)} | about
    files.write_text(path / COMPARISON, json.dumps(result, indent=2, allow_nan=False) + "\n")
    return result


def _rows(collection: Collection, n_queries: int) -> tuple[Float32, Float32]:
    """The vectors to search, and those to search for, drawn with a fixed seed."""
    ids = collection.ids
    if len(ids) < LEAST_COMPARED:
        raise InvalidInput(
            f"a comparison needs at least {LEAST_COMPARED} pictures, and there are {len(ids)}. "
            "Add some by `auxbit images add`."
        )
    n = min(check_integer("n_queries", n_queries, 1), len(ids) // SHARE)
    some = ids[sample_rows(len(ids), MOST_ROWS + n)]
    X = np.asarray(collection.vectors(some), dtype=np.float32)
    order = np.random.RandomState(0).permutation(len(X))
    return X[np.sort(order[n:])], X[np.sort(order[:n])]


def _summary(row: Row) -> Row:
    """What the page shows; None where there is no figure."""
    kept = {SHOWN_AS.get(name, name): row.get(name) for name in KEPT}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in kept.items()
    }
