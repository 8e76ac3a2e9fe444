"""Optimal codes for a linear decoder: never worse than h(x), exact where they are few, a dial by μ."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import auxbit
from auxbit import ITQ, LSH, BinaryAutoencoder, SphericalHashing
from auxbit.core.decoders import TableDecoder
from auxbit.core.maps import LinearDecoder, pack, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import AuxbitError, InvalidInput, InvalidParameter
from auxbit.mac.loop import decoder_sums, f_step
from auxbit.mac.z_step import ZOptions, ZSolver
from auxbit.quantiser.coder import coder_of
from auxbit.quantiser.fit import alternate_codes
from auxbit.quantiser.kernels import row_products
from helpers.slow_truths import all_codes

MUS = st.sampled_from([0.0, 1e-3, 0.1, 2.0])


@pytest.fixture(scope="module")
def digits():
    """All 1797 digits, divided by 16."""
    return load_digits().data / 16


@pytest.fixture(scope="module")
def fitted(digits):
    """ITQ of 24 bits with a linear decoder for its optimal codes."""
    return ITQ(24, random_state=0).fit(digits).fit_decoder(digits, "linear", n_iter=4)


def problem(n, D, L, seed, kind="random"):
    """Rows, h(x) and a decoder, all at random."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(D, L))
    if kind == "repeated":
        A[:, L // 2 :] = A[:, : L - L // 2]
    elif kind == "zero":
        A[:] = 0.0
    X = (rng.normal(size=(n, D)) * np.sqrt(L) / 2).astype(np.float32)
    return X, pack(rng.integers(0, 2, size=(n, L))), LinearDecoder(A, rng.normal(size=D))


def objectives(X, H, f, codes, mu):
    """‖x − f(z)‖² + μ‖z − h(x)‖² of each row, as it is written."""
    return np.square(X - f.decode(codes)).sum(axis=1) + mu * np.bitwise_count(codes ^ H).sum(axis=1)


def solve(X, H, f, mu, effort=1.0):
    return coder_of(f, mu, effort).solve(X, H, H)


def lowest_of_all(X, H, f, mu):
    """The least objective of each row over all codes."""
    every = pack(all_codes(f.n_bits))
    reached = f.decode(every)
    squares = np.square(X, dtype=np.float64).sum(axis=1)[:, None] + np.square(reached).sum(axis=1)
    squares -= 2 * X.astype(np.float64) @ reached.T
    differing = unpack(H, f.n_bits)[:, None] != all_codes(f.n_bits) if mu else np.zeros((1, 1, 1))
    return (squares + mu * differing.sum(axis=2)).min(axis=1)


# ---- the search


@settings(max_examples=25)
@given(
    L=st.integers(1, 11),
    mu=MUS,
    seed=st.integers(0, 999),
    kind=st.sampled_from(["random", "repeated", "zero"]),
)
def test_to_16_bits_the_codes_are_the_best_of_all(L, mu, seed, kind):
    X, H, f = problem(9, 5, L, seed, kind)
    found = objectives(X, H, f, solve(X, H, f, mu), mu)
    np.testing.assert_allclose(found, lowest_of_all(X, H, f, mu), rtol=1e-9, atol=1e-9)


def test_at_16_bits_the_codes_are_the_best_of_all():
    X, H, f = problem(3, 12, 16, 0)
    found = objectives(X, H, f, solve(X, H, f, 0.1), 0.1)
    np.testing.assert_allclose(found, lowest_of_all(X, H, f, 0.1), rtol=1e-9)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_above_16_bits_nearly_all_codes_are_the_best_of_all(mu):
    X, H, f = problem(30, 12, 17, 1)
    found = objectives(X, H, f, solve(X, H, f, mu), mu)
    lowest = lowest_of_all(X, H, f, mu)
    assert (found >= lowest - 1e-9).all()
    assert (found <= lowest + 1e-9).mean() >= 0.9


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_bits_whose_own_cost_is_as_large_as_what_the_others_add_are_weighed_in_full(share):
    # columns that point one way: a bit by itself costs more than half of what all others can change of it
    rng = np.random.default_rng(0)
    f = LinearDecoder(rng.normal(size=(30, 1)) + 0.5 * rng.normal(size=(30, 24)), np.zeros(30))
    truth, H = (
        (rng.random((400, 24)) < share).astype(np.uint8),
        rng.integers(0, 2, (400, 24)).astype(np.uint8),
    )
    X = (f(truth) + 0.3 * rng.normal(size=(400, 30))).astype(np.float32)
    alone = np.square(f.A).sum(axis=0) - 2 * X @ f.A
    gram = np.abs(2 * f.A.T @ f.A)
    assert (np.abs(alone) > 0.5 * (gram.sum(axis=1) - gram.diagonal())).mean() > 0.4
    best = truth.copy()
    ZSolver(f, 1e-9, ZOptions("exact")).solve(X, H, best, None)
    found, least = (np.square(X - f(Z)).sum(axis=1) for Z in (unpack(solve(X, pack(H), f, 0.0), 24), best))
    assert (found <= least * (1 + 1e-5)).mean() >= 0.99


@settings(max_examples=20)
@given(
    L=st.integers(17, 70), D=st.integers(1, 40), mu=MUS, seed=st.integers(0, 999),
    kind=st.sampled_from(["random", "repeated", "zero"]),
)  # fmt: skip
def test_no_flip_of_one_bit_or_two_and_not_h_itself_is_better(L, D, mu, seed, kind):
    X, H, f = problem(4, D, L, seed, kind)
    Z = unpack(solve(X, H, f, mu, effort=0.1), L)
    found = objectives(X, H, f, pack(Z), mu)
    scale = 1e-9 * np.square(f.A).sum() + 1e-9
    assert (found <= objectives(X, H, f, H, mu) + scale).all()
    for i in range(L):
        for j in range(i + 1):
            other = Z.copy()
            other[:, i] ^= 1
            if j < i:
                other[:, j] ^= 1
            assert (found <= objectives(X, H, f, pack(other), mu) + scale).all()


def test_more_effort_does_not_end_higher_on_average():
    X, H, f = problem(200, 40, 48, 2)
    short, usual = (objectives(X, H, f, solve(X, H, f, 0.0, effort), 0.0).mean() for effort in (0.05, 1.0))
    assert usual < 0.995 * short


def test_rows_far_away_get_codes_as_good_as_flips_can_make_them():
    X, H, f = problem(5, 8, 40, 3)
    far = X * np.float32(1e6)
    codes = solve(far, H, f, 0.0)
    bits = unpack(codes, 40)
    pull = (far - f.b) @ f.A
    decided = np.abs(pull) > np.abs(f.A.T @ f.A).sum(axis=1)
    assert decided.mean() > 0.9
    assert np.array_equal(bits[decided], (pull > 0)[decided])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_products_of_rows_are_those_of_numpy_and_the_same_beside_any_rows(kind):
    rng = np.random.default_rng(0)
    X, b, W = rng.normal(size=(7, 11)).astype(np.float32), rng.normal(size=11), rng.normal(size=(11, 2050))
    W, b = W.astype(kind), b.astype(kind)
    out, alone = np.empty((7, 2050), dtype=kind), np.empty((1, 2050), dtype=kind)
    row_products(X, b, W, out)
    np.testing.assert_allclose(out, (X - b) @ W, rtol=1e-4, atol=1e-4)
    for i in range(7):
        row_products(X[i : i + 1], b, W, alone)
        assert np.array_equal(alone[0], out[i])


# ---- encode


def test_the_dial_goes_from_the_best_reconstruction_to_the_hash_codes(fitted, digits):
    H = fitted.encode(digits, coding="hash")
    errors, distances = [], []
    for mu in (0.0, 0.01, 0.1, 1.0, 1e3):
        codes = fitted.encode(digits, coding="optimal", mu=mu)
        errors.append(np.square(digits - fitted.decode(codes)).sum())
        distances.append(int(np.bitwise_count(codes ^ H).sum()))
    assert errors == sorted(errors)
    assert errors[0] < 0.8 * errors[-1]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] == 0


