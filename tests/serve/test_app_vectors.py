"""Collections of any vectors over HTTP: read, searched, streamed, added to and deleted from."""

from __future__ import annotations

import gc
import json
import shutil
import uuid

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.errors import FileProblem
from auxbit.serve import schemas
from auxbit.serve.search import warm_up
from auxbit.serve.security import Limits, Problem
from helpers.serve_cases import Client, digits, refused

N, D = 90, 16
WORDS = ["red", "green", "blue"]


def rows_of(n=N):
    return np.random.default_rng(0).normal(size=(n, D)).astype(np.float32)


def embed(texts):
    """The vector of the item that a text names, "row 5"; other texts fail."""
    return rows_of()[[int(text.split()[-1]) for text in texts]]


@pytest.fixture(scope="module")
def model():
    return ITQ(n_bits=16, random_state=0).fit(rows_of())


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """A collection with text ids, vectors and metadata, to be copied or read."""
    path = tmp_path_factory.mktemp("vectors") / "docs.auxbit"
    metadata = [{"colour": WORDS[row % 3], "row": row, "text": f"text of {row}"} for row in range(N)]
    ids = [f"doc/{row}" for row in range(N)]
    with Collection.create(path, model, vectors="float32") as collection:
        collection.add(rows_of(), ids=ids, metadata=metadata)
    return path


@pytest.fixture(scope="module")
def client(made):
    with Client(made, embed=embed) as client:
        yield client


@pytest.fixture
def writer(made, tmp_path):
    with Client(shutil.copytree(made, tmp_path / "docs.auxbit"), writable=True) as client:
        yield client


def answered(response, model=schemas.Answer):
    assert response.status_code == 200, response.text
    return model.model_validate_json(response.content, strict=True)


def by_vector(client, row, **how):
    return client.post("/api/v1/search/vector", json={"vector": rows_of()[row].tolist(), **how})


def found(answer):
    return [each.id for each in answer.results]


# ---- what is in it


def test_what_was_compiled_for_is_not_remembered_in_types_of_numpy(tmp_path, model):
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(rows_of(3))
    with Client(tmp_path / "c") as client:
        warm_up(client.site)
        assert found(answered(client.get("/api/v1/search?id=1"))) in ([0, 2], [2, 0])


def test_stats_tell_a_collection_of_vectors_from_pictures(client):
    stats = answered(client.get("/api/v1/stats"), schemas.Stats)
    assert (stats.name, stats.items, stats.dimension, stats.ids) == ("docs", N, D, "text")
    assert stats.fields == ["colour", "row", "text"]
    assert (stats.has_pictures, stats.features, stats.writable, stats.has_text_search) == (
        False, None, False, True,
    )  # fmt: skip
    assert stats.modes == ["hamming", "asymmetric", "reranked"]


@pytest.mark.parametrize("what", ["/thumbnail", "/picture", "/reconstruction"])
def test_items_without_pictures_say_so(what, tmp_path, model):
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(rows_of(3))
    with Client(tmp_path / "c") as client:
        assert client.get(f"/api/v1/items/1{what}").status_code == 404
        refused(client.upload(b"x"), 404, "no_pictures")


def test_a_listing_takes_conditions_order_and_limits(client):
    listed = answered(client.get("/api/v1/items?where=colour%3Dblue&order=-row&limit=3"), schemas.Items)
    assert (listed.total, [each.id for each in listed.items]) == (30, ["doc/89", "doc/86", "doc/83"])
    rest = client.json("/items?where=colour%3Dblue&order=-row&offset=28")
    assert [each["metadata"]["row"] for each in rest["items"]] == [5, 2]
    assert client.json("/items?limit=2")["items"][1]["id"] == "doc/1"


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("order=yaer", "order: no item has the field"),
        ("where=colou%3Dred", "Did you mean colour?"),
        ("where=colour%3E%3E", "where"),
        ("name=x", "where"),
        ("where=" + "x" * 2001, "where"),
    ],
)
def test_a_listing_refuses_what_it_cannot_use(client, query, part):
    assert part in refused(client.get(f"/api/v1/items?{query}"), 422, "invalid")


