"""# Train on a cluster

If the rows are on the workers of a Dask cluster, the model is trained there. Only the
hash function, the decoder and sums are sent, and the model is the same as on one machine.
The cluster here is two processes; `Client("scheduler:8786")` connects to a real one.
"""

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder

if __name__ == "__main__":
    X = np.repeat(load_digits().data, 10, axis=0)
    X += np.random.default_rng(0).normal(size=X.shape)

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster):
        rows = da.from_array(X, chunks=(4096, 64))
        there = BinaryAutoencoder(16, random_state=0).fit(rows)
        bits = there.transform(rows)  # a lazy dask array
        print("on the cluster:", there.n_iter_, "iterations; bits:", bits.shape)
        codes = bits.compute()

    here = BinaryAutoencoder(16, random_state=0).fit(X)
    equal = (here.transform(X) == codes).mean()
    print("here:", here.n_iter_, "iterations; equal bits:", equal)
