"""Every hasher and decoder out of core (hashers/base.py): the model of rows in memory, or of a sample."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import auxbit
from auxbit import ITQ, LSH, BinaryAutoencoder, KernelizedLSH, ThresholdedPCA
from auxbit.core.decoders import ListDecoder
from auxbit.core.parallel import sample_rows
from auxbit.data.vectors import Budget
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from auxbit.hashers.registry import make_hasher
from auxbit.quantiser.fit import rows_of_decoder
from helpers.every_hasher import every_hasher
from helpers.hasher_models import made
from helpers.large_rows import KINDS, OnlySlices, clustered, stored

X = clustered()
LINEAR = (LSH, ThresholdedPCA, ITQ)
linear = pytest.mark.parametrize("hasher", LINEAR, ids=lambda cls: cls.__name__)


def assert_same(model, wanted, rows=X):
    """The same hash function to the last bit, and a decoder that differs by the order of its sums alone."""
    tensors = wanted.encoder_.tensors()
    for name, found in model.encoder_.tensors().items():
        np.testing.assert_array_equal(found, tensors[name])
    np.testing.assert_array_equal(model.scaling_.mean, wanted.scaling_.mean)
    np.testing.assert_allclose(model.decoder_.A, wanted.decoder_.A, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(model.decoder_.b, wanted.decoder_.b, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(model.training_.codes, wanted.training_.codes)
    assert model.training_.n_rows == wanted.training_.n_rows == len(rows)
    assert model.training_.error == pytest.approx(wanted.training_.error, rel=1e-6)
    assert model.n_features_in_ == rows.shape[1]


class Counted(OnlySlices):
    """Rows that count how often each block of them is read."""

    def __init__(self, X):
        super().__init__(X)
        self.reads = np.zeros(-(-len(X) // 4096), dtype=int)

    def __getitem__(self, rows):
        if rows.stop - rows.start > 1:  # the first row tells the type
            self.reads[rows.start // 4096 : -(-rows.stop // 4096)] += 1
        return super().__getitem__(rows)


# ---- hash functions


@every_hasher
@pytest.mark.parametrize("more", [{}, {"normalize": True}, {"lift": True}], ids=str)
def test_every_method_is_the_one_of_rows_in_memory_if_there_is_room_for_them(tmp_path, hasher, more):
    rows = load_digits().data
    model = made(hasher, **more).fit(stored(".npy", rows, tmp_path), memory="500MB")
    wanted = made(hasher, **more).fit(rows)
    if hasher is BinaryAutoencoder:  # a tenth is held out
        np.testing.assert_array_equal(model.transform(rows), wanted.transform(rows))
    else:
        assert_same(model, wanted, rows)


@linear
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_give_the_model_of_rows_in_memory(tmp_path, hasher, kind):
    rows = X.astype(np.uint8) if kind == ".bvecs" else X
    assert_same(hasher(8, random_state=0).fit(stored(kind, rows, tmp_path), memory="1GB"),
                hasher(8, random_state=0).fit(rows))  # fmt: skip


@linear
def test_sums_of_rows_that_are_not_held_are_those_of_rows_in_memory(monkeypatch, hasher):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)
    rows = clustered(9000, 8)
    assert_same(hasher(6, random_state=0).fit(OnlySlices(rows)), hasher(6, random_state=0).fit(rows), rows)


@linear
def test_fewer_rows_than_columns_have_the_axes_of_rows_in_memory(hasher):
    rows = clustered(20, 50)
    assert_same(hasher(8, random_state=0).fit(OnlySlices(rows)), hasher(8, random_state=0).fit(rows), rows)


@every_hasher
@pytest.mark.parametrize("n_jobs", [2, 3])
def test_the_model_does_not_depend_on_the_number_of_threads(hasher, n_jobs, monkeypatch):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)
    monkeypatch.setattr("auxbit.mac.fit.FITTED_ROWS", 5000)
    rows = clustered(9000, 8)
    one, more = (made(hasher, 6, n_jobs=n).fit(OnlySlices(rows)) for n in (1, n_jobs))
    np.testing.assert_array_equal(one.transform(rows), more.transform(rows))
    np.testing.assert_array_equal(one.decoder_.A, more.decoder_.A)


@pytest.mark.parametrize(
    ("hasher", "passes"), [(LSH, 2), (ThresholdedPCA, 3), (ITQ, 4), (KernelizedLSH, 3)], ids=str
)
@pytest.mark.parametrize("lift", [False, True])
def test_rows_are_read_once_for_the_scaling_for_axes_for_a_sample_and_for_the_decoder(
    hasher, passes, lift, monkeypatch
):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)
    rows = Counted(clustered(30_000, 8))
    hasher(6, lift=lift, random_state=0).fit(rows)
    assert np.median(rows.reads) == passes + lift + 1  # of these few rows, the record's are in all blocks


def test_a_rotation_is_found_on_as_many_rows_as_memory_has_room_for(monkeypatch):
    rows = clustered(9000, 8)
    whole = ITQ(6, random_state=0).fit(rows)
    monkeypatch.setattr("auxbit.hashers.linear.ROTATED_SHARE", 4 * (8 + 4 * 6) * 5000 / 10**9)
    one, same = (ITQ(6, random_state=0).fit(OnlySlices(rows)) for _ in range(2))
    np.testing.assert_array_equal(one.encoder_.weights, same.encoder_.weights)
    assert (one.encoder_.weights != whole.encoder_.weights).any()
    span = np.linalg.qr(whole.encoder_.weights.astype(float))[0]  # the axes are those of all rows
    np.testing.assert_allclose(span @ span.T @ one.encoder_.weights, one.encoder_.weights, atol=1e-5)
    assert one.score(rows) == pytest.approx(whole.score(rows), rel=0.1)


@pytest.mark.parametrize("name", ["sh", "sph", "klsh", "agh"])
def test_methods_without_sums_learn_from_a_sample_and_their_decoder_from_all_rows(name, monkeypatch):
    monkeypatch.setattr("auxbit.mac.fit.FITTED_ROWS", 2000)
    rows, model, seen = clustered(9000, 8), make_hasher(name, 6, random_state=0), []
    learn = model._learn
    model._learn = lambda given: (seen.append(given.X.shape), learn(given))[1]
    model.fit(OnlySlices(rows))
    assert seen == [(2000, 8)]
    assert model.training_.n_rows == 9000
    residual = rows - model.inverse_transform(model.transform(rows))
    assert np.abs(residual.mean(axis=0)).max() < 1e-3
    wanted = make_hasher(name, 6, random_state=0).fit(rows[sample_rows(9000, 2000)])
    assert model.score(rows) == pytest.approx(wanted.score(rows), rel=0.25)


def test_a_model_of_a_file_is_whole(tmp_path):
    model = ITQ(8, random_state=0).fit(stored(".npy", X, tmp_path))
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(auxbit.load(tmp_path / "m.safetensors").encode(X), model.encode(X))


# ---- decoders


def fitted(n_bits=16, rows=X):
    return ITQ(n_bits, random_state=0).fit(rows)


@pytest.mark.parametrize("kind", ["linear", "tables", "auto"])
def test_a_decoder_of_a_file_is_the_one_of_rows_in_memory_if_there_is_room_for_them(tmp_path, kind):
    wanted, model = fitted().fit_decoder(X, kind, n_iter=3), fitted()
    model.fit_decoder(stored(".npy", X, tmp_path), kind, n_iter=3)
    for name, found in model.decoder_.tensors().items():
        np.testing.assert_array_equal(found, wanted.decoder_.tensors()[name])
    assert model.training_.n_rows == 1500
    assert model.training_.is_of("optimal")
    np.testing.assert_array_equal(model.training_.codes, wanted.training_.codes)


@pytest.mark.parametrize("kind", ["linear", "tables"])
def test_of_more_rows_a_sample_is_enough_and_the_record_says_so(kind, monkeypatch):
    monkeypatch.setattr("auxbit.hashers.base.DECODER_ROWS", 1000)
    wanted = fitted().fit_decoder(X[sample_rows(1500, 1000)], kind, n_iter=3)
    for n_jobs in (1, 2):
        model = fitted().set_params(n_jobs=n_jobs).fit_decoder(OnlySlices(X), kind, n_iter=3)
        for name, found in model.decoder_.tensors().items():
            np.testing.assert_array_equal(found, wanted.decoder_.tensors()[name])
        assert model.training_.n_rows == wanted.training_.n_rows == 1000
        np.testing.assert_array_equal(model.training_.codes, wanted.training_.codes)


def test_lists_are_those_of_all_rows_found_on_a_sample(monkeypatch):
    monkeypatch.setattr("auxbit.hashers.base.DECODER_ROWS", 100)
    model = fitted().fit_decoder(OnlySlices(X), "tables", lists=12, n_iter=2)  # 12 lists need 768 rows
    assert isinstance(model.decoder_, ListDecoder)
    assert model.training_.n_rows == 768
    wanted = fitted().fit_decoder(X[sample_rows(1500, 768)], "tables", lists=12, n_iter=2)
    np.testing.assert_array_equal(model.decoder_.centroids, wanted.decoder_.centroids)


def test_the_more_memory_the_more_rows_a_decoder_is_fitted_to():
    rows = [rows_of_decoder(Budget.parse(memory).total, 128) for memory in ("128MB", "400MB", "1GB")]
    assert rows == sorted(rows)
    assert 5_000 < rows[0] < 20_000
    assert rows[2] > 150_000
    assert rows_of_decoder(10**9, 1536) < rows[2] / 5


# ---- what cannot be


@linear
@pytest.mark.parametrize(
    ("rows", "memory", "why"),
    [
        (X[:1], "1GB", "X has 1 row; a model needs at least 2"),
        (X[:0], "1GB", "must have rows and columns"),
        (X[0], "1GB", "must have rows and columns"),
        (X, "1MB", "at least 128MB"),
        (X, "lots", "memory='lots' is invalid"),
        (np.zeros((9, 3000), np.uint8), "128MB", r"expected at least \d+MB for rows of 3000"),
        (np.where(np.arange(1500)[:, None] == 211, np.nan, X), "1GB", "X contains NaN at row 211"),
    ],
)
def test_rows_that_cannot_be_fitted_to_are_refused_and_the_model_stays(hasher, rows, memory, why):
    model = hasher(8, random_state=0).fit(X)
    before = dict(vars(model))
    with pytest.raises(InvalidInput, match=why):
        model.fit(rows, memory=memory)
    assert vars(model) == before


@linear
def test_a_checkpoint_is_for_methods_with_iterations(hasher):
    with pytest.raises(TypeError, match="checkpoint"):
        hasher(8).fit(X, checkpoint="here")


def test_more_bits_than_axes_are_refused_out_of_core_too():
    with pytest.raises(InvalidParameter, match="n_bits=32 is invalid: expected at most 24 for ITQ"):
        ITQ(32).fit(OnlySlices(X))


def test_rows_that_a_decoder_cannot_be_fitted_to_are_refused_and_the_model_stays(tmp_path):
    model = fitted()
    before = dict(vars(model))
    for rows, why in (
        (OnlySlices(X[:, :10]), "X has 10 features, but the model was fitted to 24"),
        (OnlySlices(np.full((50, 24), np.nan)), "a sample of X contains NaN"),
        (np.zeros((0, 24)), "rows and columns"),
    ):
        with pytest.raises(InvalidInput, match=why):
            model.fit_decoder(rows, memory="1GB")
    with pytest.raises(DataFileError, match=r"none\.npy does not exist"):
        model.fit_decoder(tmp_path / "none.npy")
    with pytest.raises(InvalidParameter, match="at least 128MB"):
        model.fit_decoder(X, memory="1MB")
    assert vars(model) == before
