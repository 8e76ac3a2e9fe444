"""Decoders f(z): from a code back to a row, and what a search by ‖x − f(z)‖ needs of them.

A linear decoder has one vector per bit; a decoder of tables a free vector for each value of each byte. The
linear one is the special case in which the 256 vectors of a byte are the sums of eight columns.

‖x − f(z)‖² = ‖x − b‖² − 2(x − b)ᵀ(f(z) − b) + ‖f(z) − b‖²: one offset per query, one table entry per byte
of the code (for both kinds the middle term is a sum over bytes), one norm per code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from auxbit.core.codes import bytes_per_code, pack, unpack
from auxbit.core.maps import Scaling, decoded_rows
from auxbit.core.parallel import kernel
from auxbit.core.types import Float32, Float64, Packed

VALUES = 256  # of a byte
NORM_ROWS = 4096  # codes whose norms are taken at once


class Decoder(Protocol):
    """What both kinds can do."""

    @property
    def b(self) -> Float64:
        """The reconstruction of a code to which no byte contributes, (D,)."""

    @property
    def normalize(self) -> bool:
        """Whether rows are divided by their norms before they are reconstructed."""

    @property
    def n_bits(self) -> int:
        """L, the bits per code."""

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction of rows of bits, (n, L) → (n, D)."""

    def decode(self, codes: Packed) -> Float64:
        """The reconstruction of packed codes, (n, ceil(L/8)) → (n, D)."""

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """−2(x − b)ᵀ(f(z) − b) by bytes of z. X : (q, D) → (q, ceil(L/8), 256)."""

    def query_offsets(self, X: npt.NDArray[Any]) -> Float32:
        """‖x − b‖². X : (q, D) → (q,)."""

    def squared_norms(self, codes: Packed) -> Float32:
        """‖f(z) − b‖² of packed codes, (n, ceil(L/8)) → (n,)."""

    def in_units_of(self, scaling: Scaling) -> Decoder:
        """The same decoder for data before `scaling`."""

    def in_scale_of(self, scaling: Scaling) -> Decoder:
        """Undo `in_units_of`."""

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""


@dataclass(frozen=True)
class LinearDecoder:
    """f(z) = Az + b. A : (D, L) float64, b : (D,) float64; `normalize`: of rows divided by their norms."""

    A: Float64
    b: Float64
    normalize: bool = False

    @property
    def n_bits(self) -> int:
        """L, the bits per code."""
        return int(self.A.shape[1])

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction f(Z) of each row of bits, (n, D)."""
        return Z @ self._rows + self.b

    def decode(self, codes: Packed) -> Float64:
        """The reconstruction of packed codes, (n, ceil(L/8)) → (n, D)."""
        return self(unpack(codes, self.n_bits))

    def in_units_of(self, scaling: Scaling) -> LinearDecoder:
        """The same decoder for data before `scaling`."""
        b = self.b * scaling.scale + scaling.mean
        return LinearDecoder(self.A * scaling.scale, b, scaling.normalize)

    def in_scale_of(self, scaling: Scaling) -> LinearDecoder:
        """Undo `in_units_of`."""
        return LinearDecoder(self.A / scaling.scale, (self.b - scaling.mean) / scaling.scale)

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """−2(x − b)ᵀAz for each query and each value of each byte of z. X : (q, D) → (q, ceil(L/8), 256)."""
        width = bytes_per_code(self.n_bits)
        terms = np.zeros((len(X), width * 8))
        terms[:, : self.n_bits] = -2 * (self.centred(X) @ self.A)
        tables = np.empty((len(X), width, VALUES), dtype=np.float32)
        _sums_of_subsets(terms.reshape(-1, 8), tables.reshape(-1, VALUES))
        return tables

    def query_offsets(self, X: npt.NDArray[Any]) -> Float32:
        """‖x − b‖²: with a code's entries of the tables and its norm it makes ‖x − f(z)‖². → (q,) float32."""
        return _squared_lengths(self.centred(X))

    def squared_norms(self, codes: Packed) -> Float32:
        """‖f(z) − b‖² of packed codes, (n, ceil(L/8)) → (n,) float32."""
        gram = self.A.T @ self.A
        out = np.empty(len(codes), dtype=np.float32)
        for start in range(0, len(codes), NORM_ROWS):
            Z = unpack(codes[start : start + NORM_ROWS], self.n_bits).astype(np.float64)
            out[start : start + NORM_ROWS] = np.einsum("nl,nl->n", Z @ gram, Z)
        return out

    def centred(self, X: npt.NDArray[Any]) -> Float64:
        """X − b, for rows of X as f reconstructs them."""
        return decoded_rows(X, self.normalize) - self.b

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        return {"A": self.A, "b": self.b}

    def __getstate__(self) -> dict[str, Any]:
        return _without_derived(vars(self))

    @cached_property
    def _rows(self) -> Float64:
        return np.ascontiguousarray(self.A.T)


