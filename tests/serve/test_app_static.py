"""The files of the page, and that no address reaches others."""

from __future__ import annotations

from pathlib import Path

import pytest

from auxbit.serve import app
from helpers.serve_cases import Client, digits, refused


@pytest.fixture(scope="module")
def client():
    with Client(digits()) as client:
        yield client


TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
         ".js": "text/javascript; charset=utf-8"}  # fmt: skip


def test_the_page_and_its_files_are_served_with_their_types(client):
    files = {path.name: path for path in Path(str(app.FILES.directory)).iterdir()}
    assert "index.html" in files
    for name, path in files.items():
        response = client.get(f"/static/{name}")
        assert (response.status_code, response.content) == (200, path.read_bytes())
        assert response.headers["content-type"] == TYPES[path.suffix]
        assert response.headers["cache-control"] == "private, no-cache"
        again = client.get(f"/static/{name}", headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get("/").content == files["index.html"].read_bytes()


OTHERS = (
    "../app.py ..%2fapp.py %2e%2e/app.py ..%5capp.py %252e%252e%252fapp.py index.html%00 /etc/passwd "
    "%2fetc%2fpasswd ....//app.py index.html/ __init__.py . INDEX.HTML %ff%fe C:%5cwindows%5cwin.ini ~root "
    "file:///etc/passwd"
)


@pytest.mark.parametrize("name", ["", *OTHERS.split(), "x" * 5000])
def test_no_other_file_is_reached(client, name):
    refused(client.get(f"/static/{name}"), 404, "not_found")
