"""Collections made of files from Python: create, add, retrain, queries. tests/cli has the many options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import Collection
from auxbit.collection import build
from auxbit.errors import CollectionError, InvalidInput, InvalidParameter


@pytest.fixture
def papers(folder: Path) -> Path:
    """The working folder of `folder`, with base.npy in the collection `papers`, and its vectors."""
    build.create("papers", "base.npy", model="m.safetensors", vectors="float32")
    return folder


def test_create_fits_a_model_by_default_and_keeps_the_facts(folder: Path, digits: Any) -> None:
    np.save("some.npy", digits[:200])
    facts = build.create("new", "some.npy", method="itq", n_bits=8, seed=1)
    assert (facts["items"], facts["bits"], facts["method"], facts["coding"]) == (200, 8, "ITQ", "hash")
    wanted = auxbit.ITQ(8, random_state=1).fit(digits[:200]).encode(digits[:200])
    with Collection.open("new") as new:
        np.testing.assert_array_equal(new.codes(), wanted)
        assert new.manifest.trained_at == 200
    assert build.load_model("new").n_bits == 8


def test_create_without_a_model_needs_the_number_of_bits(folder: Path) -> None:
    with pytest.raises(InvalidParameter, match="n_bits=None is invalid"):
        build.create("new")
    assert build.create("new", n_bits=16)["method"] is None


def test_add_takes_ids_and_metadata_and_says_where_it_stopped(
    papers: Path, digits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "BATCH_ROWS", 100)
    bad = digits[:300].copy()
    bad[250, 3] = np.nan
    np.save("bad.npy", bad)
    np.save("ids.npy", np.arange(5000, 5300))
    Path("rows.jsonl").write_text("".join(json.dumps({"row": row}) + "\n" for row in range(300)))
    at: list[tuple[int, int]] = []
    files: dict[str, str] = {"ids": "ids.npy", "metadata": "rows.jsonl"}
    with pytest.raises(InvalidInput, match=r"bad.npy contains NaN at row 250, column 3"):
        build.add("papers", "bad.npy", **files, stopped=lambda row, n_rows: at.append((row, n_rows)))
    assert at == [(200, 300)]
    done = build.add("papers", "queries.npy", **files, first=200)
    assert (done["added"], done["items"], done["replaced"]) == (100, 1797, 0)
    with Collection.open("papers", read_only=True) as collection:
        assert collection.metadata([5123]) == [{"row": 123}]
    again = build.add("papers", "queries.npy", **files, upsert=True)
    assert (again["added"], again["items"], again["replaced"]) == (300, 1797, 300)


def test_retrain_makes_new_codes_of_another_model(papers: Path, digits: Any) -> None:
    facts = build.retrain("papers", method="lsh", n_bits=24, seed=5)
    assert (facts["method"], facts["bits"], facts["items"]) == ("LSH", 24, 1497)
    wanted = auxbit.LSH(24, random_state=5).fit(digits[300:]).encode(digits[300:])
    with Collection.open("papers", read_only=True) as collection:
        np.testing.assert_array_equal(collection.codes(), wanted)


def test_queries_are_vectors_codes_or_an_item(papers: Path, digits: Any) -> None:
    codes = auxbit.load("m.safetensors").encode(digits[:300])
    np.save("codes.npy", codes)
    build.create("alone", "codes.npy", n_bits=16, codes=True)
    with Collection.open("papers", read_only=True) as kept, Collection.open("alone", read_only=True) as alone:
        np.testing.assert_array_equal(build.read_queries(kept, "queries.npy")["X"], digits[:300])
        np.testing.assert_array_equal(build.read_queries(kept, "codes.npy")["codes"], codes)
        np.testing.assert_array_equal(build.stored_item(kept, 7)["X"], digits[307:308])
        np.testing.assert_array_equal(build.stored_item(alone, 7)["codes"], codes[7:8])
        with pytest.raises(InvalidInput, match="id 300 is not in the collection"):
            build.stored_item(alone, 300)


def test_a_folder_that_is_missing_names_one_that_may_have_been_meant(papers: Path) -> None:
    with pytest.raises(CollectionError, match=r"there is no collection paper\. Did you mean papers\?"):
        build.open_collection("paper")