@pytest.mark.parametrize("n_bits", [5, 16, 20])
@pytest.mark.parametrize("hasher", [LSH, SphericalHashing])
def test_optimal_codes_reconstruct_no_row_worse_than_the_hash_codes(hasher, n_bits, digits):
    model = hasher(n_bits, random_state=0).fit(digits[:400])
    hashed, best = model.encode(digits), model.encode(digits, coding="optimal")
    before = np.square(digits - model.decode(hashed)).sum(axis=1)
    after = np.square(digits - model.decode(best)).sum(axis=1)
    assert (after <= before + 1e-5).all()
    assert after.mean() < 0.9 * before.mean()
    assert np.array_equal(model.encode(digits, coding="hash", mu=5.0), hashed)
    assert np.array_equal(unpack(hashed, n_bits), model.transform(digits))


def test_mu_is_counted_in_the_units_of_scaled_rows(digits):
    model, scaled = (ITQ(20, random_state=0).fit(X) for X in (digits, digits * 1000 + 5))
    for mu in (0.0, 0.05):
        codes = model.encode(digits, coding="optimal", mu=mu)
        same = (scaled.encode(digits * 1000 + 5, coding="optimal", mu=mu) == codes).all(axis=1)
        assert same.mean() > 0.99


@pytest.mark.parametrize("n_bits", [12, 20])
@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_the_code_of_a_row_does_not_depend_on_other_rows_or_threads(n_bits, mu, digits):
    model = ITQ(n_bits, random_state=0, n_jobs=1).fit(digits)
    codes = model.encode(digits, coding="optimal", mu=mu)
    order = np.random.default_rng(0).permutation(len(digits))
    assert np.array_equal(model.encode(digits[order], coding="optimal", mu=mu), codes[order])
    for i in range(20):
        assert np.array_equal(model.encode(digits[i : i + 1], coding="optimal", mu=mu), codes[i : i + 1])
    model.set_params(n_jobs=3)
    assert np.array_equal(model.encode(digits, coding="optimal", mu=mu), codes)


