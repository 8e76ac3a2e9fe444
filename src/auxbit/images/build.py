"""Making a collection of pictures, and adding to it: reading, training, encoding; each goes on where it was.

Pictures are read in batches that are on disk before the next begins. While there is no model their codes are
zeros; in the end one is fitted to all vectors, and the codes are made by it. So what stopped anywhere goes on
when it is run again, and ends as if it had never been stopped.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from auxbit import __version__
from auxbit.collection.collection import Collection, refuse_existing
from auxbit.collection.storage import MANIFEST as MANIFEST
from auxbit.collection.storage import TRAINING_ROWS
from auxbit.core import files
from auxbit.core.checks import check_integer, require
from auxbit.core.codes import bytes_per_code, check_n_bits
from auxbit.core.parallel import resolve_n_jobs, sample_rows
from auxbit.core.types import Float32, PathLike
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.compare import cells, compare, mean_over_seeds
from auxbit.experiments.study import KeptRows, Row, array_checksum
from auxbit.hashers.registry import HASHER_NAMES, find_method, make_hasher
from auxbit.images import features
from auxbit.images import pictures as thumbnails
from auxbit.images.decode import Decoders
from auxbit.images.features import KINDS, Channels, Describer, Recipe, network_recipe, read_network
from auxbit.images.pictures import About, Pictures, Thumbnails, about_pictures, open_pictures
from auxbit.images.sources import (
    Bad,
    Decode,
    Item,
    Read,
    Source,
    find_sources,
    fitting,
    is_gone,
    items_of,
    read_pictures,
    scope,
)
from auxbit.quantiser.fit import TURNS

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

# ---- From what is asked for to a recipe: what suits the pictures, and what a collection has already

SIDES = {"gist": (32, 128), "pixels": (8, 32)}  # least and most that is chosen unless told
MEASURED = 64  # pictures whose sizes choose the side
OPTIONS = {"kind": "--features", "sha256": "--model"}  # where they are not named as in the recipe
NO_MEAN: Channels = (0.0, 0.0, 0.0)
NO_STD: Channels = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Wanted:
    """What is asked of a collection; None for what it has, or for what is usual."""

    features: str | None = None
    side: int | None = None
    colour: float | None = None
    grey: bool | None = None
    model: str | os.PathLike[str] | None = None
    mean: Channels | None = None
    std: Channels | None = None
    bits: int | None = None
    method: str | None = None
    seed: int | None = None

    @property
    def kind(self) -> str | None:
        """The features, which a network implies."""
        return "onnx" if self.model is not None else self.features

    def check(self) -> None:
        """Refuse before any work what no pictures and no collection can make right."""
        if self.features is not None and self.features not in KINDS:
            raise InvalidParameter("features", self.features, f"one of {', '.join(KINDS)}")
        if self.model is not None and self.features not in (None, "onnx"):
            raise InvalidParameter("features", self.features, "'onnx' with the file of a network")
        if self.kind in SIDES:
            side = self.side or SIDES[self.kind][0]
            Recipe(self.kind, side, colour=self.colour or 0.0, grey=self.grey or False)


def recipe_for(
    wanted: Wanted, present: Recipe | None, sources: Sequence[Source], decode: Decode, n_jobs: int | None
) -> tuple[Recipe, bytes | None]:
    """The recipe, and the bytes of its network where that is to be kept.

    present : of the collection that is gone on with, from which what is not asked for is taken
    """
    kind = wanted.kind or (present.kind if present is not None else "gist")
    if kind != "onnx" and (wanted.mean is not None or wanted.std is not None):
        raise InvalidParameter("mean", wanted.mean or wanted.std, "none without the file of a network")
    if present is not None and kind == present.kind and wanted.model is None:
        names = ("side", "colour", "grey", "mean", "std")
        changes = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        return replace(present, **changes), None
    if kind == "onnx":
        if wanted.model is None:
            raise InvalidParameter("features", kind, "the file of a network beside it", "Add --model FILE.")
        before = present if present is not None and present.kind == kind else None
        mean = wanted.mean or (before.mean if before is not None else NO_MEAN)
        std = wanted.std or (before.std if before is not None else NO_STD)
        content = read_network(wanted.model)
        return network_recipe(content, str(wanted.model), wanted.side, mean, std), content
    side = wanted.side or fitting_side(kind, sources, decode, n_jobs)
    return Recipe(kind, side, colour=wanted.colour or 0.0, grey=wanted.grey or False), None


def fitting_side(kind: str, sources: Sequence[Source], decode: Decode, n_jobs: int | None) -> int:
    """The median of the shorter sides of some pictures, within what is sensible."""
    least, most = SIDES[kind]
    some = sources[:: -(-len(sources) // MEASURED)]
    read = read_pictures([(source, None) for source in some], decode, least, n_jobs)
    shorter = [
        min(each.decoded.width, each.decoded.height)
        for each in read
        if isinstance(each, Read) and each.decoded is not None
    ]
    return min(max(median_low(shorter), least), most) if shorter else least


def check_same(collection: Collection, before: Recipe, after: Recipe, wanted: Wanted) -> None:
    """Refuse to go on with another recipe, or with another model once there is one."""
    out, old, new = collection.path, before.document(), after.document()
    differences = [
        (OPTIONS.get(key, f"--{key}"), old.get(key), new.get(key))
        for key in ("kind", "side", "colour", "grey", "sha256", "mean", "std")
        if old.get(key) != new.get(key)
    ]
    if differences:
        option, was, asked = differences[0]
        which = f"another {option}" if option == "--model" else f"{option} {_shown(was)}, not {_shown(asked)}"
        raise InvalidInput(
            f"{out} was made with {which}. Leave the option out to go on with it, choose another --out, or "
            "add --force to begin anew."
        )
    if collection.manifest.model is not None and _is_other_model(collection, wanted):
        raise InvalidInput(
            f"{out} has a model already. Leave --bits, --method and --seed out to go on with it, or fit "
            f"another by `auxbit collection retrain {out}` with these options."
        )


def _is_other_model(collection: Collection, wanted: Wanted) -> bool:
    if wanted.bits not in (None, collection.n_bits):
        return True
    if wanted.method is None and wanted.seed is None:
        return False  # before the model is loaded
    model = collection.model
    if wanted.method is not None:
        method = find_method(wanted.method)
        has = model.get_params(deep=False)
        if type(model).__name__ != method.estimator or any(
            has[key] != value for key, value in method.options.items()
        ):
            return True
    return wanted.seed not in (None, model.random_state)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)


# ---- What long work on pictures tells whoever waits for it, and how long its stages took


class Progress(Protocol):
    """Told of each stage: what it is and how many steps it has (None: unknown), and of steps as they end."""

    def stage(self, what: str, total: int | None) -> None:
        """A stage begins, and the one before it has ended."""

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""

    def say(self, detail: str) -> None:
        """Something to stand beside the bar."""


class Silent:
    """Progress that nobody looks at."""

    def stage(self, what: str, total: int | None) -> None:
        """Nothing."""

    def advance(self, steps: int = 1) -> None:
        """Nothing."""

    def say(self, detail: str) -> None:
        """Nothing."""


class Timed:
    """Passes everything on, and notes the seconds that each stage took."""

    def __init__(self, to: Progress) -> None:
        self._to = to
        self._present: tuple[str, float] | None = None
        self._seconds: dict[str, float] = {}

    def stage(self, what: str, total: int | None) -> None:
        """A stage begins."""
        self._close()
        self._present = what, time.perf_counter()
        self._to.stage(what, total)

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""
        self._to.advance(steps)

    def say(self, detail: str) -> None:
        """Something to stand beside the bar."""
        self._to.say(detail)

    def seconds(self) -> dict[str, float]:
        """By stage, up to now."""
        self._close()
        return dict(self._seconds)

    def _close(self) -> None:
        if self._present is not None:
            what, since = self._present
            self._seconds[what] = self._seconds.get(what, 0.0) + time.perf_counter() - since
            self._present = None


# ---- Pictures that were read become items: described, their thumbnails kept, added batch by batch

BATCH = 256  # pictures at most, which are on disk before the next are described
VECTORS = "float16"
COMPARISON, COMPARISON_ROWS = "comparison.json", "comparison-rows.jsonl"


@dataclass
class Counts:
    """What became of pictures. same : those whose content was known, under a new date."""

    added: int = 0
    replaced: int = 0
    same: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)


class Target:
    """The collection that pictures go to, made when the first of them can be added.

    So a folder without a picture that can be read leaves nothing behind.
    settings : all but its key; network : to be kept with it; replaces : another collection, if that is there
    """

    def __init__(
        self, out: Path, settings: About, network: bytes | None, n_jobs: int | None, *, replaces: bool = False
    ) -> None:
        self.out, self.about, self._network, self._n_jobs = out, settings, network, n_jobs
        self._replaces = replaces
        self.collection: Collection | None = None
        self._made = False
        self._thumbnails = Thumbnails(out)

    @classmethod
    def of(cls, collection: Collection, about: About) -> Self:
        """The target that is a collection already; whoever opened it closes it."""
        target = cls(collection.path, about, None, collection.n_jobs)
        target.collection = collection
        if about != About.read(collection.path, about.key):
            about.write(collection.path)
        return target

    def note_roots(self, roots: Iterable[str]) -> None:
        """Keep these folders among those that pictures come from."""
        after = tuple(dict.fromkeys([*self.about.roots, *(root for root in roots if root)]))
        if after != self.about.roots:
            self.about = replace(self.about, roots=after)
            if self.collection is not None:
                self.about.write(self.out)

    def ready(self) -> Collection:
        """The collection, made now where it is not there yet."""
        if self.collection is None:
            dimension = self.describer().dimension
            made = Collection.create(
                self.out, n_bits=self.about.bits, n_features=dimension, vectors=VECTORS,
                overwrite=self._replaces, n_jobs=self._n_jobs,
            )  # fmt: skip
            self._made = True
            self.collection = made
            made.lock()
            # by a collection that was here
            for left in (thumbnails.PACK_NAME, features.FILE, COMPARISON, COMPARISON_ROWS):
                with suppress(FileNotFoundError):
                    (self.out / left).unlink()
            if self._network is not None:
                files.write_bytes(self.out / features.FILE, self._network)
            self.about = replace(self.about, key=made.manifest.key)
            self.about.write(self.out)  # last: with it the collection is one of pictures
        return self.collection

    def describer(self) -> Describer:
        """Makes vectors, whether or not the collection is there yet."""
        return Describer(self.about.recipe, self.out, network=self._network, n_jobs=self._n_jobs)

    def keep_thumbnails(self, pictures: Sequence[bytes]) -> list[int]:
        """On disk when it returns their offsets."""
        return self._thumbnails.append(pictures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thumbnails.close()
        if self._made and self.collection is not None:
            self.collection.close()


def read_into(
    target: Target, wanted: Sequence[tuple[Source, Item | None]], decode: Decode, n_jobs: int | None,
    progress: Progress, counts: Counts,
) -> None:  # fmt: skip
    """Read pictures, and add them or put them in the place of the items they replace."""
    describer = target.describer()
    batch = fitting(BATCH, describer.recipe.side)
    fresh: list[Read] = []
    same: list[Read] = []
    with closing(read_pictures(wanted, decode, describer.recipe.side, n_jobs)) as read:
        for done, each in enumerate(read, 1):
            if isinstance(each, Bad):
                counts.bad.append((each.source.name, each.reason))
            else:
                (same if each.decoded is None else fresh).append(each)
            if max(len(fresh), len(same)) >= batch or done == len(wanted):
                _write(target, describer, fresh, counts)
                _note_dates(target, same, counts)
                fresh, same = [], []
            progress.advance(1)


def _write(target: Target, describer: Describer, batch: list[Read], counts: Counts) -> None:
    batch, vectors = _described(describer, batch, counts)
    if not batch:
        return
    collection = target.ready()
    decoded = [each.decoded for each in batch if each.decoded is not None]
    offsets = target.keep_thumbnails([each.thumbnail for each in decoded])
    metadata = [_metadata(each, offset) for each, offset in zip(batch, offsets)]
    is_new = np.array([each.known is None for each in batch])
    for some in (np.flatnonzero(is_new), np.flatnonzero(~is_new)):
        if len(some):
            ids = [known.id for place in some if (known := batch[place].known) is not None]
            _add(collection, vectors[some], [metadata[place] for place in some], ids)
    replaced = int((~is_new).sum())
    counts.added += len(batch) - replaced
    counts.replaced += replaced


def _add(collection: Collection, vectors: Float32, metadata: list[dict[str, Any]], ids: list[int]) -> None:
    """Add items, or replace those of `ids`; codes are zeros until there is a model."""
    state = collection.manifest
    codes = None
    if state.model is None:
        codes = np.zeros((len(vectors), bytes_per_code(state.n_bits)), dtype=np.uint8)
    collection.add(vectors, codes=codes, metadata=metadata, ids=ids or None, upsert=bool(ids))


def _described(describer: Describer, batch: list[Read], counts: Counts) -> tuple[list[Read], Float32]:
    """The pictures of which vectors can be made, and these, rounded as they will be kept."""
    if not batch:
        return [], np.empty((0, 0), dtype=np.float32)
    pixels = np.stack([each.decoded.pixels for each in batch if each.decoded is not None])
    try:
        vectors = describer(pixels)
    except InvalidInput:  # of one of them: the others shall not be lost by it
        fine, rows = [], []
        for each, picture in zip(batch, pixels):
            try:
                rows.append(describer(picture[None])[0])
                fine.append(each)
            except InvalidInput as error:
                counts.bad.append((each.source.name, f"cannot be described: {error}"))
        batch, vectors = fine, np.array(rows, dtype=np.float32)
    # a code is made of what is kept, so that to make it again makes the same
    return batch, vectors.astype(VECTORS).astype(np.float32)


def _metadata(read: Read, thumbnail: int) -> dict[str, Any]:
    decoded, source = read.decoded, read.source
    assert decoded is not None
    about = {
        "file": source.name,
        "root": source.root,
        "sha256": read.sha256,
        "bytes": source.size,
        "mtime_ns": source.mtime_ns,
        "width": decoded.width,
        "height": decoded.height,
        "format": decoded.format,
        "thumbnail": thumbnail,
    }
    return about | ({"taken": decoded.taken} if decoded.taken is not None else {})


def _note_dates(target: Target, same: list[Read], counts: Counts) -> None:
    """Keep the new dates of files that are the same, so that they need not be read again next time."""
    if not same:
        return
    collection = target.ready()
    ids = [each.known.id for each in same if each.known is not None]
    metadata = [
        about | {"bytes": each.source.size, "mtime_ns": each.source.mtime_ns}
        for about, each in zip(collection.metadata(ids), same)
    ]
    collection.add(
        collection.vectors(ids), codes=collection.codes(ids), ids=ids, metadata=metadata, upsert=True
    )
    counts.same += len(same)


# ---- The model of a collection of pictures: fitted to its vectors, and its codes made by it

MU = 0.01  # on CIFAR-10 at 64 bits this serves Hamming search as well as asymmetric search
ROWS_FOR_TABLES = 5_000  # 256 vectors a byte want many rows
LEAST_PICTURES = 2


def train(collection: Collection, model: Hasher, progress: Progress) -> None:
    """Fit a model to the vectors of a collection, make its codes, and switch to both in one step.

    Three stages: training, decoder, encoding. Where it is stopped, the collection is as it was.
    """
    ids, state = collection.ids, collection.manifest
    some = ids[sample_rows(len(ids), TRAINING_ROWS)]
    X = np.asarray(collection.vectors(some), dtype=np.float32)
    _fit(model, X, progress)
    if state.model is None or state.coding == "optimal":  # else codes are h(x), as somebody wanted them
        kind = "tables" if len(X) >= ROWS_FOR_TABLES else "linear"
        progress.stage("decoder", TURNS)
        model.fit_decoder(
            X, kind, mu=MU if state.model is None else state.mu, n_iter=TURNS,
            callback=lambda turn, turns: progress.advance(1),
        )  # fmt: skip
    progress.stage("encoding", len(ids))
    collection.retrain(model, advance=progress.advance)


def _fit(model: Hasher, X: npt.NDArray[np.float32], progress: Progress) -> None:
    def told(record: Any) -> None:
        progress.advance(1)
        precision = "" if record.precision is None else f"  precision {record.precision:.3f}"
        progress.say(f"μ {record.mu:.3g}  E_BA {record.E_BA:.4g}{precision}")

    parameters = model.get_params(deep=False)
    tells = "callback" in parameters
    progress.stage("training", int(parameters["max_iter"]) if tells else None)
    if tells:
        model.set_params(callback=told)
    try:
        with warnings.catch_warnings():
            # of fewer pictures than bits: nothing that whoever has few pictures could change
            warnings.filterwarnings("ignore", message=".*has axes for", category=UserWarning)
            model.fit(X)
    except InvalidParameter as error:
        if error.parameter == "n_bits":  # checked before: it is so few pictures that cannot have so many
            raise InvalidInput(f"{error} For {len(X):,} pictures, lower --bits or take ba.") from error
        raise
    finally:
        if tells:
            model.set_params(callback=None)  # it shows the progress, and is no part of the model


# ---- Making a collection of pictures, and adding to it

LARGEST_SEED = 2**32 - 1
SHOWN_BAD = 5
DEFAULT_BITS, DEFAULT_METHOD = 64, "ba"


@dataclass
class Report:
    """What was done. bad : name and reason of what could not be read; seconds : by stage.

    missing : items whose file is gone, but for those that `prune` removed
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    missing: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    items: int = 0
    trained: bool = False
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
    seed: int | None = None,
    prune: bool = False,
    overwrite: bool = False,
    n_jobs: int | None = None,
    decoders: Decoders | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make a collection of the pictures in a folder, or go on with one, and bring it up to date.

    bits, method, seed : of the model; 64, "ba", 0 unless given
    features : "gist", "pixels", or "onnx", which it is where `model`, the file of a network, is given
    side, colour, grey, mean, std : as in Recipe; a side of None suits the pictures
    prune : delete items whose file is gone
    overwrite : begin anew where there is a collection already; else it goes on, with the same recipe
    """
    timed = Timed(progress or Silent())
    require("PIL.Image", extra="images", purpose="reading pictures")
    wanted = Wanted(features, side, colour, grey, model, mean, std, bits, method, seed)
    _check(bits, method, seed)
    wanted.check()
    target = Path(out)
    with _present(target, overwrite) as present:
        timed.stage("finding", None)
        report = Report()
        sources = find_sources([folder], present[1].roots if present else (), report.bad)
        with _decoding(decoders, n_jobs) as decode:
            recipe, network = recipe_for(wanted, present and present[1].recipe, sources, decode, n_jobs)
            return _build(
                sources, target, present, recipe, wanted, network=network, here=scope([folder]), prune=prune,
                overwrite=overwrite, n_jobs=n_jobs, decode=decode, progress=timed, report=report,
            )  # fmt: skip


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
    """As `create`, of pictures that come from anywhere, by a recipe without a network.

    decode : content, side → Decoded: `decoding.decode` for pictures of one's own making
    """
    _check(bits, method, seed)
    wanted = Wanted(bits=bits, method=method, seed=seed)
    target = Path(out)
    with _present(target, overwrite) as present:
        return _build(
            sources, target, present, recipe, wanted, network=None, here=lambda path: False, prune=False,
            overwrite=overwrite, n_jobs=n_jobs, decode=decode, progress=Timed(progress or Silent()),
            report=Report(),
        )  # fmt: skip


def add(
    places: Iterable[PathLike],
    path: PathLike,
    *,
    prune: bool = False,
    retrain: bool = False,
    n_jobs: int | None = None,
    decoders: Decoders | None = None,
    progress: Progress | None = None,
) -> Report:
    """Add pictures and folders of them to a collection, encoded by its model.

    What is in it already and has not changed is not read again. prune : delete items of these places whose
    file is gone; retrain : then fit a new model to all vectors.
    """
    timed, places = Timed(progress or Silent()), list(places)
    require("PIL.Image", extra="images", purpose="reading pictures")
    collection, about = open_pictures(path, n_jobs=n_jobs)
    with collection:
        collection.lock()
        timed.stage("finding", None)
        report = Report()
        sources = find_sources(places, about.roots, report.bad)
        target = Target.of(collection, about)
        with _decoding(decoders, n_jobs) as decode:
            _read(target, sources, scope(places), prune, decode, n_jobs, timed, report)
        if retrain:
            from sklearn.base import clone

            train(collection, clone(collection.model), timed)
            report.trained = True
        report.items, report.seconds = len(collection), timed.seconds()
        return report


def _build(
    sources: Sequence[Source], out: Path, present: tuple[Collection, About] | None, recipe: Recipe,
    wanted: Wanted, *, network: bytes | None, here: Callable[[str], bool], prune: bool, overwrite: bool,
    n_jobs: int | None, decode: Decode, progress: Timed, report: Report,
) -> Report:  # fmt: skip
    """Read what is new, then train where there is no model yet."""
    if present is not None:
        collection, about = present
        check_same(collection, about.recipe, recipe, wanted)
        about = replace(
            about, bits=wanted.bits or about.bits, method=wanted.method or about.method,
            seed=about.seed if wanted.seed is None else wanted.seed,
        )  # fmt: skip
        target = Target.of(collection, about)
    else:
        settings = About(
            "", recipe, wanted.bits or DEFAULT_BITS, wanted.method or DEFAULT_METHOD, wanted.seed or 0
        )
        target = Target(out, settings, network, n_jobs, replaces=(out / MANIFEST).is_file())
    with target:
        _read(target, sources, here, prune, decode, n_jobs, progress, report)
        if target.collection is None:
            raise InvalidInput(_nothing_read(report.bad))
        collection, about = target.collection, target.about
        if collection.manifest.model is None:
            if len(collection) < LEAST_PICTURES:
                raise InvalidInput(
                    f"{out} has {len(collection)} picture; a model needs at least {LEAST_PICTURES} to be "
                    f"fitted to. Put more into the folder, and run this again.{_some_of(report.bad)}"
                )
            model = make_hasher(about.method, about.bits, random_state=about.seed, n_jobs=n_jobs)
            train(collection, model, progress)
            report.trained = True
        report.items, report.seconds = len(collection), progress.seconds()
    return report


def _read(
    target: Target, sources: Sequence[Source], here: Callable[[str], bool], prune: bool, decode: Decode,
    n_jobs: int | None, progress: Progress, report: Report,
) -> None:  # fmt: skip
    """Bring the items up to date with the sources."""
    known = items_of(target.collection) if target.collection is not None else {}
    to_read: list[tuple[Source, Item | None]] = []
    for source in sources:
        item = known.get(source.path)
        if item is not None and (item.size, item.mtime_ns) == (source.size, source.mtime_ns):
            report.unchanged += 1
        else:
            to_read.append((source, item))
    if to_read:
        progress.stage("reading", len(to_read))
        target.note_roots(dict.fromkeys(source.root for source, _ in to_read))
        counts = Counts()
        try:
            read_into(target, to_read, decode, n_jobs, progress, counts)
        finally:
            report.added, report.replaced = counts.added, counts.replaced
            report.unchanged += counts.same
            report.bad += counts.bad
    found = {source.path for source in sources}
    gone = [item.id for path, item in known.items() if path not in found and here(path) and is_gone(path)]
    if gone and prune and target.collection is not None:
        report.removed = target.collection.delete(gone)
    else:
        report.missing = len(gone)


@contextmanager
def _decoding(decoders: Decoders | None, n_jobs: int | None) -> Iterator[Decode]:
    """What decodes: processes of the caller's, or ones that end with this."""
    if decoders is not None:
        yield decoders.decode
        return
    with Decoders(resolve_n_jobs(n_jobs)) as own:
        yield own.decode


