from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from auxbit import BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.core.maps import LinearEncoder
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import alternate
from auxbit.mac.z_step import ZOptions
from helpers import objective
from helpers.mac_script import Script
from helpers.memory_steps import MemorySteps


@pytest.fixture(scope="module")
def digits():
    return load_digits().data[:400]


# alternate


def test_an_iteration_is_the_h_step_the_f_step_and_the_z_step_with_their_results_passed_on():
    data = Script()
    steps = list(alternate(data, [0.1, 0.2]))
    assert data.calls == [
        ("h", None), ("f", None), ("z", ("h1", "f", 0.1)),
        ("h", "h1"), ("f", None), ("z", ("h2", "f", 0.2)),
    ]  # fmt: skip
    assert [(step.mu, step.h, step.f) for step in steps] == [(0.1, "h1", "f"), (0.2, "h2", "f")]
    assert all(len(step.seconds) == 3 and min(step.seconds) >= 0 for step in steps)


def test_the_first_step_takes_the_encoder_given_and_fits_no_svms():
    data = Script()
    steps = list(alternate(data, [0.1, 0.2], h="start", fitted=True))
    assert data.calls == [
        ("f", None), ("z", ("start", "f", 0.1)),
        ("h", "start"), ("f", None), ("z", ("h1", "f", 0.2)),
    ]  # fmt: skip
    assert [step.h for step in steps] == ["start", "h1"]


def test_the_alternation_ends_after_a_z_step_with_the_codes_of_h():
    data = Script(matches_at=3)
    steps = list(alternate(data, [1.0, 2.0, 4.0, 8.0, 16.0]))
    assert [step.mu for step in steps] == [1.0, 2.0, 4.0]
    assert steps[-1].report.mismatched == 0


@pytest.mark.parametrize("solver", ["exact", "enumerate", "alternating"])
def test_on_real_rows_it_ends_exactly_where_the_codes_are_those_of_h(digits, solver):
    X = ((digits - digits.mean(axis=0)) / 16).astype(np.float32)
    Z = np.random.default_rng(0).integers(0, 2, (len(X), 6)).astype(np.uint8)
    schedule = [0.01 * 2.0**i for i in range(30)]
    with Workers(1) as workers:
        rows = MemorySteps(X, Z, workers, svm=SvmOptions(), z=ZOptions.resolve(6, solver, "best", 1, None))
        for step in alternate(rows, schedule):
            same = (step.h(X) == rows.Z).all()
            assert same == (step.report.mismatched == 0)
            truth = objective.E_Q(X, rows.Z, step.h, step.f, step.mu, workers)
            assert truth == pytest.approx(step.report.E_Q, rel=1e-5)
        assert same
        assert step.mu < schedule[-1]
        # at this μ nothing changes any more but what the decoder still gains
        bound = np.square(X - step.f(step.h(X))).sum(axis=1).max()
        assert rows.z_step(step.h, step.f, 1.01 * float(bound)).changed == 0


# the estimators


def schedule(model):
    return [record.mu for record in model.history_]


def test_the_papers_own_settings_run_to_their_finite_mu(digits):
    ba = BinaryAutoencoder(
        8, mu_factor=2, z_solver="enumerate", z_start="relaxed", validation=None, random_state=0
    ).fit(digits)
    assert schedule(ba) == pytest.approx([0.01 * 2**i for i in range(ba.n_iter_)])
    mismatched = [record.mismatched for record in ba.history_]
    assert mismatched[-1] == 0
    assert min(mismatched[:-1]) > 0
    last = ba.history_[-1]
    np.testing.assert_allclose(last.E_Q, last.E_BA)


@pytest.mark.parametrize("n_bits", [6, 20])
def test_the_decoder_is_the_least_squares_fit_to_the_codes_that_transform_gives(digits, n_bits):
    ba = BinaryAutoencoder(n_bits, validation=None, mu_factor=2, random_state=0).fit(digits)
    Z = ba.transform(digits)
    design = np.c_[Z, np.ones(len(Z))].astype(float)
    fitted = design @ np.linalg.lstsq(design, digits, rcond=None)[0]
    np.testing.assert_allclose(ba.inverse_transform(Z), fitted, atol=1e-3)
    best = np.square(digits - fitted).sum()
    assert -ba.score(digits) * len(digits) == pytest.approx(best, rel=1e-6)
    # history has the energies in the units of X; at the end the decoder can only have gained
    assert best <= ba.history_[-1].E_BA * (1 + 1e-6)
    assert best == pytest.approx(ba.history_[-1].E_BA, rel=0.05)


def test_the_fit_lowers_the_error_of_its_start(digits):
    history = BinaryAutoencoder(8, init="tpca", validation=None, random_state=0).fit(digits).history_
    assert history[-1].E_BA < 0.99 * history[0].E_BA


def test_a_list_of_penalties_is_followed(digits):
    mus = [0.02, 0.05, 0.5, 20.0, 50.0]
    ba = BinaryAutoencoder(4, mu_schedule=mus, validation=None, random_state=0).fit(digits)
    assert schedule(ba) == mus[: ba.n_iter_]
    assert ba.history_[-1].mismatched == 0


@pytest.mark.parametrize("mus", [[], [0.1, 0.1], [0.2, 0.1], [-1.0, 2.0], [np.nan]])
def test_a_list_of_penalties_that_does_not_rise_is_refused(digits, mus):
    with pytest.raises(InvalidParameter, match=r"mu_schedule=.* is invalid"):
        BinaryAutoencoder(4, mu_schedule=mus).fit(digits)


