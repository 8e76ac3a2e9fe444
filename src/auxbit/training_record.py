"""What a model was trained on: codes and error of a sample, to compare later rows with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed, check_packed
from auxbit.decoders import Decoder, TableDecoder
from auxbit.maps import Float64, Scaling

MOST_ROWS = 4096
SHUFFLED_ROWS = 2**24  # RandomState draws by shuffling all numbers: 8 bytes each
SEED = 0  # of samples alone: what a fit draws, and so its result, does not depend on them


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """Codes and reconstruction error of at most 4096 of the rows that a model was trained on.

    codes : (m, ceil(n_bits/8)) uint8, packed; n_rows : how many rows were trained on, of which m are here;
    error : mean over the m rows of ‖x − f(z)‖², in the units of X; variation : the standard deviation of
    that over its mean; n_vectors : how many vectors f is made of, which tells how closely n_rows fit it;
    coding, mu : how the codes were made, as in encode.
    """

    codes: Packed
    n_rows: int
    error: float
    variation: float
    n_vectors: int
    coding: str = "hash"
    mu: float = 0.0

    def is_of(self, coding: str, mu: float = 0.0) -> bool:
        """Whether codes that are made in this way can be compared with those of the record."""
        return self.coding == coding and (coding == "hash" or self.mu == mu)

    def parts(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """What a file keeps: a header for JSON, and arrays."""
        header = {name: value for name, value in vars(self).items() if name != "codes"}
        return header, {"codes": self.codes}

    @classmethod
    def from_parts(
        cls, header: dict[str, Any], tensors: dict[str, npt.NDArray[Any]], n_bits: int
    ) -> TrainingRecord:
        """The record of `parts`; a KeyError, TypeError or ValueError where that is not what they are."""
        record = cls(check_packed(tensors["codes"], n_bits, "training.codes"), **header)
        numbers = (record.n_rows, record.error, record.variation, record.n_vectors, record.mu)
        if not isinstance(record.coding, str) or not 1 <= len(record.codes) <= min(record.n_rows, MOST_ROWS):
            raise ValueError(f"a training record of {len(record.codes)} {record.coding} codes")
        if any(isinstance(number, bool) or not float(number) >= 0 for number in numbers):
            raise ValueError(f"a training record with numbers {numbers}")
        return record


def sample_rows(n_rows: int, at_most: int = MOST_ROWS) -> npt.NDArray[np.intp]:
    """Which rows stand for n_rows of them: all, or at_most drawn at random, in rising order.

    The same for the same number.
    """
    if n_rows <= at_most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(SEED).choice(n_rows, at_most, replace=False)).astype(np.intp)


def draw_rows(n_rows: int, n: int, rng: np.random.RandomState) -> npt.NDArray[np.intp]:
    """Numbers of n of n_rows rows, drawn at random, in rising order."""
    if n_rows > SHUFFLED_ROWS:
        chosen = np.random.default_rng(rng.randint(np.iinfo(np.int32).max)).choice(n_rows, n, replace=False)
    else:
        chosen = rng.choice(n_rows, n, replace=False)
    return np.sort(chosen).astype(np.intp)


def residuals(X: npt.NDArray[Any], codes: Packed, decoder: Decoder, scaling: Scaling) -> Float64:
    """Rows less their reconstructions. X : (n, D) as the user gave it, codes : (n, M) packed → (n, D)."""
    wanted = scaling.apply(X).astype(np.float64) * scaling.scale + scaling.mean  # float32 ends at 3e38
    difference: Float64 = wanted - decoder.decode(codes)
    return difference


def record_of(
    X: npt.NDArray[Any],
    codes: Packed,
    decoder: Decoder,
    scaling: Scaling,
    n_rows: int,
    coding: str = "hash",
    mu: float = 0.0,
) -> TrainingRecord:
    """The record of a sample. X : (m, D) as the user gave it, codes : (m, M) packed; n_rows : of them all."""
    with Workers(1) as workers:  # BLAS on one thread, so that its sums are the same on any machine

        def squared(rows: slice) -> Float64:
            difference = residuals(X[rows], codes[rows], decoder, scaling)
            sums: Float64 = np.einsum("nd,nd->n", difference, difference)
            return sums

        errors = np.concatenate(list(workers.map(squared, len(X))))
    error = float(errors.mean())
    variation = float((errors / error).std()) if error > 0 else 0.0
    return TrainingRecord(codes, n_rows, error, variation, _n_vectors(decoder), coding, mu)


def _n_vectors(decoder: Decoder) -> int:
    """How many vectors a least-squares fit of the decoder chooses: one a bit, or one a value of each byte."""
    if isinstance(decoder, TableDecoder):
        return 1 + sum(1 << min(8, decoder.n_bits - first) for first in range(0, decoder.n_bits, 8))
    return 1 + decoder.n_bits
