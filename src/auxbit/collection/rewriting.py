"""Rows of a snapshot as columns of a new segment: for merging, compaction and new codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed, bytes_per_code
from auxbit.collection.segment_file import Column
from auxbit.collection.snapshot import Snapshot
from auxbit.index.code_blocks import LANES, CodeBlocks

Positions = npt.NDArray[np.int64]
Codes = Callable[[slice], Packed]  # the codes of some of the rows to write
Advance = Callable[[int], None]

BLOCK_ROWS = 2**14  # that are copied at a time, a multiple of 64
BLOCK_BYTES = 2**24  # of vectors that are converted at a time


def new_columns(
    codes: Packed, n_bits: int, ids: Positions, texts: tuple[Any, Any] | None, vectors: Column | None
) -> list[Column]:
    """The columns of rows that come from outside."""
    blocks = CodeBlocks.of(codes, n_bits)
    columns = [
        Column("codes", np.uint8, blocks.planes.shape, [blocks.planes]),
        Column("ids", np.int64, ids.shape, [ids]),
    ]
    if texts is not None:
        columns += [Column("offsets", np.int64, texts[0].shape, [texts[0]])]
        columns += [Column("text", np.uint8, texts[1].shape, [texts[1]])]
    return columns + ([vectors] if vectors is not None else [])


def vector_column(X: npt.NDArray[Any], dtype: str) -> Column:
    """The rows of X as they are kept, converted a block at a time."""
    step = max(1, BLOCK_BYTES // (4 * max(1, X.shape[1])))
    pieces = (np.asarray(X[start : start + step], dtype=dtype) for start in range(0, len(X), step))
    return Column("vectors", dtype, X.shape, pieces)


def copied_columns(
    snapshot: Snapshot,
    positions: Positions,
    *,
    n_bits: int,
    codes: Codes | None = None,
    advance: Advance | None = None,
) -> list[Column]:
    """The columns of rows at these positions, in ascending order; `codes` in the place of theirs."""
    n, width, manifest = len(positions), bytes_per_code(n_bits), snapshot.manifest

    def blocks() -> Iterator[slice]:
        for start in range(0, n, BLOCK_ROWS):
            yield slice(start, min(start + BLOCK_ROWS, n))

    def planes() -> Iterator[npt.NDArray[Any]]:
        for rows in blocks():
            packed = snapshot.codes(positions[rows]) if codes is None else codes(rows)
            yield CodeBlocks.of(packed, n_bits).planes
            if advance is not None:
                advance(rows.stop - rows.start)

    columns = [
        Column("codes", np.uint8, (-(-n // LANES), width, LANES), planes()),
        Column("ids", np.int64, (n,), (_ids(snapshot, positions[rows]) for rows in blocks())),
    ]
    if any(segment is not None and "text" in segment for segment in snapshot.segments):
        lengths = _text_lengths(snapshot, positions)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        columns += [Column("offsets", np.int64, (n + 1,), [offsets])]
        columns += [Column("text", np.uint8, (int(offsets[-1]),), _texts(snapshot, positions))]
    if manifest.vectors is not None:
        vectors = (snapshot.vectors(positions[rows]) for rows in blocks())
        columns += [Column("vectors", manifest.vectors, (n, manifest.n_features or 0), vectors)]
    return columns


def _ids(snapshot: Snapshot, positions: Positions) -> Positions:
    out = np.full(len(positions), -1, dtype=np.int64)
    for segment, rows, where in snapshot.by_segment(positions):
        out[where] = segment.take("ids", rows)
    return out


def _text_lengths(snapshot: Snapshot, positions: Positions) -> Positions:
    out = np.zeros(len(positions), dtype=np.int64)
    for segment, rows, where in snapshot.by_segment(positions):
        if "text" in segment:
            out[where] = np.diff(segment.column("offsets"))[rows]
    return out


def _texts(snapshot: Snapshot, positions: Positions) -> Iterator[npt.NDArray[np.uint8]]:
    """The texts of rows one after another."""
    for start in range(0, len(positions), BLOCK_ROWS):
        for segment, rows, _ in snapshot.by_segment(positions[start : start + BLOCK_ROWS]):
            if "text" not in segment:
                continue
            starts, ends = segment.take("offsets", rows), segment.take("offsets", rows + 1)
            segment.check_spans("text", starts, ends)
            text, lengths = segment.unchecked("text"), ends - starts
            if ends[-1] - starts[0] == lengths.sum():  # rows that follow each other
                yield text[starts[0] : ends[-1]]
            else:
                before = np.cumsum(lengths) - lengths  # bytes of the rows before each
                yield text[np.repeat(starts - before, lengths) + np.arange(lengths.sum())]
