"""Listings, single items and their pictures."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from auxbit import __version__
from auxbit.images.build import build
from auxbit.images.decode import decode
from auxbit.images.features import Recipe
from auxbit.images.sources import Source, natural
from auxbit.serve import schemas
from helpers.serve_cases import Client, N, digit_pixels, digits, own_digits, png, refused, write_digits


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


def document(client, url, model):
    """What an endpoint answers, which is as its schema says, types and all."""
    response = client.get(f"/api/v1{url}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return model.model_validate_json(response.content, strict=True)


# ---- the whole


def test_health_says_the_version_and_how_many_items_there_are(client):
    found = document(client, "/health", schemas.Health)
    assert (found.status, found.version, found.items) == ("ok", __version__, N)


def test_stats_say_what_the_page_needs_to_know(client):
    found = document(client, "/stats", schemas.Stats)
    assert (found.name, found.items, found.bits, found.method, found.dimension) == (
        "digits",
        N,
        12,
        "ITQ",
        64,
    )
    assert (found.coding, found.mu, found.default_mode) == ("optimal", 0.01, "reranked")
    assert found.modes == ["hamming", "asymmetric", "reranked"]
    assert found.features.model_dump() == {"kind": "pixels", "side": 8, "colour": 0.0, "grey": True}
    assert found.reconstructs is True
    assert found.has_comparison is False
    assert (found.max_k, found.max_upload_bytes, found.max_upload_pixels) == (200, 20_000_000, 50_000_000)
    assert found.bytes["vectors"] == N * 64 * 2
    assert found.added_since_training == 0


def test_gist_is_not_shown_as_pictures():
    with Client(digits("gist")) as client:
        found = document(client, "/stats", schemas.Stats)
        assert (found.features.kind, found.reconstructs) == ("gist", False)
        assert document(client, "/items/3", schemas.PictureDetail).reconstruction is None
        assert document(client, "/search?id=3", schemas.Answer).query.reconstruction is None
        refused(client.get("/api/v1/items/3/reconstruction"), 404, "no_reconstruction")


# ---- listings


def names(client, query):
    return [item.file for item in document(client, f"/items?{query}", schemas.Items).items]


def test_items_come_in_the_order_they_were_added_page_by_page(client):
    first = document(client, "/items?limit=50", schemas.Items)
    assert (first.total, first.offset, len(first.items)) == (N, 0, 50)
    rest = document(client, "/items?limit=500&offset=50", schemas.Items)
    assert [item.id for item in first.items + rest.items] == list(range(N))
    assert document(client, f"/items?offset={N}", schemas.Items).items == []
    assert document(client, f"/items?offset={2**53 - 1}", schemas.Items).items == []


def test_an_item_of_a_listing_has_name_size_and_the_address_of_its_thumbnail(client):
    (item,) = document(client, "/items?limit=1", schemas.Items).items
    assert (item.file, item.width, item.height) == ("Digit 0/img0.png", 8, 8)
    assert client.get(item.thumbnail).content.startswith(b"\x89PNG")


def test_order_by_name_has_numbers_in_their_order(client):
    by_name = names(client, "order=name&limit=500")
    assert by_name[:4] == ["Digit 0/img0.png", "Digit 0/img10.png", "Digit 0/img20.png", "Digit 0/img30.png"]
    assert by_name.index("Digit 1/img1.png") < by_name.index("Digit 1/img11.png")
    assert sorted(by_name) == sorted(names(client, "limit=500"))


@given(st.integers(0, 10**30), st.integers(0, 10**30), st.text("ab", max_size=3))
def test_natural_order_is_that_of_the_numbers_in_names(one, other, after):
    assert (natural(f"img{one}{after}") < natural(f"img{other}{after}")) == (one < other)
    assert natural(f"im{one}") < natural(f"img{other}")


def test_random_order_is_the_same_for_a_seed_and_another_for_another(client):
    one, again, other = (names(client, f"order=random&seed={seed}&limit=500") for seed in (3, 3, 4))
    assert one == again
    assert one != other
    assert sorted(one) == sorted(other) == sorted(names(client, "limit=500"))
    assert one != names(client, "limit=500")


def test_random_order_pages_fit_together(client):
    whole = names(client, "order=random&seed=9&limit=500")
    parts = [
        name
        for offset in range(0, N, 50)
        for name in names(client, f"order=random&seed=9&offset={offset}&limit=50")
    ]
    assert parts == whole


@pytest.mark.parametrize("part", ["digit 3/", "DIGIT 3/", "3/IMG", "img11"])
def test_a_name_is_found_by_its_parts_in_either_case(client, part):
    found = document(client, f"/items?name={part}&limit=500", schemas.Items)
    expected = [name for name in names(client, "limit=500") if part.lower() in name.lower()]
    assert expected
    assert [item.file for item in found.items] == expected
    assert found.total == len(expected)


def test_a_name_that_nothing_has_gives_an_empty_listing(client):
    assert document(client, "/items?name=%00%ff/../x", schemas.Items).total == 0


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "offset=-1",
        "order=size",
        "where=size%3E3",
        "where=root%3Dx",
        "seed=-1",
        f"seed={2**53}",
        "name=" + "x" * 301,
    ],
)
def test_listings_refuse_what_they_cannot_use(client, query):
    message = refused(client.get(f"/api/v1/items?{query}"), 422, "invalid")
    assert query.partition("=")[0] in message


def test_unknown_parameters_are_ignored(client):
    assert names(client, "limit=2&colour=red") == names(client, "limit=2")


# ---- one item


def test_an_item_tells_all_about_itself(client):
    item = document(client, "/items/7", schemas.PictureDetail)
    collection = client.pictures.collection
    assert item.code == "".join(map(str, np.unpackbits(collection.codes([7])[0], bitorder="little")[:12]))
    assert (item.format, item.taken, item.bytes) == ("PNG", None, len(png(digit_pixels(7))))


@pytest.mark.parametrize("what", ["", "/thumbnail", "/picture", "/reconstruction"])
@pytest.mark.parametrize("id_", [N, 2**63 - 1])
def test_an_item_that_is_not_there_is_a_404(client, what, id_):
    assert str(id_) in refused(client.get(f"/api/v1/items/{id_}{what}"), 404, "not_found")


TRAVERSALS = ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%252e%252e", "..%5c..%5c", "%00", "1%00"]


@pytest.mark.parametrize(
    "id_", [*TRAVERSALS, "-1", str(2**63), "9" * 400, "x", "1.5", "true", "%F0%9F%90%88", " "]
)
@pytest.mark.parametrize("what", ["", "/thumbnail", "/picture"])
def test_what_is_no_id_is_a_404_too(client, id_, what):
    refused(client.get(f"/api/v1/items/{id_}{what}"), 404, "not_found")


# ---- pictures


def test_a_thumbnail_is_the_picture_made_small_and_may_be_kept_for_ever(client):
    address = client.json("/items/7")["thumbnail"]
    response = client.get(address)
    assert response.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(response.content)).convert("L")), digit_pixels(7))
    assert "immutable" in response.headers["cache-control"]
    again = client.get(address, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == response.headers["etag"]


@pytest.mark.parametrize("query", ["", "?v=", "?v=000000000000"])
def test_a_thumbnail_by_another_address_is_asked_for_again(client, query):
    response = client.get(f"/api/v1/items/7/thumbnail{query}")
    assert response.status_code == 200
    assert "no-cache" in response.headers["cache-control"]


def test_another_etag_gets_the_thumbnail(client):
    for tag in ('"other"', "nonsense", '"a", W/"b"'):
        assert client.get("/api/v1/items/7/thumbnail", headers={"If-None-Match": tag}).status_code == 200


def test_a_picture_is_made_of_the_file(client):
    response = client.get("/api/v1/items/7/picture")
    assert response.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(response.content)).size == (8, 8)


def test_a_reconstruction_is_what_the_decoder_makes_of_the_code(client):
    response = client.get("/api/v1/items/7/reconstruction")
    collection = client.pictures.collection
    expected = collection.model.decode(collection.codes([7]))[0].reshape(8, 8)
    shown = np.asarray(Image.open(io.BytesIO(response.content)))
    assert response.headers["content-type"] == "image/png"
    assert np.array_equal(shown, np.clip(np.rint(expected), 0, 255))
    tag = response.headers["etag"]
    assert client.get("/api/v1/items/7/reconstruction", headers={"If-None-Match": tag}).status_code == 304


def test_a_picture_whose_file_is_gone_or_another_says_so_without_telling_where_it_was(tmp_path):
    path = own_digits(tmp_path)
    with Client(path) as client:
        root = client.pictures.about(0)["root"]
        for id_, change in ((1, None), (2, b"another")):
            file = tmp_path / f"{id_}"
            file.mkdir()
            row = client.pictures.about(id_)
            with_root = row | {"root": str(file)}
            if change is not None:
                (file / row["file"]).parent.mkdir(parents=True)
                (file / row["file"]).write_bytes(change)
            _replace_metadata(path, id_, with_root)
            message = refused(client.get(f"/api/v1/items/{id_}/picture"), 404, "file_gone")
            assert row["file"] in message
            assert root not in message
            assert str(tmp_path) not in message
        assert client.get("/api/v1/items/3/picture").status_code == 200


def _replace_metadata(path, id_, row):
    from auxbit import Collection

    with Collection.open(path) as collection:
        x = collection.vectors([id_])
        collection.add(x, ids=[id_], metadata=[row], upsert=True)


# ---- duplicates


def test_the_same_files_and_near_codes_are_grouped_and_listed(tmp_path):
    sources = write_digits(tmp_path / "pictures", range(20))
    for name in ("Digit 0/copy.png", "Digit 0/line\nbreak.png"):
        shutil.copy(tmp_path / "pictures/Digit 0/img0.png", tmp_path / "pictures" / name)
        about = (tmp_path / "pictures" / name).stat()
        path = tmp_path / "pictures" / name
        sources.append(Source(sources[0].root, name, about.st_size, about.st_mtime_ns, path.read_bytes))
    recipe = Recipe("pixels", 8, grey=True)
    build(sources, tmp_path / "d.auxbit", recipe, bits=12, method="itq", n_jobs=1, decode=decode)
    with Client(tmp_path / "d.auxbit") as client:
        found = document(client, "/duplicates", schemas.Duplicates)
        assert [[item.id for item in group.items] for group in found.groups] == [[0, 20, 21]]
        assert client.get("/api/v1/duplicates/spare").text == "Digit 0/copy.png\n"  # no line break is trusted
        near = document(client, "/duplicates?radius=12", schemas.Duplicates)
        assert (near.total, near.spare) == (1, 2)  # others are within 12 bits, and look otherwise


def test_conditions_hold_for_pictures_too_but_tell_no_folders(client):
    named = document(client, "/items?where=file^=%22Digit 3%22&order=name", schemas.Items)
    assert {item.file.partition("/")[0] for item in named.items} == {"Digit 3"}
    added = document(client, "/items?where=file^=%22Digit 3%22", schemas.Items)
    assert added.total == named.total == len(added.items)
    assert document(client, "/items?limit=1", schemas.Items).items[0].metadata == {}
    found = document(client, "/search?id=3&where=file^=%22Digit 3%22", schemas.Answer)
    assert {result.file.partition("/")[0] for result in found.results} == {"Digit 3"}
