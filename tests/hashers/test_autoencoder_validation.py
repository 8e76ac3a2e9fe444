"""Validation of BinaryAutoencoder: the queries held out, the model that is kept, and patience."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import LSH, BinaryAutoencoder
from auxbit.errors import InvalidInput
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.mac.loop import choose_queries, neighbours_to_find
from helpers import autoencoder_models
from helpers.autoencoder_models import decoded, short

digits, some = autoencoder_models.digits, autoencoder_models.some


def without_ties(X):
    """Digits are whole numbers, so that many are equally far; a little noise makes the neighbours certain."""
    return X + np.random.default_rng(0).normal(scale=0.01, size=X.shape)


def precision_on(model, base, queries, k):
    """Tie-averaged precision by the public functions."""
    truth = ground_truth(base, queries, k)
    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, n_bits=model.n_bits)
    return precision_recall_at_k(ranking, k, ties="average").precision


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
        short(BinaryAutoencoder, validation="auto", patience=12, C=100).fit(X) for X in (some, scrambled)
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


def test_validation_queries_that_are_masked_or_too_large_are_refused_by_name(some):
    queries = some[:9].astype(np.float64)
    with pytest.raises(InvalidInput, match="validation has numbers that float32 cannot hold in the scale"):
        short(BinaryAutoencoder, validation=1e100 * queries).fit(some)
    with pytest.raises(InvalidInput, match="validation has masked numbers, 576 of"):
        short(BinaryAutoencoder, validation=np.ma.masked_array(queries, mask=True)).fit(some)


@pytest.mark.parametrize(("n_rows", "k"), [(40, 10), (999, 10), (2500, 25), (10_000, 100), (30_000, 100)])
def test_validation_looks_at_one_per_cent_of_the_rows_between_10_and_100(n_rows, k):
    assert neighbours_to_find(n_rows) == k
