"""Passes over rows that this process reads: one shard, in blocks on threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.blocks import Workers
from auxbit.codes import Packed
from auxbit.mac import shard
from auxbit.mac.code_files import CodePair
from auxbit.mac.h_step import Indices
from auxbit.mac.scaled_rows import ScaledRows
from auxbit.mac.shard import Judges, Sums, ZTask
from auxbit.mac.summed_rows import Sample
from auxbit.maps import Float32, Float64
from auxbit.neighbours import nearest_scaled

SAMPLE_ROWS = 65_536  # for the size of a step


class LocalPasses:
    """Passes over X with its codes; `count` says how many there were."""

    def __init__(
        self, X: ScaledRows, codes: CodePair, workers: Workers, sample_rows: int = SAMPLE_ROWS
    ) -> None:
        self.n_rows, self.n_features = X.shape
        self.X, self.codes, self.count = X, codes, 0
        self._n_bits, self._workers = codes.n_bits, workers
        self.truth: npt.NDArray[np.int64] | None = None
        step = -(-self.n_rows // sample_rows)
        self._sampled = np.arange(step // 2, self.n_rows, step)

    def fill(self, codes_of: Callable[[npt.NDArray[Any], npt.NDArray[Any]], Packed]) -> None:
        """Let codes be made of the rows as they came and their numbers in the source. A pass."""
        out = self.codes.now

        def block(rows: slice) -> None:
            out[rows] = codes_of(self.X.raw(rows), self.X.places(np.arange(rows.start, rows.stop)))

        self.count += 1
        self._workers.run(block, self.n_rows)

    def nearest(self, queries: Float32, k: int) -> npt.NDArray[np.int64]:
        """The k nearest rows to each query, (q, k). A pass."""
        self.count += 1
        return nearest_scaled(self.X, queries, k, self._workers)[1]

    def moments(self) -> Sums:
        return self._pass(shard.moments)

    def begin(self, W: Float64) -> Sums:
        return self._pass(shard.begin, W, self.codes.now)

    def code_sums(self) -> Sums:
        return self._pass(shard.code_sums, self.codes.now, self._n_bits)

    def hash_sums(self, W: Float64) -> Sums:
        return self._pass(shard.hash_sums, W)

    def slack_sums(self, W: Float64) -> Sums:
        return self._pass(shard.slack_sums, self.codes.now, W)

    def hessian_product(self, W: Float64, P: Float64, bits: Indices) -> Sums:
        return self._pass(shard.hessian_product, self.codes.now, W, P, bits)

    def along_step(self, W: Float64, P: Float64, bits: Indices, sizes: Float64) -> Sums:
        return self._pass(shard.along_step, self.codes.now, W, P, bits, sizes)

    def differing(self, W: Float64) -> Sums:
        return self._pass(shard.differing, self.codes.now, W)

    def z_pass(self, task: ZTask, judged: Packed | None) -> Sums:
        sums = self._pass(shard.z_pass, self.codes.now, task, self.codes.following, self._judges(judged))
        self.codes.swap()
        return sums

    def judge(self, W: Float64, judged: Packed) -> Sums:
        judges = self._judges(judged)
        assert judges is not None
        return self._pass(shard.judge_pass, W, judges)

    def sample(self) -> Sample:
        return Sample(self.X.take(self._sampled), lambda: np.asarray(self.codes.now[self._sampled]))

    def places(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self.X.places(rows)

    @property
    def present(self) -> int:
        return self.codes.present

    def sync(self) -> None:
        self.codes.sync()

    def checksum(self) -> int:
        return self.codes.checksum()

    def _judges(self, judged: Packed | None) -> Judges | None:
        if judged is None or self.truth is None:
            return None
        return Judges.of(judged, self._n_bits, self.truth, 0, self.n_rows)

    def _pass(self, function: Any, *arguments: Any) -> Sums:
        self.count += 1
        sums: Sums = function(self.X, *arguments, self._workers)
        return sums