def test_items_are_got_by_their_ids_whatever_letters_these_have(client):
    given = {"ids": ["doc/5", "doc/2"], "vectors": True}
    got = answered(client.post("/api/v1/items/get", json=given), schemas.Got)
    assert [each.id for each in got.items] == ["doc/5", "doc/2"]
    assert np.allclose(got.items[0].vector, rows_of()[5])
    assert len(got.items[0].code) == 16
    refused(client.post("/api/v1/items/get", json={"ids": ["doc/5", "no"]}), 404, "not_found")


def test_an_item_of_an_integer_id_has_an_address(tmp_path, model):
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(rows_of(3), metadata=[{"a": 1}] * 3)
    with Client(tmp_path / "c") as client:
        item = answered(client.get("/api/v1/items/2?vector=true"), schemas.ItemDetail)
        assert (item.id, item.metadata, item.vector) == (2, {"a": 1}, None)  # none are kept
        for id_ in ("3", "x", "-1", "9" * 400):
            refused(client.get(f"/api/v1/items/{id_}"), 404, "not_found")


# ---- searches


@pytest.mark.parametrize("mode", ["hamming", "asymmetric", "reranked", None])
def test_a_vector_finds_its_item_as_the_library_does(client, mode):
    answer = answered(by_vector(client, 7, k=5, mode=mode))
    how = {"rerank": True} if mode in (None, "reranked") else {"mode": mode}
    distances, ids = client.source.search(rows_of()[7], 5, **how)
    assert found(answer) == ids.tolist()
    shown = distances if mode == "hamming" else np.sqrt(np.maximum(distances, 0))
    assert np.allclose([each.distance for each in answer.results], shown)
    assert answer.results[0].metadata["row"] == 7
    assert answer.results[0].code is None


def test_codes_are_given_if_asked_for_and_searched_by(client):
    answer = answered(by_vector(client, 7, k=3, mode="hamming", codes=True))
    assert [each.hamming for each in answer.results] == [each.distance for each in answer.results]
    again = client.post("/api/v1/search/vector", json={"code": answer.query.code, "k": 3, "mode": "hamming"})
    assert found(answered(again)) == found(answer)


def test_an_id_finds_others_and_a_text_what_its_vector_does(client):
    by_id = answered(client.get("/api/v1/search?id=doc/7&k=4"))
    assert "doc/7" not in found(by_id)
    assert by_id.query.metadata["row"] == 7
    by_text = answered(client.get("/api/v1/search?text=row 7&k=5"))
    assert by_text.query.text == "row 7"
    assert found(by_text) == ["doc/7", *found(by_id)]


def test_conditions_hold_for_every_search(client):
    for response in (
        by_vector(client, 7, where="colour = red"),
        by_vector(client, 7, where={"colour": "red"}, mode="hamming", radius=9),
        client.get("/api/v1/search?id=doc/7&where=colour%3Dred"),
    ):
        answer = answered(response)
        assert {each.metadata["colour"] for each in answer.results} == {"red"}
        assert answer.where == 'colour == "red"'


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "vector or code"),
        ({"vector": [1.0], "code": "0"}, "either vector or code"),
        ({"vector": [1.0] * 9}, "9 numbers; those of this collection have 16"),
        ({"vector": [1e300] * D}, "too large for float32"),
        ({"code": "01"}, "code has 2 bits"),
        ({"vector": [1.0] * D, "where": {"nope": 1}}, "no item has the field 'nope'"),
        ({"vector": [1.0] * D, "k": 0}, "k"),
        ({"vector": [1.0] * D, "radius": 17}, "16 bits"),
        ({"vector": ["x"] * D}, "vector"),
    ],
)
def test_searches_by_vector_refuse_what_they_cannot_use(client, given, part):
    assert part in refused(client.post("/api/v1/search/vector", json=given), 422, "invalid")


