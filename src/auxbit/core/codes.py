"""Binary codes: packing, unpacking, words for popcounts. The one place that knows the bit order.

Bits are little-endian within a byte: bit l of a code is bit l % 8 of byte l // 8, as in FAISS,
so packed codes go there without conversion. Unused bits of the last byte are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Bits, Packed, Words, check_integer
from auxbit.core.parallel import kernel
from auxbit.core.simd import popcount as popcount
from auxbit.errors import InvalidInput

MAX_BITS = 1024


def check_n_bits(n_bits: object) -> int:
    """Return `n_bits` as an int, or say what is allowed."""
    return check_integer("n_bits", n_bits, 1, MAX_BITS, "Try n_bits=32.")


def bytes_per_code(n_bits: int) -> int:
    """How many bytes a packed code of `n_bits` bits takes."""
    return -(-n_bits // 8)


def pack(Z: npt.ArrayLike) -> Packed:
    """Pack bits. Z : (n, L) of 0/1 → (n, ceil(L/8)) uint8."""
    bits = np.asarray(Z)
    if bits.ndim != 2:
        raise InvalidInput(f"pack expects a 2-D array of 0 and 1, got {bits.ndim} dimension(s).")
    if bits.dtype != np.bool_ and bits.size and not ((bits == 0) | (bits == 1)).all():
        raise InvalidInput("pack expects only 0 and 1. Packed codes are already packed; unpack them first.")
    return pack_bools(bits.astype(np.bool_))


def pack_bools(bits: npt.NDArray[Any]) -> Packed:
    """Pack an array that is known to hold only 0 and 1."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(codes: npt.ArrayLike, n_bits: int) -> Bits:
    """Unpack codes. codes : (n, ceil(n_bits/8)) uint8 → (n, n_bits) uint8 of 0/1."""
    packed = check_packed(codes, n_bits)
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def check_packed(codes: Any, n_bits: int, name: str = "codes") -> Packed:
    """Return `codes` as packed codes of `n_bits` bits, or say what is wrong with them."""
    packed = np.asarray(codes)
    width = bytes_per_code(check_n_bits(n_bits))
    if packed.ndim != 2 or packed.shape[1] != width or packed.dtype != np.uint8:
        raise InvalidInput(
            f"{name} must be packed codes of {n_bits} bits: a (n, {width}) array of uint8, "
            f"got shape {packed.shape} of {packed.dtype}. encode() makes them, pack() packs 0/1 arrays."
        )
    unused = 8 * width - n_bits
    if unused and packed.size and (packed[:, -1] >> (8 - unused)).any():
        raise InvalidInput(f"{name} have bits set beyond the first {n_bits}: were they made with more bits?")
    return packed


def to_words(codes: Packed) -> Words:
    """Pad packed codes with zero bytes and view them as 64-bit words, (n, ceil(bytes/8)) uint64.

    Only popcounts are taken of words, so the machine's byte order does not matter.
    """
    n, width = codes.shape
    n_words = max(1, -(-width // 8))
    if width == 8 * n_words and codes.flags.c_contiguous:
        return codes.view(np.uint64)
    padded = np.zeros((n, 8 * n_words), dtype=np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def hamming_distances(a: Packed, b: Packed) -> npt.NDArray[np.int32]:
    """All pairs of Hamming distances. a : (n, w), b : (m, w) packed → (n, m) int32, for small n and m."""
    if a.shape[1] != b.shape[1]:
        raise InvalidInput(f"codes of {a.shape[1]} and of {b.shape[1]} bytes have no Hamming distance.")
    differing = np.bitwise_xor(to_words(a)[:, None, :], to_words(b)[None, :, :])
    distances: npt.NDArray[np.int32] = np.bitwise_count(differing).sum(axis=2, dtype=np.int32)
    return distances


# ---- Hamming distances from one query to many codes: the inner loop of scans and of evaluation
#
# Codes are kept in planes, (n_words, n): word w of all codes side by side, so that the loop over codes runs
# in SIMD registers for any number of words. Words have 32 bits for codes of up to 32 bits, else 64.

Planes = npt.NDArray[np.unsignedinteger[Any]]

CHUNK = 1024  # codes whose distances are taken at once: buffer and planes stay in the first-level cache


def to_planes(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes, (n, ceil(n_bits/8)), into planes: (n_words, n) uint32 or uint64, contiguous."""
    return np.ascontiguousarray(query_words(codes, n_bits).T)


def query_words(codes: Packed, n_bits: int) -> Planes:
    """Turn packed codes into rows of words, (n, n_words): uint32 up to 32 bits, above that uint64."""
    dtype = np.dtype("<u4" if n_bits <= 32 else "<u8")  # bit l is bit l of a word on any machine
    padded = np.zeros((len(codes), -(-codes.shape[1] // dtype.itemsize) * dtype.itemsize), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(dtype).astype(dtype.newbyteorder("="), copy=False)


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
