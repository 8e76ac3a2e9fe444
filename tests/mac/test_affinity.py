"""Affinity: pairs, the energy and the Z step against slow truths, fits by neighbours and by labels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits

import auxbit
from auxbit import BinaryAutoencoder
from auxbit.core.maps import LinearEncoder, pack_bools
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import hamming_ranking, precision_recall_at_k
from auxbit.mac.affinity import (
    EXACT_ROWS,
    Affinity,
    Pairs,
    alternate_bits,
    descend,
    label_numbers,
    label_pairs,
    label_ranking,
    neighbour_pairs,
    signs_of,
)
from auxbit.mac.fit import ArrayTable, SampledTable
from auxbit.mac.steps import MemoryRows, weights_of
from helpers.every_hasher import DEGENERATE

DIGITS = load_digits()
X, Y = DIGITS.data[:600], DIGITS.target[:600]


def dense(pairs):
    """y of all pairs, (n, n) symmetric, 0 for those that are none."""
    out = np.zeros((pairs.n_rows, pairs.n_rows), dtype=int)
    for i in range(pairs.n_rows):
        for e in range(pairs.starts[i], pairs.starts[i + 1]):
            out[i, pairs.others[e]] += pairs.attract[e]
    return out


def slow_energy(Z, H, y, mu, target):
    """The definition, pair by pair. Z, H : (n, L) of 0/1; y : (n, n)."""
    n, L = Z.shape
    S, total, count = 2 * Z.astype(int) - 1, 0.0, 0
    for i in range(n):
        for j in range(i):
            if y[i, j]:
                total += (S[i] @ S[j] / L - target / L * y[i, j]) ** 2
                count += 1
    return total * n / count + mu * np.count_nonzero(Z != H)


def random_pairs(rng, n, *, attract_only=False):
    """Random pairs of n rows, at least one of them."""
    some = np.array([(i, j) for i in range(n) for j in range(i)])
    some = some[np.r_[True, rng.random(len(some) - 1) < 0.6]]
    near = np.ones(len(some), bool) if attract_only else rng.random(len(some)) < 0.5
    return Pairs.of(some[near], some[~near], n)


def rows_with(Z, H, workers):
    """Rows in memory that have the codes Z and whose scores are H's: bits of X are the codes of h."""
    rows = MemoryRows(2 * H.astype(np.float32) - 1, Z.copy(), workers)
    h = LinearEncoder(np.eye(H.shape[1], dtype=np.float32), np.zeros(H.shape[1], np.float32))
    rows.note(weights_of(h))
    return rows, h


def z_step(Z, H, pairs, mu, labels=None):
    """New codes, and what the step says of energies."""
    objective = Affinity(1, labels=labels)
    objective._pairs = pairs
    with Workers(1) as workers:
        rows, h = rows_with(Z, H, workers)
        *sums, flips, mismatched = objective.z_pass(rows, h, None, mu, None)
        E_Q, E_BA = objective.energies(rows, sums, h, None, mu, None)
        return rows.Z, E_Q, E_BA, flips, mismatched


problems = given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(2, 10), L=st.integers(1, 5),
    mu=st.sampled_from([1e-6, 0.01, 0.1, 0.5, 100.0]), labelled=st.booleans(),
)  # fmt: skip


def problem(seed, n, L):
    rng = np.random.default_rng(seed)
    Z, H = rng.integers(0, 2, (2, n, L), dtype=np.uint8)
    return Z, H, random_pairs(rng, n)


# ---- the Z step