def test_without_a_function_there_is_no_search_by_text(writer):
    message = refused(writer.get("/api/v1/search?text=row 7"), 422, "no_text_search")
    assert "--embed" in message


def test_a_function_that_fails_is_told_of_without_its_secrets(client, caplog):
    message = refused(client.get("/api/v1/search?text=nonsense"), 502, "embed_failed")
    assert "nonsense" not in message
    assert "invalid literal" in caplog.text


def test_codes_for_the_decoder_have_no_radius_and_no_hamming_distance(tmp_path):
    with Collection.create(tmp_path / "c", rows_of(), bits=16, method="itq", decoder="linear"):
        pass
    with Client(tmp_path / "c") as client:
        assert client.json("/stats")["modes"] == ["asymmetric"]
        assert len(found(answered(by_vector(client, 7)))) == 20
        assert 7 not in found(answered(client.get("/api/v1/search?id=7&codes=true")))
        refused(by_vector(client, 7, radius=3), 422, "invalid")
        refused(by_vector(client, 7, mode="hamming"), 422, "invalid")
        refused(client.get("/api/v1/duplicates?radius=1"), 422, "invalid")


def test_codes_alone_are_searched_by_code_and_id(tmp_path, model):
    with Collection.create(tmp_path / "c", bits=16) as collection:
        collection.add(codes=model.encode(rows_of()))
    with Client(tmp_path / "c", writable=True) as client:
        stats = answered(client.get("/api/v1/stats"), schemas.Stats)
        assert (stats.method, stats.modes) == (None, ["hamming"])
        item = client.json("/items/5")
        assert len(item["code"]) == 16
        answer = answered(client.post("/api/v1/search/vector", json={"code": item["code"], "k": 1}))
        assert answer.results[0].distance == 0
        assert answered(client.get("/api/v1/search?id=5")).mode == "hamming"
        refused(client.post("/api/v1/search/vector", json={"vector": [0.0] * D}), 422, "invalid")
        refused(client.get("/api/v1/model"), 404, "no_model")
        assert client.post("/api/v1/items", json={"items": [{"code": item["code"]}]}).json()["ids"] == [N]


# ---- streams


def stream(client, path, lines):
    body = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    return client.post(f"/api/v1{path}", content=body, headers={"Content-Type": "application/x-ndjson"})


def test_a_stream_of_searches_gets_a_line_for_each(client):
    vectors = [{"vector": each.tolist()} for each in np.tile(rows_of(), (4, 1))]
    mixed = [*vectors, {"id": "doc/3"}, {"text": "row 3"}, "{", {"vector": [1]}, {"id": "no"}, {}]
    response = stream(client, "/search/stream?k=2&where=row%3E%3D0", mixed)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.content.splitlines()]
    assert len(lines) == len(mixed)
    for row in (0, 89, 300):
        expected = answered(by_vector(client, row % N, k=2))
        assert [each["id"] for each in lines[row]["results"]] == found(expected)
    assert "doc/3" not in [each["id"] for each in lines[360]["results"]]
    assert lines[361]["results"][0]["id"] == "doc/3"
    errors = [line["error"] for line in lines[362:]]
    assert [each["code"] for each in errors] == ["invalid", "invalid", "not_found", "invalid"]
    assert errors[0]["message"].startswith("line 363: ")


def test_a_line_that_cannot_be_searched_costs_the_others_nothing(client, writer):
    good = {"vector": rows_of()[5].tolist()}
    lines = [good, {"vector": [1e38] * D}, {"text": "fails"}, {"id": "doc/5"}, good]
    codes = {client: "embed_failed", writer: "no_text_search"}
    for one, code in codes.items():
        response = stream(one, "/search/stream?k=1", lines)
        assert response.status_code == 200
        found = [json.loads(line) for line in response.content.splitlines()]
        assert [line.get("error", {}).get("code") for line in found] == [None, "invalid", code, None, None]
        assert "too large" in found[1]["error"]["message"]
        assert found[0]["results"][0]["id"] == found[4]["results"][0]["id"] == "doc/5"


