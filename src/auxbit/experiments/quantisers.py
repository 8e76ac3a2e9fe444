"""What a comparison searches, behind one contract: our codes in each of their ways, sign bits, FAISS.

    model = make_quantiser("rq", bits=64, seed=0).fit(X)      # or "ba", "ba-optimal", "sign", …
    model.add(X)
    ids = model.search(queries, k=10)
    model.payload_bytes, model.resident_bytes, model.times["fit"].cpu

`payload_bytes` are those of the code; a norm or a factor that a method keeps beside it for each row counts in
`resident_bytes` only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from auxbit.core.checks import Array, Float32, Ids, Packed
from auxbit.core.decoders import TableDecoder
from auxbit.core.maps import MAX_BITS, bytes_per_code, check_n_bits, check_packed, pack
from auxbit.core.parallel import block_slices, resolve_n_jobs
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.base import Hasher
from auxbit.hashers.linear import ITQ
from auxbit.hashers.registry import make_hasher
from auxbit.index.hamming import HammingIndex

# with fewer rows FAISS's threads mostly wait: OPQ of the digits took 19 s on two of them, 1.6 s on one
MANY_ROWS = 50_000
MAX_CENTROID_BITS, USUAL_CENTROID_BITS, LEAST_PADDED_BITS = 12, 8, 4
MOST_BITS_PER_AXIS = 9  # of RaBitQ
NORM_BYTES = 5  # a float32 and a level, which search by the decoder keeps for each code
FEW_DIMS = 256  # OPQ finds a rotation to no more: it did not finish on 1,536


class Times(NamedTuple):
    """Seconds of the clock, and of all processors together."""

    wall: float
    cpu: float


class Quantiser:
    """The contract: `fit`, `encode`, `add`, `search`, `error`, bytes per row, and the times of each call."""

    searched_by = "asymmetric"  # with the query left real
    payload_bytes: int  # of a code
    resident_bytes: int  # of what search keeps in memory for each row
    model_bytes: int = 0  # of codebooks and rotations, whatever the number of rows

    def __init__(self, bits: int, *, seed: int = 0, n_jobs: int | None = None) -> None:
        self.bits, self.seed, self.n_jobs = bits, seed, n_jobs
        self.times: dict[str, Times] = {}

    def fit(self, X: Array) -> Self:
        """Train on the rows of X, (n, D)."""
        with self._timed("fit"):
            self._train(X)
        return self

    def encode(self, X: Array) -> Packed:
        """The codes of the rows, (n, resident bytes of a code) uint8."""
        with self._timed("encode"):
            return self._codes(X)

    def add(self, X: Array) -> Packed:
        """Make these the rows that are searched, in place of others; returns their codes."""
        codes = self.encode(X)
        self._fill(codes)
        return codes

    def search(self, queries: Array, k: int) -> Ids:
        """Row numbers, (q, k), of the rows that seem nearest to each query."""
        with self._timed("search"):
            return self._nearest(queries, k)

    def error(self, X: Array, codes: Packed) -> float | None:
        """The mean over rows of ‖x − its reconstruction‖², None if there is none."""
        raise NotImplementedError

    def _train(self, X: Array) -> None:
        raise NotImplementedError

    def _codes(self, X: Array) -> Packed:
        raise NotImplementedError

    def _fill(self, codes: Packed) -> None:
        raise NotImplementedError

    def _nearest(self, queries: Array, k: int) -> Ids:
        raise NotImplementedError

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.times[what] = Times(time.perf_counter() - wall, time.process_time() - cpu)


# ---- codes of a hasher


class Hashed(Quantiser):
    """The codes h(x) of a hasher by Hamming distance; or the bits of any transformer to 0 and 1.

    model : with `fit` and `encode`, to packed codes, or `transform`, to 0 and 1. fitted : use it as it is.
    """

    searched_by = "Hamming"

    def __init__(
        self, model: Any, bits: int, *, seed: int = 0, n_jobs: int | None = None, fitted: bool = False
    ) -> None:
        super().__init__(bits, seed=seed, n_jobs=n_jobs)
        self.model = model
        self.payload_bytes = self.resident_bytes = bytes_per_code(bits)
        if fitted:
            self.times["fit"] = Times(0.0, 0.0)
            self._measure_model()

    def _train(self, X: Array) -> None:
        self.model.fit(X)
        self._measure_model()

    def _measure_model(self) -> None:
        parts = [getattr(self.model, name, None) for name in ("encoder_", "decoder_")]
        self.model_bytes = sum(each.nbytes for part in parts if part for each in part.tensors().values())

    def _codes(self, X: Array) -> Packed:
        if isinstance(self.model, Hasher):
            return self.model.encode(X, coding="hash")
        if hasattr(self.model, "encode"):
            return check_packed(self.model.encode(X), self.bits)
        bits = np.asarray(self.model.transform(X))
        if bits.ndim != 2 or bits.shape[1] != self.bits:
            raise InvalidInput(
                f"{type(self.model).__name__} returns an array of shape {bits.shape}, but {self.bits} bits "
                "are compared. Give it a parameter n_bits, or compare at the number of bits that it returns."
            )
        return pack(bits)

    def _fill(self, codes: Packed) -> None:
        self._index = HammingIndex(self.bits, n_jobs=self.n_jobs)
        self._index.add(codes)

    def _nearest(self, queries: Array, k: int) -> Ids:
        ours = isinstance(self.model, Hasher)
        codes = self.model.encode(queries, queries=True) if ours else self._codes(queries)
        return self._index.search(codes, k)[1]

    def error(self, X: Array, codes: Packed) -> float | None:
        """The squared error of the decoder's reconstructions per row, None for what has no decoder."""
        return self.model._error_of(X, codes) if isinstance(self.model, Hasher) else None


