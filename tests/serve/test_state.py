"""A collection that is changed, damaged or removed while it is served."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.images.build import build
from auxbit.images.decode import decode
from auxbit.images.features import Recipe
from helpers.serve_cases import Client, N, digit_pixels, own_digits, png, refused, write_digits


@pytest.fixture
def path(tmp_path):
    return own_digits(tmp_path)


@pytest.fixture
def client(path):
    with Client(path) as client:
        yield client


def add(path, numbers, **options):
    """Put digits into the collection, with the metadata of others."""
    with Collection.open(path, n_jobs=1) as collection:
        X = np.array([digit_pixels(number).ravel() for number in numbers], dtype=np.float32)
        row = collection.metadata([5])[0]
        rows = [row | {"file": f"new/{number}.png"} for number in numbers]
        thumbnails = [png(digit_pixels(number)) for number in numbers]
        return collection.add(X, metadata=rows, attachments=thumbnails, **options)


def execute(path, statement):
    """Change the database behind the back of the collection."""
    with closing(sqlite3.connect(path / "collection.sqlite")) as connection, connection:
        connection.execute(statement)


def ids_of(client, query):
    return [item["id"] for item in client.json(f"/items?{query}")["items"]]


def test_what_is_added_is_listed_and_found(client, path):
    assert client.json("/items?name=new")["total"] == 0
    random = ids_of(client, "order=random&limit=500")
    add(path, [200, 201])
    assert client.json("/health")["items"] == N + 2
    assert client.json("/stats")["added_since_training"] == 2
    assert [item["file"] for item in client.json("/items?name=NEW/")["items"]] == [
        "new/200.png",
        "new/201.png",
    ]
    assert [each for each in ids_of(client, "order=random&limit=500") if each < N] == random
    vector = digit_pixels(200).ravel().tolist()
    answer = client.post("/api/v1/search/vector", json={"vector": vector, "mode": "reranked"}).json()
    assert answer["results"][0]["id"] == N


def test_what_is_deleted_is_gone(client, path):
    assert 7 in ids_of(client, "order=name&limit=500")
    with Collection.open(path, n_jobs=1) as collection:
        collection.delete([7])
    assert 7 not in ids_of(client, "order=name&limit=500")
    refused(client.get("/api/v1/search?id=7"), 404, "not_found")
    refused(client.get("/api/v1/items/7/thumbnail"), 404, "not_found")
    assert 7 not in [result["id"] for result in client.json("/search?id=8&k=200")["results"]]


def test_what_is_replaced_has_its_new_name_even_where_it_was_the_last(client, path):
    before = client.json("/items?limit=500")["items"]
    add(path, [300], ids=[N - 1], upsert=True)
    after = client.json("/items?limit=500")["items"]
    assert after[:-1] == before[:-1]
    assert (after[-1]["id"], after[-1]["file"]) == (N - 1, "new/300.png")
    assert client.get(after[-1]["thumbnail"]).content == png(digit_pixels(300))


def test_a_name_that_is_changed_is_listed_and_searched_under_the_new_one(client, path):
    assert client.json("/items?name=other")["total"] == 0
    assert client.json("/search?id=7")["query"]["file"] != "other.png"
    with Collection.open(path, n_jobs=1) as collection:
        collection.update_metadata([7], {"file": "other.png"})
    assert ids_of(client, "name=other") == [7]
    assert client.json("/search?id=7")["query"]["file"] == "other.png"


def test_after_a_retraining_codes_are_those_of_the_new_model(client, path):
    assert len(client.json("/search?id=7")["query"]["code"]) == 12
    hash_ = client.upload(png(digit_pixels(50))).json()["query"]["upload"]
    with Collection.open(path, n_jobs=1) as collection:
        X = collection.vectors(collection.ids).astype(np.float32)
        collection.retrain(ITQ(6, random_state=1).fit(X))
    assert client.json("/stats")["bits"] == 6
    assert client.json("/stats")["default_mode"] == "reranked"
    for query in (f"upload={hash_}", "id=7"):
        answer = client.json(f"/search?{query}&k=3")
        assert {len(answer["query"]["code"]), *(len(each["code"]) for each in answer["results"])} == {6}
    refused(client.get("/api/v1/search?id=7&radius=7"), 422, "invalid")
    assert client.get(f"/api/v1/uploads/{hash_}/reconstruction").status_code == 200


def test_another_collection_in_its_place_is_served_and_uploads_are_forgotten(client, path, tmp_path):
    hash_ = client.upload(png(digit_pixels(50))).json()["query"]["upload"]
    sources = write_digits(tmp_path / "others", range(40))
    build(sources, path, Recipe("pixels", 8), bits=5, method="itq", overwrite=True, n_jobs=1, decode=decode)
    assert (client.json("/stats")["dimension"], client.json("/health")["items"]) == (192, 40)
    assert client.json("/items?limit=500")["total"] == 40
    refused(client.get(f"/api/v1/search?upload={hash_}"), 404, "upload_gone")
    assert client.upload(png(digit_pixels(39)), "?mode=reranked").json()["results"][0]["id"] == 39
    assert client.get("/api/v1/items/39/thumbnail").status_code == 200


def test_an_item_without_a_picture_is_served_without_one(client, path):
    with Collection.open(path, n_jobs=1) as collection:
        (id_,) = collection.add(np.zeros((1, 64)), metadata=[{"sha256": 5}]).tolist()
    assert client.json(f"/items/{id_}")["file"] == ""
    assert client.json(f"/search?id={id_}&k=1")["results"]
    for what in ("thumbnail", "picture"):
        refused(client.get(f"/api/v1/items/{id_}/{what}"), 404, "not_found")


def test_a_collection_that_is_removed_is_gone_until_it_is_back(client, path, tmp_path):
    os.rename(path, tmp_path / "elsewhere")
    for url in ("/health", "/stats", "/items", "/items/1", "/search?id=1", "/model", "/items/1/thumbnail"):
        message = refused(client.get(f"/api/v1{url}"), 410, "collection_gone")
        assert str(tmp_path) not in message
    assert client.get("/").status_code == 200
    os.rename(tmp_path / "elsewhere", path)
    assert client.json("/health")["items"] == N
    assert client.json("/search?id=1")["items"] == N


def test_a_folder_that_is_another_one_is_not_taken_for_the_one_that_was_opened(client, path, tmp_path):
    os.rename(path, tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", path)
    message = refused(client.get("/api/v1/health"), 410, "collection_gone")
    assert message == "digits.auxbit was replaced by another collection. Open it again."


def test_a_damaged_thumbnail_says_so_and_the_others_are_shown(client, path):
    execute(path, "UPDATE attachments SET content = substr(content, 2) WHERE number = 3")
    message = refused(client.get("/api/v1/items/3/thumbnail"), 410, "damaged")
    assert "digits.auxbit: the attachment of item 3 does not match its checksum" in message
    assert str(path.parent) not in message
    assert client.get("/api/v1/items/4/thumbnail").status_code == 200
    assert client.get("/api/v1/search?id=3").status_code == 200


def test_missing_thumbnails_say_so(client, path):
    execute(path, "DELETE FROM attachments")
    message = refused(client.get("/api/v1/items/3/thumbnail"), 410, "damaged")
    assert "digits.auxbit: the thumbnail of item 3 is missing" in message
    assert str(path.parent) not in message
    assert client.get("/api/v1/health").status_code == 200


def test_items_keep_their_codes_while_another_thread_asks_for_them_without(client, monkeypatch):
    known, read = client.site.known, client.site.collection.metadata
    without = known.of([3], codes=False)[0]
    known.of([3], codes=True)

    def read_by_both(ids):  # the other thread, which began before, notes what it has read
        known._kept[3] = without
        return read(ids)

    monkeypatch.setattr(client.site.collection, "metadata", read_by_both)
    assert all(each.code and each.bits for each in known.of([3, 4], codes=True))


def test_answers_are_whole_while_others_add_delete_and_retrain(client, path):
    """Whatever is in them is of one state: codes of one length, distances in order."""
    from auxbit.errors import AuxbitError
    from auxbit.serve.search import Asked, Wanted, answer

    stop = threading.Event()

    def ask(seed):
        rng, seen = np.random.default_rng(seed), 0
        while not stop.is_set() or seen < 20:
            mode = ("hamming", "asymmetric", "reranked")[seen % 3]
            radius = None if seen % 2 else 4
            try:
                found = answer(client.site, Asked(id=int(rng.integers(0, N))), Wanted(10, mode, radius))
            except AuxbitError as error:
                assert "not there" in str(error)  # noqa: PT017  it was deleted
            else:
                lengths = {len(each["code"]) for each in (found["query"], *found["results"])}
                distances = [each["distance"] for each in found["results"]]
                assert len(lengths) == 1
                assert distances == sorted(distances)
                client.site.listing()
            seen += 1
        return seen

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask, seed) for seed in range(3)]
        try:
            for turn in range(4):
                add(path, range(400 + 10 * turn, 410 + 10 * turn))
                with Collection.open(path, n_jobs=1) as collection:
                    collection.delete(collection.ids[20 + turn : 23 + turn])
                    X = collection.vectors(collection.ids).astype(np.float32)
                    collection.retrain(ITQ(6 + turn, random_state=turn).fit(X))
        finally:
            stop.set()
        assert all(each.result() >= 20 for each in running)
