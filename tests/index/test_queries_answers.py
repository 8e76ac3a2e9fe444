"""Answers of a search: as arrays, query by query, in tables and files; metadata may be gone meanwhile."""

from __future__ import annotations

import json
import sys
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.errors import FileExists, InvalidInput, InvalidParameter, MissingExtra
from auxbit.index import queries as module
from auxbit.index.queries import Answers, as_text, fields_on_a_line

NEAR = np.array([[0, 1, 2], [5, 9, 9]], dtype=np.int32), np.array([[4, 2, 7], [3, -1, -1]])


UUIDS = np.array([uuid.UUID(int=each) for each in range(3)], dtype=object)


def names(ids: Any) -> list[dict[str, Any]]:
    """The metadata of a collection in which item 7 has been deleted."""
    if 7 in ids:
        raise InvalidInput("id 7 is not in the collection")
    return [{"name": f"item {id_}"} for id_ in ids]


def rectangle() -> Answers:
    return Answers(NEAR[0][:, :2], np.array([[4, 2], [3, 7]]), metadata_of=names)


def within() -> Answers:
    lims = np.array([0, 2, 2, 3])
    return Answers(np.array([0, 1, 6]), np.array([4, 2, 7]), lims=lims, metadata_of=names)


# ---- arrays


@pytest.mark.parametrize("ids", [np.array([5, 9, 2]), np.array(["b", "a", "ccc"], dtype=object), UUIDS])
def test_the_answers_to_one_query_unpack_into_rows(ids: Any) -> None:
    answers = Answers(np.array([0.5, 1, 2], dtype=np.float32), ids)
    distances, found = answers
    assert distances is answers.distances is answers[0]
    assert found is answers.ids is answers[1] is ids
    assert (len(answers), answers.lims, answers.n_queries, answers.n_found(0)) == (2, None, 1, 3)
    assert answers.first(0, 2) == {"ids": ids[:2].tolist(), "distances": [0.5, 1.0]}
    assert [type(each) for each in answers.first(0)["ids"]] == [type(ids.tolist()[0])] * 3


def test_the_answers_to_several_queries_unpack_into_arrays() -> None:
    distances, ids = answers = rectangle()
    assert (distances.tolist(), ids.tolist()) == ([[0, 1], [5, 9]], [[4, 2], [3, 7]])
    assert (answers.n_queries, answers.n_found(1), answers.about["retrieved"]) == (2, 2, 4)
    assert answers.first(1, 1) == {"ids": [3], "distances": [5], "metadata": [{"name": "item 3"}]}


def test_all_within_a_radius_unpack_into_limits_and_arrays() -> None:
    lims, distances, ids = answers = within()
    assert (lims.tolist(), distances.tolist(), ids.tolist()) == ([0, 2, 2, 3], [0, 1, 6], [4, 2, 7])
    assert (len(answers), answers.n_queries) == (3, 3)
    assert [answers.n_found(query) for query in range(3)] == [2, 0, 1]
    assert [each["ids"] for each in answers.queries()] == [[4, 2], [], [7]]


@pytest.mark.parametrize(
    ("distances", "ids", "lims"),
    [
        (np.zeros(2), np.zeros(3), None),
        (np.zeros((2, 2, 1)), np.zeros((2, 2, 1)), None),
        (np.zeros((2, 2)), np.zeros((2, 2)), np.array([0, 2, 4])),
        (np.zeros(2), np.zeros(2), np.array([0, 3])),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(distances: Any, ids: Any, lims: Any) -> None:
    with pytest.raises(InvalidInput, match="are not those of ids of"):
        Answers(distances, ids, lims)


def test_what_an_index_pads_with_is_no_answer() -> None:
    assert [each["ids"] for each in Answers.of(NEAR).queries()] == [[4, 2, 7], [3]]
    all_short = Answers.of((NEAR[0][1:], NEAR[1][1:]))
    assert (all_short.distances.tolist(), all_short.ids.tolist(), all_short.lims) == ([[5]], [[3]], None)
    assert Answers.of((NEAR[0][:0], NEAR[1][:0])).n_queries == 0
    assert Answers.of((np.array([0, 2, 2]), np.array([0, 1]), np.array([4, 2]))).n_found(1) == 0


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 70))
def test_answers_query_by_query_are_slices_of_the_arrays(counts: list[int], together: int) -> None:
    lims = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ids = np.arange(lims[-1])[::-1]
    answers = Answers(ids * 2, ids, lims, lambda some: [{"n": int(each)} for each in some])
    with patch.object(module, "READ_QUERIES", together):
        found = list(answers.queries())
    slices = [slice(a, b) for a, b in pairwise(lims.tolist())]
    assert [each["ids"] for each in found] == [ids[each].tolist() for each in slices]
    assert [each["distances"] for each in found] == [(2 * ids[each]).tolist() for each in slices]
    wanted = [[{"n": n} for n in ids[each].tolist()] for each in slices]
    assert [each["metadata"] for each in found] == answers.metadata == wanted


