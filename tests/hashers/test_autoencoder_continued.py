"""Continuing from a fitted model: fit(init=…), streams, and retraining."""

from __future__ import annotations

import pickle
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

import auxbit
from auxbit import ITQ, BinaryAutoencoder, BinaryFactorAnalysis, Collection
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers import autoencoder
from auxbit.hashers.autoencoder import Stream

DIGITS = np.random.default_rng(0).permutation(load_digits().data)
OLD = DIGITS[: len(DIGITS) * 9 // 10]


@pytest.mark.parametrize("n_bits", [8, 32])
def test_with_a_tenth_of_the_rows_new_it_reaches_the_error_of_a_fresh_fit(n_bits):
    options = {"validation": None, "n_jobs": 1, "max_iter": 40}
    errors = []
    for seed in range(8):
        before, fresh = (
            BinaryAutoencoder(n_bits, random_state=seed, **options).fit(X) for X in (OLD, DIGITS)
        )
        model = clone(before).fit(DIGITS, init=before)
        errors.append(model.score(DIGITS) / fresh.score(DIGITS))
        assert model.history_[0].mu >= before.history_[-1].mu / (1.5 * autoencoder.GONE_BACK_HALVES)
        factors = [b.mu / a.mu for a, b in pairwise(model.history_)]  # of few rows: half steps
        assert factors == pytest.approx([(fresh.history_[1].mu / fresh.history_[0].mu) ** 0.5] * len(factors))
    assert np.mean(errors) <= 1.01  # by whole steps 1.012 to 1.014; fits from other seeds differ by 2.4 %


@pytest.mark.parametrize("n_bits", [8, 16, 32])
def test_many_rows_need_fewer_steps_than_a_fresh_fit(n_bits, monkeypatch):
    monkeypatch.setattr(autoencoder, "FEW_ROWS", 0)
    before, fresh = (BinaryAutoencoder(n_bits, validation=None, random_state=0).fit(X) for X in (OLD, DIGITS))
    model = clone(before).fit(DIGITS, init=before)
    assert model.n_iter_ < fresh.n_iter_
    factors = [b.mu / a.mu for a, b in pairwise(model.history_)]
    assert factors == pytest.approx([fresh.history_[1].mu / fresh.history_[0].mu] * len(factors))


def test_values_of_mu_that_were_given_get_none_between_them():
    values = [0.001, 0.01, 0.1, 1.0]
    model = BinaryAutoencoder(8, validation=None, mu_schedule=values, random_state=0).fit(OLD)
    assert {each.mu for each in model.fit(DIGITS, init=model).history_} <= set(values)


def test_a_model_that_continues_from_itself_on_the_same_rows_stays_as_good():
    model = BinaryAutoencoder(16, validation=None, random_state=0).fit(DIGITS)
    error = model.score(DIGITS)
    assert model.fit(DIGITS, init=model).score(DIGITS) >= 1.001 * error


def test_it_continues_the_same_out_of_core_and_with_any_number_of_threads(tmp_path):
    np.save(tmp_path / "rows.npy", DIGITS)
    before = BinaryAutoencoder(16, random_state=0).fit(OLD)
    fits = [clone(before).set_params(n_jobs=n).fit(DIGITS, init=before) for n in (1, 2)]
    fits.append(clone(before).fit(tmp_path / "rows.npy", init=before))
    for each in fits[1:]:
        assert np.array_equal(each.encode(DIGITS), fits[0].encode(DIGITS))


def test_it_continues_from_a_model_of_a_file(tmp_path):
    before = BinaryAutoencoder(16, random_state=0).fit(OLD)
    before.save(tmp_path / "m.safetensors")
    loaded = auxbit.load(tmp_path / "m.safetensors")
    both = [clone(before).fit(DIGITS, init=each) for each in (before, loaded)]
    assert np.array_equal(both[0].encode(DIGITS), both[1].encode(DIGITS))


def test_it_says_nothing_of_a_first_step_that_has_nothing_left_to_change():
    model = BinaryAutoencoder(8, validation=None, random_state=0).fit(DIGITS)
    late = clone(model).set_params(mu0=1e6)
    with pytest.warns(ConvergenceWarning, match="changed no bit"):
        late.fit(DIGITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late.fit(DIGITS, init=model)
    assert late.history_[0].changed == 0


def test_it_continues_from_a_model_that_does_not_tell_its_C():
    before = BinaryAutoencoder(8, random_state=0).fit(OLD)
    before.C_ = 0.0  # as of files of the first versions
    assert clone(before).fit(DIGITS, init=before).C_ > 0


@pytest.mark.parametrize("encoder", ["rbf", np.square], ids=["rbf", "own"])
@pytest.mark.parametrize("model_class", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_it_continues_from_features_without_a_linear_fit(model_class, encoder):
    seen = []
    before = model_class(8, encoder=encoder, n_centres=20, random_state=0).fit(OLD)
    before.fit_decoder(OLD, "linear", lists=4, n_iter=1)  # of no account
    gone_on = clone(before).set_params(callback=seen.append).fit(DIGITS, init=before)
    assert len(seen) == gone_on.n_iter_
    assert gone_on.score(DIGITS) > 1.05 * clone(before).fit(DIGITS).score(DIGITS)


def test_features_are_the_same_whatever_rows_are_scaled_by():
    model = BinaryAutoencoder(8, encoder="rbf", n_centres=20, validation=None, random_state=0).fit(OLD)
    wider = np.vstack([DIGITS, 2 * DIGITS[:20]])
    again = clone(model).set_params(mu0=1e6).fit(wider, init=model)  # nothing changes at such a μ
    assert again.scaling_.scale == 2 * model.scaling_.scale
    np.testing.assert_array_equal(again.encode(wider), model.encode(wider))
    ours, theirs = (
        each.encoder_.centres * each.scaling_.scale + each.scaling_.mean for each in (again, model)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_other_features_are_chosen_again_from_the_codes_of_the_model():
    before = BinaryAutoencoder(8, encoder="rbf", n_centres=20, random_state=0).fit(OLD)
    for options in ({"n_centres": 30}, {"bandwidth": 9.0}, {"normalize": True}, {"encoder": np.square}):
        gone_on = clone(before).set_params(**options).fit(DIGITS, init=before)
        assert gone_on.encoder_.features.width == (64 if "encoder" in options else gone_on.n_centres)
    assert BinaryAutoencoder(8, random_state=0).fit(DIGITS, init=before).n_iter_


def test_a_checkpoint_is_resumed_only_from_the_same_model(tmp_path):
    models = [BinaryAutoencoder(8, random_state=seed).fit(OLD) for seed in (0, 1)]

    class Stopped(Exception):
        pass

    def stop(record):
        if record.iteration == 2:
            raise Stopped

    again = clone(models[0]).set_params(callback=stop)
    with pytest.raises(Stopped):
        again.fit(DIGITS, init=models[0], checkpoint=tmp_path)
    again.set_params(callback=None)
    for other in (None, models[1]):
        with pytest.raises(InvalidInput, match="init"):
            again.fit(DIGITS, init=other, checkpoint=tmp_path, resume=True)
    resumed = again.fit(DIGITS, init=models[0], checkpoint=tmp_path, resume=True)
    whole = clone(again).fit(DIGITS, init=models[0])
    assert np.array_equal(resumed.encode(DIGITS), whole.encode(DIGITS))


def test_factor_analysis_continues_too():
    before = BinaryFactorAnalysis(12, random_state=0).fit(OLD)
    gone_on = clone(before).fit(DIGITS, init=before)
    assert gone_on.score(DIGITS) > 1.05 * clone(before).fit(DIGITS).score(DIGITS)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (BinaryAutoencoder(8), "takes a fitted BinaryAutoencoder"),
        (ITQ(8, random_state=0).fit(DIGITS), "takes a fitted BinaryAutoencoder"),
        ("itq", "takes a fitted BinaryAutoencoder"),
        (BinaryAutoencoder(9, random_state=0).fit(OLD), "init has 9 bits, but n_bits=8"),
        (BinaryAutoencoder(8, random_state=0).fit(OLD[:, 20:40]), "fitted to 20 columns, but X has 64"),
    ],
)
def test_what_cannot_be_continued_from_is_refused(init, message):
    model = BinaryAutoencoder(8, random_state=0)
    with pytest.raises(InvalidInput, match=message):
        model.fit(DIGITS, init=init)
    assert not hasattr(model, "encoder_")


# ---- streams


def test_a_stream_becomes_better_than_its_first_batch_and_nearly_as_good_as_all_rows():
    stream = BinaryAutoencoder(16, random_state=0)
    for first in range(0, 1600, 200):
        stream.partial_fit(DIGITS[first : first + 200])
    alone = BinaryAutoencoder(16, random_state=0).fit(DIGITS[:200])
    whole = BinaryAutoencoder(16, random_state=0).fit(DIGITS[:1600])
    held_out = DIGITS[1600:]
    assert stream.score(held_out) > 0.95 * alone.score(held_out)
    assert stream.score(held_out) > 1.08 * whole.score(held_out)


def test_the_sample_of_a_stream_has_of_each_batch_its_share():
    stream = Stream(np.zeros((0, 2), dtype=int), None, 0.0, np.random.RandomState(0))
    for batch in range(10):
        stream = stream.followed_by(np.full((100, 2), batch), None, 1.0, 60)
    assert len(stream.rows) == 60
    counts = np.bincount(stream.rows[:, 0], minlength=10)
    assert counts.min() >= 1
    assert counts.max() <= 16  # 6 each are expected
    for batch in range(10, 30):
        stream = stream.followed_by(np.full((100, 2), batch), None, 0.2, 60)
    assert (stream.rows[:, 0] >= 26).mean() > 0.95  # old rows fade


def test_a_batch_that_is_refused_leaves_model_and_sample_as_they_were():
    model = BinaryAutoencoder(8, random_state=0).partial_fit(DIGITS[:300])
    codes, sample = model.encode(DIGITS), model._stream
    for bad in (DIGITS[:10, :5], np.full((10, 64), np.nan)):
        with pytest.raises(InvalidInput):
            model.partial_fit(bad)
    with pytest.raises(InvalidParameter, match="decay"):
        model.partial_fit(DIGITS, decay=1.5)
    assert model._stream is sample
    assert np.array_equal(model.encode(DIGITS), codes)


def test_batches_that_are_frames_must_have_the_columns_of_the_first():
    frame = pd.DataFrame(DIGITS[:600]).add_prefix("pixel")
    model = BinaryAutoencoder(8, random_state=0).partial_fit(frame[:300])
    codes = model.partial_fit(frame[300:]).encode(frame)
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    stream = BinaryAutoencoder(8, random_state=0).partial_fit(DIGITS[:300]).partial_fit(DIGITS[300:600])
    assert np.array_equal(codes, stream.encode(DIGITS[:600]))
    for call in (model.partial_fit, model.encode):
        with pytest.raises(InvalidInput, match="Feature names must be in the same order"):
            call(frame[frame.columns[::-1]])


def test_a_model_without_rows_of_before_cannot_take_in_a_batch(tmp_path):
    model = BinaryAutoencoder(8, random_state=0).partial_fit(DIGITS)
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(InvalidInput, match=r"models from files and copies keep none.*fit\(X, init=model\)"):
        auxbit.load(tmp_path / "m.safetensors").partial_fit(DIGITS)
    assert not hasattr(clone(model), "_stream")
    assert "_stream" not in vars(pickle.loads(pickle.dumps(model)))  # rows do not travel with a model


def test_the_labels_of_a_stream_stay_with_their_rows():
    X, y = load_digits(return_X_y=True)
    stream = BinaryAutoencoder(8, objective="affinity", random_state=0)
    for first in (0, 300, 600):
        stream.partial_fit(X[first : first + 300], y[first : first + 300], most_rows=500)
    kept = stream._stream
    assert len(kept.rows) == 500
    known = {row.tobytes(): label for row, label in zip(X, y, strict=True)}
    assert [known[row.tobytes()] for row in kept.rows] == kept.labels.tolist()
    with pytest.raises(InvalidInput, match="2 labels for 10 rows"):
        stream.partial_fit(X[:10], y[:2])
    with pytest.raises(InvalidInput, match="y has masked numbers, 10 of"):
        stream.partial_fit(X[:10], np.ma.masked_array(y[:10], mask=True))
    with pytest.raises(InvalidInput, match="with all batches of a stream or with none"):
        stream.partial_fit(X[:10])
    assert stream._stream is kept


def test_a_fit_begins_another_stream_with_a_sample_of_its_rows():
    model = BinaryAutoencoder(8, random_state=0).partial_fit(DIGITS[:300] + 100).fit(DIGITS)
    assert model._stream.rows.max() <= 16
    model.partial_fit(DIGITS[:50] + 100)
    assert model._stream.weight == pytest.approx(len(DIGITS) * 0.9 + 50, abs=1)
    assert (model._stream.rows.max(axis=1) > 50).sum() == 50


# ---- retraining


def test_a_collection_continues_from_its_model_if_rows_are_like_those_before(monkeypatch):
    goes_on = []
    fit = BinaryAutoencoder.fit

    def noted(self, X, y=None, **how):
        goes_on.append(how.get("init") is not None)
        return fit(self, X, y, **how)

    monkeypatch.setattr(BinaryAutoencoder, "fit", noted)
    model = BinaryAutoencoder(16, random_state=0).fit(OLD)
    with Collection.create(None, model, vectors="float32") as collection:
        collection.add(DIGITS)
        del goes_on[:]
        collection.retrain()
        collection.add(DIGITS[::-1] * 3 + 50, ids=np.arange(5000, 5000 + len(DIGITS)))
        collection.retrain()
        collection.retrain(random_state=1)
    assert goes_on == [True, False, False]
