"""The tables of multi-index hashing: codes by the value of each of m substrings.

A table holds all codes, in the order of its substring, so that those of a bucket are read side by side.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.compiled import kernel
from auxbit.errors import InvalidInput
from auxbit.index.multi_index_lanes import LANES

Words = npt.NDArray[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]

MAX_CODES = 2**32 - 1  # positions take 32 bits
MAX_SUBSTRING = 24  # bits
LOOK_COST = 4  # of asking whether a bucket holds codes, in codes read


class Tables(NamedTuple):
    """Codes by substring: m tables of the same n codes, each in the order of one substring's values."""

    codes: Words  # (m, n_words, n + LANES), zeros past the last code
    positions: npt.NDArray[np.uint32]  # (m, n), in a bucket they rise
    offsets: npt.NDArray[np.uint32]  # bucket b of table t: offsets[first[t] + b] up to the next
    first: Numbers  # (m,)
    cuts: Numbers  # (m + 1,), substring t is bits cuts[t]..cuts[t+1]
    bits: Words  # (m, n_words), the bits of each substring
    flips: npt.NDArray[np.int32]  # masks of 0, 1, 2… bits, those of equally many bits in rising order
    flips_first: Numbers  # (n_levels,), where the masks of a bits begin
    n_flips: Numbers  # (m, n_levels), masks of a bits within substring t: the first so many


def choose_n_tables(n: int, n_bits: int) -> int:
    """How many substrings suit n codes: of 16 bits from 2**17 to 2**24 codes."""
    log_n = math.log2(max(n, 2))
    length = max(min(max(log_n - 1, 8), 16), log_n - 8)
    return max(1, round(n_bits / length), -(-n_bits // MAX_SUBSTRING))


def make_tables(codes: Packed, n_bits: int, m: int, workers: Workers | None = None) -> Tables:
    """The tables of packed codes, (n, width), cut into m substrings."""
    if len(codes) > MAX_CODES:
        raise InvalidInput(f"multi-index hashing takes at most {MAX_CODES} codes, got {len(codes)}.")
    n = len(codes)
    cuts = np.arange(m + 1) * n_bits // m
    lengths = np.diff(cuts)
    first = np.concatenate([[0], np.cumsum(2**lengths + 1)])
    words = to_words(codes, n_bits)
    flips, n_flips = _flips(lengths, n)
    tables = Tables(
        codes=np.zeros((m, words.shape[1], n + LANES), dtype=words.dtype),
        positions=np.empty((m, n), dtype=np.uint32),
        offsets=np.empty(first[-1], dtype=np.uint32),
        first=first[:-1].copy(),
        cuts=cuts,
        bits=_substring_bits(cuts),
        flips=np.concatenate(flips),
        flips_first=np.cumsum([0] + [len(masks) for masks in flips[:-1]]),
        n_flips=n_flips,
    )

    def make(table: slice) -> None:
        t = table.start
        keys = _substring_keys(words, int(cuts[t]), int(lengths[t]))
        keys.sort()
        offsets = tables.offsets[first[t] : first[t + 1]]
        _fill_table(keys, words, tables.codes[t], tables.positions[t], offsets)

    if workers is None:
        for t in range(m):
            make(slice(t, t + 1))
    else:
        workers.run(make, m, 1)
    return tables


def to_words(codes: Packed, n_bits: int) -> Words:
    """Packed codes as rows of words, (n, n_words): uint32 up to 32 bits, above that uint64."""
    dtype = np.dtype("<u4" if n_bits <= 32 else "<u8")
    padded = np.zeros((len(codes), -(-codes.shape[1] // dtype.itemsize) * dtype.itemsize), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(dtype).astype(dtype.newbyteorder("="), copy=False)


def _substring_bits(cuts: Numbers) -> Words:
    """The bits of each substring, (m, n_words)."""
    bit, n_bits = np.arange(cuts[-1]), int(cuts[-1])
    within = (bit >= cuts[:-1, None]) & (bit < cuts[1:, None])
    return to_words(np.packbits(within, axis=1, bitorder="little"), n_bits)


def _flips(lengths: Numbers, n: int) -> tuple[list[npt.NDArray[np.int32]], Numbers]:
    """Masks of 0, 1, 2… bits, in rising order, and how many lie within each substring, (m, n_levels).

    Only while looking so many buckets up costs less than reading all codes.
    """
    longest = int(lengths.max())
    flips = [np.zeros(1, dtype=np.int32)]
    while (a := len(flips)) <= longest and math.comb(longest, a) * LOOK_COST <= n:
        # with bit t at the top, the other a - 1 are below it: the first masks of a - 1 bits
        tops = [flips[-1][: math.comb(t, a - 1)] | np.int32(1 << t) for t in range(a - 1, longest)]
        flips.append(np.concatenate(tops))
    return flips, np.array([[math.comb(int(s), a) for a in range(len(flips))] for s in lengths])


@kernel
def substring(words: Words, first: int, n_bits: int) -> int:
    """Bits first..first+n_bits of a code, (n_words,), as a number."""
    word_bits = words.itemsize * 8
    w, shift = first // word_bits, first % word_bits
    value = np.uint64(words[w]) >> np.uint64(shift)
    if shift + n_bits > word_bits:
        value |= np.uint64(words[w + 1]) << np.uint64(word_bits - shift)
    return int(np.int64(value & np.uint64((1 << n_bits) - 1)))


@kernel
def _substring_keys(words: Words, first: int, n_bits: int) -> Keys:
    """Substring << 32 | position of codes, (n, n_words): what a table is sorted by."""
    keys = np.empty(len(words), np.int64)
    for i in range(len(words)):
        keys[i] = substring(words[i], first, n_bits) << 32 | i
    return keys


@kernel
def _fill_table(keys: Keys, words: Words, codes: Words, positions: Any, offsets: Any) -> None:
    """Write a table of sorted keys: codes, (n_words, n + LANES), positions, (n,), offsets, (2**bits + 1,)."""
    bucket = 0
    for i in range(len(keys)):
        position = keys[i] & 0xFFFFFFFF
        positions[i] = position
        for w in range(words.shape[1]):
            codes[w, i] = words[position, w]
        while bucket <= keys[i] >> 32:
            offsets[bucket] = i
            bucket += 1
    offsets[bucket:] = len(keys)
