"""Where μ and C start, what is undone, and what is said of rows that leave nothing to learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from auxbit import ITQ, BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.core.maps import LinearDecoder
from auxbit.mac.fit import GAINS_KEPT, LARGE_C, PAPER_MU, first_mu, suitable_C
from auxbit.mac.steps import Reconstruction
from auxbit.mac.z_step import ZOptions

DIGITS = load_digits().data
RNG = np.random.default_rng(0)


OBJECTIVE = Reconstruction(ZOptions("alternating"))


def a_start(seed, n=60, D=7, L=5, scale=1.0):
    rng = np.random.default_rng(seed)
    X, Z = (
        (scale * rng.standard_normal((n, D))).astype(np.float32),
        rng.integers(0, 2, (n, L)).astype(np.uint8),
    )
    return X, Z, LinearDecoder(scale * rng.standard_normal((D, L)) / 2, scale * rng.standard_normal(D) / 9)


# ---- μ


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from([1.0, 0.01, 1e-3, 1e-6]))
def test_the_first_mu_lets_four_fifths_of_the_flips_that_help_happen(seed, scale):
    X, Z, f = a_start(seed, scale=scale)
    gains = []
    for x, z in zip(X.astype(float), Z, strict=True):
        error = np.square(x - f(z[None])[0]).sum()
        for bit in range(len(z)):
            flipped = z.copy()
            flipped[bit] ^= 1
            gains.append(error - np.square(x - f(flipped[None])[0]).sum())
    gains = np.array(gains)
    mu = first_mu(OBJECTIVE, None, None, X, Z, f)
    wanted = np.quantile(gains[gains > 0], 1 - GAINS_KEPT)
    assert mu == pytest.approx(min(PAPER_MU, wanted), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0])
def test_rows_that_no_flip_helps_get_a_mu_that_is_small_beside_their_error(scale):
    X, Z, f = a_start(3, scale=scale)
    X = f(Z).astype(np.float32) + (1e-3 * scale * RNG.standard_normal(X.shape)).astype(np.float32)
    error = np.median(np.square(X - f(Z)).sum(axis=1))
    assert 0 < first_mu(OBJECTIVE, None, None, X, Z, f) <= max(0.01 * error, 1e-12)


def test_digits_start_at_the_mu_of_the_paper_and_one_outlier_changes_only_the_scale_of_it():
    outlier = DIGITS.copy()
    outlier[5, 7] = 200
    plain, odd = (BinaryAutoencoder(16, random_state=0, validation=None).fit(X) for X in (DIGITS, outlier))
    assert plain.history_[0].mu == PAPER_MU
    shrunk = (np.ptp(DIGITS, axis=0).max() / np.ptp(outlier, axis=0).max()) ** 2
    assert odd.history_[0].mu == pytest.approx(shrunk * PAPER_MU, rel=3)
    assert odd.history_[0].changed > 0.5 * plain.history_[0].changed
    assert odd.score(DIGITS) > 1.05 * plain.score(DIGITS)


def test_factor_analysis_starts_at_a_hundredth_of_it():
    for X in (DIGITS, DIGITS * 1e3):
        assert BinaryFactorAnalysis(8, max_iter=2).fit(X).history_[0].mu == pytest.approx(PAPER_MU / 100)
    assert BinaryFactorAnalysis(8, mu=0.5, max_iter=2).fit(DIGITS).history_[0].mu == 0.5


# ---- C


@given(st.floats(1e-20, 1e3), st.integers(2, 10**7), st.integers(1, 2000))
def test_values_of_C_fall_and_scale_with_the_rows(size, n, D):
    values = suitable_C(size, n, D)
    assert values == sorted(values, reverse=True)
    assert values[0] == LARGE_C / min(1, size)
    for value in values[1:]:
        assert value * n * size / D == pytest.approx(4.0) or value * n * size / D == pytest.approx(0.5)


def test_the_C_with_the_highest_precision_in_the_first_steps_is_taken():
    queries, rows = DIGITS[1000:1200], DIGITS[:300]
    options = {"validation": queries, "random_state": 0}
    for n_bits in (16, 32, 64):
        chosen = BinaryAutoencoder(n_bits, **options).fit(rows)
        size = np.median(np.square(chosen.scaling_.apply(rows)).sum(axis=1))
        best = []
        for C in suitable_C(float(size), *rows.shape):
            model = BinaryAutoencoder(n_bits, C=C, max_iter=3, patience=9, **options).fit(rows)
            best.append((max(record.precision for record in model.history_), C))
        assert pytest.approx(max(best, key=lambda each: each[0])[1], rel=1e-6) == chosen.C_
        assert max(record.precision for record in chosen.history_) >= max(best)[0]


def test_without_validation_or_with_a_C_given_nothing_is_tried():
    assert BinaryAutoencoder(8, validation=None, random_state=0).fit(DIGITS).C_ == LARGE_C
    model = BinaryAutoencoder(8, C=3, random_state=0).fit(DIGITS)
    assert model.C_ == 3
    trained = BinaryAutoencoder(8, random_state=0).fit(DIGITS)
    assert [record.iteration for record in trained.history_] == list(range(1, trained.n_iter_ + 1))


# ---- what is kept


def test_the_decoder_is_fitted_to_all_rows_those_held_out_included():
    model = BinaryAutoencoder(8, random_state=0).fit(DIGITS)
    Z = np.c_[model.transform(DIGITS), np.ones(len(DIGITS))].astype(float)
    truth = np.linalg.lstsq(Z, DIGITS, rcond=None)[0]
    np.testing.assert_allclose(model.decoder_.A, truth[:-1].T, atol=1e-3)
    np.testing.assert_allclose(model.decoder_.b, truth[-1], atol=1e-3)


def test_without_validation_no_fit_ends_above_its_start():
    for seed in range(8):
        X = np.random.default_rng(seed).standard_t(3, (300, 20))
        model = BinaryAutoencoder(12, random_state=seed, validation=None).fit(X)
        assert -model.score(X) * len(X) <= model.history_[0].E_BA * (1 + 1e-9)


def test_the_paper_s_preset_undoes_what_does_not_help_and_ends_with_the_codes_of_h():
    model = BinaryAutoencoder(8, preset="paper", random_state=0).fit(DIGITS)
    assert [record.mu for record in model.history_[:3]] == [0.01, 0.02, 0.04]
    assert model.history_[-1].mismatched == 0
    assert model.C_ == 100
    missed = [record for record in model.history_ if not record.kept]
    on = BinaryAutoencoder(8, preset="paper", on_miss="continue", random_state=0).fit(DIGITS)
    assert missed
    first = missed[0].iteration
    assert [each.precision for each in on.history_[:first]] == [
        each.precision for each in model.history_[:first]
    ]
    assert on.history_[first].E_Q != model.history_[first].E_Q


# ---- what is said


def test_a_first_z_step_that_changes_nothing_says_what_to_do():
    with pytest.warns(ConvergenceWarning, match=r"mu=1e\+06, changed no bit.*leave it at None"):
        BinaryAutoencoder(8, mu0=1e6, random_state=0).fit(DIGITS)
    clusters = 10 * RNG.standard_normal((9, 30))[RNG.integers(0, 9, 900)] + RNG.normal(0, 0.1, (900, 30))
    with pytest.warns(ConvergenceWarning, match="tight clusters"):
        BinaryAutoencoder(8, random_state=0).fit(clusters)


@pytest.mark.parametrize("hasher", [ITQ(16, random_state=0), BinaryAutoencoder(16, random_state=0)])
def test_rows_that_outshine_all_others_are_named(hasher):
    X = np.random.default_rng(0).standard_normal((2000, 32))
    X[3] *= 1e4
    with pytest.warns(UserWarning, match=r"have only \d different codes of 16 bits. Rows 3 are more than"):
        hasher.fit(X)


@pytest.mark.parametrize("hasher", [ITQ(8, random_state=0), BinaryAutoencoder(8, random_state=0)])
def test_constant_rows_and_rows_of_rank_one_are_told(hasher):
    with pytest.warns(UserWarning, match="all rows of the sample are equal"):
        hasher.fit(np.ones((200, 12)))
    with pytest.warns(UserWarning, match="have rank 1"):
        hasher.fit(np.outer(np.random.default_rng(0).standard_normal(900), np.arange(1, 13)))
