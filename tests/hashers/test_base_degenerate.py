"""Every hasher on degenerate data: rows that are equal, few, tiny or huge, and more bits than dimensions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from auxbit import ITQ, LSH, AnchorGraphHashing, BinaryAutoencoder, KernelizedLSH, ThresholdedPCA
from auxbit.errors import InvalidInput, InvalidParameter
from helpers import hasher_models
from helpers.every_hasher import DEGENERATE, every_hasher
from helpers.hasher_models import TRAINED, made

digits = hasher_models.digits


def quietly_fitted(model, X):
    """Fit where only the warnings that are meant to be given may be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(has axes for only|is more than AnchorGraphHashing)")
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
    with pytest.warns(UserWarning, match=rf"init='{init}' has axes for only 5 of n_bits=12 bits") as caught:
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


def test_rows_of_any_norm_have_the_codes_of_unit_rows(digits):
    X = digits[:200].astype(np.float64)
    model = LSH(16, normalize=True, random_state=0).fit(X)
    for factor in (1e-150, 1e-162, 1e-200, 1e-300):
        assert np.array_equal(model.encode(X * factor), model.encode(X))


def test_tables_hold_rows_whose_range_float32_cannot_hold(digits):
    unit = np.float32(2.0**124)  # float32 holds numbers to ±8 units, but not their range
    X = (digits[:300] - 8) * unit
    model = LSH(16, random_state=0).fit(X).fit_decoder(X, "tables", n_iter=2)
    small = LSH(16, random_state=0).fit(X / unit).fit_decoder(X / unit, "tables", n_iter=2)
    codes = model.encode(X, coding="optimal")
    assert np.isfinite(model.decoder_.tables).all()
    assert np.array_equal(codes, small.encode(X / unit, coding="optimal"))
    np.testing.assert_allclose(model.decode(codes) / unit, small.decode(codes), atol=1e-3)


@pytest.mark.parametrize("bandwidth", [1e-300, 1e-30, 1e30, 1e300])
@pytest.mark.parametrize(
    ("hasher", "parameters"),
    [(KernelizedLSH, {}), (AnchorGraphHashing, {}), *((each, {"encoder": "rbf"}) for each in TRAINED)],
)
def test_a_bandwidth_whose_square_cannot_be_held_is_refused(hasher, parameters, bandwidth, digits):
    model = made(hasher, bandwidth=bandwidth, **parameters)
    with pytest.raises(InvalidParameter, match=r"bandwidth=.* in 1\.6e-14\.\.1\.6e\+16 for these rows"):
        model.fit(digits[:200])


@pytest.mark.parametrize("validation", ["auto", None])
def test_one_outlier_leaves_gaussian_features_finite(validation):
    X = np.vstack([np.random.default_rng(1).normal(size=(500, 8)), np.full((1, 8), 1e6)])
    model = made(BinaryAutoencoder, 4, encoder="rbf", validation=validation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # those that NumPy gives are no such
        model.fit(X)
    assert np.isfinite(model.encoder_.weights).all()
    assert model.encode(X[:5]).tolist() == model.encode(X)[:5].tolist()


@pytest.mark.parametrize("lists", [None, 4])
@pytest.mark.parametrize("decoder", ["tables", "linear"])
def test_what_float32_cannot_hold_is_refused_without_warnings(decoder, lists, digits):
    X = digits[:300].astype(np.float64) * 1e60
    model = LSH(16, random_state=0).fit(X)
    if decoder == "linear" and lists is None:
        assert np.isfinite(model.fit_decoder(X, decoder).decode(model.encode(X, coding="optimal"))).all()
        return
    with pytest.raises(InvalidInput, match=r"float32 cannot hold\. Rescale the rows before fit"):
        model.fit_decoder(X, decoder, n_iter=1, lists=lists)
