"""Where MAC starts: the first codes Z, from a method's name, a hasher, or an array."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from auxbit.codes import Bits, bytes_per_code, unpack
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.anchor_graph import AnchorGraphHashing
from auxbit.hashers.base import Hasher, Training
from auxbit.hashers.itq import itq_directions
from auxbit.hashers.pca import principal_axes, random_rotation
from auxbit.mac.shards import encode_rows
from auxbit.maps import LinearEncoder

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
    codes = _from_array(init, len(training.raw), training.n_bits)
    return Start(codes if training.chosen is None else codes[training.chosen])


def _by_name(name: str, training: Training) -> Start:
    if name == "random":
        return Start(training.rng.randint(0, 2, (len(training.X), training.n_bits)).astype(np.uint8))
    if name == "lsh":
        return _linear(training.rng.standard_normal((training.X.shape[1], training.n_bits)), training)
    if name == "agh":
        n_anchors = max(AGH_ANCHORS, training.n_bits + 1)
        hasher = AnchorGraphHashing(training.n_bits, n_anchors=n_anchors, n_jobs=training.workers.n_jobs)
        hasher.set_params(random_state=training.rng.randint(np.iinfo(np.int32).max))
        return Start(hasher.fit(training.X).transform(training.X))
    if name not in NAMES:
        raise InvalidParameter("init", name, f"one of {', '.join(NAMES)}, a hasher, or an array of codes")
    X, L, workers, rng = training.X, training.n_bits, training.workers, training.rng
    n_axes = min(L, *X.shape)
    if name == "itq":
        directions = itq_directions(
            X,
            n_axes,
            workers,
            rng,
            n_iter=ITQ_ITERATIONS,
            n_init=max(1, min(MOST_ROTATIONS, ROTATED_BITS // L)),
            momentum=ITQ_MOMENTUM,
            max_rows=ITQ_ROWS,
        )  # fmt: skip
    else:
        directions = principal_axes(X, n_axes, workers)
    if n_axes < L:
        directions = np.hstack([directions, _random_directions(directions, L - n_axes, rng)])
        warnings.warn(
            f"n_bits={L} is more than init={name!r} has axes for ({n_axes}): "
            f"{L - n_axes} bits start from signs of random rotations.",
            stacklevel=6,
        )
    return _linear(directions, training)


def _random_directions(axes: Any, n: int, rng: np.random.RandomState) -> Any:
    """`n` directions in the span of `axes`, from as many random rotations as it takes."""
    rotations = [axes @ random_rotation(axes.shape[1], rng) for _ in range(-(-n // axes.shape[1]))]
    return np.hstack(rotations)[:, :n]


def _linear(directions: Any, training: Training) -> Start:
    encoder = LinearEncoder(directions.astype(np.float32), np.zeros(training.n_bits, np.float32))
    return Start(encode_rows(training.X, encoder, training.workers), encoder)


def _by_hasher(hasher: Hasher, training: Training) -> Start:
    """The codes of a hasher: as it is if fitted, else fitted to these rows first (a clone of it)."""
    if hasher.n_bits != training.n_bits:
        raise InvalidInput(f"init has {hasher.n_bits} bits, but n_bits={training.n_bits}.")
    raw = training.raw if training.chosen is None else training.raw[training.chosen]
    if not hasattr(hasher, "encoder_"):
        hasher = clone(hasher)
        if hasher.random_state is None:  # so that our own seed decides
            hasher.set_params(random_state=training.rng.randint(np.iinfo(np.int32).max))
        hasher.fit(raw)
    return Start(hasher.transform(raw))


def _from_array(init: Any, n_rows: int, n_bits: int) -> Bits:
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
