"""A fit by passes is the fit in memory: every kind of file, every option, the same bits."""

from __future__ import annotations

import gc

import h5py
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

import auxbit
from auxbit import ITQ, BinaryAutoencoder, BinaryFactorAnalysis
from auxbit.core.maps import pack_bools
from auxbit.core.parallel import draw_rows
from auxbit.data.vectors import Budget
from helpers.large_rows import KINDS, OnlySlices, clustered, history_of, quick, stored

X = clustered()


def assert_same(model, wanted, rows=X):
    """The same hash function to the last bit, by the same way."""
    np.testing.assert_array_equal(model.encoder_.weights, wanted.encoder_.weights)
    np.testing.assert_array_equal(model.encoder_.bias, wanted.encoder_.bias)
    np.testing.assert_array_equal(model.transform(rows), wanted.transform(rows))
    np.testing.assert_allclose(model.decoder_.A, wanted.decoder_.A, rtol=1e-5, atol=1e-7)
    assert model.n_iter_ == wanted.n_iter_
    assert model.score(rows) == pytest.approx(wanted.score(rows), rel=1e-6)
    for found, known in zip(history_of(model), history_of(wanted), strict=True):
        assert found.pop("precision") == known.pop("precision")
        assert found == pytest.approx(known, rel=1e-5)


@pytest.fixture(scope="module")
def in_memory():
    """Models fitted in memory, one for each type of rows."""
    return {dtype: quick().fit(X.astype(dtype)) for dtype in (np.float32, np.uint8, np.float64)}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, np.uint8 if kind == ".bvecs" else np.float32) for kind in KINDS]
    + [(kind, dtype) for kind in (".npy", ".h5", ".parquet") for dtype in (np.uint8, np.float64)],
)
def test_rows_of_every_kind_and_type_give_the_model_of_rows_in_memory(tmp_path, in_memory, kind, dtype):
    model = quick().fit(stored(kind, X.astype(dtype), tmp_path), memory="1GB")
    assert_same(model, in_memory[dtype])


def test_a_file_of_hdf5_is_closed_after_a_fit_and_what_others_have_open_stays_open(tmp_path):
    path = stored(".h5", X, tmp_path)
    with h5py.File(path) as theirs:
        gc.disable()  # which would close it some time later
        try:
            auxbit.LSH(8, random_state=0).fit(path)
            np.testing.assert_array_equal(theirs["train"][:5], X[:5])
            theirs.close()
            with h5py.File(path, "a") as file:
                file["other"] = X[:5]
        finally:
            gc.enable()


@pytest.mark.parametrize(
    "parameters",
    [
        {"init": "tpca"},
        {"init": "lsh"},
        {"init": ITQ(8, random_state=3)},
        {"init": ITQ(8, random_state=3).fit(clustered(300, seed=1))},
        {"init": np.random.default_rng(5).integers(0, 2, (1500, 8))},
        {"init": pack_bools(np.random.default_rng(5).integers(0, 2, (1500, 8)))},
        {"validation": None},
        {"validation": clustered(40, seed=2)},
        {"normalize": True},
        {"lift": True},
        {"lift": True, "validation": clustered(40, seed=2), "init": ITQ(8, lift=True, random_state=3)},
        {"n_bits": 16},
        {"n_bits": 20, "z_solver": "exact"},
        {"n_bits": 32},  # more than the columns
        {"n_bits": 32, "z_start": "warm", "group_size": 2},
        {"h_solver": "ridge"},
        {"h_solver": "ridge", "validation": None},
        {"steps_per_mu": 2},
        {"mu_schedule": [0.1, 1, 10]},
        {"n_jobs": 1},
    ],
    ids=lambda given: ",".join(f"{name}={str(value)[:12]!r}" for name, value in given.items()),
)
@pytest.mark.filterwarnings("ignore:.*has axes for only:UserWarning")
@pytest.mark.filterwarnings("ignore:the fit ended")
def test_every_option_means_the_same_out_of_core(tmp_path, parameters):
    path = stored(".npy", X, tmp_path)
    assert_same(quick(**parameters).fit(path), quick(**parameters).fit(X))


@pytest.mark.parametrize("n_bits", [8, 16, 32, 64])
@pytest.mark.parametrize("model", [
    BinaryAutoencoder(), BinaryAutoencoder(init="agh", validation=None), BinaryFactorAnalysis(),
    BinaryAutoencoder(h_solver="ridge"),
])  # fmt: skip
def test_real_rows_give_the_same_bits_from_a_file(tmp_path, model, n_bits):
    rows = load_digits().data  # no separable clusters: scores near 0 are many
    models = [clone(model).set_params(n_bits=n_bits, random_state=0) for _ in range(2)]
    assert_same(models[0].fit(stored(".npy", rows, tmp_path)), models[1].fit(rows), rows)


