from __future__ import annotations

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from auxbit.core import maps, simd
from auxbit.errors import InvalidInput, InvalidParameter

bit_arrays = hnp.arrays(
    np.uint8, st.tuples(st.integers(0, 9), st.integers(1, 140)), elements=st.integers(0, 1)
)


@given(bit_arrays)
def test_unpack_undoes_pack(Z):
    packed = maps.pack(Z)
    assert packed.shape == (len(Z), maps.bytes_per_code(Z.shape[1]))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(maps.unpack(packed, Z.shape[1]), Z)


@given(st.integers(1, 140), st.integers(0, 9), st.randoms())
def test_pack_undoes_unpack(n_bits, n, random):
    packed = np.array(
        [list(random.getrandbits(n_bits).to_bytes(maps.bytes_per_code(n_bits), "little")) for _ in range(n)],
        dtype=np.uint8,
    ).reshape(n, -1 if n else maps.bytes_per_code(n_bits))
    np.testing.assert_array_equal(maps.pack(maps.unpack(packed, n_bits)), packed)


@given(bit_arrays)
def test_bit_l_is_bit_l_mod_8_of_byte_l_div_8(Z):
    packed = maps.pack(Z)
    np.testing.assert_array_equal(packed, np.packbits(Z, axis=1, bitorder="little"))
    for bit in range(Z.shape[1]):
        np.testing.assert_array_equal(packed[:, bit // 8] >> (bit % 8) & 1, Z[:, bit])


def test_codes_equal_those_of_faiss():
    X = np.random.default_rng(0).normal(size=(50, 24)).astype(np.float32)
    theirs = faiss.IndexLSH(24, 24, False, False)
    np.testing.assert_array_equal(maps.pack(X > 0), theirs.sa_encode(X))


def test_faiss_finds_our_codes_at_our_distances():
    Z = np.random.default_rng(1).integers(0, 2, (40, 72), dtype=np.uint8)
    packed = maps.pack(Z)
    index = faiss.IndexBinaryFlat(72)
    index.add(packed)
    distances, ids = index.search(packed[:5], 40)
    np.testing.assert_array_equal(
        np.take_along_axis(maps.hamming_distances(packed[:5], packed), ids, 1), distances
    )


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_zeros_and_ones_of_any_type_are_packed(dtype):
    assert maps.pack(np.array([[1, 0, 0, 1]], dtype)).tolist() == [[9]]


@pytest.mark.parametrize("wrong", [[[0, 2]], [[0.5, 1]], [[-1, 1]], [[np.nan, 1]]])
def test_other_values_than_0_and_1_are_refused(wrong):
    with pytest.raises(InvalidInput, match="only 0 and 1"):
        maps.pack(wrong)


def test_a_single_code_must_be_a_row():
    with pytest.raises(InvalidInput, match=r"2-D array of 0 and 1, got shape \(2,\) of int64"):
        maps.pack([0, 1])


@pytest.mark.parametrize("wrong", [0, 8193, -3, True, 8.0, "32", None])
def test_an_invalid_number_of_bits_is_refused(wrong):
    with pytest.raises(InvalidParameter, match=r"n_bits=.* is invalid: expected an integer in 1..8192"):
        maps.check_n_bits(wrong)
    with pytest.raises(InvalidParameter, match=r"n_bits="):
        maps.unpack(np.zeros((1, 1), np.uint8), wrong)


@pytest.mark.parametrize("n_bits", [1536, 8191, 8192])
def test_long_codes_are_packed_and_compared(n_bits):
    Z = np.random.default_rng(0).integers(0, 2, (9, n_bits), dtype=np.uint8)
    Z[0], Z[1] = 0, 1
    packed = maps.pack(Z)
    np.testing.assert_array_equal(maps.unpack(packed, n_bits), Z)
    true = (Z[:, None] != Z[None]).sum(axis=2)
    np.testing.assert_array_equal(maps.hamming_distances(packed, packed), true)
    out, planes = np.zeros(9, np.uint16), maps.to_planes(packed, n_bits)
    for query, wanted in zip(maps.query_words(packed, n_bits), true, strict=True):
        assert simd.chunk_distances(planes, 0, 9, query, out) == 0
        np.testing.assert_array_equal(out, wanted)


def test_numpy_integers_count_as_numbers_of_bits():
    assert type(maps.check_n_bits(np.int32(64))) is int


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 2), np.uint8), np.zeros((3, 1), np.int64), np.zeros(1, np.uint8)]
)
def test_codes_of_another_shape_or_type_are_refused(wrong):
    with pytest.raises(
        InvalidInput, match=r"queries must be packed codes of 8 bits: a \(n, 1\) array of uint8"
    ):
        maps.check_packed(wrong, 8, "queries")


def test_bits_beyond_the_last_are_refused():
    with pytest.raises(InvalidInput, match="bits set beyond the first 7"):
        maps.check_packed(np.array([[0x80]], np.uint8), 7)
    maps.check_packed(np.array([[0x7F]], np.uint8), 7)


@given(bit_arrays)
def test_words_keep_every_bit_and_add_none(Z):
    words = maps.to_words(maps.pack(Z))
    assert words.shape == (len(Z), -(-Z.shape[1] // 64))
    np.testing.assert_array_equal(np.bitwise_count(words).sum(1), Z.sum(1, dtype=int))


def test_words_of_a_strided_view_are_those_of_its_copy():
    wide = np.random.default_rng(2).integers(0, 256, (6, 16), dtype=np.uint8)
    np.testing.assert_array_equal(maps.to_words(wide[::2, 8:]), maps.to_words(wide[::2, 8:].copy()))


@given(bit_arrays)
def test_hamming_distance_counts_the_differing_bits(Z):
    expected = (Z[:, None, :] != Z[None, :, :]).sum(2)
    distances = maps.hamming_distances(maps.pack(Z), maps.pack(Z))
    assert distances.dtype == np.int32
    np.testing.assert_array_equal(distances, expected)


def test_codes_of_different_widths_have_no_distance():
    with pytest.raises(InvalidInput, match="codes of 8 and of 9 bytes"):
        maps.hamming_distances(np.zeros((1, 8), np.uint8), np.zeros((1, 9), np.uint8))
