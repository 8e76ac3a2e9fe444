"""Processes that decode: what happens to one harms no other picture."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import helpers.picture_files as files
from auxbit.errors import AuxbitError, BadPicture, InvalidParameter
from auxbit.images import decode
from auxbit.images.decode import Decoders
from helpers.decoder_states import GOOD, PATIENCE, has_been_asked, is_gone, state_of, stop, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and sends signals")


@pytest.fixture
def one():
    """A single process, started."""
    with Decoders(1) as decoders:
        decoders.decode(GOOD, 8)
        yield decoders


@pytest.fixture
def ask():
    """Starts a function in a thread of its own; what it returned or raised is its result."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


# ---- answers


def test_a_picture_is_decoded_as_in_this_process(one):
    here, there = decode.decode(GOOD, 24, longest=40), one.decode(GOOD, 24, longest=40)
    assert np.array_equal(here.pixels, there.pixels)
    for field in ("thumbnail", "width", "height", "format", "taken"):
        assert getattr(here, field) == getattr(there, field)
    assert there.pixels.flags.writeable
    assert one.preview(GOOD, longest=30) == decode.preview(GOOD, longest=30)


def test_a_bad_picture_is_refused_with_its_reason_and_the_process_continues(one):
    before = one.processes
    for content in files.bad_files().values():
        with pytest.raises(BadPicture, match=r"^(is|has) ") as there:
            one.decode(content, 8)
        with pytest.raises(BadPicture, match=r"^(is|has) ") as here:
            decode.decode(content, 8)
        assert str(there.value) == str(here.value)
    with pytest.raises(BadPicture, match=r"has 1,536 pixels; at most 1,000 are read"):
        one.preview(GOOD, max_pixels=1000)
    assert one.decode(GOOD, 8).width == 32
    assert one.processes == before


def test_a_large_file_and_a_large_square_go_through_the_pipes(one):
    rough = np.random.default_rng(0).integers(0, 256, size=(900, 900, 3), dtype=np.uint8)
    decoded = one.decode(files.saved(rough, compress_level=0), 900)
    assert np.array_equal(decoded.pixels, rough)


def test_processes_start_when_they_are_needed_and_no_more_than_allowed(ask):
    with Decoders(2) as decoders:
        assert decoders.processes == []
        decoders.decode(GOOD, 8)
        decoders.decode(GOOD, 8)
        assert len(decoders.processes) == 1
        contents = [files.saved(files.noise(20, 20, seed)) for seed in range(8)]
        asked = [ask(decoders.decode, contents[number % 8], 20) for number in range(80)]
        for number, each in enumerate(asked):
            assert np.array_equal(each.result().pixels, files.noise(20, 20, number % 8))
        assert 1 <= len(decoders.processes) <= 2


@pytest.mark.parametrize(
    ("options", "match"),
    [({"n": 0}, "n=0 is invalid"), ({"seconds": 0}, "seconds=0 is invalid"), ({"memory": 9}, "256 MiB")],
)
def test_parameters_that_cannot_be_used_are_refused(options, match):
    with pytest.raises(InvalidParameter, match=match):
        Decoders(**options)


def test_a_square_that_cannot_be_made_is_the_fault_of_the_caller(one):
    with pytest.raises(InvalidParameter, match="side=0 is invalid"):
        one.decode(GOOD, 0)


# ---- processes that die, hang, or talk nonsense


def test_a_process_that_dies_of_a_picture_is_replaced(one, ask):
    (process,) = one.processes
    stop(process)
    asked = ask(one.decode, GOOD, 8)
    wait_until(lambda: has_been_asked(process))
    os.kill(process, signal.SIGKILL)
    with pytest.raises(BadPicture, match=r"^made the decoder crash \(SIGKILL\)$"):
        asked.result(PATIENCE)
    assert one.decode(GOOD, 8).width == 32
    assert process not in one.processes
    assert state_of(process) is None


def test_a_process_that_died_while_it_was_idle_harms_no_picture(one):
    for _ in range(3):
        (process,) = one.processes
        os.kill(process, signal.SIGKILL)
        wait_until(lambda process=process: is_gone(process))
        assert one.decode(GOOD, 8).width == 32


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["small", "larger than a pipe"])
def test_a_picture_that_takes_too_long_is_refused_and_its_process_killed(size):
    with Decoders(1, seconds=0.5) as decoders:
        wait_until(lambda: _decodes(decoders))
        (process,) = decoders.processes
        stop(process)
        with pytest.raises(BadPicture, match=r"^took longer than 0.5 s to decode$"):
            decoders.decode(GOOD + bytes(size), 8)
        assert state_of(process) is None
        wait_until(lambda: _decodes(decoders))


def _decodes(decoders):
    with suppress(BadPicture):  # on a busy machine, half a second may be too short
        return decoders.decode(GOOD, 8).width == 32


def test_a_picture_that_needs_too_much_memory_is_refused():
    with Decoders(1, memory=2**28) as decoders:
        decoders.decode(GOOD, 8)
        before = decoders.processes
        with pytest.raises(BadPicture, match=r"^needs more memory than is allowed$"):
            decoders.decode(files.huge("PNG", 9000, 9000), 8)
        assert decoders.decode(GOOD, 8).width == 32
        assert decoders.processes == before


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Put a program of one's own in the place of the process that decodes."""

    def put(code):
        program = tmp_path / "program"
        program.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return put


@pytest.mark.parametrize(
    "answer",
    [
        b"Segmentation fault, sort of\n",
        b'{"bytes": 10}\n' + bytes(10),
        b'{"width": 1, "height": 1, "format": "EXE", "taken": null, "bytes": 192}\n' + bytes(192),
        b'{"bytes": 1099511627776}\n',
        b"[]\n",
        b"\xff{\n",
    ],
)
def test_an_answer_that_makes_no_sense_is_no_answer(pretend, answer):
    hello = b'{"bytes": 0}\n'
    pretend(f"sys.stdout.buffer.write({hello + answer!r}); sys.stdout.flush(); sys.stdin.buffer.read()")
    with Decoders(1) as decoders:
        with pytest.raises(BadPicture, match=r"^made the decoder return an invalid result$"):
            decoders.decode(GOOD, 8)
        assert decoders.processes == []


def test_a_process_that_cannot_start_is_not_the_fault_of_the_picture(pretend, monkeypatch):
    pretend("sys.exit(3)")
    with Decoders(1) as decoders:
        for _ in range(2):
            with pytest.raises(AuxbitError, match=r"does not start \(exit code 3\)") as caught:
                decoders.decode(GOOD, 8)
            assert not isinstance(caught.value, BadPicture)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(AuxbitError, match=r"cannot start: .*No such file"):
            decoders.decode(GOOD, 8)
