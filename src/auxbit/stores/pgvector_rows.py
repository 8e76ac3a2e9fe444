"""Rows as PostgreSQL's COPY reads them in its binary format, built by NumPy; codes as strings of bits.

Bit j of a code is character j of the bit string: PostgreSQL writes the first of them as the highest bit of a
byte and auxbit as the lowest, so bytes are reversed bit by bit. What pads the last byte is 0 on both sides.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from auxbit.codes import Packed, unpack
from auxbit.stores.protocol import Rows, Vectors

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # signature, flags, length of an extension
TRAILER = b"\xff\xff"
JSONB_VERSION = 1
EXACT_FLOATS = 2.0**53  # floats from here on are integers, whose shortest text may be another one

_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"))


def bit_strings(codes: Packed, n_bits: int) -> list[str]:
    """Codes as text of n_bits characters 0 and 1, the first bit first."""
    letters = unpack(codes, n_bits) + np.uint8(ord("0"))
    return [row.tobytes().decode("ascii") for row in letters]


def from_bit_strings(strings: list[str], n_bits: int) -> Packed:
    """Packed codes, (n, ceil(n_bits/8)) uint8, of such text."""
    letters = np.frombuffer("".join(strings).encode("ascii"), dtype=np.uint8)
    bits = letters.reshape(len(strings), n_bits) - np.uint8(ord("0"))
    return np.packbits(bits, axis=1, bitorder="little")


def vector_texts(vectors: Vectors) -> list[str]:
    """Vectors as text, as pgvector reads them; every float32 is read back as it was."""
    return ["[" + ",".join(map(repr, row)) + "]" for row in vectors.tolist()]


def copy_block(rows: Rows, n_bits: int) -> bytes:
    """Rows of id, code, vector where there are vectors, and metadata, without header and trailer."""
    table = np.zeros(len(rows), dtype=_layout(rows))
    table["fields"] = 3 if rows.vectors is None else 4
    table["id_size"], table["id"] = 8, rows.ids
    width = rows.codes.shape[1]
    table["code_size"], table["n_bits"], table["code"] = 4 + width, n_bits, _REVERSED[rows.codes]
    if rows.vectors is not None:
        dims = rows.vectors.shape[1]
        table["vector_size"], table["dims"], table["vector"] = 4 + 4 * dims, dims, rows.vectors
    table["version"] = JSONB_VERSION
    if not rows.has_metadata:
        table["text_size"], table["empty"] = 3, b"{}"
        return table.tobytes()
    texts = [exact_numbers(text) for text in rows.texts()]
    table["text_size"] = 1 + np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    fixed, size = table.tobytes(), table.dtype.itemsize
    starts = range(0, len(fixed), size)
    return b"".join([fixed[start : start + size] + text for start, text in zip(starts, texts)])


def _layout(rows: Rows) -> np.dtype[Any]:
    """A row before its metadata: PostgreSQL's numbers have their highest byte first, each after its size."""
    fields: list[Any] = [("fields", ">i2"), ("id_size", ">i4"), ("id", ">i8")]
    fields += [("code_size", ">i4"), ("n_bits", ">i4"), ("code", "u1", (rows.codes.shape[1],))]
    if rows.vectors is not None:
        fields += [("vector_size", ">i4"), ("dims", ">i2"), ("unused", ">i2")]
        fields += [("vector", ">f4", (rows.vectors.shape[1],))]
    fields += [("text_size", ">i4"), ("version", "u1")]
    return np.dtype(fields if rows.has_metadata else [*fields, ("empty", "S2")])


def exact_numbers(text: bytes) -> bytes:
    """JSON in which large floats are the integers they are: 1e23 is not 10**23, but jsonb takes it so."""
    if b"e+" not in text:
        return text
    return json.dumps(_exact(json.loads(text)), ensure_ascii=True).encode()


def _exact(value: Any) -> Any:
    if isinstance(value, float) and abs(value) >= EXACT_FLOATS:
        return int(value)
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, dict):
        return {key: _exact(each) for key, each in value.items()}
    return value


def json_parameter(value: Any) -> str:
    """A value of a condition, as the stored ones are written."""
    return json.dumps(_exact(value), ensure_ascii=True, allow_nan=False)