@contextmanager
def _present(out: Path, overwrite: bool) -> Iterator[tuple[Collection, About] | None]:
    """The collection of pictures at `out`, locked; None where one is to be made."""
    if overwrite or not (out / MANIFEST).is_file():
        refuse_existing(out, overwrite=overwrite)
        yield None
        return
    with Collection.open(out) as collection:
        is_empty = not len(collection) and collection.manifest.model is None
        if is_empty and About.read(out, collection.manifest.key) is None:
            collection.close()  # it was stopped before the first picture was in it
            yield None
            return
        about = about_pictures(collection)
        collection.lock()
        yield collection, about


def _check(bits: int | None, method: str | None, seed: int | None) -> None:
    if bits is not None:
        check_n_bits(bits)
    if method is not None:
        find_method(method, HASHER_NAMES)
    if seed is not None:
        check_integer("seed", seed, 0, LARGEST_SEED)


def _nothing_read(bad: list[tuple[str, str]]) -> str:
    return f"none of the {len(bad):,} pictures could be read.{_some_of(bad)}"


def _some_of(bad: list[tuple[str, str]]) -> str:
    listed = "".join(f"\n  {name} {reason}" for name, reason in bad[:SHOWN_BAD])
    more = f"\n  and {len(bad) - SHOWN_BAD:,} more" if len(bad) > SHOWN_BAD else ""
    return listed + more


