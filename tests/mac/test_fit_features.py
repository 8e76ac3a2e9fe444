"""Fits with features: the SVMs, sums wherever rows are, and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit.core.features import RbfFeatures
from auxbit.core.maps import LinearEncoder, Scaling, lengthened, pack_bools, unpack
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac.h_step import gram_solver
from auxbit.mac.loop import decoder_sums, f_step
from auxbit.mac.rows import CodePair, FileRows, ScaledRows
from auxbit.mac.steps import MemoryRows, Reconstruction, Steps, weights_of
from auxbit.mac.z_step import ZOptions
from helpers.large_rows import history_of, quick
from helpers.svm_cases import TIGHT, liblinear, objectives

N, D, M, L = BLOCK_ROWS + 300, 6, 15, 5
RNG = np.random.default_rng(0)
RAW = (RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D))).astype(np.float32)
HELD_OUT = np.arange(7, N, 400)
CHOSEN = np.setdiff1d(np.arange(N), HELD_OUT)
H = LinearEncoder(RNG.standard_normal((D, L)).astype(np.float32), np.zeros(L, np.float32))
OBJECTIVE = Reconstruction(ZOptions.resolve(L, "auto", "best", 1, None))


@pytest.fixture
def workers():
    with Workers(2) as workers:
        yield workers


@pytest.fixture
def both(workers):
    """The same rows with features, in memory and out of core."""
    scaling = Scaling.measure(RAW, workers)
    X = scaling.apply_all(RAW, workers, CHOSEN)
    features = RbfFeatures.of(X[:M], 0.3, X)
    codes = np.zeros((len(X), L), np.uint8)
    inside = MemoryRows(lengthened(X, features, workers), codes, workers, RAW, CHOSEN, D)
    outside = FileRows(
        ScaledRows(RAW, scaling, HELD_OUT, features), CodePair(len(X), L), workers, sample_rows=2000
    )
    return inside, outside


def begun(rows):
    """Steps whose codes are those of H, which knows of no features."""
    steps = Steps(rows, svm=TIGHT, objective=OBJECTIVE)
    return steps, steps.begin(H)


def test_rows_have_their_features_wherever_they_are(both):
    inside, outside = both
    assert inside.n_features == outside.n_features == D + M
    assert inside.n_decoded == outside.n_decoded == D
    for some in (slice(0, BLOCK_ROWS), slice(BLOCK_ROWS, len(CHOSEN))):
        np.testing.assert_array_equal(outside.X[some], inside.X[some])
    np.testing.assert_array_equal(outside.X.without_features()[:90], inside.X[:90, :D])


def test_a_start_without_features_has_its_own_codes(both):
    for rows in both:
        steps, h = begun(rows)
        codes = rows.Z if isinstance(rows, MemoryRows) else unpack(rows.codes.now, L)
        np.testing.assert_array_equal(codes, H(both[0].X[:, :D]))
        assert not h.weights[D:].any()
        assert steps.f_step().A.shape == (D, L)


def test_every_sum_and_step_is_the_same_wherever_rows_are(both):
    found = []
    for rows in both:
        steps, h = begun(rows)
        f = steps.f_step()
        report = steps.z_step(h, f, 0.01)
        h = steps.h_step(h)
        found.append((rows.moments(), f, report, h, steps.decoder_of(h)))
    (one, f, report, h, last), (other, f2, report2, h2, last2) = found
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-3)
    np.testing.assert_allclose(f.A, f2.A, rtol=1e-5, atol=1e-7)
    assert report == report2
    assert np.mean(h(both[0].X) == h2(both[0].X)) > 0.999  # the sizes of steps are those of a sample
    np.testing.assert_allclose(last.A, last2.A, rtol=1e-2, atol=1e-3)


def test_energies_and_decoder_are_of_the_numbers_that_are_reconstructed(both, workers):
    rows = both[0]
    steps, h = begun(rows)
    X, Z = np.ascontiguousarray(rows.X[:, :D]), rows.Z.copy()
    f = steps.f_step()
    np.testing.assert_allclose(f.A, f_step(decoder_sums(X, Z, workers)).A, atol=1e-6)
    report = steps.z_step(h, f, 0.01)
    error = np.square(X - f(Z)).sum()
    assert pytest.approx(error, rel=1e-5) == report.E_BA
    free = np.square(X - f(rows.Z)).sum() + 0.01 * np.count_nonzero(rows.Z != Z)
    assert pytest.approx(free, rel=1e-5) == report.E_Q
    assert report.changed > 0


def test_neighbours_are_those_of_rows_without_features(both):
    queries = np.ascontiguousarray(both[0].X[:5, :D])
    for rows in both:
        np.testing.assert_array_equal(rows.nearest(queries, 1)[:, 0], np.arange(5))


def test_kernel_svms_are_those_of_liblinear_on_the_same_features(both):
    rows = both[0]
    steps, _ = begun(rows)
    rows.fill(lambda raw, places: pack_bools(RAW[places][:, :L] ** 2 > 1.0))
    h = steps.h_step(None, exact=True)
    slow = liblinear(rows.X, rows.Z, TIGHT.C)
    reference = LinearEncoder(slow[:-1].astype(np.float32), slow[-1].astype(np.float32))
    np.testing.assert_allclose(
        objectives(rows.X, rows.Z, h, TIGHT.C), objectives(rows.X, rows.Z, reference, TIGHT.C), rtol=1e-4
    )
    assert np.mean(h(rows.X) == reference(rows.X)) > 0.999
    linear = liblinear(rows.X[:, :D], rows.Z, TIGHT.C)
    alone = rows.X[:, :D] @ linear[:-1] + linear[-1] >= 0
    assert np.mean(h(rows.X) == rows.Z) > np.mean(alone == rows.Z) + 0.05


def test_features_that_are_alike_do_not_stop_the_solver():
    """XᵀX of float32 sums may have eigenvalues below 0, by more than what is always added."""
    twins = np.ones((40, 40)) + 1e-3 * np.random.default_rng(0).standard_normal((40, 40))
    solution = gram_solver(twins + twins.T, 100.0)(np.ones((40, 1)))
    assert np.isfinite(solution).all()


class Stopped(Exception):
    """What a callback stops a fit with."""


@pytest.mark.parametrize("stop", [2, 4, 5, 7])
def test_a_fit_with_features_resumes_in_either_of_its_two_fits(stop, tmp_path):
    X = np.random.default_rng(0).normal(size=(600, 12)).astype(np.float32)
    options = {
        "encoder": "rbf",
        "n_centres": 20,
        "max_iter": 4,
        "mu0": 0.003,
        "mu_factor": 1.1,
        "patience": 9,
    }
    seen = []

    def stopping(record):
        seen.append(record)
        if len(seen) == stop:
            raise Stopped

    with pytest.raises(Stopped):
        quick(**options, callback=stopping).fit(X, checkpoint=tmp_path)
    model = quick(**options).fit(X, checkpoint=tmp_path, resume=True)
    wanted = quick(**options).fit(X, memory="1GB")
    assert history_of(model) == history_of(wanted)
    for name, value in wanted.encoder_.tensors().items():
        np.testing.assert_array_equal(model.encoder_.tensors()[name], value)
    np.testing.assert_array_equal(model.decoder_.A, wanted.decoder_.A)


def test_longer_rows_are_what_h_takes(both):
    rows = both[1]
    steps, h = begun(rows)
    scaled = np.ascontiguousarray(both[0].X[:50, :D])
    features = rows.X._features
    np.testing.assert_array_equal(h(lengthened(scaled, features)), H(scaled))
    assert weights_of(h).shape == (D + M + 1, L)
    assert steps.h is h