def test_codes_follow_a_decoder_that_was_replaced(digits):
    model = ITQ(20, random_state=0).fit(digits)
    before = model.encode(digits, coding="optimal")
    model.fit_decoder(digits, "linear", n_iter=2)
    assert not np.array_equal(model.encode(digits, coding="optimal"), before)


def test_what_was_derived_for_coding_is_not_pickled_or_copied(fitted, digits):
    codes = fitted.encode(digits, coding="optimal")
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert set(vars(other.decoder_)) == {"A", "b", "normalize", "mu", "lift"}
        assert np.array_equal(other.encode(digits, coding="optimal"), codes)


@pytest.mark.parametrize("coding", ["best", "", 3, ["hash"]])
def test_an_unknown_coding_is_refused(coding, fitted, digits):
    with pytest.raises(InvalidParameter, match="coding="):
        fitted.encode(digits, coding=coding)


def test_codes_are_named_if_the_decoder_is_fitted_to_optimal_codes_alone(digits):
    model = ITQ(16, random_state=0).fit(digits)
    assert np.array_equal(model.encode(digits), model.encode(digits, coding="hash"))
    model.fit_decoder(digits, "linear", mu=0.05, n_iter=1)
    assert np.array_equal(model.encode(digits), model.encode(digits, coding="hash"))
    model.fit_decoder(digits, "linear", n_iter=1)
    with pytest.raises(InvalidInput, match=r'encode\(X, coding="optimal"\)'):
        model.encode(digits)
    assert np.array_equal(model.encode(digits, queries=True), model.encode(digits, coding="hash"))


@pytest.mark.parametrize("mu", [-1.0, np.nan, np.inf, "0", True, 1e13])
def test_a_mu_that_is_no_penalty_is_refused(mu, fitted, digits):
    with pytest.raises(InvalidParameter, match="mu="):
        fitted.encode(digits, coding="optimal", mu=mu)
    with pytest.raises(InvalidParameter, match="mu="):
        fitted.fit_decoder(digits, mu=mu)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(bad, fitted, digits):
    rows = digits[:30].copy()
    rows[7, 3] = bad
    with pytest.raises(InvalidInput, match="row 7, column 3"):
        fitted.encode(rows, coding="optimal")
    with pytest.raises(InvalidInput, match="row 7, column 3"):
        fitted.fit_decoder(rows)


# ---- fit_decoder


@pytest.mark.parametrize("L", [10, 24])
@pytest.mark.parametrize("mu", [0.0, 0.02])
def test_no_turn_of_the_alternation_raises_the_objective(L, mu, digits):
    X = (digits - digits.mean(axis=0)).astype(np.float32)
    H = ITQ(L, random_state=0).fit(digits).encode(digits)
    with Workers(1) as workers:
        f = f_step(decoder_sums(X, unpack(H, L), workers))
        values = [objectives(X, H, f, H, mu).mean()]
        for decoder, codes_of_turn in alternate_codes(X, H, f, H, mu, 5, workers):
            values.append(objectives(X, H, decoder, codes_of_turn, mu).mean())
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(values))
    assert values[-1] < 0.97 * values[0]


def test_a_fitted_decoder_reconstructs_the_optimal_codes_better(digits):
    train, new = digits[:1200], digits[1200:]
    model = ITQ(24, random_state=0).fit(train)
    errors = [np.square(new - model.decode(model.encode(new, coding="optimal"))).sum()]
    hashed = model.encode(new)
    model.fit_decoder(train, "linear")
    errors.append(np.square(new - model.decode(model.encode(new, coding="optimal"))).sum())
    assert errors[1] < 0.95 * errors[0]
    assert np.array_equal(model.encode(new, coding="hash"), hashed)


