"""BinaryAutoencoder and BinaryFactorAnalysis: starts, validation, history, and the figures to reach."""

from __future__ import annotations

import logging
from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from auxbit import ITQ, LSH, BinaryAutoencoder, BinaryFactorAnalysis, ThresholdedPCA
from auxbit.blocks import Workers
from auxbit.codes import pack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.mac.shards import Rows
from auxbit.mac.validation import Validation, choose_queries
from auxbit.starts import NAMES

MODELS = [BinaryAutoencoder, BinaryFactorAnalysis]
both_models = pytest.mark.parametrize("model_class", MODELS, ids=lambda cls: cls.__name__)


@pytest.fixture(scope="module")
def digits():
    """All 1797 digits, divided by 16."""
    return load_digits().data / 16


@pytest.fixture(scope="module")
def some(digits):
    """400 of the digits."""
    return digits[:400]


def short(model_class, n_bits=8, **parameters):
    """A model of few iterations."""
    if model_class is BinaryAutoencoder:
        parameters = {"mu_factor": 3.0, "validation": None, **parameters}
    return model_class(n_bits, **{"random_state": 0, "max_iter": 12, **parameters})


def without_ties(X):
    """Digits are whole numbers, so that many are equally far; a little noise makes the neighbours certain."""
    return X + np.random.default_rng(0).normal(scale=0.01, size=X.shape)


def error_of(model, X):
    return -model.score(X) * len(X)


def precision_on(model, base, queries, k):
    """Tie-averaged precision by the public functions."""
    truth = ground_truth(base, queries, k)
    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, n_bits=model.n_bits)
    return precision_recall_at_k(ranking, k, ties="average").precision


# ---- where the codes start


@both_models
@pytest.mark.parametrize("init", NAMES)
def test_every_named_start_ends_better_than_the_mean_of_all_rows(model_class, init, some):
    model = short(model_class, init=init).fit(some)
    assert error_of(model, some) < 0.9 * ((some - some.mean(axis=0)) ** 2).sum()


@both_models
def test_a_fitted_hasher_starts_with_its_own_codes(model_class, some):
    hasher = LSH(8, random_state=5).fit(some[:50])
    by_hasher = short(model_class, init=hasher).fit(some)
    by_codes = short(model_class, init=hasher.transform(some)).fit(some)
    assert np.array_equal(by_hasher.encode(some), by_codes.encode(some))
    assert np.array_equal(by_hasher.decoder_.A, by_codes.decoder_.A)


@both_models
def test_an_unfitted_hasher_is_fitted_to_the_rows_and_stays_unfitted(model_class, some):
    hasher = LSH(8, random_state=5)
    by_hasher = short(model_class, init=hasher).fit(some)
    by_codes = short(model_class, init=LSH(8, random_state=5).fit(some).transform(some)).fit(some)
    assert np.array_equal(by_hasher.encode(some), by_codes.encode(some))
    assert not hasattr(hasher, "encoder_")


@both_models
def test_an_unfitted_hasher_without_a_seed_gets_one_from_the_models(model_class, some):
    first, again = (short(model_class, init=LSH(8)).fit(some) for _ in range(2))
    assert np.array_equal(first.encode(some), again.encode(some))
    other = short(model_class, init=LSH(8), random_state=1).fit(some)
    assert not np.array_equal(first.encode(some), other.encode(some))


@both_models
@pytest.mark.parametrize("n_bits", [1, 5, 8, 11])
def test_codes_may_come_as_bits_of_any_type_or_packed(model_class, n_bits, some):
    bits = LSH(n_bits, random_state=5).fit(some).transform(some)
    forms = [bits, bits.astype(bool), bits.astype(np.int64), bits.tolist(), pack(bits)]
    codes = [short(model_class, n_bits, init=form).fit(some).encode(some) for form in forms]
    for other in codes[1:]:
        assert np.array_equal(codes[0], other)
    assert set(np.unique(bits)) <= {0, 1}


@both_models
def test_the_array_of_codes_that_was_passed_is_not_changed(model_class, some):
    bits = np.random.default_rng(0).integers(0, 2, (400, 8)).astype(np.uint8)
    before = bits.copy()
    short(model_class, init=bits).fit(some)
    assert np.array_equal(bits, before)


