"""Drift: what is measured equals what ten lines of NumPy say, and only what differs is due."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import ITQ, LSH
from auxbit.core.maps import pack, unpack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import code_counts, effective_bits
from auxbit.hashers import drift
from auxbit.hashers.base import TrainingRecord
from auxbit.hashers.drift import compare, expected_effective_bits, expected_growth

N_BITS = 12


def random_codes(n, n_bits=N_BITS, share=0.5, seed=0):
    return pack(np.random.default_rng(seed).random((n, n_bits)) < share)


def record(codes, error=10.0, variation=0.3, n_rows=1_000_000):
    return TrainingRecord(codes, n_rows, error, variation, 13)


def by_name(found):
    return {m.name: m for m in found.measures}


@st.composite
def sides(draw):
    """Bits of a code, a record and codes that were added; few distinct codes, so that some are equal."""
    n_bits = draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = []
    for _ in range(2):
        n, share = draw(st.integers(1, 400)), draw(st.floats(0, 1))
        some = pack(rng.random((draw(st.integers(1, 40)), n_bits)) < share)
        made.append(some[rng.integers(0, len(some), n)])
    n_rows = len(made[0]) + draw(st.integers(0, 10_000))
    error, variation = draw(st.floats(0, 1e6)), draw(st.floats(0, 3))
    return n_bits, TrainingRecord(made[0], n_rows, error, variation, n_bits + 1), made[1]


# ---- what is measured


def test_bit_means_tell_how_often_each_bit_is_set():
    codes = random_codes(9000, share=0.3)
    assert np.array_equal(drift._bit_means(codes, N_BITS), unpack(codes, N_BITS).mean(axis=0))


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), share=st.floats(0, 1))
def test_expected_effective_bits_are_the_mean_over_all_subsets(counts, share):
    rows = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)[:, None]
    n = max(1, round(share * min(len(rows), 8)))
    rows = rows[:8]
    every = [effective_bits(rows[list(chosen)]) for chosen in combinations(range(len(rows)), n)]
    assert expected_effective_bits(code_counts(rows), n) == pytest.approx(np.mean(every), abs=1e-12)


def test_expected_effective_bits_are_the_mean_over_many_draws_of_many_rows():
    rng = np.random.default_rng(0)
    codes = (rng.normal(size=(20_000, 1)) * 40 + 128).clip(0, 255).astype(np.uint8)
    draws = [effective_bits(codes[rng.choice(20_000, 500, replace=False)]) for _ in range(200)]
    assert expected_effective_bits(code_counts(codes), 500) == pytest.approx(np.mean(draws), abs=0.02)


@given(sides())
def test_of_all_rows_expected_effective_bits_are_the_effective_bits(made):
    _, _, codes = made
    assert expected_effective_bits(code_counts(codes), len(codes)) == pytest.approx(
        effective_bits(codes), abs=1e-9
    )


@given(sides(), st.floats(1e-3, 1e6))
def test_the_measures_are_what_a_few_lines_say(made, added_error):
    n_bits, trained, added = made
    found = by_name(compare(trained, added, n_bits, added_error))
    before, after = (unpack(codes, n_bits).mean(axis=0) for codes in (trained.codes, added))
    shift, n = np.abs(before - after), min(len(trained.codes), len(added))
    assert found["mean bit shift"].change == pytest.approx(shift.mean(), abs=1e-12)
    assert found["largest bit shift"].change == pytest.approx(shift.max(), abs=1e-12)
    changed = found["effective bits"]
    assert changed.change == pytest.approx(changed.trained - changed.added, abs=1e-12)
    assert changed.trained <= np.log2(n) + 1e-9
    error = found["reconstruction error"]
    assert (error.trained, error.added) == (trained.error, added_error)
    if trained.error > 1e-3:
        assert error.change == pytest.approx(added_error / trained.error)
    for m in found.values():
        assert m.exceeded == (m.limit is not None and m.change > m.limit)


def test_limits_of_shifts_are_exceeded_by_their_noise_as_rarely_as_they_say(monkeypatch):
    monkeypatch.setattr(drift, "MEAN_SHIFT_TOLERANCE", 0.0)
    monkeypatch.setattr(drift, "LARGEST_SHIFT_TOLERANCE", 0.0)
    monkeypatch.setattr(drift, "SIGMAS", 1.2816)  # which 10 % of normal numbers exceed
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, N_BITS))  # bits that go together
    exceeded = {"mean bit shift": 0, "largest bit shift": 0}
    for _ in range(400):
        trained, added = (pack(rng.normal(size=(n, 6)) @ mixing > 0.5) for n in (1000, 400))
        found = by_name(compare(record(trained), added, N_BITS))
        for name in exceeded:
            exceeded[name] += found[name].exceeded
    assert 20 <= exceeded["mean bit shift"] <= 64
    assert 10 <= exceeded["largest bit shift"] <= 80  # of |shift|, and a bound over bits that go together


def test_the_noise_of_the_error_is_that_of_its_mean():
    trained, added = record(random_codes(1000), variation=0.5), random_codes(400, seed=1)
    limit = by_name(compare(trained, added, N_BITS, 10.0))["reconstruction error"].limit
    noise = drift.SIGMAS * 0.5 * np.sqrt(1 / 1000 + 1 / 400)
    growth = expected_growth(trained, N_BITS)
    assert growth == pytest.approx(1, abs=1e-3)
    assert limit == pytest.approx(growth * (1 + drift.ERROR_TOLERANCE + noise))


@pytest.mark.parametrize(("n_train", "n_bits"), [(300, 16), (300, 32), (1000, 32)])
def test_the_error_of_a_model_of_few_rows_grows_on_new_rows_as_expected(n_train, n_bits, monkeypatch):
    monkeypatch.setattr(drift, "VECTORS_PER_BIT", 0)  # LSH learns no codes
    rng = np.random.default_rng(0)
    ratios, expected = [], []
    for seed in range(6):
        X = rng.normal(size=(n_train + 5000, 24))
        model = LSH(n_bits, random_state=seed, n_jobs=1).fit(X[:n_train])
        ratios.append(-model.score(X[n_train:]) / model.training_.error)
        expected.append(expected_growth(model.training_, n_bits))
    assert np.mean(ratios) - 1 == pytest.approx(np.mean(expected) - 1, rel=0.25)


# ---- when it is due


@given(sides(), st.randoms())
def test_the_order_of_the_rows_changes_nothing(made, random):
    n_bits, trained, added = made
    mixed = [codes[random.sample(range(len(codes)), len(codes))] for codes in (trained.codes, added)]
    again = TrainingRecord(mixed[0], trained.n_rows, trained.error, trained.variation, trained.n_vectors)
    assert compare(again, mixed[1], n_bits, 2.0) == compare(trained, added, n_bits, 2.0)


@given(sides())
def test_what_was_trained_on_is_never_due(made):
    n_bits, trained, _ = made
    found = compare(trained, trained.codes, n_bits, trained.error)
    assert not found.due
    assert not any(m.exceeded for m in found.measures)
    assert [m.change for m in found.measures[1:3]] == [0, 0]


@pytest.mark.parametrize("n_added", [200, 1000, 20_000])
@pytest.mark.parametrize("seed", range(5))
def test_other_rows_of_the_same_kind_are_not_due(n_added, seed):
    X = np.random.default_rng(seed).normal(size=(2000 + n_added, 16)) * np.linspace(3, 1, 16)
    model = ITQ(16, random_state=seed, n_jobs=1).fit(X[:2000])
    added = X[2000:]
    found = compare(model.training_, model.encode(added), 16, -model.score(added))
    assert found.enough
    assert (found.due, found.reasons, found.n_added) == (False, [], n_added)


@pytest.fixture(scope="module")
def fitted(digits):
    """A model of the first half of digits' rows, and the others."""
    X = digits[np.random.default_rng(0).permutation(len(digits))]
    return ITQ(16, random_state=0, n_jobs=1).fit(X[:900]), X[900:]


