"""The process that decodes pictures: requests on standard input, answers on standard output.

A frame is a prefix (magic, length of the header, length of the body), a header in JSON and a body of bytes.
Started by auxbit.images.decode, with the seconds and the bytes of memory that it may use as arguments.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from struct import Struct
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from auxbit.images.decode import Decoded

PREFIX = Struct("<4sIQ")
MAGIC = b"axD1"
LONGEST_HEADER = 2**16


def frame(header: dict[str, Any], *body: bytes) -> bytes:
    """The bytes of a frame, to be written at once."""
    text = json.dumps(header).encode()
    return b"".join([PREFIX.pack(MAGIC, len(text), sum(map(len, body))), text, *body])


def read_frame(stream: BinaryIO, largest: int) -> tuple[dict[str, Any], bytes] | None:
    """Header and body of the next frame; None where the stream ends, ValueError where it is no frame."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    magic, length, size = PREFIX.unpack(prefix)
    if magic != MAGIC or length > LONGEST_HEADER or size > largest:
        raise ValueError("not a frame")
    content = stream.read(length + size)
    if len(content) < length + size:
        return None
    header = json.loads(content[:length])
    if not isinstance(header, dict):
        raise ValueError("not a header")
    return header, content[length:]


def main() -> None:
    """Answer requests until there are no more: the parent closed the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which lets us finish
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    requests, answers = _streams()
    from auxbit.errors import BadPicture
    from auxbit.images import decode

    decode.load_plugins()
    _limit(memory)
    _send(answers, frame({"ready": True}))
    while (request := read_frame(requests, sys.maxsize)) is not None:
        header, content = request
        _alarm(seconds + 5)  # the parent is quicker, unless it is gone
        try:
            if header["task"] == "decode":
                answer = _decoded_frame(decode.decode(content, **header["options"]))
            else:
                answer = frame({}, decode.preview(content, **header["options"]))
        except BadPicture as error:
            answer = frame({"bad": str(error)})
        except MemoryError:
            answer = frame({"bad": "needs more memory than is allowed"})
        _alarm(0)
        del request, content
        _send(answers, answer)


def _decoded_frame(decoded: Decoded) -> bytes:
    header = {
        "width": decoded.width,
        "height": decoded.height,
        "format": decoded.format,
        "taken": decoded.taken,
    }
    return frame(header, decoded.pixels.tobytes(), decoded.thumbnail)


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Both pipes under numbers of their own: what a library prints must not get between the frames."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return open(requests, "rb", buffering=2**16), open(answers, "wb", buffering=0)


def _send(answers: BinaryIO, content: bytes) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[answers.write(rest) :]
    except BrokenPipeError:
        os._exit(0)  # nobody is there to hear


def _limit(memory: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        try:
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):  # a system that knows the limit and does not grant it
            continue


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
