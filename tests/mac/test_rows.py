"""Each pass over a shard against a few lines of NumPy; and shards in any split against one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.core.maps import LinearDecoder, LinearEncoder, pack_bools, unpack
from auxbit.core.parallel import Workers
from auxbit.mac import rows
from auxbit.mac.rows import Judges, Line, ZTask
from auxbit.mac.steps import Reconstruction
from auxbit.mac.z_step import ZOptions

N, D, L, Q = 5000, 6, 10, 7
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(N, D)) / 6).astype(np.float32)
W = RNG.normal(size=(D + 1, L))
ENCODER = LinearEncoder(W[:-1].astype(np.float32), W[-1].astype(np.float32))
P = RNG.normal(size=(D + 1, L))
Z = RNG.integers(0, 2, (N, L)).astype(np.uint8)
CODES = pack_bools(Z)
BITS = np.array([0, 3, 7])
ALL = Line(W, np.arange(L), np.arange(L))
SOME = Line(W, np.array([0, 2, 3, 7]), np.array([0, 2, 3]))  # the bits BITS
F = LinearDecoder(RNG.normal(size=(D, L)) / 20, np.zeros(D))
TASK = ZTask(W, F, 0.01, Reconstruction(ZOptions.resolve(L, "auto", "best", 1, None)))
TRUTH = np.stack([RNG.choice(N, 20, replace=False) for _ in range(Q)])
QUERIES = RNG.integers(0, 2, (Q, L)).astype(np.uint8)
CLOSE = {"rtol": 2e-4, "atol": 2e-2}  # sums of thousands of float32


@pytest.fixture(scope="module")
def workers():
    with Workers(2) as made:
        yield made


def scores(V):
    return X @ V[:-1] + V[-1]


def products(codes):
    codes = codes.astype(float)
    return codes.T @ codes, codes.sum(axis=0), X.T @ codes


def slack_sums(V, codes):
    t, y = scores(V), 2.0 * codes - 1
    active = y * t < 1
    residual = np.where(active, t - y, 0)
    counts = [residual**2, residual, active, np.where(active, t * t, 0), t * t]
    return np.stack([each.sum(axis=0) for each in counts]), X.T @ residual


def histograms(H):
    distances = (H[None] != QUERIES[:, None]).sum(axis=2)
    true = np.take_along_axis(distances, TRUTH, axis=1)
    return tuple(np.stack([np.bincount(row, minlength=L + 1) for row in each]) for each in (distances, true))


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_moments(workers):
    assert_close(rows.moments(X, workers), (X.T @ X, X.sum(axis=0)))


def test_begin_writes_codes_and_returns_what_the_first_steps_need(workers):
    out = np.zeros_like(CODES)
    found = rows.begin(X, None, W, out, None, workers)
    H = (scores(W) >= 0).astype(np.uint8)
    np.testing.assert_array_equal(unpack(out, L), H)
    t = scores(W)
    assert_close(found, (*products(H), np.abs(t).sum(axis=0), (t * t).sum(axis=0)))


def test_code_sums_and_hash_sums(workers):
    assert_close(rows.code_sums(X, CODES, L, workers), products(Z))
    assert_close(rows.hash_sums(X, ENCODER, workers), (*products(scores(W) >= 0), X.sum(axis=0)))


def test_label_sums(workers):
    slack, product, *codes = rows.label_sums(X, CODES, W, workers)
    assert_close((slack, product), slack_sums(W, Z))
    assert_close(codes, products(Z))


def test_slack_sums(workers):
    assert_close(rows.slack_sums(X, CODES, ALL, workers), slack_sums(W, Z))
    some = rows.slack_sums(X, CODES, SOME, workers)
    assert_close(some, [each[:, BITS] for each in slack_sums(W, Z)])


def test_hessian_product_of_some_bits(workers):
    t, y = scores(W)[:, BITS], 2.0 * Z[:, BITS] - 1
    wanted = np.where(y * t < 1, scores(P[:, BITS]), 0)
    found = rows.hessian_product(X, CODES, SOME, P[:, BITS], workers)
    assert_close(found, (X.T @ wanted, wanted.sum(axis=0)))


def test_along_step_at_several_sizes(workers):
    sizes = np.array([[0.0, 0.0, 0.0], [0.5, 1.0, 2.0]])
    (found,) = rows.along_step(X, CODES, SOME, P[:, BITS], sizes, workers)
    y, p = 2.0 * Z[:, BITS] - 1, scores(P[:, BITS])
    for size, sums in zip(sizes, found, strict=True):
        t = scores(W)[:, BITS] + size * p
        d, q = np.where(y * t < 1, t - y, 0), np.where(y * t < 1, p, 0)
        wanted = np.stack([d * d, d * q, q * q]).sum(axis=1)
        np.testing.assert_allclose(sums, wanted, **CLOSE)


def test_differing_counts_rows_whose_bit_is_unlike_h(workers):
    (found,) = rows.differing(X, CODES, W, workers)
    np.testing.assert_array_equal(found, ((scores(W) >= 0) != Z).sum(axis=0))


def test_a_z_pass_solves_every_row_and_gathers_all_sums(workers):
    out = np.zeros_like(CODES)
    judges = Judges.of(pack_bools(QUERIES), L, TRUTH, 0, N)
    energy, hash_energy, _, *counts, flips, mismatched, slack, product, ZZ, z, XZ, seen, hits = rows.z_pass(
        X, CODES, TASK, out, judges, workers
    )
    H, new = (scores(W) >= 0).astype(np.uint8), unpack(out, L)

    def objective(codes):
        return ((X - codes @ F.A.T) ** 2).sum(axis=1) + TASK.mu * (codes != H).sum(axis=1)

    everything = unpack(np.arange(2**L, dtype="<u2").view(np.uint8).reshape(-1, 2), L)
    some = slice(0, 50)
    fits = ((X[some, None] - (everything @ F.A.T)[None]) ** 2).sum(axis=2)
    least = (fits + TASK.mu * (everything[None] != H[some, None]).sum(axis=2)).min(axis=1)
    np.testing.assert_allclose(objective(new)[some], least, rtol=1e-4)
    np.testing.assert_allclose(hash_energy - energy, (objective(H) - objective(new)).sum(), rtol=1e-3)
    assert counts[2] == 0  # unproven
    np.testing.assert_array_equal(flips, (new != Z).sum(axis=0))
    assert mismatched == (new != H).sum()
    assert_close((slack, product), slack_sums(W, new))
    assert_close((ZZ, z, XZ), products(new))
    assert_close((seen, hits), histograms(H))


def test_judging_alone_gives_the_histograms_of_a_z_pass(workers):
    judges = Judges.of(pack_bools(QUERIES), L, TRUTH, 0, N)
    assert_close(rows.judge_pass(X, W, judges, workers), histograms(scores(W) >= 0))


def test_codes_may_be_written_over_those_that_are_read(workers):
    apart, together = np.zeros_like(CODES), CODES.copy()
    rows.z_pass(X, CODES, TASK, apart, None, workers)
    rows.z_pass(X, together, TASK, together, None, workers)
    np.testing.assert_array_equal(apart, together)


PASSES = {
    "moments": lambda X, Z, out, judges, workers: rows.moments(X, workers),
    "begin": lambda X, Z, out, judges, workers: rows.begin(X, None, W, out, None, workers),
    "code_sums": lambda X, Z, out, judges, workers: rows.code_sums(X, Z, L, workers),
    "hash_sums": lambda X, Z, out, judges, workers: rows.hash_sums(X, ENCODER, workers),
    "label_sums": lambda X, Z, out, judges, workers: rows.label_sums(X, Z, W, workers),
    "slack_sums": lambda X, Z, out, judges, workers: rows.slack_sums(X, Z, SOME, workers),
    "hessian_product": lambda X, Z, out, judges, workers: rows.hessian_product(
        X, Z, SOME, P[:, BITS], workers
    ),
    "along_step": lambda X, Z, out, judges, workers: rows.along_step(
        X, Z, SOME, P[:, BITS], np.ones((2, 3)), workers
    ),
    "differing": lambda X, Z, out, judges, workers: rows.differing(X, Z, W, workers),
    "z_pass": lambda X, Z, out, judges, workers: rows.z_pass(X, Z, TASK, out, judges, workers),
    "judge_codes": lambda X, Z, out, judges, workers: rows.judge_codes(X, Z, L, judges, workers),
    "judge_pass": lambda X, Z, out, judges, workers: rows.judge_pass(X, W, judges, workers),
}


@pytest.mark.parametrize("name", PASSES)
@settings(max_examples=10)
@given(cuts=st.sets(st.integers(1, N - 1), max_size=4))
def test_any_split_into_shards_gives_the_same_codes_and_sums(name, cuts):
    run, edges = PASSES[name], [0, *sorted(cuts), N]
    whole, parts = np.zeros_like(CODES), np.zeros_like(CODES)
    with Workers(1) as one:
        wanted = run(X, CODES, whole, Judges.of(pack_bools(QUERIES), L, TRUTH, 0, N), one)
        found = None
        for start, stop in pairwise(edges):
            judges = Judges.of(pack_bools(QUERIES), L, TRUTH, start, stop)
            sums = run(X[start:stop], CODES[start:stop], parts[start:stop], judges, one)
            found = sums if found is None else tuple(a + b for a, b in zip(found, sums, strict=True))
    np.testing.assert_array_equal(parts, whole)
    for one_sum, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one_sum, other, rtol=1e-5, atol=1e-3)