@pytest.mark.parametrize("validation", [None, "auto"])
@pytest.mark.parametrize(
    ("init", "problem"),
    [
        (
            np.zeros((400, 7), np.uint8),
            r"an \(n, 8\) array of 0 and 1 .*got shape \(400, 7\) with values 0 to 0",
        ),
        (np.full((400, 8), 2), r"got shape \(400, 8\) with values 2 to 2"),
        (np.zeros((399, 8), np.uint8), r"with n=400, got shape \(399, 8\)"),
        (np.zeros((360, 8), np.uint8), r"with n=400, got shape \(360, 8\)"),
        (np.zeros((400, 8)), "of float64"),
        (np.zeros(400, np.uint8), r"got shape \(400,\)"),
        (np.zeros((400, 1), np.int64) + 200, r"got shape \(400, 1\) with values 200 to 200"),
        (None, r"got shape \(\) of object"),
        (LSH(9), "init has 9 bits, but n_bits=8"),
        ("pca", "init='pca' is invalid: expected one of itq, agh, tpca, lsh, random, a hasher"),
        ("ITQ", "init='ITQ' is invalid"),
    ],
)
def test_a_start_that_is_none_is_refused(init, problem, validation, some):
    with pytest.raises(InvalidInput, match=problem):
        short(BinaryAutoencoder, init=init, validation=validation).fit(some)


def test_packed_codes_of_more_bits_are_no_start(some):
    with pytest.raises(InvalidInput, match="bits set beyond the first 5"):
        short(BinaryAutoencoder, 5, init=np.full((400, 1), 255, np.uint8)).fit(some)


def test_a_hasher_fitted_to_other_dimensions_is_no_start(some):
    with pytest.raises(InvalidInput, match="64 features, but LSH is expecting 10 features"):
        short(BinaryAutoencoder, init=LSH(8).fit(some[:, :10])).fit(some)


# ---- validation


@pytest.mark.parametrize("n_bits", [8, 20])
def test_the_model_returned_has_the_best_precision_of_the_history_on_the_queries(n_bits, digits):
    base, queries = np.split(without_ties(digits), [1500])
    model = BinaryAutoencoder(n_bits, validation=queries, random_state=0).fit(base)
    precisions = [record.precision for record in model.history_]
    assert len(set(precisions)) > 2
    assert max(precisions) >= precisions[0]
    assert precision_on(model, base, queries, k=15) == pytest.approx(max(precisions), abs=1e-9)
    best = -1.0
    for record in model.history_:
        assert record.kept == (record.precision > best)
        best = max(best, record.precision)


