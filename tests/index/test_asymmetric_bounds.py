"""Bounds: rounded tables never say more than the tables, whatever these hold."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.index import asymmetric as bounds
from auxbit.index.codes import LEVELS


def made_tables(rng, kind):
    """A query's tables of three bytes, (3, 256) float32: sums over bits, or anything."""
    if kind == "anything":
        return rng.normal(size=(3, 256)).astype(np.float32)
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (bits @ rng.normal(size=(3, 8, 1))).squeeze(2).astype(np.float32) + np.float32(2)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("bits", "kind"), [(8, "anything"), (8, "sums"), (6, "sums"), (4, "sums")])
def test_rounded_sums_never_exceed_the_distance(bits, kind, wide):
    rng = np.random.default_rng(bits)
    table = made_tables(rng, kind)
    floors = np.sort(rng.normal(size=LEVELS)).astype(np.float32)
    groups = -(-24 // bits)
    lowest = np.zeros(groups)
    base, widest = bounds.smallest_sum(table, floors, bits, lowest)
    units = (bounds.WIDE_ENTRY if wide else bounds.NARROW_LIMIT / groups) / widest
    size, first = 256 if bits == 8 else 64, 128 if wide else 64
    out = np.zeros(first + groups * size, dtype=np.uint8)
    bounds.round_tables(table, floors, bits, wide, lowest, units, out)
    codes = rng.integers(0, 256, (500, 3), dtype=np.uint8)
    code_bits = np.unpackbits(codes, axis=1, bitorder="little").astype(np.int64)
    padded = np.pad(code_bits, ((0, 0), (0, groups * bits - 24))).reshape(500, groups, bits)
    index = (padded << np.arange(bits)).sum(axis=2)
    levels = rng.integers(0, LEVELS, 500)
    at = levels >> max(0, 6 - bits)  # levels that share an entry
    sums = out[at].astype(np.int64) + (out[64 + at].astype(np.int64) << 8 if wide else 0)
    for group in range(groups):
        sums += out[first + group * size + index[:, group]]
    exact = floors[levels].astype(np.float64) + table[np.arange(3), codes].astype(np.float64).sum(axis=1)
    assert (sums <= (exact - base) * units + 1e-3).all()
    assert sums.max() > 0


def test_what_is_measured_of_tables():
    rng = np.random.default_rng(0)
    tables = np.stack([made_tables(rng, "sums"), made_tables(rng, "anything")])
    sizes, spreads, residuals = np.empty((3, 2))
    bounds.measure_tables(tables, sizes, spreads, residuals)
    np.testing.assert_allclose(sizes, np.abs(tables).max(axis=2).sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(spreads, np.ptp(tables, axis=2).sum(axis=1), rtol=1e-6)
    assert residuals[0] < 1e-5 < residuals[1]
