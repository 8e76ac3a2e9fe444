"""Pictures over HTTP by their views, and by words of the network that they have."""

from __future__ import annotations

import json

import numpy as np
import pytest

from auxbit.serve import schemas
from auxbit.serve.server import _check_words
from helpers.picture_collections import create
from helpers.picture_files import BLUE, GREEN, RED, noise, saved
from helpers.picture_network import network, text_network, tokenizer
from helpers.serve_cases import Client, refused


def answer(response):
    assert response.status_code == 200, response.text
    return schemas.Answer.model_validate_json(response.content, strict=True)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")
    (folder / "in").mkdir()
    for number in range(20):
        (folder / "in" / f"img{number}.png").write_bytes(saved(noise(16, 16, seed=number)))
    create(folder / "in", folder / "out", side=16, bits=16, views=True)
    with Client(folder / "out") as client:
        yield client


@pytest.mark.parametrize("mode", ["hamming", "asymmetric", "reranked"])
def test_a_mirrored_copy_finds_its_original_which_is_named_by_the_view(client, mode):
    pixels = noise(16, 16, seed=7)
    found = answer(client.upload(saved(pixels[:, ::-1]), f"?k=5&mode={mode}"))
    first = found.results[0]
    assert (first.file, first.view) == ("img7.png", "mirrored")
    assert [each.id for each in found.results] == list(dict.fromkeys(each.id for each in found.results))
    assert found.results == sorted(found.results, key=lambda each: each.distance)
    as_it_is = answer(client.upload(saved(pixels), f"?k=1&mode={mode}")).results[0]
    assert (as_it_is.file, as_it_is.view) == ("img7.png", None)
    assert mode == "asymmetric" or as_it_is.distance == 0


def test_an_item_is_not_found_by_its_own_views_and_conditions_hold_for_views(client):
    own = client.get("/api/v1/search?id=7&k=19").json()["results"]
    assert len(own) == 19
    assert 7 not in [each["id"] for each in own]
    upload = saved(noise(16, 16, seed=7)[:, ::-1])
    others = answer(client.upload(upload, "?k=20&where=file!=img7.png")).results
    assert len(others) == 19
    assert "img7.png" not in [each.file for each in others]
    within = answer(client.upload(upload, "?k=5&radius=16")).results
    assert [each.view for each in within] == [None] * 5


def test_streams_find_pictures_by_their_views(client):
    vector = client.pictures.views().collection.vectors([7 * 16])[0]
    body = "\n".join(f'{{"vector": {row}}}' for row in (vector.tolist(), [0.0] * len(vector)))
    lines = client.post("/api/v1/search/stream?k=3", content=body).text.splitlines()
    assert len(lines) == 2
    first = json.loads(lines[0])["results"][0]
    assert (first["file"], first["distance"]) == ("img7.png", 0)


# ---- by words


@pytest.fixture
def colours(tmp_path):
    (tmp_path / "in").mkdir()
    for name, colour in (("red", RED), ("green", GREEN), ("blue", BLUE), ("grey", (90, 90, 90))):
        (tmp_path / "in" / f"{name}.png").write_bytes(saved(np.full((9, 9, 3), colour, dtype=np.uint8)))
    towers = {"model": network([None, 3, 8, 8]), "text_model": text_network(), "tokenizer": tokenizer()}
    for name, content in towers.items():
        (tmp_path / name).write_bytes(content)
    files = {name: tmp_path / name for name in towers}
    create(tmp_path / "in", tmp_path / "out", features=None, side=None, bits=2, **files)
    return tmp_path / "out"


def test_pictures_with_a_network_for_words_are_searched_by_them(colours):
    with Client(colours) as client:
        assert client.get("/api/v1/stats").json()["has_text_search"] is True
        for name in ("red", "green", "blue"):
            found = answer(client.get(f"/api/v1/search?text={name}&k=1"))
            assert (found.query.text, found.results[0].file) == (name, f"{name}.png")
        refused(client.get("/api/v1/search?text=%20"), 422, "invalid")
        lines = client.post("/api/v1/search/stream?k=1", content='{"text": " "}\n{"text": "red"}').text
        assert lines.count("error") == 1
        assert "red.png" in lines
    with Client(colours, embed=lambda texts: [[0, 0, 1.0]] * len(texts)) as client:  # one's own goes first
        assert answer(client.get("/api/v1/search?text=red&k=1")).results[0].file == "blue.png"


def test_words_that_cannot_be_understood_leave_the_rest_of_the_server_alone(colours, caplog):
    (colours / "text.onnx").write_bytes(b"changed")
    with Client(colours) as client:
        _check_words(client.site)
        assert "cannot be searched by words" in caplog.text
        assert client.site.embed is None
        assert client.get("/api/v1/search?id=1&k=1").status_code == 200
        refused(client.get("/api/v1/search?text=red"), 422, "no_text_search")
