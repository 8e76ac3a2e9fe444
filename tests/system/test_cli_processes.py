"""`auxbit` as a process: Ctrl-C, a closed pipe, and progress on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def auxbit_process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "auxbit", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_ctrl_c_exits_130_with_a_short_message_and_no_partial_file(folder: Path) -> None:
    np.lib.format.open_memmap("large.npy", mode="w+", dtype=np.float32, shape=(16_000_000, 64))  # all holes
    before = {path.name for path in folder.iterdir()}
    process = auxbit_process("encode", "m.safetensors", "large.npy", "--out", "codes.npy", cwd=folder)
    while process.poll() is None and not list(folder.glob(".codes*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert stderr.startswith("interrupted")
    assert "Traceback" not in stderr
    assert {path.name for path in folder.iterdir()} == before


AT_THE_END = """
import os, signal, sys, threading
from auxbit.cli import app, main

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

if sys.argv.pop(1) == "after":
    threading._register_atexit(interrupt)  # among the last things that the interpreter does
else:
    real = app.app
    def command(**options):
        try:
            real(**options)
        finally:
            interrupt()
    app.app = command
main()
"""


@pytest.mark.parametrize(("when", "code"), [("after", 0), ("as it ends", 130)])
def test_ctrl_c_at_the_very_end_leaves_an_exit_code_and_no_traceback(when: str, code: int) -> None:
    command = [sys.executable, "-c", AT_THE_END, when, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.startswith("auxbit ")
    assert ended.stderr == ""


def test_a_closed_pipe_is_quiet(folder: Path) -> None:
    search = ("search", "m.safetensors", "--base", "base.npy", "--queries", "base.npy", "--k", 200, "--json")
    process = auxbit_process(*search, cwd=folder)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


def test_a_long_fit_shows_progress_on_a_terminal_and_only_results_on_stdout(folder: Path) -> None:
    rows = np.random.RandomState(0).standard_normal((60_000, 60)).astype(np.float32)  # a second and more
    np.save("large.npy", rows)
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "auxbit",
        "fit",
        "large.npy",
        "-o",
        "new.safetensors",
        "--max-iter",
        "8",
    ]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, cwd=folder, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux's way of saying that the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    assert process.returncode == 0
    assert b"fitting ba" in shown
    assert b"iteration" in shown
    assert b"Traceback" not in shown
    assert printed.startswith("model")
    assert "\x1b" not in printed
