"""Answers of a search: read query by query, written, and with metadata that may be gone meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import HammingIndex
from auxbit.errors import FileExists, InvalidInput, InvalidParameter
from auxbit.index.answers import Answers, search_files

NEAR = np.array([[0, 1, 2], [5, 9, 9]], dtype=np.int32), np.array([[4, 2, 7], [3, -1, -1]])


def names(ids: Any) -> list[dict[str, Any]]:
    if 7 in ids:
        raise InvalidInput("id 7 is not in the collection")
    return [{"name": f"item {id_}"} for id_ in ids]


def test_the_nearest_are_read_query_by_query_without_what_is_missing() -> None:
    found = Answers.of(NEAR)
    assert len(found) == 2
    assert list(found) == [{"ids": [4, 2, 7], "distances": [0, 1, 2]}, {"ids": [3], "distances": [5]}]
    assert found.first(0, 2) == {"ids": [4, 2], "distances": [0, 1]}
    assert (found.n_found(0), found.n_found(1)) == (3, 1)


def test_all_within_a_radius_are_read_in_the_same_way() -> None:
    found = Answers.of((np.array([0, 2, 2]), np.array([0, 1]), np.array([4, 2])))
    assert list(found) == [{"ids": [4, 2], "distances": [0, 1]}, {"ids": [], "distances": []}]


def test_an_item_that_was_deleted_since_the_search_has_no_metadata() -> None:
    found = Answers.of(NEAR, names)
    assert found[0]["metadata"] == [{"name": "item 4"}, {"name": "item 2"}, {}]
    assert [each["metadata"] for each in found] == [found[0]["metadata"], [{"name": "item 3"}]]


def test_answers_are_written_as_arrays_or_as_lines(tmp_path: Path) -> None:
    found = Answers.of(NEAR, names)
    found.write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as written:
        np.testing.assert_array_equal(written["ids"], NEAR[1])
        np.testing.assert_array_equal(written["distances"], NEAR[0])
    found.write(tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == [{"query": 0} | found[0], {"query": 1} | found[1]]
    with pytest.raises(FileExists, match="overwrite=True"):
        found.write(tmp_path / "a.jsonl")
    with pytest.raises(InvalidParameter, match=r"ends in .npz or .jsonl"):
        found.write(tmp_path / "a.txt")


def test_files_are_searched_as_arrays_are(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(digits[300:]))
    queries = model.encode(digits[:300])
    for options, wanted in (
        ({"k": 3}, index.search(queries, 3)),
        ({"radius": 2}, index.search_radius(queries, 2)),
        ({"k": 3, "asymmetric": True}, index.search_asymmetric(digits[:300], 3)),
    ):
        found = search_files(model, "base.npy", "queries.npy", **options)
        assert (found.about["n_base"], found.about["queries"]) == (1497, 300)
        for name, array in zip(("ids", "distances"), reversed(wanted[-2:])):
            np.testing.assert_array_equal(found.arrays[name], array)
    with pytest.raises(InvalidParameter, match="Add --asymmetric"):
        search_files(model, "base.npy", "queries.npy", coding="optimal")
