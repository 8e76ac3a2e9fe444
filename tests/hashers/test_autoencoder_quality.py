"""What BinaryAutoencoder and BinaryFactorAnalysis reach: falling energies and the authors' figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from auxbit import ITQ, BinaryAutoencoder, BinaryFactorAnalysis, ThresholdedPCA
from auxbit.errors import InvalidParameter
from auxbit.mac.steps import Steps
from helpers import autoencoder_models
from helpers.autoencoder_models import MODELS, error_of, short

digits, some = autoencoder_models.digits, autoencoder_models.some


@pytest.mark.parametrize("n_bits", [8, 16, 32])
def test_the_penalised_energy_of_factor_analysis_falls_but_for_what_the_svms_add(n_bits, some):
    model = BinaryFactorAnalysis(n_bits, random_state=0).fit(some)
    energies = [record.E_Q for record in model.history_]
    assert len(energies) > 3
    assert energies[-1] < 0.9 * energies[0]
    # the f and Z steps never raise it; an SVM minimises slack, not errors, and may add a few of these
    assert all(b <= a * (1 + 1e-4) for a, b in pairwise(energies))


@pytest.mark.parametrize("tol", [0.05, 0.03, 0.02, 0.01, 0.005])
def test_factor_analysis_ends_when_its_energy_settles(tol, some):
    model = BinaryFactorAnalysis(8, tol=tol, random_state=0).fit(some)
    falls = [(a.E_Q - b.E_Q) / b.E_Q for a, b in pairwise(model.history_)]
    assert falls[-1] <= tol
    assert all(fall > tol for fall in falls[:-1])


def test_the_classifiers_of_factor_analysis_are_fitted_to_its_last_codes_to_the_end(some, monkeypatch):
    h_step, fitted = Steps.h_step, []

    def spied(self, h, **options):
        fitted.append((self.rows.Z.copy(), options, h_step(self, h, **options)))
        return fitted[-1][-1]

    monkeypatch.setattr(Steps, "h_step", spied)
    model = BinaryFactorAnalysis(8, max_iter=3, random_state=0).fit(some)
    *_, (before, _, _), (codes, options, h) = fitted
    assert len(fitted) == model.n_iter_  # the first step took the start's own function, the last is one more
    assert options == {"exact": True}
    assert not np.array_equal(before, codes)
    assert np.array_equal(model.encoder_.weights, h.weights)
    assert (model.transform(some) == codes).mean() > 0.9


def test_free_codes_reconstruct_better_than_their_classifiers(some):
    model = BinaryFactorAnalysis(8, random_state=0).fit(some)
    assert error_of(model, some) > model.history_[-1].E_Q


@pytest.mark.parametrize(("n_bits", "authors"), [(8, 3954.0), (16, 2803.8), (32, 1711.7)])
def test_on_digits_the_autoencoder_reaches_the_authors_error_and_beats_itq(n_bits, authors, digits):
    errors, itq = [], []
    for seed in range(3):
        model = BinaryAutoencoder(n_bits, validation=None, random_state=seed).fit(digits)
        errors.append(error_of(model, digits))
        itq.append(error_of(ITQ(n_bits, random_state=seed).fit(digits), digits))
    assert np.mean(errors) <= authors
    assert max(errors) <= min(itq)


@pytest.mark.parametrize("n_bits", [8, 16])
def test_the_autoencoder_beats_the_hasher_that_it_starts_from(n_bits, digits):
    start = ThresholdedPCA(n_bits).fit(digits)
    model = BinaryAutoencoder(n_bits, init=start, validation=None, random_state=0).fit(digits)
    assert error_of(model, digits) < error_of(start, digits)


def test_on_sift_descriptors_the_autoencoder_reaches_the_authors_error(real_data):
    X = np.load(real_data / "siftsmall" / "learn.npy").astype(np.float32)
    X /= np.ptp(X, axis=0).max()
    model = BinaryAutoencoder(16, validation=None, random_state=0).fit(X)
    assert error_of(model, X) <= 43534.3


def test_parameters_of_the_papers_own_settings_are_accepted(some):
    model = BinaryAutoencoder(
        8, mu_factor=2, z_solver="enumerate", z_start="relaxed", validation=None, random_state=0
    ).fit(some)
    exact = BinaryAutoencoder(8, mu_factor=2, z_solver="exact", validation=None, random_state=0).fit(some)
    assert error_of(model, some) == pytest.approx(error_of(exact, some), rel=1e-3)


def test_a_wrong_step_option_is_refused_before_the_start_is_computed(some, monkeypatch):
    def slow(*arguments):
        raise AssertionError("the start was computed first")

    monkeypatch.setattr("auxbit.hashers.autoencoder.first_codes", slow)
    for model_class in MODELS:
        with pytest.raises(InvalidParameter, match="group_size=0 is invalid"):
            short(model_class, group_size=0).fit(some)
        with pytest.raises(InvalidParameter, match="C=0 is invalid"):
            short(model_class, C=0).fit(some)
