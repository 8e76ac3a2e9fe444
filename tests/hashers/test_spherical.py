"""Spherical hashing and its distance, against loops, on digits, and on data that has little to give."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from auxbit.core.maps import pack, unpack
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k, retrieved_ranking
from auxbit.hashers.spherical import (
    SphericalEncoder,
    SphericalHashing,
    first_pivots,
    forces,
    halving,
    measure,
    spherical_distances,
    spherical_search,
)
from helpers.every_hasher import DEGENERATE


@pytest.fixture(scope="module")
def digits():
    return load_digits().data.astype(np.float32)


@pytest.fixture(scope="module")
def halves(digits):
    """Centred digits to train on, others to ask with, and which are truly near."""
    order = np.random.default_rng(0).permutation(1797)
    X = digits - digits.mean(axis=0)
    train, queries = X[order[:1297]], X[order[1297:]]
    return train, queries, ground_truth(train, queries, 50)


# ---- the iteration


def test_spheres_hold_half_of_the_rows_and_pairs_a_quarter(digits):
    model = SphericalHashing(16, random_state=0).fit(digits)
    bits = model.transform(digits).astype(np.float64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01
    overlaps = (bits.T @ bits / len(bits))[np.triu_indices(16, 1)]
    assert model.converged_
    assert 1 < model.n_iter_ < 100
    assert np.abs(overlaps - 0.25).mean() <= 0.1 * 0.25
    assert overlaps.std() <= 0.15 * 0.25


def test_tolerances_of_the_overlaps_are_held_when_they_are_tighter(digits):
    model = SphericalHashing(6, mean_tol=0.02, std_tol=0.03, max_iter=1000, random_state=0).fit(digits)
    bits = model.transform(digits).astype(np.float64)
    overlaps = (bits.T @ bits / len(bits))[np.triu_indices(6, 1)]
    assert model.converged_
    assert np.abs(overlaps - 0.25).mean() <= 0.02 * 0.25
    assert overlaps.std() <= 0.03 * 0.25


@given(n_bits=st.integers(1, 6), n=st.integers(2, 40), seed=st.integers(0, 10_000))
def test_one_round_of_radii_overlaps_and_forces_is_what_loops_give(n_bits, n, seed):
    rng = np.random.RandomState(seed)
    S = rng.standard_normal((n, 3)).astype(np.float32)
    pivots = first_pivots(S, n_bits, rng)
    with Workers(1) as workers:
        spheres = measure(S, pivots, workers)
    inside = [set() for _ in range(n_bits)]
    for i in range(n_bits):
        by_distance = sorted(range(n), key=lambda s: np.linalg.norm(S[s] - pivots[i]))
        inside[i] = set(by_distance[: n // 2])
        between = [np.linalg.norm(S[s] - pivots[i]) for s in by_distance[n // 2 - 1 : n // 2 + 1]]
        assert between[0] <= spheres.radii[i] <= between[1]
    moved = np.zeros_like(pivots)
    for i in range(n_bits):
        for j in range(n_bits):
            o_ij = len(inside[i] & inside[j])
            assert spheres.overlaps[i, j] == pytest.approx(o_ij / n)
            moved[i] += 0.5 * (o_ij - n / 4) / (n / 4) * (pivots[i] - pivots[j]) / n_bits
    np.testing.assert_allclose(forces(pivots, spheres.overlaps), moved, atol=1e-12)
    pairs = [len(inside[i] & inside[j]) / n for i in range(n_bits) for j in range(i)]
    assert spheres.mean_error == pytest.approx(np.mean(np.abs(np.array(pairs) - 0.25)) * 4 if pairs else 0)
    assert spheres.std_error == pytest.approx(np.std(pairs) * 4 if pairs else 0)


def test_spheres_that_share_too_much_part_and_others_come_nearer():
    pivots = np.array([[0.0, 0.0], [1.0, 0.0]])
    for overlap, direction in [(0.4, -1), (0.25, 0), (0.1, 1)]:
        pushed = forces(pivots, np.array([[0.5, overlap], [overlap, 0.5]]))
        assert np.sign(pushed[0, 0]) == direction
        np.testing.assert_allclose(pushed[1], -pushed[0])


def test_first_pivots_are_means_of_few_rows():
    S = np.eye(40, dtype=np.float32)
    pivots = first_pivots(S, 5, np.random.RandomState(0))
    assert np.array_equal((pivots > 0).sum(axis=1), [9] * 5)
    np.testing.assert_allclose(pivots.sum(axis=1), 1, rtol=1e-6)
    for n in (2, 3, 4, 5):  # a row each, not the middle of two
        assert np.isin(first_pivots(S[:n], 3, np.random.RandomState(0)), [0, 1]).all()


@pytest.mark.parametrize(
    ("squared", "between"),
    [
        ([4.0, 1, 3, 2], (2, 3)),
        ([5.0, 4, 1, 3, 2], (2, 3)),
        ([1.0, 2, 2, 2, 2, 3, 4, 5], (2, 3)),
        ([1.0, 2, 3, 4, 4, 4, 4, 5], (3, 4)),
        ([1.0, 1, 1, 1, 1, 2], (1, 2)),
        ([2.0, 2, 2, 2], (2, 2.1)),
    ],
)
def test_the_radius_lies_between_rows_that_differ_as_near_to_the_median_as_can_be(squared, between):
    low, high = between
    assert low < halving(np.array(squared), 1e-9) < high


def test_the_cap_is_kept_and_reported_without_a_warning(digits, caplog):
    with caplog.at_level(logging.INFO, logger="auxbit"):
        model = SphericalHashing(16, max_iter=3, random_state=0).fit(digits)
    assert model.n_iter_ == 3
    assert model.converged_ is False
    assert "SphericalHashing did not converge in 3 rounds: overlaps differ from a quarter by" in caplog.text
    with caplog.at_level(logging.INFO, logger="auxbit"):
        assert SphericalHashing(4, random_state=0).fit(digits).converged_ is True
    assert "SphericalHashing converged in" in caplog.text


def test_of_rounds_that_do_not_converge_the_best_is_kept():
    X = np.random.default_rng(0).normal(size=(500, 1))

    def error(max_iter):
        bits = SphericalHashing(8, max_iter=max_iter, random_state=0).fit(X).transform(X).astype(float)
        overlaps = (bits.T @ bits / 500)[np.triu_indices(8, 1)] * 4
        return max(np.abs(overlaps - 1).mean() / 0.1, overlaps.std() / 0.15)

    errors = [error(max_iter) for max_iter in (1, 3, 10, 100, 5000)]
    assert errors == sorted(errors, reverse=True)


def test_it_is_trained_on_a_sample_of_the_rows():
    X = np.random.default_rng(0).normal(size=(3000, 6)).astype(np.float32)
    model = SphericalHashing(8, sample_size=500, random_state=0).fit(X)
    assert np.abs(model.transform(X).mean(axis=0) - 0.5).max() < 0.1
    whole = SphericalHashing(8, sample_size=3000, random_state=0).fit(X)
    assert np.array_equal(whole.encode(X), SphericalHashing(8, random_state=0).fit(X).encode(X))
    assert not np.array_equal(whole.encode(X), model.encode(X))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_iter", 0, "an integer of at least 1"),
        ("sample_size", 1, "an integer of at least 2"),
        ("sample_size", 2.5, "an integer of at least 2"),
        ("mean_tol", 0, "a finite number greater than 0"),
        ("std_tol", "x", "a finite number greater than 0"),
    ],
)
def test_parameters_that_cannot_be_are_refused(name, value, allowed, digits):
    with pytest.raises(InvalidParameter, match=f"{name}={value!r} is invalid: expected {allowed}"):
        SphericalHashing(4, **{name: value}).fit(digits)


# ---- what it must show


@pytest.mark.slow
@pytest.mark.parametrize("n_bits", [8, 32])
def test_the_spherical_distance_finds_about_as_many_neighbours_as_the_hamming_distance(n_bits, halves):
    train, queries, truth = halves
    model = SphericalHashing(n_bits, random_state=0).fit(train)
    codes, asked = model.encode(train), model.encode(queries)
    _, ids = spherical_search(codes, asked, 50, n_bits=n_bits)
    plain = precision_recall_at_k(hamming_ranking(codes, asked, truth, n_bits), 50).precision
    assert precision_recall_at_k(retrieved_ranking(ids, truth), 50).precision > plain - 0.02


# ---- the contract


def test_the_same_seed_gives_the_same_bits_for_any_number_of_threads():
    X = np.random.default_rng(0).normal(size=(2 * BLOCK_ROWS + 17, 12)).astype(np.float32)
    models = [SphericalHashing(20, random_state=0, n_jobs=n_jobs).fit(X) for n_jobs in (1, 2, 3)]
    for other in models[1:]:
        assert np.array_equal(models[0].encoder_.pivots, other.encoder_.pivots)
        assert np.array_equal(models[0].encoder_.radii, other.encoder_.radii)
        assert np.array_equal(models[0].encode(X), other.encode(X))
        assert models[0].n_iter_ == other.n_iter_
    assert not np.array_equal(SphericalHashing(20, random_state=1).fit(X).encode(X), models[0].encode(X))


@pytest.mark.parametrize("n_bits", [1, 13])
def test_the_encoder_and_the_attributes_are_made_again_from_what_is_saved(n_bits, digits):
    model = SphericalHashing(n_bits, random_state=0).fit(digits)
    tensors = model.encoder_.tensors()
    assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())
    X = model.scaling_.apply(digits[:100])
    assert np.array_equal(SphericalEncoder(**tensors).scores(X), model.encoder_.scores(X))
    assert np.array_equal(model.encoder_(X), model.transform(digits[:100]))
    restored = SphericalHashing(n_bits)
    restored._restore_attributes(json.loads(json.dumps(model._saved_attributes())))
    assert restored.converged_ is model.converged_
    assert restored.n_iter_ == model.n_iter_


def test_a_bit_says_whether_a_row_is_in_the_sphere(digits):
    encoder = SphericalHashing(7, random_state=0).fit(digits).encoder_
    X = np.random.default_rng(0).normal(scale=0.3, size=(50, 64)).astype(np.float32)
    for row, bits in zip(X, encoder(X)):
        for bit, pivot, radius in zip(bits, encoder.pivots, encoder.radii):
            assert bit == (np.linalg.norm(row - pivot) <= radius)


@pytest.mark.parametrize("max_iter", [1, 100, 500])
@pytest.mark.parametrize("n_bits", [1, 12])
@pytest.mark.parametrize("kind", DEGENERATE)
def test_rows_with_little_in_them_are_coded_all_the_same(kind, n_bits, max_iter, digits):
    X = DEGENERATE[kind](digits[:120].astype(np.float64))
    model = SphericalHashing(n_bits, max_iter=max_iter, random_state=0).fit(X)
    bits = model.transform(X)
    assert bits.shape == (len(X), n_bits)
    _, first, inverse = np.unique(X, axis=0, return_index=True, return_inverse=True)
    assert np.array_equal(bits, bits[first][inverse.ravel()])  # equal rows, equal codes
    assert len(np.unique(bits, axis=0)) >= min(2, len(first))
    assert np.isfinite(model.inverse_transform(bits)).all()
    assert np.isfinite(model.encoder_.pivots).all()


# ---- the spherical Hamming distance


def slow_distances(a, b, n_bits):
    """By loops over pairs and bits."""
    distances = np.empty((len(a), len(b)), dtype=np.float32)
    for i, one in enumerate(unpack(a, n_bits)):
        for j, other in enumerate(unpack(b, n_bits)):
            differing = sum(int(p != q) for p, q in zip(one, other))
            common = sum(int(p == q == 1) for p, q in zip(one, other))
            distances[i, j] = differing / common if common else n_bits + differing
    return distances


def random_codes(n, n_bits, seed, share=0.5):
    return pack(np.random.default_rng(seed).random((n, n_bits)) < share)


@given(
    n_bits=st.sampled_from([1, 5, 8, 32, 33, 64, 70, 130]),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 10_000),
)
def test_spherical_distances_are_those_of_a_loop_over_bits(n_bits, share, seed):
    a, b = random_codes(6, n_bits, seed, share), random_codes(7, n_bits, seed + 1, share)
    distances = spherical_distances(a, b, n_bits)
    assert distances.dtype == np.float32
    np.testing.assert_array_equal(distances, slow_distances(a, b, n_bits))


def test_codes_without_a_common_one_are_farther_than_all_others():
    codes = pack([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1]])
    distances = spherical_distances(codes, codes, 4)
    assert distances[0].tolist() == [4, 5, 8, 7]
    assert distances[1].tolist() == [5, 0, 3, 8]  # 3 is the largest quotient of 4 bits


@given(
    n=st.sampled_from([1, 3, 30, 2500]),
    n_bits=st.sampled_from([3, 16, 40, 100]),
    k=st.sampled_from([1, 2, 10, 40]),
    share=st.sampled_from([0.1, 0.5]),
    seed=st.integers(0, 10_000),
)
def test_the_search_is_a_stable_sort_of_all_distances(n, n_bits, k, share, seed):
    base, queries = random_codes(n, n_bits, seed, share), random_codes(20, n_bits, seed + 1, share)
    distances, ids = spherical_search(base, queries, k, n_bits=n_bits)
    assert distances.dtype == np.float32
    assert ids.dtype == np.int64
    assert distances.shape == ids.shape == (20, k)
    everything = spherical_distances(queries, base, n_bits)
    order = np.argsort(everything, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids[:, :n], order)
    np.testing.assert_array_equal(distances[:, :n], np.take_along_axis(everything, order, axis=1))
    assert (ids[:, n:] == -1).all()
    assert np.isinf(distances[:, n:]).all()


def test_the_search_does_not_depend_on_the_number_of_threads():
    base, queries = random_codes(5000, 12, 0), random_codes(100, 12, 1)
    one, three = (spherical_search(base, queries, 60, n_bits=12, n_jobs=n_jobs) for n_jobs in (1, 3))
    assert np.array_equal(one[0], three[0])
    assert np.array_equal(one[1], three[1])


def test_a_search_of_nothing_or_for_nothing_gives_what_there_is():
    codes = random_codes(4, 16, 0)
    distances, ids = spherical_search(codes[:0], codes, 3)
    assert (ids == -1).all()
    assert np.isinf(distances).all()
    assert spherical_search(codes, codes[:0], 3)[1].shape == (0, 3)


def test_what_are_not_codes_is_refused():
    codes = random_codes(4, 16, 0)
    with pytest.raises(InvalidParameter, match="k=0 is invalid: expected an integer of at least 1"):
        spherical_search(codes, codes, 0)
    with pytest.raises(InvalidInput, match="query_codes must be packed codes of 16 bits"):
        spherical_search(codes, codes[:, :1], 1)
    with pytest.raises(InvalidInput, match="base_codes have bits set beyond the first 9"):
        spherical_search(codes, codes, 1, n_bits=9)
    with pytest.raises(InvalidInput, match="base_codes has masked numbers, 8 of"):
        spherical_search(np.ma.masked_array(codes, mask=True), codes, 1)
    with pytest.raises(InvalidInput, match="b must be packed codes of 16 bits"):
        spherical_distances(codes, codes[0], 16)
