"""Searches by item and by vector: what is found, what is said of it, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import ITQ, Collection
from auxbit.serve import schemas
from helpers.serve_cases import Client, N, digits, own_digits, refused

MODES = ("hamming", "asymmetric", "reranked")


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


def search(client, query):
    response = client.get(f"/api/v1/search?{query}")
    assert response.status_code == 200, response.text
    return schemas.Answer.model_validate_json(response.content, strict=True)


def by_vector(client, vector, **more):
    response = client.post("/api/v1/search/vector", json={"vector": vector, **more})
    assert response.status_code == 200, response.text
    return schemas.Answer.model_validate_json(response.content, strict=True)


def bits(client):
    """The codes of all items, (N, 12) of 0 and 1."""
    return np.unpackbits(client.pictures.collection.codes(), axis=1, bitorder="little")[:, :12]


def true_distances(client, mode, x, code):
    """From a query to every item, by definition."""
    collection = client.pictures.collection
    if mode == "hamming":
        return (bits(client) != code).sum(axis=1)
    rows = (
        collection.model.decode(collection.codes())
        if mode == "asymmetric"
        else collection.vectors(collection.ids)
    )
    return np.linalg.norm(rows.astype(np.float64) - x, axis=1)


@pytest.mark.parametrize("radius", [None, 0, 2, 5, 12])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("id_", [0, 57, N - 1])
def test_what_is_found_from_an_item_is_nearest_by_definition(client, mode, id_, radius):
    collection, wanted = client.pictures.collection, f"id={id_}&k=10&mode={mode}"
    answer = search(client, wanted if radius is None else f"{wanted}&radius={radius}")
    codes, x = bits(client), collection.vectors([id_])[0].astype(np.float64)
    distances = true_distances(client, mode, x, codes[id_])
    allowed = np.arange(N) != id_
    if radius is not None:
        allowed &= (codes != codes[id_]).sum(axis=1) <= radius
    expected = np.sort(distances[allowed])[:10]
    assert np.allclose([result.distance for result in answer.results], expected, rtol=1e-3, atol=1e-2)
    assert all(allowed[result.id] for result in answer.results)
    assert (answer.mode, answer.k, answer.radius, answer.items) == (mode, 10, radius, N)


def test_each_result_has_its_code_name_and_hamming_distance(client):
    answer = search(client, "id=5&k=7&mode=asymmetric")
    codes = bits(client)
    assert answer.query.code == "".join(map(str, codes[5]))
    assert (answer.query.id, answer.query.file, answer.query.upload) == (5, "Digit 5/img5.png", None)
    for result in answer.results:
        assert result.code == "".join(map(str, codes[result.id]))
        assert result.hamming == (codes[result.id] != codes[5]).sum()
        assert result.file == client.pictures.about(result.id)["file"]
        assert result.reconstruction == f"/api/v1/items/{result.id}/reconstruction"
        assert client.get(result.thumbnail).status_code == 200


def test_without_a_mode_answers_are_ranked_by_their_vectors(client):
    assert search(client, "id=5").mode == "reranked"
    assert search(client, "id=5").k == 20


@pytest.mark.parametrize("mode", MODES)
def test_more_than_there_is_gives_all_but_the_item_itself(client, mode):
    answer = search(client, f"id=5&k=200&mode={mode}")
    assert sorted(result.id for result in answer.results) == [id_ for id_ in range(N) if id_ != 5]
    distances = [result.distance for result in answer.results]
    assert distances == sorted(distances)


@pytest.mark.parametrize("mode", MODES)
def test_the_vector_of_an_item_finds_what_the_item_finds_and_the_item(client, mode):
    vector = client.pictures.collection.vectors([33])[0].astype(float).tolist()
    answer = by_vector(client, vector, k=20, mode=mode)
    assert 33 in [result.id for result in answer.results]
    assert (answer.query.id, answer.query.upload, answer.query.thumbnail) == (None, None, None)
    expected = np.unpackbits(
        client.pictures.collection.model.encode(np.array([vector])), axis=1, bitorder="little"
    )[0, :12]
    assert answer.query.code == "".join(map(str, expected))
    if mode == "reranked":
        assert answer.results[0].id == 33
        assert answer.results[0].distance == 0


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=64, max_size=64), st.sampled_from(MODES))
def test_any_vector_is_answered_in_order(vector, mode):
    with_default = {"vector": vector, "k": 5, "mode": mode}
    response = shared().post("/api/v1/search/vector", json=with_default)
    assert response.status_code == 200
    distances = [each["distance"] for each in response.json()["results"]]
    assert len(distances) == 5
    assert distances == sorted(distances)


_shared: list[Client] = []


def shared():
    """One client for all examples: hypothesis does not like fixtures of a function."""
    if not _shared:
        _shared.append(Client(digits()))
    return _shared[0]


@pytest.fixture(scope="module", autouse=True)
def _closed_at_the_end():
    yield
    while _shared:
        _shared.pop().__exit__()


# ---- what is refused


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 422, "invalid"),
        ("id=5&upload=" + "0" * 64, 422, "invalid"),
        (f"id={N}", 404, "not_found"),
        ("id=-1", 404, "not_found"),
        (f"id={2**63}", 404, "not_found"),
        ("id=" + "9" * 5000, 422, "invalid"),
        ("id=cat", 422, "invalid"),
        ("id=", 422, "invalid"),
        ("id=1e3", 422, "invalid"),
        ("id=5&k=0", 422, "invalid"),
        ("id=5&k=201", 422, "invalid"),
        ("id=5&k=ten", 422, "invalid"),
        ("id=5&mode=euclid", 422, "invalid"),
        ("id=5&radius=-1", 422, "invalid"),
        ("id=5&radius=13", 422, "invalid"),
        ("id=5&radius=1025", 422, "invalid"),
        ("upload=" + "0" * 64, 404, "upload_gone"),
        ("upload=../../etc/passwd", 422, "invalid"),
        ("upload=" + "A" * 64, 422, "invalid"),
    ],
)
def test_searches_refuse_what_they_cannot_use(client, query, status, code):
    refused(client.get(f"/api/v1/search?{query}"), status, code)


def test_a_radius_beyond_the_bits_names_the_bits(client):
    assert "12 bits" in refused(client.get("/api/v1/search?id=5&radius=13"), 422, "invalid")


ZEROS = [0.0] * 64


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"vector": []},
        {"vector": ZEROS[1:]},
        {"vector": [*ZEROS, 0.0]},
        {"vector": "0" * 64},
        {"vector": ["x"] * 64},
        {"vector": [*ZEROS[1:], None]},
        {"vector": [[0.0] * 64]},
        {"vector": [*ZEROS[1:], 1e39]},
        {"vector": [*ZEROS[1:], 3e38], "mode": "asymmetric"},
        {"vector": [*ZEROS[1:], 3e38], "mode": "reranked"},
        {"vector": [*ZEROS[1:], 3e38], "mode": "reranked", "radius": 12},
        {"vector": [*ZEROS[1:], 3e38], "mode": "asymmetric", "radius": 12},
        {"vector": ZEROS, "k": 0},
        {"vector": ZEROS, "k": 1.5},
        {"vector": ZEROS, "radius": 13},
        {"vector": ZEROS, "radius": 10**400},
        {"vector": ZEROS, "mode": None, "colour": 1},
        [],
        None,
        "text",
    ],
)
def test_vectors_that_cannot_be_used_are_refused(client, body):
    refused(client.post("/api/v1/search/vector", json=body), 422, "invalid")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(client, number):
    body = '{"vector": [' + ", ".join([number] * 64) + "]}"
    headers = {"Content-Type": "application/json"}
    refused(client.post("/api/v1/search/vector", content=body, headers=headers), 422, "invalid")


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"vector": [1', b"\xff\xfe", b"[" * 100_000, b'{"vector": "\\ud800"}']
)
def test_bodies_that_are_no_json_are_refused(client, body):
    headers = {"Content-Type": "application/json"}
    response = client.post("/api/v1/search/vector", content=body, headers=headers)
    assert response.status_code in (400, 422)
    refused(response, response.status_code, "invalid" if response.status_code == 422 else "bad_request")


def test_a_body_of_another_type_is_refused(client):
    response = client.post(
        "/api/v1/search/vector", content=b"vector=1", headers={"Content-Type": "text/plain"}
    )
    refused(response, 422, "invalid")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/search"),
        ("GET", "/search/vector"),
        ("PUT", "/items/1"),
        ("DELETE", "/items"),
        ("PATCH", "/stats"),
    ],
)
def test_methods_that_are_not_there_are_refused(client, method, path):
    response = client.request(method, f"/api/v1{path}")
    message = refused(response, 405, "method_not_allowed")
    assert method in message
    assert response.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/api", "/api/v1", "/api/v1/", "/api/v2/health", "/api/v1/health/", "/docs", "/redoc"]
)
def test_paths_that_are_not_there_are_refused(client, path):
    refused(client.get(path), 404, "not_found")


def test_by_inner_product_the_largest_products_come_first(tmp_path):
    path = own_digits(tmp_path)
    with Collection(path) as collection:
        X = collection.vectors(collection.ids).astype(np.float64)
        collection.retrain(ITQ(12, lift=True, random_state=0).fit(X))
    products = X @ X.T
    with Client(path) as client:
        for radius in ("", "&radius=12"):
            answer = search(client, f"id=7&k=10&mode=reranked{radius}")
            wanted = np.argsort(-products[7], kind="stable")
            ids, distances = zip(*((each.id, each.distance) for each in answer.results), strict=True)
            assert list(ids) == wanted[wanted != 7][:10].tolist()
            np.testing.assert_allclose(distances, -products[7, list(ids)], rtol=1e-3)
        x = X[7].tolist()
        for mode in MODES:
            by_item = search(client, f"id=7&k={N}&mode={mode}")
            found = [each.id for each in by_vector(client, x, k=N, mode=mode).results if each.id != 7]
            if mode != "hamming":
                assert [each.id for each in by_item.results] == found
            ranks = np.argsort(np.argsort(-products[7]))[[each.id for each in by_item.results][:10]]
            assert np.median(ranks) < 40  # chance: 60
