"""Approximate search by FAISS: a graph (HNSW) or lists (IVF) over the same codes, for those who want them.

Distances are true; some neighbours may be missed. Only k-nearest searches over the whole index are
approximate: radius searches and filtered ones scan, and are exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import resolve_n_jobs
from auxbit.checks import check_integer
from auxbit.codes import Packed
from auxbit.errors import InvalidParameter
from auxbit.index.code_blocks import CodeBlocks, LaneSet

Distances = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]

# what each kind can be told, and what it is unless told
KINDS: dict[str, dict[str, int | None]] = {
    "hnsw": {"links": 32, "ef_construction": 64, "ef_search": 96},
    "ivf": {"lists": None, "probes": 16},
}
CODES_A_LIST = 64  # on average, if the number of lists is left to us
TRAINING_CODES_A_LIST = 64


def check_options(kind: str, options: Any) -> dict[str, int | None]:
    """The options of an approximate kind, with the defaults of those not given."""
    defaults = KINDS.get(kind, {})
    if options is None:
        return dict(defaults)
    if not isinstance(options, dict) or not set(options) <= set(defaults):
        allowed = f"a dict with keys among {', '.join(defaults)}" if defaults else f"None for kind={kind!r}"
        raise InvalidParameter("options", options, allowed)
    for key, value in options.items():
        if value is not None or defaults[key] is not None:
            check_integer(f"options[{key!r}]", value, 2 if key == "links" else 1)
    return defaults | options


class ApproximateIndex:
    """FAISS's index of the codes of a CodeBlocks; `nearest` brings it up to date by itself."""

    def __init__(self, kind: str, n_bits: int, options: dict[str, int | None]) -> None:
        self.kind, self.n_bits, self.options = kind, n_bits, options
        self._index: Any = None
        self._covered = 0  # positions that it knows
        self._trained_on = 0
        self._made_of: tuple[CodeBlocks, int] | None = None  # and its version
        self._building = threading.Lock()

    def nearest(
        self, codes: CodeBlocks, alive: LaneSet, queries: Packed, k: int, n_jobs: int | None
    ) -> tuple[Distances, Positions, npt.NDArray[np.bool_]]:
        """The k nearest that FAISS finds, by (distance, position), and which queries it found k for."""
        with faiss_threads(n_jobs):
            self._update(codes)
            dead = codes.size - alive.count
            wanted = min(k if not dead else 2 * k + 16, codes.size)
            distances, positions = self._index.search(np.ascontiguousarray(queries), wanted)
        positions = positions.astype(np.int64)
        usable = alive.holds(positions)
        # by (distance, position), what cannot be used last; FAISS orders equal distances as it likes
        far = np.where(usable, distances.astype(np.int64), np.iinfo(np.int64).max)
        order = np.lexsort((positions, far), axis=1)[:, :k]
        finished = usable.sum(axis=1) >= min(k, alive.count)
        return (
            np.take_along_axis(distances, order, axis=1).astype(np.int32),
            np.take_along_axis(positions, order, axis=1),
            finished,
        )

    def _update(self, codes: CodeBlocks) -> None:
        """Add what came since the last search."""
        with self._building:
            known = self._made_of == (codes, codes.version)
            if not known or (self.kind == "ivf" and codes.size > 4 * self._trained_on):
                self._index, self._covered = self._empty(codes), 0
                self._made_of = (codes, codes.version)
            if self._covered < codes.size:
                new = np.arange(self._covered, codes.size, dtype=np.int64)
                self._index.add(codes.take(new))
                self._covered = codes.size

    def _empty(self, codes: CodeBlocks) -> Any:
        import faiss

        bits = 8 * codes.width  # bits past n_bits are zeros, which no distance sees
        if self.kind == "hnsw":
            graph: Any = faiss.IndexBinaryHNSW(bits, self.options["links"] or 0)
            graph.hnsw.efConstruction = self.options["ef_construction"]
            graph.hnsw.efSearch = self.options["ef_search"]
            return graph
        most = min(codes.size, int(16 * np.sqrt(codes.size)))
        lists = min(self.options["lists"] or max(1, codes.size // CODES_A_LIST), most)
        coarse: Any = faiss.IndexBinaryFlat(bits)
        index: Any = faiss.IndexBinaryIVF(coarse, bits, lists)
        index.own_fields = True
        coarse.this.disown()  # it is deleted with the index
        index.nprobe = min(self.options["probes"] or 1, lists)
        index.cp.min_points_per_centroid = 1  # it would print a warning
        n_training = min(codes.size, TRAINING_CODES_A_LIST * lists)
        index.train(codes.take(np.linspace(0, codes.size - 1, n_training).astype(np.int64)))
        self._trained_on = codes.size
        return index


@contextmanager
def faiss_threads(n_jobs: int | None) -> Iterator[None]:
    """Let FAISS use that many threads for the length of the block."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(resolve_n_jobs(n_jobs))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
