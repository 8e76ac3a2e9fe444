"""BA and BFA with other hash functions than linear ones: what they promise, and what they refuse."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler

import auxbit
from auxbit import BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.core.features import OwnEncoder, RbfEncoder
from auxbit.errors import InvalidInput, InvalidParameter, ModelFileError
from helpers.large_rows import history_of

X = load_digits().data.astype(np.float32)
QUICK = {"max_iter": 3, "random_state": 0, "n_jobs": 1, "n_centres": 60}


class Cosines:
    """Random Fourier features: a map of the user's own."""

    def __init__(self, width=30, reach=0.02):
        self.width, self.reach = width, reach

    def fit(self, rows):
        rng = np.random.default_rng(0)
        self.directions = self.reach * rng.standard_normal((rows.shape[1], self.width))
        return self

    def __call__(self, rows):
        return np.cos(rows @ self.directions)


@pytest.mark.parametrize("n_bits", [8, 16])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_error_of_rbf_is_never_above_that_of_linear(n_bits, seed):
    errors = [
        -BinaryAutoencoder(n_bits, encoder=encoder, validation=None, random_state=seed).fit(X).score(X)
        for encoder in ("linear", "rbf")
    ]
    assert errors[1] <= errors[0] * (1 + 1e-6)
    assert errors[1] < (0.98 if n_bits == 16 else 0.999) * errors[0]


@pytest.mark.parametrize("C", [1e-8, 1e-4])
def test_neither_is_it_if_features_are_of_no_use(C):
    """With such a C the SVMs hardly use anything: the fit returns what it started from."""
    errors = []
    for encoder in ("linear", "rbf"):
        model = BinaryAutoencoder(8, encoder=encoder, C=C, validation=None, random_state=0, max_iter=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors.append(-model.fit(X[:400]).score(X[:400]))
    assert errors[1] <= errors[0] * (1 + 1e-6)


def test_validation_precision_is_never_below_that_of_linear():
    best = []
    for encoder in ("linear", "rbf"):
        model = BinaryAutoencoder(16, encoder=encoder, random_state=0).fit(X)
        best.append(max(record.precision for record in model.history_))
    assert best[1] >= best[0] - 1e-12


@pytest.mark.parametrize("hasher", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_the_model_is_the_same_for_any_number_of_threads(hasher):
    models = [hasher(12, encoder="rbf", **QUICK | {"n_jobs": n_jobs}).fit(X) for n_jobs in (1, 3)]
    for name, value in models[0].encoder_.tensors().items():
        np.testing.assert_array_equal(value, models[1].encoder_.tensors()[name])
    np.testing.assert_array_equal(models[0].encode(X), models[1].encode(X))


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"lift": True}, {"h_solver": "ridge"}])
def test_rows_out_of_core_give_the_model_of_rows_in_memory(options, tmp_path):
    np.save(tmp_path / "x.npy", X)
    here = BinaryAutoencoder(12, encoder="rbf", **QUICK, **options).fit(X)
    there = BinaryAutoencoder(12, encoder="rbf", **QUICK, **options).fit(tmp_path / "x.npy", memory="1GB")
    assert history_of(here) == history_of(there)
    np.testing.assert_array_equal(here.encode(X), there.encode(X))


def test_training_codes_are_those_of_encode():
    """The last Z step ends with Z = h(X); the decoder fits what `encode` returns."""
    model = BinaryAutoencoder(8, encoder="rbf", validation=None, random_state=0, n_centres=40).fit(X)
    Z = model.transform(X).astype(np.float64)
    ones = np.hstack([Z, np.ones((len(Z), 1))])
    best = np.square(X - ones @ np.linalg.lstsq(ones, X.astype(np.float64), rcond=None)[0]).sum()
    assert -model.score(X) * len(X) == pytest.approx(best, rel=1e-5)
    assert model.history_[-1].mismatched == 0


