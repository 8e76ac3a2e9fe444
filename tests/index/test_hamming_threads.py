"""Many threads at one index: right answers, of the index before or after a change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from auxbit.errors import InvalidInput
from auxbit.index import HammingIndex, hamming, multi_index
from auxbit.index.hamming import ExactSearch
from auxbit.index.multi_index import MultiIndex
from helpers.index_truth import KINDS, clustered_codes, random_codes, slow_search


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_search_at_once_all_get_the_right_answer(kind):
    base, queries = clustered_codes(5000, 32), clustered_codes(20, 32, seed=1)
    index = HammingIndex(32, kind=kind, n_jobs=2)
    index.add(base)
    wanted = slow_search(base, np.arange(5000), queries, 10)
    with ThreadPoolExecutor(6) as pool:  # the first of them builds what there is to build
        for distances, ids in pool.map(lambda _: index.search(queries, 10), range(12)):
            np.testing.assert_array_equal(distances, wanted[0])
            np.testing.assert_array_equal(ids, wanted[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_while_others_change_the_index_sees_it_before_or_after_a_change(kind):
    """Every batch is one code that no other has: a search for it finds all of a batch, or nothing of it."""
    index = HammingIndex(64, kind=kind, n_jobs=1)
    batches, size = 60, 90
    markers = random_codes(batches, 64)
    problems: list[str] = []
    done = threading.Event()

    def search():
        while not done.is_set():
            ids = index.search_radius(markers, 0)[2]
            if not set(np.unique(ids // 1000, return_counts=True)[1].tolist()) <= {size}:
                problems.append("half a batch was seen")
            distances, ids = index.search(markers, 5)
            if not ((ids >= 0) == (distances <= 64)).all():
                problems.append("padding and answers mixed")

    searchers = [threading.Thread(target=search) for _ in range(3)]
    for each in searchers:
        each.start()
    for batch in range(batches):
        ids = 1000 * batch + np.arange(size)
        index.add(np.repeat(markers[batch : batch + 1], size, axis=0), ids)
        if batch % 3 == 2:
            index.remove(ids - 1000)
        if batch % 5 == 4:
            index.add(np.repeat(markers[batch : batch + 1], size, axis=0), ids, upsert=True)
    done.set()
    for each in searchers:
        each.join()
    assert not problems


@pytest.mark.parametrize("search", ["search", "search_radius"])
def test_tables_made_anew_by_another_thread_hide_no_code_from_a_search(search, monkeypatch):
    """While a search reads old tables, another one makes new tables, which know all codes."""
    base = random_codes(1000, 32)
    index = HammingIndex(32, n_jobs=1)
    monkeypatch.setattr(hamming, "FEWEST_CODES", 0)
    monkeypatch.setattr(multi_index, "worthwhile", lambda *_, **__: True)
    monkeypatch.setattr(ExactSearch, "_pays", lambda self, codes: True)
    index.add(base[:750])
    index.search(base[:1], 1)
    index.add(base[750:])
    monkeypatch.setattr(ExactSearch, "_pays", lambda self, codes: False)
    name = "nearest" if search == "search" else "within"
    read = getattr(MultiIndex, name)

    def read_while_others_build(self, *arguments):
        found = read(self, *arguments)
        monkeypatch.setattr(MultiIndex, name, read)
        monkeypatch.setattr(ExactSearch, "_pays", lambda self, codes: True)
        index.search(base[:1], 1)
        assert len(index._exact._tables) == 1000
        return found

    monkeypatch.setattr(MultiIndex, name, read_while_others_build)
    *_, ids = getattr(index, search)(base[999:], 1)
    assert ids.ravel()[0] == 999


def test_threads_that_add_the_same_ids_are_refused_but_one():
    index = HammingIndex(32)
    codes = clustered_codes(50, 32)

    def add(_):
        try:
            index.add(codes, ids=np.arange(50))
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(16))) == 1
    assert len(index) == 50
