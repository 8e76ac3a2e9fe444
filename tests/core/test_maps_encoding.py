"""From rows to packed codes: the fast path against scores in float64, in any kind of array."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit import ITQ, LSH, BinaryAutoencoder, ThresholdedPCA, load
from auxbit.core import maps
from auxbit.core.maps import CACHED_ROWS, HARMLESS_MEAN, LinearEncoder, Scaling, encode, pack, unpack
from auxbit.core.parallel import BLOCK_ROWS
from auxbit.errors import InvalidInput


def true_scores(X, encoder, scaling):
    """In float64 from end to end."""
    rows = X.astype(np.float64)
    if scaling.normalize:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(norms > 0, norms, 1)
    return (rows - scaling.mean) / scaling.scale @ encoder.weights.astype(np.float64) + encoder.bias


def random_encoder(rng, dimensions, n_bits, *, bias=True):
    W = rng.normal(size=(dimensions, n_bits)).astype(np.float32)
    return LinearEncoder(W, bias * rng.normal(size=n_bits).astype(np.float32))


def in_layout(X, layout):
    if layout == "Fortran":
        return np.asfortranarray(X)
    if layout == "strided":
        wide = np.zeros((2 * X.shape[0], 3 * X.shape[1]), dtype=X.dtype)
        wide[::2, 1::3] = X
        return wide[::2, 1::3]
    if layout == "reversed":
        return X[::-1, ::-1].copy()[::-1, ::-1]
    return X


DTYPES = [np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.longdouble, ">f4", bool]
sizes = {
    "seed": st.integers(0, 100_000),
    "n": st.sampled_from([1, 2, 17, 129, CACHED_ROWS + 3, BLOCK_ROWS + 1]),
    "dimensions": st.integers(1, 20),
    "n_bits": st.one_of(st.integers(1, 40), st.sampled_from([64, 129])),
}


# ---- the codes are the signs of the scores in float64


@settings(max_examples=150, deadline=None)
@given(
    **sizes,
    mean=st.sampled_from([0, 1, HARMLESS_MEAN, HARMLESS_MEAN + 0.1, 1e4]),
    scale=st.sampled_from([1e-30, 1e-3, 1, 255, 1e25]),
    normalize=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    layout=st.sampled_from(["C", "Fortran", "strided", "reversed"]),
)
def test_the_codes_are_the_signs_of_the_scores_in_float64(
    seed, n, dimensions, n_bits, mean, scale, normalize, dtype, layout
):
    rng = np.random.default_rng(seed)
    encoder = random_encoder(rng, dimensions, n_bits)
    X = ((rng.uniform(-0.5, 0.5, size=(n, dimensions)) + mean) * scale).astype(dtype)
    scaling = Scaling(rng.normal(size=dimensions), rng.choice([0.01, 1.0]), True)
    if not normalize:
        scaling = Scaling(np.full(dimensions, mean * scale, dtype=np.float64), float(scale))
    scores = true_scores(X, encoder, scaling)
    bits = unpack(encode(in_layout(X, layout), encoder, scaling, n_bits, 1), n_bits)
    clear = np.abs(scores) > 1e-9
    np.testing.assert_array_equal(bits[clear], scores[clear] >= 0)


@settings(max_examples=60, deadline=None)
@given(**sizes, dtype=st.sampled_from(DTYPES), layout=st.sampled_from(["C", "Fortran", "strided"]))
def test_whole_numbers_have_the_same_code_in_any_type_and_layout(seed, n, dimensions, n_bits, dtype, layout):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2 if dtype is bool else 100, size=(n, dimensions))
    encoder = random_encoder(rng, dimensions, n_bits)
    scaling = Scaling(X.mean(axis=0), 100.0)
    codes = encode(in_layout(X.astype(dtype), layout), encoder, scaling, n_bits, 1)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, encode(X.astype(np.float64), encoder, scaling, n_bits, 1))
    scores = true_scores(X, encoder, scaling)
    clear = np.abs(scores) > 1e-9
    np.testing.assert_array_equal(unpack(codes, n_bits)[clear], scores[clear] >= 0)


def rows_near_ties(rng, encoder, scaling, n):
    """Rows whose scores are 0 but for rounding in float64, each for one bit."""
    W = encoder.weights.astype(np.float64)
    rows = rng.uniform(-0.5, 0.5, size=(n, len(W)))
    bit = rng.integers(W.shape[1], size=n)
    off = np.einsum("nd,dn->n", rows, W[:, bit]) + encoder.bias[bit]
    rows -= (off / (W**2).sum(axis=0)[bit])[:, None] * W[:, bit].T
    return rows * scaling.scale + scaling.mean


@pytest.mark.parametrize("mean", [0.0, 5.0, 1000.0])
def test_the_code_of_a_row_does_not_depend_on_the_rows_beside_it_even_near_ties(mean):
    rng = np.random.default_rng(0)
    encoder = random_encoder(rng, 37, 21)
    scaling = Scaling(np.full(37, mean), 1.0)
    X = rows_near_ties(rng, encoder, scaling, CACHED_ROWS + 200).astype(np.float32)
    codes = encode(X, encoder, scaling, 21, 2)
    for start, stop in [(0, 1), (5, 6), (3, 60), (100, 700), (CACHED_ROWS - 1, CACHED_ROWS + 1)]:
        np.testing.assert_array_equal(encode(X[start:stop], encoder, scaling, 21, 1), codes[start:stop])
    order = rng.permutation(len(X))
    np.testing.assert_array_equal(encode(X[order], encoder, scaling, 21, 1), codes[order])
    np.testing.assert_array_equal(encode(np.asfortranarray(X), encoder, scaling, 21, 1), codes)
    np.testing.assert_array_equal(encode(X.astype(np.float64), encoder, scaling, 21, 1), codes)
    scores = true_scores(X, encoder, scaling)
    clear = np.abs(scores) > 1e-12
    np.testing.assert_array_equal(unpack(codes, 21)[clear], scores[clear] >= 0)


def test_margins_hold_what_float32_rounds_off():
    rng = np.random.default_rng(1)
    for dimensions, mean in [(1, 8), (16, 0), (320, 0), (320, 8), (3000, 8)]:
        encoder, scaling = random_encoder(rng, dimensions, 64), Scaling(np.full(dimensions, float(mean)), 1.0)
        X = (rng.uniform(-0.5, 0.5, size=(500, dimensions)) + mean).astype(np.float32)
        raw = encoder.before(scaling)
        assert raw.folded
        error = np.abs(X @ raw.weights + raw.bias - true_scores(X, encoder, scaling))
        assert (error < raw.margin / 2).all()


def test_few_scores_are_in_doubt(monkeypatch):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(5000, 64)).astype(np.float32)
    encoder, scaling = random_encoder(rng, 64, 32, bias=False), Scaling(np.zeros(64), 8.0)
    seen = []
    settle = maps.settle
    monkeypatch.setattr(maps, "settle", lambda *given: (seen.append(len(given[0])), settle(*given)))
    encode(X, encoder, scaling, 32, 1)
    assert 0 < sum(seen) < 50


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 64, 65])
def test_a_row_that_equals_the_mean_and_a_bit_without_weights_are_ones(n_bits):
    rng = np.random.default_rng(3)
    encoder = random_encoder(rng, 5, n_bits, bias=False)
    encoder.weights[:, n_bits // 2] = 0
    mean = rng.uniform(size=5).astype(np.float32)
    scaling = Scaling(mean.astype(np.float64), 1.0)
    bits = unpack(encode(mean[None], encoder, scaling, n_bits, 1), n_bits)
    assert bits.tolist() == [[1] * n_bits]
    others = encode(rng.normal(size=(300, 5)), encoder, scaling, n_bits, 1)
    assert unpack(others, n_bits)[:, n_bits // 2].all()


def test_a_scaling_is_folded_where_that_is_harmless():
    encoder = random_encoder(np.random.default_rng(0), 3, 4)
    folded = {
        (mean, scale, normalize): encoder.before(Scaling(np.array([0.0, mean, 0.0]), scale, normalize)).folded
        for mean, scale, normalize in [
            (0, 1, False),
            (-8, 1, False),
            (-8.1, 1, False),
            (800, 100.0, False),
            (0, 1e-30, False),
            (0, 1e30, False),
            (0, 1, True),
        ]
    }
    assert list(folded.values()) == [True, True, False, True, False, False, True]
    large = LinearEncoder(np.full((3, 4), 1e30, np.float32), np.zeros(4, np.float32))
    assert not large.before(Scaling(np.zeros(3), 1e-10)).folded


# ---- what is not finite, and what is only large


@settings(max_examples=80, deadline=None)
@given(
    **sizes,
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.longdouble]),
    where=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    mean=st.sampled_from([0.0, 100.0]),
    normalize=st.booleans(),
    dead=st.booleans(),
)
def test_what_is_not_finite_is_named_wherever_it_is(
    seed, n, dimensions, n_bits, value, dtype, where, mean, normalize, dead
):
    rng = np.random.default_rng(seed)
    encoder = random_encoder(rng, dimensions, n_bits)
    row, column = int(where[0] * n), int(where[1] * dimensions)
    if dead:
        encoder.weights[column] = 0  # such a feature says nothing, and may still not be NaN
    X = rng.normal(size=(n, dimensions)).astype(dtype)
    X[row, column] = value
    name = "NaN" if np.isnan(value) else "inf"
    with pytest.raises(InvalidInput, match=rf"X contains {name} at row {row}, column {column}\."):
        encode(X, encoder, Scaling(np.full(dimensions, mean), 1.0, normalize), n_bits, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("dimensions", "n_bits"), [(1, 1), (1, 9), (5, 1), (5, 9)])
def test_a_feature_without_weights_may_not_be_infinite_either(value, dimensions, n_bits):
    encoder = LinearEncoder(np.zeros((dimensions, n_bits), np.float32), np.zeros(n_bits, np.float32))
    for n in (1, 2, 300, BLOCK_ROWS + 1):
        X = np.ones((n, dimensions), dtype=np.float32)
        X[n // 2, -1] = value
        with pytest.raises(InvalidInput, match=f"at row {n // 2}, column {dimensions - 1}"):
            encode(X, encoder, Scaling(np.zeros(dimensions), 1.0), n_bits, 2)


@pytest.mark.parametrize("n", [1, 129, BLOCK_ROWS + 5])
@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_large_numbers_are_coded_until_they_cannot_be_squared(n, mean):
    rng = np.random.default_rng(4)
    encoder, scaling = random_encoder(rng, 6, 9), Scaling(np.full(6, mean), 1.0)
    X = rng.normal(size=(n, 6))
    X[-1] *= 1e100
    np.testing.assert_array_equal(
        encode(X, encoder, scaling, 9, 2), pack(true_scores(X, encoder, scaling) >= 0)
    )
    single = X.clip(-3e38, 3e38).astype(np.float32)
    np.testing.assert_array_equal(
        encode(single, encoder, scaling, 9, 2), pack(true_scores(single, encoder, scaling) >= 0)
    )
    unit = Scaling(np.full(6, mean), 1.0, normalize=True)
    np.testing.assert_array_equal(encode(X, encoder, unit, 9, 2), pack(true_scores(X, encoder, unit) >= 0))
    X[-1, 2] = 1e150
    with pytest.raises(InvalidInput, match=rf"X contains 1e\+150 at row {n - 1}, column 2"):
        encode(X, encoder, unit, 9, 2)
    with pytest.raises(InvalidInput, match=rf"X contains 1e\+150 at row {n - 1}, column 2"):
        encode(X, encoder, scaling, 9, 2)


# ---- fitted models

LINEAR = pytest.mark.parametrize(
    "hasher", [LSH, ThresholdedPCA, ITQ, BinaryAutoencoder], ids=lambda cls: cls.__name__
)


@LINEAR
@pytest.mark.parametrize("normalize", [False, True])
def test_a_model_codes_rows_by_its_scores_for_any_number_of_threads(hasher, normalize):
    X = np.random.default_rng(5).normal(size=(2 * BLOCK_ROWS + 3, 12)).astype(np.float32) + 1
    options = {"validation": None, "max_iter": 2, "mu0": 0.01} if hasher is BinaryAutoencoder else {}
    model = hasher(10, random_state=0, **options)
    model.normalize = normalize
    model.fit(X)
    scores = true_scores(X, model.encoder_, model.scaling_)
    codes = model.encode(X)
    np.testing.assert_array_equal(codes, pack(scores >= 0))
    np.testing.assert_array_equal(pack(model.transform(X)), codes)
    for n_jobs in (1, 2, 3):
        np.testing.assert_array_equal(model.set_params(n_jobs=n_jobs).encode(X), codes)


def test_a_mean_a_million_times_the_spread_costs_no_bits():
    centred = np.random.default_rng(6).integers(-512, 512, size=(500, 10)) / 512.0
    model = LSH(32, random_state=0).fit(centred + 1e6)
    scores = true_scores(centred + 1e6, model.encoder_, model.scaling_)
    np.testing.assert_array_equal(model.encode(centred + 1e6), pack(scores >= 0))


def test_what_is_derived_from_a_model_is_neither_saved_nor_stale(tmp_path):
    rng = np.random.default_rng(7)
    first, second = rng.normal(size=(2, 300, 8)).astype(np.float32)
    second = second * 3 + 2
    model = LSH(16, random_state=0).fit(first)
    codes = model.encode(first)
    assert "_before" in vars(model.encoder_)
    assert "_before" not in pickle.loads(pickle.dumps(model.encoder_)).__dict__
    assert np.array_equal(pickle.loads(pickle.dumps(model)).encode(first), codes)
    model.save(tmp_path / "m.safetensors")
    assert np.array_equal(load(tmp_path / "m.safetensors").encode(first), codes)
    model.set_params(n_bits=8).fit(second)
    assert np.array_equal(
        model.encode(second), pack(true_scores(second, model.encoder_, model.scaling_) >= 0)
    )
    encoder = model.encoder_
    model.scaling_ = Scaling(model.scaling_.mean + 1, 2.0)  # another scaling under the same encoder
    assert np.array_equal(model.encode(second), pack(true_scores(second, encoder, model.scaling_) >= 0))
