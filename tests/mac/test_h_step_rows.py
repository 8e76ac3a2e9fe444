from __future__ import annotations

import numpy as np
import pytest

from auxbit.core.parallel import Workers
from auxbit.mac.h_step import ArraySvmRows
from auxbit.mac.loop import decoder_sums
from helpers.slow_truths import random_rows
from helpers.svm_cases import flip, labelled_digits


@pytest.fixture(scope="module")
def digits():
    return labelled_digits()


@pytest.mark.parametrize("bits", [[0, 1, 2, 3], [1, 3], [2]])
def test_products_for_some_bits_are_those_of_their_columns(digits, bits):
    X, Z = digits[0], flip(digits[1], 0.1)
    rng, bits = np.random.default_rng(0), np.array(bits)
    W, P = rng.normal(size=(65, 4)), rng.normal(size=(65, len(bits)))
    ones = np.c_[X, np.ones(len(X))].astype(float)
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(W)
        sums = rows.count(np.arange(4))
        some = rows.count(bits)
        hessian = rows.hessian_product(P, bits)
        squares = rows.aim(P, bits)
        size = rng.random(len(bits))
        along = rows.along(size, bits)
        rows._renew(W[:, bits] + size * P, bits)
    for name in ("slack", "active", "active_square", "square"):
        np.testing.assert_allclose(getattr(some, name), getattr(sums, name)[bits], rtol=1e-6)
    np.testing.assert_allclose(some.half_gradient, sums.half_gradient[:, bits], rtol=1e-4, atol=1e-3)
    y, scores, aimed = 2.0 * Z - 1, ones @ W, ones @ P
    active = (y * scores < 1)[:, bits]
    np.testing.assert_allclose(hessian, ones.T @ (active * aimed), rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(squares, (active * aimed**2).sum(axis=0), rtol=1e-4)
    after = scores.copy()
    after[:, bits] += size * aimed
    slack = np.maximum(0, 1 - y * after)[:, bits]
    np.testing.assert_allclose(along[0], np.square(slack).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(along[1], -(y[:, bits] * slack * aimed).sum(axis=0), rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(along[2], ((slack > 0) * aimed**2).sum(axis=0), rtol=1e-3)
    np.testing.assert_allclose(rows.scores, after, rtol=1e-3, atol=1e-3)


def test_counting_labels_gives_the_sums_of_both_steps(digits):
    X, Z = digits[0], flip(digits[1], 0.1)
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(np.random.default_rng(0).normal(size=(65, 4)))
        sums, ZZ, XZ = rows.count_labels()
        alone, truth = rows.count(np.arange(4)), decoder_sums(X, Z, workers)
    np.testing.assert_array_equal(ZZ, truth.ZZ)
    np.testing.assert_allclose(XZ.T, truth.ZX, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sums.half_gradient, alone.half_gradient, rtol=1e-4, atol=1e-2)
    np.testing.assert_array_equal(sums.slack, alone.slack)


def test_the_gradient_of_the_rows_is_that_of_their_slack():
    X, Z, h, _ = random_rows(n=200)
    W = np.vstack([h.weights, h.bias]).astype(float)
    bits = np.arange(Z.shape[1])
    with Workers(1) as workers:
        rows = ArraySvmRows(X, Z, workers)
        rows.note(W)
        sums = rows.count(bits)
        step = 1e-3 * np.random.default_rng(0).normal(size=W.shape)
        change = rows.hessian_product(step, bits)
        rows.note(W + step)
        moved = rows.count(bits).half_gradient
    scores = X @ W[:-1] + W[-1]
    margins = (2.0 * Z - 1) * scores
    np.testing.assert_allclose(sums.slack, np.square(np.maximum(0, 1 - margins)).sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(sums.active, (margins < 1).sum(axis=0))
    np.testing.assert_allclose(sums.square, np.square(scores).sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(sums.active_square, (np.square(scores) * (margins < 1)).sum(axis=0), rtol=1e-5)
    ones = np.c_[X, np.ones(len(X))]
    truth = ones.T @ (np.minimum(0, margins - 1) * (2.0 * Z - 1))
    np.testing.assert_allclose(sums.half_gradient, truth, atol=1e-3)
    np.testing.assert_allclose(moved - sums.half_gradient, change, atol=0.02 * np.abs(change).max())
