"""Instructions against NumPy: what every kernel is made of."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from auxbit.core import simd


@numba.njit
def near(codes, query, limit):
    return simd.near_lanes(codes, 0, query, limit)


@numba.njit
def bits_of(words, counts, lowest):
    for i in range(len(words)):
        counts[i], lowest[i] = simd.popcount(words[i]), simd.lowest_bit(words[i])


@numba.njit
def shifted(source, low, high, down, kept, rest, target, to):
    simd.shifted_lanes(source, low, high, down, kept, rest, target, to)


@numba.njit
def found(whole_bytes, wide, index, tiles, n, tables, limit, masks):
    levels, entries, to = simd.address(index), simd.address(tables), simd.address(masks)
    codes, step = levels + 64, 64 * (1 + n)  # each block has its levels, then its indices
    if whole_bytes and wide:
        return simd.first_tile(True, True, levels, step, codes, step, tiles, n, entries, limit, to)
    if whole_bytes:
        return simd.first_tile(True, False, levels, step, codes, step, tiles, n, entries, limit, to)
    if wide:
        return simd.first_tile(False, True, levels, step, codes, step, tiles, n, entries, limit, to)
    return simd.first_tile(False, False, levels, step, codes, step, tiles, n, entries, limit, to)


@numba.njit
def apart(x, y, scale):
    return simd.squared_apart(simd.address(x), simd.address(y), len(x), scale)


def aligned(size):
    raw = np.zeros(size + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def test_bits_of_words_are_counted_and_the_lowest_is_found():
    words = np.random.default_rng(0).integers(1, 2**63, 200).astype(np.uint64) << np.uint64(3)
    counts, lowest = np.zeros((2, 200), dtype=np.int64)
    bits_of(words, counts, lowest)
    np.testing.assert_array_equal(counts, np.bitwise_count(words))
    np.testing.assert_array_equal(lowest, [(int(word) & -int(word)).bit_length() - 1 for word in words])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("n_words", [1, 3])
def test_codes_of_a_bucket_within_a_distance_are_found(dtype, n_words):
    rng = np.random.default_rng(1)
    most = np.iinfo(dtype).max
    codes = rng.integers(0, most, (n_words, simd.BUCKET_LANES), dtype=dtype, endpoint=True)
    query = rng.integers(0, most, n_words, dtype=dtype, endpoint=True)
    distances = np.bitwise_count(codes ^ query[:, None]).sum(axis=0)
    for limit in (0, int(np.median(distances)), 8 * n_words * codes.itemsize):
        expected = sum(1 << lane for lane in np.flatnonzero(distances <= limit).tolist())
        assert near(codes, query, limit) == expected


def test_bits_of_two_vectors_become_one():
    rng = np.random.default_rng(2)
    source, target = rng.integers(0, 256, 128, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    every = 0x0101010101010101
    shifted(source, 0, 64, 6, np.uint64(every * 0b11), np.uint64(every * 0b111100), target, 0)
    np.testing.assert_array_equal(target, (source[:64] >> 6) & 0b11 | (source[64:] << 2) & 0b111100)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("whole_bytes", [False, True])
def test_sums_of_look_ups_are_compared_with_a_limit(whole_bytes, wide):
    bits = 8 if whole_bytes else simd.index_bits()
    if not simd.index_bits() or (whole_bytes and simd.index_bits() < 6):
        pytest.skip("this processor has no such look-ups: all codes pass")
    rng = np.random.default_rng(3)
    tiles, n, m, size = 5, 8, 2 if wide else 1, 256 if whole_bytes else 64
    index = aligned(4 * tiles * (1 + n) * 64)
    entries = index.reshape(4 * tiles, 1 + n, 64)
    entries[:, 1:] = rng.integers(0, 2**bits, entries[:, 1:].shape)
    entries[:, 0] = rng.integers(0, 2 ** min(bits, 6), (4 * tiles, 64))
    tables = aligned(m * 64 + n * size)
    low = rng.integers(0, 20, 16)
    tables[:64] = np.tile(low, 4)  # tables of 16 entries stand four times over
    rest = np.tile(rng.integers(0, 20, (n, 16)), size // 16)
    tables[m * 64 :] = rest.ravel()
    sums = tables[entries[:, 0]].astype(np.int64)
    for table in range(n):
        sums += rest[table][entries[:, 1 + table]]
    masks = np.zeros(4, dtype=np.uint64)
    for limit in (int(sums.min()) - 1, int(sums.min()), int(np.median(sums))):
        passed = (sums <= limit).reshape(tiles, 4, 64)
        some = np.flatnonzero(passed.any(axis=(1, 2)))
        first = found(whole_bytes, wide, index, tiles, n, tables, limit, masks)
        assert first == (some[0] if len(some) else tiles)
        if len(some):
            expected = np.packbits(passed[some[0]], axis=1, bitorder="little").view("<u8").ravel()
            np.testing.assert_array_equal(masks, expected)


@numba.njit
def least_and_largest(values):
    return simd.extremes(simd.address(values), len(values))


@pytest.mark.parametrize("n", [16, 17, 31, 32, 300])
def test_extremes_are_found_wherever_they_are(n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    for place in range(n):
        turned = np.roll(values, place)
        assert least_and_largest(turned) == (values.min(), values.max())


@pytest.mark.parametrize("n", [0, 3, 8, 29, 128])
def test_squared_distances_are_eight_sums(n):
    rng = np.random.default_rng(n)
    x, y, scale = rng.normal(size=n), rng.normal(size=n).astype(np.float32), 0.7
    squares, whole = np.square(x - scale * y.astype(np.float64)), n - n % 8
    a, b, c, d, e, f, g, h = [sum(squares[i:whole:8], 0.0) for i in range(8)]
    a = sum(squares[whole:], a)
    assert apart(x, y, scale) == ((a + b) + (c + d)) + ((e + f) + (g + h))


@numba.njit
def prefetched_sum(values):
    total = 0
    for place in range(len(values)):
        simd.prefetch(values, min(place + 8, len(values) - 1))
        total += values[place]
    return total


def test_prefetching_changes_nothing():
    assert prefetched_sum(np.arange(100)) == 4950


def test_indices_have_the_bits_that_this_machine_can_look_up():
    assert simd.index_bits() in (0, 4, 6)


@numba.njit
def _least(values):
    return simd.least_short(values.ctypes.data)


@pytest.mark.parametrize("spread", [1, 3, 2**15])
def test_the_least_of_256_numbers_and_its_first_place_are_found(spread):
    rng = np.random.default_rng(spread)
    for _ in range(50):
        values = rng.integers(-spread, spread, 256).astype(np.int16)
        assert _least(values) == 256 * int(values.min()) + int(values.argmin())


@numba.njit
def _pass_on(codes, lines, out):
    for r in range(len(codes)):
        at, width = codes.ctypes.data + r * codes.shape[1], codes.shape[1]
        simd.pass_on(at, width, lines.ctypes.data, out.ctypes.data)


def test_sums_of_lines_are_added_where_they_come_from():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (40, 5)).astype(np.uint8)
    lines = rng.normal(size=(5, 256, simd.LINE)).astype(np.float32)
    out, wanted = np.zeros_like(lines), np.zeros(lines.shape)
    _pass_on(codes, lines, out)
    for code in codes:
        wanted[np.arange(5), code] += lines[np.arange(5), code].sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
