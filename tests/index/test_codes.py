from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.index import codes
from auxbit.index.codes import (
    CodeBlocks,
    CodeNorms,
    IdTable,
    LaneSet,
    all_lanes,
    allowed_positions,
    lanes_of,
    repeats,
)
from helpers.index_truth import GivenNorms, norms_of, random_codes


@pytest.mark.parametrize("few", [0, 3, 2**16])
@given(batches=st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=12))
def test_the_last_position_of_an_id_is_found(few, batches, request):
    request.getfixturevalue("monkeypatch").setattr(codes, "FEW", few)
    table, where, every = IdTable(), {}, []
    for batch in batches:
        table.append(np.array(batch, dtype=np.int64))
        for each in batch:
            where[each] = len(every)
            every.append(each)
        wanted = [where.get(each, -1) for each in range(45)]
        assert table.find(np.arange(45)).tolist() == wanted
        assert table.ids.tolist() == every
        assert table.next_id == max(every, default=-1) + 1
    assert table.at(np.array([-1])).tolist() == [-1]


def test_ids_that_rise_need_nothing_else():
    table = IdTable()
    table.append(np.arange(0, 200_000, 2))
    table.append(np.arange(200_000, 300_000))
    assert not table._recent
    assert not len(table._sorted[0])
    assert table.find(np.array([4, 5, 200_001, 300_000])).tolist() == [2, -1, 100_001, -1]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_repeats_are_all_but_the_first_of_equals(ids):
    wanted = [each in ids[:i] for i, each in enumerate(ids)]
    assert repeats(np.array(ids, dtype=np.int64)).tolist() == wanted


@given(st.lists(st.integers(0, 150), max_size=6), st.integers(1, 40), st.integers(0, 99))
def test_blocks_give_back_the_codes_that_were_put_in(sizes, n_bits, seed):
    blocks, every = CodeBlocks(n_bits), random_codes(0, n_bits)
    for n in sizes:
        new = random_codes(n, n_bits, seed + n)
        blocks.append(new)
        every = np.vstack([every, new])
    np.testing.assert_array_equal(blocks.packed(), every)
    assert blocks.planes.shape == (-(-len(every) // 64), every.shape[1], 64)
    if len(every):
        assert blocks.planes.ctypes.data % 64 == 0
        chosen = np.random.default_rng(seed).integers(len(every), size=20)
        np.testing.assert_array_equal(blocks.take(chosen), every[chosen])
        chosen = np.unique(chosen)
        every[chosen] = random_codes(len(chosen), n_bits, seed + 7)
        blocks.replace(chosen, every[chosen])
        np.testing.assert_array_equal(blocks.packed(), every)
        assert not blocks.planes[-1, :, len(every) - 64 * (len(blocks.planes) - 1) :].any()


@given(st.lists(st.tuples(st.integers(0, 150), st.integers(0, 99)), max_size=6))
def test_a_lane_set_is_a_set_of_positions(steps):
    lanes, truth, size = LaneSet(), set(), 0
    for n, seed in steps:
        lanes.append(n)
        truth |= set(range(size, size + n))
        size += n
        gone = np.random.default_rng(seed).permutation(sorted(truth))[: n // 3].astype(np.int64)
        lanes.discard(gone)
        truth -= set(gone.tolist())
        assert lanes.count == len(truth)
        assert allowed_positions(lanes.masks).tolist() == sorted(truth)
        positions = np.arange(-2, size)
        assert lanes.holds(positions).tolist() == [each in truth for each in positions.tolist()]


@given(st.lists(st.booleans(), max_size=200))
def test_masks_and_positions_agree(allowed):
    masks = lanes_of(np.array(allowed, dtype=bool))
    assert allowed_positions(masks).tolist() == np.flatnonzero(allowed).tolist()
    assert allowed_positions(all_lanes(len(allowed))).tolist() == list(range(len(allowed)))


# ---- norms


def check_levels(kept, norms):
    assert len(kept) == len(norms)
    assert np.array_equal(kept.values[: len(norms)], norms)
    assert not kept.values[len(norms) :].any()
    assert kept.levels.shape == (-(-len(norms) // 64), 64)
    floors = kept.floors[kept.levels.reshape(-1)[: len(norms)]]
    assert (floors <= norms).all()
    assert (np.diff(kept.floors) >= 0).all()
    assert kept.largest >= np.abs(norms).max(initial=0)


@given(pieces=st.lists(st.integers(0, 300), max_size=8), seed=st.integers(0, 100))
def test_norms_that_grow_are_kept_in_order_and_above_the_floors_of_their_levels(pieces, seed):
    rng = np.random.default_rng(seed)
    norms = (rng.normal(size=sum(pieces)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    kept = CodeNorms(GivenNorms(norms))
    for piece in pieces:
        kept.append(np.zeros((piece, 2), dtype=np.uint8))
    check_levels(kept, norms)


def test_norms_that_are_replaced_move_to_their_levels():
    rng = np.random.default_rng(0)
    norms = rng.random(1000).astype(np.float32)
    kept, positions = norms_of(norms), np.array([3, 999, 64])
    norms[positions] = [-5, 70, 0.5]
    kept.decoder = GivenNorms(norms[positions])
    kept.replace(positions, np.zeros((3, 1), dtype=np.uint8))
    check_levels(kept, norms)


def test_levels_tell_most_norms_apart_despite_outliers():
    norms = np.random.default_rng(0).random(10000).astype(np.float32)
    norms[17] = 1e12
    kept = norms_of(norms)
    below = norms - kept.floors[kept.levels.reshape(-1)[:10000]]
    assert np.quantile(below, 0.99) < 1 / 25


def test_levels_follow_norms_that_change_while_they_grow():
    rng = np.random.default_rng(0)
    norms = np.concatenate([rng.random(1000), 100 + rng.random(5000)]).astype(np.float32)
    kept = CodeNorms(GivenNorms(norms))
    for piece in (1000, 2000, 3000):
        kept.append(np.zeros((piece, 1), dtype=np.uint8))
    below = norms - kept.floors[kept.levels.reshape(-1)[:6000]]
    assert np.quantile(below, 0.9) < 1 / 5