def test_rows_of_other_places_are_due_and_the_reasons_are_sentences(fitted):
    model, rest = fitted
    added = rest[:, ::-1] * 1.5
    found = compare(model.training_, model.encode(added), 16, -model.score(added))
    assert found.due
    assert found.enough
    error, mean, largest = found.reasons[:3]
    ratio = -model.score(added) / model.training_.error
    assert error.startswith(f"the error of what was added is {ratio:.2f} times that of what was trained on (")
    assert mean.startswith("the share of ones of a bit shifted by 0.")
    assert largest.startswith("a bit that was 1 in ")
    assert not compare(model.training_, model.encode(rest), 16, -model.score(rest)).due


def test_without_an_error_only_codes_are_compared(fitted):
    model, rest = fitted
    found = compare(model.training_, model.encode(rest), 16)
    assert [m.name for m in found.measures] == ["mean bit shift", "largest bit shift", "effective bits"]
    assert compare(model.training_, model.encode(rest[:, ::-1]), 16).due


def test_a_higher_error_alone_is_due_and_a_lower_one_is_not():
    codes = random_codes(1000)
    higher, lower = (compare(record(codes), codes, N_BITS, error) for error in (13.1, 5.0))
    assert higher.due
    assert higher.reasons == [
        "the error of what was added is 1.31 times that of what was trained on (limit 1.15)"
    ]
    assert not lower.due


