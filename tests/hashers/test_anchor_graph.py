"""Anchor graph hashing against the n×n graph, and what it promises."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from safetensors.numpy import load, save
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from auxbit.core.parallel import BLOCK_ROWS
from auxbit.errors import InvalidParameter
from auxbit.hashers.anchor_graph import AnchorGraphEncoder, AnchorGraphHashing

X = np.random.default_rng(0).normal(size=(300, 5)) * [5, 4, 3, 2, 1] + 10
QUERIES = np.random.default_rng(1).normal(size=(60, 5)) * [5, 4, 3, 2, 1] + 10
ANCHORS, S, BANDWIDTH = X[:40], 4, 2.5


def made(n_bits, n_layers=1, **parameters):
    parameters = {"anchors": ANCHORS, "n_neighbors": S, "bandwidth": BANDWIDTH, **parameters}
    return AnchorGraphHashing(n_bits, n_layers=n_layers, random_state=0, **parameters)


def dense_shares(rows):
    """Z, (n, m): the kernel of the s nearest anchors, rows divided by their sums."""
    distances = cdist(rows, ANCHORS)
    kernel = np.exp(-(distances**2) / (2 * BANDWIDTH**2))
    kernel[distances > np.sort(distances, axis=1)[:, S - 1 : S]] = 0
    return kernel / kernel.sum(axis=1, keepdims=True)


def dense_graph():
    """The n×n adjacency ZΛ⁻¹Zᵀ."""
    Z = dense_shares(X)
    return Z / Z.sum(axis=0) @ Z.T


def scores(model, rows):
    return model.encoder_.scores(model.scaling_.apply(rows))


# ---- one layer


def test_the_shares_of_a_row_in_its_nearest_anchors_are_those_of_the_dense_matrix():
    encoder = made(4).fit(X).encoder_
    scaling = made(4).fit(X).scaling_
    share, ids = encoder.shares(scaling.apply(QUERIES))
    Z = np.zeros((60, 40))
    np.put_along_axis(Z, ids, share, axis=1)
    np.testing.assert_allclose(Z, dense_shares(QUERIES), atol=1e-5)
    assert share.shape == (60, S)
    np.testing.assert_allclose(share.sum(axis=1), 1)


def test_scores_are_the_eigenvectors_of_the_whole_graph_but_the_trivial_one():
    values, vectors = np.linalg.eigh(dense_graph())
    assert values[-1] == pytest.approx(1)
    np.testing.assert_allclose(np.abs(vectors[:, -1]), 1 / np.sqrt(300), rtol=1e-6)
    expected = vectors[:, -2:-8:-1] * np.sqrt(300)
    assert values[-2] < 1
    Y = scores(made(6).fit(X), X)
    expected *= np.sign((expected * Y).sum(axis=0))
    np.testing.assert_allclose(Y, expected, atol=2e-4)
    np.testing.assert_allclose(Y.T @ Y / 300, np.eye(6), atol=1e-4)
    clear = np.abs(expected) > 1e-3
    assert np.array_equal(made(6).fit(X).transform(X)[clear], (expected >= 0)[clear])


def test_new_rows_are_coded_by_the_papers_extension_of_the_eigenvectors():
    Y = scores(made(6).fit(X), X)
    Z, new = dense_shares(X), dense_shares(QUERIES)
    values = np.linalg.eigvalsh(dense_graph())[-2:-8:-1]
    expected = new @ ((Z.T @ Y) / Z.sum(axis=0)[:, None]) / values
    np.testing.assert_allclose(scores(made(6).fit(X), QUERIES), expected, atol=1e-3)


def test_rows_far_from_all_anchors_are_coded_as_their_nearest_anchor():
    model = made(6).fit(X)
    far = X.mean(axis=0) + 100 * (X - X.mean(axis=0))
    distances = np.sort(cdist(far, ANCHORS) ** 2, axis=1)
    assert np.exp(-distances[:, 0] / (2 * BANDWIDTH**2)).max() == 0
    clear = distances[:, 1] - distances[:, 0] > 2 * BANDWIDTH**2 * 30
    assert clear.sum() > 100
    nearest = model.encoder_.weights[cdist(far, ANCHORS).argmin(axis=1)]
    np.testing.assert_allclose(scores(model, far)[clear], nearest[clear], rtol=1e-6)


def test_parts_of_the_graph_that_nothing_joins_are_told_apart_by_the_first_bit():
    parts = np.vstack([X, X + 1e4])
    for n_layers in (1, 2):
        model = AnchorGraphHashing(2, n_layers=n_layers, n_anchors=40, random_state=0).fit(parts)
        bits = model.transform(parts)[:, 0]
        assert bits[:300].min() == bits[:300].max() != bits[300:].min() == bits[300:].max()
        assert np.isfinite(model.encoder_.thresholds).all()


def test_anchors_that_no_row_is_near_change_nothing():
    strange = np.vstack([ANCHORS, ANCHORS + 1e5])
    model, plain = made(6, anchors=strange).fit(X), made(6).fit(X)
    assert model.encoder_.anchors.shape == (40, 5)
    assert np.array_equal(model.transform(QUERIES), plain.transform(QUERIES))


def test_the_bandwidth_is_the_median_distance_to_the_last_near_anchor_over_root_two():
    model = made(4, bandwidth=None).fit(X)
    reach = np.sqrt(np.median(np.sort(cdist(X, ANCHORS) ** 2, axis=1)[:, S - 1]))
    assert model.encoder_.bandwidth * model.scaling_.scale == pytest.approx(reach / np.sqrt(2), rel=1e-4)


# ---- two layers


def test_the_thresholds_make_the_balanced_cut_of_the_whole_graph_smallest():
    model = made(6, n_layers=2).fit(X)
    laplacian = np.eye(300) - dense_graph()
    Y = scores(model, X)[:, :3]
    for k in range(3):
        above = Y[:, k] >= 0
        B = np.stack([-above.astype(float), (~above).astype(float)], axis=1)  # p = |y| + B (b⁺, b⁻)
        q = np.abs(Y[:, k])
        balance = B.sum(axis=0)[:, None]
        system = np.block([[2 * B.T @ laplacian @ B, balance], [balance.T, np.zeros((1, 1))]])
        b = np.linalg.solve(system, [*(-2 * B.T @ laplacian @ q), -q.sum()])[:2]
        np.testing.assert_allclose(model.encoder_.thresholds[:, k], b, rtol=1e-3, atol=1e-3)
        p = scores(model, X)[:, 3 + k]
        assert abs(p.mean()) < 1e-9


def test_the_second_layer_halves_each_side_of_the_first():
    model = made(8, n_layers=2).fit(X)
    bits, Y = model.transform(QUERIES), scores(model, QUERIES)[:, :4]
    above, below = model.encoder_.thresholds
    for row in range(60):
        for k in range(4):
            y = Y[row, k]
            expected = y >= above[k] if y >= 0 else y <= below[k]
            assert (bits[row, k], bits[row, 4 + k]) == (y >= 0, expected)
    assert (above > 0).all()
    assert (below < 0).all()


@pytest.mark.parametrize("n_bits", [1, 2, 5, 7])
def test_an_odd_bit_is_an_eigenfunction_without_a_second_layer(n_bits):
    model = made(n_bits, n_layers=2).fit(X)
    first = -(-n_bits // 2)
    assert model.encoder_.thresholds.shape == (2, n_bits - first)
    bits = model.transform(X)
    assert bits.shape == (300, n_bits)
    assert np.array_equal(bits[:, :first], made(first).fit(X).transform(X))


# ---- how many bits there are


@pytest.mark.parametrize(("n_layers", "most", "enough"), [(1, 39, 41), (2, 78, 41)])
def test_more_bits_than_the_anchors_have_is_an_error_with_the_remedy(n_layers, most, enough):
    match = (
        rf"n_bits={most + 1} is invalid: expected at most {most} with 40 anchors.*at least {enough} anchors"
    )
    with pytest.raises(InvalidParameter, match=match):
        made(most + 1, n_layers).fit(X)
    with pytest.raises(InvalidParameter, match=match):
        made(most + 1, n_layers, anchors=None, n_anchors=40).fit(X)


def test_all_eigenfunctions_of_the_anchors_can_be_had():
    bits = made(39).fit(X).transform(X)
    assert (bits.min(axis=0) < bits.max(axis=0)).all()
    assert made(78, 2).fit(X).transform(X).shape == (300, 78)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("kinds", [1, 2, 4])
def test_rows_with_too_few_eigenfunctions_get_constant_bits_and_a_warning(kinds, n_layers):
    few = np.repeat(X[:kinds], 20, axis=0)
    with pytest.warns(UserWarning, match=rf"n_bits=12 is more than .* these rows have {kinds - 1}") as caught:
        model = AnchorGraphHashing(12, n_layers=n_layers, random_state=0).fit(few)
    assert caught[0].filename == __file__
    bits = model.transform(few)
    assert (bits[:, kinds - 1 : 12 // n_layers] == 1).all()
    assert len(np.unique(bits, axis=0)) == kinds


def test_few_rows_are_enough_for_as_many_bits_as_they_differ_by():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AnchorGraphHashing(1, random_state=0).fit(X[:2]).transform(X[:2]).sum() == 1
        assert AnchorGraphHashing(3, n_layers=2, random_state=0).fit(X[:3]).transform(X).shape == (300, 3)
        one = np.repeat(np.arange(9.0), 3)[:, None]
        assert len(np.unique(AnchorGraphHashing(8, random_state=0).fit(one).transform(one), axis=0)) == 9


@pytest.mark.parametrize("s", [1, 2, 40, 500])
def test_any_number_of_near_anchors_is_allowed(s):
    bits = made(4, n_neighbors=s, bandwidth=None).fit(X).transform(X)
    assert (bits.min(axis=0) < bits.max(axis=0)).all()


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("n_layers", 0), ("n_layers", 3), ("n_layers", None), ("n_neighbors", 0), ("n_neighbors", 2.5),
     ("bandwidth", 0), ("bandwidth", "5")],
)  # fmt: skip
def test_a_parameter_out_of_range_is_named(parameter, value):
    with pytest.raises(InvalidParameter, match=rf"^{parameter}={value!r} is invalid: expected "):
        made(4).set_params(**{parameter: value}).fit(X)


# ---- the same bits, there and back, and how good they are


@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_bits_are_the_same_for_any_number_of_threads(n_layers):
    many = np.random.default_rng(0).normal(size=(2 * BLOCK_ROWS + 5, 6))
    one, three = (
        AnchorGraphHashing(16, n_layers=n_layers, random_state=0, n_jobs=n_jobs).fit(many)
        for n_jobs in (1, 3)
    )
    for name, array in one.encoder_.tensors().items():
        assert np.array_equal(array, three.encoder_.tensors()[name])
    assert np.array_equal(one.encode(many), three.encode(many))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_an_encoder_comes_back_from_its_tensors(n_layers):
    model = made(9, n_layers).fit(X)
    tensors = {name: np.ascontiguousarray(value) for name, value in model.encoder_.tensors().items()}
    again = AnchorGraphEncoder(**load(save(tensors)))
    assert np.array_equal(again.scores(model.scaling_.apply(QUERIES)), scores(model, QUERIES))
    assert model.encoder_.bandwidth.shape == model.encoder_.n_neighbors.shape == ()


@pytest.mark.parametrize("n_layers", [1, 2])
def test_whole_numbers_give_the_same_bits_in_other_units(n_layers):
    rows = load_digits().data[:500]
    plain, other = (AnchorGraphHashing(12, n_layers=n_layers, random_state=0) for _ in range(2))
    assert np.array_equal(plain.fit(rows).encode(rows), other.fit(rows * 7 + 3).encode(rows * 7 + 3))
