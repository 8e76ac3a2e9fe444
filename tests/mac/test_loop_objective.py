from __future__ import annotations

import numpy as np
import pytest

from auxbit.core.maps import LinearEncoder, Scaling, pack_bools
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.rows import CodePair, FileRows, ScaledRows
from auxbit.mac.steps import Augmented, MemoryRows, Reconstruction, Steps
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


# ---- rows among which one is so long that float32 leaves sums over all rows no digits of the others


def one_long_row(L=4, n=BLOCK_ROWS + 100, D=5, longer=1e6, value=1):
    """Rows, random codes, an h, and D: numbers of a row that are decoded. Of h and the codes, the first bit
    has this value for the long row alone.

    With a value of 0 it is the others that have the bit, and f(0) is as long as the row.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D + 2)) / longer
    X[7, :D], X[7, D:] = 1 / np.sqrt(D), 0
    h = LinearEncoder(rng.normal(size=(D + 2, L)).astype(np.float32), np.zeros(L, np.float32))
    sign = 2 * value - 1
    h.weights[:, 0], h.bias[0] = sign, -0.5 * sign
    Z = rng.integers(0, 2, (n, L)).astype(np.uint8)
    Z[:, 0] = np.where(np.arange(n) == 7, value, 1 - value)
    return X.astype(np.float32), Z, h, D


def defined(X, Z, h, f, mu, D):
    """E_Q and E_BA by their definition."""
    H = h(X)
    at_codes, at_hash = (np.square(X[:, :D].astype(np.float64) - f(each)).sum() for each in (Z, H))
    return at_codes + mu * np.count_nonzero(Z != H), at_hash


Z_OPTIONS = ZOptions.resolve(4, "exact", "best", 1, None)


@pytest.mark.parametrize("value", [1, 0])
def test_one_long_row_costs_the_energies_of_the_others_no_digits(value):
    X, Z, h, D = one_long_row(value=value)
    found = []
    for n_jobs in (1, 2):
        with Workers(n_jobs) as workers:
            rows = MemoryRows(X, Z.copy(), workers, n_decoded=D)
            steps = Steps(rows, svm=SvmOptions(), objective=Reconstruction(Z_OPTIONS))
            f = steps.f_step()
            report = steps.z_step(h, f, 1e-14)
            found.append((report.E_Q, report.E_BA))
        assert found[-1] == pytest.approx(defined(X, rows.Z, h, f, 1e-14, D), rel=1e-9, abs=0)
        assert found[-1] == pytest.approx((1e-12 * D * len(X),) * 2, rel=0.6, abs=0)
    assert found[0] == found[1]


def test_they_are_the_same_out_of_core_in_one_pass_more():
    X, Z, h, D = one_long_row()
    X, h = X[:, :D].copy(), LinearEncoder(h.weights[:D].copy(), h.bias)
    with Workers(2) as workers:
        inside = MemoryRows(X, Z.copy(), workers)
        outside = FileRows(ScaledRows(X, Scaling(np.zeros(D), 1.0)), CodePair(len(X), 4), workers, 1000)
        outside.fill(lambda raw, places: pack_bools(Z[places]))
        wanted = Steps(inside, svm=SvmOptions(), objective=Reconstruction(Z_OPTIONS))
        steps = Steps(outside, svm=SvmOptions(), objective=Reconstruction(Z_OPTIONS))
        f, before = steps.f_step(), outside.n_passes
        assert f.A.tobytes() == wanted.f_step().A.tobytes()
        assert steps.z_step(h, f, 1e-14) == wanted.z_step(h, f, 1e-14)
        assert outside.n_passes == before + 2


def test_multipliers_count_for_E_Q_beside_a_long_row():
    X, Z, h, D = one_long_row()
    multipliers = np.zeros(Z.shape)
    with Workers(1) as workers:
        rows = MemoryRows(X, Z.copy(), workers, n_decoded=D)
        steps = Steps(rows, svm=SvmOptions(), objective=Augmented(Z_OPTIONS))
        for mu in (1e-14, 1e-13):
            f = steps.f_step()
            report = steps.z_step(h, f, mu)
            E_Q, E_BA = defined(X, rows.Z, h, f, mu, D)
            apart = rows.Z.astype(np.float64) - h(X)
            assert pytest.approx(E_BA, rel=1e-9, abs=0) == report.E_BA
            assert pytest.approx(E_Q - (multipliers * apart).sum(), rel=1e-5, abs=0) == report.E_Q
            multipliers -= 2 * mu * apart
    assert (multipliers != 0).any()


def test_energies_that_are_large_beside_rounding_are_those_of_the_z_step(monkeypatch):
    X, Z, h, f = random_rows()
    monkeypatch.setattr(MemoryRows, "sums_of", None)  # not called: that would take another pass
    with Workers(1) as workers:
        rows = MemorySteps(X, Z, workers, svm=SvmOptions(), z=ZOptions.resolve(5, "exact", "best", 1, None))
        assert rows.z_step(h, f, 0.1).E_Q > 0