def test_a_fitted_decoder_is_the_same_for_any_number_of_threads(digits):
    models = [
        ITQ(20, random_state=0, n_jobs=n).fit(digits).fit_decoder(digits, "linear", n_iter=3) for n in (1, 2)
    ]
    assert np.array_equal(models[0].decoder_.A, models[1].decoder_.A)


def test_with_a_large_mu_the_fitted_decoder_is_that_of_the_hash_codes(digits):
    model = ITQ(20, random_state=0).fit(digits)
    before = model.decoder_
    model.fit_decoder(digits, "linear", mu=1e6, n_iter=2)
    np.testing.assert_allclose(model.decoder_.A, before.A, atol=1e-6)


def test_a_failed_fit_of_the_decoder_leaves_the_model_as_it_was(fitted, digits):
    before = dict(vars(fitted))
    for bad in (digits[:, :5], "rows", np.zeros((0, 64))):
        with pytest.raises((AuxbitError, ValueError)):
            fitted.fit_decoder(bad)
    for wrong in ("linaer", None, 3):
        with pytest.raises(InvalidParameter, match="decoder="):
            fitted.fit_decoder(digits, wrong)
    for wrong in (0, -2, 1.5, "3"):
        with pytest.raises(InvalidParameter, match="n_iter="):
            fitted.fit_decoder(digits, n_iter=wrong)
    assert vars(fitted) == before


def test_a_decoder_for_rows_divided_by_their_norms_codes_such_rows(digits, tmp_path):
    model = BinaryAutoencoder(20, normalize=True, max_iter=3, validation=None, mu_factor=4.0, random_state=0)
    with pytest.warns(Warning, match="the fit ended"):
        model.fit(digits)
    model.fit_decoder(digits, n_iter=3)
    codes = model.encode(digits, coding="optimal")
    assert np.array_equal(model.encode(digits * 7.0, coding="optimal"), codes)
    unit = digits / np.linalg.norm(digits, axis=1, keepdims=True)
    error = np.square(unit - model.decode(codes)).sum()
    assert error < np.square(unit - model.decode(model.encode(digits, coding="hash"))).sum()
    model.save(tmp_path / "m")
    loaded = auxbit.load(tmp_path / "m")
    assert loaded.decoder_.normalize
    assert np.array_equal(loaded.encode(digits, coding="optimal"), codes)


def test_tables_of_a_linear_decoder_have_the_same_best_codes():
    X, H, f = problem(20, 6, 14, 4)
    tables = TableDecoder.of(f)
    found = [objectives(X, H, f, solve(X, H, g, 0.2), 0.2) for g in (f, tables)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_fit_decoder_tells_of_each_turn(digits):
    model, turns = ITQ(12, random_state=0).fit(digits), []
    model.fit_decoder(digits, n_iter=3, callback=lambda turn, of: turns.append((turn, of)))
    assert turns == [(1, 3), (2, 3), (3, 3)]


def test_bytes_that_tell_little_are_chosen_as_well_as_those_that_tell_much():
    rng = np.random.default_rng(0)
    sizes = np.array([1.0, 1.0, 1e-3, 1e-3])[:, None, None]
    f = TableDecoder((sizes * rng.normal(size=(4, 256, 6))).astype(np.float32), np.zeros(6), 32)
    codes = rng.integers(0, 256, (50, 4)).astype(np.uint8)
    X = f.decode(codes).astype(np.float32)
    start = codes.copy()
    start[:, 2:] ^= 255
    found = coder_of(f, 0.0).solve(X, start, start)
    left = np.square(X - f.decode(found)).sum(axis=1)
    for j in range(4):  # no other value of one byte is better
        for value in range(256):
            other = found.copy()
            other[:, j] = value
            assert (np.square(X - f.decode(other)).sum(axis=1) >= left - 1e-12).all()


def test_of_tables_that_are_orthogonal_each_byte_is_the_nearest_of_its_own():
    rng = np.random.default_rng(1)
    tables = np.zeros((4, 256, 8), dtype=np.float32)
    for j in range(4):
        tables[j, :, 2 * j : 2 * j + 2] = rng.normal(size=(256, 2))
    X = rng.normal(size=(60, 8)).astype(np.float32)
    nothing = np.zeros((60, 4), dtype=np.uint8)
    found = coder_of(TableDecoder(tables, np.zeros(8), 32), 0.0).solve(X, nothing, nothing)
    apart = np.square(X[:, None, None] - tables).sum(axis=3)
    assert np.array_equal(found, apart.argmin(axis=2))