def test_a_stream_does_not_tell_where_the_collection_is(writer, monkeypatch):
    lines = [{"id": f"new/{n}", "vector": [n] * D} for n in range(1500)]
    calls, add = [], Collection.add

    def full(self, *given, **how):
        calls.append(self)
        if len(calls) > 1:
            raise FileProblem(f"{self.path} could not be written to: No space left on device.")
        return add(self, *given, **how)

    monkeypatch.setattr(Collection, "add", full)
    told = [json.loads(line) for line in stream(writer, "/items/stream", lines).content.splitlines()]
    message = "docs.auxbit could not be written to: No space left on device."
    assert told[1:] == [{"error": {"code": "file_gone", "message": message}}]


def test_a_stream_that_cannot_begin_has_a_status(client):
    refused(stream(client, "/search/stream?where=nope%3D1", [{}]), 422, "invalid")
    assert stream(client, "/search/stream", ["", " "]).content == b""


def test_lines_that_are_refused_are_not_held_until_garbage_is_collected(client):
    gc.collect()
    gc.disable()
    try:
        lines = stream(client, "/search/stream", [{"x": "y"}] * 3).content.splitlines()
        kept = [each for each in gc.get_objects() if isinstance(each, Problem)]
    finally:
        gc.enable()
    assert [json.loads(line)["error"]["code"] for line in lines] == ["invalid"] * 3
    assert kept == []


def test_a_stream_adds_thousands_and_ends_at_the_first_error(writer):
    lines = [{"id": f"new/{n}", "vector": [n] * D, "metadata": {"row": n}} for n in range(2500)]
    lines[2300] = {"id": "new/2300", "vector": [1]}
    told = [json.loads(line) for line in stream(writer, "/items/stream", lines).content.splitlines()]
    assert told[:2] == [{"added": 1000, "items": N + 1000}, {"added": 2000, "items": N + 2000}]
    assert "line 2301: vector has 1 numbers" in told[2]["error"]["message"]
    assert len(writer.source) == N + 2000
    refused(stream(writer, "/items/stream", lines[:1]), 422, "invalid")  # its id is there
    lines[1500] = {"id": "new/1500", "metadata": {}}
    again = stream(writer, "/items/stream?upsert=true", lines).content.splitlines()
    assert "line 1501 has no vector, but others" in json.loads(again[1])["error"]["message"]
    assert stream(writer, "/items/stream?upsert=true", lines[:1]).json() == {"added": 1, "items": N + 2000}


def test_a_line_without_an_end_is_refused(made, tmp_path):
    path = shutil.copytree(made, tmp_path / "docs.auxbit")
    with Client(path, writable=True, limits=Limits(body_bytes=1000)) as client:
        refused(stream(client, "/items/stream", ["x" * 5000]), 413, "too_large")


# ---- changes


def test_what_is_added_is_found_and_what_is_deleted_is_not(writer):
    items = [{"id": "new", "vector": rows_of()[7].tolist(), "metadata": {"row": -1}}]
    added = answered(writer.post("/api/v1/items", json={"items": items}), schemas.Added)
    assert (added.ids, added.items) == (["new"], N + 1)
    assert set(found(answered(by_vector(writer, 7, k=2)))) == {"doc/7", "new"}
    refused(writer.post("/api/v1/items", json={"items": items}), 422, "invalid")
    assert writer.post("/api/v1/items", json={"items": items, "upsert": True}).status_code == 200
    deleted = answered(writer.request("DELETE", "/api/v1/items/new"), schemas.Deleted)
    assert (deleted.deleted, deleted.items) == (1, N)
    refused(writer.request("DELETE", "/api/v1/items/new"), 404, "not_found")
    some = {"ids": ["doc/1", "doc/2"]}
    assert writer.post("/api/v1/items/delete", json=some).json() == {"deleted": 2, "items": N - 2}
    refused(writer.post("/api/v1/items/delete", json=some), 422, "invalid")
    red = writer.post("/api/v1/items/delete", json={"where": {"colour": "red"}}).json()
    assert red["items"] == N - 2 - red["deleted"] == writer.json("/stats")["items"]


