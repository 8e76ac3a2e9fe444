"""Groups of codes that are near each other: pairs within a radius, joined into groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed
from auxbit.compiled import kernel

Positions = npt.NDArray[np.int64]
Within = Callable[[Packed], tuple[Positions, npt.NDArray[np.int32], Positions]]

QUERIES, FIRST_QUERIES = 1024, 16  # codes whose neighbours are asked for at once: at most, and to begin with
ANSWERS = 2**24  # of one asking: some 300 MB


def distinct_codes(codes: Packed) -> tuple[Packed, Positions]:
    """The different codes, (m, width), and for each row which of them it is, (n,)."""
    if codes.shape[1] <= 8:  # as one number: sorting these is many times faster than sorting bytes
        padded = np.zeros((len(codes), 8), dtype=np.uint8)
        padded[:, : codes.shape[1]] = codes
        _, first, which = np.unique(padded.view(np.uint64).ravel(), return_index=True, return_inverse=True)
    else:
        rows = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1]))).ravel()
        _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return codes[first], which.astype(np.int64)


def groups(codes: Packed, radius: int, index_of: Callable[[Packed], Within]) -> list[Positions]:
    """Rows joined by chains of codes within `radius` of each other, in groups of two and more.

    Equal codes are joined first, so that a million copies are one code; `index_of` makes a radius search
    over the different codes. → a list of rising row numbers, by their first.
    """
    if not len(codes):
        return []
    if radius >= 8 * codes.shape[1]:
        return [np.arange(len(codes))] if len(codes) > 1 else []
    different, which = distinct_codes(codes)
    leaders = np.arange(len(different), dtype=np.int64)
    if radius > 0:
        within = index_of(different)
        start, step = 0, FIRST_QUERIES
        while start < len(different):
            lims, _, found = within(different[start : start + step])
            _join(leaders, start, lims, found)
            start += len(lims) - 1
            a_query = max(1, len(found) // (len(lims) - 1))
            step = max(1, min(QUERIES, 2 * step, ANSWERS // a_query))
        _settle(leaders)
    group = leaders[which]
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    found_groups = [order[a:b] for a, b in itertools.pairwise(bounds) if b - a > 1]
    return sorted(found_groups, key=lambda rows: int(rows[0]))


@kernel
def _leader(leaders: Any, i: int) -> int:
    while leaders[i] != i:
        leaders[i] = leaders[leaders[i]]
        i = leaders[i]
    return i


@kernel
def _join(leaders: Any, start: int, lims: Any, found: Any) -> None:
    """Join code start + q with the codes found for query q; the smallest of a group leads it."""
    for q in range(len(lims) - 1):
        mine = _leader(leaders, start + q)
        for at in range(lims[q], lims[q + 1]):
            other = _leader(leaders, found[at])
            if other < mine:
                leaders[mine] = other
                mine = other
            else:
                leaders[other] = mine


@kernel
def _settle(leaders: Any) -> None:
    for i in range(len(leaders)):
        leaders[i] = _leader(leaders, i)