class ByDecoder(Hashed):
    """The codes of a hasher by ‖query − f(z)‖: h(x), or those that are best for the decoder.

    coding : "hash" or "optimal", for which a decoder of the kind is fitted, unless the model comes fitted.
    """

    searched_by = "asymmetric"

    def __init__(
        self, model: Hasher, bits: int, *, coding: str, mu: float = 0.0, kind: str = "auto", **more: Any
    ) -> None:
        super().__init__(model, bits, **more)
        self.coding, self.mu, self.kind = coding, mu, kind
        self.resident_bytes += NORM_BYTES

    def _train(self, X: Array) -> None:
        if not hasattr(self.model, "encoder_"):
            self.model.fit(X)
        if self.coding == "optimal":
            self.model.fit_decoder(X, self.kind, mu=self.mu)
        self._measure_model()

    @property
    def decoder(self) -> str:
        """The kind of the decoder."""
        return "tables" if isinstance(self.model.decoder_, TableDecoder) else "linear"

    def _codes(self, X: Array) -> Packed:
        codes: Packed = self.model.encode(X, coding=self.coding, mu=self.mu)
        return codes

    def _fill(self, codes: Packed) -> None:
        self._index = HammingIndex(self.bits, decoder=self.model.decoder_, n_jobs=self.n_jobs)
        self._index.add(codes)

    def _nearest(self, queries: Array, k: int) -> Ids:
        return self._index.search_asymmetric(queries, k)[1]


class SignBits(Quantiser):
    """One bit per dimension, whether it is above its mean, as vector databases do; Hamming distance."""

    searched_by = "Hamming"

    def _train(self, X: Array) -> None:
        D = check_n_bits(X.shape[1], MAX_BITS)
        self.mean = np.asarray(X, dtype=np.float64).mean(axis=0)
        self.payload_bytes = self.resident_bytes = bytes_per_code(D)
        self.model_bytes = self.mean.nbytes
        self._index = HammingIndex(D, n_jobs=self.n_jobs)

    def _codes(self, X: Array) -> Packed:
        return pack((np.asarray(X) >= self.mean).astype(np.uint8))

    def _fill(self, codes: Packed) -> None:
        self._index = HammingIndex(self._index.n_bits, n_jobs=self.n_jobs)
        self._index.add(codes)

    def _nearest(self, queries: Array, k: int) -> Ids:
        return self._index.search(self._codes(queries), k)[1]

    def error(self, X: Array, codes: Packed) -> None:
        """Signs have no reconstruction."""
        return None


