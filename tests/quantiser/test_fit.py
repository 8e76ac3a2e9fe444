"""A decoder of tables: its least squares, its best codes, its place in hashers and model files."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits

import auxbit
from auxbit import ITQ, LSH, BinaryAutoencoder, ThresholdedPCA
from auxbit.core.decoders import TableDecoder
from auxbit.core.maps import LinearDecoder, pack, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter, ModelFileError
from auxbit.hashers.registry import read_header
from auxbit.quantiser import coder
from auxbit.quantiser.coder import coder_of, with_error_bits
from auxbit.quantiser.fit import (
    FEW,
    FreeTables,
    _Tables,
    alternate_codes,
    divided_axes,
    levels_of,
    principal_axes,
    product_start,
    table_step,
)


@pytest.fixture(scope="module")
def digits():
    """All 1797 digits, divided by 16."""
    return load_digits().data / 16


@pytest.fixture(scope="module")
def fitted(digits):
    """ThresholdedPCA of 24 bits with tables."""
    return ThresholdedPCA(24).fit(digits).fit_decoder(digits, "tables", n_iter=3)


def problem(n, D, n_bits, seed):
    """Rows, h(x) and tables, all at random; bytes share their values' vectors' mean, which is not 0."""
    rng = np.random.default_rng(seed)
    width = -(-n_bits // 8)
    T = (rng.normal(size=(width, 256, D)) + 0.5).astype(np.float32)
    X = (rng.normal(size=(n, D)) * np.sqrt(width) + width / 2).astype(np.float32)
    return X, pack(rng.integers(0, 2, size=(n, n_bits))), TableDecoder(T, rng.normal(size=D), n_bits)


def objectives(X, H, f, codes, mu):
    """‖x − f(z)‖² + μ‖z − h(x)‖² of each row, as it is written."""
    return np.square(X - f.decode(codes)).sum(axis=1) + mu * np.bitwise_count(codes ^ H).sum(axis=1)


def every_code(n_bits):
    """All codes of at most 16 bits, packed."""
    numbers = np.arange(2**n_bits, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(numbers[:, : -(-n_bits // 8)])


def one_hot(codes):
    """A row of 0 and 1 for each code, a 1 for the value of each byte, (n, M·256)."""
    n, width = codes.shape
    out = np.zeros((n, width, 256))
    for j in range(width):
        out[np.arange(n), j, codes[:, j]] = 1
    return out.reshape(n, -1)


# ---- codes


@settings(max_examples=12)
@given(n_bits=st.integers(1, 13), mu=st.sampled_from([0.0, 0.5, 4.0]), seed=st.integers(0, 999))
def test_to_two_bytes_the_codes_are_the_best_of_all(n_bits, mu, seed):
    X, H, f = problem(4, 5, n_bits, seed)
    found = objectives(X, H, f, coder_of(f, mu).solve(X, H, H), mu)
    every = every_code(n_bits)
    for i in range(len(X)):
        lowest = objectives(X[i], H[i], f, every, mu).min()
        assert found[i] == pytest.approx(lowest, rel=1e-9)


def test_at_16_bits_the_codes_are_the_best_of_all():
    X, H, f = problem(3, 20, 16, 1)
    codes, every = coder_of(f, 0.0).solve(X, H, H), every_code(16)
    for i in range(len(X)):
        assert objectives(X[i], H[i], f, codes[i : i + 1], 0.0)[0] == pytest.approx(
            objectives(X[i], H[i], f, every, 0.0).min(), rel=1e-9
        )


@pytest.mark.parametrize(("n_bits", "mu"), [(20, 0.0), (24, 1.0), (41, 0.0), (64, 0.3), (136, 0.0)])
def test_more_bytes_get_codes_that_no_other_value_of_one_byte_makes_better(n_bits, mu):
    X, H, f = problem(20, 12, n_bits, 2)
    codes = coder_of(f, mu).solve(X, H, H)
    found = objectives(X, H, f, codes, mu)
    assert (found <= objectives(X, H, f, H, mu)).all()
    slack = 3e-3 * np.abs(f.tables).max() ** 2  # pairs are whole numbers of 16 bits
    stayed = 0
    for j in range(codes.shape[1]):
        n_values = 256 if 8 * (j + 1) <= n_bits else 2 ** (n_bits % 8)
        others = np.repeat(codes[None], n_values, axis=0)
        others[:, :, j] = np.arange(n_values)[:, None]
        lowest = np.min([objectives(X, H, f, other, mu) for other in others], axis=0)
        stayed += (found <= lowest + slack).sum()
    # wide codes end after a few sweeps, whether these have settled or not
    assert stayed == codes.size if n_bits <= 128 else stayed >= 0.95 * codes.size


def test_codes_of_three_bytes_are_mostly_the_best_of_all():
    rng = np.random.default_rng(0)
    T, b = rng.normal(size=(3, 256, 6)).astype(np.float32), np.zeros(6)
    f = TableDecoder(T, b, 17)
    X = rng.normal(size=(30, 6)).astype(np.float32) * 2
    H = np.zeros((30, 3), dtype=np.uint8)
    found = objectives(X, H, f, coder_of(f, 0.0).solve(X, H, H), 0.0)
    first = (T[0][:, None] + T[1][None]).reshape(-1, 6)
    reached = (first[:, None] + T[2][None, :2]).reshape(-1, 6)
    lowest = np.array([np.square(x - reached).sum(axis=1).min() for x in X])
    assert (found >= lowest - 1e-5).all()
    assert (found <= lowest + 1e-5).mean() >= 0.3
    assert found.mean() <= 1.5 * lowest.mean()


def test_more_steps_of_tabu_search_end_lower():
    X, H, f = problem(60, 16, 64, 3)
    values = [
        objectives(
            X,
            H,
            f,
            coder.TableCoder(f.tables.astype(float), f.b, 64, 0.0, effort).solve(X, H, H),
            0,
        )
        for effort in (0.0, 0.25, 1.0, 4.0)
    ]
    assert all(b.mean() < a.mean() for a, b in pairwise(values))


def test_codes_do_not_get_worse_than_those_to_begin_with():
    X, H, f = problem(40, 8, 48, 4)
    good = coder.TableCoder(f.tables.astype(float), f.b, 48, 0.0, 4.0).solve(X, H, H)
    again = coder.TableCoder(f.tables.astype(float), f.b, 48, 0.0, 0.1).solve(X, H, good)
    assert (objectives(X, H, f, again, 0.0) <= objectives(X, H, f, good, 0.0)).all()


def test_rows_far_away_get_the_values_that_lie_farthest_that_way():
    X, H, f = problem(6, 5, 32, 5)
    far = X * np.float32(1e5)
    codes = coder_of(f, 0.0).solve(far, H, H)
    pulls = np.einsum("nd,mvd->nmv", far - f.b, f.tables.astype(np.float64))
    assert np.array_equal(codes, pulls.argmax(axis=2))


@pytest.mark.parametrize("n_bits", [12, 20, 136])
def test_a_large_mu_gives_the_hash_codes(n_bits):
    X, H, f = problem(20, 6, n_bits, 6)
    for mu in (1e6, 1e12):
        assert np.array_equal(coder_of(f, mu).solve(X, H, np.zeros_like(H)), H)


@pytest.mark.parametrize("n_bits", [12, 24, 44, 148])
def test_the_code_of_a_row_does_not_depend_on_other_rows_or_threads(n_bits, digits):
    digits = digits[:400]
    model = LSH(n_bits, random_state=0, n_jobs=1).fit(digits).fit_decoder(digits, "tables", n_iter=1)
    codes = model.encode(digits, coding="optimal", mu=0.01)
    order = np.random.default_rng(0).permutation(len(digits))
    assert np.array_equal(model.encode(digits[order], coding="optimal", mu=0.01), codes[order])
    for i in range(20):
        assert np.array_equal(model.encode(digits[i : i + 1], coding="optimal", mu=0.01), codes[i : i + 1])
    model.set_params(n_jobs=3)
    assert np.array_equal(model.encode(digits, coding="optimal", mu=0.01), codes)


@pytest.mark.parametrize("kind", ["linear", "tables"])
@pytest.mark.parametrize("n_bits", [12, 24])
def test_rows_beyond_all_reach_get_codes_too(kind, n_bits, digits):
    model = LSH(n_bits, random_state=0).fit(digits).fit_decoder(digits, kind, n_iter=1)
    rows = digits[:4].copy()
    rows[0] *= 1e100
    rows[1, 3], rows[2, 5] = -1e130, 1e39
    codes = model.encode(rows, coding="optimal")
    assert codes.shape == (4, n_bits // 8 + (n_bits % 8 > 0))
    assert np.array_equal(codes[3:], model.encode(digits[3:4], coding="optimal"))


# ---- least squares


@pytest.mark.parametrize("shrink", [0.1, 2.0])
@pytest.mark.parametrize("n_bits", [3, 8, 12, 19])
def test_the_tables_are_those_of_ridge_regression_on_one_hot_rows(n_bits, shrink):
    X, codes, present = problem(300, 4, n_bits, 7)
    with Workers(1) as workers:
        fitted = table_step(X, codes, present, shrink, workers, tolerance=1e-20)
    rows = one_hot(codes)
    design = np.vstack([rows, np.sqrt(shrink) * np.eye(rows.shape[1])])
    held = present.tables.reshape(-1, 4).astype(np.float64)
    wanted = np.vstack([X - present.b, np.sqrt(shrink) * held])
    truth = np.linalg.lstsq(design, wanted, rcond=None)[0]
    np.testing.assert_allclose(fitted.tables.reshape(-1, 4), truth, rtol=1e-4, atol=1e-4)
    assert np.array_equal(fitted.b, present.b)
    unseen = np.ones((fitted.tables.shape[0], 256), dtype=bool)
    for j in range(len(unseen)):
        unseen[j, codes[:, j]] = False
    np.testing.assert_allclose(fitted.tables[unseen], present.tables[unseen], rtol=1e-6)


@given(exponents=st.lists(st.integers(-45, 0), min_size=5, max_size=5), seed=st.integers(0, 99))
def test_dimensions_of_any_size_are_solved_beside_each_other(exponents, seed):
    X, codes, present = problem(300, 5, 16, seed)
    units = np.exp2(np.float32([3 * each for each in exponents]))
    tiny = replace(present, tables=present.tables * units, b=present.b * units)
    with Workers(1) as workers:
        wanted = table_step(X, codes, present, 1.0, workers).tables
        found = table_step((X * units).astype(np.float32), codes, tiny, 1.0, workers).tables
    held = units > 1e-30  # below, float32 has lost digits of the rows
    np.testing.assert_allclose(found[..., held] / units[held], wanted[..., held], rtol=1e-4, atol=1e-4)
    assert np.isfinite(found).all()
    assert (np.abs(found) <= 2 * np.abs(wanted).max() * units + 1e-37).all()


@pytest.mark.parametrize("n_bits", [24, 160])
def test_a_rough_solution_is_near_the_best_and_never_worse_than_the_present_tables(n_bits):
    X, codes, present = problem(2000, 20, n_bits, 8)
    pulls = np.repeat([0.0, 3.0, 12.0, 48.0], 5)

    def values(f):
        held = np.square(f.tables - present.tables).sum(axis=(0, 1)) + pulls * np.square(f.tables).sum(
            axis=(0, 1)
        )
        return np.square(X - f.decode(codes)).sum(axis=0) + held

    with Workers(1) as workers:
        best = values(table_step(X, codes, present, 1.0, workers, pulls, 1e-14))
        rough = values(table_step(X, codes, present, 1.0, workers, pulls))
        rougher = values(table_step(X, codes, present, 1.0, workers, pulls, 0.5))
    gained = values(present) - best
    assert (rough - best < 0.01 * gained).all()
    assert (rough <= rougher + 1e-6 * gained).all()
    assert (rougher < values(present)).all()


def test_the_tables_are_the_same_for_any_number_of_threads():
    X, codes, present = problem(40_000, 3, 16, 9)
    fitted = []
    for n_jobs in (1, 3):
        with Workers(n_jobs) as workers:
            fitted.append(table_step(X, codes, present, 1.0, workers))
    assert np.array_equal(fitted[0].tables, fitted[1].tables)


@pytest.mark.parametrize("n_bits", [8, 19])
def test_pulls_towards_0_are_ridge_regression_of_each_dimension(n_bits):
    X, codes, present = problem(300, 4, n_bits, 10)
    pulls = np.array([0.0, 3.0, 40.0, np.inf])
    with Workers(1) as workers:
        fitted = table_step(X, codes, present, 0.5, workers, pulls, 1e-14)
    rows = one_hot(codes)
    for d, pull in enumerate(pulls[:3]):
        system = rows.T @ rows + (0.5 + pull) * np.eye(rows.shape[1])
        wanted = rows.T @ (X[:, d] - present.b[d]) + 0.5 * present.tables[:, :, d].ravel()
        truth = np.linalg.solve(system, wanted)
        np.testing.assert_allclose(fitted.tables[:, :, d].ravel(), truth, rtol=1e-4, atol=1e-4)
    assert not fitted.tables[:, :, 3].any()


# ---- tables for free codes


def error_of(f, rows):
    start = np.zeros((len(rows), len(f.tables)), dtype=np.uint8)
    codes = coder_of(f, 0.0).solve(rows.astype(np.float32), start, start)
    return np.square(rows - f.decode(codes)).sum()


@pytest.mark.parametrize("n_bits", [20, 32])
def test_free_tables_are_better_on_new_rows_than_a_plain_alternation(n_bits, digits, monkeypatch):
    monkeypatch.setattr("auxbit.quantiser.fit.ERROR_BITS", 8)  # more than a last byte has: all are for tables
    X = (digits - digits.mean(axis=0)).astype(np.float32)
    train, new = X[:1400], X[1400:]
    with Workers(1) as workers:
        f, codes = product_start(train, n_bits, workers, np.random.RandomState(0))
        *_, (plain, _) = alternate_codes(train, codes, f, codes, 0.0, 15, workers)
        free = FreeTables(train, n_bits, workers, np.random.RandomState(0)).fit(15, None)
    assert error_of(free, new) < 0.97 * error_of(plain, new)


@pytest.mark.parametrize("n_bits", [24, 144])
def test_free_tables_are_the_same_for_any_number_of_threads(n_bits, digits):
    fitted, told = [], []
    for n_jobs in (1, 3):
        with Workers(n_jobs) as workers:
            rows = digits[:400].astype(np.float32)
            tell = lambda *turn: told.append(turn)  # noqa: E731
            fitted.append(FreeTables(rows, n_bits, workers, np.random.RandomState(0)).fit(3, tell))
    assert np.array_equal(fitted[0].tables, fitted[1].tables)
    assert told == [(1, 3), (2, 3), (3, 3)] * 2


def unequal(n):
    """Rows near a plane, some much nearer than others: codes leave little of some, and much of others."""
    rng = np.random.default_rng(0)
    far = np.exp(0.7 * rng.normal(size=(n, 1)))
    return (rng.normal(size=(n, 10)) @ rng.normal(size=(10, 60)) + far * rng.normal(size=(n, 60))).astype(
        np.float32
    )


def test_search_adds_the_error_that_codes_tell(tmp_path):
    rows = unequal(3200)
    train, new = rows[:3000], rows[3000:]
    model = LSH(40, random_state=0).fit(train).fit_decoder(train, "tables", n_iter=4)
    f, codes = model.decoder_, model.encode(train, coding="optimal")
    left = np.square(train - model.decode(codes)).sum(axis=1)
    by_hand = sum(f.errors[j, codes[:, j]] for j in range(5))
    expected = f.error_weight * np.maximum(by_hand, 0)
    np.testing.assert_allclose(f.expected(codes), expected)
    assert np.corrcoef(expected, left)[0, 1] > 0.8
    index = auxbit.HammingIndex(40, decoder=f)
    index.add(codes)
    squared = np.square(new[:9, None] - model.decode(codes)).sum(axis=2) + expected
    distances = index.search_asymmetric(new[:9], 5)[0]
    np.testing.assert_allclose(distances, np.sort(squared, axis=1)[:, :5], rtol=1e-4)
    model.save(tmp_path / "model.safetensors")
    index.save(tmp_path / "index.auxbit")
    for loaded in (
        auxbit.load(tmp_path / "model.safetensors").decoder_,
        auxbit.HammingIndex.load(tmp_path / "index.auxbit").decoder,
    ):
        assert (loaded.error_bits, loaded.error_weight) == (f.error_bits, f.error_weight)
        assert np.array_equal(loaded.errors, f.errors)
        assert np.array_equal(loaded.squared_norms(codes), f.squared_norms(codes))


def test_bits_for_the_error_are_used_where_rows_are_found_better_so():
    rows = unequal(3200)
    base, queries = rows[:3000], rows[3000:]
    model = LSH(40, random_state=0).fit(base).fit_decoder(base, "tables", n_iter=4)
    f, codes = model.decoder_, model.encode(base, coding="optimal")
    assert f.error_bits == 2
    assert f.error_weight > 0
    low = codes.copy()
    low[:, -1] &= 63
    assert np.array_equal(model.decode(codes), model.decode(low))
    left = np.square(base - model.decode(codes)).sum(axis=1)
    for level in range(4):  # no other level is nearer to the error of the row
        other = low.copy()
        other[:, -1] |= level << 6
        assert (np.abs(left - f.errors_of(codes)) <= np.abs(left - f.errors_of(other)) + 1e-4).all()
    truth = auxbit.evaluate.ground_truth(base, queries, 10)
    shares = []
    for decoder in (f, replace(f, error_weight=0.0)):
        index = auxbit.HammingIndex(40, decoder=decoder)
        index.add(codes)
        found = index.search_asymmetric(queries, 10)[1]
        shares.append(np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]))
    assert shares[0] > 1.02 * shares[1]


def test_bits_for_the_error_are_left_to_the_tables_where_all_rows_have_the_same():
    rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    assert LSH(24, random_state=0).fit(rows).fit_decoder(rows, "tables", n_iter=4).decoder_.error_bits == 0


@given(st.lists(st.integers(-50, 50), min_size=4, max_size=40), st.sampled_from([2, 4]))
def test_levels_are_the_means_of_the_values_nearest_to_them(values, n_levels):
    values = np.array(values, dtype=np.float64)
    levels = levels_of(values, n_levels)
    assert (np.diff(levels) >= 0).all()
    apart = np.abs(values[:, None] - levels)
    owner = apart.argmin(axis=1)  # of two that are as near, the lower one, as in levels_of
    for level in np.unique(owner):
        assert levels[level] == pytest.approx(values[owner == level].mean())
    assert np.square(apart.min(axis=1)).sum() <= np.square(values - values.mean()).sum() + 1e-9


def test_a_shorter_last_byte_leaves_the_other_tables_as_they_are(digits, monkeypatch):
    monkeypatch.setattr("auxbit.quantiser.fit.SHORTENED_TURNS", 0)
    X = (digits - digits.mean(axis=0)).astype(np.float32)[:500]
    with Workers(1) as workers:
        part = _Tables(X, 24, workers, np.random.RandomState(0))
        part.fit(2, lambda _: None)
        before = part.f.tables.copy()
        part.shorten(2)
    np.testing.assert_array_equal(part.f.tables[:-1], before[:-1])
    assert part.f.tables[-1, :64].any()
    assert not part.f.tables[-1, 64:].any()
    assert part.codes[:, -1].max() < 64


def test_bits_for_the_error_leave_the_others_as_they_are():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(3, 256, 4)).astype(np.float32)
    f = TableDecoder(tables, np.zeros(4), 24, errors=rng.random(size=(3, 256)), error_bits=3)
    codes = rng.integers(0, 256, size=(50, 3), dtype=np.uint8)
    codes[:, -1] &= 31
    told = with_error_bits(f, codes, rng.random(50) * 3)
    assert np.array_equal(told[:, :2], codes[:, :2])
    assert np.array_equal(told[:, 2] & 31, codes[:, 2])
    assert len(np.unique(told[:, 2] >> 5)) > 3


def test_tables_of_hardly_any_rows_or_of_equal_rows_are_finite():
    for rows in (np.zeros((3, 5)), np.eye(4, 5), np.ones((200, 5))):
        with Workers(1) as workers:
            f = FreeTables(rows.astype(np.float32), 24, workers, np.random.RandomState(0)).fit(2, None)
        assert np.isfinite(f.tables).all()
        assert error_of(f, rows) <= np.square(rows - rows.mean(axis=0)).sum() + 1e-9


def test_very_wide_codes_have_parts_whose_tables_are_orthogonal(digits):
    X = (digits[:250] - digits[:250].mean(axis=0)).astype(np.float32)
    with Workers(1) as workers:
        f = FreeTables(X, 276, workers, np.random.RandomState(0)).fit(2, None)
    tables = f.tables.astype(np.float64)
    parts = coder.independent_parts(tables)
    assert sorted(np.concatenate(parts)) == list(range(35))
    assert len(parts) >= 2
    cross = tables[parts[0]].reshape(-1, 64) @ tables[parts[1]].reshape(-1, 64).T
    assert np.abs(cross).max() < 1e-5
    start = np.zeros((len(X), 35), dtype=np.uint8)
    codes = coder_of(f, 0.0).solve(X, start, start)
    assert codes[:, -1].max() < 16
    for own in parts:
        alone = coder.table_coder(np.ascontiguousarray(tables[own]), f.b, 8 * len(own), 0.0, 1.0)
        if own[-1] < 34:
            zero = np.zeros((len(X), len(own)), dtype=np.uint8)
            assert np.array_equal(alone.solve(X, zero, zero), codes[:, own])


@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_wide_codes_are_better_than_those_of_sweeps_over_the_bytes_and_never_worse_than_the_start(mu, digits):
    X = (digits[:300] - digits[:300].mean(axis=0)).astype(np.float32)
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(20, 256, 64)) * X.std(axis=0) / 4
    f = TableDecoder(tables.astype(np.float32), np.zeros(64), 156)
    H, start = rng.integers(0, 256, size=(2, 300, 20), dtype=np.uint8)
    H[:, -1] &= 15
    start[:, -1] &= 15

    def costs(codes):
        return np.square(X - f.decode(codes)).sum(axis=1) + mu * np.bitwise_count(codes ^ H).sum(axis=1)

    codes = coder_of(f, mu).solve(X, H, start)
    assert codes[:, -1].max() < 16
    assert (costs(codes) <= costs(start) + 1e-5).all()
    assert (costs(coder_of(f, mu).solve(X, H, codes)) <= costs(codes) + 1e-5).all()
    swept = start.copy()
    for j in [*range(20)] * 3:
        rest = X - f.decode(swept) + f.tables[j, swept[:, j]]
        tried = np.square(rest[:, None] - f.tables[j]).sum(axis=2)
        tried += mu * np.bitwise_count(np.arange(256, dtype=np.uint8) ^ H[:, j, None])
        swept[:, j] = tried[:, : 16 if j == 19 else 256].argmin(axis=1)
    assert costs(codes).mean() < 0.9 * costs(swept).mean()


def test_tables_that_are_not_orthogonal_are_one_part():
    tables = np.zeros((4, 256, 6))
    tables[:2, :, :3] = np.random.default_rng(0).normal(size=(2, 256, 3))
    tables[2:, :, 3:] = np.random.default_rng(1).normal(size=(2, 256, 3))
    assert [list(part) for part in coder.independent_parts(tables)] == [[0, 1], [2, 3]]
    tables[1, 7, 4] = 5.0
    assert len(coder.independent_parts(tables)) == 1


def test_principal_axes_and_their_parts_are_orthonormal():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 9)) * np.arange(9)).astype(np.float32)
    b = X.mean(axis=0, dtype=np.float64)
    with Workers(1) as workers:
        axes, variances = principal_axes(X, b, workers)
        parts = divided_axes(X, b, 160, 2, workers, np.random.RandomState(0))
    truth = np.linalg.eigvalsh(np.cov(X.T, bias=True))[:0:-1]
    np.testing.assert_allclose(variances, truth, rtol=1e-4)
    both = np.hstack(parts)
    for basis in (axes, both):
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-9)


def test_tables_of_few_rows_have_an_axis_for_all_of_their_directions():
    """With fewer axes than directions of equal variance, .39 is left, however many bits there are."""
    X = np.random.default_rng(0).normal(size=(800, 150)).astype(np.float32)
    model = LSH(96, random_state=0).fit(X).fit_decoder(X, "tables", n_iter=4)
    left = X - model.decode(model.encode(X, coding="optimal"))
    assert np.square(left).sum() < 0.1 * np.square(X).sum()


def test_tables_remember_few_rows_as_these_will_be_searched(monkeypatch):
    """800 rows for 768 vectors: .09 of them is left, and .24 as of many; of new rows .54 and .49."""
    rows = np.random.default_rng(0).normal(size=(1600, 60)) * 0.97 ** np.arange(60)
    own, new = np.split(rows.astype(np.float32), 2)
    errors = []
    for few in (FEW, 0):
        monkeypatch.setattr("auxbit.quantiser.fit.FEW", few)
        with Workers(1) as workers:
            f = FreeTables(own, 24, workers, np.random.RandomState(0)).fit(15, None)
        errors.append((error_of(f, own), error_of(f, new)))
    (remembered, with_new), (as_of_many, of_new) = errors
    assert remembered < 0.6 * as_of_many
    assert with_new < 1.2 * of_new


# ---- which kind


def test_auto_is_tables_if_they_can_hold_the_rows_and_linear_for_sums_and_a_handful(digits):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 30))
    many = centres[rng.integers(40, size=4000)] + 0.1 * rng.normal(size=(4000, 30))
    model = ITQ(24, random_state=0).fit(many).fit_decoder(many, n_iter=2)
    assert isinstance(model.decoder_, TableDecoder)
    sums = (rng.integers(0, 2, size=(1000, 16)) @ rng.normal(size=(16, 40))).astype(np.float32)
    model = ITQ(16, random_state=0).fit(sums).fit_decoder(sums, "auto", n_iter=2)
    assert isinstance(model.decoder_, LinearDecoder)
    few = (rng.integers(0, 2, size=(300, 64)) @ rng.normal(size=(64, 200))).astype(np.float32)
    model = ITQ(64, random_state=0).fit(few).fit_decoder(few, "auto", n_iter=2)
    assert isinstance(model.decoder_, TableDecoder)  # they are those that will be searched
    model = ITQ(32, random_state=0).fit(digits[:40]).fit_decoder(digits[:40], "auto", n_iter=1)
    assert isinstance(model.decoder_, LinearDecoder)
    model = ITQ(24, random_state=0).fit(many).fit_decoder(many, "auto", mu=0.01, n_iter=1)
    assert isinstance(model.decoder_, LinearDecoder | TableDecoder)


# ---- the alternation


@pytest.mark.parametrize(("n_bits", "mu"), [(12, 0.0), (24, 0.0), (24, 0.05), (40, 0.0)])
def test_no_turn_of_the_alternation_raises_the_objective(n_bits, mu, digits):
    X = (digits - digits.mean(axis=0)).astype(np.float32)
    H = LSH(n_bits, random_state=0).fit(digits).encode(digits)
    with Workers(1) as workers:
        f, codes = product_start(X, n_bits, workers, np.random.RandomState(0))
        values = [objectives(X, H, f, codes, mu).mean()]
        for decoder, codes_of_turn in alternate_codes(X, H, f, codes, mu, 4, workers):
            values.append(objectives(X, H, decoder, codes_of_turn, mu).mean())
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(values))
    assert values[-1] < 0.8 * values[0]


@pytest.mark.parametrize("n_bits", [8, 21, 64])
def test_the_start_is_product_quantisation_of_its_own_error(n_bits, digits):
    X = digits.astype(np.float32)
    with Workers(1) as workers:
        f, codes = product_start(X, n_bits, workers, np.random.RandomState(0))
    assert unpack(codes, n_bits).shape == (len(X), n_bits)
    parts = np.array_split(np.arange(64), codes.shape[1])
    for j, dims in enumerate(parts):
        outside = np.setdiff1d(np.arange(64), dims)
        assert not f.tables[j][:, outside].any()
        n_values = min(256, 2 ** (n_bits - 8 * j))
        centres = f.tables[j, :n_values][:, dims]
        distances = np.square(X[:, None, dims] - centres[None]).sum(axis=2)
        chosen = np.take_along_axis(distances, codes[:, j : j + 1].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(chosen, distances.min(axis=1), atol=1e-4)


def test_tables_reconstruct_new_rows_better_than_a_linear_decoder(digits):
    train, new = digits[:1500], digits[1500:]
    model = ITQ(16, random_state=0).fit(train)
    errors = []
    for kind in ("linear", "tables"):
        model.fit_decoder(train, kind, n_iter=5)
        codes = model.encode(new, coding="optimal")
        errors.append(np.square(new - model.decode(codes)).sum())
    assert errors[1] < 0.97 * errors[0]


def test_tables_for_a_mu_above_0_stay_near_the_hash_codes(digits):
    model = ITQ(24, random_state=0).fit(digits)
    hashed, before = model.encode(digits), -model.score(digits)
    model.fit_decoder(digits, "tables", mu=0.05, n_iter=3)
    codes = model.encode(digits, coding="optimal")  # at mu = 0.05, as they are fitted
    assert np.bitwise_count(codes ^ hashed).sum() < 0.25 * 24 * len(digits)
    assert np.square(digits - model.decode(codes)).sum() / len(digits) < before
    free = model.encode(digits, coding="optimal", mu=0)
    assert np.bitwise_count(free ^ hashed).sum() > np.bitwise_count(codes ^ hashed).sum()


def test_a_linear_decoder_can_come_after_tables(fitted, digits):
    model = clone(fitted).fit(digits).fit_decoder(digits, "tables", n_iter=1)
    model.fit_decoder(digits, "linear", mu=1e6, n_iter=1)
    plain = clone(fitted).fit(digits)
    np.testing.assert_allclose(model.decoder_.A, plain.decoder_.A, atol=1e-6)


# ---- in hashers and files


def test_decode_inverse_transform_and_score_agree_with_the_tables(fitted, digits):
    bits, codes = fitted.transform(digits), fitted.encode(digits, coding="hash")
    f = fitted.decoder_
    by_hand = f.b + sum(f.tables[j].astype(np.float64)[codes[:, j]] for j in range(3))
    np.testing.assert_allclose(fitted.decode(codes), by_hand, atol=1e-12)
    np.testing.assert_allclose(fitted.inverse_transform(bits), by_hand, atol=1e-12)
    assert fitted.score(digits) == pytest.approx(-np.square(digits - by_hand).sum() / len(digits), rel=1e-5)
    assert fitted.get_feature_names_out().shape == (24,)


def test_tables_of_a_linear_decoder_are_the_same_function():
    rng = np.random.default_rng(0)
    linear = LinearDecoder(rng.normal(size=(5, 19)), rng.normal(size=5), True)
    Z = rng.integers(0, 2, size=(40, 19)).astype(np.uint8)
    f = TableDecoder.of(linear)
    np.testing.assert_allclose(f(Z), linear(Z), atol=1e-5)
    assert f.normalize
    assert f.n_bits == 19


@pytest.mark.parametrize("decoder", ["table", "auto", None, 1])
def test_an_unknown_decoder_is_refused_and_nothing_is_fitted(decoder, digits):
    model = BinaryAutoencoder(8, decoder=decoder)
    with pytest.raises(InvalidParameter, match="decoder="):
        model.fit(digits)
    assert not hasattr(model, "encoder_")


def test_few_rows_and_equal_rows_get_tables():
    for X in (
        np.arange(6.0).reshape(2, 3),
        np.full((40, 3), 7.0),
        np.random.default_rng(0).normal(size=(9, 2)),
    ):
        for n_bits in (3, 16, 24):
            model = LSH(n_bits, random_state=0).fit(X).fit_decoder(X, "tables", n_iter=2)
            codes = model.encode(X, coding="optimal")
            np.testing.assert_allclose(model.decode(codes), X, atol=1e-3 + (n_bits == 3) * 3)


def test_a_model_with_tables_comes_back_the_same(fitted, digits, tmp_path):
    fitted.save(tmp_path / "m")
    assert read_header(tmp_path / "m")["format_version"] == 2
    codes = fitted.encode(digits, coding="optimal")
    for other in (auxbit.load(tmp_path / "m"), pickle.loads(pickle.dumps(fitted))):
        assert other.decoder_.n_bits == 24
        assert set(vars(other.decoder_)) == {f.name for f in fields(TableDecoder)}
        assert np.array_equal(other.decoder_.tables, fitted.decoder_.tables)
        assert np.array_equal(*(each.encode(digits, coding="hash") for each in (other, fitted)))
        assert np.array_equal(other.encode(digits, coding="optimal"), codes)
        assert np.array_equal(other.decode(codes), fitted.decode(codes))
        assert other.score(digits) == fitted.score(digits)


def test_a_model_without_tables_is_written_as_older_versions_read_it(digits, tmp_path):
    ITQ(8, random_state=0).fit(digits).save(tmp_path / "m")
    assert read_header(tmp_path / "m")["format_version"] == 1


def test_tables_that_do_not_fit_the_rest_of_a_file_are_refused(fitted, digits, tmp_path):
    broken = pickle.loads(pickle.dumps(fitted))
    broken.decoder_ = TableDecoder(fitted.decoder_.tables[:2], fitted.decoder_.b, 24)
    broken.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="not a complete"):
        auxbit.load(tmp_path / "m")
