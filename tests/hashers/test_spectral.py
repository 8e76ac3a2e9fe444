"""Spectral hashing against loops, on digits, and on data that has little to give."""

from __future__ import annotations

from math import cos, exp, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from auxbit.core.parallel import BLOCK_ROWS
from auxbit.hashers.spectral import SpectralEncoder, SpectralHashing, smoothest_modes
from helpers.every_hasher import DEGENERATE


@pytest.fixture(scope="module")
def digits():
    return load_digits().data.astype(np.float32)


def box(sides):
    """A grid of 12 rows a side in a box around 0: its sides are the principal axes."""
    return np.array(np.meshgrid(*(np.linspace(-a / 2, a / 2, 12) for a in sides))).reshape(len(sides), -1).T


# ---- the formula


def test_scores_are_the_cosines_that_a_loop_over_rows_and_bits_gives(digits):
    model = SpectralHashing(20).fit(digits)
    encoder, X = model.encoder_, model.scaling_.apply(digits)
    projected = X.astype(np.float64) @ encoder.axes
    low, high = projected.min(axis=0), projected.max(axis=0)
    scores = encoder.scores(X[:30])
    assert scores.shape == (30, 20)
    axis, mode = smoothest_modes(high - low, 20)
    for row in range(30):
        for bit in range(20):
            a, b, x = low[axis[bit]], high[axis[bit]], projected[row, axis[bit]]
            assert scores[row, bit] == pytest.approx(cos(mode[bit] * pi * (x - a) / (b - a)), abs=1e-9)
    assert np.array_equal(model.transform(digits[:30]), scores >= 0)


@given(
    ranges=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=5),
    n_bits=st.integers(1, 24),
)
def test_the_modes_are_the_smallest_eigenvalues_of_a_whole_grid(ranges, n_bits):
    eps = 0.05 * min(ranges) / n_bits
    grid = [
        ((mode / ranges[axis]), 1 - exp(-(eps**2) / 2 * (mode * pi / ranges[axis]) ** 2))
        for axis in range(len(ranges))
        for mode in range(n_bits + 3)
    ]
    without_constants = sorted(each for each in grid if each[1] > 0)
    axis, mode = smoothest_modes(np.array(ranges), n_bits)
    assert axis.dtype == mode.dtype == np.int64
    frequency = mode / np.array(ranges)[axis]
    np.testing.assert_allclose(frequency, [each[0] for each in without_constants[:n_bits]], rtol=1e-12)
    eigenvalues = [each[1] for each in without_constants[:n_bits]]
    assert (np.diff(eigenvalues) >= 0).all()
    assert mode.min() >= 1
    assert len(set(zip(axis.tolist(), mode.tolist()))) == n_bits


def test_a_long_side_gets_more_bits_than_a_short_one():
    axis, mode = smoothest_modes(np.array([4.0, 1.5, 0.1]), 6)
    # frequencies: .25 .5 .75 1 1.25 on the first axis, .67 on the second
    assert list(zip(axis, mode)) == [(0, 1), (0, 2), (1, 1), (0, 3), (0, 4), (0, 5)]


def test_axes_of_no_range_come_last_and_are_not_divided_by():
    axis, mode = smoothest_modes(np.array([0.0, 2.0]), 3)
    assert axis.tolist() == [1, 1, 1]
    assert mode.tolist() == [1, 2, 3]


def test_the_first_bit_of_a_box_splits_its_longest_side_in_the_middle():
    X = box([1.0, 10.0, 3.0])
    bits = SpectralHashing(2).fit(X).transform(X)
    same = bits[:, 0] == (X[:, 1] > 0)
    assert same.all() or not same.any()
    outer = np.abs(X[:, 1]) > 2.5
    assert np.array_equal(bits[:, 1].astype(bool), outer)  # mode 2: both ends against the middle


def test_bits_are_not_capped_at_the_number_of_dimensions():
    X = np.random.default_rng(0).uniform(size=(600, 2)) * [3.0, 2.0]
    model = SpectralHashing(64).fit(X)
    bits = model.transform(X)
    assert bits.shape == (len(X), 64)
    assert len(np.unique(bits, axis=1).T) == 64
    assert model.score(X) > SpectralHashing(2).fit(X).score(X)
    assert SpectralHashing(1024).fit(X).encode(X).shape == (len(X), 128)


def test_rows_outside_of_the_training_range_follow_the_cosine():
    X = np.linspace(0, 1, 101)[:, None]
    model = SpectralHashing(3).fit(X)
    new = np.array([[-0.7], [-0.2], [1.3], [1.9], [12.1]])
    expected = [[cos(k * pi * x) >= 0 for k in (1, 2, 3)] for x in new[:, 0]]
    assert np.array_equal(model.transform(new), expected)


# ---- the contract


def test_there_is_no_chance_in_it_and_threads_change_nothing():
    X = np.random.default_rng(0).normal(size=(2 * BLOCK_ROWS + 17, 12)).astype(np.float32)
    models = [SpectralHashing(20, random_state=seed, n_jobs=jobs).fit(X) for seed, jobs in [(0, 1), (1, 3)]]
    for name, tensor in models[0].encoder_.tensors().items():
        assert np.array_equal(tensor, models[1].encoder_.tensors()[name]), name
    assert np.array_equal(models[0].encode(X), models[1].encode(X))


@pytest.mark.parametrize("n_bits", [1, 13])
def test_the_encoder_is_made_again_from_its_tensors(n_bits, digits):
    encoder = SpectralHashing(n_bits).fit(digits).encoder_
    tensors = encoder.tensors()
    assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())
    X = digits[:100] / 16 - 0.5
    assert np.array_equal(SpectralEncoder(**tensors).scores(X), encoder.scores(X))
    assert np.array_equal(encoder(X), encoder.scores(X) >= 0)


@pytest.mark.parametrize("n_bits", [1, 12])
@pytest.mark.parametrize("kind", DEGENERATE)
def test_rows_with_little_in_them_are_coded_all_the_same(kind, n_bits, digits):
    X = DEGENERATE[kind](digits[:120].astype(np.float64))
    model = SpectralHashing(n_bits).fit(X)
    bits = model.transform(X)
    assert bits.shape == (len(X), n_bits)
    _, first, inverse = np.unique(X, axis=0, return_index=True, return_inverse=True)
    assert np.array_equal(bits, bits[first][inverse.ravel()])  # equal rows, equal codes
    assert len(np.unique(bits, axis=0)) >= min(2, len(first))
    assert np.isfinite(model.inverse_transform(bits)).all()
    assert np.isfinite(model.encoder_.scores(model.scaling_.apply(X))).all()
