"""Fits on a cluster: the model of a fit on one machine, whatever the start, the chunks and the workers."""

from __future__ import annotations

import time

import dask.array as da
import numpy as np
import pytest

from auxbit import ITQ, BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.core.parallel import sample_rows
from auxbit.hashers.registry import make_hasher
from helpers.dask_cluster import bytes_sent, count_bytes, local_cluster, rows_of_clusters, stop_counting

N = 14_000  # four blocks of rows, less what is held out


@pytest.fixture(scope="module")
def client():
    with local_cluster(2) as client:
        yield client


@pytest.fixture(scope="module")
def X():
    return rows_of_clusters(N)


@pytest.fixture(scope="module")
def path(X, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(path, X)
    return path


def model(**options):
    return BinaryAutoencoder(8, **({"random_state": 0, "max_iter": 2, "n_jobs": 1} | options))


@pytest.fixture(scope="module")
def local(X):
    return model().fit(X)


def assert_same_model(one, other, X):
    assert np.mean(one.transform(X) == other.transform(X)) >= 0.995
    assert one.score(X) == pytest.approx(other.score(X), rel=1e-3)
    assert [record.iteration for record in one.history_] == [record.iteration for record in other.history_]


@pytest.mark.parametrize(
    "options",
    [
        {"init": "tpca", "validation": None, "max_iter": 40, "mu_factor": 3},  # to the end: Z = h(X)
        pytest.param({"init": "lsh", "h_solver": "ridge"}, marks=pytest.mark.slow),
        pytest.param({"init": "agh", "normalize": True}, marks=pytest.mark.slow),
        {"init": ITQ(8, random_state=0)},
        pytest.param({"lift": True}, marks=pytest.mark.slow),
        {"encoder": "rbf", "n_centres": 40},
        pytest.param({"encoder": np.square}, marks=pytest.mark.slow),
        {"decoder": "tables"},
        pytest.param({"objective": "affinity"}, marks=pytest.mark.slow),
        {"validation": rows_of_clusters(50, seed=1), "steps_per_mu": 2},
    ],
    ids=["tpca", "lsh", "agh", "hasher", "lifted", "rbf", "own", "tables", "affinity", "queries"],
)
def test_every_start_and_validation_gives_the_model_of_a_fit_out_of_core_here(client, path, X, options):
    here = model(**options).fit(path)
    there = model(**options).fit(path, client=client)
    assert_same_model(there, here, X)
    assert there.n_features_in_ == here.n_features_in_
    assert there.training_.n_rows == here.training_.n_rows


@pytest.mark.slow
def test_codes_that_are_given_go_to_the_workers_that_have_their_rows(client, path, X):
    codes = ITQ(8, random_state=3).fit(X).encode(X)
    here = model(init=codes).fit(path)
    there = model(init=codes).fit(path, client=client)
    assert_same_model(there, here, X)


def test_random_codes_are_those_of_a_fit_here(client, path, X):
    here = model(init="random").fit(path)
    there = model(init="random").fit(path, client=client)
    assert_same_model(there, here, X)


@pytest.mark.parametrize(
    "chunks",
    [
        (5000, 5),
        ((0, 13_999, 0, 1), 12),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (((N,), (12,)), (4096, 12), (700, 12))),
    ],
)
def test_a_dask_array_of_any_chunks_gives_the_model_of_the_rows_in_memory(client, X, local, chunks):
    assert_same_model(model().fit(da.from_array(X, chunks=chunks), client=client), local, X)


def test_a_dask_array_is_fitted_by_the_client_that_is_there(client, X, local):
    array = da.from_array(X, chunks=(6000, 12)).persist()
    assert_same_model(model().fit(array), local, X)


@pytest.mark.slow
def test_one_two_and_four_workers_give_one_model(path, X, local):
    weights = []
    with local_cluster(4) as client:
        for n in (4, 2, 1):
            client.cluster.scale(n)
            deadline = time.monotonic() + 30
            while len(client.nthreads()) != n and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(client.nthreads()) == n
            fitted = model().fit(path, client=client)
            assert_same_model(fitted, local, X)
            weights.append(fitted.encoder_.weights)
    assert all(np.array_equal(other, weights[0]) for other in weights[1:])


@pytest.mark.slow
def test_threads_of_a_worker_do_not_change_the_model(path, client):
    with local_cluster(1, processes=False, threads=2) as threaded:
        many = model().fit(path, client=threaded)
    one = model().fit(path, client=client)
    assert np.array_equal(one.encoder_.weights, many.encoder_.weights)


