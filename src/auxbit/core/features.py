"""Features behind the numbers of a scaled row, and hash functions of both: h(x) = σ(W [x, φ(x)]).

φ are Gaussian features to centres, or what a map of the user's own returns. MAC and its SVMs see longer rows
and are as linear as before; the decoder reconstructs the first D numbers alone. Features are computed where
rows are read, into the same array, and less their means, so that products in float32 keep their digits.

Here are also the Gaussian kernel, anchors and bandwidths that methods with a kernel share. Rows are scaled
float32; distances and sums are float64. Of anchors that are equally near up to rounding, the first counts as
the nearest, so that a change of units or of the block cannot change which anchors are near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import Float32, Float64, Ids, as_array, check_finite, check_integer, check_positive
from auxbit.core.maps import MARGIN, Encoder, LinearEncoder, Scaling, lengthened, without_derived
from auxbit.core.parallel import Workers, block_slices, kernel, some_rows
from auxbit.errors import InvalidInput, InvalidParameter

SAMPLE_ROWS = 10_000  # anchors and bandwidths are found on at most that many rows
KMEANS_ITERATIONS = 10  # anchors only have to cover the rows, so it need not converge
TIE = 1e-5  # squared distances that differ by less than this share are equal
PART_ROWS = 512  # rows whose distances to all anchors are held at a time
AT_ONCE = 1024  # rows whose features stay in the cache until they are multiplied
ROUNDING = 1e-12  # of the sizes of a bit's weights: smaller scores in float64 are called 0
FAR, MOST_TERMS = 8.0, 2.0**14  # exponents of larger terms than usual, or than these, are in float64
LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e-15, 1e15  # of scaled rows: their squares are no trouble for float32


# ---- Distances and the Gaussian kernel


def squared_distances(X: Float32, anchors: Float32 | Float64) -> Float64:
    """‖x − u‖² of each row and anchor. X : (n, D), anchors : (m, D) → (n, m) float64."""
    rows, centres = X.astype(np.float64), anchors.astype(np.float64)
    distances = rows @ (-2.0 * centres.T)
    distances += np.einsum("nd,nd->n", rows, rows)[:, None]
    distances += np.einsum("md,md->m", centres, centres)
    return np.maximum(distances, 0.0, out=distances)


def gaussian(distances: Float64, bandwidth: float) -> Float64:
    """exp(−d²/2σ²), from squared distances, which it overwrites."""
    distances *= -0.5 / bandwidth**2
    return np.exp(distances, out=distances)


def nearest_anchors(X: Float32, anchors: Float32, n_nearest: int) -> tuple[Float64, Ids]:
    """Squared distances, ascending, and numbers of the nearest anchors of each row, (n, n_nearest) each."""
    near = np.empty((len(X), n_nearest))
    ids = np.empty((len(X), n_nearest), dtype=np.int64)
    for part in block_slices(len(X), PART_ROWS):
        _smallest(squared_distances(X[part], anchors), near[part], ids[part])
    return near, ids


@kernel
def _smallest(distances: Float64, near: Float64, ids: Ids) -> None:
    """The smallest entries of each row of `distances`; of those that are equal, the first."""
    n_nearest = near.shape[1]
    for i in range(distances.shape[0]):
        near[i] = np.inf
        ids[i] = -1
        for j in range(distances.shape[1]):
            distance = distances[i, j]
            nearer = distance * (1.0 + TIE)  # must be nearer by more than rounding to overtake
            place = n_nearest
            while place > 0 and nearer < near[i, place - 1]:
                place -= 1
            if place < n_nearest:
                for k in range(n_nearest - 1, place, -1):
                    near[i, k] = near[i, k - 1]
                    ids[i, k] = ids[i, k - 1]
                near[i, place] = distance
                ids[i, place] = j


# ---- Anchors


def find_anchors(
    given: Any, n_anchors: object, X: Float32, scaling: Scaling, workers: Workers, rng: np.random.RandomState
) -> Float32:
    """The anchors that the user gave, scaled as X is, or else k-means centres of a sample of X, (m, D)."""
    wanted = check_integer("n_anchors", n_anchors, 2, remedy="Try n_anchors=300.")
    if given is None:
        return choose_anchors(X, wanted, workers, rng)
    n_dims = X.shape[1] - (scaling.lift > 0)
    anchors = as_array(given, "anchors")
    shaped = anchors.ndim == 2 and anchors.shape[1] == n_dims and len(anchors) > 1
    if not shaped or anchors.dtype.kind not in "fiub":
        raise InvalidInput(
            f"anchors must be None or an (m, {n_dims}) array of numbers in the units of X, of two "
            f"or more rows, got shape {anchors.shape} of {anchors.dtype}."
        )
    check_finite(anchors, workers, "anchors")
    return scaling.apply(anchors)


def choose_anchors(X: Float32, n_anchors: int, workers: Workers, rng: np.random.RandomState) -> Float32:
    """k-means centres of at most SAMPLE_ROWS rows; all distinct rows, if there are no more.

    Our own k-means, because its sums are added in block order: the same anchors for any number of threads.
    """
    X = some_rows(X, rng, SAMPLE_ROWS)
    distinct = np.unique(X, axis=0)
    if len(distinct) <= n_anchors:
        return np.ascontiguousarray(distinct)
    centres = distinct[rng.choice(len(distinct), n_anchors, replace=False)]
    for _ in range(KMEANS_ITERATIONS):
        before, centres = centres, _k_means_step(X, centres, workers)
        if np.array_equal(before, centres):
            break
    return centres


def _k_means_step(X: Float32, centres: Float32, workers: Workers) -> Float32:
    owners = np.empty(len(X), dtype=np.int64)

    def assign(rows: slice) -> None:
        owners[rows] = nearest_anchors(X[rows], centres, 1)[1][:, 0]

    workers.run(assign, len(X))
    return means_of(X, owners, centres, workers)


def means_of(X: Float32, owners: Ids, centres: Float32, workers: Workers) -> Float32:
    """The mean of the rows that each centre owns, (m, D); a centre without rows stays."""

    def members(rows: slice) -> tuple[Float64, Float64]:
        sums, counts = np.zeros(centres.shape), np.zeros(len(centres))
        _add_rows(X[rows], owners[rows], sums, counts)
        return sums, counts

    sums, counts = workers.sum(members, len(X))
    means = sums / np.maximum(counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0, means, centres).astype(np.float32)


@kernel
def _add_rows(X: Float32, owners: Ids, sums: Float64, counts: Float64) -> None:
    for i in range(X.shape[0]):
        counts[owners[i]] += 1.0
        for d in range(X.shape[1]):
            sums[owners[i], d] += X[i, d]


# ---- Bandwidths


def given_bandwidth(bandwidth: object, scaling: Scaling) -> float:
    """A bandwidth in the units of X as one of scaled rows."""
    remedy = "It is a distance in the units of X; None measures one."
    scaled = check_positive("bandwidth", bandwidth, remedy=remedy) / scaling.scale
    if not LEAST_BANDWIDTH <= scaled <= MOST_BANDWIDTH:
        low, high = LEAST_BANDWIDTH * scaling.scale, MOST_BANDWIDTH * scaling.scale
        raise InvalidParameter(
            "bandwidth", bandwidth, f"a number in {low:.3g}..{high:.3g} for these rows", remedy
        )
    return scaled


def median_distance(anchors: Float32) -> float:
    """The median distance between two anchors; 1 if there are no two that differ."""
    distances = squared_distances(anchors, anchors)[np.triu_indices(len(anchors), 1)]
    return _positive_median(distances, anchors.shape[1])


def median_distance_to(X: Float32, anchors: Float32) -> float:
    """The median distance between a row and an anchor; 1 if none is above 0."""
    return _positive_median(squared_distances(X, anchors).ravel(), X.shape[1])


def median_reach(X: Float32, anchors: Float32, n_nearest: int) -> float:
    """The median over rows of the distance to the last of the nearest anchors; 1 if that is 0."""
    return _positive_median(nearest_anchors(X, anchors, n_nearest)[0][:, -1], X.shape[1])


def _positive_median(squared: Float64, n_dims: int) -> float:
    """The root of the median of those above 0, that is, above what rounding makes of 0."""
    positive = squared[squared > 1e-15 * n_dims]  # scaled rows have squared norms of at most n_dims
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0


# ---- Gaussian features


@dataclass(frozen=True)
class RbfFeatures:
    """exp(−‖x − c‖²/2σ²), less its mean, for each of m centres. centres : (m, D) scaled, means : (m,)."""

    centres: Float32
    bandwidth: float
    means: Float32

    @classmethod
    def of(cls, centres: Float32, bandwidth: float, X: Float32) -> RbfFeatures:
        """With the means of these rows, (n, D)."""
        total = np.zeros(len(centres))
        for part in block_slices(len(X), AT_ONCE):
            total += gaussian(squared_distances(X[part], centres), bandwidth).sum(axis=0)
        return cls(centres, bandwidth, (total / len(X)).astype(np.float32))

    @property
    def width(self) -> int:
        return len(self.centres)

    @cached_property
    def _factor(self) -> Float32:
        """(D + 2, m), by which [x, ‖x‖²/2σ², 1] give −‖x − c‖²/2σ² in one product."""
        centres, unit = self.centres.astype(np.float64), self.bandwidth**2
        squares = np.einsum("md,md->m", centres, centres) / (2 * unit)
        return np.vstack([centres.T / unit, -np.ones(self.width), -squares]).astype(np.float32)

    @property
    def terms(self) -> float:
        """How large the terms of exponents usually are."""
        squares = np.einsum("md,md->m", self.centres, self.centres, dtype=np.float64)
        return 1.0 + float(np.median(squares)) / self.bandwidth**2

    @cached_property
    def _reach(self) -> float:
        """The ‖x‖²/2σ² above which float32 has too few digits for an exponent, the sum of such terms."""
        return min(FAR * self.terms, MOST_TERMS)

    def fill(self, rows: Float32) -> None:
        D = self.centres.shape[1]
        for part, near in self.near(rows[:, :D]):
            np.subtract(near, self.means, out=rows[part, D:])

    def near(self, X: Float32) -> Iterator[tuple[slice, Float32]]:
        """Some rows at a time, exp(−‖x − c‖²/2σ²), (k, m), in an array that is filled again. X : (n, D)."""
        D = X.shape[1]
        longer = np.empty((min(len(X), AT_ONCE), D + 2), dtype=np.float32)
        near = np.empty((len(longer), self.width), dtype=np.float32)
        for part in block_slices(len(X), AT_ONCE):
            some = X[part]
            left, right = longer[: len(some)], near[: len(some)]
            left[:, :D] = some
            with np.errstate(over="ignore"):
                left[:, D] = np.einsum("nd,nd->n", some, some) / np.float32(2 * self.bandwidth**2)
            left[:, D + 1] = 1.0
            far = np.flatnonzero(left[:, D] > self._reach)
            left[far] = 0.0  # so that nothing overflows
            np.dot(left, self._factor, out=right)
            np.exp(right, out=right)
            if len(far):
                right[far] = gaussian(squared_distances(some[far], self.centres), self.bandwidth)
            yield part, right

    def exactly(self, X: Float32) -> Float64:
        """Rows and their features in float64, (n, D + m)."""
        near = gaussian(squared_distances(X, self.centres), self.bandwidth)
        return np.hstack([X.astype(np.float64), near - self.means])

    def rescaled(self, theirs: Scaling, ours: Scaling) -> RbfFeatures:
        """The same features of rows that are scaled as ours, not as theirs."""
        centres = self.centres.astype(np.float64) * theirs.scale  # float32 may not hold a scale
        centres = (centres + (theirs.mean - ours.mean)) / ours.scale
        return RbfFeatures(centres.astype(np.float32), self.bandwidth * theirs.scale / ours.scale, self.means)

    def encoder(self, h: LinearEncoder) -> RbfEncoder:
        return RbfEncoder(self.centres, np.array([self.bandwidth]), self.means, h.weights, h.bias)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What files keep."""
        return {"centres": self.centres, "bandwidth": np.array([self.bandwidth]), "means": self.means}

    @classmethod
    def of_tensors(cls, tensors: dict[str, npt.NDArray[Any]], prefix: str = "features.") -> RbfFeatures:
        """What `tensors` returned, under names with a prefix."""
        centres, bandwidth, means = (tensors[prefix + name] for name in ("centres", "bandwidth", "means"))
        return cls(centres, float(bandwidth[0]), means)

    def __getstate__(self) -> dict[str, Any]:
        return without_derived(vars(self))  # centres travel, what is made of them does not


