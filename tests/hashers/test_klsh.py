"""Kernelized LSH against its formula, and what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save
from scipy.linalg import sqrtm
from scipy.spatial.distance import cdist

from auxbit.core.parallel import BLOCK_ROWS
from auxbit.errors import InvalidParameter
from auxbit.hashers.klsh import EIGENVALUE_CUT, KernelEncoder, KernelizedLSH, inverse_root, random_subsets

X = np.random.default_rng(0).normal(size=(400, 5)) * [5, 4, 3, 2, 1] + 10
QUERIES = np.random.default_rng(1).normal(size=(60, 5)) * [5, 4, 3, 2, 1] + 10


def by_formula(anchors, queries, bandwidth, subsets):
    """The scores in the units of X: all four terms of centring, and the root by SciPy."""

    def kernel(A):
        return np.exp(-(cdist(A, anchors) ** 2) / (2 * bandwidth**2))

    K = kernel(anchors)
    m = len(K)
    H = np.eye(m) - 1 / m
    root = np.real(sqrtm(np.linalg.pinv(H @ K @ H, rcond=EIGENVALUE_CUT, hermitian=True)))
    rows = kernel(queries)
    centred = rows - K.mean(axis=0) - rows.mean(axis=1, keepdims=True) + K.mean()
    return centred @ (root @ subsets)


def test_scores_are_those_of_the_papers_formula_on_rows_not_seen_in_fit():
    anchors = X[:40]
    model = KernelizedLSH(6, anchors=anchors, subset_size=7, bandwidth=4.0, random_state=3).fit(X)
    rng = np.random.RandomState(3)
    subsets = np.full((40, 6), -1 / 40)
    for bit in range(6):
        subsets[rng.choice(40, 7, replace=False), bit] += 1 / 7
    expected = by_formula(anchors, QUERIES, 4.0, subsets)
    scores = model.encoder_.scores(model.scaling_.apply(QUERIES))
    np.testing.assert_allclose(scores, expected, atol=1e-4 * np.abs(expected).max())
    assert np.array_equal(model.transform(QUERIES), expected >= 0)


def test_the_bandwidth_measured_in_fit_is_the_one_that_encodes():
    model = KernelizedLSH(8, n_anchors=50, random_state=0).fit(X)
    anchors = model.encoder_.anchors * model.scaling_.scale + model.scaling_.mean
    measured = np.sqrt(np.median(cdist(anchors, anchors)[np.triu_indices(50, 1)] ** 2))
    assert model.encoder_.bandwidth * model.scaling_.scale == pytest.approx(measured, rel=1e-5)
    again = KernelizedLSH(8, anchors=anchors, bandwidth=measured, random_state=1).fit(X)
    far = KernelizedLSH(8, anchors=anchors, bandwidth=20 * measured, random_state=1).fit(X)
    assert np.array_equal(
        again.transform(QUERIES), KernelizedLSH(8, anchors=anchors, random_state=1).fit(X).transform(QUERIES)
    )
    assert not np.array_equal(far.transform(QUERIES), again.transform(QUERIES))


def test_a_query_is_centred_by_the_training_statistics_and_not_by_the_queries_beside_it():
    model = KernelizedLSH(16, n_anchors=50, random_state=0).fit(X)
    together = model.transform(QUERIES)
    for one in range(0, 60, 7):
        assert np.array_equal(model.transform(QUERIES[one : one + 1])[0], together[one])
    off_centre = QUERIES[QUERIES[:, 0] > 12]
    assert np.array_equal(model.transform(off_centre), together[QUERIES[:, 0] > 12])


def test_tiny_eigenvalues_are_not_inverted():
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    values = np.array([4.0, 1.0, 4 * 2 * EIGENVALUE_CUT, 4 * EIGENVALUE_CUT / 2, 1e-15, -1e-15])
    root = inverse_root((vectors * values) @ vectors.T)
    expected = (vectors[:, :3] / np.sqrt(values[:3])) @ vectors[:, :3].T
    np.testing.assert_allclose(root, expected, rtol=1e-6, atol=1e-6)
    assert not inverse_root(np.zeros((4, 4))).any()


@pytest.mark.parametrize("anchors", [np.repeat(X[:10], 4, axis=0), X[:60]], ids=["repeated", "distinct"])
def test_repeated_anchors_and_a_wide_kernel_leave_the_weights_finite(anchors):
    model = KernelizedLSH(12, anchors=anchors, bandwidth=1e4, random_state=0).fit(X)
    assert np.isfinite(model.encoder_.weights).all()
    np.testing.assert_allclose(model.encoder_.weights.sum(axis=0), 0, atol=1e-6)
    shares = model.transform(X).mean(axis=0)
    assert ((shares > 0.02) & (shares < 0.98)).all()


def test_a_direction_is_the_mean_of_a_subset_minus_that_of_all_anchors():
    subsets = random_subsets(20, 5, 50, np.random.RandomState(0))
    assert subsets.shape == (20, 50)
    np.testing.assert_allclose(subsets.sum(axis=0), 0, atol=1e-12)
    assert ((subsets > 0).sum(axis=0) == 5).all()
    assert ((random_subsets(20, 30, 50, np.random.RandomState(0)) > 0).sum(axis=0) == 10).all()
    assert ((random_subsets(3, 30, 9, np.random.RandomState(0)) > 0).sum(axis=0) == 1).all()


@pytest.mark.parametrize("n_bits", [1, 70, 1024])
def test_any_number_of_bits_is_allowed(n_bits):
    bits = KernelizedLSH(n_bits, n_anchors=20, random_state=0).fit(X).transform(X)
    assert bits.shape == (400, n_bits)
    assert (bits.min(axis=0) < bits.max(axis=0)).all()


def test_rows_that_are_all_the_same_get_one_code():
    model = KernelizedLSH(5, random_state=0).fit(np.full((30, 3), 0.1))
    assert (model.transform(np.full((30, 3), 0.1)) == 1).all()
    assert (model.transform(np.zeros((2, 3))) == 1).all()


def test_the_bits_are_the_same_for_any_number_of_threads():
    many = np.random.default_rng(0).normal(size=(2 * BLOCK_ROWS + 5, 6))
    one, three = (KernelizedLSH(16, random_state=0, n_jobs=n_jobs).fit(many) for n_jobs in (1, 3))
    for name, array in one.encoder_.tensors().items():
        assert np.array_equal(array, three.encoder_.tensors()[name])
    assert np.array_equal(one.encode(many), three.encode(many))


def test_an_encoder_comes_back_from_its_tensors():
    model = KernelizedLSH(9, n_anchors=30, random_state=0).fit(X)
    scaled = model.scaling_.apply(QUERIES)
    tensors = {name: np.ascontiguousarray(value) for name, value in model.encoder_.tensors().items()}
    again = KernelEncoder(**load(save(tensors)))
    assert np.array_equal(again.scores(scaled), model.encoder_.scores(scaled))
    assert model.encoder_.bandwidth.shape == ()


@pytest.mark.parametrize("size", [0, -3, 1.5, "30", None, True])
def test_a_subset_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidParameter, match=r"subset_size=.* at least 1\. Try subset_size=30"):
        KernelizedLSH(4, subset_size=size).fit(X)
