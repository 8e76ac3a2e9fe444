"""Hamming distances from one query to many codes, compiled: the inner loop of scans and of evaluation.

Codes are kept in planes, (n_words, n): word w of all codes side by side, so the loop over codes runs in
SIMD registers for any number of words. Up to 32 bits a word has 32 bits, above that 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.extending import intrinsic

from auxbit.codes import Packed, bytes_per_code
from auxbit.compiled import kernel

Planes = npt.NDArray[np.unsignedinteger[Any]]

CHUNK = 1024  # codes whose distances are taken at once: buffer and planes stay in the first-level cache


def to_planes(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes, (n, ceil(n_bits/8)), into planes: (n_words, n) uint32 or uint64, contiguous."""
    dtype = np.dtype(np.uint32 if n_bits <= 32 else np.uint64)
    n_words = -(-codes.shape[1] // dtype.itemsize)
    padded = np.zeros((len(codes), dtype.itemsize * n_words), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return np.ascontiguousarray(padded.view(dtype).T)


def query_words(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes into rows of the words that planes hold, (n, n_words)."""
    return np.ascontiguousarray(to_planes(codes, n_bits).T)


def from_planes(planes: Planes, n_bits: int) -> Packed:
    """Undo `to_planes`."""
    rows = np.ascontiguousarray(planes.T).view(np.uint8)
    return np.ascontiguousarray(rows[:, : bytes_per_code(n_bits)])


def _popcount(typing_context: Any, word: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), emit


popcount: Any = intrinsic(_popcount)  # of one word; LLVM turns it into the machine's instruction, or SIMD


@kernel
def chunk_distances(planes: Planes, start: int, stop: int, query: Planes, out: npt.NDArray[np.uint16]) -> int:
    """Write the distances from `query`, (n_words,), to codes start..stop into `out`; return the smallest."""
    n = stop - start
    plane, word = planes[0, start:stop], query[0]
    for i in range(n):
        out[i] = np.uint16(popcount(plane[i] ^ word))
    for w in range(1, planes.shape[0]):
        plane, word = planes[w, start:stop], query[w]
        for i in range(n):
            out[i] += np.uint16(popcount(plane[i] ^ word))
    nearest = np.uint16(65535)
    for i in range(n):
        nearest = min(nearest, out[i])
    return int(nearest)
