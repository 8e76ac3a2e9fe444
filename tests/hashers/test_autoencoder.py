"""The history of a fit: its energies and penalties, callbacks, the log, and where it ends."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from auxbit import LSH, BinaryAutoencoder
from helpers import autoencoder_models
from helpers.autoencoder_models import both_models, decoded, error_of, short

some = autoencoder_models.some


@pytest.mark.parametrize("unit", [1.0, 16.0, 1000.0])
@pytest.mark.parametrize("z_solver", ["exact", "enumerate", "alternating"])
def test_the_energies_of_a_record_are_those_of_its_step_in_the_units_of_the_rows(unit, z_solver, some):
    X = some * unit + 3
    bits = LSH(8, random_state=5).fit(X).transform(X)
    bits ^= np.random.default_rng(0).random(bits.shape) < 0.1  # so that no linear h has these codes
    with pytest.warns(ConvergenceWarning, match="bits of Z that differ"):
        model = short(BinaryAutoencoder, init=bits, z_solver=z_solver, max_iter=1).fit(X)
    (record,) = model.history_
    H = model.transform(X)
    assert pytest.approx(((X - decoded(X, bits, H)) ** 2).sum(), rel=1e-5) == record.E_BA
    assert record.E_Q < record.E_BA  # Z = h(X) is one of the codes that the Z step may choose
    assert record.changed > 0
    assert record.mismatched > 0
    assert record.precision is None
    assert error_of(model, X) < record.E_BA  # the decoder refitted to h(X)


@both_models
def test_energies_have_the_units_of_the_rows_and_the_bits_none(model_class, some):
    model, large = (short(model_class).fit(X) for X in (some, 1000 * some + 7))
    assert np.array_equal(model.encode(some), large.encode(1000 * some + 7))
    for one, other in zip(model.history_, large.history_, strict=True):
        assert pytest.approx(1e6 * one.E_Q, rel=1e-6) == other.E_Q
        assert pytest.approx(1e6 * one.E_BA, rel=1e-6) == other.E_BA


def test_the_fit_ends_when_the_codes_are_those_of_the_hash_function(some):
    model = BinaryAutoencoder(8, validation=None, random_state=0).fit(some)
    *before, last = model.history_
    assert last.mismatched == 0
    assert pytest.approx(last.E_BA, rel=1e-9) == last.E_Q
    assert all(record.mismatched > 0 for record in before)
    assert model.n_iter_ == len(model.history_) < 50
    assert [record.iteration for record in model.history_] == list(range(1, model.n_iter_ + 1))
    assert error_of(model, some) <= last.E_BA * (1 + 1e-6)


def test_the_penalty_follows_the_schedule(some):
    def penalties(**parameters):
        return [
            record.mu
            for record in short(BinaryAutoencoder, validation=some[:50], **parameters).fit(some).history_
        ]

    many = {"patience": 50}
    np.testing.assert_allclose(penalties(mu0=0.02, mu_factor=2, max_iter=3, **many), [0.02, 0.04, 0.08])
    assert penalties(mu_schedule=[0.1, 0.3], **many) == [0.1, 0.3]
    assert penalties(mu_schedule=np.array([0.1, 0.3, 0.4]), max_iter=2, **many) == [0.1, 0.3]
    np.testing.assert_allclose(penalties(steps_per_mu=2, max_iter=3, **many), [0.01, 0.01, 0.03])


def test_a_schedule_that_ends_too_early_is_warned_of_where_the_user_called_fit(some):
    with pytest.warns(ConvergenceWarning, match=r"ended at mu=0.02, .*Raise max_iter or mu_factor") as caught:
        model = BinaryAutoencoder(8, mu_schedule=[0.01, 0.02], validation=None, random_state=0).fit(some)
    assert caught[0].filename == __file__
    assert model.n_iter_ == 2


@both_models
def test_the_callback_gets_each_record_as_it_is_made(model_class, some):
    seen = []
    model = short(model_class, callback=seen.append).fit(some)
    assert seen == model.history_
    assert len(seen) > 1


@both_models
def test_an_error_in_the_callback_ends_the_fit_and_is_not_hidden(model_class, some):
    def stop(record):
        raise KeyboardInterrupt("enough")

    model = short(model_class, callback=stop)
    with pytest.raises(KeyboardInterrupt, match="enough"):
        model.fit(some)
    assert not hasattr(model, "encoder_")


@both_models
def test_verbose_logs_a_line_for_each_iteration_and_silence_is_the_default(model_class, some, caplog):
    with caplog.at_level(logging.INFO, logger="auxbit"):
        quiet = short(model_class).fit(some)
        assert not caplog.records
        model = short(model_class, verbose=1).fit(some)
    assert len(caplog.messages) == model.n_iter_ == quiet.n_iter_
    assert all("E_Q" in message and "mismatched" in message for message in caplog.messages)


def test_the_log_has_the_precision_where_there_are_queries(some, caplog):
    with caplog.at_level(logging.INFO, logger="auxbit"):
        model = short(BinaryAutoencoder, verbose=1, validation="auto").fit(some)
    assert f"precision {model.history_[0].precision:.4f}" in caplog.messages[0]


@both_models
def test_at_most_max_iter_iterations_are_made(model_class, some):
    model = short(
        model_class, max_iter=2, **({"validation": "auto"} if model_class is BinaryAutoencoder else {})
    )
    assert model.fit(some).n_iter_ == 2


@both_models
def test_normalized_rows_make_codes_that_do_not_see_the_length_of_a_row(model_class, some):
    model = short(model_class, normalize=True).fit(some)
    lengths = np.random.default_rng(0).uniform(0.1, 50, size=(400, 1))
    assert np.array_equal(model.encode(some * lengths), model.encode(some))
    assert model.score(some * lengths) == pytest.approx(model.score(some), rel=1e-5)
    plain = short(model_class).fit(some)
    assert not np.array_equal(plain.encode(some * lengths), plain.encode(some))
    unit = some / np.linalg.norm(some, axis=1, keepdims=True)
    assert np.array_equal(short(model_class).fit(unit).encode(unit), model.encode(some))


def test_a_row_of_zeros_can_be_normalized(some):
    X = some.copy()
    X[3] = 0
    assert np.isfinite(short(BinaryAutoencoder, normalize=True).fit(X).score(X))
