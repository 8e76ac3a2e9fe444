"""Checks of what users pass in; each failure names the parameter, what is allowed, what came, the remedy."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.errors import InvalidInput, InvalidParameter

LARGEST = 1e140  # sums of squares of larger values may overflow


def check_integer(name: str, value: object, low: int, high: int | None = None, remedy: str = "") -> int:
    """Return `value` as an int in low..high."""
    allowed = f"an integer in {low}..{high}" if high is not None else f"an integer of at least {low}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidParameter(name, value, allowed, remedy)
    if value < low or (high is not None and value > high):
        raise InvalidParameter(name, value, allowed, remedy)
    return int(value)


def check_positive(
    name: str, value: object, *, above: float = 0.0, most: float = np.finfo(np.float64).max, remedy: str = ""
) -> float:
    """Return `value` as a float greater than `above` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not above < float(value) <= most:
        limit = "" if most > LARGEST else f" and at most {most:g}"
        raise InvalidParameter(name, value, f"a finite number greater than {above:g}{limit}", remedy)
    return float(value)


def check_numbers(X: npt.NDArray[Any], name: str = "X") -> None:
    """Refuse dates and times, which numpy would convert without a word."""
    if X.dtype.kind in "mM":
        raise InvalidInput(f"{name} must be numbers, got dates or times ({X.dtype}). Convert them to floats.")


def acceptable(X: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which numbers are finite and can be squared, of an array of floats or integers."""
    if X.dtype.kind != "f":
        return np.ones(X.shape, dtype=np.bool_)
    limit = X.dtype.type(min(LARGEST, float(np.finfo(X.dtype).max)))
    within: npt.NDArray[np.bool_] = np.abs(X) <= limit  # NaN fails every comparison
    return within


def check_finite(X: npt.NDArray[Any], workers: Workers, name: str = "X") -> None:
    """Refuse NaN, infinity and what cannot be squared, naming the first row and column that has one."""
    check_numbers(X, name)
    if X.dtype.kind != "f":
        return

    def first_bad(rows: slice) -> tuple[int, int] | None:
        bad = ~acceptable(X[rows])
        if not bad.any():
            return None
        row, column = np.unravel_index(int(bad.argmax()), bad.shape)
        return rows.start + int(row), int(column)

    for found in workers.map(first_bad, len(X)):
        if found is not None:
            row, column = found
            if np.isfinite(X[row, column]):
                raise InvalidInput(
                    f"{name} contains {X[row, column]:g} at row {row}, column {column}: magnitudes above "
                    f"{LARGEST:g} cannot be squared and summed. Rescale {name} first."
                )
            what = "NaN" if np.isnan(X[row, column]) else "inf"
            raise InvalidInput(
                f"{name} contains {what} at row {row}, column {column}. "
                "Drop or fill such rows first, e.g. X[np.isfinite(X).all(axis=1)]."
            )
