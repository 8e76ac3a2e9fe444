"""The files of the page, and that no address reaches others."""

from __future__ import annotations

import json
import shutil
import subprocess
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


# what the server sends → what the page has of it
READ = {
    '{"id":9007199254740991,"metadata":{"a":-9007199254740993,"b":[1,12345678901234567890]}}':
        {"id": 2**53 - 1, "metadata": {"a": str(-(2**53) - 1), "b": [1, "12345678901234567890"]}},
    '{"a":0.12345678901234567,"b":1234567890123456.5,"c":1234567890123456789e3,"d":1e22}':
        {"a": 0.12345678901234567, "b": 1234567890123456.5, "c": 1234567890123456789e3, "d": 1e22},
    json.dumps({"a": 'the "id":12345678901234567890, \\', "12345678901234567890": ":12345678901234567890,"}):
        {"a": 'the "id":12345678901234567890, \\', "12345678901234567890": ":12345678901234567890,"},
}  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run JavaScript")
def test_integers_beyond_those_of_javascript_stay_as_they_are_as_text(tmp_path):
    (tmp_path / "api.mjs").write_bytes(Path(str(app.FILES.directory), "api.js").read_bytes())
    (tmp_path / "run.mjs").write_text(
        "import { stats } from './api.mjs';\n"
        "for (const text of JSON.parse(process.argv[2])) {\n"
        "  globalThis.fetch = async () => new Response(text);\n"
        "  console.log(JSON.stringify(await stats()));\n"
        "}\n"
    )
    command = ["node", str(tmp_path / "run.mjs"), json.dumps(list(READ))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert list(map(json.loads, done.stdout.splitlines())) == list(READ.values())
