"""Tables inside MAC: its steps against brute force, and what a fit gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits

import auxbit
from auxbit import BinaryAutoencoder, BinaryFactorAnalysis, HammingIndex
from auxbit.core.decoders import TableDecoder
from auxbit.core.maps import LinearDecoder, pack_bools, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.steps import MemoryRows, Steps
from auxbit.quantiser.fit import TableReconstruction, TableSolver, summed_step, table_step, value_sums

DIGITS = load_digits().data


def problem(seed, n=30, D=5, L=10):
    """Rows, hash codes, old codes and tables."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    H, Z = rng.integers(0, 2, (2, n, L)).astype(np.uint8)
    tables = (rng.normal(size=(-(-L // 8), 256, D)) / 2).astype(np.float32)
    tables[-1, 1 << (L - 1) % 8 + 1 :] = 0
    return X, H, Z, TableDecoder(tables, rng.normal(size=D) / 9, L)


def energies(X, H, Z, f, mu):
    return np.square(X - f(Z)).sum(axis=1) + mu * (H != Z).sum(axis=1)


@settings(max_examples=20)
@given(st.integers(0, 2**20), st.sampled_from([1e-3, 0.1, 1.0, 30.0]), st.integers(1, 11))
def test_the_z_step_over_bytes_equals_enumeration_and_counts_its_energies(seed, mu, L):
    X, H, Z, f = problem(seed, L=L)
    every = ((np.arange(1 << L)[:, None] >> np.arange(L)) & 1).astype(np.uint8)
    apart = np.square(X[:, None] - f(every)[None]).sum(axis=2) + mu * (H[:, None] != every[None]).sum(axis=2)
    counts = TableSolver(f, mu).solve(X, H, Z)
    np.testing.assert_allclose(energies(X, H, Z, f, mu), apart.min(axis=1), rtol=1e-5, atol=1e-5)
    assert counts.energy == pytest.approx(apart.min(axis=1).sum(), rel=1e-5)
    assert counts.hash_energy == pytest.approx(energies(X, H, H, f, mu).sum(), rel=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 2**20), st.sampled_from([1e-3, 0.3, 30.0]))
def test_the_z_step_of_long_codes_never_raises_a_rows_energy(seed, mu):
    X, H, Z, f = problem(seed, L=37)
    before = energies(X, H, Z, f, mu)
    TableSolver(f, mu).solve(X, H, Z)
    assert (energies(X, H, Z, f, mu) <= before * (1 + 1e-5)).all()


def test_changes_are_what_flips_of_bits_change():
    X, _, Z, f = problem(3, L=13)
    found = TableReconstruction().changes(None, None, X, Z, f)
    for bit in range(13):
        flipped = Z.copy()
        flipped[:, bit] ^= 1
        wanted = energies(X, Z, flipped, f, 0.0) - energies(X, Z, Z, f, 0.0)
        np.testing.assert_allclose(found[:, bit], wanted, rtol=1e-4, atol=1e-4)


def test_the_f_step_is_least_squares_held_at_the_linear_decoder_by_one_row():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(400, 4)).astype(np.float32), rng.integers(0, 2, (400, 3)).astype(np.uint8)
    with Workers(1) as workers:
        steps = Steps(MemoryRows(X, Z, workers), svm=SvmOptions(), objective=TableReconstruction())
        f = steps.f_step()
    with Workers(1) as workers:
        linear = np.linalg.lstsq(np.hstack([Z, np.ones((400, 1))]), X.astype(float), rcond=None)[0]
    values = pack_bools(Z)[:, 0]
    for value in range(8):
        own = X[values == value].astype(float) - linear[-1]
        start = unpack(np.array([[value]], np.uint8), 3)[0] @ linear[:-1]
        wanted = (own.sum(axis=0) + start) / (len(own) + 1)
        np.testing.assert_allclose(f.tables[0, value], wanted, atol=2e-3)


@pytest.mark.parametrize("model_class", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_a_model_with_tables_reconstructs_better_from_hash_codes(model_class, tmp_path):
    plain = model_class(16, random_state=0, n_jobs=2).fit(DIGITS)
    model = clone(plain).set_params(decoder="tables").fit(DIGITS)
    assert isinstance(model.decoder_, TableDecoder)
    assert model.decoder_.coding == "hash"
    assert model.score(DIGITS) > plain.score(DIGITS)
    model.save(tmp_path / "m")
    again = auxbit.load(tmp_path / "m")
    assert np.array_equal(again.encode(DIGITS), model.encode(DIGITS))
    np.testing.assert_allclose(again.decode(again.encode(DIGITS)), model.decode(model.encode(DIGITS)))
    assert isinstance(clone(model).set_params(decoder="linear").fit(DIGITS).decoder_, LinearDecoder)


def test_the_path_ends_where_codes_are_those_of_h_and_the_last_tables_fit_them_better():
    model = BinaryAutoencoder(
        12, decoder="tables", validation=None, random_state=0, mu_schedule=[0.01, 0.1, 1.0, 10.0, 1e3],
        steps_per_mu=3,
    ).fit(DIGITS)  # fmt: skip
    assert model.history_[-1].mismatched == 0
    error = -model.score(DIGITS) * len(DIGITS)
    assert 0.9 * model.history_[-1].E_BA < error < model.history_[-1].E_BA


def test_the_same_bits_for_any_number_of_threads():
    fits = [BinaryAutoencoder(20, decoder="tables", random_state=0, n_jobs=n).fit(DIGITS) for n in (1, 2)]
    assert np.array_equal(fits[0].encode(DIGITS), fits[1].encode(DIGITS))
    assert np.array_equal(fits[0].decoder_.tables, fits[1].decoder_.tables)


def test_hash_codes_are_ranked_better_by_tables_than_by_a_linear_decoder():
    rows, queries = DIGITS[:1500], DIGITS[1500:]
    truth = ground_truth(rows, queries, 20)

    def found(decoder):
        model = BinaryAutoencoder(16, decoder=decoder, random_state=0).fit(rows)
        index = HammingIndex(model=model, coding="hash")
        index.add(model.encode(rows))
        ids = index.search_asymmetric(queries, k=20)[1]
        return np.mean([len(set(a) & set(b)) for a, b in zip(ids, truth, strict=True)])

    assert found("tables") > found("linear")


@pytest.mark.parametrize("L", [3, 13])
def test_tables_from_sums_are_those_that_conjugate_gradients_tend_to(L):
    X, _, Z, f = problem(2, n=600, L=L)
    with Workers(1) as workers:
        wanted = table_step(X, pack_bools(Z), f, 1.0, workers, tolerance=1e-12)
        sums = workers.sum(lambda rows: value_sums(5, X[rows], pack_bools(Z[rows])), len(X), 100)
    np.testing.assert_allclose(summed_step(*sums, f, 1.0).tables, wanted.tables, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"encoder": "rbf", "n_centres": 40}], ids=["linear", "rbf"])
@pytest.mark.parametrize("n_bits", [16, pytest.param(72, marks=pytest.mark.slow)])
def test_rows_out_of_core_give_the_model_of_rows_in_memory(options, n_bits, tmp_path):
    np.save(tmp_path / "x.npy", DIGITS)
    model = BinaryAutoencoder(n_bits, decoder="tables", init="lsh", max_iter=3, random_state=0, **options)
    here, there = model.fit(DIGITS), clone(model).fit(tmp_path / "x.npy")
    if n_bits == 16:
        np.testing.assert_array_equal(here.encode(DIGITS), there.encode(DIGITS))
        np.testing.assert_array_equal(here.decoder_.tables, there.decoder_.tables)
    else:  # in memory the tables are found by conjugate gradients
        assert np.mean(here.transform(DIGITS) == there.transform(DIGITS)) > 0.97
        assert there.score(DIGITS) == pytest.approx(here.score(DIGITS), rel=0.05)


def test_a_fit_out_of_core_with_tables_resumes(tmp_path):
    def stop(record):
        if record.iteration == 3:
            raise KeyboardInterrupt

    model = BinaryAutoencoder(16, decoder="tables", random_state=0, callback=stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(DIGITS, checkpoint=tmp_path)
    model.set_params(callback=None).fit(DIGITS, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(model.encode(DIGITS), clone(model).fit(DIGITS).encode(DIGITS))


def test_tables_are_fitted_to_the_rows_that_were_held_out_too():
    """In one byte, the vector of a value is the mean of the rows that have it, but for one row."""
    model = BinaryAutoencoder(3, decoder="tables", random_state=0).fit(DIGITS)
    values = model.encode(DIGITS)[:, 0]
    for value in np.unique(values):
        own = DIGITS[values == value]
        apart = np.abs(model.decode(np.array([[value]], np.uint8))[0] - own.mean(axis=0)).max()
        assert apart < 40 / len(own)


@pytest.mark.parametrize(
    ("n_bits", "memory", "why"),
    [
        (136, "4GB", r"n_bits=136 is invalid: expected at most 128 .*fit_decoder\(X, 'tables'\)"),
        (128, "512MB", r"memory=512000000 is invalid: expected at least 1074MB with decoder='tables'"),
    ],
)
def test_tables_that_memory_has_no_room_for_are_refused(n_bits, memory, why):
    with pytest.raises(InvalidParameter, match=why):
        BinaryAutoencoder(n_bits, decoder="tables").fit(DIGITS, memory=memory)


def test_penalties_that_tables_have_not_are_refused():
    with pytest.raises(InvalidParameter, match=r"penalty='augmented'.*'quadratic' with tables"):
        BinaryAutoencoder(8, decoder="tables", penalty="augmented").fit(DIGITS)
