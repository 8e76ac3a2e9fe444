"""Uploads: what is found, what is remembered, and what a bad one costs."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from auxbit.serve import schemas
from auxbit.serve.security import Limits, Problem
from auxbit.serve.state import Upload, Uploads
from helpers.serve_cases import Client, digit_pixels, digits, png, refused

PATH = "/api/v1/search/upload"
NOISE = np.random.default_rng(0).integers(0, 255, (40, 40))
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


def answer(response):
    assert response.status_code == 200, response.text
    return schemas.Answer.model_validate_json(response.content, strict=True)


# ---- a good one


def test_a_picture_that_is_in_the_collection_finds_itself_first(client):
    found = answer(client.upload(png(digit_pixels(17)), "?k=3&mode=reranked", "seventeen.png"))
    assert (found.results[0].id, found.results[0].distance) == (17, 0)
    assert (found.query.file, found.query.width, found.query.height) == ("seventeen.png", 8, 8)
    assert (found.query.id, found.mode, found.k) == (None, "reranked", 3)


def test_an_upload_can_be_searched_from_again_by_its_hash(client):
    first = answer(client.upload(png(digit_pixels(21)), "?k=4&mode=hamming"))
    again = answer(client.get(f"/api/v1/search?upload={first.query.upload}&k=4&mode=hamming"))
    assert again.model_copy(update={"milliseconds": 0}) == first.model_copy(update={"milliseconds": 0})
    assert again.query.thumbnail == f"/api/v1/uploads/{first.query.upload}/thumbnail"
    thumbnail = client.get(again.query.thumbnail)
    assert thumbnail.headers["content-type"] == "image/png"
    assert np.array_equal(
        np.asarray(Image.open(io.BytesIO(thumbnail.content)).convert("L")), digit_pixels(21)
    )
    shown = client.get(again.query.reconstruction)
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
    tag = {"If-None-Match": thumbnail.headers["etag"]}
    assert client.get(again.query.thumbnail, headers=tag).status_code == 304


def test_an_upload_of_any_format_is_read(client):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8))
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"):
        out = io.BytesIO()
        picture.save(out, kind)
        found = answer(client.upload(out.getvalue(), "?k=1", f"x.{kind}"))
        assert (found.query.width, found.query.height) == (40, 30)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("cat.png", "cat.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\cat.png", "cat.png"),
        ("<img src=x onerror=alert(1)>.png", "<img src=x onerror=alert(1)>.png"),
        ("a\u202egnp.exe", "agnp.exe"),
        ("кот.png", "кот.png"),
        ("x" * 400, "x" * 300),
    ],
)
def test_of_a_file_name_the_last_part_is_kept_as_text(client, given, shown):
    content = png(np.random.default_rng(len(given)).integers(0, 255, (9, 9)))
    assert answer(client.upload(content, "?k=1", given)).query.file == shown


def test_the_same_picture_is_decoded_once(client, monkeypatch):
    content = png(digit_pixels(30))
    first = answer(client.upload(content))
    monkeypatch.setattr(client.site.decoders, "decode", None)
    again = answer(client.upload(content, name="other.png"))
    assert again.results == first.results
    assert again.query.file == "other.png"


@pytest.mark.parametrize("what", ["thumbnail", "reconstruction"])
def test_an_unknown_upload_is_a_404_that_says_what_to_do(client, what):
    assert "again" in refused(client.get(f"/api/v1/uploads/{'0' * 64}/{what}"), 404, "upload_gone")
    refused(client.get(f"/api/v1/uploads/..%2f..%2fetc/{what}"), 404, "not_found")


# ---- bad ones, each followed by a good one


def bomb(width, height):
    """A PNG that says it has so many pixels, with next to no data."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


