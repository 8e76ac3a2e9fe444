"""Decoders f(z) of tables and with lists, and files of any decoder; the linear one is in core/maps.py.

A linear decoder has one vector per bit; a decoder of tables a free vector for each value of each byte. The
linear one is the special case in which the 256 vectors of a byte are the sums of eight columns. A decoder
with lists has one of these, and a centroid per list: the first bytes of a code are the number of its list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Float32, Float64, Packed, check_integer, check_positive
from auxbit.core.files import check_layout
from auxbit.core.maps import (
    NORM_ROWS,
    VALUES,
    BaseDecoder,
    LinearDecoder,
    Scaling,
    bytes_per_code,
    check_n_bits,
    pack,
    squared_lengths,
)
from auxbit.errors import InvalidInput

# ---- Tables

LEAST32, LARGEST32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TableDecoder(BaseDecoder):
    """f(z) = b + Σ_j T_j[byte j of z]. tables : (M, 256, D) float32, b : (D,) float64.

    In a last byte of fewer bits only the values that they can have are ever looked up.
    errors : (M, 256) float64, the part of each value of each byte in the error ‖x − f(z)‖² that a row is
    expected to have; None: not known. Search adds it, times error_weight, to ‖query − f(z)‖², so that rows
    which their codes tell little of do not seem too near. The last error_bits of a code are for it alone: the
    tables have the same vectors for all their values.
    """

    LAYOUT = "tables float32 M 256 D; b float64 D"
    ERRORS = "; errors float64 M 256"

    tables: Float32
    b: Float64
    n_bits: int
    normalize: bool = False
    mu: float | None = None
    lift: float = 0.0
    errors: Float64 | None = None
    error_weight: float = 1.0
    error_bits: int = 0

    @property
    def hash_bits(self) -> int:
        """Of the codes of h beside it."""
        return self.n_bits

    @property
    def error_place(self) -> int:
        """Where in the last byte the error_bits begin; the bits below are for the tables."""
        return (self.n_bits - self.error_bits) % 8

    @classmethod
    def of(cls, linear: LinearDecoder) -> TableDecoder:
        """The same function as a linear decoder's."""
        tables = byte_contributions(linear).astype(np.float32)
        return cls(tables, linear.b, linear.n_bits, linear.normalize, lift=linear.lift)

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
        """The same decoder for data before `scaling`; InvalidInput if float32 cannot hold its tables."""
        b, reach = self.b * scaling.scale + scaling.mean, self.reach * scaling.scale
        if not (reach <= LARGEST32 and (reach == 0 or reach >= LEAST32)):
            raise InvalidInput(
                f"the tables of this decoder would have numbers of up to {reach:.3g}, which float32 cannot "
                'hold. Rescale the rows before fit, or use decoder="linear".'
            )
        tables = (self.tables * _factor(scaling.scale)).astype(np.float32)
        errors = None if self.errors is None else self.errors * scaling.scale**2
        units = replace(self, normalize=scaling.normalize, lift=scaling.lift, mu=None)
        return replace(units, tables=tables, b=b, errors=errors)

    def in_scale_of(self, scaling: Scaling) -> TableDecoder:
        """Undo `in_units_of`."""
        b = (self.b - scaling.mean) / scaling.scale
        tables = (self.tables / _factor(scaling.scale)).astype(np.float32)
        errors = None if self.errors is None else self.errors / scaling.scale**2
        return replace(self, tables=tables, b=b, errors=errors, normalize=False, lift=0.0, mu=None)

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """−2(x − b)ᵀT_j[v] for each query, byte and value. X : (q, D) → (q, M, 256) float32."""
        products = self.centred(X) @ self._columns
        return np.asarray(-2 * products, dtype=np.float32).reshape(len(X), len(self.tables), VALUES)

    def rough_tables(self, rows: Float64, out: Float32) -> None:
        """The same of rows without b, (q, D), into (q, M, 256), up to rounding.

        Many dimensions are multiplied as integers of 16 bits, two at a time: each entry is then wrong by
        some 1e-5 of ‖x − b‖ ‖T_j[v]‖; or of 8 bits, four at a time, by some 1e-3, if codes leave far more of
        rows than that (table_bits).
        """
        flat = out.reshape(len(rows), out.shape[1] * VALUES)
        if not self.steady:
            np.dot(rows.astype(np.float32), self._doubled, out=flat)
            return
        from auxbit.core.simd import multiply_whole

        panels, units, excess = self._panels
        whole, row_units = _in_units(rows, self.table_bits)
        if panels.dtype == np.int8:
            whole = (whole + ABOVE_ZERO).astype(np.uint8)
        multiply_whole(whole, row_units, panels, units, excess, flat)

    @property
    def steady(self) -> bool:  # type: ignore[override]
        """Sums of integers are exact."""
        return bool(self.tables.shape[2] >= MANY_DIMENSIONS)

    @cached_property
    def longest(self) -> float:
        """The length that a sum of vectors, one of each table, cannot exceed."""
        return float(np.linalg.norm(self.tables, axis=2).max(axis=1).sum(dtype=np.float64))

    @cached_property
    def _doubled(self) -> Float32:
        """All vectors times −2, as columns."""
        return np.ascontiguousarray((-2 * self.tables.reshape(-1, self.tables.shape[2])).T)

    @cached_property
    def table_bits(self) -> int:
        """Of the integers that queries and vectors are rounded to: 8 if that changes sums of vectors by next
        to nothing of what codes leave of rows, and 16 if this is not known.
        """
        if self.errors is None:
            return 16
        units = np.abs(self.tables).max(axis=2).astype(np.float64) / LARGEST_WHOLE[8]
        rounding = np.square(units).mean(axis=1).sum() * self.tables.shape[2] / 12
        return 8 if LEFT_BY_CODES * rounding <= self.errors.mean(axis=1).sum() else 16

    @cached_property
    def _panels(self) -> tuple[npt.NDArray[np.integer[Any]], Float32, npt.NDArray[np.int32]]:
        """All vectors in integers, (4·M, steps, 64, 2 of int16 or 4 of int8), their units times −2, (256·M,),
        and what sums of products with numbers above zero are too large by, (256·M,).
        """
        from auxbit.core.simd import TILE_COLUMNS, multiplies_bytes

        whole, units = _in_units(self.tables.reshape(-1, self.tables.shape[2]), self.table_bits)
        excess, numbers = np.zeros(len(whole), dtype=np.int32), 2
        if self.table_bits == 8 and multiplies_bytes():
            excess, numbers = ABOVE_ZERO * whole.sum(axis=1, dtype=np.int32), 4
            whole = whole.astype(np.int8)
        panels = whole.reshape(-1, TILE_COLUMNS, whole.shape[1] // numbers, numbers).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(panels), -2 * units, excess

    @cached_property
    def _columns(self) -> Float64:
        """All vectors as columns, (D, M·256); kept: converting takes longer than a product."""
        return self.tables.reshape(-1, self.tables.shape[2]).astype(np.float64).T

    def squared_norms(self, codes: Packed) -> Float32:
        """‖f(z) − b‖² of packed codes, and the error that is expected of them, (n, M) → (n,) float32."""
        out = np.empty(len(codes), dtype=np.float32)
        for start in range(0, len(codes), NORM_ROWS):
            some = codes[start : start + NORM_ROWS]
            norms = squared_lengths(self.decode(some) - self.b)
            out[start : start + NORM_ROWS] = norms if self.errors is None else norms + self.expected(some)
        return out

    def expected(self, codes: Packed) -> Float64:
        """What search adds for the errors of codes, (n, M) → (n,)."""
        return self.error_weight * np.maximum(self.errors_of(codes), 0.0)

    def errors_of(self, codes: Packed) -> Float64:
        """The sum of the parts of their values of bytes in the error, (n, M) → (n,)."""
        out = np.zeros(len(codes))
        if self.errors is not None:
            for j in range(codes.shape[1]):
                out += self.errors[j, codes[:, j]]
        return out

    def about_errors(self) -> dict[str, Any] | None:
        """What a header for JSON says of the errors."""
        return None if self.errors is None else {"weight": self.error_weight, "bits": self.error_bits}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        tensors: dict[str, npt.NDArray[Any]] = {"tables": self.tables, "b": self.b}
        return tensors if self.errors is None else tensors | {"errors": self.errors}


# ---- Lists

LEARNED_KS = (1, 3, 10, 30, 100, 300, 1000)
CAUTION = 2  # times the neighbours that rows of one density would have


@dataclass(frozen=True)
class Coverage:
    """Which part of the nearest neighbours of queries lies in their first lists, on average.

    parts : (ks, K) float64, rising along a row; each row is for another number of neighbours, the first of
    LEARNED_KS; n_rows : among that many rows. Of more rows, fewer neighbours are as far away.
    """

    parts: Float64
    n_rows: int

    @classmethod
    def unknown(cls, n_lists: int) -> Coverage:
        """What is known without queries."""
        return cls(np.ones((0, n_lists)), 0)

    @classmethod
    def of(cls, ranks: npt.NDArray[np.integer[Any]], n_lists: int, n_rows: int) -> Coverage:
        """From which of a query's lists, from 0, its neighbours are in, the nearest first, (q, k)."""
        ks = [k for k in LEARNED_KS if k <= ranks.shape[1]]
        counts = [np.bincount(ranks[:, :k].ravel(), minlength=n_lists) for k in ks]
        parts = [np.cumsum(each) / max(1, each.sum()) for each in counts]
        return cls(np.array(parts).reshape(len(ks), n_lists), n_rows)

    def probes(self, recall: float, k: float, n_rows: int) -> int:
        """The fewest lists with that part of k neighbours among n_rows; all of them, if it is not known."""
        row, n_lists = self._row(k, n_rows), int(self.parts.shape[1])
        if row >= len(self.parts) or recall >= 1:
            return n_lists
        return min(int(np.searchsorted(self.parts[row], recall - 1e-9)) + 1, n_lists)

    def recall(self, probes: int, k: float, n_rows: int) -> float | None:
        """The part of k neighbours among n_rows in that many lists; None: it is not known."""
        row, n_lists = self._row(k, n_rows), int(self.parts.shape[1])
        if probes >= n_lists:
            return 1.0
        return float(self.parts[row, probes - 1]) if row < len(self.parts) else None

    def _row(self, k: float, n_rows: int) -> int:
        part = self.n_rows / max(n_rows, 1)
        return int(np.searchsorted(LEARNED_KS, k * (part if part > 1 else min(1.0, CAUTION * part))))


@dataclass(frozen=True)
class ListDecoder(BaseDecoder):
    """f(l, z) = share·(c_l − c̄) + g(z), c̄ the mean of all c_l: codes are of what is left of a row.

    A row is in the list of the centroid that is nearest to it; the number l is in the first bytes of its
    code, the lowest first. inner : g; centroids : (K, D) float64. fine : of the rest of a code, which tells
    what is left of a row by the others; search ranks the first that it finds again by all of it.
    """

    LAYOUT = "centroids float64 K D; coverage float64 R K"

    inner: Plain
    centroids: Float64
    share: float
    coverage: Coverage
    fine: TableDecoder | None = None
    b: Float64 = field(init=False)
    normalize: bool = field(init=False)
    mu: float | None = field(init=False)
    lift: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("b", "normalize", "mu", "lift"):
            object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def number_bytes(self) -> int:
        """Of a list's number."""
        return bytes_per_code(max(1, (len(self.centroids) - 1).bit_length()))

    @property
    def n_bits(self) -> int:
        """Of a code with its list's number and all that follows."""
        if self.fine is None:
            return 8 * self.number_bytes + self.inner.n_bits
        return 8 * (self.number_bytes + self.inner_bytes) + self.fine.n_bits

    @property
    def inner_bytes(self) -> int:
        """Of the code for the inner decoder."""
        return bytes_per_code(self.inner.n_bits)

    @property
    def hash_bits(self) -> int:
        """Of the codes of h beside it, which have no list's number."""
        return self.inner.n_bits

    @property
    def reach(self) -> float:
        """The largest magnitude among the numbers that are added to b."""
        return max(self.inner.reach, float(np.abs(self.centres).max()))

    @cached_property
    def centres(self) -> Float32:
        """What is taken from the rows of each list before they are coded, (K, D)."""
        mean = self.centroids.mean(axis=0)
        return np.asarray(self.share * (self.centroids - mean), dtype=np.float32)

    def split(self, codes: Packed) -> tuple[npt.NDArray[np.int64], Packed]:
        """The list of each code, (n,), and what follows its number; InvalidInput if there is no such list."""
        numbers = np.zeros(len(codes), dtype=np.int64)
        for place in range(self.number_bytes):
            numbers |= codes[:, place].astype(np.int64) << 8 * place
        if len(numbers) and numbers.max() >= len(self.centroids):
            raise InvalidInput(
                f"codes belong to list {numbers.max()}, but there are {len(self.centroids)} lists. "
                'Use codes of encode(X, coding="optimal") by the same model.'
            )
        return numbers, codes[:, self.number_bytes : self.number_bytes + self.inner_bytes]

    def joined(self, numbers: npt.NDArray[np.integer[Any]], *rest: Packed) -> Packed:
        """Codes, of the numbers of their lists, (n,), and what follows."""
        places = 8 * np.arange(self.number_bytes)
        return np.hstack([(numbers[:, None] >> places & 255).astype(np.uint8), *rest])

    def fine_codes(self, codes: Packed) -> Packed:
        """The last part of codes."""
        return codes[:, self.number_bytes + self.inner_bytes :]

    def decode(self, codes: Packed) -> Float64:
        """The reconstruction of packed codes, (n, bytes) → (n, D)."""
        numbers, rest = self.split(codes)
        rows = self.inner.decode(rest) + self.centres[numbers]
        return rows if self.fine is None else rows + self.fine.decode(self.fine_codes(codes))

    def __call__(self, Z: npt.NDArray[np.uint8]) -> Float64:
        """The reconstruction f(Z) of each row of bits, (n, D)."""
        return self.decode(pack(Z))

    def in_units_of(self, scaling: Scaling) -> ListDecoder:
        """The same decoder for data before `scaling`."""
        centroids = self.centroids * scaling.scale + scaling.mean
        if not np.abs(centroids - scaling.mean).max() <= LARGEST32:
            raise InvalidInput(
                f"the lists of this decoder would have centres of up to {np.abs(centroids).max():.3g}, which "
                "float32 cannot hold. Rescale the rows before fit."
            )
        fine = None if self.fine is None else self.fine.in_units_of(_without_mean(scaling))
        return ListDecoder(self.inner.in_units_of(scaling), centroids, self.share, self.coverage, fine)

    def in_scale_of(self, scaling: Scaling) -> ListDecoder:
        """Undo `in_units_of`."""
        centroids = (self.centroids - scaling.mean) / scaling.scale
        fine = None if self.fine is None else self.fine.in_scale_of(_without_mean(scaling))
        return ListDecoder(self.inner.in_scale_of(scaling), centroids, self.share, self.coverage, fine)

    def query_tables(self, X: npt.NDArray[Any]) -> Float32:
        """Those of the inner decoder, which are the same for all lists."""
        return self.inner.query_tables(X)

    def squared_norms(self, codes: Packed) -> Float32:
        """What a code adds to the query's tables and the offset of its list: ‖g‖² + 2gᵀ(c_l − c̄)·share.

        g is taken without b, and what the inner decoder expects of errors is added. → (n,) float32
        """
        numbers, rest = self.split(codes)
        out = np.empty(len(codes), dtype=np.float32)
        for start in range(0, len(codes), NORM_ROWS):
            some = slice(start, start + NORM_ROWS)
            own = self.centres[numbers[some]].astype(np.float64)
            g = self.inner.decode(rest[some]) - self.b
            norms = np.einsum("nd,nd->n", g + 2 * own, g)
            out[some] = norms + self.inner.expected(rest[some])
        return out

    def expected(self, codes: Packed) -> Float64:
        """What search adds for the errors of codes, (n, bytes) → (n,)."""
        if self.fine is not None:
            return self.fine.expected(self.fine_codes(codes))
        return self.inner.expected(self.split(codes)[1])

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What a model file keeps of this decoder."""
        fine: dict[str, npt.NDArray[Any]] = {} if self.fine is None else self.fine.tensors()
        own: dict[str, npt.NDArray[Any]] = {"centroids": self.centroids, "coverage": self.coverage.parts}
        return self.inner.tensors() | own | {f"fine.{name}": each for name, each in fine.items()}

    def about_lists(self) -> dict[str, Any]:
        """What a header for JSON says of the lists."""
        about: dict[str, Any] = {"share": self.share, "rows": self.coverage.n_rows}
        return about if self.fine is None else about | {"fine": decoder_parts(self.fine)[0]}


def _without_mean(scaling: Scaling) -> Scaling:
    """For what is left of rows."""
    return replace(scaling, mean=np.zeros_like(scaling.mean), normalize=False, lift=0.0)


Plain = LinearDecoder | TableDecoder
Decoder = Plain | ListDecoder


def squared_distances(decoder: Decoder, x: npt.NDArray[Any], codes: Packed) -> Float64:
    """‖x − f(z)‖² of a row, (D,), for each of a few codes, (n, bytes) → (n,); of decoders without lists."""
    tables, offset = decoder.query_tables(x[None])[0], decoder.query_offsets(x[None])[0]
    terms = tables[np.arange(codes.shape[1]), codes].sum(axis=1, dtype=np.float64)
    squared: Float64 = offset + terms + decoder.squared_norms(codes)
    return squared


def for_mu(decoder: Decoder, mu: float) -> Decoder:
    """The same decoder, for optimal codes at this μ."""
    if isinstance(decoder, ListDecoder):
        return replace(decoder, inner=replace(decoder.inner, mu=mu))
    return replace(decoder, mu=mu)


def kind_of(decoder: Decoder) -> tuple[str, int, int]:
    """What fit_decoder calls it, "linear" or "tables", how many lists it has, and its refine_bits."""
    if isinstance(decoder, ListDecoder):
        fine = 0 if decoder.fine is None else decoder.fine.n_bits
        return kind_of(decoder.inner)[0], len(decoder.centroids), fine
    return "tables" if isinstance(decoder, TableDecoder) else "linear", 0, 0


def byte_contributions(linear: LinearDecoder) -> Float64:
    """Σ of the columns of A for the bits of each value of each byte, (M, 256, D) float64."""
    width = bytes_per_code(linear.n_bits)
    columns = np.zeros((width * 8, len(linear.A)))
    columns[: linear.n_bits] = linear.A.T
    return np.ascontiguousarray(_patterns().astype(np.float64) @ columns.reshape(width, 8, -1))


LARGEST_WHOLE = {8: 127, 16: 32767}
ABOVE_ZERO = np.int16(128)  # added to numbers of 8 bits, which instructions take as unsigned
LEFT_BY_CODES = 100  # times the squared rounding of 8 bits, which then adds next to nothing to it
MANY_DIMENSIONS = 64  # from which on products of integers are faster, and precise enough


def _factor(scale: float) -> Any:
    """A scale for numbers of float32, to which NumPy would convert it even if float32 cannot hold it."""
    return scale if LEAST32 <= scale <= LARGEST32 else np.float64(scale)


def _in_units(rows: npt.NDArray[Any], bits: int) -> tuple[npt.NDArray[np.int16], Float32]:
    """Rows, (n, D), as multiples of a unit each, (n, D up to a multiple of four), and these units, (n,)."""
    from auxbit.core.simd import round_rows

    whole = np.zeros((len(rows), -(-rows.shape[1] // 4) * 4), dtype=np.int16)
    units = np.empty(len(rows), dtype=np.float32)
    round_rows(np.ascontiguousarray(rows, dtype=np.float64), LARGEST_WHOLE[bits], whole, units)
    return whole, units


def _patterns() -> npt.NDArray[np.uint8]:
    """The eight bits of each value of a byte, (256, 8)."""
    return np.unpackbits(np.arange(VALUES, dtype=np.uint8)[:, None], axis=1, bitorder="little")


def decoder_parts(decoder: Decoder) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What a file keeps of a decoder: a header for JSON, and arrays."""
    inner = decoder.inner if isinstance(decoder, ListDecoder) else decoder
    about = {"class": type(inner).__name__, "n_bits": inner.n_bits, "normalize": decoder.normalize}
    if isinstance(inner, TableDecoder):
        about["errors"] = inner.about_errors()
    if isinstance(decoder, ListDecoder):
        about["lists"] = decoder.about_lists()
    return about | {"mu": decoder.mu, "lift": decoder.lift}, decoder.tensors()


def decoder_from(
    header: dict[str, Any], tensors: dict[str, npt.NDArray[Any]], sizes: dict[str, int] | None = None
) -> Decoder:
    """The decoder of `decoder_parts`; InvalidInput if it is none, or none of these sizes, as in check_layout.

    A KeyError where something is missing or of another class.
    """
    lists = header.get("lists")
    if lists:
        sizes, rest = {} if sizes is None else sizes, tensors.copy()
        own = {name: rest.pop(name) for name in ("centroids", "coverage")}
        parts = {name[5:]: rest.pop(name) for name in list(rest) if name.startswith("fine.")}
        inner = decoder_from(header | {"lists": None}, rest, sizes)
        check_layout(own, ListDecoder.LAYOUT, sizes, "decoder.")
        if isinstance(inner, ListDecoder) or not len(own["centroids"]):
            raise ValueError("a decoder with lists needs a centroid for each of them")
        coverage = Coverage(own["coverage"], check_integer("rows", lists["rows"], 0))
        fine = decoder_from(lists["fine"], parts, {"D": sizes["D"]}) if parts else None
        if fine is not None and not isinstance(fine, TableDecoder):
            raise ValueError("a finer code is one for tables")
        share = check_positive("share", lists["share"])
        return ListDecoder(inner, own["centroids"], share, coverage, fine)
    n_bits, normalize = check_n_bits(header["n_bits"]), bool(header["normalize"])
    kind: type[Plain] = {each.__name__: each for each in (LinearDecoder, TableDecoder)}[header["class"]]
    sizes = {} if sizes is None else sizes
    sizes |= {"L": n_bits, "M": bytes_per_code(n_bits)}
    errors = header.get("errors")
    layout = kind.LAYOUT + (TableDecoder.ERRORS if errors else "")
    check_layout(tensors, layout, sizes, "decoder.")
    mu = header.get("mu", 0.0 if kind is TableDecoder else None)  # files of before do not say it
    mu, lift = None if mu is None else float(mu), header.get("lift", 0.0)
    lift = check_positive("lift", lift) if lift else 0.0
    if kind is TableDecoder:
        made = TableDecoder(tensors["tables"], tensors["b"], n_bits, normalize, mu, lift)
        if not errors:
            return made
        weight = float(errors["weight"]) and check_positive("errors", errors["weight"])
        bits = check_integer("error_bits", errors["bits"], 0, (n_bits - 1) % 8)
        return replace(made, errors=tensors["errors"], error_weight=weight, error_bits=bits)
    return LinearDecoder(tensors["A"], tensors["b"], normalize, mu, lift)
