"""The contract of every hasher (hashers/base.py), and what each method promises on top."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from auxbit import (
    ITQ,
    LSH,
    BinaryAutoencoder,
    BinaryFactorAnalysis,
    ThresholdedPCA,
)
from auxbit.blocks import BLOCK_ROWS, Workers
from auxbit.codes import pack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.itq import rotate_to_binary, signed_products
from auxbit.hashers.pca import principal_axes, random_rotation
from every_hasher import DEGENERATE, every_hasher

TRAINED = [BinaryAutoencoder, BinaryFactorAnalysis]


def made(hasher, n_bits=6, **parameters):
    """A hasher with a seed, and with few iterations where it iterates."""
    if hasher in TRAINED:
        parameters = {"max_iter": 6, **parameters}
    if hasher is BinaryAutoencoder:
        parameters = {"mu_factor": 3.0, **parameters}
    return hasher(n_bits, random_state=0, **parameters)


@pytest.fixture(scope="module")
def digits():
    """600 digits of 64 pixels, whole numbers of 0..16, float32."""
    return load_digits().data[:600].astype(np.float32)


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


# ---- scikit-learn's habits


@every_hasher
def test_a_hasher_works_in_a_pipeline(hasher, digits):
    pipeline = make_pipeline(StandardScaler(), made(hasher)).fit(digits)
    scaled = pipeline[0].transform(digits)
    assert np.array_equal(pipeline.transform(digits), pipeline[1].transform(scaled))
    assert np.array_equal(pipeline.fit_transform(digits), pipeline.transform(digits))
    assert pipeline.inverse_transform(pipeline.transform(digits)).shape == digits.shape


@every_hasher
def test_a_clone_has_the_parameters_but_not_the_model(hasher, digits):
    model = made(hasher).fit(digits)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "encoder_")
    assert np.array_equal(copy.fit(digits).encode(digits), model.encode(digits))


@every_hasher
def test_output_features_have_names_and_the_default_output_is_an_array(hasher, digits):
    model = made(hasher, 3).set_output(transform="default").fit(digits)
    assert isinstance(model.transform(digits), np.ndarray)
    prefix = hasher.__name__.lower()
    assert model.get_feature_names_out().tolist() == [f"{prefix}{bit}" for bit in range(3)]


@every_hasher
def test_a_parameter_set_after_fit_waits_for_the_next_fit(hasher, digits):
    model = made(hasher, 6).fit(digits)
    bits, codes = model.transform(digits), model.encode(digits)
    model.set_params(n_bits=3)
    assert np.array_equal(model.transform(digits), bits)
    assert np.array_equal(model.encode(digits), codes)
    assert len(model.get_feature_names_out()) == 6
    assert np.array_equal(model.decode(codes), model.inverse_transform(bits))
    assert model.fit(digits).transform(digits).shape == (600, 3)


@every_hasher
def test_inverse_transform_and_decode_refuse_what_are_not_codes(hasher, digits):
    model = made(hasher, 6).fit(digits)
    with pytest.raises(InvalidInput, match="Z has 7 columns, expected 6 bits"):
        model.inverse_transform(np.zeros((3, 7), dtype=np.uint8))
    with pytest.raises(InvalidInput, match="only 0 and 1"):
        model.inverse_transform(np.full((3, 6), 2))
    with pytest.raises(InvalidInput, match="expects a 2-D array"):
        model.inverse_transform(np.zeros(6))
    with pytest.raises(InvalidInput, match=r"packed codes of 6 bits: a \(n, 1\) array of uint8"):
        model.decode(np.zeros((3, 6), dtype=np.uint8))
    with pytest.raises(InvalidInput, match="bits set beyond the first 6"):
        model.decode(np.full((3, 1), 255, dtype=np.uint8))


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


# ---- degenerate data


def same_encoder(first, second):
    """Whether two models have the same encoder to the last bit."""
    tensors, others = first.encoder_.tensors(), second.encoder_.tensors()
    return all(np.array_equal(tensors[key], others[key]) for key in tensors | others)


def quietly_fitted(model, X):
    """Fit where only the warnings that are meant to be given may be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_bits=.* is more than (init=|AnchorGraphHashing)")
        return model.fit(X)