@pytest.mark.parametrize(
    ("items", "part"),
    [
        ([], "items"),
        ([{"id": "a"}], "vector"),
        ([{"vector": [0] * D}], "ids"),
        ([{"id": "a", "vector": [0] * 7}], "items.0: vector has 7 numbers"),
        ([{"id": "a", "vector": [0] * D}, {"vector": [0] * D}], "items.1 has no id"),
        ([{"id": "a", "vector": [1e39] * D}], "too large for float32"),
        ([{"id": "a", "vector": [0] * D, "metadata": [1]}], "metadata"),
        ([{"id": "", "vector": [0] * D}], "id"),
        ([{"id": True, "vector": [0] * D}], "id"),
        ([{"id": "a", "vector": [0] * D}] * 2, "a"),
        ([{"id": "a", "vector": [0] * D, "more": 1}], "more"),
    ],
)
def test_what_cannot_be_added_changes_nothing(writer, items, part):
    before = writer.source.state.commit
    assert part in refused(writer.post("/api/v1/items", json={"items": items}), 422, "invalid")
    assert writer.source.state.commit == before


def test_nothing_at_all_is_not_deleted(writer):
    for given in ({}, {"where": ""}, {"where": {}}, {"ids": []}, {"ids": ["doc/1"], "where": "row=1"}):
        refused(writer.post("/api/v1/items/delete", json=given), 422, "invalid")
    assert len(writer.source) == N


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/items", {"items": [{"vector": [0] * D}]}),
        ("DELETE", "/items/1", None),
        ("POST", "/items/delete", {"ids": [1]}),
        ("POST", "/items/stream", {"vector": [0] * D}),
    ],
)
def test_without_leave_nothing_is_changed(client, method, path, body):
    message = refused(client.request(method, f"/api/v1{path}", json=body), 403, "read_only")
    assert "--token" in message
    with Client(digits(), writable=True) as pictures:
        message = refused(pictures.request(method, f"/api/v1{path}", json=body), 403, "read_only")
        assert "auxbit images add" in message


def test_another_writer_is_told_of(writer, made):
    with Collection(writer.source.path) as other:
        other.lock()
        given = {"items": [{"id": "a", "vector": [0] * D}]}
        message = refused(writer.post("/api/v1/items", json=given), 409, "in_use")
    assert str(made.parent.parent) not in message


def test_uuids_are_text_in_json(tmp_path, model):
    ids = [uuid.UUID(int=n) for n in range(3)]
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(rows_of(3), ids=ids)
    with Client(tmp_path / "c", writable=True) as client:
        assert client.json(f"/items/{ids[2]}")["id"] == str(ids[2])
        assert client.json(f"/search?id={ids[2]}")["query"]["id"] == str(ids[2])
        new = str(uuid.UUID(int=9))
        assert client.post("/api/v1/items", json={"items": [{"id": new, "vector": [0] * D}]}).json()[
            "ids"
        ] == [new]
        refused(client.get("/api/v1/items/5"), 404, "not_found")


# ---- duplicates


def test_duplicates_are_of_the_same_vectors_or_of_near_codes(tmp_path, model):
    X = np.concatenate([rows_of(), rows_of()[:3], rows_of()[3:4] + 1e-3])
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        collection.add(X)
        near = collection.duplicates(2)
    with Client(tmp_path / "c") as client:
        exact = answered(client.get("/api/v1/duplicates"), schemas.Duplicates)
        assert [[item.id for item in group.items] for group in exact.groups] == [[0, 90], [1, 91], [2, 92]]
        assert (exact.total, exact.spare) == (3, 3)
        by_radius = answered(client.get("/api/v1/duplicates?radius=2&limit=1&offset=1"), schemas.Duplicates)
        assert (by_radius.total, len(by_radius.groups)) == (len(near), min(1, len(near) - 1))
        spare = client.get("/api/v1/duplicates/spare")
        assert spare.text == "90\n91\n92\n"
        assert "attachment" in spare.headers["content-disposition"]