BAD = {
    "text": (b"this is no picture", 415, "not_a_picture"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not_a_picture"),
    "cut short": (png(NOISE)[:300], 415, "not_a_picture"),
    "a bomb": (bomb(100_000, 100_000), 413, "too_many_pixels"),
    "no width": (bomb(0, 10), 415, "not_a_picture"),
    "nothing": (b"", 422, "empty_file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_costs_a_clear_error_and_nothing_else(client, name):
    content, status, code = BAD[name]
    assert refused(client.upload(content), status, code).endswith(".")
    assert client.upload(png(digit_pixels(1))).status_code == 200


def test_a_picture_within_the_pixels_of_the_format_but_not_of_the_server_is_refused():
    with Client(digits(), limits=Limits(upload_pixels=100)) as client:
        assert client.upload(png(np.zeros((10, 10)))).status_code == 200
        message = refused(client.upload(png(np.zeros((10, 11)))), 413, "too_many_pixels")
        assert "110 pixels; at most 100" in message


def test_a_file_within_the_body_but_larger_than_allowed_is_refused():
    with Client(digits(), limits=Limits(upload_bytes=1000)) as client:
        assert len(png(NOISE)) > 1000
        assert "1,000" in refused(client.upload(png(NOISE)), 413, "too_large")
        assert client.upload(png(digit_pixels(1))).status_code == 200


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"content": png(np.zeros((3, 3)))}, 415, "not_multipart"),
        ({"json": {"file": "x"}}, 415, "not_multipart"),
        ({"data": {"file": "x"}}, 415, "not_multipart"),
        ({"files": {"picture": ("x.png", png(np.zeros((3, 3))))}}, 422, "invalid"),
        ({"files": {"file": (None, "text")}}, 422, "invalid"),
        ({"files": [("file", ("a", b"a")), ("file", ("b", b"b"))]}, 400, "bad_request"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "bad_request"),
        (
            {"content": b"x", "headers": FORM},
            400,
            "bad_request",
        ),
        ({"content": b"", "headers": FORM}, 422, "invalid"),
        (
            {"content": b"--b\r\n", "headers": FORM},
            422,
            "invalid",
        ),
    ],
)
def test_forms_that_hold_no_one_file_are_refused(client, options, status, code):
    refused(client.post(PATH, **options), status, code)


@pytest.mark.parametrize("query", ["?k=0", "?mode=x", "?radius=-1", "?radius=99"])
def test_uploads_refuse_what_searches_refuse(client, query):
    refused(client.upload(png(digit_pixels(1)), query), 422, "invalid")


# ---- what is remembered


def upload(hash_, size=10, key="k"):
    return Upload(hash_, key, "x.png", b"t" * size, 8, 8, np.zeros(4, dtype=np.float32))


def test_uploads_that_were_asked_for_last_are_kept():
    kept = Uploads(2, 10**9)
    for name in "ab":
        kept.keep(upload(name))
    assert kept.find("a", "k") is not None
    kept.keep(upload("c"))
    assert [kept.find(name, "k") is not None for name in "abc"] == [True, False, True]
    assert len(kept) == 2


def test_uploads_take_so_much_memory_and_no_more():
    kept = Uploads(100, 5000)
    for name in "abcdef":
        kept.keep(upload(name, 1000))
    assert [kept.find(name, "k") is not None for name in "abcdef"] == [False] * 4 + [True] * 2
    kept.keep(upload("g", 10**6))
    assert len(kept) == 1
    kept.keep(upload("h"))
    assert kept.find("h", "k") is not None


def test_the_same_upload_is_counted_once():
    kept = Uploads(100, 5000)
    for _ in range(50):
        kept.keep(upload("a", 1000))
    kept.keep(upload("b", 1000))
    assert len(kept) == 2


def test_an_upload_of_another_collection_is_unknown(client):
    client.site.uploads.keep(upload("a"))
    assert client.site.uploads.find("a", "another") is None
    with pytest.raises(Problem, match="upload the picture again"):
        client.site.upload("a")


@pytest.mark.parametrize("mode", ["hamming", "reranked"])
def test_a_copy_of_a_stored_file_is_at_distance_0(client, mode):
    """Vectors are kept in half precision: the upload's own is not quite the same."""
    answer = client.upload(png(digit_pixels(7)), f"?mode={mode}&k=3").json()
    assert (answer["results"][0]["id"], answer["results"][0]["distance"]) == (7, 0)
    again = client.json(f"/search?upload={answer['query']['upload']}&mode={mode}&k=3")
    assert again["results"] == answer["results"]
