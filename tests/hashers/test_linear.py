"""What LSH, thresholded PCA and ITQ each promise on top of the contract of every hasher."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from auxbit import ITQ, LSH, HammingIndex, ThresholdedPCA, load
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter
from auxbit.hashers.linear import (
    principal_axes,
    random_rotation,
    rotate_to_binary,
    rotated_axes,
    signed_products,
)
from helpers import hasher_models

digits = hasher_models.digits


def test_lsh_halves_space_by_planes_through_the_mean(digits):
    model = LSH(16, random_state=0).fit(digits)
    mean = digits.mean(axis=0, dtype=np.float64)
    away = digits[:200] - mean
    opposite = model.transform(mean - away)
    assert np.array_equal(model.transform(mean + away), 1 - opposite)


@pytest.mark.parametrize(
    "model", [LSH(1536, random_state=0), ThresholdedPCA(1090), ITQ(1090, n_iter=2)], ids=str
)
def test_linear_methods_make_long_codes(model, tmp_path):
    X = np.random.default_rng(0).normal(size=(1100, 1100)).astype(np.float32)
    codes = model.fit(X).encode(X)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").encode(X[:9]), codes[:9])
    index = HammingIndex(model.n_bits, decoder=model.decoder_)
    index.add(codes)
    assert index.search(codes[:9], 1)[1].ravel().tolist() == list(range(9))
    distances, ids = index.search_asymmetric(X[:9], 5)
    true = np.square(X[:9, None] - model.decode(codes)).sum(axis=2)
    digits_of = 1e-5 * (np.square(X).sum(axis=1).max() + model.decoder_.squared_norms(codes).max())
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :5], atol=digits_of)
    np.testing.assert_allclose(distances, np.take_along_axis(true, ids, axis=1), atol=digits_of)


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


def rotate_slowly(V, R, n_iter, momentum):
    """B = sgn(V(R + m(R − the R before))), then the rotation nearest to B, n_iter times."""
    before = R
    for _ in range(n_iter):
        B = np.where(V @ (R + momentum * (R - before)) >= 0, 1.0, -1.0)
        U, _, Wt = np.linalg.svd(V.T @ B)
        before, R = R, U @ Wt
    return R


@pytest.mark.parametrize("n_init", [1, 4])
def test_axes_are_rotated_with_the_momentum_that_is_asked_for(n_init, digits):
    X = (digits - digits.mean(axis=0)).astype(np.float32) / 16
    found = {}
    with Workers(1) as workers:
        axes = principal_axes(X, 6, workers)
        for momentum in (0.0, 1.0):
            options = {"n_iter": 4, "n_init": n_init, "momentum": momentum}
            found[momentum] = rotated_axes(X, axes, workers, np.random.RandomState(0), **options)
    V, rng = X @ axes, np.random.RandomState(0)
    starts = [random_rotation(6, rng) for _ in range(n_init)]
    for momentum, wanted in found.items():
        ends = [rotate_slowly(V, start, 4, momentum) for start in starts]
        if (
            n_init > 1
        ):  # each is tried for as many steps as there are at most, and the best goes on from its end
            ends = [rotate_slowly(V, end, 4, momentum) for end in ends]
        assert any(np.allclose(axes @ R, wanted, atol=1e-5) for R in ends)
    assert not np.allclose(found[0.0], found[1.0], atol=1e-2)


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


@pytest.mark.parametrize("n_bits", [4, 8])
def test_tpca_has_a_decoder_for_its_codes_where_rows_lie_across_its_axes(n_bits):
    X = np.eye(20)[np.arange(1000) % 20]  # balanced categories
    model = ThresholdedPCA(n_bits).fit(X)
    ones = np.hstack([model.transform(X), np.ones((len(X), 1))])
    best = X - ones @ np.linalg.lstsq(ones, X, rcond=None)[0]
    assert -model.score(X) == pytest.approx(np.square(best).sum() / len(X))
