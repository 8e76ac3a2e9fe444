"""Making a collection of pictures, and adding to it: reading, training, encoding; each goes on where it was.

Pictures are read in batches that are on disk before the next begins. While there is no model their codes are
zeros; in the end one is fitted to all vectors, and the codes are made by it. So what stopped anywhere goes on
when it is run again, and ends as if it had never been stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from auxbit.blocks import resolve_n_jobs
from auxbit.checks import check_integer
from auxbit.codes import check_n_bits
from auxbit.collection.collection import Collection
from auxbit.collection.creation import refuse_existing
from auxbit.collection.manifest import NAME as MANIFEST
from auxbit.errors import InvalidInput
from auxbit.experiments.methods import HASHERS, find_method, make_hasher
from auxbit.extras import require
from auxbit.images.about import About
from auxbit.images.decoders import Decoders
from auxbit.images.opening import about_pictures, open_pictures
from auxbit.images.planning import Wanted, check_same, recipe_for
from auxbit.images.progress import Progress, Silent, Timed
from auxbit.images.reading import Decode
from auxbit.images.recipe import Channels, Recipe
from auxbit.images.sources import Item, Source, find_sources, is_gone, items_of, scope
from auxbit.images.training import LEAST_PICTURES, train
from auxbit.images.writing import Counts, Target, read_into

PathLike = str | os.PathLike[str]

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
                    f"fitted to. Put more into the folder, and run this again.{_shown(report.bad)}"
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
        find_method(method, HASHERS)
    if seed is not None:
        check_integer("seed", seed, 0, LARGEST_SEED)


def _nothing_read(bad: list[tuple[str, str]]) -> str:
    return f"none of the {len(bad):,} pictures could be read.{_shown(bad)}"


def _shown(bad: list[tuple[str, str]]) -> str:
    listed = "".join(f"\n  {name} {reason}" for name, reason in bad[:SHOWN_BAD])
    more = f"\n  and {len(bad) - SHOWN_BAD:,} more" if len(bad) > SHOWN_BAD else ""
    return listed + more
