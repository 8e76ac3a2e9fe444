"""What cannot be fitted on a cluster: refused with a remedy, and a model fitted before stays."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from auxbit import BinaryAutoencoder
from auxbit.errors import ClusterProblem, FileProblem, InvalidInput, InvalidParameter
from helpers.dask_cluster import local_cluster, rows_of_clusters


@pytest.fixture(scope="module")
def client():
    with local_cluster(1, processes=False, threads=2) as client:
        yield client


@pytest.fixture(scope="module")
def X():
    return rows_of_clusters(600)


def model():
    return BinaryAutoencoder(4, random_state=0, max_iter=2)


def test_a_dask_array_without_a_client_names_the_client_to_make(X):
    with pytest.raises(InvalidInput, match=r"there is none. Make one first: client = Client\(\)"):
        model().fit(da.from_array(X))


def test_a_client_is_a_client(X):
    with pytest.raises(InvalidParameter, match=r"client='here' is invalid: expected a dask\.distributed"):
        model().fit(da.from_array(X), client="here")


def test_rows_in_memory_are_not_sent_to_a_cluster(client, X):
    with pytest.raises(InvalidInput, match="a dask array or a path that the workers can read, not ndarray"):
        model().fit(X, client=client)


def test_a_checkpoint_on_a_cluster_is_refused(client, X, tmp_path):
    with pytest.raises(InvalidInput, match="on a cluster they stay with the workers"):
        model().fit(da.from_array(X), client=client, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_map_that_cannot_travel_is_refused(client, X):
    class Stuck:
        def __call__(self, rows):
            return rows

        def __reduce__(self):
            raise TypeError("it stays here")

        def __deepcopy__(self, memo):
            return self

    with pytest.raises(InvalidInput, match="a Stuck, cannot be sent to the workers of a cluster: it stays"):
        model().set_params(encoder=Stuck()).fit(da.from_array(X, chunks=(200, 12)), client=client)


def test_an_array_that_does_not_know_its_rows_is_told_how_to(client, X):
    rows = da.from_array(X, chunks=(200, 12))
    with pytest.raises(InvalidInput, match=r"Call X.compute_chunk_sizes\(\) first"):
        model().fit(rows[rows[:, 0] > 0], client=client)


@pytest.mark.parametrize("shape", [(600,), (0, 12), (600, 0)])
def test_an_array_must_have_rows_and_columns(client, shape):
    with pytest.raises(InvalidInput, match="must have rows and columns"):
        model().fit(da.zeros(shape), client=client)


def test_a_file_that_workers_cannot_read_is_named(client, tmp_path):
    with pytest.raises(FileProblem, match=r"nothing\.npy"):
        model().fit(tmp_path / "nothing.npy", client=client)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN"), (np.inf, "inf"), (1e200, "1e\\+200")])
def test_numbers_that_cannot_be_used_are_named_by_their_row_in_the_array(
    client, X, value, message, normalize
):
    bad = X.astype(np.float64)
    bad[431, 7] = bad[580, 2] = value
    fit = model().set_params(normalize=normalize)
    with pytest.raises(InvalidInput, match=f"X contains {message} at row 431, column 7"):
        fit.fit(da.from_array(bad, chunks=(100, 12)), client=client)


def test_a_fit_that_fails_leaves_the_model_as_it_was(client, X):
    fitted = model().fit(X)
    before = fitted.encoder_

    def fail(block):
        raise OSError("the disk is gone")

    rows = da.from_array(X, chunks=(200, 12)).map_blocks(fail, dtype=X.dtype, meta=X[:0])
    with pytest.raises(OSError, match="the disk is gone"):
        fitted.fit(rows, client=client)
    assert fitted.encoder_ is before


def test_a_client_that_is_closed_in_mid_fit_is_a_problem_of_the_cluster(X):
    with local_cluster(1, processes=False) as client:

        def close(record):
            client.close()

        with pytest.raises(ClusterProblem, match="Fit again"):
            model().set_params(callback=close).fit(da.from_array(X), client=client)