@pytest.mark.parametrize("parameters", [{}, {"init": "bfa"}, {"on_miss": "return", "patience": 10}])
def test_rows_that_are_held_have_the_history_of_rows_in_memory_to_the_last_digit(parameters):
    rows = np.random.default_rng(0).normal(size=(500, 24)).astype(np.float32)
    for seed in range(3):
        models = [BinaryAutoencoder(12, random_state=seed, **parameters) for _ in range(2)]
        outside, inside = models[0].fit(OnlySlices(rows)), models[1].fit(rows)
        assert history_of(outside) == history_of(inside)


@pytest.mark.parametrize("n", [2, 3, 50, 99, 101])
@pytest.mark.filterwarnings("ignore:.*has axes for only:UserWarning")
@pytest.mark.filterwarnings("ignore:the fit ended")
def test_few_rows_are_fitted_as_they_are_in_memory(n):
    few = clustered(n)
    assert_same(quick(4).fit(OnlySlices(few)), quick(4).fit(few), few)


def test_rows_that_are_all_the_same_are_fitted():
    same = np.ones((200, 4), dtype=np.float32)
    model = quick(3).fit(OnlySlices(same))
    assert (model.transform(same) == model.transform(same)[0]).all()
    np.testing.assert_allclose(model.inverse_transform(model.transform(same)), same, rtol=1e-6)


def test_agh_starts_from_rows_of_its_own_choice(tmp_path):
    model = quick(init="agh").fit(stored(".npy", X, tmp_path))
    in_memory = quick(init="agh").fit(X)
    assert model.score(X) == pytest.approx(in_memory.score(X), rel=0.05)


def test_random_codes_are_the_same_for_the_same_seed_and_any_number_of_threads():
    one, two, other = (
        quick(init="random", n_jobs=n_jobs, random_state=seed).fit(OnlySlices(X)).transform(X)
        for n_jobs, seed in ((1, 0), (2, 0), (1, 1))
    )
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_the_bits_do_not_depend_on_the_number_of_threads(n_jobs):
    rows = clustered(9000, 8)
    models = [quick(n_jobs=n, max_iter=2).fit(OnlySlices(rows)) for n in (1, n_jobs)]
    np.testing.assert_array_equal(models[0].encoder_.weights, models[1].encoder_.weights)
    assert history_of(models[0]) == history_of(models[1])


def test_sizes_of_steps_from_a_sample_give_nearly_the_same_bits(monkeypatch):
    rows = clustered(20_000, 16)
    in_memory = quick(16, max_iter=8).fit(rows)
    monkeypatch.setattr(Budget, "rows_of", lambda self, row_bytes, share, most, least=1000: min(most, 5000))
    monkeypatch.setattr("auxbit.hashers.autoencoder.ITQ_ROWS", 5000)
    wanted = quick(16, max_iter=8).fit(rows)
    model = quick(16, max_iter=8).fit(OnlySlices(rows))
    assert (model.transform(rows) == wanted.transform(rows)).mean() > 0.995
    assert model.score(rows) == pytest.approx(wanted.score(rows), rel=1e-3)
    assert model.score(rows) == pytest.approx(in_memory.score(rows), rel=0.1)


def test_of_very_many_rows_samples_are_drawn_without_numbering_them_all(monkeypatch):
    monkeypatch.setattr("auxbit.core.parallel.SHUFFLED_ROWS", 100)
    drawn = [draw_rows(1500, 40, np.random.RandomState(seed)) for seed in (0, 0, 1)]
    assert len(np.unique(drawn[0])) == 40
    assert (np.diff(drawn[0]) > 0).all()
    assert drawn[0][-1] < 1500
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert_same(quick(max_iter=2).fit(OnlySlices(X)), quick(max_iter=2).fit(X))


# ---- passes


@pytest.fixture
def few_held(monkeypatch):
    """Rows are more than are held, as those are that fits out of core are for."""
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 1000)


def counted(rows):
    """Rows that count how often each is read."""

    class Counting(OnlySlices):
        def __init__(self) -> None:
            super().__init__(rows)
            self.reads = np.zeros(len(rows), dtype=int)

        def __getitem__(self, some):
            self.reads[some] += 1
            return super().__getitem__(some)

    return Counting()


@pytest.mark.parametrize(("h_solver", "samples"), [("svm", 4), ("ridge", 3)])
@pytest.mark.parametrize("more", [{}, {"normalize": True}, {"lift": True}], ids=str)
def test_passes_are_counted_as_rows_were_read(h_solver, samples, more, few_held):
    rows = counted(clustered(30_000, 8))
    model = quick(h_solver=h_solver, max_iter=3, init="lsh", C=100, **more).fit(rows)
    # samples come on top: queries, for the first mu, what was trained on, for the SVMs' steps; of so few rows
    # they are in all blocks
    assert np.median(rows.reads) == model.n_passes_ + samples


