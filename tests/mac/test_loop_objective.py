from __future__ import annotations

import numpy as np
import pytest

from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.z_step import ZOptions
from helpers import objective
from helpers.memory_steps import MemorySteps
from helpers.slow_truths import point_energy, random_rows


def slow_hash(x, h):
    scores = [sum(float(x[d]) * float(w[d]) for d in range(len(x))) for w in h.weights.T]
    return [1 if score + float(bias) >= 0 else 0 for score, bias in zip(scores, h.bias, strict=True)]


def test_the_objectives_equal_loops_over_rows_and_dimensions():
    X, Z, h, f = random_rows(n=40)
    H = [slow_hash(x, h) for x in X]
    with Workers(1) as workers:
        ba, bfa = objective.E_BA(X, h, f, workers), objective.E_BFA(X, Z, f, workers)
        q = objective.E_Q(X, Z, h, f, 0.7, workers)
    assert ba == pytest.approx(sum(point_energy(x, f, c, 0.0, c) for x, c in zip(X, H, strict=True)))
    assert bfa == pytest.approx(sum(point_energy(x, f, z, 0.0, z) for x, z in zip(X, Z, strict=True)))
    assert q == pytest.approx(
        sum(point_energy(x, f, c, 0.7, z) for x, c, z in zip(X, H, Z, strict=True)), rel=1e-9
    )
    assert q > bfa + 0.7


def test_the_objectives_of_many_blocks_are_the_sums_over_all_rows():
    X, Z, h, f = random_rows(n=2 * BLOCK_ROWS + 11)
    H = h(X)
    with Workers(2) as workers:
        assert objective.E_BA(X, h, f, workers) == pytest.approx(np.square(X - f(H)).sum())
        assert objective.E_BFA(X, Z, f, workers) == pytest.approx(np.square(X - f(Z)).sum())
        assert objective.E_Q(X, Z, h, f, 3.0, workers) == pytest.approx(
            np.square(X - f(Z)).sum() + 3.0 * (Z != H).sum()
        )


def test_E_Q_at_the_codes_of_h_is_E_BA_whatever_mu():
    X, _, h, f = random_rows()
    with Workers(1) as workers:
        for mu in (0.01, 100.0):
            assert objective.E_Q(X, h(X), h, f, mu, workers) == objective.E_BA(X, h, f, workers)


def test_a_score_of_exactly_zero_is_a_bit_of_one():
    X, _, h, _ = random_rows(L=2)
    h.weights[:] = 0
    h.bias[:] = [0.0, -1e-30]
    assert (h(X) == [1, 0]).all()


@pytest.mark.parametrize("solver", ["exact", "enumerate", "alternating"])
@pytest.mark.parametrize("theorem_4_3", [True, False])
@pytest.mark.parametrize("mu", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("bits", [5, 9])
def test_the_z_step_reports_the_objectives_after_the_step(solver, theorem_4_3, mu, bits):
    X, Z, h, f = random_rows(n=BLOCK_ROWS + 100 if bits == 5 else 150, L=bits)
    options = ZOptions.resolve(bits, solver, "best", 2, {"theorem_4_3": theorem_4_3})
    with Workers(2) as workers:
        rows = MemorySteps(X, Z.copy(), workers, svm=SvmOptions(), z=options)
        report = rows.z_step(h, f, mu)
        before, after = (objective.E_Q(X, codes, h, f, mu, workers) for codes in (Z, rows.Z))
        nested = objective.E_BA(X, h, f, workers)
    assert after == pytest.approx(report.E_Q, rel=1e-6)
    assert nested == pytest.approx(report.E_BA, rel=1e-6)
    assert after < before
    assert report.changed == (Z != rows.Z).sum()
    assert report.mismatched == (h(X) != rows.Z).sum()
    assert 0 <= report.pruned + report.certified <= len(X)
    assert theorem_4_3 or report.pruned == 0