# ---- Methods side by side on the vectors of a collection of pictures, kept with it

MOST_ROWS = 50_000  # of the pictures that are trained on and searched
LEAST_COMPARED = 10
SHARE = 5  # at most one of so many pictures is a query
RENAMED = {"squared_error": "reconstruction_error", "seconds": "seconds_fit"}
KEPT = (
    "method", "bits", "search", "seeds", "skipped", "precision", "recall", "map", "squared_error",
    "effective_bits", "effective_bits_bound", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Methods and bits to compare; n_queries, k and true neighbours are fewer where pictures are few."""

    methods: Sequence[str]
    bits: Sequence[int]
    n_queries: int = 500
    K: int = 50
    k: int = 50
    seeds: int = 1


def compare_pictures(
    folder: str | os.PathLike[str],
    plan: Plan,
    *,
    command: str = "",
    overwrite: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare, and keep the table as comparison.json in the folder of the collection; returns it.

    Some pictures are set aside as queries, and searched for among the others. What is finished is kept, so
    that it goes on where it was stopped; overwrite : measure all of it again.
    """
    progress = progress or Silent()
    path = Path(folder)
    wanted = cells(plan.methods, plan.bits, range(check_integer("seeds", plan.seeds, 1)))
    with Pictures.open(path, n_jobs=n_jobs) as pictures:
        base, queries = _rows(pictures, plan.n_queries)
    k, K = (min(check_integer(name, getattr(plan, name), 1), len(base)) for name in ("k", "K"))
    settings = {
        "base": array_checksum(base), "queries": array_checksum(queries), "K": K, "k": k,
        "version": __version__,
    }  # fmt: skip
    kept = KeptRows(path / COMPARISON_ROWS, settings)
    known = {} if overwrite else kept.read()
    progress.stage("comparing", len(wanted))
    progress.advance(sum(cell in known for cell in wanted))

    def finished(row: Row) -> None:
        kept.add(row)
        progress.advance(1)
        progress.say(f"{row['method']}, {row['bits']} bits")

    rows = compare(
        base, base, queries, plan.methods, plan.bits, K=K, k=k, seeds=range(plan.seeds), n_jobs=n_jobs,
        known=known, on_row=finished,
    )  # fmt: skip
    found = {
        "rows": [_summary(row) for row in mean_over_seeds(rows)],
        "queries": len(queries),
        "items": len(base),
        "K": K,
        "k": k,
        "command": command,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    files.write_text(path / COMPARISON, json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _rows(pictures: Pictures, n_queries: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The vectors to search, and those to search for, drawn with a fixed seed."""
    ids = pictures.collection.ids
    if len(ids) < LEAST_COMPARED:
        raise InvalidInput(
            f"a comparison needs at least {LEAST_COMPARED} pictures, and there are {len(ids)}. "
            "Add some by `auxbit images add`."
        )
    n = min(check_integer("n_queries", n_queries, 1), len(ids) // SHARE)
    some = ids[sample_rows(len(ids), MOST_ROWS + n)]
    X = np.asarray(pictures.collection.vectors(some), dtype=np.float32)
    order = np.random.RandomState(0).permutation(len(X))
    return X[np.sort(order[n:])], X[np.sort(order[:n])]


def _summary(row: Row) -> Row:
    """What the page shows; None where there is no figure."""
    kept = {name: row.get(RENAMED.get(name, name)) for name in KEPT}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in kept.items()
    }
