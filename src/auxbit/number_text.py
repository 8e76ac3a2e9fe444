"""Rows of numbers as text, a row a line, as NUS-WIDE's features are published: read by chunks, fast.

Numbers are separated by blanks or tabs. A line that is ragged or has anything else in it is an error that
names the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from auxbit.compiled import kernel
from auxbit.errors import DataFileError
from auxbit.tables import CHUNK_BYTES

Bytes = npt.NDArray[np.uint8]

LONGEST_LINE = 4 * CHUNK_BYTES
TENS = np.array([float(f"1e{n}") for n in range(309)])  # those up to 10**22 are exact
MOST_MANTISSA = 9 * 10**17  # ten times that fits into int64; digits beyond change nothing in float32

FINE, RAGGED, NO_NUMBER, TOO_LARGE = range(4)
NEWLINE, BLANK, TAB, RETURN, PLUS, MINUS, POINT, ZERO, NINE = (ord(c) for c in "\n \t\r+-.09")
SMALL_E, LARGE_E = ord("e"), ord("E")


def read_number_rows(paths: Sequence[Path]) -> npt.NDArray[np.float32]:
    """The rows of several files side by side, (n, Σ d); every file has one line for each of the n rows."""
    n_rows = 0
    widths: list[int] = []
    for path in paths:
        rows, width = _measure(path)
        if widths and rows != n_rows:
            raise DataFileError(f"{path} has {rows} rows, but {paths[0]} has {n_rows}.")
        n_rows = rows
        widths.append(width)
    out = np.empty((n_rows, sum(widths)), dtype=np.float32)
    ends = np.cumsum(widths)
    for path, width, end in zip(paths, widths, ends, strict=True):
        _read_into(out[:, end - width : end], path)
    return out


def _measure(path: Path) -> tuple[int, int]:
    """The number of lines with anything in them, and of numbers in the first."""
    rows, width = 0, 0
    for lines in _chunks(path):
        if rows == 0:
            width = len(lines.split(b"\n", 1)[0].split())
        rows += _count_lines(np.frombuffer(lines, np.uint8))
    if rows == 0 or width == 0:
        raise DataFileError(f"{path} has no numbers in its first line; expected rows of numbers as text.")
    return rows, width


def _read_into(out: npt.NDArray[np.float32], path: Path) -> None:
    row = line = 0
    for lines in _chunks(path):
        rows_done, lines_done, problem, found = _parse(np.frombuffer(lines, np.uint8), out[row:], TENS)
        if problem != FINE:
            bad = lines.split(b"\n", lines_done + 1)[lines_done]
            raise DataFileError(_complaint(path, line + lines_done + 1, problem, found, out.shape[1], bad))
        row, line = row + rows_done, line + lines_done
    if row != len(out):
        raise DataFileError(f"{path} changed while it was read: {len(out)} rows before, {row} now.")


def _complaint(path: Path, line: int, problem: int, found: int, expected: int, text: bytes) -> str:
    if problem == RAGGED:
        return f"{path}, line {line}: expected {expected} numbers as in the first line, found {found}."
    words = text.split()
    word = words[found][:40].decode(errors="replace") if found < len(words) else ""
    what = "no number" if problem == NO_NUMBER else "too large for float32"
    return f"{path}, line {line}: value {found + 1} is {word!r}, which is {what}."


def _chunks(path: Path) -> Iterator[bytes]:
    """The file in pieces of whole lines, each with its newline."""
    try:
        with path.open("rb") as file:
            rest = b""
            while piece := file.read(CHUNK_BYTES):
                end = piece.rfind(b"\n") + 1
                if end:
                    yield rest + piece[:end]
                    rest = piece[end:]
                else:
                    rest += piece
                if len(rest) > LONGEST_LINE:
                    raise DataFileError(
                        f"{path} has a line of over {LONGEST_LINE} bytes; expected rows of text."
                    )
            if rest:
                yield rest + b"\n"
    except OSError as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{path} cannot be read: {error}") from error


@kernel
def _count_lines(text: Bytes) -> int:
    """Lines that are not blank."""
    count, blank = 0, True
    for byte in text:
        if byte == NEWLINE:
            if not blank:
                count += 1
            blank = True
        elif byte not in (BLANK, TAB, RETURN):
            blank = False
    return count


@kernel
def _parse(
    text: Bytes, out: npt.NDArray[np.float32], tens: npt.NDArray[np.float64]
) -> tuple[int, int, int, int]:
    """Fill `out` from whole lines; rows and lines done, the problem if any, and the values before it.

    Blank lines are none of the rows, and only allowed after the last one.
    """
    row, line, column, at, end = 0, 0, 0, 0, len(text)
    rows_left, width = out.shape
    while at < end:
        byte = text[at]
        if byte in (BLANK, TAB, RETURN):
            at += 1
        elif byte == NEWLINE:
            if column != width and not (column == 0 and row >= rows_left):
                return row, line, RAGGED, column
            row += column == width
            line, column, at = line + 1, 0, at + 1
        else:
            at, value, problem = _number(text, at, tens)
            if problem != FINE:
                return row, line, problem, column
            if column < width and row < rows_left:
                out[row, column] = value
            column += 1
    return row, line, FINE, 0


@kernel
def _number(text: Bytes, at: int, tens: npt.NDArray[np.float64]) -> tuple[int, float, int]:
    """The number that starts at `at`, which ends before a blank or newline: where it ends, value, problem."""
    negative = text[at] == MINUS
    if negative or text[at] == PLUS:
        at += 1
    mantissa, exponent, digits, after_point = 0, 0, 0, False
    while True:
        byte = text[at]
        if ZERO <= byte <= NINE:
            digits += 1
            if mantissa < MOST_MANTISSA:
                mantissa = mantissa * 10 + (byte - ZERO)
                exponent -= after_point
            else:
                exponent += not after_point
        elif byte == POINT and not after_point:
            after_point = True
        else:
            break
        at += 1
    if digits == 0:
        return at, 0.0, NO_NUMBER
    if text[at] in (SMALL_E, LARGE_E):
        at += 1
        sign = -1 if text[at] == MINUS else 1
        if text[at] == MINUS or text[at] == PLUS:
            at += 1
        power, digits = 0, 0
        while ZERO <= text[at] <= NINE:
            power = min(power * 10 + (text[at] - ZERO), 100_000)
            digits += 1
            at += 1
        if digits == 0:
            return at, 0.0, NO_NUMBER
        exponent += sign * power
    byte = text[at]  # there is one: the text ends with a newline
    if byte not in (BLANK, TAB, RETURN, NEWLINE):
        return at, 0.0, NO_NUMBER
    value = float(mantissa)
    if exponent > 0:
        value = value * tens[min(exponent, 308)]
    elif exponent < 0:
        value = value / tens[min(-exponent, 308)]
    if value > 3.4028234e38:
        return at, 0.0, TOO_LARGE
    return at, -value if negative else value, FINE
