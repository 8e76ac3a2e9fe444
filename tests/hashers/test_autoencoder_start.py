"""Where BinaryAutoencoder and BinaryFactorAnalysis start: named starts, hashers, codes, and seeds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from auxbit import ITQ, LSH, AnchorGraphHashing, BinaryAutoencoder, SpectralHashing, ThresholdedPCA
from auxbit.core.maps import pack
from auxbit.errors import InvalidInput
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.hashers import autoencoder
from auxbit.hashers.autoencoder import STARTS
from helpers import autoencoder_models
from helpers.autoencoder_models import both_models, error_of, short

some = autoencoder_models.some


# ---- where the codes start


@both_models
@pytest.mark.parametrize("init", STARTS)
def test_every_named_start_ends_better_than_the_mean_of_all_rows(model_class, init, some):
    model = short(model_class, init=init).fit(some)
    assert error_of(model, some) < 0.9 * ((some - some.mean(axis=0)) ** 2).sum()


def precision_of(hasher, base, queries):
    """As validation measures it."""
    K = max(10, len(base) // 100)
    truth = ground_truth(base, queries, K)
    ranking = hamming_ranking(hasher.encode(base), hasher.encode(queries), truth, hasher.n_bits)
    return precision_recall_at_k(ranking, K, ties="average").precision


LINEAR = [LSH(8, random_state=5), ITQ(8, random_state=5), ThresholdedPCA(8)]


@pytest.mark.parametrize("hasher", LINEAR, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("fitted_to", [50, 400])
def test_a_linear_hasher_is_the_first_hash_function(hasher, fitted_to, some):
    hasher = clone(hasher).fit(some[:fitted_to])  # scaled by other rows than the model's
    queries = load_digits().data[1000:1100]
    model = short(BinaryAutoencoder, init=hasher, validation=queries).fit(some)
    assert model.history_[0].precision == pytest.approx(precision_of(hasher, some, queries), abs=1e-9)


def test_a_fit_from_a_fitted_model_never_ends_below_it(some):
    queries = load_digits().data[1000:1100]
    for n_bits, seed, rows in product((8, 16, 32), (0, 1), (some, some / 7 + 3, some[:150])):
        first = BinaryAutoencoder(n_bits, random_state=seed).fit(rows)
        second = BinaryAutoencoder(n_bits, init=first, random_state=seed, validation=queries).fit(rows)
        before, after = (precision_of(model, rows, queries) for model in (first, second))
        assert after >= before - 1e-9, (n_bits, seed)


@pytest.mark.parametrize("init", ["itq", "agh", "tpca", "bfa", "lsh", "random", "auto"])
@pytest.mark.filterwarnings("ignore:the method of init")  # AGH, which is not linear
def test_no_start_ends_below_its_first_hash_function(init, some):
    queries = load_digits().data[1000:1100]
    model = BinaryAutoencoder(8, init=init, validation=queries, random_state=0).fit(some)
    assert precision_of(model, some, queries) >= model.history_[0].precision - 1e-9


def test_a_start_whose_own_hash_function_is_better_than_any_linear_one_is_named():
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 600)
    rings = np.c_[np.cos(angle), np.sin(angle)] * np.repeat([1.0, 2.0, 3.0], 200)[:, None]

    agh = AnchorGraphHashing(16, n_anchors=60, random_state=0).fit(rings)
    with pytest.warns(ConvergenceWarning, match="the method of init has a higher validation precision"):
        BinaryAutoencoder(16, init=agh, random_state=0, max_iter=1).fit(rings)


def test_itq_as_a_start_is_rotated_with_momentum(some, monkeypatch):
    codes = [short(BinaryAutoencoder).fit(some).encode(some)]
    assert autoencoder.ITQ_MOMENTUM == 1.0
    monkeypatch.setattr(autoencoder, "ITQ_MOMENTUM", 0.0)
    codes.append(short(BinaryAutoencoder).fit(some).encode(some))
    assert not np.array_equal(*codes)


@both_models
def test_a_hasher_that_is_not_linear_starts_with_its_own_codes(model_class, some):
    hasher = SpectralHashing(8).fit(some[:50])
    by_hasher = short(model_class, init=hasher).fit(some)
    by_codes = short(model_class, init=hasher.transform(some)).fit(some)
    assert np.array_equal(by_hasher.encode(some), by_codes.encode(some))
    assert np.array_equal(by_hasher.decoder_.A, by_codes.decoder_.A)


@both_models
def test_an_unfitted_hasher_is_fitted_to_the_rows_and_stays_unfitted(model_class, some):
    hasher = LSH(8, random_state=5)
    by_hasher = short(model_class, init=hasher).fit(some)
    by_fitted = short(model_class, init=LSH(8, random_state=5).fit(some)).fit(some)
    assert np.array_equal(by_hasher.encode(some), by_fitted.encode(some))
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
        (np.ma.masked_array(np.zeros((400, 8), np.uint8), mask=True), "init has masked numbers, 3,200 of"),
        (np.zeros((400, 1), np.int64) + 200, r"got shape \(400, 1\) with values 200 to 200"),
        (LSH(9), "init has 9 bits, but n_bits=8"),
        ("pca", "init='pca' is invalid: expected one of itq, agh, tpca, bfa, lsh, random, auto, a hasher"),
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
    with pytest.raises(InvalidInput, match="init was fitted to 10 columns, but X has 64"):
        short(BinaryAutoencoder, init=LSH(8).fit(some[:, :10])).fit(some)


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
