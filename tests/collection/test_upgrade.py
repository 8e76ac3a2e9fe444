from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from auxbit import Collection
from auxbit.collection.upgrade import upgrade
from auxbit.errors import CollectionError, Damaged, FileExists, InUse

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize("name", ["format-1", "format-1-codes"])
def test_a_collection_of_format_1_keeps_all_it_had(tmp_path, name):
    """The samples were written by the version that made format 1, with what they held beside them."""
    held = json.loads((SAMPLES / f"{name}.json").read_text())
    facts = upgrade(SAMPLES / f"{name}.auxbit", tmp_path / "new")
    assert (facts["items"], facts["bits"]) == (len(held["ids"]), held["n_bits"])
    with Collection(tmp_path / "new") as collection:
        assert collection.ids.tolist() == held["ids"]
        assert collection.metadata(held["ids"]) == held["metadata"]
        assert collection.codes().tolist() == held["codes"]
        if held["vectors"] is not None:
            np.testing.assert_array_equal(collection.vectors(held["ids"]), held["vectors"])
            np.testing.assert_array_equal(
                collection.model.encode(np.array(held["vectors"][:20], dtype=np.float32)), held["codes"][:20]
            )
            assert collection.state.trained == 100
        assert collection.check() == []
        new = collection.add(codes=collection.codes(held["ids"][:1]), **vectors_for(collection))
        assert new[0] >= held["next_id"]
    with pytest.raises(FileExists, match="exists"):
        upgrade(SAMPLES / f"{name}.auxbit", tmp_path / "new")


def test_a_collection_that_is_there_is_replaced_when_asked_unless_somebody_writes_to_it(tmp_path):
    with Collection.create(tmp_path / "new", bits=8) as there:
        there.add(codes=np.zeros((3, 1), dtype=np.uint8))
        with pytest.raises(InUse, match="is being written to"):
            upgrade(SAMPLES / "format-1.auxbit", tmp_path / "new", overwrite=True)
        assert len(there) == 3
    assert upgrade(SAMPLES / "format-1.auxbit", tmp_path / "new", overwrite=True)["items"] == 189
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    with Collection(tmp_path / "new") as collection:
        assert collection.check() == []


def test_what_is_stopped_leaves_nothing_and_what_it_would_replace(tmp_path):
    def stop(made):
        assert len(made) == 189
        raise KeyboardInterrupt

    Collection.create(tmp_path / "there", bits=8).close()
    for name, overwrite in (("new", False), ("there", True)):
        with pytest.raises(KeyboardInterrupt):
            upgrade(SAMPLES / "format-1.auxbit", tmp_path / name, finish=stop, overwrite=overwrite)
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
    assert Collection(tmp_path / "there").n_bits == 8


def vectors_for(collection):
    return {} if collection.state.vectors is None else {"X": np.zeros((1, collection.state.n_features))}


def test_a_damaged_collection_of_format_1_is_named_and_nothing_is_made_of_it(tmp_path):
    shutil.copytree(SAMPLES / "format-1.auxbit", tmp_path / "old")
    segment = tmp_path / "old" / "segment-000002.safetensors"
    content = bytearray(segment.read_bytes())
    content[-200] ^= 1
    segment.write_bytes(content)
    with pytest.raises(Damaged, match="segment-000002"):
        upgrade(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(CollectionError, match="is not a collection of format 1"):
        upgrade(tmp_path, tmp_path / "new")
