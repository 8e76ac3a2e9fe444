"""Lower bounds of distances by tables: what is rounded down to bytes, and the indices that look it up.

Bits of an index: 8, a table of 256 for each byte of the code, whatever it holds; 6 or 4, a table for each
group of that many bits of the code, if the tables are sums over bits, as a linear decoder's are. How far
they deviate from such sums is a part of the slack of a query's bounds.

A bound must never exceed the distance: entries are rounded down, and the slack covers what float32 sums,
added in another order, may lose.
"""

from __future__ import annotations

import numpy as np

from auxbit.core.checks import Bytes, Float32, Float64, Words
from auxbit.core.parallel import kernel
from auxbit.core.simd import LANES, WIDE_STEP, address, extremes, shifted_lanes
from auxbit.index.codes import LEVELS

VALUES = 256
NARROW_LIMIT = 254  # the largest sum of bytes that is known not to be larger
WIDE_ENTRY = 255 // WIDE_STEP
WIDE_LIMIT = 49000  # 16 bits have room for 256 entries more, those of 1024 bits by fours
WIDE_SUM = 96000  # of the largest entries of more tables: a sum of entries as they come is about half of it
ROUNDING = 1.01 * 2.0**-24  # the relative error of a sum of two numbers in float32, and a little more


def n_tables(width: int, bits: int, wide: bool) -> int:
    """How many tables codes of `width` bytes have, without norms; a multiple of four if `wide`."""
    n = -(-8 * width // bits)
    return -(-n // WIDE_STEP) * WIDE_STEP if wide else n


@kernel
def widest_entry(n: int) -> int:
    """The largest entry of n tables whose sums are wide.

    A sum that 16 bits cannot hold begins at 0 again and passes: that costs an exact distance, not an answer.
    """
    return min(WIDE_ENTRY, WIDE_SUM // n)


@kernel
def measure_tables(tables: Float32, sizes: Float64, spreads: Float64, residuals: Float64) -> None:
    """What bounds need to know of tables, (q, width, 256). The others : (q,), sums over bytes.

    sizes: the largest |entry|; spreads: the largest minus the smallest entry; residuals: how far an entry
    is at most from the sum of those of its bits.
    """
    sums = np.empty(VALUES)
    for q in range(tables.shape[0]):
        size, spread, deviation = 0.0, 0.0, 0.0
        for j in range(tables.shape[1]):
            table = tables[q, j]
            sums[0] = table[0]
            for bit in range(8):
                term = np.float64(table[1 << bit]) - np.float64(table[0])
                for v in range(1 << bit):
                    sums[v + (1 << bit)] = sums[v] + term
            low, high, residual = sums[0], sums[0], 0.0
            for v in range(VALUES):
                entry = np.float64(table[v])
                low, high = min(low, entry), max(high, entry)
                residual = max(residual, abs(entry - sums[v]))
            size += max(abs(low), abs(high))
            spread += high - low
            deviation += residual
        sizes[q], spreads[q], residuals[q] = size, spread, deviation


@kernel
def smallest_sum(table: Float32, floors: Float32, bits: int, lowest: Float64) -> tuple[float, float]:
    """The least sum of a norm and one entry per table, and the largest range of a table.

    table : (width, 256); lowest : (tables,), gets the smallest entry of each table.
    """
    total, widest = np.float64(floors[0]), 0.0
    if bits == 8:
        for j in range(table.shape[0]):
            low, high = extremes(address(table) + 4 * j * VALUES, VALUES)
            lowest[j] = low
            total += lowest[j]
            widest = max(widest, np.float64(high) - lowest[j])
        return total, widest
    terms = np.empty(8)
    for j in range(table.shape[0]):
        total += np.float64(table[j, 0])
    for group in range(-(-8 * table.shape[0] // bits)):
        _group_terms(table, bits, group, terms)
        low, high = 0.0, 0.0
        for i in range(bits):
            low, high = low + min(terms[i], 0.0), high + max(terms[i], 0.0)
        lowest[group] = low
        total += low
        widest = max(widest, high - low)
    return total, widest


@kernel
def _group_terms(table: Float32, bits: int, group: int, terms: Float64) -> None:
    """What each bit of a group adds, into terms, (8,)."""
    for i in range(bits):
        bit = bits * group + i
        terms[i] = 0.0
        if bit < 8 * table.shape[0]:
            of_byte = table[bit // 8]
            terms[i] = np.float64(of_byte[1 << bit % 8]) - np.float64(of_byte[0])


@kernel
def round_tables(
    table: Float32, floors: Float32, bits: int, wide: bool, lowest: Float64, units: float, out: Bytes
) -> None:
    """Each entry above its table's lowest in `units` per 1, rounded down, at most what the sums can take.

    table : (width, 256); floors : (64,), of the levels of norms; lowest : (tables,);
    out : 64 entries of norms, if `wide` their upper bytes, then 64 per table, or 256 for whole bytes.
    """
    top = float(widest_entry(len(lowest)) if wide else NARROW_LIMIT + 1)
    first_bytes = (2 if wide else 1) * LANES
    step = LEVELS >> min(bits, 6)  # levels that share an entry
    for v in range(LEVELS):
        above = np.float64(floors[v % (LEVELS // step) * step]) - np.float64(floors[0])
        entry = int(min(above * units, WIDE_LIMIT + 1.0 if wide else top))
        out[v] = np.uint8(entry & 255)
        if wide:
            out[LANES + v] = np.uint8(entry >> 8)
    if bits == 8:
        for j in range(table.shape[0]):
            entries, low = out[first_bytes + j * VALUES : first_bytes + (j + 1) * VALUES], lowest[j]
            for v in range(VALUES):
                entries[v] = np.uint8(min((np.float64(table[j, v]) - low) * units, top))
        return
    sums, terms = np.empty(LANES), np.empty(8)
    for group in range(-(-8 * table.shape[0] // bits)):
        _group_terms(table, bits, group, terms)
        sums[0] = -lowest[group]
        for i in range(bits):
            for v in range(1 << i):
                sums[v + (1 << i)] = sums[v] + terms[i]
        entries = out[first_bytes + LANES * group : first_bytes + LANES * (group + 1)]
        mask = (1 << bits) - 1
        for v in range(LANES):  # sums of terms may come out a little below 0
            entries[v] = np.uint8(min(max(sums[v & mask], 0.0) * units, top))


@kernel
def split_codes(planes: Words, levels: Words, bits: int, start: int, stop: int, index: Words) -> None:
    """Indices of the codes of blocks start..stop: of the norm, then one per table.

    planes : (n_blocks, width, 8) words of 8 bytes; levels : (n_blocks, 8); index : (blocks, 1 + tables, 8).
    """
    width, every = planes.shape[1], np.uint64(0x0101010101010101)
    coarser = np.int64(max(0, 6 - bits))
    mask, none = every * np.uint64((1 << min(bits, 6)) - 1), np.uint64(0)
    codes, norms, out = planes.reshape(-1), levels.reshape(-1), index.reshape(-1)
    for block in range(start, stop):
        to, first_byte = (block - start) * index.shape[1] * LANES, block * width * LANES
        at = block * LANES
        shifted_lanes(norms, at, at, coarser, mask, none, out, to)
        to += LANES
        for group in range(-(-8 * width // bits)):
            byte, shift = bits * group // 8, bits * group % 8
            kept = every * np.uint64((0xFF >> shift) & ((1 << bits) - 1))
            at, rest = first_byte + byte * LANES, none
            after = at
            if shift + bits > 8 and byte + 1 < width:
                after, rest = at + LANES, mask & ~kept
            shifted_lanes(codes, at, after, shift, kept, rest, out, to)
            to += LANES
