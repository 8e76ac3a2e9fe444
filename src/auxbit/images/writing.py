"""Pictures that were read become items: described, their thumbnails kept, added batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.codes import bytes_per_code
from auxbit.collection.collection import Collection
from auxbit.errors import InvalidInput
from auxbit.images import network, thumbnails
from auxbit.images.about import About
from auxbit.images.describing import Describer
from auxbit.images.progress import Progress
from auxbit.images.reading import Bad, Decode, Read, fitting, read_pictures
from auxbit.images.sources import Item, Source
from auxbit.images.thumbnails import Thumbnails

Float32 = npt.NDArray[np.float32]

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
            for left in (thumbnails.NAME, network.FILE, COMPARISON, COMPARISON_ROWS):
                with suppress(FileNotFoundError):
                    (self.out / left).unlink()
            if self._network is not None:
                files.write_bytes(self.out / network.FILE, self._network)
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
