"""No host is contacted at run time but those that the user names: sockets are blocked, and all goes on."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind", "urllib.Request"):
        raise AssertionError(f"{event} {arguments}")

sys.addaudithook(refuse)
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
from typer.testing import CliRunner
from auxbit.cli.app import app
for command in (["info", "m.safetensors"], ["fit", "X.npy", "--bits", "8", "-o", "n.safetensors"],
                ["collection", "stats", "c"]):
    assert CliRunner().invoke(app, command).exit_code == 0, command
try:
    import socket
    socket.create_connection(("127.0.0.1", 9))
except AssertionError:
    print("blocked")
"""


def test_a_fit_a_search_and_commands_contact_no_host(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BLOCKED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[-1] == "blocked"
