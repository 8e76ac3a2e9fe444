"""The codes of every hasher (hashers/base.py): decoded, repeatable, the same from any kind of array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import ITQ, LSH, BinaryAutoencoder, ThresholdedPCA
from auxbit.core.maps import pack
from auxbit.core.parallel import BLOCK_ROWS
from helpers import hasher_models
from helpers.every_hasher import every_hasher
from helpers.hasher_models import made

digits = hasher_models.digits


def same_encoder(first, second):
    """Whether two models have the same encoder to the last bit."""
    tensors, others = first.encoder_.tensors(), second.encoder_.tensors()
    return all(np.array_equal(tensors[key], others[key]) for key in tensors | others)


# ---- codes and reconstructions


@every_hasher
@pytest.mark.parametrize("n_bits", [1, 6, 8, 13])
def test_transform_gives_a_byte_of_0_or_1_for_each_bit_and_encode_packs_them(hasher, n_bits, digits):
    model = made(hasher, n_bits).fit(digits)
    bits = model.transform(digits)
    assert bits.dtype == np.uint8
    assert bits.shape == (600, n_bits)
    assert set(np.unique(bits)) == {0, 1}
    codes = model.encode(digits)
    assert codes.dtype == np.uint8
    assert np.array_equal(codes, pack(bits))


@every_hasher
def test_decode_and_inverse_transform_agree(hasher, digits):
    model = made(hasher).fit(digits)
    bits, codes = model.transform(digits), model.encode(digits)
    assert np.array_equal(model.decode(codes), model.inverse_transform(bits))
    assert np.array_equal(model.inverse_transform(bits), model.inverse_transform(bits.astype(float).tolist()))
    by_hand = bits @ model.decoder_.A.T + model.decoder_.b
    np.testing.assert_allclose(model.inverse_transform(bits), by_hand, rtol=1e-12)


@every_hasher
def test_the_decoder_is_the_least_squares_one_for_the_codes_that_transform_gives(hasher, digits):
    model = made(hasher, validation=None).fit(digits) if hasher is BinaryAutoencoder else made(hasher)
    model = model.fit(digits)
    bits = model.transform(digits)
    residual = digits - model.inverse_transform(bits)
    scale = np.abs(digits).sum()
    assert np.abs(residual.sum(axis=0)).max() < 1e-6 * scale
    assert np.abs(bits.T @ residual).max() < 1e-6 * scale
    design = np.hstack([bits, np.ones((600, 1))])
    best = np.linalg.lstsq(design, digits, rcond=None)[0]
    np.testing.assert_allclose(model.inverse_transform(bits), design @ best, atol=1e-3)


@every_hasher
def test_score_is_minus_the_mean_squared_error_in_the_units_of_the_rows(hasher, digits):
    model = made(hasher).fit(digits)
    new = digits[:50] + 0.25
    residual = new - model.inverse_transform(model.transform(new))
    assert model.score(new) == pytest.approx(-(residual**2).sum() / 50, rel=1e-5)
    in_other_units = made(hasher).fit(digits * 1000.0 + 5)
    assert np.array_equal(in_other_units.transform(digits * 1000.0 + 5), model.transform(digits))
    assert in_other_units.score(new * 1000.0 + 5) == pytest.approx(1e6 * model.score(new), rel=1e-5)


@settings(max_examples=15)
@given(
    hasher=st.sampled_from([LSH, ThresholdedPCA, ITQ]),
    n=st.integers(4, 30),
    dimensions=st.integers(4, 7),
    seed=st.integers(0, 10_000),
)
def test_codes_of_a_row_do_not_depend_on_the_rows_around_it(hasher, n, dimensions, seed):
    X = np.random.default_rng(seed).normal(size=(n, dimensions))
    model = made(hasher, 4).fit(X)
    order = np.random.default_rng(seed + 1).permutation(n)
    assert np.array_equal(model.transform(X[order]), model.transform(X)[order])
    assert model.score(X[order]) == pytest.approx(model.score(X), rel=1e-9)


@pytest.mark.parametrize("hasher", [LSH, ThresholdedPCA, ITQ], ids=lambda cls: cls.__name__)
def test_a_row_on_the_threshold_has_ones_in_every_form(hasher):
    X = np.array([[1, 2, 3], [-1, -2, -3], [4, 0, -2], [-4, 0, 2], [0, 0, 0]], dtype=np.float64)
    model = made(hasher, 3).fit(X)
    assert model.transform(X)[-1].tolist() == [1, 1, 1]
    assert model.encode(X)[-1] == 0b111
    assert np.array_equal(model.encoder_(model.scaling_.apply(X)), model.transform(X))


# ---- the same seed, the same bits


@every_hasher
def test_the_bits_do_not_depend_on_the_number_of_threads(hasher):
    X = np.random.default_rng(0).normal(size=(2 * BLOCK_ROWS + 17, 12)).astype(np.float32)
    models = [made(hasher, n_jobs=n_jobs).fit(X) for n_jobs in (1, 2, 3)]
    for other in models[1:]:
        assert same_encoder(models[0], other)
        assert np.array_equal(models[0].decoder_.A, other.decoder_.A)
        assert np.array_equal(models[0].encode(X), other.encode(X))
        assert models[0].score(X) == other.score(X)


@every_hasher
def test_the_same_seed_gives_the_same_bits_and_a_generator_moves_on(hasher, digits):
    again = [made(hasher).fit(digits).encode(digits) for _ in range(2)]
    assert np.array_equal(*again)
    with_generator = made(hasher).set_params(random_state=np.random.RandomState(0))
    assert np.array_equal(with_generator.fit(digits).encode(digits), again[0])


@pytest.mark.parametrize("hasher", [LSH, ITQ, BinaryAutoencoder], ids=lambda cls: cls.__name__)
def test_another_seed_gives_other_bits_where_there_is_chance(hasher, digits):
    first, second = (made(hasher).set_params(random_state=seed).fit(digits) for seed in (0, 1))
    assert not np.array_equal(first.encode(digits), second.encode(digits))


def test_thresholded_pca_has_no_chance_in_it(digits):
    first, second = (ThresholdedPCA(6, random_state=seed).fit(digits) for seed in (0, 1))
    assert np.array_equal(first.encode(digits), second.encode(digits))


# ---- every kind of array that holds the same numbers


def as_memmap(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def spread_out(X):
    wide = np.full((2 * len(X), 3 * X.shape[1]), np.nan, dtype=X.dtype)
    wide[::2, 1::3] = X
    return wide[::2, 1::3]


ARRAYS = {
    "float64": lambda X, folder: X.astype(np.float64),
    "float16": lambda X, folder: X.astype(np.float16),
    "int64": lambda X, folder: X.astype(np.int64),
    "uint8": lambda X, folder: X.astype(np.uint8),
    "big endian": lambda X, folder: X.astype(">f4"),
    "objects": lambda X, folder: X.astype(object),
    "Fortran": lambda X, folder: np.asfortranarray(X),
    "strided": lambda X, folder: spread_out(X),
    "reversed": lambda X, folder: X[::-1, ::-1].copy()[::-1, ::-1],
    "memmap": as_memmap,
    "lists": lambda X, folder: X.tolist(),
}


@every_hasher
@pytest.mark.parametrize("kind", ARRAYS)
def test_the_same_numbers_give_the_same_bits_in_any_array(hasher, kind, digits, tmp_path):
    other = ARRAYS[kind](digits, tmp_path)
    model = made(hasher).fit(digits)
    assert np.array_equal(model.encode(other), model.encode(digits))
    assert model.score(other) == model.score(digits)
    refitted = made(hasher).fit(other)
    assert np.array_equal(refitted.encode(digits), model.encode(digits))
    assert np.array_equal(refitted.decoder_.A, model.decoder_.A)


@every_hasher
@pytest.mark.parametrize("kind", ["Fortran", "strided", "reversed", "memmap"])
def test_sums_over_rows_are_rounded_the_same_in_any_array(hasher, kind, tmp_path):
    X = np.random.default_rng(0).lognormal(size=(300, 9))
    model, other = made(hasher).fit(X), made(hasher).fit(ARRAYS[kind](X, tmp_path))
    assert np.array_equal(other.scaling_.mean, model.scaling_.mean)
    assert same_encoder(other, model)
    assert np.array_equal(other.decoder_.A, model.decoder_.A)


@every_hasher
def test_fit_and_transform_leave_the_rows_as_they_were(hasher, digits):
    X = digits.copy()
    X.flags.writeable = False
    made(hasher).fit(X).transform(X)
    assert np.array_equal(X, digits)


@every_hasher
def test_a_large_offset_costs_no_bits(hasher):
    centred = np.random.default_rng(0).integers(-512, 512, size=(400, 10)) / 1024.0
    model, shifted = made(hasher).fit(centred), made(hasher).fit(centred + 1e6)
    assert np.array_equal(shifted.encode(centred + 1e6), model.encode(centred))
    assert shifted.score(centred + 1e6) == pytest.approx(model.score(centred), rel=1e-4)
    np.testing.assert_allclose(shifted.decoder_.A, model.decoder_.A, atol=1e-6)
    np.testing.assert_allclose(shifted.decoder_.b - 1e6, model.decoder_.b, atol=1e-6)
