"""The augmented Lagrangian: its Z step against brute force, its multipliers, and where its path ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder
from auxbit.core.maps import LinearDecoder
from auxbit.errors import InvalidParameter
from auxbit.mac.steps import Augmented
from auxbit.mac.z_step import ZOptions, ZSolver

DIGITS = load_digits().data


def problem(seed, n=40, D=6, L=6):
    rng = np.random.default_rng(seed)
    f = LinearDecoder(rng.normal(size=(D, L)) / 2, rng.normal(size=D) / 9)
    X = rng.normal(size=(n, D)).astype(np.float32)
    H, Z = rng.integers(0, 2, (2, n, L)).astype(np.uint8)
    return X, H, Z, f, (rng.normal(size=(n, L)) / 2).astype(np.float32)


def energy(X, H, Z, f, mu, multipliers):
    apart = Z.astype(float) - H
    left = np.square(X - f(Z)).sum(axis=1)
    return left + mu * np.square(apart).sum(axis=1) - (multipliers * apart).sum(axis=1)


@settings(max_examples=25)
@given(
    st.integers(0, 2**20),
    st.sampled_from([1e-3, 0.05, 1.0, 50.0]),
    st.integers(1, 8),
    st.sampled_from(["exact", "alternating"]),
    st.sampled_from(["warm", "relaxed", "best"]),
)
def test_the_z_step_with_multipliers_equals_enumeration(seed, mu, L, solver, start):
    X, H, Z, f, multipliers = problem(seed, L=L)
    before = energy(X, H, Z, f, mu, multipliers)
    every = ((np.arange(1 << L)[:, None] >> np.arange(L)) & 1).astype(np.uint8)
    least = np.min([energy(X, H, np.tile(z, (len(X), 1)), f, mu, multipliers) for z in every], axis=0)
    options = ZOptions.resolve(L, solver, start, 1, None)
    counts = ZSolver(f, mu, options).solve(X, H, Z, (), multipliers)
    found = energy(X, H, Z, f, mu, multipliers)
    assert (found <= before + 1e-5).all()
    if solver == "exact":
        np.testing.assert_allclose(found, least, atol=1e-4)
    rest = np.square(X - f.b).sum() - counts.projected  # what no code changes
    assert counts.energy + rest == pytest.approx(found.sum(), abs=1e-3)
    at_h = energy(X, H, H, f, mu, multipliers).sum()
    assert counts.hash_energy + rest == pytest.approx(at_h, abs=1e-3)


def test_multipliers_grow_by_twice_mu_where_a_bit_is_unlike_h():
    X, H, Z, f, multipliers = problem(1)
    before = multipliers.copy()
    Augmented(ZOptions("alternating")).solver(f, 0.25).solve(X, H, Z, (multipliers,))
    np.testing.assert_allclose(multipliers - before, 0.5 * (H.astype(float) - Z), atol=1e-6)


@pytest.mark.parametrize("n_bits", [8, 24])
def test_the_path_ends_where_codes_are_those_of_h_in_fewer_steps(n_bits):
    options = {"validation": None, "mu_factor": 1.1, "max_iter": 200, "random_state": 0}
    plain = BinaryAutoencoder(n_bits, **options).fit(DIGITS)
    model = BinaryAutoencoder(n_bits, penalty="augmented", **options).fit(DIGITS)
    assert model.history_[-1].mismatched == 0
    assert model.n_iter_ < plain.n_iter_
    assert model.score(DIGITS) > 1.02 * plain.score(DIGITS)  # both are negative
    assert pytest.approx(-model.score(DIGITS) * len(DIGITS), rel=1e-2) == model.history_[-1].E_BA


def test_a_mu_that_is_undone_takes_its_multipliers_with_it():
    fits = [
        BinaryAutoencoder(12, penalty="augmented", on_miss="return", random_state=0, n_jobs=n).fit(DIGITS)
        for n in (1, 2)
    ]
    assert np.array_equal(fits[0].encode(DIGITS), fits[1].encode(DIGITS))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"penalty": "cubic"}, "penalty='cubic'.*'quadratic' or 'augmented'"),
        ({"penalty": "augmented", "z_solver": "enumerate"}, "penalty='augmented'.*enumerate"),
        ({"penalty": "augmented", "z_solver": "alternating", "group_size": 8}, "group_size above 6"),
    ],
)
def test_what_cannot_be_is_refused(parameters, message):
    with pytest.raises(InvalidParameter, match=message):
        BinaryAutoencoder(8, **parameters).fit(DIGITS)


def test_rows_that_are_not_in_memory_are_refused(tmp_path):
    np.save(tmp_path / "rows.npy", DIGITS)
    with pytest.raises(InvalidParameter, match=r"penalty='augmented'.*in memory"):
        BinaryAutoencoder(8, penalty="augmented").fit(tmp_path / "rows.npy")
