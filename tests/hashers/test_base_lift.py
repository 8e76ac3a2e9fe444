"""Models for inner products (lift=True): what the same model makes of rows and queries lifted by hand."""

from __future__ import annotations

import numpy as np
import pytest

import auxbit
from auxbit import ITQ, BinaryAutoencoder, HammingIndex
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth, largest_norm, lift_queries, lift_rows
from auxbit.hashers.base import MODEL_FILE
from auxbit.hashers.files import codes_of, describe_model, encode_file
from helpers.every_hasher import HASHERS, every_hasher
from helpers.hasher_models import made


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    """Rows of very different norms, (n, 12) float32."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 12)) * np.linspace(2, 0.5, 12)
    return (X * np.exp(rng.normal(size=(n, 1)) / 2)).astype(np.float32)


X, QUERIES = rows_of(600), rows_of(40, seed=1) * np.float32(0.01)
LONGEST = largest_norm(X)
LIFTED, ASKED = lift_rows(X, LONGEST), lift_queries(QUERIES, LONGEST)


@pytest.fixture(scope="module", params=HASHERS, ids=lambda cls: cls.__name__)
def pair(request):
    """A model with lift, and the same one without, fitted to rows that were lifted by hand."""
    return made(request.param, lift=True).fit(X), made(request.param).fit(LIFTED)


def test_codes_and_reconstructions_are_those_of_rows_lifted_by_hand(pair):
    model, plain = pair
    assert (model.n_features_in_, plain.n_features_in_) == (12, 13)
    codes = model.encode(X)
    np.testing.assert_array_equal(codes, plain.encode(LIFTED))
    np.testing.assert_array_equal(model.transform(X), plain.transform(LIFTED))
    np.testing.assert_array_equal(model.encode(QUERIES, queries=True), plain.encode(ASKED))
    assert (model.encode(QUERIES, queries=True) != model.encode(QUERIES)).any()
    np.testing.assert_array_equal(plain.encode(LIFTED, queries=True), plain.encode(LIFTED))
    assert model.decode(codes).shape == X.shape
    np.testing.assert_array_equal(model.decode(codes), plain.decode(codes)[:, :-1])
    np.testing.assert_array_equal(model.inverse_transform(model.transform(X)), model.decode(codes))
    assert model.score(X) == pytest.approx(plain.score(LIFTED), rel=1e-6)
    assert model.training_.error == pytest.approx(plain.training_.error, rel=1e-6)


def test_the_decoder_lifts_queries_by_itself(pair):
    model, plain = pair
    indexes = HammingIndex(model=model), HammingIndex(model=plain)
    for index in indexes:
        index.add(model.encode(X))
    found, wanted = indexes[0].search_asymmetric(QUERIES, 20), indexes[1].search_asymmetric(ASKED, 20)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    longer = indexes[0].search_asymmetric(QUERIES * 1000, 20)[1]  # the length of a query changes no order
    assert (longer == wanted[1]).mean() > 0.99
    with pytest.raises(InvalidInput, match="rows of 12 numbers"):
        indexes[0].search_asymmetric(ASKED)


def test_a_model_file_keeps_it(pair, tmp_path):
    model, _ = pair
    model.save(tmp_path / "m.safetensors")
    assert MODEL_FILE.read(tmp_path / "m.safetensors")[0]["format_version"] == 3
    again = auxbit.load(tmp_path / "m.safetensors")
    assert (again.lift, again.scaling_.metric, again.n_features_in_) == (True, "inner_product", 12)
    assert again.scaling_.lift == again.decoder_.lift == model.scaling_.lift == pytest.approx(LONGEST)
    np.testing.assert_array_equal(again.encode(QUERIES, queries=True), model.encode(QUERIES, queries=True))
    np.testing.assert_array_equal(again.encode(X), model.encode(X))
    assert describe_model(tmp_path / "m.safetensors")["metric"] == "inner_product"
    assert again.fingerprint() == model.fingerprint()


@pytest.mark.parametrize("kind", ["linear", "tables"])
@pytest.mark.parametrize("mu", [0.0, 0.03])
def test_optimal_codes_find_the_largest_products(kind, mu, tmp_path):
    model = ITQ(12, lift=True, random_state=0).fit(X).fit_decoder(X, kind, mu=mu)
    plain = ITQ(12, random_state=0).fit(LIFTED).fit_decoder(LIFTED, kind, mu=mu)
    codes = model.encode(X, coding="optimal", mu=mu)
    np.testing.assert_array_equal(codes, plain.encode(LIFTED, coding="optimal", mu=mu))
    assert model.decoder_.lift == model.scaling_.lift
    index = HammingIndex(model=model)
    index.add(codes)
    index.save(tmp_path / "index")
    index = HammingIndex.load(tmp_path / "index")
    found = index.search_asymmetric(QUERIES, 50)[1]
    truth = ground_truth(X, QUERIES, 10, metric="inner_product")
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]
    assert np.mean(shares) > 0.6  # chance is 0.08


@every_hasher
def test_codes_do_not_depend_on_type_layout_and_threads(hasher):
    rows = np.rint(4 * X)
    model = made(hasher, lift=True).fit(rows)
    wanted = model.encode(rows), model.encode(rows[:50], queries=True)
    for other in (rows.astype(np.float64), np.asfortranarray(rows), rows.astype(np.int32)):
        np.testing.assert_array_equal(model.encode(other), wanted[0])
        np.testing.assert_array_equal(model.encode(other[:50], queries=True), wanted[1])
    np.testing.assert_array_equal(
        np.vstack([model.encode(rows[i : i + 1]) for i in range(20)]), wanted[0][:20]
    )
    for n_jobs in (1, 3):
        np.testing.assert_array_equal(model.set_params(n_jobs=n_jobs).encode(rows), wanted[0])
        again = made(hasher, lift=True, n_jobs=n_jobs).fit(rows)
        np.testing.assert_array_equal(again.encode(rows), wanted[0])


def test_rows_longer_than_those_of_the_fit_get_no_further_length():
    model, plain = ITQ(8, lift=True, random_state=0).fit(X), ITQ(8, random_state=0).fit(LIFTED)
    longer = X[:50] * 100 * LONGEST / np.linalg.norm(X[:50], axis=1, keepdims=True)
    flat = np.hstack([longer, np.zeros((50, 1))])
    np.testing.assert_array_equal(model.encode(longer), plain.encode(flat))


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_rows_of_any_size_have_the_same_codes(factor):
    rows = X.astype(np.float64)
    model, scaled = (ITQ(12, lift=True, random_state=0).fit(rows * each) for each in (1.0, factor))
    assert (model.encode(rows) == scaled.encode(rows * factor)).mean() > 0.99
    assert (model.encode(rows, queries=True) == scaled.encode(rows * factor, queries=True)).mean() > 0.99


@pytest.mark.filterwarnings("ignore:all rows")
def test_rows_of_zeros_and_queries_of_zeros_have_codes():
    model = ITQ(2, lift=True, random_state=0).fit(np.zeros((30, 3)))
    assert len(model.encode(np.zeros((2, 3)), queries=True)) == 2
    assert np.isfinite(model.score(np.zeros((2, 3))))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("queries", [False, True])
def test_what_is_no_usable_number_is_named(bad, queries):
    model = ITQ(8, lift=True, random_state=0).fit(X)
    rows = X.astype(np.float64)
    rows[3, 5] = bad
    with pytest.raises(InvalidInput, match="at row 3, column 5"):
        model.encode(rows, queries=queries)
    with pytest.raises(InvalidInput, match="at row 3, column 5"):
        ITQ(8, lift=True).fit(rows)


@every_hasher
def test_cosine_and_inner_product_together_are_refused(hasher):
    with pytest.raises(InvalidParameter, match="lift=True is invalid: expected False with normalize=True"):
        made(hasher, lift=True, normalize=True).fit(X)


def test_validation_queries_and_a_start_that_are_given_are_lifted():
    model = made(BinaryAutoencoder, lift=True, validation=QUERIES, init=ITQ(6, lift=True, random_state=1))
    plain = made(BinaryAutoencoder, validation=ASKED, init=ITQ(6, random_state=1))
    np.testing.assert_array_equal(model.fit(X).encode(X), plain.fit(LIFTED).encode(LIFTED))
    started = made(BinaryAutoencoder, lift=True, init=ITQ(6, random_state=1)).fit(X)  # which is not lifted
    assert started.encode(X).shape == (600, 1)


def test_a_file_of_codes_says_whether_they_are_of_queries(tmp_path):
    model = ITQ(8, lift=True, random_state=0).fit(X)
    np.save(tmp_path / "x.npy", X)
    x, rows, asked = (str(tmp_path / name) for name in ("x.npy", "rows.npy", "asked.npy"))
    encode_file(model, x, rows)
    encode_file(model, x, asked, queries=True)
    np.testing.assert_array_equal(np.load(asked), model.encode(X, queries=True))
    np.testing.assert_array_equal(codes_of(model, asked, queries=True)[0], model.encode(X, queries=True))
    np.testing.assert_array_equal(codes_of(model, rows)[0], model.encode(X))
    with pytest.raises(InvalidInput, match=r"holds codes of queries.*again without --queries"):
        codes_of(model, asked)
    with pytest.raises(InvalidInput, match=r"holds codes of rows.*again with --queries"):
        codes_of(model, rows, queries=True)
    other = ITQ(8, random_state=0).fit(X)  # for which they are the same
    encode_file(other, x, rows, overwrite=True)
    assert codes_of(other, rows, queries=True)[1].queries is None


def test_a_lazy_array_gets_the_same_codes():
    dask_array = pytest.importorskip("dask.array")
    model = ITQ(8, lift=True, random_state=0).fit(X)
    lazy = dask_array.from_array(X, chunks=(250, 12))
    for queries in (False, True):
        np.testing.assert_array_equal(
            model.encode(lazy, queries=queries).compute(), model.encode(X, queries=queries)
        )
