"""Codes of dask arrays: lazy, block by block, those of the same rows in memory."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from auxbit import ITQ, LSH, BinaryAutoencoder, HammingIndex, SphericalHashing
from auxbit.errors import InvalidInput, InvalidParameter
from helpers.dask_cluster import local_cluster, rows_of_clusters


@pytest.fixture(scope="module")
def X():
    return rows_of_clusters(900)


@pytest.fixture(scope="module")
def models(X):
    hashers = (ITQ(10, random_state=0), SphericalHashing(10, random_state=0))
    seen = []  # a callback that no other process can be sent
    autoencoder = BinaryAutoencoder(10, random_state=0, max_iter=2, normalize=True, callback=seen.append)
    return [hasher.fit(X) for hasher in (*hashers, LSH(10, random_state=0), autoencoder)]


@pytest.mark.parametrize("chunks", [(900, 12), (250, 12), (250, 5), ((0, 600, 0, 300), 12)])
def test_transform_and_encode_of_a_dask_array_are_lazy_and_those_of_its_rows(models, X, chunks):
    computed = []

    def note(block):
        computed.append(len(block))
        return block

    rows = da.from_array(X, chunks=chunks).map_blocks(note, dtype=X.dtype, meta=X[:0])
    for model in models:
        bits, codes = model.transform(rows), model.encode(rows)
        best = model.encode(rows, coding="optimal", mu=0.1)
        assert computed == []
        assert isinstance(bits, da.Array)
        assert (bits.shape, bits.dtype, bits.chunks[0]) == ((900, 10), np.uint8, rows.chunks[0])
        assert (codes.shape, codes.dtype) == ((900, 2), np.uint8)
        with dask.config.set(scheduler="synchronous"):
            found = dask.compute(bits, codes, best)
        wanted = (model.transform(X), model.encode(X), model.encode(X, coding="optimal", mu=0.1))
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(one, other)
        computed.clear()


@pytest.mark.slow
def test_workers_sort_rows_into_lists_and_code_them(X):
    model, here = (LSH(16, random_state=0).fit(X) for _ in range(2))
    rows = da.from_array(X, chunks=(200, 12))
    here.fit_decoder(X, "tables", lists=8, n_iter=2)
    with local_cluster(2):
        model.fit_decoder(rows, "tables", lists=8, n_iter=2)
        codes = model.encode(rows, coding="optimal").compute()
    assert np.array_equal(model.decoder_.centroids, here.decoder_.centroids)
    assert np.array_equal(codes, here.encode(X, coding="optimal"))
    index = HammingIndex(model=model)
    index.add(codes)
    assert np.mean(index.search_asymmetric(X, 5, probes=4)[1] == np.arange(900)[:, None]) > 0.1


def test_a_dask_array_need_not_know_how_many_rows_it_has(models, X):
    rows = da.from_array(X, chunks=(300, 12))
    some = rows[rows[:, 0] > 0]
    found = models[0].transform(some).compute(scheduler="synchronous")
    assert np.array_equal(found, models[0].transform(X[X[:, 0] > 0]))


def test_what_cannot_be_encoded_is_refused_before_anything_is_computed(models, X):
    model, rows = models[0], da.from_array(X, chunks=(300, 12))
    with pytest.raises(InvalidInput, match="X has 11 features, but the model was fitted to 12"):
        model.transform(rows[:, :11])
    with pytest.raises(InvalidInput, match=r"rows and columns, \(n, D\); got a dask array of shape \(900,\)"):
        model.encode(rows[:, 0])
    with pytest.raises(InvalidInput, match="must be numbers, got a dask array of"):
        model.encode(rows.astype("datetime64[s]"))
    with pytest.raises(InvalidParameter, match="coding='best' is invalid"):
        model.encode(rows, coding="best")
    with pytest.raises(NotFittedError):
        ITQ(10).transform(rows)


def test_numbers_that_are_not_finite_are_refused_when_they_are_met(models, X):
    bad = X.copy()
    bad[700, 3] = np.nan
    lazy = models[0].transform(da.from_array(bad, chunks=(300, 12)))
    with pytest.raises(InvalidInput, match="NaN at row 100, column 3"):
        lazy.compute(scheduler="synchronous")
