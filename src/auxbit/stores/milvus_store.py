"""MilvusStore: codes in a collection of a Milvus server, or of a file of Milvus Lite, by HAMMING distance.

Milvus wants dimensions that are multiples of 8: codes of other lengths end in zeros, which no distance sees.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.checks import check_integer
from auxbit.codes import check_n_bits, check_packed
from auxbit.errors import InvalidInput, InvalidParameter, StoreError
from auxbit.index.id_table import check_ids
from auxbit.stores import milvus_search as searches
from auxbit.stores.addresses import Address, parse
from auxbit.stores.local_pushes import LocalPushes
from auxbit.stores.marked import MarkedStore
from auxbit.stores.milvus_client import Client
from auxbit.stores.milvus_collection import MANY_IDS, MilvusCollection
from auxbit.stores.protocol import (
    CANDIDATES,
    DEFAULT_NAME,
    MOST_ANSWERS,
    Array,
    Distances,
    Ids,
    Progress,
    checked_floats,
    checked_rows,
    joined,
    padded,
)

REQUEST_ROWS, REQUEST_BYTES = 8192, 2**23
MOST_LISTS = 65_536


class MilvusStore(MarkedStore):
    """Codes in a collection with the fields id, code, metadata (JSON) and perhaps vector.

    timeout : seconds after which a call to a server that does not answer is given up. n_probe : how many
    lists an approximate index looks at (create_index); without one, searches are exact.
    """

    batch_rows = 32_768

    def __init__(
        self, url: str | Address, name: str = DEFAULT_NAME, *, timeout: float = 30.0, n_probe: int = 32
    ) -> None:
        self.n_probe = check_integer("n_probe", n_probe, 1, MOST_LISTS)
        self._client = Client(url if isinstance(url, Address) else parse(url), timeout)
        try:
            self._place = self._collection = MilvusCollection(self._client, name)
        except InvalidParameter:
            self._client.close()
            raise

    @property
    def exact(self) -> bool:
        """Whether `search` misses nothing."""
        return self.n_probe >= self._collection.n_lists()

    def create(self, n_bits: int, *, n_features: int | None = None, overwrite: bool = False) -> None:
        """Make the collection; see Store.create."""
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 2, 32_768)
        self._collection.create(check_n_bits(n_bits), n_features, overwrite=overwrite)

    def add(
        self,
        codes: npt.ArrayLike,
        ids: npt.ArrayLike,
        *,
        metadata: Any = None,
        vectors: npt.ArrayLike | None = None,
        upsert: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Add rows, some thousand a request; see Store.add.

        Milvus has no transactions: an error may leave the first of them in, which the same call replaces.
        """
        rows = checked_rows(
            codes, ids, metadata, vectors, n_bits=self.n_bits, n_features=self.n_features, upsert=upsert
        )
        if not upsert:
            self._refuse_known(rows.ids)
        size = rows.codes.nbytes + rows.text.nbytes + (0 if rows.vectors is None else rows.vectors.nbytes)
        at_once = max(1, min(REQUEST_ROWS, REQUEST_BYTES * len(rows) // max(1, size)))
        for part in rows.parts(at_once):
            self._collection.put(part)
            if progress is not None:
                progress(len(part))

    def delete(self, ids: npt.ArrayLike) -> int:
        """Delete rows by id; returns how many there were."""
        unwanted, deleted = np.unique(check_ids(ids)), 0
        for first in range(0, len(unwanted), MANY_IDS):
            some = unwanted[first : first + MANY_IDS].tolist()
            deleted += self._collection.count(f"id in {some}")
            self._client.call("delete", self.name, ids=some)
        return deleted

    def create_index(self, kind: str = "ivf", *, n_lists: int | None = None) -> None:
        """Sort the codes into lists (BIN_IVF_FLAT), 4 √n of them unless told; a server can, a file cannot."""
        if kind != "ivf":
            raise InvalidParameter("kind", kind, "'ivf', Milvus's BIN_IVF_FLAT")
        if self._client.is_file:
            raise StoreError("Milvus Lite has no approximate index for bits; a Milvus server has.")
        n_lists = max(1, min(MOST_LISTS, int(4 * np.sqrt(self.count())))) if n_lists is None else n_lists
        self._collection.sort_into_lists(check_integer("n_lists", n_lists, 1, MOST_LISTS))

    def search(
        self,
        codes: npt.ArrayLike,
        k: int = 10,
        *,
        where: Any = None,
        rerank: npt.ArrayLike | None = None,
        candidates: int | None = None,
    ) -> tuple[Array, Ids]:
        """The k nearest codes to each query, 16,384 at most; see Store.search."""
        k = check_integer("k", k, 1, MOST_ANSWERS, "Try k=10.")
        queries = check_packed(codes, self.n_bits, "codes")
        condition = self._collection.condition(where)
        if rerank is None:
            return padded(searches.nearest(self._collection, queries, k, condition, self.n_probe), k)
        if self.n_features is None:
            raise InvalidInput("the store keeps no vectors to rank by: create it with n_features.")
        X = checked_floats(rerank, self.n_features, len(queries), "rerank")
        most = min(CANDIDATES * k, max(k, searches.MOST_FOUND)) if candidates is None else candidates
        most = check_integer("candidates", most, k, MOST_ANSWERS, f"It must hold the k={k} answers.")
        near = searches.nearest(self._collection, queries, most, condition, self.n_probe)
        best = [searches.ranked(self._collection, x, ids, k) for x, (_, ids) in zip(X, near)]
        return padded(best, k, real=True)

    def search_radius(self, codes: npt.ArrayLike, r: int, *, where: Any = None) -> tuple[Ids, Distances, Ids]:
        """All codes within distance r, inclusive; see Store.search_radius."""
        r = check_integer("r", r, 0, None, "Try r=2.")
        queries = check_packed(codes, self.n_bits, "codes")
        condition = self._collection.condition(where)
        return joined(searches.within(self._collection, queries, min(r, self.n_bits), condition))

    def count(self, where: Any = None) -> int:
        """How many rows there are, or have the metadata that `where` asks for."""
        return self._collection.count(self._collection.condition(where))

    def metadata(self, ids: npt.ArrayLike) -> list[dict[str, Any]]:
        """The metadata of rows, {} where one has none or is not there."""
        wanted = np.asarray(ids, dtype=np.int64)
        by_id = {row["id"]: row["metadata"] for row in self._collection.read(wanted, "metadata")}
        return [by_id.get(each, {}) for each in wanted.tolist()]

    def transaction(self) -> AbstractContextManager[None]:
        """Nothing: Milvus has no transactions."""
        return nullcontext()

    def pushed(self, source: str) -> int:
        """How many rows of a source an interrupted push from this machine has brought here."""
        return LocalPushes(self._collection.known()["key"]).pushed(source)

    def remember_push(self, source: str, rows: int | None) -> None:
        """Note on this machine how far a push is; None: it is complete."""
        LocalPushes(self._collection.known()["key"]).remember(source, rows)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def __repr__(self) -> str:
        return f"MilvusStore({self._client.address.shown!r}, {self.name!r})"

    def _refuse_known(self, ids: Ids) -> None:
        known = self._collection.read(ids)
        if known:
            raise InvalidInput(
                f"id {known[0]['id']} is already in {self.name!r}; nothing was added. upsert=True replaces "
                "its row."
            )
