"""Bad input gets an error that names what is wrong, and a model fitted before stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

from auxbit import ITQ, LSH, BinaryAutoencoder, BinaryFactorAnalysis, ThresholdedPCA
from auxbit.core.parallel import BLOCK_ROWS
from auxbit.errors import AuxbitError, InvalidInput, InvalidParameter
from helpers.every_hasher import HASHERS, every_hasher

every_method = pytest.mark.parametrize("method", ["fit", "transform", "encode", "score"])

GOOD = np.random.default_rng(0).normal(size=(120, 6))


@pytest.fixture(scope="module")
def fitted():
    """One fitted model of each class."""
    return {hasher: hasher(3, random_state=0).fit(GOOD) for hasher in HASHERS}


def state(model):
    """All that a model is, to compare before and after."""
    arrays = (*model.encoder_.tensors().values(), model.decoder_.A, model.decoder_.b)
    return (
        sorted(vars(model)),
        model.n_features_in_,
        getattr(model, "history_", None),
        getattr(model, "n_iter_", None),
        [array.tobytes() for array in arrays],
        model.scaling_,
    )


@every_method
def test_masked_rows_are_refused(method, fitted):
    masked = np.ma.masked_array(GOOD, mask=GOOD > 2)
    for model in fitted.values():
        expect(method, model, masked, r"X has masked numbers, \d+ of \d+\. Fill them")


def expect(method, model, X, match, error=InvalidInput):
    """Refused with this message, and the model is what it was."""
    before = state(model)
    with pytest.raises(error, match=match):
        getattr(model, method)(X)
    after = state(model)
    assert after[:-1] == before[:-1]
    assert after[-1] is before[-1]
    assert model.transform(GOOD).shape == (120, 3)


# ---- data


@every_hasher
@every_method
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_nan_and_infinity_are_named_with_row_and_column(hasher, method, value, name, dtype, fitted):
    X = GOOD.astype(dtype)
    X[[17, 90], [4, 1]] = value
    expect(method, fitted[hasher], X, f"X contains {name} at row 17, column 4")


@every_method
def test_the_first_bad_row_is_named_in_blocks_of_any_number_of_threads(method, fitted):
    X = np.zeros((3 * BLOCK_ROWS, 6), dtype=np.float32)
    X[2 * BLOCK_ROWS + 5, 2] = np.nan
    X[BLOCK_ROWS + 7, 3] = np.inf
    for n_jobs in (1, 2):
        model = fitted[LSH].set_params(n_jobs=n_jobs)
        expect(method, model, X, f"X contains inf at row {BLOCK_ROWS + 7}, column 3")


@every_hasher
@pytest.mark.parametrize("method", ["transform", "encode", "score"])
@pytest.mark.parametrize("dimensions", [1, 5, 7])
def test_rows_of_another_dimension_than_in_fit_are_refused(hasher, method, dimensions, fitted):
    expected = f"X has {dimensions} features, but {hasher.__name__} is expecting 6 features"
    expect(method, fitted[hasher], np.zeros((4, dimensions)), expected)


@every_hasher
@every_method
@pytest.mark.parametrize(
    ("X", "match"),
    [
        (np.zeros(6), "Reshape your data"),
        (np.zeros((2, 3, 6)), "dim 3"),
        (5.0, "Reshape your data|scalar array"),
        (np.zeros((0, 6)), r"0 sample\(s\)"),
        (np.zeros((4, 0)), r"0 feature\(s\)"),
        (np.zeros((4, 6), dtype=complex), "Complex data not supported"),
        ([["a"] * 6] * 4, "string"),
        (np.full((4, 6), "a", dtype=object), "could not convert string to float"),
    ],
    ids=["1-D", "3-D", "number", "no rows", "no columns", "complex", "text", "objects of text"],
)
def test_what_is_no_table_of_numbers_is_refused(hasher, method, X, match, fitted):
    expect(method, fitted[hasher], X, match)


@every_hasher
@every_method
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
def test_sparse_rows_are_refused_with_the_remedy(hasher, method, form, fitted):
    expect(method, fitted[hasher], form(GOOD), r"Sparse data was passed.*toarray", error=TypeError)


@every_hasher
@every_method
def test_objects_that_are_no_numbers_are_refused(hasher, method, fitted):
    X = GOOD.astype(object)
    X[3, 2] = {}
    expect(method, fitted[hasher], X, "must be a string or a real number", error=TypeError)


@every_hasher
@every_method
def test_a_missing_value_in_an_array_of_objects_is_a_nan(hasher, method, fitted):
    X = GOOD.astype(object)
    X[3, 2] = None
    expect(method, fitted[hasher], X, "X contains NaN at row 3, column 2")


@every_hasher
def test_one_row_is_too_few_to_fit_but_enough_to_encode(hasher, fitted):
    expect("fit", fitted[hasher], GOOD[:1], "minimum of 2 is required")
    assert fitted[hasher].encode(GOOD[:1]).shape == (1, 1)
    assert fitted[hasher].score(GOOD[:1]) <= 0


@every_hasher
@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("transform", GOOD),
        ("encode", GOOD),
        ("score", GOOD),
        ("decode", np.zeros((2, 1), np.uint8)),
        ("inverse_transform", np.zeros((2, 3), np.uint8)),
    ],
)
def test_a_model_that_is_not_fitted_says_so(hasher, method, argument):
    with pytest.raises(NotFittedError, match=f"This {hasher.__name__} instance is not fitted yet"):
        getattr(hasher(3), method)(argument)


# ---- parameters


@every_hasher
@pytest.mark.parametrize("n_bits", [0, -1, 8193, 2.5, True, "8", None, 8.0])
def test_a_number_of_bits_that_no_method_makes_is_refused(hasher, n_bits):
    model = hasher(3, random_state=0).fit(GOOD).set_params(n_bits=n_bits)
    allowed = rf"expected an integer in 1\.\.{hasher.max_bits}. Try n_bits=32"
    expect("fit", model, GOOD, rf"n_bits={n_bits!r} is invalid: {allowed}")


@every_hasher
def test_more_bits_than_a_method_learns_are_refused_by_name_of_those_that_make_them(hasher):
    if hasher in (LSH, ITQ, ThresholdedPCA):
        assert hasher.max_bits == 8192
        return
    model = hasher(3, random_state=0).fit(GOOD).set_params(n_bits=1025)
    expect("fit", model, GOOD, r"in 1\.\.1024\. .*; LSH, ITQ and ThresholdedPCA make up to 8192\.")


@every_hasher
@pytest.mark.parametrize("n_jobs", [0, 1.5, "2", True])
def test_a_number_of_threads_that_is_none_is_refused(hasher, n_jobs):
    model = hasher(3, random_state=0).fit(GOOD)
    before = state(model)
    with pytest.raises(InvalidParameter, match=f"n_jobs={n_jobs!r} is invalid"):
        model.set_params(n_jobs=n_jobs).fit(GOOD)
    assert state(model)[:-1] == before[:-1]


@every_hasher
@pytest.mark.parametrize("seed", ["0", -1, 1.5])
def test_a_seed_that_is_none_is_refused(hasher, seed):
    model = hasher(3, random_state=0).fit(GOOD).set_params(random_state=seed)
    expect(
        "fit", model, GOOD, f"random_state={seed!r} is invalid: expected None, an integer", InvalidParameter
    )


SHARED = [
    ("C", [0, -1, np.inf, np.nan, "100", True]),
    ("preset", ["papers", None, 1]),
    ("z_solver", ["best", 1]),
    ("z_start", ["cold", 1]),
    ("group_size", [0, -1, 21, 1.5, "1", None]),
    ("z_options", [{"speed": 1}, {"solver": "exact"}]),
    ("max_iter", [0, -1, 2.5, None, True]),
    ("init", ["pca"]),
]
OF_AUTOENCODER = [
    ("callback", [3]),
    ("mu0", [1e300, 0, -0.01, np.inf, np.nan, "0.01", True]),
    ("mu_factor", [1, 0.5, -2, np.inf, np.nan, "2"]),
    (
        "mu_schedule",
        [5, [[1], [1, 2]], [1e300], [], [0.1, 0.1], [0.2, 0.1], [0, 0.1], [-1, 1], [0.1, np.inf], ["a"]],
    ),
    ("steps_per_mu", [0, -1, 1.5, None]),
    ("patience", [0, -1, 1.5]),
    ("on_miss", ["stop", 1]),
    ("validation", ["yes", "none", ""]),
]
OF_FACTOR_ANALYSIS = [
    ("mu", [0, -1, np.inf, np.nan, "0.01"]),
    ("tol", [0, -1, np.inf, np.nan, "0.01", None]),
]


@pytest.mark.parametrize(
    ("hasher", "parameter", "value"),
    [
        pytest.param(hasher, name, value, id=f"{hasher.__name__}-{name}-{value!r}")
        for hasher, parameters in [
            (BinaryAutoencoder, SHARED + OF_AUTOENCODER),
            (BinaryFactorAnalysis, SHARED + OF_FACTOR_ANALYSIS),
        ]
        for name, values in parameters
        for value in values
    ],
)
def test_a_parameter_out_of_range_is_named(hasher, parameter, value):
    model = hasher(3, random_state=0).fit(GOOD).set_params(**{parameter: value})
    expect("fit", model, GOOD, rf"^{parameter}=.* is invalid: expected ", error=InvalidParameter)


def test_enumeration_is_refused_for_many_bits():
    model = BinaryAutoencoder(25, z_solver="enumerate", init="lsh")
    with pytest.raises(InvalidParameter, match="z_solver='enumerate' is invalid: expected at most 24 bits"):
        model.fit(GOOD)


# ---- all or nothing


@every_hasher
def test_a_fit_that_fails_halfway_leaves_the_fitted_model_as_it_was(hasher, monkeypatch):
    model = hasher(3, random_state=0).fit(GOOD)
    codes, before = model.encode(GOOD), state(model)

    def fail(*arguments, **options):
        raise MemoryError("halfway")

    monkeypatch.setattr(hasher, "_adopt", fail)
    with pytest.raises(MemoryError, match="halfway"):
        model.fit(np.random.default_rng(1).normal(size=(50, 9)))
    assert state(model)[:-1] == before[:-1]
    assert np.array_equal(model.encode(GOOD), codes)


@every_hasher
def test_a_first_fit_that_fails_leaves_the_model_unfitted(hasher):
    model = hasher(3)
    with pytest.raises(InvalidInput, match="NaN"):
        model.fit(np.full((20, 6), np.nan))
    assert sorted(vars(model)) == sorted(vars(hasher(3)))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.transform(GOOD)


def test_errors_of_ours_have_one_base_and_are_value_errors_too():
    for X in (GOOD[0], GOOD[:1], np.full((5, 5), np.nan)):
        with pytest.raises(AuxbitError, match=r".") as caught:
            LSH(3).fit(X)
        assert isinstance(caught.value, ValueError)


@every_hasher
def test_values_that_cannot_be_squared_are_named_with_row_and_column(hasher):
    X = GOOD.copy()
    X[7, 2] = 1e200
    with pytest.raises(InvalidInput, match=r"X contains 1e\+200 at row 7, column 2.*Rescale X first"):
        hasher(3).fit(X)


def test_dates_are_not_numbers():
    with pytest.raises(InvalidInput, match="dates or times"):
        LSH(3).fit(np.zeros((10, 2), dtype="datetime64[s]"))


@pytest.mark.parametrize("options", [{"max_iter": 5000}, {"mu_factor": 1e10}])
def test_a_long_or_steep_schedule_ends_before_it_overflows(options):
    model = BinaryAutoencoder(3, validation=None, random_state=0, **options).fit(GOOD)
    assert all(record.mu <= 1e12 for record in model.history_)
