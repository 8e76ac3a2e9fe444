"""Where MAC starts: the first codes Z, from a method's name, a hasher, or an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from auxbit.core.checks import warn
from auxbit.core.codes import bytes_per_code, unpack
from auxbit.core.maps import LinearEncoder, Scaling
from auxbit.core.parallel import Workers, draw_rows
from auxbit.core.types import Bits, Float32, Float64
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.anchor_graph import AnchorGraphHashing
from auxbit.hashers.base import Hasher, Training
from auxbit.hashers.linear import principal_axes, random_rotation, rotated_axes
from auxbit.mac.steps import encode_rows

NAMES = ("itq", "agh", "tpca", "lsh", "random")

# ITQ as a start is run from a few rotations to its end, which momentum brings nearer and makes a better
# one: where MAC ends depends on the start as much as on the schedule (docs/performance.md)
ITQ_ITERATIONS, ITQ_ROWS, ITQ_MOMENTUM = 50, 200_000, 1.0
MOST_ROTATIONS, ROTATED_BITS = 8, 256  # the more bits, the less rotations differ and the more they cost
AGH_ANCHORS = 300


@dataclass(frozen=True)
class Start:
    """The first codes, (n, L) uint8 of 0/1, and the linear encoder that made them, if one did."""

    codes: Bits
    encoder: LinearEncoder | None = None


def first_codes(init: Any, training: Training) -> Start:
    """The codes that MAC starts from, for the rows of `training`."""
    if isinstance(init, str):
        return _by_name(init, training)
    if isinstance(init, Hasher):
        return _by_hasher(init, training)
    codes = check_codes(init, len(training.raw), training.n_bits)
    return Start(codes if training.chosen is None else codes[training.chosen])


def _by_name(name: str, training: Training) -> Start:
    if name == "random":
        return Start(training.rng.randint(0, 2, (len(training.X), training.n_bits)).astype(np.uint8))
    if name == "lsh":
        return _linear(training.rng.standard_normal((training.X.shape[1], training.n_bits)), training)
    if name == "agh":
        hasher = _anchor_graph(training.n_bits, training.rng, training.workers.n_jobs)
        return Start(hasher.fit(training.X).transform(training.X))
    if name not in NAMES:
        raise InvalidParameter("init", name, f"one of {', '.join(NAMES)}, a hasher, or an array of codes")
    X, workers = training.X, training.workers

    def axes(n: int) -> Float64:
        return principal_axes(X, n, workers)

    def sample(most: int) -> Float32:
        return sampled_rows(len(X), most, training.rng, lambda rows: X if rows is None else X[rows])

    directions = directions_by_name(name, training.n_bits, X.shape, axes, sample, workers, training.rng)
    return _linear(directions, training)


def sampled_rows(n: int, most: int, rng: np.random.RandomState, rows: Callable[[Any], Float32]) -> Float32:
    """At most so many of n rows, drawn at random; rows : takes their numbers, or None for all."""
    return rows(None if n <= most else draw_rows(n, most, rng))


def directions_by_name(
    name: str,
    n_bits: int,
    shape: tuple[int, ...],
    axes: Callable[[int], Float64],
    sample: Callable[[int], Float32],
    workers: Workers,
    rng: np.random.RandomState,
) -> Float64:
    """The projections that "itq" and "tpca" start with, (D, n_bits), whose signs are the bits.

    shape : of all rows; axes : the principal axes of them, so many; sample : at most so many of the rows.
    """
    n_axes = min(n_bits, *shape)
    directions = axes(n_axes)
    if name == "itq":
        n_init = max(1, min(MOST_ROTATIONS, ROTATED_BITS // n_bits))
        directions = rotated_axes(
            sample(ITQ_ROWS), directions, workers, rng,
            n_iter=ITQ_ITERATIONS, n_init=n_init, momentum=ITQ_MOMENTUM,
        )  # fmt: skip
    if n_axes < n_bits:
        directions = np.hstack([directions, _random_directions(directions, n_bits - n_axes, rng)])
        warn(
            f"n_bits={n_bits} is more than init={name!r} has axes for ({n_axes}): "
            f"{n_bits - n_axes} bits start from signs of random rotations.",
        )
    return directions


def _random_directions(axes: Any, n: int, rng: np.random.RandomState) -> Any:
    """`n` directions in the span of `axes`, from as many random rotations as it takes."""
    rotations = [axes @ random_rotation(axes.shape[1], rng) for _ in range(-(-n // axes.shape[1]))]
    return np.hstack(rotations)[:, :n]


def _linear(directions: Any, training: Training) -> Start:
    encoder = LinearEncoder(directions.astype(np.float32), np.zeros(training.n_bits, np.float32))
    return Start(encode_rows(training.X, encoder, training.workers), encoder)


def _anchor_graph(n_bits: int, rng: np.random.RandomState, n_jobs: int | None) -> AnchorGraphHashing:
    seed = rng.randint(np.iinfo(np.int32).max)
    return AnchorGraphHashing(
        n_bits, n_anchors=max(AGH_ANCHORS, n_bits + 1), random_state=seed, n_jobs=n_jobs
    )


def _by_hasher(hasher: Hasher, training: Training) -> Start:
    """The codes of a hasher: as it is if fitted, else fitted to these rows first (a clone of it)."""
    raw = training.raw if training.chosen is None else training.raw[training.chosen]
    return Start(fitted_start(hasher, training.n_bits, training.rng, lambda: raw).transform(raw))


def fitted_start(
    init: str | Hasher, n_bits: int, rng: np.random.RandomState, rows: Callable[[], Any],
    scaling: Scaling | None = None,
) -> Hasher:  # fmt: skip
    """The hasher to start from: as it is if fitted, else a clone fitted to `rows`; "agh", to scaled ones."""
    if isinstance(init, str):
        scaled = rows() if scaling is None else scaling.apply(rows())
        return _anchor_graph(n_bits, rng, None).fit(scaled)
    if init.n_bits != n_bits:
        raise InvalidInput(f"init has {init.n_bits} bits, but n_bits={n_bits}.")
    if hasattr(init, "encoder_"):
        return init
    hasher: Hasher = clone(init)
    if hasher.random_state is None:  # so that our own seed decides
        hasher.set_params(random_state=rng.randint(np.iinfo(np.int32).max))
    return hasher.fit(rows())


def check_codes(init: Any, n_rows: int, n_bits: int) -> Bits:
    """Codes that the user gave, packed or not, as (n, n_bits) of 0/1."""
    codes = np.asarray(init)
    wanted = f"an (n, {n_bits}) array of 0 and 1 or packed codes (n, {bytes_per_code(n_bits)}) of uint8"
    if codes.ndim != 2 or codes.dtype.kind not in "uib" or len(codes) != n_rows:
        raise InvalidInput(
            f"init must be {wanted} with n={n_rows}, got shape {codes.shape} of {codes.dtype}."
        )
    if codes.shape[1] == n_bits and ((codes == 0) | (codes == 1)).all():
        return np.array(codes, dtype=np.uint8, order="C")
    if codes.shape[1] == bytes_per_code(n_bits) and codes.dtype == np.uint8:
        return unpack(codes, n_bits)
    raise InvalidInput(
        f"init must be {wanted}, got shape {codes.shape} with values {codes.min()} to {codes.max()}."
    )
