"""Fits by passes that cannot be: a clear error, the model as it was, nothing left behind."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from auxbit import ITQ
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from helpers.large_rows import OnlySlices, clustered, quick, stored

X = clustered(300)


def with_value(value, row=211, column=3):
    rows = X.astype(np.float64)
    rows[row, column] = value
    return rows


@pytest.mark.parametrize("kind", [".npy", ".h5", ".parquet", "object"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.nan, "X contains NaN at row 211, column 3"),
        (-np.inf, "X contains inf at row 211, column 3"),
        (1e200, r"X contains 1e\+200 at row 211, column 3.*Rescale"),
    ],
)
def test_what_is_not_a_usable_number_is_named_by_row_and_column(tmp_path, kind, normalize, value, why):
    with pytest.raises(InvalidInput, match=why):
        quick(normalize=normalize).fit(stored(kind, with_value(value), tmp_path))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (X[:1], "X has 1 row; a model needs at least 2"),
        (X[0], r"must have rows and columns"),
        (np.array([["a", "b"], ["c", "d"]]), "must be numbers"),
        (np.zeros((5, 2, 2)), "must have rows and columns"),
        (np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")[:, None], "must be numbers"),
    ],
)
def test_what_is_not_rows_to_learn_from_is_refused(rows, why):
    with pytest.raises(InvalidInput, match=why):
        quick().fit(rows, memory="1GB")


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"decoder": "table"}, "decoder='table' is invalid: expected 'linear' or 'tables'"),
        ({"n_bits": 136, "decoder": "tables"}, "n_bits=136 is invalid.*fit_decoder.* replaces"),
        ({"n_bits": 20, "z_options": {"admm_iterations": 5}}, "no admm_iterations for rows that are not in"),
        ({"init": "pca"}, "init='pca' is invalid: expected one of itq, agh"),
        ({"init": ITQ(16)}, "init has 16 bits, but n_bits=8"),
        ({"init": ITQ(8, random_state=0).fit(X[:, :10])}, "init was fitted to 10 columns, but X has 24"),
        ({"init": np.zeros((299, 8), dtype=np.uint8)}, "init"),
        ({"validation": "none"}, "validation='none' is invalid"),
        ({"validation": X[:20, :5]}, r"validation must be.*query rows \(q, 24\)"),
        ({"validation": with_value(np.nan)[200:220]}, "validation contains NaN at row 11"),
        ({"n_bits": 0}, "n_bits=0"),
        ({"h_solver": "lda"}, "h_solver='lda' is invalid: expected 'svm' or 'ridge'"),
        ({"mu_factor": 0.5}, "mu_factor"),
        ({"patience": 0}, "patience"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"random_state": "seven"}, "random_state"),
        ({"callback": 3}, "callback"),
    ],
    ids=lambda given: str(given)[:30] if isinstance(given, dict) else "",
)
def test_parameters_that_cannot_be_are_named(parameters, why):
    with pytest.raises(InvalidInput, match=why):
        quick(**parameters).fit(OnlySlices(X))


def test_wrong_ways_to_ask_for_a_fit_out_of_core_are_explained(tmp_path):
    with pytest.raises(InvalidParameter, match=r"memory='lots' is invalid: expected bytes, as '1GB'"):
        quick().fit(X, memory="lots")
    with pytest.raises(
        InvalidParameter, match=r"memory=\d+ is invalid: expected at least \d+MB for rows of 3000"
    ):
        quick().fit(np.zeros((9, 3000), dtype=np.uint8), memory="128MB")
    for rows in (X, OnlySlices(X)):
        with pytest.raises(InvalidInput, match="resume=True needs the folder"):
            quick().fit(rows, resume=True)
    (tmp_path / "x.csv").write_text("1")
    with pytest.raises(DataFileError, match="unknown extension"):
        quick().fit(tmp_path / "x.csv")
    with pytest.raises(DataFileError, match=r"folder without \.parquet"):
        quick().fit(tmp_path)


@pytest.mark.parametrize("value", [np.nan, None])
def test_a_fit_that_fails_leaves_the_model_as_it_was(value):
    model = quick().fit(X)
    before = dict(vars(model))

    def stop(record):
        raise RuntimeError("enough")

    if value is None:
        model.callback = before["callback"] = stop
        with pytest.raises(RuntimeError, match="enough"):
            model.fit(OnlySlices(X * 2))
    else:
        with pytest.raises(InvalidInput, match="NaN"):
            model.fit(OnlySlices(with_value(value)))
    assert vars(model) == before
    np.testing.assert_array_equal(model.transform(X[:5]), model.transform(X[:5]))


def test_names_of_columns_of_a_fit_before_are_forgotten():
    model = quick().fit(X)
    model.feature_names_in_ = np.array([f"column {i}" for i in range(24)], dtype=object)
    model.fit(OnlySlices(X))
    assert not hasattr(model, "feature_names_in_")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder for temporary files, and all codes in files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("auxbit.mac.fit.CODES_SHARE", 0.0)
    return folder


def test_codes_are_in_temporary_files_where_memory_has_no_room_and_are_removed(tmp_path, scratch):
    seen = []

    def look(record):
        seen.extend(path.name for path in scratch.glob("auxbit-*/*"))

    path = stored(".npy", X, tmp_path)
    model = quick(callback=look).fit(path)
    assert {"codes-0.bits", "codes-1.bits"} == set(seen)
    assert not list(scratch.iterdir())
    np.testing.assert_array_equal(model.transform(X), quick().fit(X).transform(X))


def test_temporary_files_are_removed_after_an_error_too(scratch):
    def stop(record):
        assert list(scratch.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(callback=stop).fit(OnlySlices(X))
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".h5", "folder"])
def test_nothing_is_written_next_to_the_data_and_nothing_into_it(tmp_path, kind):
    path = stored(kind, X, tmp_path)

    def state():
        return {found: found.read_bytes() for found in tmp_path.rglob("*") if found.is_file()}

    before = state()
    quick(max_iter=2).fit(path, memory="200MB")
    assert state() == before


def test_rows_that_become_fewer_during_the_fit_are_an_error():
    class Shrinking(OnlySlices):
        def __getitem__(self, rows):
            some = super().__getitem__(rows)
            return some[: max(1, len(some) // 2)] if self.shrunk else some

        shrunk = False

    rows = Shrinking(X)

    def shrink(record):
        rows.shrunk = True

    with pytest.raises(InvalidInput, match="changed"):
        quick(callback=shrink).fit(rows)
