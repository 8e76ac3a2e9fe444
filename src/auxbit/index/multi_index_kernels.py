"""Multi-index hashing, compiled: which buckets to read, which codes in them are near and new.

A search grows the radius of each substring's table; radius[t] is what table t has been read to, -1 before.
A code that no table has shown differs from the query in more than radius[t] bits of every substring t, so
all codes within sum(radius + 1) - 1 have been seen. Answers are kept as keys, row << 48 | distance << 32 |
position, row being that of the query in its block: the order of keys is the order of answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auxbit.compiled import kernel
from auxbit.index.multi_index_lanes import LANES, ask_for, lowest_bit, near_lanes
from auxbit.index.multi_index_tables import LOOK_COST, Keys, Numbers, Tables, Words, substring
from auxbit.popcount import popcount

PROBE_COST = 24  # of a bucket beyond its codes, in codes: a miss of the cache
AHEAD = 8  # buckets between asking for one and reading it
ROOM = 64  # near codes that are found before they are looked at one by one
TRIAL = 8  # queries of a block after which the rest is given up if few of them were finished
DISTANCE_AT, ROW_AT = 32, 48
NO_KEY = np.iinfo(np.int64).max


@kernel
def _own_buckets(query: Words, cuts: Any, first: Any, offsets: Any, buckets: Any, order: Any) -> None:
    """Find the query's bucket in each table; order the tables by the size of it, smallest first.

    What has to be read further out is read where it is likely to be cheap.
    """
    for t in range(len(order)):
        buckets[t] = substring(query, cuts[t], cuts[t + 1] - cuts[t])
        own, i = first[t] + buckets[t], t
        while i > 0:
            other = first[order[i - 1]] + buckets[order[i - 1]]
            if offsets[other + 1] - offsets[other] <= offsets[own + 1] - offsets[own]:
                break
            order[i] = order[i - 1]
            i -= 1
        order[i] = t


@kernel
def _gather(offsets: Any, first: int, bucket: int, flips: Any, probes: Numbers, n_probes: int) -> Any:
    """Add buckets that are flips away and not empty to `probes`, (most, 2); return their number, and cost."""
    n_before, n_codes = n_probes, 0
    for i in range(len(flips)):
        b = first + (bucket ^ np.int64(flips[i]))
        start, stop = int(np.int64(offsets[b])), int(np.int64(offsets[b + 1]))
        probes[n_probes, 0], probes[n_probes, 1] = start, stop
        n_probes += int(stop > start)
        n_codes += stop - start
    return n_probes, n_codes + PROBE_COST * (n_probes - n_before) + LOOK_COST * len(flips)


@kernel
def _near_places(
    codes: Words, positions: Any, query: Words, limit: int, probes: Numbers, probe: int, n_probes: int,
    places: Numbers,
) -> Any:  # fmt: skip
    """Find codes within `limit` of the query in the buckets from `probe` on, while there is room.

    Returns the number of places and the next bucket to read; one that was read in part begins later then.
    """
    n_places, flat = 0, codes.reshape(-1)
    for p in range(probe, n_probes):
        if p + AHEAD < n_probes:
            for w in range(len(query)):
                start = w * codes.shape[1] + probes[p + AHEAD, 0]
                ask_for(flat, start)
                ask_for(flat, start + LANES)
        stop = probes[p, 1]
        for start in range(probes[p, 0], stop, LANES):
            if n_places + LANES > len(places):
                probes[p, 0] = start
                return n_places, p
            near = near_lanes(codes, start, query, limit)
            if start + LANES > stop:
                near &= (1 << (stop - start)) - 1
            while near:
                places[n_places] = start + lowest_bit(near)
                ask_for(positions, places[n_places])
                near &= near - 1
                n_places += 1
    return n_places, n_probes


@kernel
def _new_keys(
    codes: Words, positions: Any, query: Words, bits: Words, radius: Any, allowed: Any, places: Any,
    keys: Keys,
) -> int:  # fmt: skip
    """Write keys of the codes at these places that are allowed and were not shown before; return how many."""
    n_keys = 0
    for i in range(len(places)):
        at, new, distance = places[i], True, 0
        for t in range(len(radius)):
            apart = 0
            for w in range(len(query)):
                apart += int(np.int64(popcount((codes[w, at] ^ query[w]) & bits[t, w])))
            new &= apart > radius[t]
            distance += apart
        position = np.int64(positions[at])
        is_allowed = np.int64((allowed[position >> 6] >> np.uint64(position & 63)) & np.uint64(1))
        keys[n_keys] = distance << DISTANCE_AT | position
        n_keys += int(is_allowed & np.int64(new))  # no branch: which are new is hard to predict
    return n_keys


@kernel
def _kth_smallest(keys: Keys, k: int, high: int) -> int:
    """The k-th smallest of keys, all of them at most `high`, by halving the range that it lies in."""
    low = 0
    while low < high:
        middle, n = (low + high) // 2, 0
        for i in range(len(keys)):
            n += int(keys[i] <= middle)
        if n >= k:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _up_to(kept: Keys, n_kept: int, bound: int) -> int:
    """Leave only keys up to `bound` of the first n_kept, NO_KEY after them; return how many."""
    n = 0
    for i in range(n_kept):
        kept[n] = kept[i]
        n += int(kept[i] <= bound)
    kept[n:] = NO_KEY
    return n


@kernel
def _keep(keys: Keys, k: int, kept: Keys, histogram: Numbers, state: Numbers) -> None:
    """Add keys to those kept, (2 min(k, n) + ROOM,), if they may be among the k smallest.

    state : how many are kept; the distance that a key may have; how many were found within it; a bound.
    The distance falls to the k-th smallest found. Keys at it are all kept: those found later may come first.
    """
    n_kept, limit, n_within, bound = state[0], state[1], state[2] + len(keys), state[3]
    if n_kept + len(keys) > len(kept):
        bound = _kth_smallest(kept[:n_kept], k, len(histogram) << DISTANCE_AT)
        n_kept = _up_to(kept, n_kept, bound)
    for i in range(len(keys)):
        kept[n_kept] = keys[i]
        n_kept += int(keys[i] <= bound)
        histogram[keys[i] >> DISTANCE_AT] += 1
    while n_within - histogram[limit] >= k:
        n_within -= histogram[limit]
        limit -= 1
    state[0], state[1], state[2], state[3] = n_kept, limit, n_within, bound


@kernel
def nearest_block(
    tables: Tables, queries: Words, n_bits: int, k: int, farthest: int, allowed: Any, budget: int,
    kept: Keys, finished: Any,
) -> int:  # fmt: skip
    """Fill `kept`, (q, 2 min(k, n) + ROOM), with keys of the k nearest and more; return the most of a row.

    The rest is NO_KEY. Codes beyond the distance `farthest` are not looked for: if there are not k within
    it, all codes are read. finished : (q,), false at first.
    """
    codes, positions, offsets, first, cuts, bits, flips, flips_first, n_flips = tables
    n_tables, n = positions.shape
    probes = np.empty((len(flips) + 1, 2), np.int64)
    places, keys = np.empty((2, ROOM), np.int64)
    buckets, order, radius = np.zeros((3, n_tables), np.int64)
    histogram, state = np.empty(n_bits + 1, np.int64), np.empty(4, np.int64)
    n_finished = most_kept = 0
    for i in range(len(queries)):
        if i >= TRIAL and 4 * n_finished < i:
            break
        query = queries[i]
        _own_buckets(query, cuts, first, offsets, buckets, order)
        radius[:], histogram[:] = -1, 0
        state[0], state[1], state[2], state[3] = 0, farthest, 0, NO_KEY
        complete, spent = -1, 0
        while not finished[i]:
            a, t = (complete + 1) // n_tables, order[(complete + 1) % n_tables]
            cost = n
            if a < len(flips_first) and complete < farthest:
                masks = flips[flips_first[a] : flips_first[a] + n_flips[t, a]]
                n_probes, cost = _gather(offsets, first[t], buckets[t], masks, probes, 0)
            spent += min(cost, n)
            if spent > budget:
                break
            if cost >= n:  # then all codes, afresh, are no dearer
                radius[:], histogram[:], probes[0, 0], probes[0, 1], n_probes, t = -1, 0, 0, n, 1, 0
                state[0], state[1], state[2], state[3] = 0, n_bits, 0, NO_KEY
            probe, codes_t, positions_t = 0, codes[t], positions[t]
            while probe < n_probes:
                n_places, probe = _near_places(
                    codes_t, positions_t, query, state[1], probes, probe, n_probes, places
                )
                n_keys = _new_keys(
                    codes_t, positions_t, query, bits, radius, allowed, places[:n_places], keys
                )
                _keep(keys[:n_keys], k, kept[i], histogram, state)
            radius[t] = a
            complete += 1
            finished[i] = cost >= n or (state[2] >= k and state[1] <= complete)
        most_kept = max(most_kept, _up_to(kept[i], state[0], ((state[1] + 1) << DISTANCE_AT) - 1))
        n_finished += finished[i]
    return most_kept


@kernel
def within_block(
    tables: Tables, queries: Words, r: int, allowed: Any, budget: int, counts: Numbers, finished: Any
) -> Keys:
    """Keys of all codes within r of each query, by query; counts, (q,), says how many each has."""
    codes, positions, offsets, first, cuts, bits, flips, flips_first, n_flips = tables
    n_tables, n = positions.shape
    # r + 1 levels in all: so many for each table, one more for some
    each, more = (r + 1) // n_tables, (r + 1) % n_tables
    listed = each + (more > 0) <= len(flips_first)
    most = n_flips[:, : each + 1].sum() if listed else 1
    listed = listed and LOOK_COST * most <= min(n, budget)
    probes = np.empty((most + 1 if listed else 1, 2), np.int64)
    last = np.empty(n_tables + 1, np.int64)
    places, keys = np.empty((2, ROOM), np.int64)
    buckets, order, radius = np.zeros((3, n_tables), np.int64)
    found, n_found = np.empty(ROOM, np.int64), 0
    for i in range(len(queries)):
        query, cost, n_probes = queries[i], 0 if listed else n, 0
        if listed:
            _own_buckets(query, cuts, first, offsets, buckets, order)
            for j in range(n_tables):
                last[j], t = n_probes, order[j]
                for a in range(each + (j < more)):
                    masks = flips[flips_first[a] : flips_first[a] + n_flips[t, a]]
                    n_probes, more_cost = _gather(offsets, first[t], buckets[t], masks, probes, n_probes)
                    cost += more_cost
            last[n_tables] = n_probes
        finished[i] = min(cost, n) <= budget
        if not finished[i]:
            continue
        if cost >= n:
            order[0], probes[0, 0], probes[0, 1], last[0], last[1:] = 0, 0, n, 0, 1
        radius[:], n_before = -1, n_found
        for j in range(n_tables):
            t, probe = order[j], last[j]
            codes_t, positions_t = codes[t], positions[t]
            while probe < last[j + 1]:
                n_places, probe = _near_places(
                    codes_t, positions_t, query, r, probes, probe, last[j + 1], places
                )
                n_keys = _new_keys(
                    codes_t, positions_t, query, bits, radius, allowed, places[:n_places], keys
                )
                if n_found + n_keys > len(found):
                    found = np.concatenate((found, np.empty(len(found), np.int64)))
                for at in range(n_keys):
                    found[n_found + at] = i << ROW_AT | keys[at]
                n_found += n_keys
            radius[t] = each + (j < more) - 1
        counts[i] = n_found - n_before
    return found[:n_found]
