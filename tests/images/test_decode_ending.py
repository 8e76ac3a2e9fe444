"""Processes that decode end when they should, and nothing is left of them."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from auxbit.errors import InvalidInput
from auxbit.images.decode import Decoders, receive, send
from helpers.decoder_states import GOOD, PATIENCE, descriptors, is_gone, state_of, stop, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and sends signals")


@pytest.fixture
def ask():
    """Starts a function in a thread of its own; what it returned or raised is its result."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


# ---- closing


def test_close_lets_what_runs_finish_and_refuses_who_waits(ask):
    decoders = Decoders(1)
    decoders.decode(GOOD, 8)
    (process,) = decoders.processes
    stop(process)
    first = ask(decoders.decode, GOOD, 8)
    wait_until(lambda: not decoders._idle)
    others = [ask(decoders.decode, GOOD, 8) for _ in range(3)]
    closing = ask(decoders.close)
    for other in others:
        with pytest.raises(InvalidInput, match="the decoders are closed"):
            other.result(PATIENCE)
    assert not closing.done()
    os.kill(process, signal.SIGCONT)
    assert first.result(PATIENCE).width == 32
    closing.result(PATIENCE)
    assert state_of(process) is None


def test_nothing_is_left_after_close():
    before, threads = descriptors(), threading.active_count()
    decoders = Decoders(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: decoders.decode(GOOD, 8), range(6)))
    processes = decoders.processes
    decoders.close()
    decoders.close()
    assert processes
    assert [state_of(process) for process in processes] == [None] * len(processes)
    assert (descriptors(), threading.active_count()) == (before, threads)
    with pytest.raises(InvalidInput, match="the decoders are closed"):
        decoders.decode(GOOD, 8)


def test_decoders_that_are_forgotten_leave_nothing_either():
    gc.collect()  # what tests before have left
    before = descriptors()
    decoders = Decoders(1)
    decoders.decode(GOOD, 8)
    (process,) = decoders.processes
    del decoders
    gc.collect()
    assert state_of(process) is None
    assert descriptors() == before


# ---- signals, and a parent that is gone


def test_an_interrupt_from_the_keyboard_leaves_the_process_at_work():
    with Decoders(1) as decoders:
        decoders.decode(GOOD, 8)
        (process,) = decoders.processes
        os.kill(process, signal.SIGINT)
        assert decoders.decode(GOOD, 8).width == 32
        assert decoders.processes == [process]
        # nor does it reach a process that still starts and could not yet say that it ignores it
        assert os.getpgid(process) != os.getpgid(0)


PARENT = """
import os, sys, threading, time
from auxbit.images.decode import Decoders
content = sys.stdin.buffer.read()
with Decoders(1) as decoders:
    decoders.decode(content, 8)
    print(*decoders.processes, flush=True)
    if sys.argv[1] == "hang":
        os.kill(decoders.processes[0], 19)
        decoders.decode(content, 8)
    time.sleep(60)
"""


def parent(how):
    started = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    started.stdin.write(GOOD)
    started.stdin.close()
    return started, int(started.stdout.readline())


def test_the_process_ends_when_its_parent_is_killed():
    started, child = parent("idle")
    with started:
        assert not is_gone(child)
        started.kill()
    wait_until(lambda: is_gone(child))


@pytest.mark.parametrize("how", ["idle", "hang"])
def test_ctrl_c_ends_the_parent_and_its_process(how):
    started, child = parent(how)
    with started:
        if how == "hang":
            wait_until(lambda: state_of(child) == "T")
        os.killpg(started.pid, signal.SIGINT)  # as a terminal sends it
        assert b"KeyboardInterrupt" in started.stderr.read()
    assert started.returncode != 0
    wait_until(lambda: is_gone(child))


# ---- messages


def test_messages_are_read_as_they_were_written_and_end_with_the_stream():
    stream = io.BytesIO()
    send(stream, {"a": "ü"}, b"bo", b"dy")
    send(stream, {})
    stream.seek(0)
    assert receive(stream, 10) == ({"a": "ü", "bytes": 4}, b"body")
    assert receive(stream, 10) == ({"bytes": 0}, b"")
    assert receive(stream, 10) is None


def test_a_message_that_is_cut_short_is_none_and_one_that_is_too_long_an_error():
    stream = io.BytesIO()
    send(stream, {"a": 1}, b"body")
    whole = stream.getvalue()
    for end in range(len(whole)):
        assert receive(io.BytesIO(whole[:end]), 10) is None
    with pytest.raises(ValueError, match="a body of 4 bytes"):
        receive(io.BytesIO(whole), 3)
