"""# An estimator of your own

A hashing method is a class with `fit` and `transform`. It can be compared with auxbit's
methods as it is, and a binary autoencoder can start from its codes and improve on them.
"""

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, plot
from auxbit.experiments.compare import compare

X = load_digits().data
base, queries = X[300:], X[:300]


# %% A simple method: each bit projects on the difference of two random rows, and compares
# with the median.
class RandomPairs(TransformerMixin, BaseEstimator):
    def __init__(self, n_bits=32, random_state=0):
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X, y=None):
        rng = np.random.default_rng(self.random_state)
        left, right = rng.integers(len(X), size=(2, self.n_bits))
        self.directions_ = (X[left] - X[right]).T
        self.thresholds_ = np.median(X @ self.directions_, axis=0)
        return self

    def transform(self, X):
        return (X @ self.directions_ > self.thresholds_).astype(np.uint8)


# %% Compare it with LSH and the binary autoencoder (BA) at equal numbers of bits.
methods = {"pairs": RandomPairs, "LSH": "lsh", "BA": "ba"}
rows = compare(base, base, queries, methods, bits=[8, 16, 32])
plot.precision(rows)

# %% Start a binary autoencoder from its codes: `init` takes an array of codes.
start = RandomPairs(16).fit(base)
ba = BinaryAutoencoder(16, init=start.transform(base), random_state=0).fit(base)
first, kept = ba.history_[0], max(ba.history_, key=lambda record: record.precision)
print(f"validation precision: {first.precision:.3f} at first,", end=" ")
print(f"{kept.precision:.3f} in the model that is kept")
