"""The contract of every hasher: fit, transform, encode, inverse_transform, decode, score, save.

A method implements `_learn`: scaled rows in, an encoder out. Everything else is here: validation,
scaling, encoding in threaded blocks, a least-squares decoder for the method's own codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from auxbit.blocks import Workers, resolve_n_jobs
from auxbit.checks import check_finite
from auxbit.codes import Bits, Packed, bytes_per_code, check_n_bits, pack, pack_bools, unpack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.mac.f_step import decoder_sums, f_step
from auxbit.maps import Float32, Float64, LinearDecoder, Scaling


class Encoder(Protocol):
    """A learned hash function on scaled rows: bit l is 1 where score l is at least 0."""

    def scores(self, X: Float32) -> npt.NDArray[np.floating[Any]]:
        """X : (n, D) scaled → (n, L)."""

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that make it up, by the names of its constructor's parameters."""


@dataclass(frozen=True)
class Training:
    """What `_learn` may use. raw : the rows as the user gave them; X : (n, D) float32, scaled."""

    raw: npt.NDArray[Any]
    X: Float32
    scaling: Scaling
    n_bits: int
    workers: Workers
    rng: np.random.RandomState


@dataclass(frozen=True)
class Learned:
    """What `_learn` returns: the encoder, a decoder if it has one of its own, further fitted attributes."""

    encoder: Encoder
    decoder: LinearDecoder | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all hashing methods. Subclasses declare `n_bits`, `random_state` and `n_jobs`."""

    n_bits: int
    random_state: Any
    n_jobs: int | None
    normalize: bool = False

    def _learn(self, training: Training) -> Learned:
        raise NotImplementedError

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Learn the hash function from the rows of X, (n, D); y is ignored.

        All or nothing: where it fails, a model fitted before stays as it was.
        """
        before = dict(vars(self))
        try:
            return self._fit(X)
        except BaseException:
            self.__dict__ = before  # validate_data has noted the new number of features by then
            raise

    def _fit(self, X: npt.ArrayLike) -> Self:
        n_bits = check_n_bits(self.n_bits)
        resolve_n_jobs(self.n_jobs)
        rng = self._generator()
        raw = self._validate(X, reset=True)
        with Workers(self.n_jobs) as workers:
            check_finite(raw, workers)
            scaling = Scaling.measure(raw, workers, normalize=bool(self.normalize))
            rows = scaling.apply_all(raw, workers)
            learned = self._learn(Training(raw, rows, scaling, n_bits, workers, rng))
            decoder = learned.decoder
            if decoder is None:
                Z = np.empty((len(rows), n_bits), dtype=np.uint8)

                def fill(some: slice) -> None:
                    Z[some] = learned.encoder.scores(rows[some]) >= 0

                workers.run(fill, len(rows))
                decoder = f_step(decoder_sums(rows, Z, workers))
        self.scaling_ = scaling
        self.encoder_ = learned.encoder
        self.decoder_ = decoder.in_units_of(scaling)
        for name, value in learned.attributes.items():
            setattr(self, name, value)
        return self

    def transform(self, X: npt.ArrayLike) -> Bits:
        """The bits of each row. X : (n, D) → (n, n_bits) uint8 of 0/1."""
        return self._blocks(X, lambda n_bits: n_bits, lambda bits: bits.view(np.uint8))

    def encode(self, X: npt.ArrayLike) -> Packed:
        """The packed code of each row. X : (n, D) → (n, ceil(n_bits/8)) uint8."""
        return self._blocks(X, bytes_per_code, pack_bools)

    def inverse_transform(self, Z: npt.ArrayLike) -> Float64:
        """The decoder's reconstruction f(z), in the units of X. Z : (n, n_bits) of 0/1 → (n, D)."""
        check_is_fitted(self)
        codes, width = pack(Z), np.shape(Z)[1]
        if width != self._n_features_out:
            raise InvalidInput(f"Z has {width} columns, expected {self._n_features_out} bits.")
        return self.decoder_(unpack(codes, width))

    def decode(self, codes: npt.ArrayLike) -> Float64:
        """The decoder's reconstruction of packed codes. codes : (n, ceil(n_bits/8)) uint8 → (n, D)."""
        check_is_fitted(self)
        return self.decoder_(unpack(codes, self._n_features_out))

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """Minus the mean over rows of the squared reconstruction error, in the units of X."""
        check_is_fitted(self)
        raw = self._validate(X, reset=False)

        def error(rows: slice) -> tuple[float]:
            scaled = self.scaling_.apply(raw[rows])
            wanted = scaled * self.scaling_.scale + self.scaling_.mean
            residual = wanted - self.decoder_((self.encoder_.scores(scaled) >= 0).view(np.uint8))
            return (float(np.einsum("nd,nd->", residual, residual)),)

        with Workers(self.n_jobs) as workers:
            check_finite(raw, workers)
            return -float(workers.sum(error, len(raw))[0]) / len(raw)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write the fitted model to a safetensors file, atomically; `auxbit.load` reads it."""
        from auxbit.hashers.model_file import save

        save(self, path, overwrite=overwrite)

    def _blocks(
        self, X: npt.ArrayLike, width: Callable[[int], int], pack_bits: Callable[[Any], Any]
    ) -> npt.NDArray[np.uint8]:
        check_is_fitted(self)
        raw = self._validate(X, reset=False)
        out = np.empty((len(raw), width(self._n_features_out)), dtype=np.uint8)

        def fill(rows: slice) -> None:
            out[rows] = pack_bits(self.encoder_.scores(self.scaling_.apply(raw[rows])) >= 0)

        with Workers(self.n_jobs) as workers:
            check_finite(raw, workers)
            workers.run(fill, len(raw))
        return out

    def _generator(self) -> np.random.RandomState:
        try:
            rng: np.random.RandomState = check_random_state(self.random_state)
        except ValueError as error:
            allowed = "None, an integer of at least 0, or a numpy RandomState"
            raise InvalidParameter("random_state", self.random_state, allowed) from error
        return rng

    def _validate(self, X: npt.ArrayLike, *, reset: bool) -> npt.NDArray[Any]:
        try:
            rows: npt.NDArray[Any] = validate_data(
                self,
                X,
                reset=reset,
                dtype="numeric",
                ensure_all_finite=False,
                ensure_min_samples=2 if reset else 1,
            )
        except ValueError as error:  # a TypeError says what it must by itself
            raise InvalidInput(str(error)) from error
        return rows

    @property
    def _n_features_out(self) -> int:
        """The bits of the fitted model, whatever n_bits has been set to since."""
        return int(self.decoder_.A.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
