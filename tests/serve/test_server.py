"""Starting a server: options, addresses, the browser; what is refused before anything is done."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auxbit.cli.app import app
from auxbit.errors import AuxbitError, InvalidParameter
from auxbit.serve import server
from helpers.serve_cases import N, digits


def run(*arguments, **env):
    return CliRunner().invoke(app, ["serve", *map(str, arguments)], env={"AUXBIT_TOKEN": "", **env})


def test_without_arguments_both_uses_are_named():
    result = run()
    assert result.exit_code == 2
    assert "the folder of a collection (auxbit serve pets.auxbit)" in " ".join(result.output.split())
    assert "--demo" in result.output


def test_a_path_and_the_demo_at_once_are_refused():
    assert "not both" in run("pets.auxbit", "--demo").output


def test_what_is_not_a_collection_names_the_commands_that_make_one(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        result = run(path, "--port", "0", "--no-browser")
        assert result.exit_code == 1
        assert "auxbit images create" in result.output


@pytest.mark.parametrize(
    "option", ["--port=70000", "--port=x", "--max-upload-mb=0", "--max-upload-megapixels=-1"]
)
def test_options_out_of_range_are_refused(option):
    assert run(digits(), option).exit_code == 2


def test_a_port_that_is_taken_names_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(digits(), "--port", port, "--no-browser")
    assert result.exit_code == 1
    assert f"port {port}" in result.output
    assert "--port 0" in result.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_a_token(host):
    result = run(digits(), "--host", host)
    assert result.exit_code == 2
    assert "--token" in result.output


@pytest.mark.parametrize("token", ["", "two words", "café", "tab\t"])
def test_tokens_that_a_header_cannot_hold_are_refused(token):
    with pytest.raises(InvalidParameter, match="token"):
        server.serve(server.Settings(str(digits()), token=token))


def test_a_host_that_is_nowhere_is_refused():
    with pytest.raises(InvalidParameter, match="host"):
        server.serve(server.Settings(str(digits()), host="no such host"))


# ---- in process


def _status(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/health")
    request.add_header("Authorization", "Bearer t&t")
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.status


def test_the_browser_opens_a_private_file_with_the_token_once_the_socket_listens(monkeypatch):
    opened = threading.Event()
    seen = {}

    def open_browser(address):
        page = Path(urllib.request.url2pathname(address.removeprefix("file:")))
        seen["address"], seen["page"], seen["mode"] = address, page, page.stat().st_mode & 0o777
        seen["there"] = unescape(re.search(r'url=([^"]+)"', page.read_text())[1])
        seen["status"] = _status(int(re.search(r":(\d+)/", seen["there"])[1]))
        opened.set()

    monkeypatch.setattr("webbrowser.open", open_browser)

    async def wait_for_the_browser(self):
        await asyncio.to_thread(opened.wait, 20)

    monkeypatch.setattr("uvicorn.Server.main_loop", wait_for_the_browser)
    told = []
    settings = server.Settings(str(digits()), port=0, token="t&t")
    assert "t&t" not in repr(settings)
    server.serve(settings, ready=told.append)
    assert seen["status"] == 200
    # other users see the address among the processes, so it must not have the token
    assert seen["there"] == told[0].address + "?token=t%26t"
    assert "t%26t" not in seen["address"]
    assert seen["mode"] == 0o600 or os.name != "posix"
    assert not seen["page"].parent.exists()
    assert (told[0].name, told[0].items) == ("digits.auxbit", N)


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(host, alone):
    assert server.is_loopback(host) == alone


def test_a_missing_dependency_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(AuxbitError, match=re.escape("pip install 'auxbit[web]'")):
        server.serve(server.Settings(str(digits())))


def test_without_fastapi_the_import_names_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; import auxbit.serve.server"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "the web page needs fastapi: pip install 'auxbit[web]'" in ran.stderr


def test_an_interrupt_while_the_demo_is_made_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("auxbit.serve.server.build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.serve(server.Settings(None, port=0))
    assert os.listdir(tmp_path) == []


# ---- functions that make vectors of texts


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mymodel", "module:function"),
        (":embed", "module:function"),
        ("no_such_module_here:embed", "No module named"),
        ("math:embed", "has no attribute"),
        ("math:pi", "of type float"),
    ],
)
def test_a_function_that_is_not_there_is_named_with_the_remedy(name, part):
    result = run(digits(), "--port", "0", "--no-browser", "--embed", name)
    assert result.exit_code == 2
    assert part in result.output
    assert "--embed mymodel:embed" in result.output


def test_a_function_is_found_in_the_current_folder_and_tried_at_once(tmp_path, monkeypatch):
    (tmp_path / "functions_of_this_test.py").write_text(
        "class Model:\n    def embed(self, texts): return [[0.0] * 3] * len(texts)\n"
        "model = Model()\n"
        "def fails(texts): raise RuntimeError('no such network')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert server.find_embed("functions_of_this_test:model.embed")(["a", "b"]) == [[0.0] * 3] * 2
    for name, part in (("model.embed", "returned shape (1, 3)"), ("fails", "no such network")):
        result = run(digits(), "--port", "0", "--no-browser", "--embed", f"functions_of_this_test:{name}")
        assert result.exit_code == 1
        assert part in result.output
        assert "64 numbers for each text" in result.output


@pytest.mark.parametrize(
    ("token", "read_only", "writable"), [(None, False, False), ("t", True, False), ("t", False, True)]
)
def test_clients_may_write_if_there_is_a_token_and_nobody_forbids_it(
    filled, monkeypatch, token, read_only, writable
):
    found = []
    monkeypatch.setattr(server, "_run", lambda app, *rest: found.append(app.state.site.writable))
    settings = server.Settings(str(filled.path), port=0, token=token, browser=False, read_only=read_only)
    server.serve(settings)
    assert found == [writable]