# ---- metadata


def test_a_query_that_was_not_asked_has_no_answers() -> None:
    answers = Answers(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3))
    for query in (-1, 2):
        for function in (answers.first, answers.n_found):
            with pytest.raises(InvalidParameter, match=rf"query={query} is invalid: .* 0\.\.1"):
                function(query)
    with pytest.raises(InvalidParameter, match="most=-1 is invalid"):
        answers.first(0, -1)


def test_metadata_are_read_once_and_those_of_a_deleted_item_are_empty() -> None:
    calls = []

    def read(ids: Any) -> list[dict[str, Any]]:
        calls.append(len(ids))
        return names(ids)

    one = Answers(np.array([0, 1]), np.array([4, 2]), metadata_of=read)
    assert not calls
    assert one.metadata == [{"name": "item 4"}, {"name": "item 2"}]
    assert one.metadata is one.metadata
    assert calls == [2]
    assert rectangle().metadata == [[{"name": "item 4"}, {"name": "item 2"}], [{"name": "item 3"}, {}]]
    assert within().metadata == [[{"name": "item 4"}, {"name": "item 2"}], [], [{}]]
    assert within().first(2)["metadata"] == [{}]
    assert Answers(np.array([1]), np.array([1])).metadata == [{}]


def test_metadata_that_cannot_be_read_at_all_are_an_error_not_empty() -> None:
    def closed(ids: Any) -> list[dict[str, Any]]:
        raise InvalidInput("the collection is closed. Open it again.")

    answers = Answers(np.array([0, 1]), np.array([4, 2]), metadata_of=closed)
    with pytest.raises(InvalidInput, match="Open it again"):
        answers.metadata  # noqa: B018
    assert repr(answers) == "2 answers:\nid  distance\n4   0\n2   1"


# ---- tables


def test_answers_become_a_data_frame() -> None:
    frame = within().to_pandas()
    assert frame.columns.tolist() == ["query", "rank", "id", "distance", "name"]
    assert frame["query"].tolist() == [0, 0, 2]
    assert frame["rank"].tolist() == [1, 2, 1]
    assert frame["id"].tolist() == [4, 2, 7]
    assert frame["distance"].tolist() == [0, 1, 6]
    assert frame["name"][:2].tolist() == ["item 4", "item 2"]
    assert frame["name"].isna().tolist() == [False, False, True]
    frame = rectangle().to_pandas()
    assert (frame["query"].tolist(), frame["rank"].tolist()) == ([0, 0, 1, 1], [1, 2, 1, 2])


def test_fields_with_the_names_of_columns_get_an_underscore() -> None:
    rows: list[dict[str, Any]] = [{"id": "x", "rank": 3, "id_": "y"}, {"query": [1, {"a": 2}]}]
    frame = Answers(np.array([0, 1]), UUIDS[:2], metadata_of=lambda ids: rows).to_pandas()
    assert frame.columns.tolist() == ["rank", "id", "distance", "id_", "rank_", "id__", "query_"]
    assert frame["id"].tolist() == UUIDS[:2].tolist()
    assert (frame["id_"][0], frame["id__"][0], frame["rank_"][0]) == ("x", "y", 3)
    assert frame["query_"][1] == [1, {"a": 2}]
    empty = Answers(np.zeros((0, 3)), np.zeros((0, 3))).to_pandas()
    assert (empty.columns.tolist(), len(empty)) == (["query", "rank", "id", "distance"], 0)


def test_without_pandas_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"to_pandas needs pandas: pip install 'auxbit\[data\]'"):
        rectangle().to_pandas()