@settings(max_examples=60, deadline=None)
@problems
def test_energies_are_their_definition_and_do_not_rise(seed, n, L, mu, labelled):
    Z, H, pairs = problem(seed, n, L)
    target = max(1, round(L if labelled else L / 2))
    new, E_Q, E_BA, flips, mismatched = z_step(Z, H, pairs, mu, np.zeros(n) if labelled else None)
    y = dense(pairs)
    np.testing.assert_allclose(E_Q, slow_energy(new, H, y, mu, target), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(E_BA, slow_energy(H, H, y, mu, target), rtol=1e-12, atol=1e-12)
    before = min(slow_energy(Z, H, y, mu, target), E_BA)
    assert before >= E_Q - 1e-12
    np.testing.assert_array_equal(flips, (new != Z).sum(axis=0))
    assert mismatched == np.count_nonzero(new != H)


@settings(max_examples=60, deadline=None)
@problems
def test_one_bit_is_a_minimum_over_single_flips_and_never_above_where_it_began(seed, n, L, mu, labelled):
    Z, H, pairs = problem(seed, n, L)
    y, target, bit = dense(pairs), max(1, round(L / 2)), seed % L
    S, signs = signs_of(Z), signs_of(H)
    r = pairs.residuals(S, target)
    for i in range(n):  # without the bit's own products
        some = slice(pairs.starts[i], pairs.starts[i + 1])
        r[some] -= S[bit, i] * S[bit, pairs.others[some]]
    s = S[bit].copy()
    descend(pairs.starts, pairs.others, r, s, signs[bit], mu * L * L * pairs.per_row)
    new = Z.copy()
    new[:, bit] = s > 0
    energy = slow_energy(new, H, y, mu, target)
    assert energy <= slow_energy(Z, H, y, mu, target) + 1e-12
    for i in range(n):
        flipped = new.copy()
        flipped[i, bit] ^= 1
        assert slow_energy(flipped, H, y, mu, target) >= energy - 1e-12


@settings(max_examples=60, deadline=None)
@problems
def test_one_bit_ends_no_higher_than_the_bits_of_h_in_its_place(seed, n, L, mu, labelled):
    Z, H, pairs = problem(seed, n, L)
    y, target = dense(pairs), max(1, round(L / 2))
    S = signs_of(Z)
    r = pairs.residuals(S, target)
    alternate_bits(pairs.starts, pairs.others, r, S[:1], signs_of(H)[:1], mu * L * L * pairs.per_row, 1)
    with_h = Z.copy()
    with_h[:, 0] = H[:, 0]
    after = slow_energy((S.T > 0).astype(np.uint8), H, y, mu, target)
    assert after <= slow_energy(with_h, H, y, mu, target) + 1e-12
    np.testing.assert_array_equal(r, pairs.residuals(S, target))


def one_bit(seed, n, L=3, mu=0.02):
    """The energy of the first bit that its step ends with, and those of all 2^n values that it can have."""
    Z, H, pairs = problem(seed, n, L)
    S, h, penalty = signs_of(Z), signs_of(H)[:1].copy(), mu * L * L * pairs.per_row
    r = pairs.residuals(S, max(1, round(L / 2)))
    rows = np.repeat(np.arange(n), np.diff(pairs.starts))
    c = r - S[0, rows] * S[0, pairs.others]
    every = np.array(list(product((-1, 1), repeat=n)))
    one = S[:1].copy()
    alternate_bits(pairs.starts, pairs.others, r, one, h, penalty, 1)
    found, all_of_them = (
        (c * s[:, rows] * s[:, pairs.others]).sum(axis=1) + penalty * (s != h).sum(axis=1)
        for s in (one, every)
    )
    return found[0], all_of_them


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 10), L=st.integers(1, 5),
       mu=st.sampled_from([1e-6, 0.02, 0.5]))  # fmt: skip
@example(seed=0, n=EXACT_ROWS, L=3, mu=0.02)
def test_one_bit_of_few_rows_is_the_brute_force_minimum(seed, n, L, mu):
    found, every = one_bit(seed, n, L, mu)
    assert found == pytest.approx(every.min(), rel=1e-12, abs=1e-9)


def test_one_bit_of_more_rows_is_mostly_the_best_of_all_and_otherwise_near_it():
    """Of 2^13. No search that ends soon finds the best always."""
    energies = [one_bit(seed, EXACT_ROWS + 1) for seed in range(100)]
    apart = np.array([(found - every.min()) / abs(every.min()) for found, every in energies])
    assert apart.min() > -1e-12
    assert (apart < 1e-9).mean() >= 0.9
    assert apart.mean() < 0.02


