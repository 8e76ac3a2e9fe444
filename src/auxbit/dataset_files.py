"""The formats in which images are published: CIFAR-10's archives and MNIST's idx.

Nothing is ever unpickled: of CIFAR-10's Python archives the pickle's instructions are read, and only those
that build a dictionary of numbers, texts and one array of bytes are known.
"""

from __future__ import annotations

import gzip
import math
import pickletools
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from auxbit.errors import AuxbitError, DataFileError
from auxbit.tables import Array

CIFAR_ROW = 1 + 3 * 32 * 32  # label, then red, green and blue, row by row
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
MOST_BYTES = 1 << 26  # of a batch: the published ones have 31 MB
IDX_BYTES = 8  # the code of unsigned bytes in an idx header
MOST_UNZIPPED = 1032  # bytes that one byte of a .gz file can become


class Labelled(NamedTuple):
    """Images and labels to learn from, then those to ask with."""

    images: Array
    labels: Array
    query_images: Array
    query_labels: Array


@contextmanager
def explained(source: Path, what: str) -> Iterator[None]:
    """Turn what the standard library raises on a broken file into a DataFileError that names it."""
    try:
        yield
    except AuxbitError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, tarfile.TarError, zlib.error) as error:
        raise DataFileError(f"{source} cannot be read as {what}: {error or type(error).__name__}") from error


def read_npy(path: Path) -> Array:
    """An .npy array of any number of dimensions, memory-mapped."""
    with explained(path, ".npy"):
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def read_idx(path: Path) -> Array:
    """An idx file of unsigned bytes, memory-mapped, or read if its name ends with .gz."""
    is_zipped = path.suffix == ".gz"
    with explained(path, "idx"), gzip.open(path, "rb") if is_zipped else path.open("rb") as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] != IDX_BYTES or not 1 <= start[3] <= 4:
            raise DataFileError(f"{path} is no idx file of unsigned bytes: it starts with {start!r}.")
        n_axes, lengths = start[3], file.read(4 * start[3])
        if len(lengths) < 4 * n_axes:
            raise DataFileError(f"{path} is cut short: its header ends after {4 + len(lengths)} bytes.")
        shape = tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
        size, there = math.prod(shape), path.stat().st_size - 4 - 4 * n_axes
        content = b""
        if is_zipped:  # no more than the file can hold, whatever its header says
            content = file.read(min(size, MOST_UNZIPPED * path.stat().st_size) + 1)
            there = len(content)
        if there != size:
            raise DataFileError(
                f"{path} is cut short or too long: expected {size} bytes for the shape {shape}."
            )
        if is_zipped:
            return np.frombuffer(content, np.uint8).reshape(shape)
        return np.memmap(path, np.uint8, mode="r", offset=4 + 4 * n_axes, shape=shape)


# ---- CIFAR-10


def cifar_batches(source: Path) -> dict[str, Path]:
    """The files of CIFAR-10 in a folder, by name, or {} if there are none."""
    for folder in (source, *(source / name for name in CIFAR_FOLDERS)):
        for suffix in (".bin", ""):
            found = {name: folder / (name + suffix) for name in CIFAR_BATCHES}
            if found["data_batch_1"].is_file():
                return found
    return {}


def read_cifar(source: Path) -> Labelled:
    """CIFAR-10 from a folder or the archive itself, binary or Python: images (n, 32, 32, 3), labels (n,)."""
    with explained(source, "CIFAR-10"):
        raw = _in_folder(source) if source.is_dir() else _in_archive(source)
        if missing := [name for name in CIFAR_BATCHES if name not in raw]:
            raise DataFileError(f"{source} lacks {', '.join(missing)}, of the six batches of CIFAR-10.")
        batches = [_batch(f"{source}: {name}", *raw.pop(name)) for name in CIFAR_BATCHES]
    images, labels = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
    return Labelled(images, labels, *batches[-1])


def _in_folder(source: Path) -> dict[str, tuple[bytes, bool]]:
    there = {name: path for name, path in cifar_batches(source).items() if path.is_file()}
    for path in there.values():
        _refuse_large(f"{path}", path.stat().st_size)
    return {name: (path.read_bytes(), path.suffix == ".bin") for name, path in there.items()}


def _in_archive(source: Path) -> dict[str, tuple[bytes, bool]]:
    found: dict[str, tuple[bytes, bool]] = {}
    with tarfile.open(source, "r:*") as archive:
        for member in archive:
            name = Path(member.name).name
            stem = name.removesuffix(".bin")
            if stem in CIFAR_BATCHES and member.isfile():
                _refuse_large(f"{source}: {name}", member.size)
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                found[stem] = file.read(), name != stem
    return found


