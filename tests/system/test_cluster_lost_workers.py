"""Workers that are killed while they work: the fit continues, to the same model."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import BinaryAutoencoder
from helpers.dask_cluster import die_in, local_cluster, rows_of_clusters

SHARD, PASSES, TABLE = "auxbit.mac.rows", "auxbit.mac.cluster", "auxbit.mac.cluster"


@pytest.fixture(scope="module")
def client():
    with local_cluster(3) as client:  # whichever is killed is started again, sooner or later
        yield client


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(path, rows_of_clusters(14_000))
    return path


def fitted(path, client):
    return BinaryAutoencoder(8, random_state=0, max_iter=3, n_jobs=1).fit(path, client=client)


@pytest.fixture(scope="module")
def undisturbed(path, client):
    return fitted(path, client)


@pytest.mark.parametrize(
    ("module", "function", "calls"),
    [
        (TABLE, "check_numbers", 1),  # the first pass
        pytest.param(PASSES, "nearest_scaled", 1, marks=pytest.mark.slow),  # validation
        pytest.param(SHARD, "along_step", 5, marks=pytest.mark.slow),  # the h step
        (
            SHARD,
            "z_pass",
            3,
        ),  # the Z step, when codes have been made and replaced
        (SHARD, "hash_sums", 1),  # the decoder at the end
    ],
)
def test_a_worker_that_dies_in_a_step_does_not_change_the_model(
    client, path, undisturbed, tmp_path, module, function, calls
):
    flag = tmp_path / "died"
    client.run(die_in, module, function, calls, str(flag))
    model = fitted(path, client)
    assert flag.exists()
    assert np.array_equal(model.encoder_.weights, undisturbed.encoder_.weights)
    assert np.array_equal(model.encoder_.bias, undisturbed.encoder_.bias)
    assert [record.E_Q for record in model.history_] == [record.E_Q for record in undisturbed.history_]
