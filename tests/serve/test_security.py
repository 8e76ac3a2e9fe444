"""Who may ask, and from where; the headers of every answer."""

from __future__ import annotations

import pytest

from auxbit.serve.security import name_of
from helpers.serve_cases import HERE, Client, digit_pixels, digits, png, refused

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TOKEN = "s3cret-token"


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


@pytest.fixture(scope="module")
def locked():
    with Client(digits(), token=TOKEN, allowed_hosts=None) as client:
        yield client


# ---- headers


PATHS = (
    "/ /static/index.html /api/v1/health /api/v1/items/1/thumbnail /api/v1/items/1/reconstruction "
    "/api/v1/openapi.json /nowhere /api/v1/items/x /api/v1/search?k=0"
)


@pytest.mark.parametrize("path", PATHS.split())
def test_every_answer_has_the_headers(client, path):
    headers = client.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"]


def test_what_depends_on_the_moment_is_not_stored(client):
    assert client.get("/api/v1/health").headers["cache-control"] == "no-store"


def test_an_error_that_nobody_foresaw_is_logged_and_takes_nothing_down(client, monkeypatch, caplog):
    def fail():
        raise RuntimeError("a bug")

    monkeypatch.setattr(client.site, "report", fail)
    response = client.get("/api/v1/model")
    message = refused(response, 500, "internal")
    assert "a bug" not in message
    assert "a bug" in caplog.text
    assert response.headers["content-security-policy"] == POLICY
    assert client.get("/api/v1/health").status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/v1/health", "/api/v1/items/1/thumbnail", "/static/index.html"])
def test_head_has_the_headers_of_get_and_no_body(client, path):
    with_body, without = client.get(path), client.request("HEAD", path)
    assert without.content == b""
    assert without.status_code == 200
    assert without.headers == with_body.headers


# ---- hosts and origins


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost:9", "LOCALHOST", "[::1]:8000", "[::1]"]
)
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/api/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "",
        "[::1",
        "a@127.0.0.2",
        "0.0.0.0",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/v1/health", "/static/index.html"])
def test_other_names_are_refused_so_that_none_can_be_made_to_point_here(client, host, path):
    assert "127.0.0.1" in refused(client.get(path, headers={"Host": host}), 403, "wrong_host")


def test_with_a_token_any_name_will_do(locked):
    headers = {"Host": "pictures.example", "Authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/v1/health", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_pages_of_others_cannot_upload(client, headers):
    files = {"file": ("x.png", png(digit_pixels(0)))}
    refused(client.post("/api/v1/search/upload", files=files, headers=headers), 403, "cross_origin")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": HERE}, {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}],
)
def test_the_page_itself_and_programs_can_upload(client, headers):
    files = {"file": ("x.png", png(digit_pixels(0)))}
    assert client.post("/api/v1/search/upload", files=files, headers=headers).status_code == 200


def test_a_link_from_elsewhere_opens_the_page(client):
    assert client.get("/?id=3", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("a.b:80", "a.b"),
        ("A", "a"),
        ("[::1]:80", "::1"),
        ("", ""),
        ("[", ""),
        ("a:b:c", "a"),
        ("u:p@h:1", "h"),
    ],
)
def test_the_name_in_a_host_header(host, name):
    assert name_of(host) == name


# ---- the token


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + TOKEN[:-1]},
        {"Cookie": f"auxbit={TOKEN}"},
        {"Cookie": "auxbit_00000000=" + "0" * 56},
        {"Authorization": b"Bearer \xff\xfe"},
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/static/index.html", "/api/v1/health", "/api/v1/openapi.json", "/nowhere"]
)
def test_without_the_token_nothing_is_told(locked, headers, path):
    assert "token" in refused(locked.get(path, headers=headers), 401, "token_needed")


def test_a_program_sends_the_token_as_a_header(locked):
    for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        assert locked.get("/api/v1/health", headers={"Authorization": header}).status_code == 200


def test_a_browser_opens_the_page_with_the_token_once_and_keeps_a_cookie(locked):
    response = locked.get(f"/?id=5&token={TOKEN}&name=a%20b%26c")
    assert (response.status_code, response.headers["location"]) == (303, "/?id=5&name=a+b%26c")
    cookie = response.headers["set-cookie"]
    for part in ("httponly", "samesite=strict", "path=/"):  # browsers do not mind their case
        assert part in cookie.lower()
    assert TOKEN not in cookie
    kept = {"Cookie": f"other=1; {cookie.partition(';')[0]}"}
    locked._client.cookies.clear()
    assert locked.get("/api/v1/health").status_code == 401
    assert locked.get("/api/v1/health", headers=kept).status_code == 200
    assert locked.get("/", headers=kept).status_code == 200


def test_after_a_link_from_elsewhere_the_browser_is_led_on_by_a_refresh(locked):
    response = locked.get(f"/?token={TOKEN}&id=5", headers={"Sec-Fetch-Site": "cross-site"})
    assert (response.status_code, response.headers["refresh"]) == (200, "0; url=/?id=5")
    assert "HttpOnly" in response.headers["set-cookie"]
    locked._client.cookies.clear()


@pytest.mark.parametrize("query", ["?token=wrong", "?token=", f"?token={TOKEN}&token=wrong", "?token=%FF"])
def test_a_wrong_token_in_the_address_sets_nothing(locked, query):
    response = locked.get(f"/{query}")
    refused(response, 401, "token_needed")
    assert "set-cookie" not in response.headers


def test_a_token_in_other_addresses_leads_nowhere_else(locked):
    for path in ("//evil.example/", "/api/v1/health", "/static/index.html"):
        response = locked.get(f"{HERE}{path}?token={TOKEN}")
        refused(response, 401, "token_needed")


def test_tokens_of_two_servers_have_different_cookies():
    with Client(digits(), token="one") as one, Client(digits(), token="two") as two:
        names = {
            each.get(f"/?token={token}").headers["set-cookie"].partition("=")[0]
            for each, token in ((one, "one"), (two, "two"))
        }
    assert len(names) == 2