def _refuse_large(name: str, size: int) -> None:
    if size > MOST_BYTES:
        raise DataFileError(f"{name} has {size} bytes; a batch of CIFAR-10 has about 31 million.")


def _batch(name: str, raw: bytes, is_binary: bool) -> tuple[Array, Array]:
    if is_binary:
        if not raw or len(raw) % CIFAR_ROW:
            raise DataFileError(f"{name} has {len(raw)} bytes; expected a multiple of {CIFAR_ROW}.")
        rows = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_ROW)
        pixels, labels = rows[:, 1:], rows[:, 0]
    else:
        pixels, labels = _unpickled_batch(name, raw)
    if labels.max(initial=0) > 9:
        raise DataFileError(f"{name} has the label {labels.max()}; CIFAR-10's are 0..9.")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.copy()


def _unpickled_batch(name: str, raw: bytes) -> tuple[Array, Array]:
    content = read_plain_pickle(raw, name)
    if not isinstance(content, dict) or not {"data", "labels"} <= set(content):
        raise DataFileError(f"{name} is no batch of CIFAR-10: it has no 'data' and 'labels'.")
    labels, array = content["labels"], content["data"]
    try:
        if array.name not in _ARRAY or array.state[2].name != "numpy dtype":
            raise TypeError("no array")
        _, shape, dtype, is_fortran, values = array.state
        if isinstance(values, Made) and values.name == "_codecs encode":  # how Python 3 writes bytes for 2
            values = values.arguments[0]
        if isinstance(values, str):
            values = values.encode("latin-1")
        if dtype.arguments[0] not in ("u1", "|u1") or tuple(shape) != (len(labels), 3072):
            raise TypeError(f"{dtype.arguments[0]} of shape {shape}")
        pixels = np.frombuffer(values, np.uint8).reshape(tuple(shape), order="F" if is_fortran else "C")
        return pixels, np.array(labels, dtype=np.uint8)
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise DataFileError(
            f"{name} is no batch of CIFAR-10: expected 'data' of (n, 3072) uint8 and n 'labels', got {error}."
        ) from error


class Made:
    """A call that a pickle asks for, and that is not made: the name, its arguments, and a state set later."""

    def __init__(self, name: str, arguments: Any) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = frozenset((*_ARRAY, "numpy ndarray", "numpy dtype", "_codecs encode"))
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
))  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_plain_pickle(raw: bytes, name: str) -> Any:
    """The dictionaries, lists, tuples, numbers and texts of a pickle; calls stay `Made`, none is made.

    Every instruction and every name that CIFAR-10 does not need is refused.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def known(value: str) -> str:
        if value not in _NAMES:
            raise DataFileError(f"{name} is refused: its pickle names {value.replace(' ', '.')}.")
        return value

    try:
        argument: Any
        for opcode, argument, _ in pickletools.genops(raw):
            does = opcode.name
            if does in _LITERALS:
                stack.append(argument)
            elif does in _CONSTANTS:
                stack.append(_CONSTANTS[does])
            elif does in ("EMPTY_DICT", "EMPTY_LIST"):
                stack.append({} if does == "EMPTY_DICT" else [])
            elif does == "MARK":
                marks.append(len(stack))
            elif does in ("TUPLE", "LIST"):
                items = since_mark()
                stack.append(tuple(items) if does == "TUPLE" else items)
            elif does == "DICT":
                items = since_mark()
                stack.append(dict(zip(items[::2], items[1::2], strict=True)))
            elif does in _TUPLES:
                n = _TUPLES[does]
                stack[-n:] = [tuple(stack[-n:])]
            elif does in ("APPEND", "APPENDS"):
                items = since_mark() if does == "APPENDS" else [stack.pop()]
                stack[-1] += items
            elif does in ("SETITEM", "SETITEMS"):
                items = since_mark() if does == "SETITEMS" else [stack.pop(-2), stack.pop()]
                stack[-1] |= dict(zip(items[::2], items[1::2], strict=True))
            elif does in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if argument is None else argument] = stack[-1]
            elif does in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif does in ("GLOBAL", "STACK_GLOBAL"):
                value = argument if does == "GLOBAL" else f"{stack.pop(-2)} {stack.pop()}"
                stack.append(Made(known(value), None))
            elif does == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(Made(known(function.name), arguments))
            elif does == "BUILD":
                state = stack.pop()
                stack[-1].state = state
            elif does not in ("PROTO", "FRAME", "STOP"):
                raise DataFileError(f"{name} is refused: its pickle has the instruction {does}.")
        (content,) = stack
    except DataFileError:
        raise
    except Exception as error:  # whatever a crafted stream makes of lists, dictionaries and genops
        raise DataFileError(
            f"{name} is no pickle that CIFAR-10 has: {error or type(error).__name__}"
        ) from error
    return content
