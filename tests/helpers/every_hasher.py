"""What several test files ask of every hasher: the list of them, rows with little in them, digits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.hashers.registry import ESTIMATORS

HASHERS = [method.load_class() for method in ESTIMATORS.values()]
every_hasher = pytest.mark.parametrize("hasher", HASHERS, ids=lambda cls: cls.__name__)


def constant_features(X):
    X = X.copy()
    X[:, 5:] = 7
    return X


# from at least 120 rows of 8 columns or more, float64
DEGENERATE = {
    "constant features": constant_features,
    "duplicate rows": lambda X: np.repeat(X[:20], 6, axis=0),
    "identical rows": lambda X: np.tile(X[:1], (120, 1)),
    "identical rows of 0.1": lambda X: np.full((120, 8), 0.1),
    "identical rows, more than a block": lambda X: np.full((4097, 8), 0.1),
    "identical rows, huge": lambda X: np.full((120, 8), 1e25 / 3),
    "nearly all identical": lambda X: np.vstack([np.tile(X[:1], (180, 1)), X[1:20]]),
    "zeros": lambda X: np.zeros((120, 8)),
    "two rows": lambda X: X[:2],
    "three rows": lambda X: X[:3],
    "two kinds of rows": lambda X: np.repeat(X[:2], 60, axis=0),
    "one outlier": lambda X: np.vstack([X[:119], X[:1] + 1e6]),
    "tiny": lambda X: X[:120] * 1e-30,
    "huge": lambda X: X[:120] * 1e30,
}


def digits_precision(model, seed):
    """Precision with K = k = 50 on digits: 1297 rows to fit and search, 500 queries, split by the seed."""
    X = load_digits().data
    order = np.random.RandomState(seed).permutation(len(X))
    base, queries = X[order[:1297]], X[order[1297:]]
    model.fit(base)
    truth = ground_truth(base, queries, 50)
    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, model.n_bits)
    return precision_recall_at_k(ranking, 50).precision
