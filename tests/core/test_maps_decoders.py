"""Decoders, linear and of tables: one contract, against the plain formulas."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from auxbit.core import simd
from auxbit.core.decoders import TableDecoder, decoder_from, decoder_parts
from auxbit.core.maps import LinearDecoder, Scaling, pack

L, D = 19, 5
RANDOM = np.random.default_rng(0)
LINEAR = LinearDecoder(RANDOM.normal(size=(D, L)), RANDOM.normal(size=D))
TABLES = TableDecoder(RANDOM.normal(size=(3, 256, D)).astype(np.float32), RANDOM.normal(size=D), L)
Z = RANDOM.integers(0, 2, (40, L)).astype(np.uint8)
both = pytest.mark.parametrize("decoder", [LINEAR, TABLES], ids=["linear", "tables"])


@both
def test_bits_and_packed_codes_have_the_same_reconstruction(decoder):
    np.testing.assert_allclose(decoder(Z), decoder.decode(pack(Z)))


def test_a_linear_decoder_is_az_plus_b_and_tables_are_looked_up_by_byte():
    np.testing.assert_allclose(LINEAR(Z), Z @ LINEAR.A.T + LINEAR.b)
    byte = pack(Z)
    looked_up = sum(TABLES.tables[j, byte[:, j]].astype(float) for j in range(3))
    np.testing.assert_allclose(TABLES(Z), looked_up + TABLES.b)


@both
def test_tables_offsets_and_norms_make_the_distance_to_the_reconstruction(decoder):
    X, codes = RANDOM.normal(size=(7, D)), pack(Z)
    tables = decoder.query_tables(X)
    assert tables.shape == (7, 3, 256)
    sums = sum(tables[:, j, codes[:, j]] for j in range(3))
    found = decoder.query_offsets(X)[:, None] + sums + decoder.squared_norms(codes)
    expected = np.square(X[:, None] - decoder(Z)[None]).sum(axis=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@both
def test_a_decoder_in_the_units_of_the_data_undoes_the_scaling_and_back(decoder):
    scaling = Scaling(RANDOM.normal(size=D), 2.5)
    outside = decoder.in_units_of(scaling)
    np.testing.assert_allclose(outside(Z), decoder(Z) * 2.5 + scaling.mean, rtol=1e-5)
    np.testing.assert_allclose(outside.in_scale_of(scaling)(Z), decoder(Z), rtol=1e-5, atol=1e-5)


@both
def test_the_parts_in_a_file_make_the_same_decoder_and_wrong_ones_are_refused(decoder):
    header, tensors = decoder_parts(decoder)
    np.testing.assert_array_equal(decoder_from(header, tensors)(Z), decoder(Z))
    with pytest.raises(ValueError, match=r"decoder\..* is \(.*\) of float.*, expected \(.*\) of float"):
        decoder_from(header | {"n_bits": 99}, tensors)
    with pytest.raises(KeyError, match="Other"):
        decoder_from(header | {"class": "Other"}, tensors)


@both
def test_copies_do_not_keep_what_was_derived(decoder):
    decoder(Z), decoder.query_tables(np.zeros((1, D)))
    assert not [name for name in vars(copy.deepcopy(decoder)) if name.startswith("_")]


@pytest.mark.parametrize("n_dims", [63, 64, 97, 300])
@pytest.mark.parametrize("spread", [1.0, 1e12, 1e-12])
def test_rough_tables_are_as_precise_as_they_say_and_the_same_for_any_rows_beside(n_dims, spread):
    rng = np.random.default_rng(n_dims)
    vectors = rng.normal(size=(3, 256, n_dims)) * rng.uniform(0, 3, size=(3, 256, 1))
    vectors[1, 7], vectors[2, 9] = 0, np.eye(n_dims)[5]  # whose one number is as large as its length
    decoder = TableDecoder(vectors.astype(np.float32), np.zeros(n_dims), 24)
    rows = rng.normal(size=(11, n_dims)) * spread
    rows[3], rows[4] = 0, np.eye(n_dims)[5] * spread
    tables = np.empty((11, 3, 256), dtype=np.float32)
    decoder.rough_tables(rows, tables)
    lengths = np.linalg.norm(rows, axis=1)[:, None, None] * np.linalg.norm(vectors, axis=2)
    exact = -2 * np.einsum("qd,jvd->qjv", rows, decoder.tables.astype(np.float64))
    assert (np.abs(tables - exact) <= 1e-4 * lengths).all()
    if n_dims >= 64:
        for n in (1, 4, 6):
            fewer = np.empty((n, 3, 256), dtype=np.float32)
            decoder.rough_tables(rows[2 : 2 + n], fewer)
            assert np.array_equal(fewer, tables[2 : 2 + n])


@pytest.mark.parametrize("n_dims", [64, 97, 130])
def test_tables_of_eight_bits_are_the_same_whatever_instructions_multiply_them(n_dims, monkeypatch):
    rng = np.random.default_rng(n_dims)
    vectors, rows = rng.normal(size=(3, 256, n_dims)).astype(np.float32), rng.normal(size=(7, n_dims))
    made = []
    for by_bytes in {False, simd.multiplies_bytes()}:
        monkeypatch.setattr(simd, "multiplies_bytes", lambda by_bytes=by_bytes: by_bytes)
        decoder = TableDecoder(vectors, np.zeros(n_dims), 24, errors=np.full((3, 256), float(n_dims)))
        made.append(np.empty((7, 3, 256), dtype=np.float32))
        decoder.rough_tables(rows, made[-1])
        assert decoder.table_bits == 8
    lengths = np.linalg.norm(rows, axis=1)[:, None, None] * np.linalg.norm(vectors, axis=2)
    exact = -2 * np.einsum("qd,jvd->qjv", rows, vectors.astype(np.float64))
    assert all(np.array_equal(made[0], each) for each in made)
    assert (np.abs(made[0] - exact) <= 0.01 * lengths).all()
    assert np.abs(made[0] - exact).mean() <= 0.003 * lengths.mean()


def test_eight_bits_are_for_codes_that_leave_far_more_of_rows():
    vectors = np.random.default_rng(0).normal(size=(2, 256, 64)).astype(np.float32)
    for errors, bits in ((None, 16), (0.0, 16), (0.01, 16), (5.0, 8)):
        parts = None if errors is None else np.full((2, 256), errors)
        assert TableDecoder(vectors, np.zeros(64), 16, errors=parts).table_bits == bits
