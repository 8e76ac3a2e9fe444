"""The line search by a sample and one pass: it ends where the search in all rows does."""

from __future__ import annotations

import numpy as np
import pytest

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