@pytest.mark.parametrize("n", [2, 5, 70, 1200])
def test_chains_of_flips_end_where_their_energy_says(n):
    rng = np.random.default_rng(n)
    near, far = rng.integers(0, n, (2, 6 * n, 2))
    pairs = Pairs.of(near, far, n)
    S, H = (rng.choice(np.array([-1, 1], np.int8), (2, n)) for _ in range(2))
    c, s = pairs.residuals(S, 1), S[0].copy()
    rows = np.repeat(np.arange(n), np.diff(pairs.starts))

    def energy(s):
        return float((c * s[rows] * s[pairs.others]).sum()) + 0.7 * np.count_nonzero(s != H[0])

    found = descend(pairs.starts, pairs.others, c, s, H[0], 0.7)
    assert found == pytest.approx(energy(s))
    assert found <= energy(S[0])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 10))
def test_without_repulsion_one_bit_that_h_gives_to_all_rows_is_the_brute_force_minimum(seed, n):
    """Here the minimum is known: all rows alike, as h has them, costs nothing for L = 1."""
    rng = np.random.default_rng(seed)
    pairs = random_pairs(rng, n, attract_only=True)
    Z, H = rng.integers(0, 2, (n, 1), dtype=np.uint8), np.ones((n, 1), dtype=np.uint8)
    new, E_Q, *_ = z_step(Z, H, pairs, 0.01)
    best = min(
        slow_energy(np.array(bits, dtype=np.uint8)[:, None], H, dense(pairs), 0.01, 1)
        for bits in product((0, 1), repeat=n)
    )
    assert E_Q == best == 0
    np.testing.assert_array_equal(new, H)


def test_a_large_penalty_ends_at_the_hash_codes():
    Z, H, pairs = problem(5, 10, 4)
    new, E_Q, E_BA, _, mismatched = z_step(Z, H, pairs, 1e6)
    np.testing.assert_array_equal(new, H)
    assert mismatched == 0
    assert E_Q == E_BA


@settings(max_examples=30, deadline=None)
@problems
def test_what_flips_are_worth_is_the_difference_of_energies(seed, n, L, mu, labelled):
    Z, H, pairs = problem(seed, n, L)
    objective = Affinity(1, labels=np.zeros(n) if labelled else None)
    objective._pairs = pairs
    target, y, some = objective.target(L), dense(pairs), np.arange(0, n, 2)
    with Workers(1) as workers:
        rows, _ = rows_with(H, H, workers)
        codes = H.copy()
        codes[some] = Z[some]
        change = objective.changes(rows, some, rows.X[some], Z[some], None)
    for row, bit in product(range(len(some)), range(L)):
        flipped = codes.copy()
        flipped[some[row], bit] ^= 1
        wanted = slow_energy(flipped, H, y, 0, target) - slow_energy(codes, H, y, 0, target)
        np.testing.assert_allclose(change[row, bit], wanted, atol=1e-9)


# ---- pairs


def test_neighbours_attract_random_others_repel_and_a_pair_is_one_or_the_other():
    rows = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    rows[10:21] = rows[10]  # copies come before the row itself, or instead of it
    y = dense(neighbour_pairs(rows, 7, np.random.RandomState(0), 1))
    distances = np.square(rows[:, None] - rows).sum(axis=2) + np.diag(np.full(60, np.inf))
    near = np.zeros((60, 60), bool)
    np.put_along_axis(near, np.argsort(distances, axis=1, kind="stable")[:, :7], True, axis=1)
    np.testing.assert_array_equal(y == 1, near | near.T)
    np.testing.assert_array_equal(y, y.T)
    assert not y.diagonal().any()
    assert 5 <= (y == -1).sum(axis=1).mean() <= 14
    assert set(np.unique(y)) == {-1, 0, 1}