@every_hasher
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_rows_are_coded_all_the_same(hasher, kind, digits):
    X = DEGENERATE[kind](digits[:120].astype(np.float64))
    n_bits = min(len(X), 4)
    model = quietly_fitted(made(hasher, n_bits), X)
    bits = model.transform(X)
    assert bits.shape == (len(X), n_bits)
    spread = ((X - X.mean(axis=0)) ** 2).sum() / len(X)
    assert np.isfinite(model.inverse_transform(bits)).all()
    assert -1.0001 * spread - 1e-12 <= model.score(X) <= 0  # no worse than the mean of all rows


@every_hasher
def test_equal_rows_get_equal_codes(hasher, digits):
    X = np.repeat(digits[:100], 3, axis=0)
    codes = made(hasher).fit(X).encode(X)
    assert (codes.reshape(100, 3, -1) == codes[::3, None]).all()


@every_hasher
@pytest.mark.parametrize("n_bits", [1, 2])
def test_one_bit_and_one_dimension_are_enough(hasher, n_bits):
    X = np.concatenate([np.zeros(60), np.ones(60)])[:, None]
    if n_bits > 1 and hasher in (ThresholdedPCA, ITQ):
        pytest.skip("needs as many dimensions as bits, which another test shows")
    model = quietly_fitted(made(hasher, n_bits), X)
    codes = model.encode(X)[:, 0]
    assert (codes[:60] == codes[0]).all()
    assert (codes[60:] == codes[-1]).all()
    assert codes[0] != codes[-1]
    np.testing.assert_allclose(model.decode(model.encode(X)), X, atol=1e-6)