@pytest.mark.slow
def test_what_travels_in_an_iteration_does_not_depend_on_the_number_of_rows(client):
    def sent(n_blocks):
        X = rows_of_clusters(4 * n_blocks * 4096 + 1000)
        totals = []

        def note(record):
            totals.append(bytes_sent() + sum(client.run(bytes_sent).values()))

        # a slow path from codes that are far from optimal: iterations that have much to do
        fit = model(max_iter=4, mu0=1e-4, mu_factor=1.01, patience=9, init="lsh", callback=note)
        fit.fit(da.from_array(X, chunks=(n_blocks * 4096 + 250, 12)), client=client)
        return totals[3] - totals[1]

    count_bytes()
    client.run(count_bytes)
    try:
        few, many = sent(1), sent(4)
    finally:
        stop_counting()
    assert few > 10_000
    assert many < 1.2 * few  # rows and codes: four times


def test_factor_analysis_is_fitted_on_a_cluster_as_in_memory(client, path, X):
    options = {"n_bits": 8, "random_state": 0, "max_iter": 3, "n_jobs": 1}
    here = BinaryFactorAnalysis(**options).fit(X)
    there = BinaryFactorAnalysis(**options).fit(path, client=client)
    assert_same_model(there, here, X)


def test_one_long_row_costs_the_energies_of_the_others_no_digits_on_a_cluster_either(client, X):
    rows = X.astype(np.float64)
    rows[7] *= 1e6
    here = BinaryFactorAnalysis(8, random_state=0, max_iter=2, n_jobs=1).fit(rows)
    there = BinaryFactorAnalysis(8, random_state=0, max_iter=2).fit(da.from_array(rows, chunks=(5000, 12)))
    assert here.n_iter_ == there.n_iter_ == 2
    variance = np.square(X - X.mean(axis=0)).sum()
    for known, found in zip(here.history_, there.history_, strict=True):
        assert 0 < known.E_Q <= known.E_BA < 2 * variance
        assert pytest.approx((known.E_Q, known.E_BA), rel=1e-3) == (found.E_Q, found.E_BA)


# ---- methods without iterations, and decoders


@pytest.mark.parametrize("name", ["lsh", "tpca", "itq", "klsh"])
@pytest.mark.parametrize("more", [{}, pytest.param({"lift": True}, marks=pytest.mark.slow)], ids=str)
def test_a_method_without_iterations_is_fitted_to_the_sums_of_shards(client, path, X, name, more):
    here = make_hasher(name, 8, random_state=0, **more).fit(X)
    for rows in (path, da.from_array(X, chunks=(5000, 12))):
        there = make_hasher(name, 8, random_state=0, **more).fit(rows, client=client)
        assert np.mean(there.transform(X) == here.transform(X)) >= 0.999
        np.testing.assert_allclose(there.scaling_.mean, here.scaling_.mean, rtol=1e-12, atol=1e-12)
        assert there.score(X) == pytest.approx(here.score(X), rel=1e-4)
        assert there.training_.n_rows == N
        assert there.n_features_in_ == 12


def test_factor_analysis_of_a_dask_array_is_that_of_rows_in_memory(client, X):
    options = {"n_bits": 8, "random_state": 0, "max_iter": 2}
    there = BinaryFactorAnalysis(**options).fit(da.from_array(X, chunks=(5000, 12)), client=client)
    assert_same_model(there, BinaryFactorAnalysis(**options).fit(X), X)


@pytest.mark.parametrize("kind", ["linear", "tables"])
def test_a_decoder_is_fitted_to_a_sample_of_the_rows_on_a_cluster(client, path, X, kind, monkeypatch):
    monkeypatch.setattr("auxbit.hashers.base.DECODER_ROWS", 3000)
    wanted = ITQ(8, random_state=0).fit(X).fit_decoder(X[sample_rows(N, 3000)], kind, n_iter=2)
    for rows in (path, da.from_array(X, chunks=(5000, 12))):
        fitted = ITQ(8, random_state=0).fit(X).fit_decoder(rows, kind, n_iter=2, client=client)
        for name, found in fitted.decoder_.tensors().items():
            np.testing.assert_array_equal(found, wanted.decoder_.tensors()[name])
        assert fitted.training_.n_rows == 3000


def test_a_fit_on_a_cluster_continues_from_a_model_as_one_in_memory(client, path, X):
    before = model(init="lsh").fit(X[: N // 2])
    there, here = model().fit(path, client=client, init=before), model().fit(X, init=before)
    np.testing.assert_array_equal(there.encode(X[:2000]), here.encode(X[:2000]))
