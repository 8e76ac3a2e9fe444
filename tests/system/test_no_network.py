"""No host is contacted at run time but those that the user names: sockets are blocked, and all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# in every Python process, also in those that decode pictures; what is refused is written down: some code may
# catch the error
HOOK = """
import os, sys

EVENTS = {"socket.connect": 1, "socket.sendto": 1, "socket.bind": 1, "socket.getaddrinfo": 0,
          "urllib.Request": 0}  # and which of their arguments is the address
LOCAL = ("127.0.0.1",) if "LOOPBACK" in os.environ else ()

def refuse(event, arguments):
    if event in EVENTS:
        address = arguments[EVENTS[event]]
        if (address[0] if isinstance(address, tuple) else address) not in LOCAL:
            tell(event, address)
            raise AssertionError(f"{event} {address}")

def tell(*what):
    with open(os.environ["TOLD"], "a") as file:
        print(*what, file=file)

tell("process", "decodes" if "auxbit.images.decode" in " ".join(sys.orig_argv) else "first")
sys.addaudithook(refuse)
"""

LIBRARY = """
import numpy as np
import auxbit
from auxbit import BinaryAutoencoder, Collection, HammingIndex

X = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
model = BinaryAutoencoder(8, random_state=0).fit(X)
model.save("m.safetensors")
index = HammingIndex(model=auxbit.load("m.safetensors"))
index.add(model.encode(X))
index.search(model.encode(X[:2]), k=3)
with Collection.create("c", X, bits=8, vectors="float16", metadata=[{"n": 1}] * 200) as made:
    made.search(X[:2], k=3, where="n = 1")
np.save("X.npy", X)
from PIL import Image
import os
os.mkdir("pictures")
for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (30, 16, 16, 3), np.uint8)):
    Image.fromarray(pixels).save(f"pictures/{number}.png")
from typer.testing import CliRunner
from auxbit.cli.app import app
for command in (["info", "m.safetensors"], ["fit", "X.npy", "--bits", "8", "-o", "n.safetensors"],
                ["encode", "n.safetensors", "X.npy", "-o", "codes.npy"], ["collection", "stats", "c"],
                ["images", "create", "pictures", "-o", "p", "--bits", "8", "--method", "itq", "--side", "16"],
                ["images", "search", "p", "pictures/3.png"]):
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, (command, ended.output)
try:
    import socket
    socket.create_connection(("127.0.0.1", 9))
except AssertionError:
    print("blocked")
"""

SERVER = """
import http.client, json, os, signal, threading, urllib.parse
from auxbit.serve.server import Settings, serve

def ask(serving):
    try:
        port = urllib.parse.urlsplit(serving.address).port
        for path in ("", "static/main.js", "api/v1/stats", "api/v1/search?id=3", "api/v1/items/3/picture"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", f"/{path}")
            response = connection.getresponse()
            assert response.status == 200, (path, response.read())
            connection.close()
        print("served")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

ready = lambda serving: threading.Thread(target=ask, args=[serving]).start()
serve(Settings("p", port=0, browser=False, jobs=1), ready=ready)
"""


def ran(code: str, folder: Path, **env: str) -> tuple[str, list[str]]:
    """What a program printed, and what its processes did that is refused."""
    hook, told = folder / "hook", folder / f"told {len(list(folder.iterdir()))}"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "TOLD": str(told), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, told.read_text().splitlines()


def test_a_fit_a_search_and_commands_contact_no_host_and_a_server_none_but_its_clients(tmp_path):
    printed, told = ran(LIBRARY, tmp_path)
    assert printed.split()[-1] == "blocked"
    assert "process decodes" in told  # these are watched, too
    assert [each for each in told if not each.startswith("process")] == [
        "socket.getaddrinfo 127.0.0.1"  # the attempt at the end
    ]
    printed, told = ran(SERVER, tmp_path, LOOPBACK="1")
    assert printed.split()[-1] == "served"
    assert "process decodes" in told
    assert [each for each in told if not each.startswith("process")] == []
