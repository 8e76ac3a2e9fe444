"""The line search by a sample and one pass: it ends where the search in all rows does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.core.maps import pack_bools
from auxbit.core.parallel import Workers
from auxbit.mac import rows as shard
from auxbit.mac.h_step import ArraySvmRows, CorrectedLine, SampledLine, line_search

N, D, L, C = 3000, 5, 4, 3.0
RNG = np.random.default_rng(1)
X = (RNG.normal(size=(N, D)) / 4).astype(np.float32)
Z = (X @ RNG.normal(size=(D, L)) + RNG.normal(size=(N, L)) / 4 > 0).astype(np.uint8)
BITS = np.arange(L)
W = RNG.normal(size=(D + 1, L)) / 10
LINE = shard.Line(W, BITS, BITS)


class Problem:
    """A step down the gradient from W, and what all rows see along it."""

    def __init__(self, workers):
        rows = ArraySvmRows(X, Z, workers)
        rows.note(W)
        self.sums = rows.count(BITS)
        self.gradient = W + 2 * C * self.sums.half_gradient
        self.step = -self.gradient / N
        self.direct = line_search(rows, BITS, W, self.step, self.gradient, self.sums.slack, C)
        self.looks, self._workers = [], workers

    def look(self, sizes):
        self.looks.append(sizes)
        return shard.along_step(X, pack_bools(Z), LINE, self.step, sizes, self._workers)[0]

    def sizes(self, some):
        """0 and where a search on these rows looks."""
        trial = SampledLine(X[some], W, self.step, Z[some], len(X[some]) / N)
        line_search(trial, BITS, W, self.step, trial.gradient(W, C), trial.slack, C)
        return np.vstack([np.zeros(L), *trial.sizes])

    def search(self, sizes):
        line = CorrectedLine(sizes, self.look)
        return line_search(line, BITS, W, self.step, self.gradient, self.sums.slack, C)

    def objective(self, size):
        V = W + size * self.step
        slack = np.maximum(0, 1 - (2.0 * Z - 1) * (X @ V[:-1] + V[-1]))
        return 0.5 * (V * V).sum(axis=0) + C * (slack**2).sum(axis=0)


@pytest.fixture(scope="module")
def workers():
    with Workers(1) as made:
        yield made


def test_a_sample_of_all_rows_gives_the_size_of_the_search_in_memory_by_one_look(workers):
    problem = Problem(workers)
    found = problem.search(problem.sizes(slice(None)))
    np.testing.assert_allclose(found, problem.direct, rtol=1e-3)
    assert len(problem.looks) == 1


def test_a_sample_of_some_rows_gives_nearly_the_same_size_by_one_look(workers):
    problem = Problem(workers)
    found = problem.search(problem.sizes(slice(None, None, 3)))
    np.testing.assert_allclose(found, problem.direct, rtol=0.02)
    assert len(problem.looks) == 1
    assert (problem.objective(found) <= problem.objective(problem.direct) * 1.0001).all()


def test_a_misleading_sample_costs_further_looks_and_not_the_result(workers):
    problem = Problem(workers)
    far = np.vstack([np.zeros(L), np.full((3, L), 50.0)])
    found = problem.search(far)
    np.testing.assert_allclose(found, problem.direct, rtol=1e-3)
    assert len(problem.looks) == 4


def test_without_a_sample_all_rows_are_looked_at_for_every_size(workers):
    problem = Problem(workers)
    np.testing.assert_allclose(problem.search(np.zeros((1, L))), problem.direct, rtol=1e-3)
    assert len(problem.looks) == 4


def test_sums_of_a_sample_stand_for_those_of_all_rows(workers):
    problem = Problem(workers)
    half = SampledLine(X[::2], W, problem.step, Z[::2], 0.5)
    np.testing.assert_allclose(half.slack, problem.sums.slack, rtol=0.1)
    slope = np.einsum("dl,dl->l", half.gradient(W, C), problem.step)
    wanted = np.einsum("dl,dl->l", problem.gradient, problem.step)
    np.testing.assert_allclose(slope, wanted, rtol=0.15)


def test_near_a_size_that_was_seen_the_parabola_through_it_is_taken(workers):
    problem = Problem(workers)
    at = problem.direct * 1.01
    line = CorrectedLine(np.vstack([np.zeros(L), at]), problem.look)
    found = line.along(problem.direct, BITS)
    exact = problem.look(problem.direct[None])[0]
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-5)
    np.testing.assert_allclose(found[2], exact[2], rtol=0.05)


class Hinges:
    """Slack of some scores along a step, a row of them for each bit; notes what is tried."""

    def __init__(self, scores, aimed):
        self.scores, self.aimed, self.tried = scores, aimed, []

    def at(self, size):
        slack = np.maximum(0, 1 - self.scores - size[:, None] * self.aimed)
        on = slack > 0
        return (slack**2).sum(1), -(slack * self.aimed).sum(1), (on * self.aimed**2).sum(1)

    def aim(self, P, bits):
        return self.at(np.zeros(len(bits)))[2]

    def along(self, size, bits):
        self.tried.append(size.copy())
        return self.at(size)


def search_on(scores, aimed, w, p, C):
    """line_search from weights w along p, one number per bit. Sizes, those tried, slope, value."""
    rows, bits = Hinges(scores, aimed), np.arange(len(w))

    def slope(size):
        return w * p + size * (p * p) + 2 * C * rows.at(size)[1]

    def value(size):
        return 0.5 * (w + size * p) ** 2 + C * rows.at(size)[0]

    zero = np.zeros(len(w))
    gradient = (slope(zero) / p)[None]
    size = line_search(rows, bits, w[None], p[None], gradient, rows.at(zero)[0], C)
    return size, np.array(rows.tried), slope, value


@settings(max_examples=100)
@given(st.integers(0, 2**20), st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
def test_sizes_are_tried_between_those_that_are_too_small_and_too_large(seed, C):
    rng = np.random.default_rng(seed)
    n, m = 6, rng.integers(1, 6)
    scores, aimed = 2 * rng.normal(size=(n, m)), rng.normal(size=(n, m)) * 10.0 ** rng.integers(-1, 2)
    w, p = rng.normal(size=n), rng.normal(size=n)
    down = np.sign(w * p - 2 * C * (np.maximum(0, 1 - scores) * aimed).sum(1))
    p, aimed = -p * down, -aimed * down[:, None]  # every step goes down at first
    size, tried, slope, value = search_on(scores, aimed, w, p, C)
    low, high = np.zeros(n), np.full(n, np.inf)
    for each in tried:
        assert (each >= low).all()
        assert (each <= high).all()
        assert ((low < each) | (high - low <= 1e-15 * high)).all()
        down = slope(each) < 0
        low, high = np.where(down, each, low), np.where(down, high, each)
    values = np.array([value(np.zeros(n)), *map(value, tried)])
    np.testing.assert_allclose(value(size), values.min(axis=0), rtol=1e-9, atol=1e-12)


def test_the_norm_of_the_weights_counts_as_much_as_it_should():
    # without slack there is only ½(w + size p)², least where w + size p = 0
    w, p = np.array([1.0, -2.0]), np.array([-0.5, 4.0])
    size, *_ = search_on(np.full((2, 1), 1e6), np.zeros((2, 1)), w, p, C=1.0)
    np.testing.assert_allclose(size, -w / p)


def test_a_size_that_newton_oversteps_is_looked_for_by_halves():
    # slack ends soon after the start, so that Newton's method goes far beyond it, and far back from there
    scores, aimed = np.array([[0.9, -3.0]]), np.array([[10.0, -0.01]])
    size, _, _, value = search_on(scores, aimed, np.zeros(1), np.ones(1), C=1.0)
    fine = np.linspace(0, 0.1, 100_001)[:, None]
    least = min(value(each)[0] for each in fine)
    assert value(size)[0] <= least * 1.001


def test_slope_and_curvature_along_a_step_are_halves_of_the_derivatives_of_the_slack(workers):
    rows = ArraySvmRows(X, Z, workers)
    rows.note(W)
    step = Problem(workers).step
    rows.aim(step, BITS)
    at, off = np.full(L, 0.3), 1e-3
    below, above = (rows.along(at + by, BITS)[0].copy() for by in (-off, off))
    _, half_slope, curvature = rows.along(at, BITS)
    np.testing.assert_allclose(2 * half_slope, (above - below) / (2 * off), rtol=1e-2)
    slopes = [2 * rows.along(at + by, BITS)[1].copy() for by in (-off, off)]
    np.testing.assert_allclose(2 * curvature, (slopes[1] - slopes[0]) / (2 * off), rtol=5e-2)


@pytest.mark.parametrize(("known", "tries"), [(2.0, 1), (6.0, 2)])
def test_newton_steps_of_a_line_search_use_the_whole_curvature(known, tries):
    """On a parabola the first step ends at its minimum if the curvature is known, else the second does."""
    taken = []

    class Parabola:
        def aim(self, step, bits):
            return np.full(L, known)  # of the slack's curvature the half is 2

        def along(self, size, bits):
            taken.append(size.copy())
            return 2 * size**2 - 8 * size + 9, 2 * size - 4, np.full(L, 2.0)

    gradient, step = np.full((1, L), -8.0 * C), np.ones((1, L))
    found = line_search(Parabola(), BITS, np.zeros((1, L)), step, gradient, np.full(L, 9.0), C)
    np.testing.assert_allclose(taken[0], 8 * C / (1 + 2 * C * known))
    least = 8 * C / (1 + 4 * C)  # of ½ s² + C (2 s² − 8 s + 9)
    np.testing.assert_allclose(taken[tries - 1], least)
    np.testing.assert_allclose(found, least)