def test_held_out_queries_are_a_tenth_of_the_rows_and_the_rest_is_the_database(digits):
    X = without_ties(digits)
    model = BinaryAutoencoder(8, random_state=3).fit(X)
    held_out = choose_queries(len(X), np.random.RandomState(3))
    assert len(held_out) == len(X) // 10
    base = np.delete(X, held_out, axis=0)
    best = max(record.precision for record in model.history_)
    assert precision_on(model, base, X[held_out], k=len(base) // 100) == pytest.approx(best, abs=1e-9)


def test_at_most_a_thousand_queries_are_held_out_and_none_of_few_rows():
    rng = np.random.RandomState(0)
    assert len(choose_queries(50_000, rng)) == 1000
    assert len(choose_queries(100, rng)) == 10
    assert choose_queries(99, rng) is None


def test_held_out_queries_are_not_trained_on(some):
    held_out = choose_queries(len(some), np.random.RandomState(0))
    scrambled = some.copy()  # column by column, so that the mean and the range stay as they were
    scrambled[held_out] = np.random.default_rng(0).permuted(some[held_out], axis=0)
    first, second = (
        short(BinaryAutoencoder, validation="auto", patience=12).fit(X) for X in (some, scrambled)
    )
    assert [record.precision for record in first.history_] != [record.precision for record in second.history_]
    for one, other in zip(first.history_, second.history_, strict=False):
        assert pytest.approx(other.E_BA, rel=1e-9) == one.E_BA
        assert (one.changed, one.mismatched) == (other.changed, other.mismatched)
    trained_on_all = short(BinaryAutoencoder, validation=some[:20]).fit(some)
    assert trained_on_all.history_[0].E_BA > 1.05 * first.history_[0].E_BA


def test_codes_given_as_a_start_are_cut_to_the_rows_that_are_trained_on(some):
    bits = LSH(8, random_state=5).fit(some).transform(some)
    held_out = choose_queries(len(some), np.random.RandomState(0))
    rest = np.setdiff1d(np.arange(len(some)), held_out)
    model = short(BinaryAutoencoder, init=bits, validation="auto", max_iter=1).fit(some)
    assert (
        pytest.approx(
            ((some[rest] - decoded(some[rest], bits[rest], model.transform(some[rest]))) ** 2).sum(), rel=1e-5
        )
        == model.history_[0].E_BA
    )


def test_fewer_than_100_rows_are_all_trained_on(digits):
    model = BinaryAutoencoder(4, random_state=0).fit(digits[:99])
    assert all(record.precision is None for record in model.history_)
    assert BinaryAutoencoder(4, random_state=0).fit(digits[:100]).history_[0].precision is not None


def test_patience_ends_the_fit_after_so_many_penalties_without_gain(digits):
    counts = {}
    for patience in (1, 2, 30):
        model = BinaryAutoencoder(8, patience=patience, random_state=0).fit(digits)
        kept = [record.iteration for record in model.history_ if record.kept]
        counts[patience] = len(model.history_)
        if model.history_[-1].mismatched:
            assert len(model.history_) == kept[-1] + patience
    assert counts[1] < counts[2] < counts[30]


@pytest.mark.parametrize(
    "validation",
    [
        np.zeros((5, 63)),
        np.zeros((0, 64)),
        np.zeros(64),
        np.full((5, 64), "a"),
        np.full((5, 64), None),
        5,
        True,
    ],
)
def test_validation_queries_must_be_rows_like_the_training_rows(validation, some):
    with pytest.raises(InvalidInput, match=r"validation must be 'auto', None, or query rows \(q, 64\)"):
        short(BinaryAutoencoder, validation=validation).fit(some)


def test_a_nan_among_the_validation_queries_is_named(some):
    queries = some[:9].copy()
    queries[4, 7] = np.nan
    with pytest.raises(InvalidInput, match="validation contains NaN at row 4, column 7"):
        short(BinaryAutoencoder, validation=queries).fit(some)


# ---- the history


def decoded(X, Z, new):
    """f(new) for the least-squares decoder f of the codes Z of X."""
    design = np.hstack([Z, np.ones((len(Z), 1))])
    return np.hstack([new, np.ones((len(new), 1))]) @ np.linalg.lstsq(design, X, rcond=None)[0]


@pytest.mark.parametrize("unit", [1.0, 16.0, 1000.0])
@pytest.mark.parametrize("z_solver", ["exact", "enumerate", "alternating"])
def test_the_energies_of_a_record_are_those_of_its_step_in_the_units_of_the_rows(unit, z_solver, some):
    X = some * unit + 3
    bits = LSH(8, random_state=5).fit(X).transform(X)
    bits ^= np.random.default_rng(0).random(bits.shape) < 0.1  # so that no linear h has these codes
    with pytest.warns(ConvergenceWarning, match="bits of Z unlike"):
        model = short(BinaryAutoencoder, init=bits, z_solver=z_solver, max_iter=1).fit(X)
    (record,) = model.history_
    H = model.transform(X)
    assert pytest.approx(((X - decoded(X, bits, H)) ** 2).sum(), rel=1e-5) == record.E_BA
    assert record.E_Q < record.E_BA  # Z = h(X) is one of the codes that the Z step may choose
    assert record.changed > 0
    assert record.mismatched > 0
    assert record.precision is None
    assert error_of(model, X) < record.E_BA  # the decoder refitted to h(X)


@both_models
def test_energies_have_the_units_of_the_rows_and_the_bits_none(model_class, some):
    model, large = (short(model_class).fit(X) for X in (some, 1000 * some + 7))
    assert np.array_equal(model.encode(some), large.encode(1000 * some + 7))
    for one, other in zip(model.history_, large.history_, strict=True):
        assert pytest.approx(1e6 * one.E_Q, rel=1e-6) == other.E_Q
        assert pytest.approx(1e6 * one.E_BA, rel=1e-6) == other.E_BA


def test_the_fit_ends_when_the_codes_are_those_of_the_hash_function(some):
    model = BinaryAutoencoder(8, validation=None, random_state=0).fit(some)
    *before, last = model.history_
    assert last.mismatched == 0
    assert pytest.approx(last.E_BA, rel=1e-9) == last.E_Q
    assert all(record.mismatched > 0 for record in before)
    assert model.n_iter_ == len(model.history_) < 50
    assert [record.iteration for record in model.history_] == list(range(1, model.n_iter_ + 1))
    assert error_of(model, some) <= last.E_BA * (1 + 1e-6)


def test_the_penalty_follows_the_schedule(some):
    def penalties(**parameters):
        return [
            record.mu
            for record in short(BinaryAutoencoder, validation=some[:50], **parameters).fit(some).history_
        ]

    many = {"patience": 50}
    np.testing.assert_allclose(penalties(mu0=0.02, mu_factor=2, max_iter=3, **many), [0.02, 0.04, 0.08])
    assert penalties(mu_schedule=[0.1, 0.3], **many) == [0.1, 0.3]
    assert penalties(mu_schedule=np.array([0.1, 0.3, 0.4]), max_iter=2, **many) == [0.1, 0.3]
    np.testing.assert_allclose(penalties(steps_per_mu=2, max_iter=3, **many), [0.01, 0.01, 0.03])


def test_a_schedule_that_ends_too_early_is_warned_of_where_the_user_called_fit(some):
    with pytest.warns(ConvergenceWarning, match=r"ended at mu=0.02 .*Raise max_iter or mu_factor") as caught:
        model = BinaryAutoencoder(8, mu_schedule=[0.01, 0.02], validation=None, random_state=0).fit(some)
    assert caught[0].filename == __file__
    assert model.n_iter_ == 2


@both_models
def test_the_callback_gets_each_record_as_it_is_made(model_class, some):
    seen = []
    model = short(model_class, callback=seen.append).fit(some)
    assert seen == model.history_
    assert len(seen) > 1


@both_models
def test_an_error_in_the_callback_ends_the_fit_and_is_not_hidden(model_class, some):
    def stop(record):
        raise KeyboardInterrupt("enough")

    model = short(model_class, callback=stop)
    with pytest.raises(KeyboardInterrupt, match="enough"):
        model.fit(some)
    assert not hasattr(model, "encoder_")


@both_models
def test_verbose_logs_a_line_for_each_iteration_and_silence_is_the_default(model_class, some, caplog):
    with caplog.at_level(logging.INFO, logger="auxbit"):
        quiet = short(model_class).fit(some)
        assert not caplog.records
        model = short(model_class, verbose=1).fit(some)
    assert len(caplog.messages) == model.n_iter_ == quiet.n_iter_
    assert all("E_Q" in message and "mismatched" in message for message in caplog.messages)


def test_the_log_has_the_precision_where_there_are_queries(some, caplog):
    with caplog.at_level(logging.INFO, logger="auxbit"):
        model = short(BinaryAutoencoder, verbose=1, validation="auto").fit(some)
    assert f"precision {model.history_[0].precision:.4f}" in caplog.messages[0]


@both_models
def test_at_most_max_iter_iterations_are_made(model_class, some):
    model = short(
        model_class, max_iter=2, **({"validation": "auto"} if model_class is BinaryAutoencoder else {})
    )
    assert model.fit(some).n_iter_ == 2


@both_models
def test_normalized_rows_make_codes_that_do_not_see_the_length_of_a_row(model_class, some):
    model = short(model_class, normalize=True).fit(some)
    lengths = np.random.default_rng(0).uniform(0.1, 50, size=(400, 1))
    assert np.array_equal(model.encode(some * lengths), model.encode(some))
    assert model.score(some * lengths) == pytest.approx(model.score(some), rel=1e-5)
    plain = short(model_class).fit(some)
    assert not np.array_equal(plain.encode(some * lengths), plain.encode(some))
    unit = some / np.linalg.norm(some, axis=1, keepdims=True)
    assert np.array_equal(short(model_class).fit(unit).encode(unit), model.encode(some))


def test_a_row_of_zeros_can_be_normalized(some):
    X = some.copy()
    X[3] = 0
    assert np.isfinite(short(BinaryAutoencoder, normalize=True).fit(X).score(X))


# ---- seeds


@both_models
def test_a_seed_and_a_generator_of_that_seed_give_the_same_model(model_class, some):
    by_seed = short(model_class, init="random", random_state=7).fit(some)
    by_generator = short(model_class, init="random", random_state=np.random.RandomState(7)).fit(some)
    assert np.array_equal(by_seed.encode(some), by_generator.encode(some))
    other = short(model_class, init="random", random_state=8).fit(some)
    assert not np.array_equal(by_seed.encode(some), other.encode(some))


def test_a_generator_is_used_up_so_that_a_second_fit_differs(some):
    model = short(BinaryAutoencoder, init="random", random_state=np.random.RandomState(7))
    assert not np.array_equal(model.fit(some).encode(some), model.fit(some).encode(some))


# ---- what the models reach


@pytest.mark.parametrize("n_bits", [8, 16, 32])
def test_the_penalised_energy_of_factor_analysis_falls_but_for_what_the_svms_add(n_bits, some):
    model = BinaryFactorAnalysis(n_bits, random_state=0).fit(some)
    energies = [record.E_Q for record in model.history_]
    assert len(energies) > 3
    assert energies[-1] < 0.9 * energies[0]
    # the f and Z steps never raise it; an SVM minimises slack, not errors, and may add a few of these
    assert all(b <= a * (1 + 1e-4) for a, b in pairwise(energies))


@pytest.mark.parametrize("tol", [0.05, 0.03, 0.02, 0.01, 0.005])
def test_factor_analysis_ends_when_its_energy_settles(tol, some):
    model = BinaryFactorAnalysis(8, tol=tol, random_state=0).fit(some)
    falls = [(a.E_Q - b.E_Q) / b.E_Q for a, b in pairwise(model.history_)]
    assert falls[-1] <= tol
    assert all(fall > tol for fall in falls[:-1])


def test_the_classifiers_of_factor_analysis_are_fitted_to_its_last_codes_to_the_end(some, monkeypatch):
    h_step, fitted = Rows.h_step, []

    def spied(self, h, **options):
        fitted.append((self.Z.copy(), options, h_step(self, h, **options)))
        return fitted[-1][-1]

    monkeypatch.setattr(Rows, "h_step", spied)
    model = BinaryFactorAnalysis(8, max_iter=3, random_state=0).fit(some)
    *_, (before, _, _), (codes, options, h) = fitted
    assert len(fitted) == model.n_iter_  # the first step took the start's own function, the last is one more
    assert options == {"exact": True}
    assert not np.array_equal(before, codes)
    assert np.array_equal(model.encoder_.weights, h.weights)
    assert (model.transform(some) == codes).mean() > 0.9


def test_free_codes_reconstruct_better_than_their_classifiers(some):
    model = BinaryFactorAnalysis(8, random_state=0).fit(some)
    assert error_of(model, some) > model.history_[-1].E_Q


@pytest.mark.parametrize(("n_bits", "authors"), [(8, 3954.0), (16, 2803.8), (32, 1711.7)])
def test_on_digits_the_autoencoder_reaches_the_authors_error_and_beats_itq(n_bits, authors, digits):
    errors, itq = [], []
    for seed in range(3):
        model = BinaryAutoencoder(n_bits, validation=None, random_state=seed).fit(digits)
        errors.append(error_of(model, digits))
        itq.append(error_of(ITQ(n_bits, random_state=seed).fit(digits), digits))
    assert np.mean(errors) <= authors
    assert max(errors) <= min(itq)


@pytest.mark.parametrize("n_bits", [8, 16])
def test_the_autoencoder_beats_the_hasher_that_it_starts_from(n_bits, digits):
    start = ThresholdedPCA(n_bits).fit(digits)
    model = BinaryAutoencoder(n_bits, init=start, validation=None, random_state=0).fit(digits)
    assert error_of(model, digits) < error_of(start, digits)


def test_on_sift_descriptors_the_autoencoder_reaches_the_authors_error(real_data):
    X = np.load(real_data / "siftsmall" / "learn.npy").astype(np.float32)
    X /= np.ptp(X, axis=0).max()
    model = BinaryAutoencoder(16, validation=None, random_state=0).fit(X)
    assert error_of(model, X) <= 43534.3


def test_parameters_of_the_papers_own_settings_are_accepted(some):
    model = BinaryAutoencoder(
        8, mu_factor=2, z_solver="enumerate", z_start="relaxed", validation=None, random_state=0
    ).fit(some)
    exact = BinaryAutoencoder(8, mu_factor=2, z_solver="exact", validation=None, random_state=0).fit(some)
    assert error_of(model, some) == pytest.approx(error_of(exact, some), rel=1e-3)


def test_a_wrong_step_option_is_refused_before_the_start_is_computed(some, monkeypatch):
    def slow(*arguments):
        raise AssertionError("the start was computed first")

    monkeypatch.setattr("auxbit.autoencoder.first_codes", slow)
    for model_class in MODELS:
        with pytest.raises(InvalidParameter, match="group_size=0 is invalid"):
            short(model_class, group_size=0).fit(some)
        with pytest.raises(InvalidParameter, match="C=0 is invalid"):
            short(model_class, C=0).fit(some)


@pytest.mark.parametrize(("n_rows", "k"), [(40, 10), (999, 10), (2500, 25), (10_000, 100), (30_000, 100)])
def test_validation_looks_at_one_per_cent_of_the_rows_between_10_and_100(n_rows, k):
    X = np.random.default_rng(0).normal(size=(n_rows, 2)).astype(np.float32)
    with Workers(1) as workers:
        assert Validation(X, X[:3], workers).k == k