def test_one_bit_that_turned_is_due():
    codes = random_codes(1000)
    bits = unpack(codes, N_BITS)
    bits[:, 3] = 0
    found = compare(record(codes), pack(bits), N_BITS)
    assert by_name(found)["largest bit shift"].exceeded
    assert not by_name(found)["mean bit shift"].exceeded
    (reason,) = found.reasons
    share = unpack(codes, N_BITS)[:, 3].mean()
    assert reason.startswith(f"a bit that was 1 in {share:.0%} of what was trained on is 1 in 0% of what was")


def test_codes_that_fall_together_are_due_though_their_bits_are_balanced():
    codes = random_codes(1000)
    two = np.concatenate([codes[:1], ~codes[:1] & pack(np.ones((1, N_BITS)))])
    found = compare(record(codes), np.repeat(two, 500, axis=0), N_BITS)
    assert by_name(found)["effective bits"].exceeded
    assert found.reasons == [r for r in found.reasons if r.startswith("the effective bits fell from 9.")]


# ---- too few rows, and what is no input


@pytest.mark.parametrize("n_added", [0, 1, 199])
def test_too_few_rows_are_never_due_and_say_so(n_added):
    found = compare(record(random_codes(1000)), np.zeros((n_added, 2), np.uint8), N_BITS, 99.0)
    assert (found.due, found.enough) == (False, False)
    assert found.reasons == [f"{n_added} rows that were added are too few to tell: 200 are needed"]
    assert len(found.measures) == (4 if n_added else 0)


def test_a_model_of_too_few_rows_is_never_due_and_says_so():
    found = compare(record(random_codes(50), n_rows=50), np.zeros((500, 2), np.uint8), N_BITS, 99.0)
    assert (found.due, found.enough) == (False, False)
    assert found.reasons == ["50 rows that were trained on are too few to tell: 200 are needed"]


def test_the_error_of_a_model_that_fits_its_rows_too_closely_is_shown_but_not_judged():
    close = TrainingRecord(random_codes(1000), 1000, 1.0, 0.2, 513, "optimal")
    found = compare(close, random_codes(1000, seed=1), N_BITS, 50.0)
    error = by_name(found)["reconstruction error"]
    assert (error.change, error.limit, error.exceeded) == (50.0, None, False)
    assert not found.due


@pytest.mark.parametrize(
    ("trained", "added", "ratio"), [(0.0, 0.0, 1.0), (0.0, 1.0, 1e300), (1e-300, 1e300, 1e300)]
)
def test_ratios_of_errors_are_finite(trained, added, ratio):
    codes = random_codes(300)
    found = compare(record(codes, trained), codes, N_BITS, added)
    assert by_name(found)["reconstruction error"].change == ratio
    assert found.due == (ratio > 1)


@given(sides())
def test_what_is_found_is_json(made):
    n_bits, trained, added = made
    json.dumps(asdict(compare(trained, added, n_bits, 1.0)), allow_nan=False)


def test_codes_of_other_widths_are_refused():
    codes = random_codes(300)
    with pytest.raises(InvalidInput, match="added_codes must be packed codes of 12 bits"):
        compare(record(codes), random_codes(300, 20), N_BITS)
    with pytest.raises(InvalidInput, match="the record's codes must be packed codes of 20 bits"):
        compare(record(codes), random_codes(300, 20), 20)
    with pytest.raises(InvalidInput, match="the training record has no codes"):
        compare(replace(record(codes), codes=codes[:0]), codes, N_BITS)


@pytest.mark.parametrize("error", [-1.0, float("nan"), float("inf"), "much", True])
def test_an_error_is_a_number_of_at_least_0(error):
    codes = random_codes(300)
    with pytest.raises(InvalidParameter, match=r"added_error=.* is invalid"):
        compare(record(codes), codes, N_BITS, error)
