"""The folder of a collection: its present state, the writer's lock, and committing changes.

A change writes new files, syncs them and their names, and then replaces the manifest: until that has
happened, nothing refers to them; from then on all of the change is there. Files that no manifest names any
more are removed afterwards, or by the next writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from auxbit import files
from auxbit.collection import segment_file
from auxbit.collection.manifest import Manifest
from auxbit.collection.segment_file import Column, Written
from auxbit.collection.snapshot import Snapshot, Watch
from auxbit.collection.view import View
from auxbit.errors import CollectionError, Damaged, FileProblem, InvalidInput
from auxbit.lock import WriterLock

if TYPE_CHECKING:  # scikit-learn takes longer to import than a collection to open
    from auxbit.hashers.base import Hasher

LOCK = "writer.lock"
KINDS = ("segment", "removed", "model")
SUFFIX = ".safetensors"

Made = TypeVar("Made")


class Storage:
    """What is shared by all that reads or changes an open collection."""

    def __init__(self, folder: Path, *, read_only: bool, salvage: bool, n_jobs: int | None) -> None:
        self.folder, self.read_only, self.n_jobs = folder, read_only, n_jobs
        self._lock = WriterLock(folder / LOCK)
        self._changing = threading.RLock()  # held by whoever changes the collection
        self._switching = threading.RLock()  # held while the view is brought up to date
        self.closed = False
        self._stale = False  # a commit has begun, and the view may be of the state before
        self._salvaged = salvage
        self._watch = Watch(folder)
        self._view = View(self._read(None), n_jobs)

    @property
    def view(self) -> View:
        """The present state; brought up to date with what another process has written."""
        if self.closed:
            raise InvalidInput(f"the collection {self.folder} is closed. Open it again.")
        others = not self._lock.held and not self._salvaged and self._watch.changed()
        if self._stale or others:
            self.refresh()
        return self._view

    @property
    def manifest(self) -> Manifest:
        """The manifest of the present state."""
        return self.view.snapshot.manifest

    def refresh(self) -> None:
        """Read what is on disk: what another process has written, or a commit that failed has left."""
        with self._switching:
            self._stale = True  # until it is read: what fails here must be tried again
            self._watch.mark()
            self._switch(self._read(self._view.snapshot))
            self._stale = False

    def _read(self, before: Snapshot | None) -> Snapshot:
        return Snapshot.salvage(self.folder) if self._salvaged else Snapshot.read(self.folder, before)

    def lock(self) -> None:
        """Become the writer, until close, or raise InUse."""
        _ = self.view  # says that it is closed
        if self.read_only or self._salvaged:
            why = "was opened to be read" if self.read_only else 'was opened with damaged="skip"'
            raise CollectionError(f"{self.folder} {why}: open it without that to change it.")
        if not self._lock.held:
            self._lock.acquire(f"the collection {self.folder}")
            try:
                self.refresh()
            except BaseException:
                self._lock.release()
                raise
            self.sweep()

    @contextmanager
    def changing(self) -> Iterator[Manifest]:
        """Hold the lock for a change, which is made by `commit`; yields the manifest to change."""
        with self._changing:
            self.lock()
            try:
                yield self.manifest
            except BaseException:
                self.sweep()  # what was written for a change that did not come about
                raise

    @contextmanager
    def repairing(self) -> Iterator[Manifest]:
        """As `changing`, of a collection that was opened in spite of damage; then it is whole again."""
        with self._changing:
            if not self._salvaged:
                with self.changing() as manifest:
                    yield manifest
                return
            snapshot = self.view.snapshot
            if self.read_only:
                raise CollectionError(
                    f"{self.folder} was opened to be read: open it without that to change it."
                )
            self._lock.acquire(f"the collection {self.folder}")
            try:
                if snapshot.manifest != Manifest.read(self.folder):
                    raise CollectionError(f"{self.folder} was changed meanwhile: open it again.")
                yield snapshot.manifest
                self._salvaged = False
            except BaseException:
                self.sweep()
                self._lock.release()
                raise

    def write(self, manifest: Manifest, rows: int, columns: list[Column]) -> Written:
        """Write a new file of rows, to be committed by a manifest with the next number for files."""
        return self._written("segment", manifest, lambda path: segment_file.write(path, rows, columns))

    def write_removed(self, manifest: Manifest, column: Column) -> Written:
        """Write a new file of deleted positions."""
        rows = column.shape[0]
        return self._written("removed", manifest, lambda path: segment_file.write(path, rows, [column]))

    def write_model(self, manifest: Manifest, model: Hasher) -> str:
        """Write the model, to be committed by a manifest that names it."""

        def save(path: Path) -> str:
            model.save(path, overwrite=False)
            return path.name

        return self._written("model", manifest, save)

    def commit(self, manifest: Manifest) -> None:
        """Make this the state of the collection, durably, or leave it as it was."""
        self._stale = True  # whatever happens from here on, the next to look reads what is on disk
        try:
            files.sync_folder(self.folder)
            manifest.write(self.folder)
        except OSError as error:
            raise _not_written(self.folder, error, made=self._is_on_disk(manifest)) from error
        self._stale = True  # a search may have read the state before, meanwhile
        # no memory or descriptors left: the change is made, and the next to look finds it
        with self._switching, contextlib.suppress(OSError, MemoryError):
            self._switch(Snapshot.of(self.folder, manifest, self._view.snapshot))
            self._stale = False
        self.sweep()

    def close(self) -> None:
        """Release the lock and what is mapped; waits for a change under way."""
        with self._changing:
            self.closed = True
            self._lock.release()
            self._watch.close()
            nothing = Snapshot(self.folder, Manifest(self._view.snapshot.manifest.n_bits), (), ())
            self._view = View(nothing, self.n_jobs)

    def _written(self, kind: str, manifest: Manifest, write: Callable[[Path], Made]) -> Made:
        path = self.folder / file_name(kind, manifest.next_file)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a change that failed, and could not be cleared away
            return write(path)
        except Damaged:  # of what was to be copied
            raise
        except OSError as error:
            raise _not_written(self.folder, error) from error

    def _is_on_disk(self, manifest: Manifest) -> bool:
        """After a commit that failed: whether the manifest has been replaced all the same."""
        try:
            return Manifest.read(self.folder) == manifest
        except OSError:
            return False

    def _switch(self, snapshot: Snapshot) -> None:
        if snapshot.manifest.continues(self._view.snapshot.manifest):
            try:
                self._view.advance(snapshot)
                return
            except MemoryError:
                pass  # what was made in memory is made anew, at the next search
        self._view = View(snapshot, self.n_jobs, self._view)

    def sweep(self) -> None:
        """Remove files of ours that are no part of the collection as it is on disk.

        Only the writer may: what another process has written and not committed yet looks the same.
        """
        if self._lock.held:
            sweep(self.folder)


def sweep(folder: Path) -> None:
    """Remove files of ours that the manifest of a folder does not name; what cannot be, is left for later."""
    # Windows keeps a file that somebody has mapped; and where the manifest cannot be read, all are kept
    with contextlib.suppress(OSError):
        keep = Manifest.read(folder).files
        for path in folder.iterdir():
            if path.name not in keep and (number_of(path.name) >= 0 or path.name.endswith(".part")):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def number_of(name: str) -> int:
    """The number of a file of ours, -1 of another."""
    found = re.fullmatch(rf"(?:{'|'.join(KINDS)})-(\d+){re.escape(SUFFIX)}", name)
    return int(found[1]) if found else -1


def file_name(kind: str, number: int) -> str:
    """The name of a file; numbers are never used again."""
    return f"{kind}-{number:06d}{SUFFIX}"


def _not_written(folder: Path, error: OSError, *, made: bool = False) -> FileProblem:
    reason = (error.strerror or str(error)).rstrip(".")
    if made:
        return FileProblem(f"{folder}: {reason}. The change is made, but a power loss may undo it.")
    return FileProblem(f"{folder} could not be written to: {reason}. It is as it was before.")