def test_the_same_label_attracts_and_others_repel():
    labels = np.random.default_rng(0).integers(0, 3, 50)
    labels[7] = 3  # alone
    y = dense(label_pairs(labels, 6, np.random.RandomState(0)))
    same = labels[:, None] == labels
    assert y[same].min() == 0
    assert y[~same].max() == 0
    assert not y.diagonal().any()
    assert (y == 1).sum(axis=1)[labels != 3].min() >= 4
    assert (y == -1).sum(axis=1).min() >= 4


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_rows_have_pairs(n):
    rows = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    assert neighbour_pairs(rows, 50, np.random.RandomState(0), 1).per_row > 0


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (Y[:-1], "one label for each of the 600 rows"),
        (np.stack([Y, Y], axis=1), "one label for each"),
        (np.where(Y == 3, np.nan, Y), "without a label"),
        (np.array([None, *Y[1:]], dtype=object), "without a label"),
        (X[:, 10] + 0.5, "whole numbers or texts, and has"),
        (np.zeros(600), "the same label for all rows"),
        (np.arange(600), "no label twice"),
        (np.array(["one", *Y[1:]], dtype=object), "of one type"),
    ],
)  # fmt: skip
def test_what_is_no_label_is_refused(y, match):
    with pytest.raises(InvalidInput, match=match):
        BinaryAutoencoder(4, objective="affinity").fit(X, y)


@pytest.mark.parametrize("y", [Y, Y.astype(float), Y.astype(str), Y[:, None], list(Y), Y.astype(object)])
def test_labels_of_any_type_are_the_same_classes(y):
    np.testing.assert_array_equal(label_numbers(y, 600), Y)


# ---- fits


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("what", DEGENERATE)
def test_rows_with_little_in_them_are_fitted(what):
    rows = DEGENERATE[what](np.random.default_rng(0).standard_normal((200, 8)))
    for y in (None, np.arange(len(rows)) % 2 if len(rows) > 2 else None):
        model = BinaryAutoencoder(4, objective="affinity", random_state=0).fit(rows, y)
        assert model.encode(rows).shape == (len(rows), 1)


def label_precision(model, base, labels, queries, wanted):
    ranking = label_ranking(model.transform(base), labels, model.transform(queries), wanted)
    return precision_recall_at_k(ranking, 20, ties="average").precision


def test_labels_lead_to_codes_by_which_labels_are_found():
    base, labels, queries, wanted = X[:500], Y[:500], X[500:], Y[500:]
    plain = BinaryAutoencoder(16, random_state=0).fit(base, labels)
    taught = BinaryAutoencoder(16, objective="affinity", random_state=0).fit(base, labels)
    found = [label_precision(model, base, labels, queries, wanted) for model in (plain, taught)]
    assert found[1] > found[0] + 0.05
    assert taught.history_[0].precision < max(record.precision for record in taught.history_)