def test_rows_that_fit_into_memory_are_held():
    rows = counted(clustered(30_000, 8))
    model = quick(max_iter=3, init="lsh").fit(rows)
    assert model.n_passes_ == 2  # to measure them, and to hold them
    assert np.median(rows.reads) <= 5  # samples come on top


def test_an_iteration_takes_two_passes_and_with_ridge_one(monkeypatch):
    monkeypatch.setattr("auxbit.mac.fit.MOST_SAMPLED", 20_000)
    rows = clustered(30_000, 8)
    for h_solver, a_step in (("svm", 2), ("ridge", 1)):
        short, longer = (
            quick(h_solver=h_solver, max_iter=n, patience=9, mu_factor=1.2, C=100).fit(OnlySlices(rows))
            for n in (2, 6)
        )
        assert longer.n_iter_ == 6
        assert longer.n_passes_ - short.n_passes_ == 4 * a_step


def test_passes_are_kept_with_the_model_and_forgotten_by_a_fit_in_memory(tmp_path, few_held):
    model = quick(max_iter=2).fit(OnlySlices(X))
    assert model.n_passes_ > 2
    model.save(tmp_path / "m.safetensors")
    assert auxbit.load(tmp_path / "m.safetensors").n_passes_ == model.n_passes_
    model.fit(X)
    assert model.n_passes_ is None
    model.save(tmp_path / "m.safetensors")
    assert auxbit.load(tmp_path / "m.safetensors").n_passes_ is None


def test_a_fit_out_of_core_is_a_whole_model(tmp_path):
    model = BinaryAutoencoder(8, random_state=0, max_iter=3).fit(stored(".npy", X, tmp_path))
    model.save(tmp_path / "m.safetensors")
    loaded = auxbit.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    assert loaded.n_features_in_ == X.shape[1]
    assert loaded.training_.n_rows == 1350
    model.fit_decoder(X, "linear", n_iter=1)


def test_the_callback_and_the_history_are_those_of_any_fit():
    seen = []
    model = quick(callback=seen.append).fit(OnlySlices(X))
    assert seen == model.history_
    assert [record.iteration for record in seen] == list(range(1, model.n_iter_ + 1))


@pytest.mark.parametrize("parameters", [{}, {"n_bits": 20}, {"init": "itq", "normalize": True}])
def test_factor_analysis_is_fitted_out_of_core_as_in_memory(tmp_path, parameters):
    options = {"n_bits": 8, "random_state": 0, "max_iter": 4} | parameters
    wanted = BinaryFactorAnalysis(**options).fit(X)
    model = BinaryFactorAnalysis(**options).fit(stored(".npy", X, tmp_path))
    assert_same(model, wanted)
    assert model.n_passes_ == 2
    assert wanted.n_passes_ is None


def test_one_long_row_leaves_energies_the_same_out_of_core_and_for_any_number_of_threads():
    rows = clustered(9000, 8, dtype=np.float64)
    rows[7] *= 1e6
    models = [
        BinaryFactorAnalysis(8, random_state=0, max_iter=3, n_jobs=n).fit(given)
        for n, given in ((1, rows), (1, OnlySlices(rows)), (2, OnlySlices(rows)))
    ]
    variance = np.square(np.delete(rows, 7, axis=0) - rows[:7].mean(axis=0)).sum()
    for model in models:
        assert model.n_iter_ == 3
        assert all(0 < record.E_Q <= record.E_BA < 2 * variance for record in model.history_)
    for model in models[1:]:
        assert_same(model, models[0], rows)
        assert history_of(model) == history_of(models[0])


def test_factor_analysis_resumes_from_its_checkpoint(tmp_path):
    rows, seen = stored(".npy", X, tmp_path), []

    def stop(record):
        seen.append(record)
        if len(seen) == 2:
            raise KeyboardInterrupt

    options = {"n_bits": 8, "random_state": 0, "tol": 1e-9, "max_iter": 4}
    with pytest.raises(KeyboardInterrupt):
        BinaryFactorAnalysis(**options, callback=stop).fit(rows, checkpoint=tmp_path / "state")
    resumed = BinaryFactorAnalysis(**options).fit(rows, checkpoint=tmp_path / "state", resume=True)
    whole = BinaryFactorAnalysis(**options).fit(rows, checkpoint=tmp_path / "other")
    assert resumed.encoder_.weights.tobytes() == whole.encoder_.weights.tobytes()
    assert resumed.n_iter_ == whole.n_iter_