def test_people_see_the_first_answers_to_the_first_query() -> None:
    def about(ids: Any) -> list[dict[str, Any]]:
        return [{"title": f"<b>{each}</b> {'long ' * 20}", "year": 2010, "a": 1, "b": 2} for each in ids]

    answers = Answers(np.arange(14).reshape(2, 7), np.arange(14).reshape(2, 7) + 100, metadata_of=about)
    lines = repr(answers).splitlines()
    assert lines[:2] == ["14 answers to 2 queries, 7 each; to the first:", "id   distance  metadata"]
    assert lines[2] == "100  0         title=<b>100</b> long long long lon…  year=2010  a=1 …"
    assert (len(lines), lines[-1]) == (8, "…")
    shown = answers._repr_html_()
    assert shown.startswith("<strong>14 answers to 2 queries, 7 each; to the first</strong><table>")
    assert "<tr><td>104</td><td>4</td><td>title=&lt;b&gt;104&lt;/b&gt; long long" in shown
    assert "105" not in shown
    assert "<b>" not in shown


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (Answers(np.zeros(0), np.zeros(0)), "0 answers"),
        (Answers(np.zeros((0, 3)), np.zeros((0, 3))), "0 answers to 0 queries"),
        (Answers(np.zeros(0), np.zeros(0), np.zeros(3, np.int64)), "0 answers to 2 queries"),
        (Answers(np.array([0.123456789]), np.array(["k"], object)), "1 answer:\nid  distance\nk   0.123457"),
    ],
)
def test_empty_and_short_answers_are_shown(answers: Answers, wanted: str) -> None:
    assert repr(answers) == wanted
    assert f"<strong>{wanted.partition(':')[0]}</strong>" in answers._repr_html_()


# ---- files


def test_answers_are_written_as_arrays_or_as_lines(tmp_path: Path) -> None:
    for number, found in enumerate((rectangle(), within())):
        found.write(tmp_path / f"{number}.npz")
        with np.load(tmp_path / f"{number}.npz") as written:
            assert set(written) == {"ids", "distances"} | ({"lims"} if found.lims is not None else set())
            for array, name in zip(found, ("lims", "distances", "ids")[-len(found) :]):
                np.testing.assert_array_equal(written[name], array)
        found.write(tmp_path / f"{number}.jsonl")
        lines = [json.loads(line) for line in (tmp_path / f"{number}.jsonl").read_text().splitlines()]
        assert lines == [{"query": query} | each for query, each in enumerate(found.queries())]
    with pytest.raises(FileExists, match="overwrite=True"):
        found.write(tmp_path / "0.jsonl")
    with pytest.raises(InvalidParameter, match=r"ends in .npz or .jsonl"):
        found.write(tmp_path / "a.txt")


@pytest.mark.parametrize("ids", [np.array([["a", "日本"], ["", "x" * 99]], dtype=object), UUIDS[None]])
def test_ids_that_are_no_numbers_are_written_as_text(ids: Any, tmp_path: Path) -> None:
    answers = Answers(np.zeros(ids.shape), ids)
    answers.write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as written:
        assert written["ids"].tolist() == [[str(each) for each in row] for row in ids]
    answers.write(tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["ids"] for each in lines] == [[str(each) for each in row] for row in ids]


def test_ids_that_an_npz_file_would_change_are_refused(tmp_path: Path) -> None:
    answers = Answers(np.zeros(1), np.array(["a\0"], dtype=object))
    with pytest.raises(InvalidInput, match=r"end in a NUL character: write \.jsonl"):
        answers.write(tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())
    answers.write(tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.jsonl").read_text())["ids"] == ["a\0"]


def test_half_a_surrogate_pair_is_escaped_in_lines(tmp_path: Path) -> None:
    rows = [{"cut": "é\ud83d", "whole": "\U0001f600"}]
    answers = Answers(np.zeros(1), np.zeros(1, dtype=np.int64), metadata_of=lambda ids: rows)
    answers.write(tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8"))["metadata"] == rows


def test_fields_are_shown_as_text_and_json_not_as_python_writes_them():
    row = {"title": "a  b", "tags": ["é", "y"], "seen": True, "more": None}
    assert fields_on_a_line(row) == 'title=a b  tags=["é", "y"]  seen=true …'
    assert as_text({"a": None}) == '{"a": null}'
    assert as_text("x" * 9, 5) == "xxxx…"