@dataclass(frozen=True)
class TableDecoder:
    """f(z) = b + Σ_j T_j[byte j of z]. tables : (M, 256, D) float32, b : (D,) float64.

    In a last byte of fewer bits only the values that they can have are ever looked up.
    """

    tables: Float32
    b: Float64
    n_bits: int
    normalize: bool = False

    @classmethod
    def of(cls, linear: LinearDecoder) -> TableDecoder:
        """The same function as a linear decoder's."""
        tables = byte_contributions(linear).astype(np.float32)
        return cls(tables, linear.b, linear.n_bits, linear.normalize)

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction f(Z) of each row of bits, (n, D)."""
        return self.decode(pack(Z))

    def decode(self, codes: Packed) -> Float64:
        """The reconstruction of packed codes, (n, M) → (n, D)."""
        out = np.repeat(self.b[None], len(codes), axis=0)
        for j in range(codes.shape[1]):
            out += self.tables[j, codes[:, j]]
        return out

    def in_units_of(self, scaling: Scaling) -> TableDecoder:
        """The same decoder for data before `scaling`."""
        b = self.b * scaling.scale + scaling.mean
        tables = (self.tables * scaling.scale).astype(np.float32)
        return TableDecoder(tables, b, self.n_bits, scaling.normalize)

    def in_scale_of(self, scaling: Scaling) -> TableDecoder:
        """Undo `in_units_of`."""
        b = (self.b - scaling.mean) / scaling.scale
        return TableDecoder((self.tables / scaling.scale).astype(np.float32), b, self.n_bits)

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """−2(x − b)ᵀT_j[v] for each query, byte and value. X : (q, D) → (q, M, 256) float32."""
        products = self.centred(X) @ self._columns
        return np.asarray(-2 * products, dtype=np.float32).reshape(len(X), len(self.tables), VALUES)

    @cached_property
    def _columns(self) -> Float64:
        """All vectors as columns, (D, M·256); kept: converting takes longer than a product."""
        return self.tables.reshape(-1, self.tables.shape[2]).astype(np.float64).T

    def query_offsets(self, X: npt.NDArray[Any]) -> Float32:
        """‖x − b‖², so that with a code's table entries and norm it makes ‖x − f(z)‖². → (q,) float32."""
        return _squared_lengths(self.centred(X))

    def squared_norms(self, codes: Packed) -> Float32:
        """‖f(z) − b‖² of packed codes, (n, M) → (n,) float32."""
        out = np.empty(len(codes), dtype=np.float32)
        for start in range(0, len(codes), NORM_ROWS):
            some = codes[start : start + NORM_ROWS]
            out[start : start + NORM_ROWS] = _squared_lengths(self.decode(some) - self.b)
        return out

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        return {"tables": self.tables, "b": self.b}

    def centred(self, X: npt.NDArray[Any]) -> Float64:
        """X − b, for rows of X as f reconstructs them."""
        return decoded_rows(X, self.normalize) - self.b

    def __getstate__(self) -> dict[str, Any]:
        return _without_derived(vars(self))


def _without_derived(state: dict[str, Any]) -> dict[str, Any]:
    """What copies and pickles keep: what was derived (names with a _) is derived again."""
    return {name: value for name, value in state.items() if not name.startswith("_")}


def byte_contributions(linear: LinearDecoder) -> Float64:
    """Σ of the columns of A for the bits of each value of each byte, (M, 256, D) float64."""
    width = bytes_per_code(linear.n_bits)
    columns = np.zeros((width * 8, len(linear.A)))
    columns[: linear.n_bits] = linear.A.T
    return np.ascontiguousarray(_patterns().astype(np.float64) @ columns.reshape(width, 8, -1))


@kernel
def _sums_of_subsets(terms: Float64, out: Float32) -> None:
    """The sum of the terms, (n, 8), that each value of a byte has a bit for, (n, 256)."""
    sums = np.zeros(VALUES)
    for row in range(len(terms)):
        for bit in range(8):
            n = 1 << bit
            for value in range(n):
                sums[n + value] = sums[value] + terms[row, bit]
        for value in range(VALUES):
            out[row, value] = sums[value]


def _patterns() -> npt.NDArray[np.uint8]:
    """The eight bits of each value of a byte, (256, 8)."""
    return np.unpackbits(np.arange(VALUES, dtype=np.uint8)[:, None], axis=1, bitorder="little")


def _squared_lengths(rows: Float64) -> Float32:
    lengths: Float64 = np.einsum("nd,nd->n", rows, rows)
    return lengths.astype(np.float32)


def decoder_parts(decoder: Any) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What a file keeps of a decoder: a header for JSON, and arrays."""
    return {
        "class": type(decoder).__name__,
        "n_bits": decoder.n_bits,
        "normalize": decoder.normalize,
    }, decoder.tensors()


def decoder_from(
    header: dict[str, Any], tensors: dict[str, npt.NDArray[Any]]
) -> LinearDecoder | TableDecoder:
    """The decoder of `decoder_parts`; a KeyError where something is missing or of another class."""
    normalize, n_bits, b = bool(header["normalize"]), int(header["n_bits"]), tensors["b"]
    if header["class"] == "LinearDecoder":
        return _checked(LinearDecoder(tensors["A"], b, normalize), tensors["A"].shape == (b.size, n_bits))
    if header["class"] == "TableDecoder":
        decoder, shape = TableDecoder(tensors["tables"], b, n_bits, normalize), tensors["tables"].shape
        return _checked(decoder, shape == (bytes_per_code(n_bits), VALUES, b.size))
    raise KeyError(header["class"])


D = TypeVar("D", LinearDecoder, TableDecoder)


def _checked(decoder: D, fits: bool) -> D:
    if not fits or decoder.b.ndim != 1:
        shapes = ", ".join(f"{name} {tensor.shape}" for name, tensor in decoder.tensors().items())
        raise ValueError(f"a decoder of {shapes} for {decoder.n_bits} bits")
    return decoder
