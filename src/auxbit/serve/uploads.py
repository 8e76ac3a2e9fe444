"""Uploaded pictures that are remembered, so that an answer to one can be asked for again by its hash."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from auxbit.serve.errors import Problem


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
    """At most so many, of at most so many bytes together; those asked for last are kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Upload] = OrderedDict()
        self._bytes = 0

    def find(self, hash_: str, key: str) -> Upload | None:
        """The upload, which now is the one asked for last; None where it is unknown in this collection."""
        with self._lock:
            found = self._kept.get(hash_)
            if found is None or found.key != key:
                return None
            self._kept.move_to_end(hash_)
            return found

    def get(self, hash_: str, key: str) -> Upload:
        """The same; a problem where it is unknown."""
        found = self.find(hash_, key)
        if found is None:
            raise Problem(
                404, "upload_gone", "This upload is not remembered any more: upload the picture again."
            )
        return found

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, upload: Upload) -> None:
        """Remember one, and forget what was not asked for longest."""
        with self._lock:
            before = self._kept.pop(upload.hash, None)
            self._bytes += upload.n_bytes - (before.n_bytes if before is not None else 0)
            self._kept[upload.hash] = upload
            while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
                self._bytes -= self._kept.popitem(last=False)[1].n_bytes
