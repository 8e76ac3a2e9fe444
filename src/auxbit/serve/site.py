"""What all endpoints share: the pictures, the limits, and what is remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from auxbit.collection.collection import Collection
from auxbit.images.decoders import Decoders
from auxbit.images.pictures import Pictures
from auxbit.serve import model_report, statistics
from auxbit.serve.catalogue import Catalogue
from auxbit.serve.known_items import KnownItems
from auxbit.serve.limits import Limits
from auxbit.serve.states import Cached
from auxbit.serve.uploads import Upload, Uploads

DECODING_THREADS = 8
QUICK_ITEMS = 200_000  # a search of so many takes a few milliseconds

Made = TypeVar("Made")


class Site:
    """A collection of pictures that is being served.

    decoders : what decodes uploads, closed by who made it; None: processes of the site's own
    """

    def __init__(self, pictures: Pictures, limits: Limits, decoders: Decoders | None = None) -> None:
        self.pictures, self.limits = pictures, limits
        self._given = decoders
        self._own: Decoders | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.uploads = Uploads(limits.uploads, limits.uploads_bytes)
        self.catalogue = Catalogue(self.collection)
        self.known = KnownItems(self.collection)
        self.report: Cached[bytes] = Cached(self.collection, lambda: model_report.report(self.collection))
        self.stats: Cached[dict[str, Any]] = Cached(self.collection, lambda: statistics.measure(pictures))

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
    def collection(self) -> Collection:
        """The collection of the pictures."""
        return self.pictures.collection

    @property
    def reconstructs(self) -> bool:
        """Whether a code can be shown as the picture that the decoder makes of it."""
        return self.pictures.recipe.kind == "pixels"

    def upload(self, hash_: str) -> Upload:
        """A picture that was uploaded before; a problem where it is forgotten."""
        return self.uploads.get(hash_, self.collection.manifest.key)

    async def soon(self, work: Callable[[], Made]) -> Made:
        """Do something short at once, where it is: beside other threads it would mostly wait for its turn.

        In a large collection a search is not short.
        """
        if len(self.collection) <= QUICK_ITEMS:
            return work()
        return await run_in_threadpool(work)

    def close(self) -> None:
        """Wait for what is being decoded; the pictures stay open, and all can be used again."""
        with self._lock:
            pool, own = self._pool, self._own
            self._pool = self._own = None
        if pool is not None:
            pool.shutdown()
        if own is not None:
            own.close()
