"""What a model was trained on: recorded by fit and fit_decoder, kept in its file, without effect on it."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.base import clone

import auxbit
from auxbit import ITQ, LSH, BinaryAutoencoder
from auxbit.core import files
from auxbit.core.maps import LinearDecoder, Scaling
from auxbit.core.parallel import sample_rows
from auxbit.errors import InvalidInput, ModelFileError
from auxbit.hashers import base, registry
from auxbit.hashers.base import MOST_ROWS, TrainingRecord, record_of
from auxbit.mac.loop import choose_queries
from helpers.every_hasher import DEGENERATE, every_hasher

X = np.random.default_rng(0).normal(size=(300, 10)) @ np.random.default_rng(1).normal(size=(10, 10)) + 5
MANY = np.random.default_rng(2).normal(size=(6000, 8))


def small(hasher, n_bits=6, **options):
    """A hasher that is quick to fit."""
    few = {"max_iter": 4} if "max_iter" in hasher().get_params() else {}
    seeded = {"random_state": 0} if "random_state" in hasher().get_params() else {}
    return hasher(n_bits, n_jobs=1, **few, **seeded, **options)


def fields(record):
    """Everything in a record, to be compared."""
    return {name: value.tobytes() if name == "codes" else value for name, value in vars(record).items()}


def squared_errors(model, rows, codes):
    return ((rows - model.decode(codes)) ** 2).sum(axis=1)


# ---- what is recorded


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of few iterations
@every_hasher
def test_fit_records_the_codes_and_the_error_of_the_rows_it_trained_on(hasher):
    validation = {"validation": None} if hasher is BinaryAutoencoder else {}
    model = small(hasher, **validation).fit(X)
    record, errors = model.training_, squared_errors(model, X, model.encode(X))
    assert np.array_equal(record.codes, model.encode(X))
    assert record.n_rows == len(X)
    assert record.error == pytest.approx(-model.score(X), rel=1e-12)
    assert record.error == pytest.approx(errors.mean(), rel=1e-5)
    assert record.variation == pytest.approx(errors.std() / errors.mean(), rel=1e-4)
    assert (record.coding, record.mu, record.n_vectors) == ("hash", 0.0, 7)


def test_rows_held_out_for_validation_are_not_recorded():
    model = BinaryAutoencoder(6, random_state=0, n_jobs=1).fit(X)
    held_out = choose_queries(len(X), np.random.RandomState(0))
    trained = np.delete(X, held_out, axis=0)
    assert len(held_out) == 30
    assert model.training_.n_rows == 270
    assert np.array_equal(model.training_.codes, model.encode(trained))
    assert model.training_.error == pytest.approx(-model.score(trained), rel=1e-12)


def test_of_many_rows_the_same_sample_gives_codes_and_error():
    model = LSH(6, random_state=0, n_jobs=1).fit(MANY)
    chosen = sample_rows(len(MANY))
    assert model.training_.n_rows == 6000
    assert np.array_equal(model.training_.codes, model.encode(MANY[chosen]))
    assert model.training_.error == pytest.approx(-model.score(MANY[chosen]), rel=1e-12)


@pytest.mark.parametrize(("decoder", "n_vectors"), [("linear", 11), ("tables", 1 + 256 + 4)])
def test_fit_decoder_records_the_optimal_codes_under_the_new_decoder(decoder, n_vectors):
    model = ITQ(10, random_state=0, n_jobs=1).fit(X)
    before = model.training_
    model.fit_decoder(X[:250], decoder, mu=0.01, n_iter=2)
    record, codes = model.training_, model.encode(X[:250], coding="optimal", mu=0.01)
    assert before.coding == "hash"
    assert np.array_equal(record.codes, codes)
    assert record.error == pytest.approx(squared_errors(model, X[:250], codes).mean(), rel=1e-5)
    assert (record.coding, record.mu, record.n_rows, record.n_vectors) == ("optimal", 0.01, 250, n_vectors)


def test_tables_that_were_fitted_inside_the_loop_are_recorded_with_hash_codes():
    model = BinaryAutoencoder(6, decoder="tables", validation=None, random_state=0, n_jobs=1).fit(X)
    record, codes = model.training_, model.encode(X[sample_rows(len(X))])
    assert np.array_equal(record.codes, codes)
    assert (record.coding, record.n_vectors) == ("hash", 1 + 2**6)
    wanted = squared_errors(model, X[sample_rows(len(X))], codes).mean()
    assert record.error == pytest.approx(wanted, rel=1e-5)


def test_codes_can_be_compared_only_if_they_were_made_alike():
    hashed = TrainingRecord(np.zeros((1, 1), np.uint8), 1, 1.0, 0.0, 2)
    optimal = TrainingRecord(np.zeros((1, 1), np.uint8), 1, 1.0, 0.0, 2, "optimal", 0.5)
    assert hashed.is_of("hash")
    assert hashed.is_of("hash", 3.0)
    assert not hashed.is_of("optimal")
    assert optimal.is_of("optimal", 0.5)
    assert not optimal.is_of("optimal", 0.0)
    assert not optimal.is_of("hash", 0.5)


@pytest.mark.parametrize("n_rows", [1, 17, MOST_ROWS, MOST_ROWS + 1, 100_000])
def test_a_sample_is_of_distinct_rows_in_rising_order_and_the_same_every_time(n_rows):
    rows = sample_rows(n_rows)
    assert len(rows) == min(n_rows, MOST_ROWS)
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < n_rows
    assert np.array_equal(rows, sample_rows(n_rows))


def test_a_sample_stands_for_all_rows():
    assert sample_rows(10_000_000).mean() == pytest.approx(5e6, rel=0.03)


@pytest.mark.filterwarnings("ignore")  # what fit says of such rows is tested with each hasher
@every_hasher
@pytest.mark.parametrize("kind", DEGENERATE)
def test_rows_with_little_in_them_have_a_record_too(hasher, kind):
    rows = DEGENERATE[kind](X[:150])
    record = small(hasher, 2).fit(rows).training_
    assert np.isfinite([record.error, record.variation]).all()
    assert record.variation >= 0
    assert 1 <= len(record.codes) <= min(record.n_rows, MOST_ROWS)


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_the_record_is_the_same_for_any_number_of_threads(n_jobs):
    model = ITQ(6, random_state=0, n_jobs=n_jobs).fit(MANY)
    assert fields(model.training_) == fields(ITQ(6, random_state=0, n_jobs=3).fit(MANY).training_)


# ---- results of fit do not depend on it


@every_hasher
def test_fit_gives_the_same_bits_and_draws_as_without_a_record(hasher, monkeypatch):
    def fitted():
        rng = np.random.RandomState(5)
        seeded = {"random_state": rng} if "random_state" in hasher().get_params() else {}
        model = small(hasher).set_params(**seeded).fit(MANY)
        model.fit_decoder(MANY[:500], "linear", n_iter=1)
        codes = model.encode(MANY, coding="hash")
        return codes.tobytes(), model.decode(codes).tobytes(), rng.rand()

    with_record = fitted()
    monkeypatch.setattr(base, "record_of", lambda *arguments: None)
    monkeypatch.setattr(base, "sample_rows", lambda n_rows: np.arange(1))
    assert fitted() == with_record


def test_where_recording_fails_the_model_stays_as_it_was(monkeypatch):
    model = ITQ(6, random_state=0, n_jobs=1).fit(X)
    before, codes, decoder = model.training_, model.encode(X), model.decoder_

    def failing(*arguments):
        raise MemoryError("no room for a record")

    monkeypatch.setattr(base, "record_of", failing)
    for change in (lambda: model.fit(MANY), lambda: model.fit_decoder(X, n_iter=1)):
        with pytest.raises(MemoryError, match="no room for a record"):
            change()
        assert model.training_ is before
        assert model.decoder_ is decoder
        assert np.array_equal(model.encode(X), codes)


# ---- copies and files


def test_copies_and_pickles_keep_the_record_and_clones_have_none():
    model = ITQ(6, random_state=0, n_jobs=1).fit(X)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert fields(other.training_) == fields(model.training_)
    assert not hasattr(clone(model), "training_")


@pytest.mark.parametrize("decoder", ["linear", "tables"])
def test_a_saved_model_keeps_its_record_in_a_file_of_the_same_version(decoder, tmp_path):
    model = BinaryAutoencoder(10, decoder=decoder, random_state=0, n_jobs=1).fit(X)
    model.save(tmp_path / "m")
    assert fields(auxbit.load(tmp_path / "m").training_) == fields(model.training_)
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert file.metadata()["format_version"] == {"linear": "1", "tables": "2"}[decoder]
        assert np.array_equal(file.get_tensor("training.codes"), model.training_.codes)
    assert registry.read_header(tmp_path / "m")["training"]["n_rows"] == model.training_.n_rows


def save_changed(model, path, monkeypatch, change):
    """Save a model with a header and tensors that were changed, and a checksum that fits them."""
    write = files.Format.write

    def changed(self, path, header, tensors, **options):
        change(header, tensors)
        write(self, path, header, tensors, **options)

    with monkeypatch.context() as patched:
        patched.setattr(files.Format, "write", changed)
        model.save(path)


def test_a_file_of_before_there_were_records_loads_and_is_saved_without(tmp_path, monkeypatch):
    def older(header, tensors):
        del header["training"], tensors["training.codes"]

    model = ITQ(6, random_state=0, n_jobs=1).fit(X)
    save_changed(model, tmp_path / "m", monkeypatch, older)
    loaded = auxbit.load(tmp_path / "m")
    assert loaded.training_ is None
    assert np.array_equal(loaded.encode(X), model.encode(X))
    loaded.save(tmp_path / "again")
    assert "training" not in registry.read_header(tmp_path / "again")
    assert auxbit.load(tmp_path / "again").training_ is None
    loaded.fit_decoder(X, n_iter=1)
    assert loaded.training_.coding == "optimal"
    del loaded.training_  # a pickle of before there were records
    loaded.save(tmp_path / "again")
    assert auxbit.load(tmp_path / "again").training_ is None


@pytest.mark.parametrize(
    "change",
    [
        lambda header, tensors: tensors.pop("training.codes"),
        lambda header, tensors: tensors.update({"training.codes": np.zeros((3, 2), np.uint8)}),
        lambda header, tensors: tensors.update({"training.codes": np.zeros((0, 1), np.uint8)}),
        lambda header, tensors: tensors.update({"training.codes": np.full((3, 1), 255, np.uint8)}),
        lambda header, tensors: tensors.update({"training.codes": np.zeros((9000, 1), np.uint8)}),
        lambda header, tensors: header["training"].update(n_rows=5),
        lambda header, tensors: header["training"].update(n_rows="many"),
        lambda header, tensors: header["training"].update(error=-1.0),
        lambda header, tensors: header["training"].update(error=float("nan")),
        lambda header, tensors: header["training"].update(error=None),
        lambda header, tensors: header["training"].update(coding=7),
        lambda header, tensors: header["training"].update(depth=3),
        lambda header, tensors: header["training"].pop("variation"),
        lambda header, tensors: header.update(training=[1]),
    ],
)
def test_a_record_that_cannot_be_one_is_refused(change, tmp_path, monkeypatch):
    model = ITQ(6, random_state=0, n_jobs=1).fit(X)
    save_changed(model, tmp_path / "m", monkeypatch, change)
    with pytest.raises(ModelFileError, match="is not a complete auxbit model"):
        auxbit.load(tmp_path / "m")


def test_what_a_file_keeps_is_json_and_arrays():
    record = ITQ(6, random_state=0, n_jobs=1).fit(X).training_
    header, tensors = record.parts()
    again = TrainingRecord.from_parts(json.loads(json.dumps(header)), tensors, 6)
    assert fields(again) == fields(record)
    with pytest.raises(InvalidInput, match=r"training\.codes must be packed codes of 20 bits"):
        TrainingRecord.from_parts(header, tensors, 20)


def test_rows_that_are_reconstructed_without_error_have_no_variation():
    f, scaling = LinearDecoder(np.zeros((2, 3)), np.zeros(2)), Scaling(np.zeros(2), 1.0)
    record = record_of(np.zeros((4, 2)), np.zeros((4, 1), np.uint8), f, scaling, 4)
    assert (record.error, record.variation) == (0.0, 0.0)


def test_rows_beyond_float32_have_a_record_and_a_score():
    X = np.random.default_rng(0).normal(size=(300, 8)) * 1e60
    model = ITQ(4, random_state=0).fit(X)
    np.testing.assert_allclose(model.training_.error, -model.score(X), rtol=1e-9)
    assert np.isfinite(model.training_.error)