def test_labels_follow_the_rows_that_are_not_held_out():
    """Rows whose labels are their sign: a shift by one row would leave nothing to learn."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 5))
    labels = (rows[:, 2] > 0).astype(int)
    model = BinaryAutoencoder(4, objective="affinity", random_state=0).fit(rows, labels)
    assert label_precision(model, rows[:300], labels[:300], rows[300:], labels[300:]) > 0.9
    assert max(record.precision for record in model.history_) > 0.9


def test_reconstruction_ignores_y():
    one, other = (BinaryAutoencoder(8, random_state=0).fit(X, y).encode(X) for y in (None, X[:, 10] + 0.5))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("y", [None, Y], ids=["neighbours", "labels"])
def test_the_same_bits_for_any_number_of_threads(y):
    models = [BinaryAutoencoder(12, objective="affinity", random_state=1, n_jobs=n).fit(X, y) for n in (1, 3)]
    np.testing.assert_array_equal(*(model.encoder_.weights for model in models))
    assert [r.E_Q for r in models[0].history_] == [r.E_Q for r in models[1].history_]


@pytest.mark.parametrize("y", [None, Y], ids=["neighbours", "labels"])
def test_without_validation_it_runs_until_codes_are_hash_codes_with_the_least_loss(y):
    model = BinaryAutoencoder(8, objective="affinity", validation=None, random_state=0).fit(X, y)
    last = model.history_[-1]
    assert last.mismatched == 0
    assert last.E_Q == last.E_BA
    assert min(r.E_BA for r in model.history_) < model.history_[0].E_BA
    for record in model.history_:
        assert record.E_Q <= record.E_BA


def test_of_many_rows_a_sample_is_trained_on(monkeypatch):
    monkeypatch.setattr("auxbit.hashers.autoencoder.MOST_ROWS", 200)
    start = np.random.default_rng(0).integers(0, 2, (600, 6), dtype=np.uint8)
    for init in (None, start):
        model = BinaryAutoencoder(6, objective="affinity", init=init, random_state=0).fit(X, Y)
        assert 140 <= model.training_.n_rows <= 200
    with Workers(1) as workers:
        whole = ArrayTable(X, workers)
        table = SampledTable(whole, np.array([3, 5, 8, 9]), workers)
        scaling = table.measure(None, normalize=False, lift=False)
        np.testing.assert_array_equal(scaling.mean, X.mean(axis=0))  # that of all rows
        rows = table.rows(scaling, np.array([1]), 2, None, 0)
        np.testing.assert_array_equal(rows.X, scaling.apply(X[[3, 8, 9]]))


@pytest.mark.parametrize("y", [None, Y], ids=["neighbours", "labels"])
def test_rows_of_a_file_give_the_model_of_rows_in_memory(y, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    start = np.random.default_rng(0).integers(0, 2, (600, 6), dtype=np.uint8)
    for most, init in ((10_000, None), (200, None), (200, start)):
        monkeypatch.setattr("auxbit.hashers.autoencoder.MOST_ROWS", most)
        model = BinaryAutoencoder(6, objective="affinity", init=init, random_state=0)
        codes = [clone(model).fit(rows, y).encode(X) for rows in (X, tmp_path / "x.npy")]
        np.testing.assert_array_equal(*codes)


def test_a_model_is_saved_and_read_and_has_a_decoder(tmp_path):
    model = BinaryAutoencoder(8, objective="affinity", n_neighbors=20, random_state=0).fit(X, Y)
    model.save(tmp_path / "m.safetensors")
    read = auxbit.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(read.encode(X), model.encode(X))
    assert (read.objective, read.n_neighbors) == ("affinity", 20)
    assert model.score(X) > -X.var(axis=0).sum()
    model.fit_decoder(X)
    assert model.encode(X, coding="optimal").shape == (600, 1)


@pytest.mark.parametrize("init", ["tpca", "bfa", "random", "lsh"])
def test_it_starts_from_any_codes(init):
    model = BinaryAutoencoder(8, objective="affinity", init=init, random_state=0).fit(X, Y)
    assert model.n_iter_ >= 1


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"objective": "triplets"}, "objective='triplets' is invalid: expected 'reconstruction' or"),
        ({"objective": None}, "objective=None is invalid"),
        ({"objective": "affinity", "n_neighbors": 0}, "n_neighbors=0 is invalid.*Try n_neighbors=50"),
        ({"objective": "affinity", "validation": X[:20]}, "validation.*'auto' or None with labels"),
    ],
)
def test_what_cannot_be_is_refused(parameters, match):
    with pytest.raises(InvalidParameter, match=match):
        BinaryAutoencoder(4, **parameters).fit(X, Y)


def test_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match=r"objective='affinity'.*with checkpoint="):
        BinaryAutoencoder(4, objective="affinity").fit(X, Y, checkpoint=tmp_path / "state")


def test_precision_by_labels_is_that_of_a_ranking_of_all_rows_with_the_label():
    rng = np.random.default_rng(0)
    codes, asked = rng.integers(0, 2, (40, 6), dtype=np.uint8), rng.integers(0, 2, (5, 6), dtype=np.uint8)
    labels = np.repeat([0, 1], 20)
    wanted = np.zeros(5, dtype=int)
    truth = np.tile(np.flatnonzero(labels == 0), (5, 1))
    slow = hamming_ranking(pack_bools(codes), pack_bools(asked), truth, 6)
    ours = label_ranking(codes, labels, asked, wanted)
    np.testing.assert_array_equal(ours.counts, slow.counts)
    np.testing.assert_array_equal(ours.hits, slow.hits)


def test_targets_are_whole_numbers():
    assert [Affinity(1).target(L) for L in (1, 3, 16)] == [1, 2, 8]
    assert Affinity(1, labels=Y).target(7) == 7