@dataclass(frozen=True)
class RbfEncoder(Encoder):
    """A linear hash function of rows and of their Gaussian features. weights : (D + m, L) float32.

    centres, bandwidth, means : as of RbfFeatures. Products are in float32; a score that is too near to 0 for
    that is computed again in float64, so that the code of a row does not depend on the rows beside it.
    """

    LAYOUT = (
        "centres float32 m D; bandwidth float64 1 >0; means float32 m; weights float32 D+m L; bias float32 L"
    )

    centres: Float32
    bandwidth: Float64
    means: Float32
    weights: Float32
    bias: Float32

    @property
    def features(self) -> RbfFeatures:
        """Those that it is a function of, beside the row."""
        return self._features

    @cached_property
    def _features(self) -> RbfFeatures:
        return RbfFeatures(self.centres, float(self.bandwidth[0]), self.means)

    @cached_property
    def _margin(self) -> Float32:
        """Scores this near to 0 may owe their sign to rounding, (L,).

        Features are wrong by as many roundings as the terms of their exponents are large, each by its own:
        errors of a sum grow with the root of the sum of squares.
        """
        sizes = np.linalg.norm(self.weights.astype(np.float64), axis=0) + np.abs(self._without_means)
        return np.asarray(MARGIN * self.features.terms * sizes, dtype=np.float32)

    @cached_property
    def _without_means(self) -> Float32:
        """The bias of features that are not less their means."""
        D = self.centres.shape[1]
        return np.asarray(self.bias - self.means @ self.weights[D:].astype(np.float64), dtype=np.float32)

    def scores(self, X: Float32) -> Float32:
        """X : (n, D) scaled → (n, L)."""
        D = X.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):  # of rows far away, which are in doubt
            scores = X @ self.weights[:D]
            scores += self._without_means
            for part, near in self.features.near(X):
                some = scores[part]
                some += near @ self.weights[D:]
                sure = (np.abs(some) >= self._margin) & np.isfinite(some)
                doubtful = np.flatnonzero(~sure.all(axis=1))
                if len(doubtful):
                    some[doubtful] = self._exact_scores(X[part][doubtful])
        return scores

    def _exact_scores(self, X: Float32) -> Float64:
        weights = self.weights.astype(np.float64)
        scores = self.features.exactly(X) @ weights + self.bias
        if np.isnan(scores).any():
            raise InvalidInput(
                "X has rows so far away from those of fit that float32 cannot hold them in their scale. "
                "Rescale them."
            )
        scores[np.abs(scores) <= self.rounding] = 0.0  # so that equal rows have equal bits in any block
        return scores

    @property
    def rounding(self) -> Float64:
        """What is not told from 0 in float64, (L,)."""
        return np.asarray(ROUNDING * (np.abs(self.weights).sum(axis=0, dtype=np.float64) + np.abs(self.bias)))

    def __getstate__(self) -> dict[str, Any]:
        return self.tensors()


