from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from auxbit.errors import InvalidInput
from auxbit.hashers.autoencoder import BinaryAutoencoder
from auxbit.hashers.linear import ITQ
from auxbit.index import HammingIndex
from helpers.every_hasher import every_hasher
from helpers.vector_columns import COLUMNS

X = np.random.default_rng(0).normal(size=(150, 8))


@every_hasher
def test_every_hasher_takes_a_column_of_vectors(hasher):
    column = pd.Series(list(X))
    model, other = hasher(4, random_state=0).fit(X), hasher(4, random_state=0).fit(column)
    codes = model.encode(X)
    np.testing.assert_array_equal(other.encode(column), codes)
    np.testing.assert_array_equal(other.transform(column), model.transform(X))
    assert other.n_features_in_ == 8


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_of_any_kind_gives_what_the_array_gives(kind):
    column, model = COLUMNS[kind](X), ITQ(4, random_state=0).fit(X)
    other = ITQ(4, random_state=0).fit(column)
    np.testing.assert_array_equal(other.encode(column), model.encode(X))
    assert other.score(column) == model.score(X)
    model.fit_decoder(X, n_iter=1)
    other.fit_decoder(column, n_iter=1)
    for coding in ("hash", "optimal"):
        np.testing.assert_array_equal(other.encode(column, coding=coding), model.encode(X, coding=coding))
    index = HammingIndex(4, decoder=model.decoder_)
    index.add(model.encode(X, coding="hash"))
    for found, wanted in zip(index.search_asymmetric(column, 3), index.search_asymmetric(X, 3)):
        np.testing.assert_array_equal(found, wanted)


def test_a_fit_out_of_core_takes_a_column():
    options = {"n_bits": 4, "random_state": 0, "max_iter": 2}
    codes = [
        BinaryAutoencoder(**options).fit(rows, memory="200MB").encode(X) for rows in (X, pd.Series(list(X)))
    ]
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_names_of_features_are_kept_as_before(frame):
    rows = frame(X, [f"c{i}" for i in range(8)]) if frame is pl.DataFrame else frame(X).add_prefix("c")
    model = ITQ(4, random_state=0).fit(rows)
    assert model.feature_names_in_.tolist() == [f"c{i}" for i in range(8)]
    np.testing.assert_array_equal(model.encode(rows), ITQ(4, random_state=0).fit(X).encode(X))


def test_rows_of_different_lengths_leave_the_model_as_it_was():
    model = ITQ(4, random_state=0).fit(X)
    with pytest.raises(InvalidInput, match="X has a vector of 3 numbers in row 2; expected 8"):
        model.fit(pd.Series([X[0], X[1], X[2, :3]]))
    assert model.n_features_in_ == 8
    with pytest.raises(InvalidInput, match=r"frame with columns of lists: 'e'\. Give .* alone, as X\['e'\]"):
        model.encode(pd.DataFrame({"e": list(X)}))
