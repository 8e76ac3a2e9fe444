"""What tests of exports share: fitted models, and rows that float32 finds hard."""

from __future__ import annotations

from functools import cache

import numpy as np

from auxbit import BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.data import vectors

QUICK = {BinaryAutoencoder: {"max_iter": 2}, BinaryFactorAnalysis: {"max_iter": 2}}


@cache
def digits_rows():
    return np.asarray(vectors.embedded_digits()[0], dtype=np.float32)


@cache
def fitted(hasher, n_bits=13, **options):
    """A model of 600 digits; the other rows are new to it."""
    options = {**QUICK.get(hasher, {}), **options}
    return hasher(n_bits, random_state=0, n_jobs=1, **options).fit(digits_rows()[:600])


def on_hyperplanes(model, X):
    """Rows moved onto each hyperplane in turn, as near as float32 comes to it."""
    W, bias, scaling = model.encoder_.weights.astype(np.float64), model.encoder_.bias, model.scaling_
    moved = []
    for bit in range(W.shape[1]):
        score = scaling.exactly(X) @ W[:, bit] + bias[bit]
        step = -score / (W[:, bit] @ W[:, bit]) * scaling.scale
        moved.append((X + step[:, None] * W[:, bit]).astype(np.float32))
    return np.vstack(moved)


def doubtful(model, X):
    """Whether each score is too near 0 for float32, in the opinion of `encode`. → (n, n_bits) bool."""
    raw = model.encoder_.before(model.scaling_)
    return np.abs(raw.rows(X) @ raw.weights + raw.bias) < raw.margin