# ---- A map of the user's own


@dataclass(frozen=True)
class OwnFeatures:
    """What an object of the user's returns for rows in the units of X, (n, D), less its means, times gain.

    gain : one number, by which features vary as much as the scaled rows do, so that one C suits both.
    """

    map: Any
    scaling: Scaling
    means: Float32
    gain: float

    @classmethod
    def of(cls, given: Any, X: Float32, scaling: Scaling) -> OwnFeatures:
        """Fit an object, if it can be, to some scaled rows, (n, D), and see what it returns for them."""
        if not callable(given) and not hasattr(given, "transform"):
            raise InvalidInput(
                f"encoder must be 'linear', 'rbf', or an object that can be called with rows, (n, D), and "
                f"returns features, (n, m), got {given!r}."
            )
        rows = _in_units(X, scaling)
        if hasattr(given, "fit"):
            given.fit(rows)
        raw = cls(given, scaling, np.zeros(1, np.float32), 1.0)
        features = raw._of_rows(X)
        means = features.mean(axis=0)
        spread, wanted = np.square(features - means).sum(axis=1).mean(), np.square(X).sum(axis=1).mean()
        gain = float(np.sqrt(wanted / spread)) if spread > 0 and wanted > 0 else 1.0
        return cls(given, scaling, means.astype(np.float32), gain)

    @property
    def width(self) -> int:
        return len(self.means)

    def fill(self, rows: Float32) -> None:
        D = rows.shape[1] - self.width
        features = self._of_rows(rows[:, :D])
        if features.shape[1] != self.width:
            raise InvalidInput(f"encoder returned {features.shape[1]} features, but {self.width} before.")
        rows[:, D:] = (features - self.means) * self.gain

    def _of_rows(self, X: Float32) -> Float64:
        call: Callable[[Any], Any] = self.map if callable(self.map) else self.map.transform
        features = as_array(call(_in_units(X, self.scaling)), "features")
        numbers = features.dtype.kind in "fiub" and features.ndim == 2
        if not numbers or len(features) != len(X) or not features.shape[1]:
            raise InvalidInput(
                f"encoder must return features, ({len(X)}, m), for {len(X)} rows, got shape {features.shape} "
                f"of {features.dtype}."
            )
        if not np.isfinite(features).all():
            raise InvalidInput("encoder returned numbers that are not finite.")
        return features.astype(np.float64)

    def rescaled(self, theirs: Scaling, ours: Scaling) -> OwnFeatures:
        """The same features of rows that are scaled as ours."""
        return replace(self, scaling=ours)

    def encoder(self, h: LinearEncoder) -> OwnEncoder:
        return OwnEncoder(self, h.weights, h.bias)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Refuse: a file has no objects."""
        raise InvalidInput(
            f"encoder is a {type(self.map).__name__} of your own, which auxbit's files cannot hold. Use "
            "encoder='rbf', or keep the whole model with joblib."
        )


def _in_units(X: Float32, scaling: Scaling) -> Float32:
    """Scaled rows in the units of X again; divided by norms or lifted, if the scaling does so."""
    return (X.astype(np.float64) * scaling.scale + scaling.mean).astype(np.float32)


@dataclass(frozen=True)
class OwnEncoder(Encoder):
    """A linear hash function of rows and of the features of a map. weights : (D + m, L) float32."""

    LAYOUT: ClassVar[str] = ""

    features: OwnFeatures
    weights: Float32
    bias: Float32

    def scores(self, X: Float32) -> Float64:
        """X : (n, D) scaled → (n, L)."""
        rows = lengthened(X, self.features).astype(np.float64)
        scores: Float64 = rows @ self.weights.astype(np.float64) + self.bias
        return scores

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        return self.features.tensors()
