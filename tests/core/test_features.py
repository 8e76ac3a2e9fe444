"""Gaussian features, features of a user's own map, and the hash functions of both."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from auxbit.core.features import AT_ONCE, OwnFeatures, RbfEncoder, RbfFeatures
from auxbit.core.maps import LinearEncoder, Scaling, encode, lengthened, unpack
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.errors import InvalidInput

RNG = np.random.default_rng(0)
N, D, M, L = BLOCK_ROWS + AT_ONCE + 3, 7, 20, 5
X = RNG.uniform(-0.5, 0.5, (N, D)).astype(np.float32)
CENTRES = X[:M].copy()
SCALING = Scaling(np.arange(D, dtype=np.float64), 3.0)
H = LinearEncoder(
    RNG.standard_normal((D + M, L)).astype(np.float32), RNG.standard_normal(L).astype(np.float32)
)


@pytest.fixture(scope="module")
def features():
    return RbfFeatures.of(CENTRES, 0.4, X)


def slow_features(rows):
    """One centre at a time, in float64."""
    columns = [np.exp(-np.square(rows.astype(np.float64) - c).sum(axis=1) / (2 * 0.4**2)) for c in CENTRES]
    return np.array(columns).T


def test_features_are_gaussian_and_less_their_means(features):
    slow = slow_features(X)
    found = lengthened(X, features)
    np.testing.assert_array_equal(found[:, :D], X)
    np.testing.assert_allclose(found[:, D:], slow - slow.mean(axis=0), atol=2e-6)
    np.testing.assert_allclose(features.exactly(X)[:, D:], slow - features.means, atol=1e-12)


def test_features_are_the_same_for_any_number_of_threads(features):
    found = []
    for n_jobs in (1, 3):
        with Workers(n_jobs) as workers:
            found.append(lengthened(X, features, workers))
    np.testing.assert_array_equal(*found)


def test_scores_of_rows_that_overflow_float32_have_their_signs():
    weights, bias = 100 * H.weights, H.bias
    encoder = RbfEncoder(CENTRES, np.array([0.4]), np.zeros(M, np.float32), weights, bias)
    far = (6e38 * X[:200].astype(np.float64)).astype(np.float32)
    true = far.astype(np.float64) @ weights[:D].astype(np.float64) + bias  # no centre is near
    np.testing.assert_array_equal(encoder.scores(far) >= 0, true >= 0)
    np.testing.assert_array_equal(encoder.scores(far[:1]), encoder.scores(far)[:1])
    with pytest.raises(InvalidInput, match="so far away from those of fit that float32 cannot hold them"):
        encode(1e60 * X[:9].astype(np.float64), encoder, SCALING, L, 1)


def test_rows_without_features_are_as_they_were():
    with Workers(1) as workers:
        assert lengthened(X, None) is X
        assert lengthened(X, None, workers) is X


def test_centres_travel_and_what_is_made_of_them_does_not(features):
    lengthened(X[:3], features)
    assert len(pickle.dumps(features)) < CENTRES.nbytes + 1000
    again = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(lengthened(X[:9], again), lengthened(X[:9], features))


def test_the_encoder_is_the_linear_one_of_longer_rows(features):
    encoder = features.encoder(H)
    np.testing.assert_allclose(encoder.scores(X), H.scores(lengthened(X, features)), atol=1e-4)


def test_a_row_has_the_same_code_whatever_rows_are_beside_it(features):
    encoder = features.encoder(H)
    raw = X.astype(np.float64) * SCALING.scale + SCALING.mean
    codes = encode(raw, encoder, SCALING, L, 2)
    for rows in (slice(0, 1), slice(5, 9), slice(AT_ONCE - 1, AT_ONCE + 2), slice(N - 1, N)):
        np.testing.assert_array_equal(encode(raw[rows], encoder, SCALING, L, 1), codes[rows])
    np.testing.assert_array_equal(encode(raw[::-1], encoder, SCALING, L, 1)[::-1], codes)


def test_scores_that_float32_cannot_tell_from_0_are_decided_in_float64(features):
    """Each bit gets the bias that puts one of the rows on its border; there it is 1, whatever BLAS rounds."""
    rows = X[:200]
    exact = features.exactly(rows) @ H.weights.astype(np.float64)
    for row in range(0, 200, 7):
        bias = (-exact[row]).astype(np.float32)
        encoder = features.encoder(LinearEncoder(H.weights, bias))
        expected = exact + bias.astype(np.float64) >= 0
        np.testing.assert_array_equal(encoder(rows), expected)
        np.testing.assert_array_equal(encoder(rows[row : row + 1]), expected[row : row + 1])


def test_margins_cover_the_rounding_of_float32(features):
    encoder = features.encoder(H)
    exact = features.exactly(X) @ H.weights.astype(np.float64) + H.bias
    unsettled = RbfEncoder(**encoder.tensors())
    vars(unsettled)["_margin"] = np.zeros(L, np.float32)
    error = np.abs(unsettled.scores(X) - exact) / encoder._margin
    assert 0 < error.max() < 0.5


@pytest.mark.parametrize("size", [1e2, 1e5])
def test_features_of_rows_far_from_all_others_are_gaussian_too(size):
    """Their exponents are small differences of terms that float32 rounds to hundreds, and more."""
    rows = np.vstack([X[:50], X[50:54] * np.float32(size)])
    features = RbfFeatures.of(rows[40:], 0.4, rows)
    np.testing.assert_allclose(lengthened(rows, features), features.exactly(rows), rtol=1e-5, atol=1e-5)
    near = features.exactly(rows[50:])[:, D:] + features.means
    np.testing.assert_allclose(near[:, 10:], np.eye(4), atol=1e-5)  # each is the centre of its own feature
    queries = np.repeat(np.array([[5e18], [1e30]], dtype=np.float32), D, axis=1)  # of which squares overflow
    np.testing.assert_array_equal(lengthened(queries, features)[:, D:], [-features.means] * 2)


def test_a_map_sees_rows_in_the_units_of_X_and_its_features_vary_as_rows_do():
    seen = []

    def cubes(rows):
        seen.append(rows)
        return rows**3 + 100

    own = OwnFeatures.of(cubes, X, SCALING)
    units = X.astype(np.float64) * SCALING.scale + SCALING.mean
    np.testing.assert_array_equal(seen[0], units.astype(np.float32))
    found = lengthened(X, own)[:, D:].astype(np.float64)
    wanted = units**3 - (units**3).mean(axis=0)
    np.testing.assert_allclose(found, wanted * own.gain, atol=1e-4)
    assert np.square(found).sum() == pytest.approx(np.square(X).sum(), rel=1e-3)
    encoder = own.encoder(LinearEncoder(np.ones((2 * D, L), np.float32), np.zeros(L, np.float32)))
    assert unpack(encode(units, encoder, SCALING, L, 2), L).shape == (N, L)


def test_constant_features_have_a_gain_all_the_same():
    own = OwnFeatures.of(lambda rows: np.ones((len(rows), 2)), X, SCALING)
    np.testing.assert_array_equal(lengthened(X[:5], own)[:, D:], 0)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda rows: rows[:1], r"must return features, \(\d+, m\), for"),
        (lambda rows: rows[:, 0], r"got shape \(\d+,\)"),
        (lambda rows: rows[:, :0], r"must return features"),
        (lambda rows: np.full((len(rows), 2), "a"), "must return features"),
        (lambda rows: np.full((len(rows), 2), np.nan), "not finite"),
        (lambda rows: np.ma.masked_greater(rows, 1e-3), r"features has masked numbers, \d+ of \d+"),
    ],
)
def test_a_map_that_returns_no_features_is_refused(returned, why):
    with pytest.raises(InvalidInput, match=why):
        OwnFeatures.of(returned, X[:50], SCALING)


def test_a_map_that_changes_its_mind_is_refused():
    widths = iter([2, 3])
    own = OwnFeatures.of(lambda rows: rows[:, : next(widths)], X[:50], SCALING)
    with pytest.raises(InvalidInput, match="returned 3 features, but 2 before"):
        lengthened(X[:50], own)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(
        InvalidInput, match="encoder must be 'linear', 'rbf', or an object that can be called"
    ):
        OwnFeatures.of(7, X[:50], SCALING)
