"""One suite for every kind of index, against sorting all distances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy.sparse.csgraph import connected_components

from auxbit.core import maps
from auxbit.index import HammingIndex, hamming, multi_index
from auxbit.index import codes as codes_module
from auxbit.index.codes import CodeBlocks, CodeStore, IdTable, LaneSet
from helpers.index_truth import (
    KINDS,
    check_radius,
    check_search,
    clustered_codes,
    random_codes,
    slow_radius,
    slow_search,
)

LONG = (1536, 3072, 8191, 8192)


def make(kind, n_bits, **options):
    return HammingIndex(n_bits, kind=kind, **options)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("n_bits", [8, 12, 32, 33, 64, 65, 128, 256, 1024, *LONG])
@pytest.mark.parametrize("make_codes", [random_codes, clustered_codes])
def test_search_equals_sorting_all_distances(kind, n_bits, make_codes):
    base, queries = make_codes(1500, n_bits), make_codes(12, n_bits, seed=1)
    ids = np.random.default_rng(2).permutation(10_000)[:1500]
    index = make(kind, n_bits)
    index.add(base[:900], ids[:900])
    index.add(base[900:], ids[900:])
    for k in (1, 10, 300, 1500, 1600):
        check_search(index, base, ids, queries, k)
    for r in (0, 1, 4, n_bits // 3, n_bits // 2, n_bits, n_bits + 5):
        check_radius(index, base, ids, queries, r)


@pytest.mark.parametrize("n_bits", LONG)
def test_long_codes_are_changed_filtered_grouped_and_kept_in_files(kind, n_bits, tmp_path):
    base, queries = clustered_codes(700, n_bits, flipped=0.001), clustered_codes(5, n_bits, seed=1)
    queries[0], queries[1] = 0, maps.pack(np.ones((1, n_bits)))  # the largest distances there are
    base[0], base[699] = queries[1], queries[0]
    index, left = make(kind, n_bits), np.delete(np.arange(700), slice(20, 60))
    index.add(base)
    index.remove(np.arange(20, 60))
    index.save(tmp_path / "long.index")
    for each in (index, HammingIndex.load(tmp_path / "long.index")):
        check_search(each, base[left], left, queries, 800)
        check_radius(each, base[left], left, queries, n_bits)
        check_search(each, base[left[::9]], left[::9], queries, 30, among=left[::9])
        check_radius(each, base[left[1:]], left[1:], queries, n_bits // 2, among=left[1:])
    near = n_bits // 500
    _, which = connected_components(maps.hamming_distances(base[left], base[left]) <= near)
    groups = [left[which == each].tolist() for each in range(which.max() + 1)]
    found = [group.tolist() for group in index.find_duplicates(near)]
    assert found == sorted(group for group in groups if len(group) > 1)
    assert len(found) > 1


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 70), st.integers(0, 200), st.integers(0, 9), st.integers(1, 250), st.integers(0, 999))
def test_any_small_search_equals_sorting_all_distances(kind, n_bits, n, q, k, seed):
    base, queries = random_codes(n, n_bits, seed, 0.2), random_codes(q, n_bits, seed + 1, 0.2)
    index = make(kind, n_bits, n_jobs=1)
    index.add(base)
    check_search(index, base, np.arange(n), queries, k)
    check_radius(index, base, np.arange(n), queries, k // 9)


def test_codes_added_after_a_search_are_found(kind):
    base, queries = clustered_codes(3000, 64), clustered_codes(10, 64, seed=1)
    index = make(kind, 64)
    stops = [0, 1, 70, 1500, 1555, 1556, 1999, 3000]
    for first, stop in itertools.pairwise(stops):
        index.add(base[first:stop])
        for k in (1, 25):
            check_search(index, base[:stop], np.arange(stop), queries, k)
        check_radius(index, base[:stop], np.arange(stop), queries, 6)


def test_removed_codes_are_not_found(kind):
    base, queries = clustered_codes(6000, 32), clustered_codes(10, 32, seed=1)
    index = make(kind, 32)
    index.add(base)
    index.search(queries, 3)
    left = np.ones(6000, dtype=bool)
    rng = np.random.default_rng(0)
    for n in (1, 100, 2000, 3500):
        gone = rng.permutation(np.flatnonzero(left))[:n]
        index.remove(gone)
        left[gone] = False
        ids = np.flatnonzero(left)
        assert len(index) == len(ids)
        np.testing.assert_array_equal(index.ids, ids)
        np.testing.assert_array_equal(index.codes, base[ids])
        for k in (1, 20, 500):
            check_search(index, base[ids], ids, queries, k)
        check_radius(index, base[ids], ids, queries, 4)
    index.add(base[:70])  # numbered on, not from the ids of removed codes
    np.testing.assert_array_equal(index.ids[-70:], np.arange(6000, 6070))
    everything = np.vstack([base[ids], base[:70]])
    check_search(index, everything, index.ids, queries, 30)


def test_an_index_can_be_emptied_and_filled_again(kind):
    base = random_codes(100, 16)
    index = make(kind, 16)
    index.add(base)
    index.search(base[:2], 1)
    index.remove(np.arange(100))
    assert len(index) == 0
    assert (index.search(base[:3], 4)[1] == -1).all()
    assert index.search_radius(base[:3], 16)[0].tolist() == [0] * 4
    index.add(base, ids=np.arange(100))
    check_search(index, base, np.arange(100), base[:5], 7)


def test_replaced_codes_are_found_where_they_now_are(kind):
    base, queries = clustered_codes(2000, 64), clustered_codes(10, 64, seed=1)
    index = make(kind, 64)
    index.add(base)
    check_search(index, base, np.arange(2000), queries, 10)
    base = base.copy()
    base[5:700] = clustered_codes(695, 64, seed=9)
    index.add(base[5:700], ids=np.arange(5, 700), upsert=True)
    check_search(index, base, np.arange(2000), queries, 10)
    check_radius(index, base, np.arange(2000), queries, 5)


def test_codes_in_a_file_that_grows_are_found(kind, monkeypatch):
    monkeypatch.setattr(codes_module, "ATTACHED", 100)
    base, queries = clustered_codes(3000, 64), clustered_codes(10, 64, seed=1)
    planes = CodeBlocks.of(base, 64).planes
    alive, first = LaneSet(), 1999
    alive.append(first)
    store = CodeStore.of(CodeBlocks.mapped(planes, 64, first), IdTable.numbered(first), alive)
    index = HammingIndex.over(store, kind=kind)
    check_search(index, base[:first], np.arange(first), queries, 10)
    tables = index._exact._tables
    for stop in (2000, 2100, 2100, 3000):
        with index.changing() as store:
            store.grow(planes.copy(), stop)
        check_search(index, base[:stop], np.arange(stop), queries, 10)
        check_radius(index, base[:stop], np.arange(stop), queries, 6)
        check_search(index, base[:stop:40], np.arange(0, stop, 40), queries, 5, among=np.arange(0, stop, 40))
        if stop == 2100:  # tables that were made before stay in use
            assert index._exact._tables is tables
    found = [group.tolist() for group in index.find_duplicates()]
    _, which = np.unique(base, axis=0, return_inverse=True)
    groups = [np.flatnonzero(which == each).tolist() for each in range(which.max() + 1)]
    assert found == sorted(group for group in groups if len(group) > 1)
    assert not len(store.ids._ids)


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_filtered_searches_see_only_what_the_filter_leaves(kind, share):
    base, queries = clustered_codes(3000, 40), clustered_codes(8, 40, seed=1)
    ids = np.random.default_rng(2).permutation(9000)[:3000]
    index = make(kind, 40)
    index.add(base, ids)
    index.remove(ids[100:130])
    base, ids = np.delete(base, slice(100, 130), axis=0), np.delete(ids, slice(100, 130))
    mask = np.random.default_rng(3).random(len(ids)) < share
    for among in (mask, ids[mask], np.random.default_rng(4).permutation(np.append(ids[mask], [9999, 9998]))):
        for k in (1, 10, 3200):
            distances, found = index.search(queries, k, among=among)
            true_distances, true_found = slow_search(base[mask], ids[mask], queries, k)
            np.testing.assert_array_equal(distances, true_distances)  # exact for every kind
            np.testing.assert_array_equal(found, true_found)
        for ours, true in zip(
            index.search_radius(queries, 8, among=among),
            slow_radius(base[mask], ids[mask], queries, 8),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, true)


def test_a_filter_that_leaves_nothing_finds_nothing(kind):
    base = random_codes(100, 16)
    index = make(kind, 16)
    index.add(base)
    for among in (np.zeros(100, dtype=bool), [], [12345]):
        among = np.array(among, dtype=bool if len(among) == 100 else np.int64)
        assert (index.search(base[:3], 4, among=among)[1] == -1).all()
        assert index.search_radius(base[:3], 16, among=among)[0].tolist() == [0] * 4


def test_any_number_of_jobs_gives_the_same_answers(kind):
    base, queries = clustered_codes(4000, 32), clustered_codes(100, 32, seed=1)
    one, three = make(kind, 32, n_jobs=1), make(kind, 32, n_jobs=3)
    for index in (one, three):
        index.add(base)
    for n in (1, 100):
        for ours, others in zip(one.search(queries[:n], 20), three.search(queries[:n], 20), strict=True):
            np.testing.assert_array_equal(ours, others)
        for ours, others in zip(
            one.search_radius(queries[:n], 9), three.search_radius(queries[:n], 9), strict=True
        ):
            np.testing.assert_array_equal(ours, others)


def test_tables_that_seldom_finish_are_left_alone(monkeypatch):
    base, queries = random_codes(3000, 64), random_codes(100, 64, seed=1)
    monkeypatch.setattr(hamming, "FEWEST_CODES", 0)
    monkeypatch.setattr(multi_index, "worthwhile", lambda *_, **__: True)
    index = make("auto", 64, n_jobs=1)
    index.add(base)
    for _ in range(4):
        check_search(index, base, np.arange(3000), queries, 10)
    tried, finished = index._exact._tried[4]  # k = 10 has four bits
    assert tried < 400
    assert finished < 0.6 * tried


def test_codes_that_came_after_the_tables_are_found_too(monkeypatch):
    base, queries = clustered_codes(3000, 64), clustered_codes(30, 64, seed=1)
    monkeypatch.setattr(multi_index, "scan_budget", lambda n, k=0: float("inf"))  # tables finish everything
    index = make("multi", 64, n_jobs=1)
    index.add(base[:2800])
    index.search(queries, 1)
    index.add(base[2800:])
    for k in (1, 10, 3100):
        check_search(index, base, np.arange(3000), queries, k)
    check_radius(index, base, np.arange(3000), queries, 9)
    assert len(index._exact._tables) == 2800


def test_tables_that_finish_stay_in_use():
    base = random_codes(200_000, 32)
    index = make("auto", 32, n_jobs=1)
    index.add(base)
    for _ in range(8):
        distances, _ = index.search(base[:100], 1)
        assert (distances == 0).all()
    tried, finished = index._exact._tried[1]
    assert tried == finished >= 400


class AnyUse(RuleBasedStateMachine):
    """Adding, replacing, removing, filtering and searching in any order, against a dict."""

    n_bits = 11

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind):
        self.index = HammingIndex(self.n_bits, kind=kind, n_jobs=1)
        self.truth: dict[int, bytes] = {}

    @rule(n=st.integers(0, 90), seed=st.integers(0, 99))
    def add(self, n, seed):
        new = random_codes(n, self.n_bits, seed)
        first = self.index._store.ids.next_id
        self.index.add(new)
        self.truth.update(zip(range(first, first + n), map(bytes, new), strict=True))

    @rule(ids=st.lists(st.integers(0, 60), max_size=20), seed=st.integers(0, 99))
    def upsert(self, ids, seed):
        new = random_codes(len(ids), self.n_bits, seed)
        self.index.add(new, np.array(ids, dtype=np.int64), upsert=True)
        self.truth.update(zip(ids, map(bytes, new), strict=True))

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def remove(self, data):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.truth)), max_size=40))
        self.index.remove(np.array(ids, dtype=np.int64))
        for each in set(ids):
            del self.truth[each]

    @rule(k=st.integers(1, 20), r=st.integers(0, 5), seed=st.integers(0, 99))
    def search(self, k, r, seed):
        base = np.frombuffer(b"".join(self.truth.values()), dtype=np.uint8)
        base = base.reshape(len(self.truth), maps.bytes_per_code(self.n_bits))
        queries = random_codes(3, self.n_bits, seed)
        ids = np.array(list(self.truth), dtype=np.int64)
        check_search(self.index, base, ids, queries, k)
        check_radius(self.index, base, ids, queries, r)
        wanted = np.random.default_rng(seed).integers(0, 80, 6)
        mask = np.isin(ids, wanted)
        check_search(self.index, base[mask], ids[mask], queries, k, among=wanted)

    @invariant()
    def same_items(self):
        assert self.index.ids.tolist() == list(self.truth)
        assert list(map(bytes, self.index.codes)) == list(self.truth.values())


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
