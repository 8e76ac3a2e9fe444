"""Passes over rows on a cluster. Rows and codes stay with the workers; W, f and sums are what travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import block_slices
from auxbit.codes import Packed
from auxbit.mac import shard
from auxbit.mac.dask_shards import Future, Shards, threads_of_worker
from auxbit.mac.h_step import Indices
from auxbit.mac.scaled_rows import ScaledRows, places_of
from auxbit.mac.shard import Judges, Sums, ZTask, neighbours_among
from auxbit.maps import Float32, Float64, Scaling
from auxbit.neighbours import nearest_scaled
from auxbit.popcount import query_words

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Near = tuple[Ids, Ids] | None  # rows of a shard, rising, and the queries whose neighbours they are
State = tuple[Packed, Sums | None]  # the codes of a shard, and the sums of the pass that made them


@dataclass(frozen=True)
class Setting:
    """What all passes of a fit have in common. held_out : rising numbers of rows that are left out."""

    scaling: Scaling
    held_out: Ids
    n_bits: int

    def rows(self, raw: Array, first: int) -> ScaledRows:
        """A shard as MAC sees it. raw : rows of the table from `first` on."""
        low, high = np.searchsorted(self.held_out, (first, first + len(raw)))
        return ScaledRows(np.asarray(raw), self.scaling, self.held_out[low:high] - first)

    def kept_before(self, first: int) -> int:
        """How many rows are before this one, without those that are left out."""
        return first - int(np.searchsorted(self.held_out, first))

    def judges(self, codes: Packed, near: tuple[Ids, Ids]) -> Judges:
        """Queries of these codes, (q, M), and the neighbours they have in a shard."""
        return Judges(query_words(codes, self.n_bits), *near)


class DaskPasses:
    """Passes over shards with their codes; `count` says how many there were."""

    def __init__(
        self, shards: Shards, n_features: int, scaling: Scaling, held_out: Ids | None, n_bits: int
    ) -> None:
        self._held_out = np.zeros(0, dtype=np.int64) if held_out is None else np.asarray(held_out)
        self.n_rows, self.n_features = shards.starts[-1] - len(self._held_out), n_features
        self.count, self.present = 0, 0
        self._shards = shards
        self._setting = shards.hold(Setting(scaling, self._held_out, n_bits))
        self._n_bits = n_bits
        self._states: list[Future] = [None] * len(shards)
        self._truth: Ids | None = None
        self._neighbours: list[Future] = [None] * len(shards)  # what each shard has to know of the truth

    @property
    def truth(self) -> Ids | None:
        """(q, K) the true neighbours of validation queries."""
        return self._truth

    @truth.setter
    def truth(self, truth: Ids | None) -> None:
        self._truth, shards = truth, self._shards
        if truth is not None:
            whole = shards.hold(truth)

            def unit(i: int, where: dict[str, Any]) -> Future:
                return shards.submit(
                    _neighbours, shards.rows[i], self._setting, whole, shards.starts[i], **where
                )

            self._neighbours = shards.each(unit)

    def fill(self, codes_of: Any) -> None:
        """Let codes be made of the rows as they came and their numbers in the table. A pass."""
        shards = self._shards

        def unit(i: int, where: dict[str, Any]) -> Future:
            start, stop = shards.starts[i : i + 2]
            part = shards.hold(codes_of.part(start, stop))
            return shards.submit(_fill, shards.rows[i], self._setting, part, start, **where)

        self.count += 1
        self._states = shards.each(unit)

    def nearest(self, queries: Float32, k: int) -> Ids:
        """The k nearest rows to each query, (q, k). A pass."""
        shards, asked = self._shards, self._shards.hold(queries)

        def unit(i: int, where: dict[str, Any]) -> Future:
            return shards.submit(_nearest, shards.rows[i], self._setting, asked, k, shards.starts[i], **where)

        self.count += 1
        found: tuple[Float64, Ids] = shards.total(shards.each(unit), _merge_nearest)
        return found[1]

    def moments(self) -> Sums:
        return self._sums(shard.moments, coded=False)

    def hash_sums(self, W: Float64) -> Sums:
        return self._sums(shard.hash_sums, W, coded=False)

    def code_sums(self) -> Sums:
        return self._sums(shard.code_sums, self._n_bits)

    def slack_sums(self, W: Float64) -> Sums:
        return self._sums(shard.slack_sums, W)

    def hessian_product(self, W: Float64, P: Float64, bits: Indices) -> Sums:
        return self._sums(shard.hessian_product, W, P, bits)

    def along_step(self, W: Float64, P: Float64, bits: Indices, sizes: Float64) -> Sums:
        return self._sums(shard.along_step, W, P, bits, sizes)

    def differing(self, W: Float64) -> Sums:
        return self._sums(shard.differing, W)

    def judge(self, W: Float64, judged: Packed) -> Sums:
        return self._sums(shard.judge_pass, W, judged, coded=False, judges=True)

    def begin(self, W: Float64) -> Sums:
        return self._new_codes(_begin, W)

    def z_pass(self, task: ZTask, judged: Packed | None) -> Sums:
        return self._new_codes(_z_pass, task, judged)

    def sample(self) -> None:
        """No sample: rows are in memory, and to look again takes less than codes of a sample each time."""

    def places(self, rows: Array) -> Array:
        return places_of(rows, self._held_out)

    def sync(self) -> None:
        pass

    def _sums(self, function: Any, *arguments: Any, coded: bool = True, judges: bool = False) -> Sums:
        """The sums of a pass that leaves codes as they are."""
        shards, given = self._shards, self._shards.hold(arguments)

        def unit(i: int, where: dict[str, Any]) -> Future:
            state, near = self._states[i] if coded else None, self._neighbours[i] if judges else None
            parts = (shards.rows[i], state, self._setting, given, near, shards.starts[i])
            return shards.submit(_pass, function, *parts, **where)

        self.count += 1
        sums: Sums = shards.total(shards.each(unit))
        return sums

    def _new_codes(self, function: Any, *arguments: Any) -> Sums:
        """The sums of a pass that makes new codes; these are the codes from then on."""
        shards, given = self._shards, self._shards.hold(arguments)
        states: list[Future] = [None] * len(shards)

        def unit(i: int, where: dict[str, Any]) -> Future:
            near = self._neighbours[i]
            parts = (shards.rows[i], self._states[i], self._setting, given, near, shards.starts[i])
            states[i] = shards.submit(function, *parts, **where)
            return shards.submit(_sums_of, states[i], **where)

        self.count += 1
        sums: Sums = shards.total(shards.each(unit))
        self._states = states
        return sums


# ---- what workers do: raw are the rows of a shard, the first of which is row `first` of the table, and near
# those of them that are true neighbours of queries


def _pass(
    function: Any, raw: Array, state: State | None, setting: Setting, arguments: Any, near: Near, first: int
) -> Sums | None:
    X = setting.rows(raw, first)
    if not len(X):
        return None
    if near is not None:
        *arguments, judged = arguments
        arguments.append(setting.judges(judged, near))
    codes = () if state is None else (state[0],)
    with threads_of_worker() as workers:
        sums: Sums = function(X, *codes, *arguments, workers)
    return sums


def _begin(raw: Array, state: None, setting: Setting, arguments: Any, near: Near, first: int) -> State:
    X = setting.rows(raw, first)
    codes = shard.empty_codes(len(X), setting.n_bits)
    if not len(X):
        return codes, None
    with threads_of_worker() as workers:
        return codes, shard.begin(X, arguments[0], codes, workers)


def _z_pass(raw: Array, state: State, setting: Setting, arguments: Any, near: Near, first: int) -> State:
    X, (task, judged) = setting.rows(raw, first), arguments
    codes = shard.empty_codes(len(X), setting.n_bits)
    if not len(X):
        return codes, None
    judges = None if judged is None or near is None else setting.judges(judged, near)
    with threads_of_worker() as workers:
        return codes, shard.z_pass(X, state[0], task, codes, judges, workers)


def _neighbours(raw: Array, setting: Setting, truth: Ids, first: int) -> Near:
    start = setting.kept_before(first)
    return neighbours_among(truth, start, start + len(setting.rows(raw, first)))


def _sums_of(state: State) -> Sums | None:
    return state[1]


def _fill(raw: Array, setting: Setting, codes_of: Any, first: int) -> State:
    X = setting.rows(raw, first)
    codes = shard.empty_codes(len(X), setting.n_bits)
    for rows in block_slices(len(X)):
        codes[rows] = codes_of(X.raw(rows), first + X.places(np.arange(rows.start, rows.stop)))
    return codes, None


def _nearest(raw: Array, setting: Setting, queries: Float32, k: int, first: int) -> tuple[Float64, Ids]:
    X = setting.rows(raw, first)
    with threads_of_worker() as workers:
        distances, rows = nearest_scaled(X, queries, k, workers)
    return distances, rows + setting.kept_before(first)


def _merge_nearest(parts: list[tuple[Float64, Ids]]) -> tuple[Float64, Ids]:
    """The k nearest of what shards found, by (distance, row): a stable sort keeps the order of rows."""
    distances, rows = (np.hstack(each) for each in zip(*parts, strict=True))
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : parts[0][0].shape[1]]
    return np.take_along_axis(distances, nearest, axis=1), np.take_along_axis(rows, nearest, axis=1)
