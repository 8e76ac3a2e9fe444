"""The report on the model, and the comparison."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from auxbit import BinaryAutoencoder, Collection
from auxbit.core.maps import pack
from auxbit.evaluate import effective_bits
from auxbit.serve import schemas
from auxbit.serve.state import bit_statistics
from helpers.serve_cases import Client, N, digits, own_digits, refused


def report(client):
    response = client.get("/api/v1/model")
    assert response.status_code == 200, response.text
    return schemas.ModelReport.model_validate_json(response.content, strict=True)


def test_the_report_is_of_the_codes_of_the_collection():
    with Client(digits()) as client:
        found, codes = report(client), client.pictures.collection.codes()
    assert (found.method, found.bits, found.items, found.dimension) == ("ITQ", 12, N, 64)
    assert found.history == []
    assert found.parameters["n_bits"] == 12
    assert found.effective_bits.bits == 12
    assert found.effective_bits.effective == pytest.approx(effective_bits(codes), abs=1e-3)
    assert found.effective_bits.bound == pytest.approx(np.log2(N), abs=1e-3)
    _, counts = np.unique(codes, axis=0, return_counts=True)
    assert (found.buckets.distinct, found.buckets.largest) == (len(counts), counts.max())
    assert {each.items: each.buckets for each in found.buckets.sizes} == dict(
        zip(*(each.tolist() for each in np.unique(counts, return_counts=True)))
    )
    assert sum(each.items * each.buckets for each in found.buckets.sizes) == N
    assert found.training is not None
    assert (found.training.rows, found.training.coding, found.training.mu) == (N, "optimal", 0.01)


def test_a_binary_autoencoder_reports_its_iterations(tmp_path):
    path = own_digits(tmp_path)
    with Collection.open(path, n_jobs=1) as collection:
        X = collection.vectors(collection.ids).astype(np.float32)
        model = BinaryAutoencoder(8, random_state=0, n_jobs=1, max_iter=5, validation=X[:10]).fit(X)
        collection.retrain(model)
    with Client(path) as client:
        found = report(client)
    assert (found.method, found.bits) == ("BA", 8)
    assert [each.iteration for each in found.history] == list(range(1, len(model.history_) + 1))
    for shown, record in zip(found.history, model.history_):
        assert (shown.E_Q, shown.E_BA, shown.mu) == (record.E_Q, record.E_BA, record.mu)
        assert (shown.changed, shown.mismatched, shown.precision) == (
            record.changed,
            record.mismatched,
            record.precision,
        )
    assert found.parameters["max_iter"] == 5


@given(arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 20)), elements=st.integers(0, 1)))
def test_balance_and_correlation_are_those_of_the_bits(Z):
    share, correlation = bit_statistics(pack(Z), Z.shape[1])
    assert np.allclose(share, Z.mean(axis=0))
    varies = Z.std(axis=0) > 0
    expected = np.zeros((Z.shape[1], Z.shape[1]))
    if varies.any():
        expected[np.ix_(varies, varies)] = np.corrcoef(Z[:, varies].astype(float), rowvar=False)
    assert np.allclose(correlation, expected, atol=1e-9)
    assert np.array_equal(np.diag(correlation), varies.astype(float))


def test_bits_are_counted_across_blocks(monkeypatch):
    Z = np.random.default_rng(0).integers(0, 2, (100, 9), dtype=np.uint8)
    whole = bit_statistics(pack(Z), 9)
    monkeypatch.setattr("auxbit.serve.state.BLOCK", 7)
    parts = bit_statistics(pack(Z), 9)
    assert all(np.array_equal(one, other) for one, other in zip(whole, parts))


def test_the_report_is_made_once_and_again_when_something_changed(tmp_path, monkeypatch):
    path = own_digits(tmp_path)
    with Client(path) as client:
        first = client.get("/api/v1/model").content
        with monkeypatch.context() as patch:
            patch.setattr("auxbit.serve.state.bit_statistics", None)
            assert client.get("/api/v1/model").content == first
        with Collection.open(path, n_jobs=1) as collection:
            collection.delete([0, 1, 2])
        assert report(client).items == N - 3


def test_a_collection_from_which_everything_was_deleted_is_still_served(tmp_path):
    path = own_digits(tmp_path)
    with Collection.open(path, n_jobs=1) as collection:
        collection.delete(collection.ids)
    with Client(path) as client:
        found = report(client)
        assert (found.items, found.buckets.distinct, found.buckets.sizes) == (0, 0, [])
        assert client.json("/health")["items"] == 0
        assert client.json("/stats")["items"] == 0
        assert client.json("/items")["total"] == 0
        refused(client.get("/api/v1/search?id=1"), 404, "not_found")
        for mode in ("hamming", "asymmetric", "reranked"):
            for radius in (None, 3):
                body = {"vector": [1.0] * 64, "mode": mode, "radius": radius}
                response = client.post("/api/v1/search/vector", json=body)
                assert (response.status_code, response.json()["results"]) == (200, [])


# ---- the comparison


def test_without_a_comparison_the_command_that_makes_one_is_named():
    with Client(digits()) as client:
        message = refused(client.get("/api/v1/comparison"), 404, "no_comparison")
        assert "auxbit images compare digits.auxbit" in message


def test_a_comparison_is_passed_on_without_what_json_lacks(tmp_path):
    path = own_digits(tmp_path)
    with Client(path) as client:
        rows = [{"method": "BA", "bits": 8, "precision": 0.5, "map": float("nan")}]
        (path / "comparison.json").write_text(json.dumps({"rows": rows, "k": 50}))
        found = client.json("/comparison")
        assert found == {"rows": [{"method": "BA", "bits": 8, "precision": 0.5, "map": None}], "k": 50}
        assert client.json("/stats")["has_comparison"] is True


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": 3}', "[" * 10**5, "\ud800"])
def test_a_comparison_that_is_damaged_says_so_without_telling_where_it_is(tmp_path, content):
    path = own_digits(tmp_path)
    (path / "comparison.json").write_bytes(content.encode(errors="surrogatepass"))
    with Client(path) as client:
        message = refused(client.get("/api/v1/comparison"), 410, "damaged")
        assert "comparison.json" in message
        assert str(tmp_path) not in message