@pytest.mark.parametrize("hasher", [ThresholdedPCA, ITQ], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("shape", [(200, 5), (5, 200)])
def test_more_bits_than_principal_axes_is_an_error_that_names_the_methods_that_allow_it(hasher, shape):
    X = np.random.default_rng(0).normal(size=shape)
    assert made(hasher, 5).fit(X).transform(X).shape == (shape[0], 5)
    with pytest.raises(
        InvalidParameter, match=r"n_bits=6 .* at most 5 .*LSH, SpectralHashing, .*BinaryAutoencoder, Binary"
    ):
        made(hasher, 6).fit(X)


@pytest.mark.parametrize("hasher", TRAINED, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("init", ["itq", "tpca"])
def test_more_bits_than_dimensions_warns_that_a_pca_based_start_is_filled_up(hasher, init):
    X = np.random.default_rng(0).normal(size=(200, 5))
    with pytest.warns(
        UserWarning, match=rf"n_bits=12 is more than init='{init}' has axes for \(5\)"
    ) as caught:
        model = made(hasher, 12, init=init).fit(X)
    assert caught[0].filename == __file__
    assert len(np.unique(model.transform(X), axis=1).T) > 5


@pytest.mark.parametrize("hasher", TRAINED, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("init", ["lsh", "random"])
def test_more_bits_than_dimensions_is_no_matter_for_a_random_start(hasher, init):
    X = np.random.default_rng(0).normal(size=(200, 5))
    assert made(hasher, 12, init=init).fit(X).transform(X).shape == (200, 12)


def test_lsh_has_any_number_of_bits_and_more_of_them_reconstruct_better():
    X = np.random.default_rng(0).normal(size=(300, 5))
    scores = [LSH(n_bits, random_state=0).fit(X).score(X) for n_bits in (1, 8, 1024)]
    assert scores == sorted(scores)
    assert LSH(1024, random_state=0).fit(X).encode(X).shape == (300, 128)


# ---- single methods


def test_lsh_halves_space_by_planes_through_the_mean(digits):
    model = LSH(16, random_state=0).fit(digits)
    mean = digits.mean(axis=0, dtype=np.float64)
    away = digits[:200] - mean
    opposite = model.transform(mean - away)
    assert np.array_equal(model.transform(mean + away), 1 - opposite)


@pytest.mark.parametrize("rows", [600, 30])
def test_thresholded_pca_is_the_signs_of_scikit_learns_pca(rows, digits):
    X = digits[:rows].astype(np.float64)
    scores = PCA(8, svd_solver="full").fit_transform(X)
    bits = ThresholdedPCA(8).fit(X).transform(X)
    clear = np.abs(scores) > 1e-4
    agree = bits == (scores >= 0)
    for bit in range(8):
        same = agree[clear[:, bit], bit]
        assert same.all() or not same.any()


@pytest.mark.parametrize("rows", [300, 6])
def test_principal_axes_are_those_of_rows_that_are_not_centred_too(rows):
    X = np.random.default_rng(0).normal(size=(rows, 8)) * np.arange(1, 9) + np.arange(8)[::-1]
    with Workers(1) as workers:
        axes = principal_axes(X.astype(np.float32), 3, workers)
    expected = PCA(3, svd_solver="full").fit(X).components_.T
    np.testing.assert_allclose(np.abs((axes * expected).sum(axis=0)), 1, atol=1e-4)
    assert (axes[np.abs(axes).argmax(axis=0), range(3)] > 0).all()


def test_itq_rotates_the_principal_axes(digits):
    model = ITQ(8, random_state=0).fit(digits)
    with Workers(1) as workers:
        axes = principal_axes(model.scaling_.apply(digits), 8, workers)
    W = model.encoder_.weights.astype(np.float64)
    np.testing.assert_allclose(W.T @ W, np.eye(8), atol=1e-5)
    np.testing.assert_allclose(axes @ (axes.T @ W), W, atol=1e-5)


@settings(max_examples=20)
@given(n_bits=st.integers(1, 6), n=st.integers(6, 60), seed=st.integers(0, 10_000))
def test_itqs_quantisation_loss_never_rises_over_alternations(n_bits, n, seed):
    rng = np.random.RandomState(seed)
    V = rng.standard_normal((n, n_bits)).astype(np.float32)
    R, losses = random_rotation(n_bits, rng), []
    for _ in range(8):
        B = np.where(V @ R.astype(np.float32) >= 0, 1.0, -1.0)
        losses.append(((B - V @ R) ** 2).sum())
        R = rotate_to_binary(lambda R32: V.T @ np.where(V @ R32 >= 0, 1.0, -1.0), R, 1)
        np.testing.assert_allclose(R @ R.T, np.eye(n_bits), atol=1e-6)
        losses.append(((B - V @ R) ** 2).sum())
    assert (np.diff(losses) <= 1e-4 * losses[0]).all()
    assert losses[-1] <= losses[0]


def test_itqs_products_are_those_of_rows_and_codes_with_zero_as_plus():
    V = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    V[:5], R = 0, random_rotation(3, np.random.RandomState(0)).astype(np.float32)
    R[:, 1] = -0.0
    truth = V.T @ np.where(V @ R >= 0, 1.0, -1.0)
    np.testing.assert_allclose(signed_products(V, R), truth, rtol=1e-5, atol=1e-5)


def test_momentum_reaches_a_better_rotation_in_as_many_alternations(digits):
    X = (digits - digits.mean(axis=0)).astype(np.float32) / 16
    with Workers(1) as workers:
        V = X @ principal_axes(X, 16, workers).astype(np.float32)
    products, reached = partial(signed_products, V), {}
    for momentum in (0.0, 1.0):
        rotations = [random_rotation(16, np.random.RandomState(seed)) for seed in range(5)]
        found = [rotate_to_binary(products, R, 50, momentum) for R in rotations]
        assert all(np.allclose(R @ R.T, np.eye(16), atol=1e-6) for R in found)
        reached[momentum] = np.mean([np.abs(V @ R).sum() for R in found])
    assert reached[1.0] > reached[0.0]


def test_itq_quantises_better_than_the_rotation_it_starts_from(digits):
    def loss(model):
        projected = model.scaling_.apply(digits) @ model.encoder_.weights
        return ((np.where(projected >= 0, 1, -1) - projected) ** 2).sum()

    once, often = (ITQ(16, n_iter=n, random_state=0).fit(digits) for n in (1, 50))
    assert loss(often) < loss(once)


def test_itq_keeps_the_best_of_several_rotations():
    X = np.random.default_rng(0).normal(size=(200, 6)) * np.arange(1, 7)
    rng = np.random.RandomState(1)  # the single fits draw their rotations from it one after another
    single = [ITQ(6, random_state=rng).fit(X).score(X) for _ in range(6)]
    assert ITQ(6, n_init=6, random_state=1).fit(X).score(X) == pytest.approx(max(single), rel=1e-6)
    assert max(single) > max(single[0], single[-1])


@pytest.mark.parametrize("name", ["n_iter", "n_init"])
@pytest.mark.parametrize("value", [0, 2.5, True, "3"])
def test_itq_refuses_counts_that_are_none(name, value, digits):
    with pytest.raises(
        InvalidParameter, match=f"{name}={value!r} is invalid: expected an integer of at least 1"
    ):
        ITQ(4, **{name: value}).fit(digits)