@pytest.mark.parametrize("mus", [None, [0.01, 0.03, 10.0]])
def test_every_penalty_gets_its_steps(digits, mus):
    ba = BinaryAutoencoder(
        4, mu_schedule=mus, mu_factor=3, steps_per_mu=3, validation=None, max_iter=50, random_state=0
    ).fit(digits)
    expected = np.repeat(mus or 0.01 * 3.0 ** np.arange(20), 3)
    assert ba.n_iter_ >= 6
    assert schedule(ba) == pytest.approx(expected[: ba.n_iter_].tolist())
    # at one μ, the Z step and the f step have E_Q fall; only the h step may raise it, and a little
    assert ba.history_[2].E_Q < 1.01 * ba.history_[0].E_Q


def test_max_iter_counts_iterations_not_penalties(digits):
    with pytest.warns(ConvergenceWarning, match="the fit ended at"):
        ba = BinaryAutoencoder(4, steps_per_mu=3, max_iter=5, validation=None, random_state=0).fit(digits)
    assert schedule(ba) == pytest.approx([0.01] * 3 + [0.014] * 2)


def test_a_schedule_that_ends_with_mismatches_warns_only_without_validation(digits):
    options = {"mu_schedule": [1e-4, 1e-3], "random_state": 0}
    with pytest.warns(ConvergenceWarning, match=r"ended at mu=0\.001, with \d+ bits of Z that differ"):
        unfinished = BinaryAutoencoder(8, validation=None, **options).fit(digits)
    assert unfinished.history_[-1].mismatched > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BinaryAutoencoder(8, **options).fit(digits)


def test_validation_keeps_the_most_precise_model_and_ends_after_patience(digits):
    queries = load_digits().data[400:500]
    models = []
    for patience in (1, 2):
        ba = BinaryAutoencoder(
            8, mu_factor=2, C=100, validation=queries, patience=patience, max_iter=30, random_state=0
        ).fit(digits)
        precision = [record.precision for record in ba.history_]
        kept = [record.kept for record in ba.history_]
        running = np.maximum.accumulate([-1.0, *precision[:-1]])
        assert kept == [p > best for p, best in zip(precision, running, strict=True)]
        assert max(precision) >= precision[0]
        if ba.history_[-1].mismatched:
            assert not any(kept[-patience:])
        models.append(ba)
    assert models[1].n_iter_ >= models[0].n_iter_
    # the model returned is the one of the best record
    best = int(np.argmax([record.precision for record in models[1].history_]))
    stopped = [record.mu for record in models[1].history_][: best + 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        same = BinaryAutoencoder(
            8, mu_schedule=stopped, C=100, validation=queries, patience=99, random_state=0
        )
        same.fit(digits)
    assert same.encoder_.weights.tobytes() == models[1].encoder_.weights.tobytes()


def test_the_same_seed_gives_the_same_model_for_any_number_of_jobs(digits):
    X = np.vstack([digits] * 11)  # more than one block of rows
    X = X + np.random.default_rng(0).normal(size=X.shape)
    models = [BinaryAutoencoder(8, max_iter=4, random_state=1, n_jobs=n).fit(X) for n in (1, 2)]
    assert models[0].encoder_.weights.tobytes() == models[1].encoder_.weights.tobytes()
    assert models[0].decoder_.A.tobytes() == models[1].decoder_.A.tobytes()
    assert isinstance(models[0].encoder_, LinearEncoder)


def test_factor_analysis_keeps_its_penalty_and_ends_with_classifiers_for_its_codes(digits):
    bfa = BinaryFactorAnalysis(8, random_state=0).fit(digits)
    assert set(schedule(bfa)) == {1e-4}
    energies = [record.E_Q for record in bfa.history_]
    assert energies[-1] < energies[0]
    assert 1 < bfa.n_iter_ < 50
    ba = BinaryAutoencoder(8, init="tpca", validation=None, random_state=0).fit(digits)
    # with free codes the error is lower than with those of any h that we find
    assert energies[-1] < ba.history_[-1].E_Q
    assert energies[-1] < -bfa.score(digits) * len(digits)


def test_factor_analysis_is_not_ended_by_the_rounding_of_one_long_row(digits):
    rows = digits.copy()
    rows[7] *= 1e6
    bfa = BinaryFactorAnalysis(8, random_state=0, max_iter=8).fit(rows)
    energies = [record.E_Q for record in bfa.history_]
    assert len(energies) == 8
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] > 0.1 * np.square(digits - digits.mean(axis=0)).sum()
    assert energies[-1] < energies[0] < np.square(digits - digits.mean(axis=0)).sum()
    assert all(record.E_BA >= record.E_Q for record in bfa.history_)


def test_what_a_penalty_did_is_undone_if_the_encoder_that_follows_does_not_help():
    class Undone(Script):
        def keep(self):
            self.calls.append(("keep", None))
            return len(self.calls)

        def go_back(self, kept):
            self.calls.append(("back", kept))
            return "good"

        def forget(self, kept):
            self.calls.append(("forget", kept))

    data = Undone()
    list(alternate(data, [1.0, 2.0, 3.0], helps={"h2": False, "h3": True}.__getitem__))
    assert data.calls == [
        ("h", None), ("keep", None), ("f", None), ("z", ("h1", "f", 1.0)),
        ("h", "h1"), ("back", 2), ("f", None), ("z", ("good", "f", 2.0)),
        ("h", "good"), ("forget", 2), ("keep", None), ("f", None), ("z", ("h3", "f", 3.0)),
    ]  # fmt: skip
