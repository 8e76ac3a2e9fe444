"""The contract of every hasher: fit, fit_decoder, transform, encode, inverse_transform, decode, score, save.

A method implements `_learn`: scaled rows in, an encoder out. Everything else is here: validation,
scaling, encoding in threaded blocks, a least-squares decoder for the method's own codes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from auxbit.core.checks import (
    Array,
    Bits,
    Float64,
    Indices,
    Packed,
    check_finite,
    check_integer,
    warn,
)
from auxbit.core.decoders import Decoder, ListDecoder, Plain, TableDecoder, for_mu
from auxbit.core.features import RbfEncoder
from auxbit.core.files import Format, checksum
from auxbit.core.maps import (
    MAX_BITS,
    Encoder,
    Scaling,
    bytes_per_code,
    check_n_bits,
    check_packed,
    encode,
    lifted_queries,
    pack,
    unpack,
)
from auxbit.core.parallel import SAMPLED_ROWS, Workers, is_dask_array, map_rows, resolve_n_jobs, sample_rows
from auxbit.data.vectors import as_rows
from auxbit.errors import InvalidInput, InvalidParameter, ModelFileError
from auxbit.mac.fit import ArrayTable, Beginning, Place, check_enough_rows, is_elsewhere, open_elsewhere
from auxbit.mac.loop import f_step
from auxbit.quantiser.coder import Coder, check_mu, coder_of, within_reach
from auxbit.quantiser.fit import KINDS, Turned, fit_decoder, fit_lists, rows_of_decoder
from auxbit.quantiser.lists import ROWS_PER_LIST, number_of_lists

# ---- What a model was trained on: codes and error of a sample, to compare later rows with

MOST_ROWS = SAMPLED_ROWS


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """Codes and reconstruction error of at most 4096 of the rows that a model was trained on.

    codes : (m, ceil(n_bits/8)) uint8, packed; n_rows : how many rows were trained on, of which m are here;
    error : mean over the m rows of ‖x − f(z)‖², in the units of X; variation : the standard deviation of
    that over its mean; n_vectors : how many vectors f is made of, which says how closely n_rows fit it;
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

    def parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What a file keeps: a header for JSON, and arrays."""
        header = {name: value for name, value in vars(self).items() if name != "codes"}
        return header, {"codes": self.codes}

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: dict[str, Array], n_bits: int) -> TrainingRecord:
        """The record of `parts`; a KeyError, TypeError or ValueError if they are something else."""
        record = cls(check_packed(tensors["codes"], n_bits, "training.codes"), **header)
        numbers = (record.n_rows, record.error, record.variation, record.n_vectors, record.mu)
        if not isinstance(record.coding, str) or not 1 <= len(record.codes) <= min(record.n_rows, MOST_ROWS):
            raise ValueError(f"a training record of {len(record.codes)} {record.coding} codes")
        if any(isinstance(number, bool) or not float(number) >= 0 for number in numbers):
            raise ValueError(f"a training record with numbers {numbers}")
        return record


def residuals(X: Array, codes: Packed, decoder: Decoder, scaling: Scaling) -> Float64:
    """Rows less their reconstructions. X : (n, D) as the user gave it, codes : (n, M) packed → (n, D)."""
    wanted = scaling.apply(X).astype(np.float64) * scaling.scale + scaling.mean  # float32 ends at 3e38
    difference: Float64 = wanted - decoder.decode(codes)
    return difference


def record_of(
    X: Array, codes: Packed, decoder: Decoder, scaling: Scaling, n_rows: int, coding: str = "hash",
    mu: float = 0.0,
) -> TrainingRecord:  # fmt: skip
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
    """How many vectors a least-squares fit chooses: one per bit, or one per value of each byte."""
    if isinstance(decoder, TableDecoder):
        return 1 + sum(1 << min(8, decoder.n_bits - first) for first in range(0, decoder.n_bits, 8))
    return 1 + decoder.n_bits


# ---- Rows that leave nothing to learn

ROUNDED = 12  # digits after which numbers of scaled rows differ by rounding alone
FAR, FEW_BITS = 100.0, 4  # times the median distance; with fewer bits, few codes are no surprise


def warn_of_few_codes(X: Float64, codes: Packed, n_bits: int, places: Indices) -> None:
    """Say so if different rows have hardly different codes, and why. X : (m, D) scaled, rows at `places`."""
    n_codes = len(np.unique(codes, axis=0))
    n_rows = len(np.unique(np.round(X, ROUNDED), axis=0)) if n_codes <= n_bits + 1 else len(X)
    if n_rows == 1 and len(X) > 1:
        warn("all rows of the sample are equal: there is nothing to learn from them.")
    elif n_bits >= FEW_BITS and n_codes <= n_bits + 1 and n_rows > 4 * n_codes:
        distances = np.linalg.norm(X - np.median(X, axis=0), axis=1)
        far = np.flatnonzero(distances > FAR * max(np.median(distances), 10.0**-ROUNDED))
        spread = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
        rank = int(np.count_nonzero(spread > 1e-6 * spread[0]))
        why = "They may lie in a few tight clusters: try fewer bits."
        if len(far):
            named = ", ".join(map(str, places[far[:10]]))
            why = (
                f"Rows {named}{' …' if len(far) > 10 else ''} are more than {FAR:.0f} times as far away as "
                "half of the rows, and alone determine scale and axes. Remove or clip them."
            )
        elif np.ptp(X, axis=0).max() < 1 / FAR:
            why = f"They lie within 1/{FAR:.0f} of the range of all rows. Find and remove the outliers."
        elif rank < n_bits:
            why = f"They have rank {rank}, so more bits than that do not help."
        warn(f"{n_rows:,} different rows have only {n_codes} different codes of {n_bits} bits. {why}")


# ---- The base class

CODINGS = ("hash", "optimal")
DECODER_ROWS = 200_000  # enough for a decoder, if rows are not in memory (docs/scale.md)
LEARNED_BITS = 1024  # the most that most methods are good for


@dataclass(frozen=True)
class Learned:
    """What `_learn` returns: the encoder, and further fitted attributes."""

    encoder: Encoder
    attributes: dict[str, Any] = field(default_factory=dict)


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all hashing methods.

    `training_` holds codes and error of a sample of the rows that `decoder_` was fitted to; it is None if the
    model comes from a file without them.
    """

    max_bits: ClassVar[int] = LEARNED_BITS  # that the method can make
    normalize: bool = False
    lift: bool = False
    decoder: str = "linear"
    decoder_: Decoder
    training_: TrainingRecord | None

    def __init__(
        self, n_bits: int = 32, *, normalize: bool = False, lift: bool = False, random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.normalize = normalize
        self.lift = lift
        self.random_state = random_state
        self.n_jobs = n_jobs

    @classmethod
    def check_bits(cls, n_bits: object) -> int:
        """Return `n_bits` as an int, or say how many bits this method can make."""
        more = "" if cls.max_bits == MAX_BITS else f"; LSH, ITQ and ThresholdedPCA make up to {MAX_BITS}"
        return check_n_bits(n_bits, cls.max_bits, more)

    def _learn(self, given: Beginning) -> Learned:
        raise NotImplementedError

    def fit(self, X: Any, y: object = None, *, memory: str | int | None = None, client: Any = None) -> Self:
        """Learn the hash function from the rows of X; y is ignored.

        X : (n, D), an array or a DataFrame of numbers; or a column of n vectors, as df["embedding"]: a Series
            of pandas or polars, an Arrow array, a list. All other methods accept the same. Or rows that are
            read out of core: the path of a file, an object with `shape` and row slices, or a dask array,
            as for BinaryAutoencoder.fit. Scaling, principal axes and decoder are then computed from all
            rows, everything else from a sample if memory has no room for all rows.
        memory : a limit for all arrays together, as "1GB"; if given, an array is read out of core as well.
        client : a dask.distributed.Client, for a path that its workers can read.

        All or nothing: if fit fails, the model stays as it was before.
        """
        with self._all_or_nothing():
            n_bits, rng = self.check_bits(self.n_bits), self._generator()
            with self._opened(X, n_bits, memory, client) as place:
                self._fit(place, n_bits, rng)
        return self

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before  # validate_data has noted the new number of features by then
            raise

    @contextmanager
    def _opened(
        self, X: Any, n_bits: int, memory: str | int | None, client: Any, checkpoint: object = None, *,
        reset: bool = True, n_features: int = 0,
    ) -> Iterator[Place]:  # fmt: skip
        """The rows of X, wherever they are. reset : to be fitted to; else they must be like those of fit."""
        n_jobs = resolve_n_jobs(self.n_jobs)
        if not is_elsewhere(X, memory, checkpoint, client):
            raw = self._validate(X, reset=True) if reset else self._rows(X)
            with Workers(n_jobs) as workers:
                yield Place(ArrayTable(raw, workers), workers)
            return
        with open_elsewhere(X, n_bits, n_jobs, memory=memory, client=client, n_features=n_features) as place:
            columns = place.table.shape[1]
            if reset:
                self.n_features_in_ = columns
                if hasattr(self, "feature_names_in_"):  # of a fit before
                    del self.feature_names_in_
            elif columns != self.n_features_in_:
                known = self.n_features_in_
                raise InvalidInput(f"X has {columns} features, but the model was fitted to {known}.")
            yield place

    def _fit(self, place: Place, n_bits: int, rng: np.random.RandomState) -> None:
        table = place.table
        check_enough_rows(table)
        scaling = table.measure(None, **self._preparation())
        rows = table.rows(scaling, None, 0, None, 0)  # without codes
        learned = self._learn(Beginning(table, rows, scaling, n_bits, place.workers, rng, place.budget))
        decoder, sampled = f_step(rows.hash_sums(learned.encoder)), sample_rows(rows.n_rows)
        self._adopt(scaling, learned.encoder, decoder, table.take(sampled), rows.n_rows, sampled)
        for name, value in learned.attributes.items():
            setattr(self, name, value)

    def _preparation(self) -> dict[str, bool]:
        """How rows are changed before all else, as Scaling.measure takes it."""
        if self.normalize and self.lift:
            raise InvalidParameter(
                "lift", self.lift, "False with normalize=True",
                "normalize is for neighbours by cosine, lift for neighbours by inner product.",
            )  # fmt: skip
        return {"normalize": bool(self.normalize), "lift": bool(self.lift)}

    def _adopt(
        self, scaling: Scaling, encoder: Encoder, decoder: Plain, sample: Array, n_rows: int,
        places: Indices,
    ) -> None:  # fmt: skip
        """Set what every fitted hasher has. decoder : for scaled rows; sample : rows at `places`."""
        self.scaling_, self.encoder_ = scaling, encoder
        self.decoder_ = decoder.in_units_of(scaling)
        codes = self._hash_codes(sample)
        self.training_ = record_of(sample, codes, self.decoder_, scaling, n_rows)
        warn_of_few_codes(scaling.exactly(sample), codes, decoder.n_bits, places)

    def fit_decoder(
        self, X: Any, decoder: str = "auto", *, mu: float = 0.0, lists: str | int | None = None,
        refine_bits: int = 0, n_iter: int | None = None, callback: Turned | None = None,
        memory: str | int | None = None, client: Any = None,
    ) -> Self:  # fmt: skip
        """Replace `decoder_` by one that is fitted to the codes of encode(X, coding="optimal", mu=mu).

        Codes and decoder are improved in turn, n_iter times (None: 15), on the rows of X, (n, D). The new
        decoder fits these codes instead of h(X), so `score`, which measures h(X), may fall, most for mu=0.

        decoder : "linear", one vector per bit, starting from the present decoder; "tables", one vector for
            each of the 256 values of each byte, which reconstructs far better, takes up to twice as long to
            search, and needs many rows to learn from; or "auto", the one whose codes are better in a short
            fit, by rows held out and rows trained on. `decoder_` is a LinearDecoder or a TableDecoder.
        mu : the cost of each bit that differs from h(x), on data scaled to a largest range of 1. At 0 codes
            are chosen for the decoder alone; a larger mu keeps them near h(x), for Hamming distances.
        lists : divide rows into that many lists (only with mu=0); "auto": about 1.5·√n for the n rows of X,
            none below 500,000; None: none. A code then begins with the number of its list, one to three
            extra bytes. An index searches only the lists near a query, and finds more at the same bits.
        refine_bits : with lists, the bits of a second code, of what the first leaves of a row, stored after
            it. An index finds candidates by the first code and ranks them by both.
        callback : called after each turn with its number, from 1, and the number of turns.
        memory, client : as in fit. If the rows are not in memory, the decoder is fitted to a sample: as many
            as memory has room for, at most 200,000, or 64 per list. The same rows are drawn each time.

        All or nothing: if it fails, the model stays as it was.
        """
        check_kind(decoder)
        check_is_fitted(self)
        with (
            self._all_or_nothing(),
            self._opened(X, self._n_features_out, memory, client, reset=False) as place,
        ):
            self._adopt_best_decoder(place, decoder, mu, n_iter, callback, lists, refine_bits)
        return self

    def _adopt_best_decoder(
        self, place: Place, kind: str, mu: float = 0.0, n_iter: int | None = None,
        callback: Turned | None = None, lists: str | int | None = None, refine_bits: int = 0,
    ) -> None:  # fmt: skip
        mu, n_lists = check_mu(mu), number_of_lists(lists, place.table.shape[0])
        if refine_bits and not n_lists:
            raise InvalidParameter("refine_bits", refine_bits, "0 without lists", "Add lists, as lists=100.")
        refine_bits = check_integer("refine_bits", refine_bits, 0, MAX_BITS)
        if mu and n_lists:
            raise InvalidParameter("lists", n_lists, "None unless mu=0", "Leave out lists or mu.")
        n_iter = None if n_iter is None else check_integer("n_iter", n_iter, 1)
        most = max(DECODER_ROWS, ROWS_PER_LIST * n_lists)
        if place.budget is not None:
            most = min(most, rows_of_decoder(place.budget.total, len(self.scaling_.mean)))
        raw = place.sample(most)
        if place.budget is not None:
            check_finite(raw, name="a sample of X")
        H, rng, workers = self._hash_codes(raw), self._generator(), place.workers
        present = self.decoder_.in_scale_of(self.scaling_)
        f = present.inner if isinstance(present, ListDecoder) else present
        rows = within_reach(self.scaling_.apply_all(raw, workers))
        fitted: Decoder
        if n_lists:
            can_ask = not self.scaling_.lift  # by inner product queries have another last coordinate
            how = (n_lists, n_iter, workers, rng, callback)
            fitted = fit_lists(rows, H, f, kind, *how, can_ask=can_ask, refine_bits=refine_bits)
        else:
            fitted = fit_decoder(rows, H, f, kind, mu, n_iter, workers, rng, callback)
        self.decoder_ = for_mu(fitted.in_units_of(self.scaling_), mu)
        some = raw[sample_rows(len(raw))]
        optimal = self._optimal_codes(some, mu)
        self.training_ = record_of(some, optimal, self.decoder_, self.scaling_, len(raw), "optimal", mu)

    def transform(self, X: npt.ArrayLike) -> Bits:
        """The bits of each row. X : (n, D) → (n, n_bits) uint8 of 0/1; for a dask array, a lazy one."""
        if is_dask_array(X):
            bits: Bits = self._by_blocks(X, "transform")
            return bits
        return unpack(self._hash_codes(self._rows(X)), self._n_features_out)

    def encode(
        self, X: npt.ArrayLike, *, coding: str | None = None, mu: float | None = None, queries: bool = False
    ) -> Packed:
        """The packed code of each row. X : (n, D) → (n, ceil(n_bits/8)) uint8; for a dask array, a lazy one.

        coding : "hash", h(x); or "optimal", the code that minimises ‖x − f(z)‖² + mu·‖z − h(x)‖² for
            f = `decoder_`, for search by ‖query − f(z)‖, in which the query needs no code. Up to 16 bits it
            is the exact minimum; above, the best that tabu search finds in about 30 µs per row at 64 bits.
            None: "hash", or an error if the decoder is fitted to optimal codes only (`fit_decoder`): then
            name one of the two.
        mu : the cost of each bit that differs from h(x), on data scaled to a largest range of 1, from 0 (the
            best ranking by f) to large (h(x) itself); None: that of the decoder. Unused for coding="hash".
        queries : whether the rows are queries, which have codes of their own if the model has `lift`.
        """
        check_is_fitted(self)
        coding, mu = self._wanted_codes(coding, mu, queries)
        if is_dask_array(X):
            codes: Packed = self._by_blocks(X, "encode", coding=coding, mu=mu, queries=queries)
            return codes
        rows = self._rows(X)
        if queries and self.scaling_.lift:
            check_finite(rows)
            rows = lifted_queries(rows, self.scaling_.lift)
        return self._hash_codes(rows) if coding == "hash" else self._optimal_codes(rows, mu)

    def _wanted_codes(self, coding: str | None, mu: float | None, queries: bool) -> tuple[str, float]:
        """Which codes `encode` makes; hash codes that the decoder knows nothing of must be named."""
        fitted_to = self.decoder_.mu
        if coding is None:
            if fitted_to == 0 and not queries:
                raise InvalidInput(
                    "the decoder is fitted to optimal codes, so choose which codes to make: "
                    'encode(X, coding="optimal") for search by the decoder, or encode(X, coding="hash") for '
                    "Hamming distance."
                )
            coding = "hash"
        if not isinstance(coding, str) or coding not in CODINGS:
            raise InvalidParameter("coding", coding, "'hash' or 'optimal'")
        return coding, (fitted_to or 0.0) if mu is None else check_mu(mu)

    def _by_blocks(self, X: Any, method: str, **options: Any) -> Any:
        """What a method returns for the blocks of a dask array; only what it needs of the model travels."""
        check_is_fitted(self)
        needed = Hasher()
        for name in ("n_bits", "encoder_", "scaling_", "decoder_", "n_features_in_"):
            setattr(needed, name, getattr(self, name))
        needed.n_jobs = 1  # several blocks are computed at once
        bits = self._n_features_out if method == "transform" else self.code_bits(options["coding"])
        width = bits if method == "transform" else bytes_per_code(bits)
        return map_rows(X, partial(getattr(needed, method), **options), self.n_features_in_, width)

    def _optimal_codes(self, raw: Array, mu: float) -> Packed:
        """The codes of coding="optimal", of rows that are validated."""
        coder, H = self._coder(mu), self._hash_codes(raw)
        out = np.empty((len(raw), bytes_per_code(self.decoder_.n_bits)), dtype=np.uint8)

        def fill(rows: slice) -> None:
            out[rows] = coder.solve(within_reach(self.scaling_.apply(raw[rows])), H[rows], H[rows])

        with Workers(self.n_jobs if len(raw) > coder.block_rows else 1) as workers:
            workers.run(fill, len(raw), coder.block_rows)
        return out

    def _hash_codes(self, raw: Array) -> Packed:
        """h(x), of rows that are validated."""
        return encode(raw, self.encoder_, self.scaling_, self._n_features_out, self.n_jobs)

    def _coder(self, mu: float) -> Coder:
        """Of the decoder as it is; kept with it, as to make one takes longer than the codes of a few rows."""
        kept: tuple[float, Scaling, Coder] | None = vars(self.decoder_).get("_coder")
        if kept is None or kept[0] != mu or kept[1] is not self.scaling_:
            coder = coder_of(self.decoder_.in_scale_of(self.scaling_), mu)
            kept = vars(self.decoder_)["_coder"] = (mu, self.scaling_, coder)
        return kept[2]

    def inverse_transform(self, Z: npt.ArrayLike) -> Float64:
        """The decoder's reconstruction f(z), in the units of X. Z : (n, n_bits) of 0/1 → (n, D)."""
        check_is_fitted(self)
        codes, width = pack(Z), np.shape(Z)[1]
        if isinstance(self.decoder_, ListDecoder):
            raise InvalidInput("the decoder has lists, and bits alone do not name them. Use decode(codes).")
        if width != self._n_features_out:
            raise InvalidInput(f"Z has {width} columns; expected {self._n_features_out}, one per bit.")
        return self._without_lift(self.decoder_(unpack(codes, width)))

    def decode(self, codes: npt.ArrayLike) -> Float64:
        """The decoder's reconstruction of packed codes. codes : (n, ceil(n_bits/8)) uint8 → (n, D)."""
        check_is_fitted(self)
        return self._without_lift(self.decoder_.decode(check_packed(codes, self.decoder_.n_bits)))

    def code_bits(self, coding: str) -> int:
        """Bits of the codes that `encode` makes; with lists, optimal codes include the list's number."""
        return self.decoder_.n_bits if coding == "optimal" else self.decoder_.hash_bits

    def _without_lift(self, rows: Float64) -> Float64:
        return rows[:, :-1] if self.scaling_.lift else rows

    def score(self, X: npt.ArrayLike, y: object = None) -> float:
        """Minus the mean over rows of the squared error of f(h(x)), in the units of X; not with lists."""
        raw = self._rows(X)
        if isinstance(self.decoder_, ListDecoder):
            raise InvalidInput(
                "the decoder has lists, and h(x) does not name them. Compare X with "
                'decode(encode(X, coding="optimal")).'
            )
        return -self._error_of(raw, self._hash_codes(raw))

    def _error_of(self, raw: Array, codes: Packed) -> float:
        """The mean over rows of the squared error of these codes' reconstructions, in the units of X."""

        def error(rows: slice) -> tuple[float]:
            residual = residuals(raw[rows], codes[rows], self.decoder_, self.scaling_)
            return (float(np.einsum("nd,nd->", residual, residual)),)

        with Workers(self.n_jobs) as workers:
            return float(workers.sum(error, len(raw))[0]) / len(raw)

    def fingerprint(self, coding: str = "hash") -> str:
        """A short text that identifies the function that makes codes: h, or for optimal codes h and f."""
        parts = {"mean": self.scaling_.mean, **self.encoder_.tensors()}
        if coding == "optimal":
            parts |= {f"decoder.{name}": each for name, each in self.decoder_.tensors().items()}
        about = f"{type(self.encoder_).__name__} {self.scaling_.scale!r} {self.scaling_.normalize}"
        about += f" {self.scaling_.lift!r}" if self.scaling_.lift else ""
        arrays = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in parts.values())
        return checksum([about.encode(), *arrays])[:16]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write the fitted model to a safetensors file, atomically; `auxbit.load` reads it."""
        name = type(self).__name__
        if not hasattr(self, "encoder_"):
            raise InvalidInput(f"this {name} is not fitted: call fit before save.")
        if type(self).__module__.rpartition(".")[0] != "auxbit.hashers":
            raise InvalidInput(
                f"{name} is not a class of auxbit, so load could not read its file. Use joblib instead."
            )
        tensors = {f"encoder.{key}": value for key, value in self.encoder_.tensors().items()}
        tensors |= {f"decoder.{key}": value for key, value in self.decoder_.tensors().items()}
        tensors["scaling.mean"] = self.scaling_.mean
        parameters, left_out = _json_parameters(self.get_params(deep=False))
        header = {
            "class": name,
            "encoder": type(self.encoder_).__name__,
            "parameters": parameters,
            "left_out": left_out,
            "scaling": {
                "scale": self.scaling_.scale,
                "normalize": self.scaling_.normalize,
                "lift": self.scaling_.lift,
            },
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(map(str, getattr(self, "feature_names_in_", []))),
            "attributes": self._saved_attributes(),
        }
        training: TrainingRecord | None = getattr(self, "training_", None)
        if training is not None:  # older versions of auxbit ignore it
            header["training"], arrays = training.parts()
            tensors |= {f"training.{key}": value for key, value in arrays.items()}
        header["decoder_mu"], version = self.decoder_.mu, LINEAR_VERSION
        inner = self.decoder_.inner if isinstance(self.decoder_, ListDecoder) else self.decoder_
        if isinstance(inner, TableDecoder):
            # the table of the last byte does not tell how many of its bits are used
            header["decoder_bits"], version = inner.n_bits, TABLES_VERSION
            header["decoder_errors"] = inner.about_errors()
        version = LIFTED_VERSION if self.scaling_.lift else version
        if isinstance(self.decoder_, ListDecoder):
            header["decoder_lists"], version = self.decoder_.about_lists(), LISTS_VERSION
        version = FEATURES_VERSION if isinstance(self.encoder_, RbfEncoder) else version
        MODEL_FILE.write(path, header, tensors, version=version, overwrite=overwrite)

    def _saved_attributes(self) -> dict[str, Any]:
        """Further fitted attributes that a model file keeps, for JSON."""
        return {}

    def _generator(self) -> np.random.RandomState:
        try:
            rng: np.random.RandomState = check_random_state(self.random_state)
        except ValueError as error:
            allowed = "None, an integer of at least 0, or a numpy RandomState"
            raise InvalidParameter("random_state", self.random_state, allowed) from error
        return rng

    def _rows(self, X: npt.ArrayLike) -> Array:
        """X for a fitted model, validated; validate_data takes longer than the code of a row."""
        if "encoder_" not in vars(self):
            check_is_fitted(self)
        if type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "fiu" and len(X) > 0:
            rows: Array = X
            if rows.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_"):
                return rows
        return np.asarray(self._validate(X, reset=False))

    def _validate(self, X: npt.ArrayLike, *, reset: bool) -> Array:
        try:
            if type(X) is not np.ndarray or X.dtype == object:
                X = as_rows(X)
            rows: Array = validate_data(
                self, X, reset=reset, dtype="numeric", ensure_all_finite=False,
                ensure_min_samples=2 if reset else 1,
            )  # fmt: skip
        except ValueError as error:  # a TypeError says what it must by itself
            raise InvalidInput(str(error)) from error
        return rows

    @property
    def _n_features_out(self) -> int:
        """The bits of the fitted model, whatever n_bits has been set to since."""
        return self.decoder_.hash_bits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def check_kind(decoder: object) -> None:
    """Refuse what is no kind of decoder."""
    if not isinstance(decoder, str) or decoder not in KINDS:
        raise InvalidParameter("decoder", decoder, " or ".join(map(repr, KINDS)))


# ---- Model files

LINEAR_VERSION, TABLES_VERSION, LIFTED_VERSION, LISTS_VERSION, FEATURES_VERSION = (
    1,
    2,
    3,
    4,
    5,
)  # each is what older versions cannot read
MODEL_FILE = Format(
    "auxbit model", "model", FEATURES_VERSION, "an auxbit model",
    "Models are made by `auxbit fit` or save().", ModelFileError,
)  # fmt: skip


def _json_parameters(parameters: dict[str, Any]) -> tuple[dict[str, object], dict[str, str]]:
    """The parameters that JSON can hold, and the types of those left out: loaded, they have the default.

    Left out are hashers, callbacks, generators and arrays of more than one dimension.
    """
    kept: dict[str, object] = {}
    left_out: dict[str, str] = {}
    for name, value in parameters.items():
        try:
            kept[name] = json.loads(json.dumps(value, default=_as_json))
        except (TypeError, ValueError):
            left_out[name] = type(value).__name__
    return kept, left_out


def _as_json(value: object) -> object:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")