class Made(NamedTuple):
    """An index of FAISS that is not trained, what it points to, and the bytes of a code of its rows."""

    index: Any
    flat: Any
    payload_bytes: int
    parts: tuple[Any, ...] = ()  # FAISS keeps bare pointers to them


class FaissQuantiser(Quantiser):
    """An index of FAISS. make : (bits, X, seed, n_jobs) → Made."""

    def __init__(
        self, make: Callable[[int, Array, int, int | None], Made], bits: int, *, seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bits, seed=seed, n_jobs=n_jobs)
        self._make = make

    def _train(self, X: Array) -> None:
        faiss = _faiss()
        with faiss_threads(self.n_jobs if len(X) >= MANY_ROWS else 1):
            made = self._make(self.bits, X, self.seed, self.n_jobs)
            made.index.train(_floats(X))
        self._made = made
        self.payload_bytes, self.resident_bytes = made.payload_bytes, int(made.index.sa_code_size())
        self.model_bytes = len(faiss.serialize_index(made.index))

    def _codes(self, X: Array) -> Packed:
        with faiss_threads(self.n_jobs):
            return np.asarray(self._made.index.sa_encode(_floats(X)))

    def _fill(self, codes: Packed) -> None:
        self._made.index.reset()
        self._made.flat.add_sa_codes(np.ascontiguousarray(codes))
        self._made.index.ntotal = self._made.flat.ntotal

    def _nearest(self, queries: Array, k: int) -> Ids:
        with faiss_threads(self.n_jobs):
            return np.asarray(self._made.index.search(_floats(queries), k)[1], dtype=np.int64)

    def error(self, X: Array, codes: Packed) -> float | None:
        """The mean over rows of the squared distance from a row to the reconstruction of its code.

        None for RaBitQ, which estimates distances: FAISS reconstructs rows from their first bits alone.
        """
        if hasattr(self._made.flat, "rabitq"):
            return None
        total = 0.0
        for rows in block_slices(len(X)):
            decoded = self._made.index.sa_decode(np.ascontiguousarray(codes[rows]))
            residual = X[rows].astype(np.float64) - decoded
            total += float(np.einsum("nd,nd->", residual, residual))
        return total / len(X)


