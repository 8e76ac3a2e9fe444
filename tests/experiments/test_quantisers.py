"""FAISS's quantisers: bits and bytes, and answers that are those of their reconstructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxbit import BinaryAutoencoder, HammingIndex, evaluate
from auxbit.core.maps import unpack
from auxbit.errors import InvalidParameter
from auxbit.experiments.quantisers import NAMES, choose_shape, make_quantiser
from auxbit.hashers.registry import METHODS


@pytest.fixture(scope="module")
def rows(digits: Any) -> Any:
    return np.asarray(digits[300:700], dtype=np.float32), np.asarray(digits[:20], dtype=np.float32)


def test_every_name_is_in_the_table_of_methods() -> None:
    assert set(NAMES) == {name for name, method in METHODS.items() if not method.home}
    assert all(METHODS[name].label.lower() == name for name in NAMES)


@pytest.mark.parametrize("name", ["pq", "opq", "rq", "lsq", "plsq"])
def test_answers_are_those_of_a_plain_search_of_the_reconstructions(name: str, rows: Any, capfd: Any) -> None:
    base, queries = rows
    model = make_quantiser(name, 16, n_jobs=1).fit(base)
    codes = model.add(base)
    decoded = model._made.index.sa_decode(codes).astype(np.float64)  # type: ignore[attr-defined]
    assert model.error(base, codes) == pytest.approx(((base - decoded) ** 2).sum(axis=1).mean(), rel=1e-5)
    distances = ((queries[:, None, :] - decoded[None]) ** 2).sum(axis=2)
    found = np.take_along_axis(distances, model.search(queries, 5), axis=1)
    np.testing.assert_allclose(np.sort(found, axis=1), np.sort(distances, axis=1)[:, :5], rtol=1e-4)
    assert capfd.readouterr() == ("", "")  # FAISS would warn of few rows


@pytest.mark.parametrize(
    ("name", "bits", "payload", "beside"),
    [
        ("pq", 16, 2, 0), ("opq", 16, 2, 0), ("rq", 16, 2, 4), ("lsq", 16, 2, 4), ("plsq", 16, 2, 4),
        ("rabitq", 64, 8, 8), ("rabitq", 128, 16, 20), ("rabitq", 130, 16, 20), ("pca-rabitq", 32, 4, 8),
        ("pca-rabitq2", 32, 4, 20), ("itq-rabitq", 32, 4, 8), ("sign", 16, 8, 0), ("itq", 16, 2, 0),
        ("ba-asymmetric", 16, 2, 5), ("ba-optimal", 16, 2, 5),
    ],
)  # fmt: skip
def test_factors_beside_a_code_are_resident_and_not_payload(
    name: str, bits: int, payload: int, beside: int, rows: Any
) -> None:
    model = make_quantiser(name, bits, n_jobs=1).fit(rows[0])
    codes = model.add(rows[0])
    assert (model.payload_bytes, model.resident_bytes - model.payload_bytes) == (payload, beside)
    within = payload if name.startswith("ba-") else model.resident_bytes  # of ours, norms are apart
    assert codes.shape == (len(rows[0]), within)
    found = evaluate.retrieved_ranking(model.search(rows[1], 10), evaluate.ground_truth(*rows, 10))
    assert evaluate.precision_recall_at_k(found, 10).precision > 0.3
    assert {"fit", "encode", "search"} == set(model.times)
    assert model.model_bytes > 0


def test_the_same_seed_gives_the_same_codes_and_another_seed_others(rows: Any) -> None:
    for name in ("pq", "rq", "lsq", "plsq", "rabitq", "itq-rabitq"):
        bits = 64 if name == "rabitq" else 16
        first, again, other = (
            make_quantiser(name, bits, seed=seed, n_jobs=1).fit(rows[0]).encode(rows[0]) for seed in (0, 0, 1)
        )
        assert np.array_equal(first, again), name
        assert not np.array_equal(first, other), name


def test_sign_bits_say_which_dimensions_are_above_their_mean(rows: Any) -> None:
    base, _ = rows
    codes = make_quantiser("sign", 8).fit(base).encode(base)
    np.testing.assert_array_equal(unpack(codes, 64), base >= base.astype(np.float64).mean(axis=0))


def test_rows_that_are_added_take_the_place_of_others(rows: Any) -> None:
    for name in ("pq", "sign", "pca-rabitq"):
        model = make_quantiser(name, 16, n_jobs=1).fit(rows[0])
        model.add(rows[0])
        model.add(rows[0][:50])
        assert model.search(rows[1], 50).max() == 49


@pytest.mark.parametrize(
    ("bits", "n_dims", "shape"), [(8, 64, (1, 8)), (16, 64, (2, 8)), (24, 64, (4, 6)), (32, 128, (4, 8))]
)
def test_the_shape_of_a_product_uses_all_bits_and_stays_near_8(bits: int, n_dims: int, shape: Any) -> None:
    assert choose_shape(bits, n_dims, 10_000) == shape


def test_columns_of_zeros_make_dimensions_divisible_for_pq(rows: Any) -> None:
    base, queries = rows[0][:, :61], rows[1][:, :61]
    model = make_quantiser("pq", 16, n_jobs=1).fit(base)
    codes = model.add(base)
    assert model._made.flat.d == 62  # type: ignore[attr-defined]
    decoded = model._made.index.sa_decode(codes).astype(np.float64)  # type: ignore[attr-defined]
    nearest = ((queries[:, None] - decoded[None]) ** 2).sum(axis=2).min(axis=1)
    found = model.search(queries, 1)[:, 0]
    np.testing.assert_allclose(((queries - decoded[found]) ** 2).sum(axis=1), nearest, rtol=1e-4)


def test_many_dimensions_are_reduced_before_opq() -> None:
    X = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    model = make_quantiser("opq", 24, n_jobs=1).fit(X)
    assert model._made.flat.d == 255  # type: ignore[attr-defined]


def test_bits_that_a_quantiser_cannot_have_are_refused_with_the_reason(rows: Any) -> None:
    with pytest.raises(InvalidParameter, match="M dividing 64 dimensions"):
        choose_shape(13, 64, 10_000)
    with pytest.raises(InvalidParameter, match="at least 64 for RaBitQ of 64 dimensions"):
        make_quantiser("rabitq", 63).fit(rows[0])
    with pytest.raises(InvalidParameter, match="2 × at most 64 axes"):
        make_quantiser("pca-rabitq2", 33).fit(rows[0])
    with pytest.raises(InvalidParameter, match="expected one of ba"):
        make_quantiser("nothing", 8)


def test_the_ways_of_a_fitted_model_leave_it_as_it_is(rows: Any) -> None:
    base, queries = rows
    start = BinaryAutoencoder(16, max_iter=3, random_state=0, n_jobs=1).fit(base)
    before = start.decoder_
    made = make_quantiser("ba-optimal", 16, start=start, n_jobs=1).fit(base)
    made.add(base)
    assert start.decoder_ is before
    assert made.model.decoder_ is not before  # type: ignore[attr-defined]
    index = HammingIndex(16, decoder=made.model.decoder_)  # type: ignore[attr-defined]
    index.add(made.model.encode(base, coding="optimal"))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made.search(queries, 7), index.search_asymmetric(queries, 7)[1])
