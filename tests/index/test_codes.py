from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.errors import InvalidInput
from auxbit.index import codes
from auxbit.index.codes import (
    CodeBlocks,
    CodeNorms,
    IdTable,
    LaneSet,
    Stretches,
    all_lanes,
    allowed_positions,
    full_planes,
    lanes_of,
    last_planes,
    repeats,
    runs,
    runs_check,
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


@pytest.mark.parametrize("first", [0, 7])
def test_ids_that_count_take_no_memory_until_another_comes(first):
    table = IdTable()
    for start in range(0, 3000, 1000):
        table.append(np.arange(first + start, first + start + 1000))
    assert not len(table._ids)
    wanted = np.arange(first, first + 3000)
    assert table.next_id == first + 3000
    np.testing.assert_array_equal(table.ids, wanted)
    np.testing.assert_array_equal(
        table.at(np.array([[0, -1], [2999, 5]])), [[first, -1], [first + 2999, first + 5]]
    )
    np.testing.assert_array_equal(
        table.find(np.array([0, first, first + 2999, first + 3000])), [0 if not first else -1, 0, 2999, -1]
    )
    table.append(np.array([first + 3001]))
    np.testing.assert_array_equal(table.ids, np.append(wanted, first + 3001))
    assert table.find(np.array([first + 2999, first + 3000, first + 3001])).tolist() == [2999, -1, 3000]
    table.truncate(3000, first + 3000)
    table.append(table.number_on(2))
    assert not len(table._ids)
    np.testing.assert_array_equal(table.ids, np.arange(first, first + 3002))


def test_ids_that_are_positions_need_no_array():
    table = IdTable.numbered(10**12)
    assert table.find(np.array([0, 10**12 - 1, 10**12])).tolist() == [0, 10**12 - 1, -1]
    assert table.number_on(2).tolist() == [10**12, 10**12 + 1]
    table.append(table.number_on(2))
    assert (table.size, table.next_id) == (10**12 + 2, 10**12 + 2)


@given(
    st.lists(
        st.tuples(st.sampled_from(["count", "skip", "any", "truncate"]), st.integers(0, 20)), max_size=12
    )
)
def test_a_table_of_ids_is_a_list(steps):
    table, every = IdTable(), []
    for what, n in steps:
        if what == "truncate":
            n = min(n, len(every))
            table.truncate(len(every) - n, max(every[: len(every) - n], default=-1) + 1)
            every = every[: len(every) - n]
        else:
            first = max(every, default=-1) + 1 + (what == "skip")
            ids = list(range(first, first + n)) if what != "any" else [(7 * n + i * i) % 30 for i in range(n)]
            table.append(np.array(ids, dtype=np.int64))
            every += ids
        assert table.ids.tolist() == every
        assert table.at(np.arange(-1, len(every))).tolist() == [-1, *every]
        last = {each: i for i, each in enumerate(every)}
        assert table.find(np.arange(300)).tolist() == [last.get(each, -1) for each in range(300)]
        assert table.next_id == max(every, default=-1) + 1


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


def planes_in_a_file(codes, n_bits, spare=3):
    """The planes of codes, and what a writer has put after them since, which must not be read."""
    planes = np.full((-(-len(codes) // 64) + spare, codes.shape[1], 64), 0xFF, dtype=np.uint8)
    position = np.arange(len(codes))
    planes[position // 64, :, position % 64] = codes
    return planes


@pytest.mark.parametrize("writeable", [False, True])
@pytest.mark.parametrize("change", ["append", "append_planes", "replace"])
def test_planes_that_were_given_are_never_written_to(change, writeable):
    every = random_codes(400, 20)
    given_planes = planes_in_a_file(every[:300], 20)
    before = given_planes.copy()
    given_planes.flags.writeable = writeable
    blocks = CodeBlocks.mapped(given_planes, 20, 130)
    blocks.remap(given_planes, 300)
    wanted = every[:300].copy()
    if change == "append":
        blocks.append(every[300:])
        wanted = every
    elif change == "append_planes":
        blocks.append_planes(CodeBlocks.of(every[300:], 20).planes, slice(0, 100))
        wanted = every
    else:
        blocks.replace(np.array([7, 299]), every[300:302])
        wanted[[7, 299]] = every[300:302]
    np.testing.assert_array_equal(given_planes, before)
    np.testing.assert_array_equal(blocks.packed(), wanted)
    assert not blocks.planes[-1, :, (len(wanted) - 1) % 64 + 1 :].any()


@given(st.lists(st.integers(0, 150), min_size=1, max_size=6), st.integers(1, 40))
def test_planes_of_a_file_that_grows_hold_all_codes_and_keep_the_version(sizes, n_bits):
    every = random_codes(sum(sizes), n_bits)
    blocks, stop = CodeBlocks.mapped(planes_in_a_file(every[: sizes[0]], n_bits), n_bits, sizes[0]), 0
    for n in sizes:
        stop += n
        blocks.remap(planes_in_a_file(every[:stop], n_bits), stop)
        np.testing.assert_array_equal(blocks.packed(), every[:stop])
    assert (blocks.version, len(blocks)) == (0, len(every))


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((1, 3, 64), np.uint8, 65),
        ((4, 2, 64), np.uint8, 65),
        ((4, 3, 32), np.uint8, 65),
        ((4, 3, 64), np.int8, 65),
        ((4, 3, 64), np.uint8, 64),
    ],
)
def test_planes_without_the_codes_are_refused(shape, dtype, size):
    blocks = CodeBlocks.of(random_codes(65, 20), 20)
    with pytest.raises(InvalidInput, match="codes of 20 bits are not in planes of shape"):
        blocks.remap(np.zeros(shape, dtype), size)
    np.testing.assert_array_equal(blocks.packed(), random_codes(65, 20))


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


@given(ids=st.sets(st.integers(0, 60), max_size=30), at=st.integers(0, 30))
def test_ids_in_stretches_are_those_of_their_positions(ids, at):
    """Taken in at once, or in two parts, of which the second repeats the stretch that was begun."""
    ids = np.array(sorted(ids), dtype=np.int64)
    rows = runs(ids)
    begun = Stretches(runs(ids[:at]))
    later = rows[rows[:, 0] + rows[:, 1] > min(at, len(ids))]
    every = np.arange(-1, 70)
    places = {int(each): place for place, each in enumerate(ids)}
    for found in (Stretches(rows), begun.then(later)):
        assert found.ids_at(np.arange(len(ids))).tolist() == ids.tolist()
        assert found.find(every).tolist() == [places.get(int(each), -1) for each in every]


@given(n=st.integers(0, 200), width=st.integers(1, 3))
def test_full_and_last_planes_hold_all_codes(n, width):
    packed = random_codes(n, 8 * width)
    planes = np.concatenate([full_planes(packed), last_planes(packed)[None]])
    assert planes.transpose(0, 2, 1).reshape(-1, width)[:n].tolist() == packed.tolist()


@given(data=st.data())
def test_no_flipped_bit_keeps_the_checksum_of_a_row_which_adds_up(data):
    row = data.draw(st.tuples(*[st.integers(0, 2**62)] * 3))
    column, bit = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 62))
    other = [each ^ (1 << bit) if place == column else each for place, each in enumerate(row)]
    first, second = (runs_check(np.array([each], dtype=np.int64)) for each in (row, other))
    assert first != second
    assert first == (3 * row[0] + 5 * row[1] + 7 * row[2]) % (2**31 - 1)
    assert runs_check(-np.array([row]), runs_check(np.array([other, row]))) == second