@contextmanager
def faiss_threads(n_jobs: int | None) -> Iterator[None]:
    """Let FAISS use that many threads for the length of the block."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(resolve_n_jobs(n_jobs))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss() -> Any:
    """On use, as it takes a while; its stubs lack the constructors that are used here."""
    import faiss

    return faiss


def _floats(X: Array) -> Float32:
    return np.ascontiguousarray(X, dtype=np.float32)


# ---- how many parts, of how many bits


def choose_shape(bits: int, n_dims: int, n_train: int, *, divides: bool = True) -> tuple[int, int]:
    """M parts and b bits of each: M * b = bits, b nearest to 8; M divides the dimensions if it must."""
    most = min(MAX_CENTROID_BITS, int(np.log2(max(n_train, 1))))
    found = [b for b in range(1, most + 1) if bits % b == 0 and (not divides or n_dims % (bits // b) == 0)]
    if not found:
        where = f", M dividing {n_dims} dimensions and b at most {most}" if divides else f", b at most {most}"
        raise InvalidParameter("bits", bits, f"M × b for product quantisation{where}")
    best = min(found, key=lambda b: (abs(b - USUAL_CENTROID_BITS), b))
    return bits // best, best


# ---- PQ and OPQ


def _product(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    faiss = _faiss()
    D = X.shape[1]
    try:
        M, b = choose_shape(bits, D, len(X))
    except InvalidParameter:  # columns of zeros help: the D + 1 dimensions of lifted rows divide badly
        M, b = choose_shape(bits, D, len(X), divides=False)
        if b < LEAST_PADDED_BITS:
            raise
    flat = faiss.IndexPQ(-(-D // M) * M, M, b)
    _prepare(flat.pq, seed)
    if flat.d == D:
        return Made(flat, flat, bytes_per_code(bits))
    padding = faiss.RemapDimensionsTransform(D, flat.d, False)
    return Made(faiss.IndexPreTransform(padding, flat), flat, bytes_per_code(bits), (padding,))


def _rotated_product(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    faiss = _faiss()
    D = X.shape[1]
    if D <= FEW_DIMS:
        n_dims, shape = D, choose_shape(bits, D, len(X))
    else:  # the widest that is a multiple of the parts
        shape = choose_shape(bits, D, len(X), divides=False)
        n_dims = min(D // shape[0], max(1, FEW_DIMS // shape[0])) * shape[0]
        if not n_dims:
            raise InvalidInput(f"OPQ cannot have {shape[0]} parts of {D} dimensions.")
    rotation, inner = faiss.OPQMatrix(D, shape[0], n_dims), faiss.ProductQuantizer(n_dims, *shape)
    flat = faiss.IndexPQ(n_dims, *shape)
    for each in (flat.pq, inner):
        _prepare(each, seed)
    rotation.pq = inner
    return Made(faiss.IndexPreTransform(rotation, flat), flat, bytes_per_code(bits), (rotation, inner))


def _prepare(quantizer: Any, seed: int) -> None:
    quantizer.cp.seed = 1234 + seed  # FAISS's own default, moved by ours
    quantizer.cp.min_points_per_centroid = 1  # it would print a warning for each part


# ---- sums of codewords: RQ, LSQ, PLSQ. The norm of each sum is kept beside its code, so that tables of the
# query's products suffice; without it FAISS would decode every row for every query


def _residual(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    faiss = _faiss()
    shape = choose_shape(bits, X.shape[1], len(X), divides=False)
    flat = faiss.IndexResidualQuantizer(X.shape[1], *shape, faiss.METRIC_L2, _norms())
    _prepare(flat.rq, seed)
    return Made(flat, flat, bytes_per_code(bits))


def _local_search(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    faiss = _faiss()
    shape = choose_shape(bits, X.shape[1], len(X), divides=False)
    flat = faiss.IndexLocalSearchQuantizer(X.shape[1], *shape, faiss.METRIC_L2, _norms())
    flat.lsq.random_seed += seed
    return Made(flat, flat, bytes_per_code(bits))


def _product_local_search(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    faiss = _faiss()
    D = X.shape[1]
    M, b = choose_shape(bits, D, len(X), divides=False)
    splits = [s for s in range(2, M + 1) if M % s == 0 and D % s == 0]
    if not splits:
        raise InvalidParameter("bits", bits, f"a product of codes whose number divides {D} dimensions")
    n_splits = min(splits, key=lambda s: (abs(M // s - 4), s))  # FAISS's examples have 4 codes each
    flat = faiss.IndexProductLocalSearchQuantizer(D, n_splits, M // n_splits, b, faiss.METRIC_L2, _norms())
    for part in range(n_splits):
        faiss.downcast_AdditiveQuantizer(flat.plsq.subquantizer(part)).random_seed += seed
    return Made(flat, flat, bytes_per_code(bits))


def _norms() -> Any:
    import faiss

    return faiss.AdditiveQuantizer.ST_norm_float


# ---- RaBitQ: one bit or more of each of some axes, and factors beside them


def _rabitq(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    """All dimensions, rotated at random."""
    faiss = _faiss()
    D = X.shape[1]
    if bits < D:
        remedy = f"Try bits={D}, or pca-rabitq."
        raise InvalidParameter("bits", bits, f"at least {D} for RaBitQ of {D} dimensions", remedy)
    rotation = faiss.RandomRotationMatrix(D, D)
    rotation.init(5 + seed)
    return _after(rotation, D, min(MOST_BITS_PER_AXIS, bits // D))


def _pca_rabitq(bits: int, X: Array, seed: int, n_jobs: int | None, bits_per_axis: int = 1) -> Made:
    """Principal axes, rotated at random."""
    faiss = _faiss()
    n_axes = bits // bits_per_axis
    if bits % bits_per_axis or not 1 <= n_axes <= min(X.shape):
        allowed = f"{bits_per_axis} × at most {min(X.shape)} axes for PCA of these rows"
        raise InvalidParameter("bits", bits, allowed)
    return _after(faiss.PCAMatrix(X.shape[1], n_axes, 0.0, True), n_axes, bits_per_axis)


def _pca_rabitq2(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    return _pca_rabitq(bits, X, seed, n_jobs, 2)


def _itq_rabitq(bits: int, X: Array, seed: int, n_jobs: int | None) -> Made:
    """The projections of ITQ, whose signs lose least."""
    faiss = _faiss()
    model = ITQ(bits, random_state=seed, n_jobs=n_jobs).fit(X)
    W = model.encoder_.tensors()["weights"].astype(np.float64)  # orthonormal columns
    turn = faiss.LinearTransform(X.shape[1], bits, True)
    faiss.copy_array_to_vector(_floats(W.T).ravel(), turn.A)
    faiss.copy_array_to_vector(_floats(-(model.scaling_.mean @ W)), turn.b)
    turn.is_trained = True
    turn.set_is_orthonormal()
    return _after(turn, bits, 1)


def _after(transform: Any, n_axes: int, bits_per_axis: int) -> Made:
    faiss = _faiss()
    if not hasattr(faiss, "IndexRaBitQ") or not hasattr(faiss.RaBitQuantizer, "nb_bits"):
        raise InvalidInput("RaBitQ needs a newer FAISS: pip install 'faiss-cpu>=1.13'.")
    flat = faiss.IndexRaBitQ(n_axes, faiss.METRIC_L2, bits_per_axis)
    flat.qb = 0  # queries as they are, as those of the others
    index = faiss.IndexPreTransform(transform, flat)
    return Made(index, flat, bytes_per_code(n_axes * bits_per_axis), (transform,))


# ---- by name, as hashers/registry.py has them

MAKERS: dict[str, Callable[[int, Array, int, int | None], Made]] = {
    "pq": _product, "opq": _rotated_product, "rq": _residual, "lsq": _local_search,
    "plsq": _product_local_search, "rabitq": _rabitq, "pca-rabitq": _pca_rabitq,
    "pca-rabitq2": _pca_rabitq2, "itq-rabitq": _itq_rabitq,
}  # fmt: skip
# the ways of BA by its decoder
WAYS: dict[str, dict[str, Any]] = {
    "ba-asymmetric": {"coding": "hash"},
    "ba-linear": {"coding": "optimal", "kind": "linear"},
    "ba-optimal": {"coding": "optimal"},
}
NAMES = (*WAYS, "sign", *MAKERS)


def make_quantiser(
    name: str, bits: int, *, seed: int = 0, n_jobs: int | None = None, start: Hasher | None = None
) -> Quantiser:
    """A method that is not fitted yet, by its name in NAMES or that of a hasher.

    Sign bits are as many as dimensions. start : a fitted BA, for its ways; it stays as it is.
    """
    if name in WAYS:
        fitted = make_hasher("ba", bits, random_state=seed, n_jobs=n_jobs) if start is None else copy(start)
        return ByDecoder(fitted, bits, **WAYS[name], seed=seed, n_jobs=n_jobs)
    if name == "sign":
        return SignBits(bits, seed=seed, n_jobs=n_jobs)
    if name in MAKERS:
        return FaissQuantiser(MAKERS[name], bits, seed=seed, n_jobs=n_jobs)
    return Hashed(make_hasher(name, bits, random_state=seed, n_jobs=n_jobs), bits, seed=seed, n_jobs=n_jobs)