@pytest.mark.parametrize("hasher", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_a_model_with_features_is_saved_in_a_format_of_its_own_and_loaded(hasher, tmp_path):
    model = hasher(12, encoder="rbf", **QUICK).fit(X)
    model.save(tmp_path / "m.safetensors")
    again = auxbit.load(tmp_path / "m.safetensors")
    assert auxbit.hashers.registry.read_header(tmp_path / "m.safetensors")["format_version"] == 5
    assert isinstance(again.encoder_, RbfEncoder)
    assert again.get_params()["encoder"] == "rbf"
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(again.encode(X), model.encode(X))
    linear = hasher(12, **QUICK).fit(X)
    linear.save(tmp_path / "l.safetensors")
    assert auxbit.hashers.registry.read_header(tmp_path / "l.safetensors")["format_version"] == 1
    assert linear.fingerprint() != model.fingerprint()


def test_a_file_without_its_centres_is_refused(tmp_path):
    model = BinaryAutoencoder(8, encoder="rbf", **QUICK).fit(X)
    vars(model.encoder_)["centres"] = model.encoder_.centres[:-1]
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(ModelFileError, match=r"encoder.means is \(60\) of float32, expected \(m=59\)"):
        auxbit.load(tmp_path / "m.safetensors")


def test_codes_by_the_decoder_work_as_with_a_linear_hash_function():
    model = BinaryAutoencoder(16, encoder="rbf", decoder="tables", **QUICK).fit(X)
    assert model._error_of(X, model.encode(X, coding="optimal")) < -model.score(X)


def test_a_given_bandwidth_is_in_the_units_of_X():
    one = BinaryAutoencoder(8, encoder="rbf", bandwidth=10.0, **QUICK).fit(X)
    other = BinaryAutoencoder(8, encoder="rbf", bandwidth=80.0, **QUICK).fit(8 * X)
    assert float(one.encoder_.bandwidth[0]) * one.scaling_.scale == pytest.approx(10.0)
    np.testing.assert_allclose(one.encoder_.bandwidth, other.encoder_.bandwidth)


def test_centres_are_as_many_as_rows_can_tell():
    assert (
        len(BinaryAutoencoder(8, encoder="rbf", max_iter=2).fit(X).encoder_.centres) == (len(X) - 179) // 10
    )
    few = BinaryAutoencoder(2, encoder="rbf", n_centres=500, max_iter=2, validation=None).fit(X[:40])
    assert len(few.encoder_.centres) == 40


@pytest.mark.parametrize("encoder", [Cosines(), RBFSampler(gamma=5e-4, n_components=30, random_state=0)])
def test_a_map_of_the_users_own_is_fitted_as_a_copy_and_used(encoder, tmp_path):
    model = BinaryAutoencoder(8, encoder=encoder, validation=None, random_state=0).fit(X)
    linear = BinaryAutoencoder(8, validation=None, random_state=0).fit(X)
    assert isinstance(model.encoder_, OwnEncoder)
    assert not hasattr(encoder, "directions")
    assert not hasattr(encoder, "random_weights_")
    assert model.score(X) >= linear.score(X)
    assert model.encode(X).shape == (len(X), 1)
    np.save(tmp_path / "x.npy", X)
    there = clone(model).fit(tmp_path / "x.npy", memory="1GB")
    assert history_of(there) == history_of(model)


def test_a_map_of_the_users_own_is_not_saved_nor_kept_in_a_checkpoint(tmp_path):
    model = BinaryAutoencoder(8, encoder=Cosines(), **QUICK).fit(X)
    with pytest.raises(
        InvalidInput, match="encoder is a Cosines of your own, which auxbit's files cannot hold"
    ):
        model.save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidParameter, match="'linear' or 'rbf' with checkpoint="):
        model.fit(X, checkpoint=tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"encoder": "rfb"}, "encoder='rfb' is invalid: expected 'linear' or 'rbf', or an object"),
        ({"encoder": 3}, "encoder must be 'linear', 'rbf', or an object that can be called"),
        ({"encoder": "rbf", "n_centres": 0}, "n_centres=0 is invalid"),
        ({"encoder": "rbf", "bandwidth": -1.0}, "bandwidth=-1.0 is invalid"),
    ],
)
def test_what_is_no_encoder_is_refused(options, why):
    with pytest.raises(InvalidInput, match=why):
        BinaryAutoencoder(8, **options).fit(X)
