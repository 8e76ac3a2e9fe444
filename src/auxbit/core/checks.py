"""Arrays by name, and checks of what users pass in.

An error names the parameter, what is allowed, what came, and the remedy.
"""

from __future__ import annotations

import importlib
import inspect
import mmap
import os
import re
import warnings
from importlib.metadata import version
from numbers import Real
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from auxbit.core.parallel import Workers
from auxbit.errors import DataFileError, FileProblem, InvalidInput, InvalidParameter, MissingExtra

PathLike = str | os.PathLike[str]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Bits = npt.NDArray[np.uint8]  # (n, L) of 0/1
Packed = npt.NDArray[np.uint8]  # (n, ceil(L/8)), eight bits per byte
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

Ids = npt.NDArray[np.int64]  # what users call rows
Positions = npt.NDArray[np.int64]  # where rows are, counted from 0
Indices = npt.NDArray[np.intp]
Distances = npt.NDArray[np.int32]  # of Hamming

LARGEST = 1e140  # sums of squares of larger values may overflow
LARGEST_FLOAT32 = np.finfo(np.float32).max
LEAST_SQUARED = 2.0**-63  # if all numbers are smaller, float32 cannot hold their squares to full precision
RESCALE = "Rescale the rows that the hasher is fitted to, and the queries."


def check_integer(name: str, value: object, low: int, high: int | None = None, remedy: str = "") -> int:
    """Return `value` as an int in low..high."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):  # type: ignore[operator]
        allowed = f"an integer in {low}..{high}" if high is not None else f"an integer of at least {low}"
        raise InvalidParameter(name, value, allowed, remedy)
    return int(value)  # type: ignore[call-overload,no-any-return]


def check_positive(
    name: str, value: object, *, above: float = 0.0, most: float = np.finfo(np.float64).max, remedy: str = ""
) -> float:
    """Return `value` as a float greater than `above` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not above < float(value) <= most:
        limit = "" if most > LARGEST else f" and at most {most:g}"
        raise InvalidParameter(name, value, f"a finite number greater than {above:g}{limit}", remedy)
    return float(value)


def as_array(X: Any, name: str = "X") -> Array:
    """X as an array; refuses masked numbers, which NumPy would unmask, and rows of unlike lengths."""
    masked = int(np.ma.getmaskarray(X).sum()) if isinstance(X, np.ma.MaskedArray) else 0
    if masked:
        raise InvalidInput(
            f"{name} has masked numbers, {masked:,} of {X.size:,}. Fill them, e.g. {name}.filled(0), or drop "
            "their rows."
        )
    try:
        return np.asarray(X)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{name} must be an array of numbers: {error}") from error


def check_numbers(X: Any, name: str = "X") -> None:
    """Refuse dates and times, which NumPy would convert silently."""
    if X.dtype.kind in "mM":
        raise InvalidInput(f"{name} must be numbers, got dates or times ({X.dtype}). Convert them to floats.")


def acceptable(X: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which numbers are finite and can be squared, of an array of floats or integers."""
    if X.dtype.kind != "f":
        return np.ones(X.shape, dtype=np.bool_)
    limit = X.dtype.type(min(LARGEST, float(np.finfo(X.dtype).max)))
    within: npt.NDArray[np.bool_] = np.abs(X) <= limit  # NaN fails every comparison
    return within


def check_finite(X: Any, workers: Workers | None = None, name: str = "X") -> None:
    """Refuse NaN, infinity and what cannot be squared, naming the first row and column that has one.

    X : an array, or rows that are read by slices. workers : None for all cores.
    """
    check_numbers(X, name)
    if workers is None:
        with Workers() as all_cores:
            return check_finite(X, all_cores, name)
    found = first_unusable(X, workers)
    if found is not None:
        refuse_number(*found, name)


def first_unusable(X: Any, workers: Workers) -> tuple[int, int, float] | None:
    """Row, column and value of the first number that check_finite refuses, if there is one."""
    if X.dtype.kind != "f":
        return None

    def first_bad(rows: slice) -> tuple[int, int] | None:
        check_mapped(X, getattr(X, "filename", None) or "the file of X")
        bad = ~acceptable(X[rows])
        if not bad.any():
            return None
        row, column = np.unravel_index(int(bad.argmax()), bad.shape)
        return rows.start + int(row), int(column)

    for found in workers.map(first_bad, len(X)):
        if found is not None:
            row, column = found
            return row, column, X[row : row + 1][0, column]
    return None


def mapped_file(X: Any) -> mmap.mmap | None:
    """The mapped file that an array lies in, if it does."""
    base = X
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def check_mapped(X: Any, name: object, error: type[FileProblem] = DataFileError) -> None:
    """Refuse an array in a mapped file that was cut short since: to read past its end ends the process."""
    if (base := mapped_file(X)) is not None:
        first = getattr(X, "offset", 0) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            size = base.size()
        except OSError:  # memory that processes share, of no file
            return
        if size < first + len(base):
            raise error(
                f"{name} was cut short while it was in use: it has {size:,} bytes instead of "
                f"{first + len(base):,}. Restore it, and write files under another name and rename them."
            )


def check_squares(squared: npt.NDArray[Any], largest: float, what: str = "distances to X") -> None:
    """Refuse squared distances that float32 cannot hold. largest : of the magnitudes that were squared."""
    with np.errstate(over="ignore"):
        fits = np.isfinite(np.asarray(squared, dtype=np.float32)).all()
    if not fits:
        raise InvalidInput(f"{what} are too large to be squared in float32. {RESCALE}")
    if 0 < largest < LEAST_SQUARED:
        raise InvalidInput(
            f"{what} are too small to be squared in float32: they are made of numbers of {largest:.3g} and "
            f"below, and {LEAST_SQUARED:.2g} is the least. {RESCALE}"
        )


def refuse_number(row: int, column: int, value: float, name: str = "X") -> NoReturn:
    """Raise what check_finite raises."""
    if np.isfinite(value):
        raise InvalidInput(
            f"{name} contains {value!s} at row {row}, column {column}: magnitudes above "
            f"{LARGEST:g} cannot be squared and summed. Rescale {name} first."
        )
    what = "NaN" if np.isnan(value) else "inf"
    raise InvalidInput(
        f"{name} contains {what} at row {row}, column {column}. "
        "Drop or fill such rows first, e.g. X[np.isfinite(X).all(axis=1)]."
    )


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the place of the user's call: the first caller that is not in this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "auxbit":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


# ---- optional dependencies


def require(module: str, *, extra: str, purpose: str, least: str | None = None) -> ModuleType:
    """Import `module`, or say which extra of auxbit installs it. least : "package>=1.4", the oldest."""
    needed, _, wanted = (least or module.partition(".")[0]).partition(">=")
    install = f"pip install --upgrade 'auxbit[{extra}]'" if wanted else f"pip install 'auxbit[{extra}]'"
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{purpose} needs {least or needed}: {install}") from error
    if wanted and _numbers_of(there := version(needed)) < _numbers_of(wanted):
        raise MissingExtra(f"{purpose} needs {least}, and {there} is installed: {install}")
    return found


def _numbers_of(text: str) -> list[int]:
    """The first three numbers of a version."""
    return [int(part) for part in re.findall(r"\d+", text)[:3]]
