"""Collections of pictures of format 1: a stored one becomes one of the present format."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auxbit.collection.collection import Collection
from auxbit.errors import CollectionError, Damaged, FileExists
from auxbit.images.pictures import Pictures, upgrade
from helpers.picture_collections import Told, again, create, folder_of

SAMPLE = Path(__file__).with_name("samples") / "format-1.auxbit"
EXPECTED: dict[str, Any] = json.loads(SAMPLE.with_suffix(".json").read_text())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the sample, with a comparison beside it."""
    shutil.copytree(SAMPLE, tmp_path / "old.auxbit")
    for name in ("comparison.json", "comparison-rows.jsonl"):
        (tmp_path / "old.auxbit" / name).write_text(f"{name} of it\n")
    return tmp_path / "old.auxbit"


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_the_sample_is_read_as_it_was_written(old: Path, tmp_path: Path) -> None:
    before, told = contents(old), Told()
    found = upgrade(old, tmp_path / "new.auxbit", progress=told)
    assert contents(old) == before
    assert (found["items"], found["bits"], found["method"]) == (10, 8, "ITQ")
    assert [(each.what, each.done, each.total) for each in told.stages] == [("upgrading", 10, 10)]
    rows = [
        {name: value for name, value in row.items() if name != "thumbnail"} for row in EXPECTED["metadata"]
    ]
    with Pictures.open(tmp_path / "new.auxbit") as pictures:
        collection = pictures.collection
        assert collection.ids.tolist() == EXPECTED["ids"]
        assert collection.metadata(collection.ids) == rows
        assert collection.codes().tolist() == EXPECTED["codes"]
        assert pictures.recipe.document() == {"kind": "pixels", "side": 8, "grey": False}
        assert pictures.roots == ("/srv/pictures",)
        state = collection.state
        assert (state.coding, state.mu, state.vectors, state.trained) == ("optimal", 0.01, "float16", 10)
        codes = collection.model.encode(collection.vectors(collection.ids), coding="optimal", mu=0.01)
        assert np.array_equal(codes, collection.codes())
        for id_, length in zip(EXPECTED["ids"], EXPECTED["thumbnails"], strict=True):
            content = pictures.thumbnail(id_)
            assert len(content) == length
            with Image.open(io.BytesIO(content)) as image:
                assert image.size == (24, 20)
        assert pictures.search(3, k=9)
        assert collection.check() == []
    for name in ("comparison.json", "comparison-rows.jsonl"):
        assert (tmp_path / "new.auxbit" / name).read_text() == f"{name} of it\n"


def test_what_is_upgraded_is_added_to_like_any_other(old: Path, tmp_path: Path) -> None:
    upgrade(old, tmp_path / "new.auxbit")
    report = again(folder_of(tmp_path / "in", 3), tmp_path / "new.auxbit")
    assert (report.added, report.items, report.trained) == (3, 13, False)
    with Pictures.open(tmp_path / "new.auxbit") as pictures:
        assert pictures.collection.ids.tolist() == list(range(13))
        assert pictures.thumbnail(12)


def test_the_network_goes_with_it(old: Path, tmp_path: Path) -> None:
    (old / "features.onnx").write_bytes(b"a network")
    upgrade(old, tmp_path / "new.auxbit")
    assert (tmp_path / "new.auxbit" / "features.onnx").read_bytes() == b"a network"


def test_a_description_that_another_collection_has_left_does_not_count(old: Path, tmp_path: Path) -> None:
    text = (old / "pictures.json").read_text()
    (old / "pictures.json").write_text(text.replace('"key": "f', '"key": "0'))
    upgrade(old, tmp_path / "rows.auxbit")
    (old / "pictures.json").unlink()
    upgrade(old, tmp_path / "none.auxbit")
    for name in ("rows.auxbit", "none.auxbit"):
        with Collection(tmp_path / name) as collection:
            assert (collection.about, len(collection)) == (None, 10)
            assert collection.metadata([3])[0]["thumbnail"] == 3216  # nobody knows what it means


@pytest.mark.parametrize("place", [0, 2, 5, 10, 12, 500, 3216, 10510])
def test_a_thumbnail_that_has_changed_is_named_and_nothing_is_left_behind(
    old: Path, tmp_path: Path, place: int
) -> None:
    content = bytearray((old / "thumbnails.pack").read_bytes())
    content[place] ^= 0x10
    (old / "thumbnails.pack").write_bytes(content)
    with pytest.raises(Damaged, match=r"thumbnails\.pack cannot be read: .* Restore it, or make"):
        upgrade(old, tmp_path / "new.auxbit")
    assert [each.name for each in tmp_path.iterdir()] == ["old.auxbit"]


def test_thumbnails_that_are_cut_short_or_missing_say_so(old: Path, tmp_path: Path) -> None:
    whole = (old / "thumbnails.pack").read_bytes()
    for size in (0, 11, 12, len(whole) - 1):
        (old / "thumbnails.pack").write_bytes(whole[:size])
        with pytest.raises(Damaged, match=r"thumbnails\.pack cannot be read"):
            upgrade(old, tmp_path / "new.auxbit")
    (old / "thumbnails.pack").unlink()
    with pytest.raises(Damaged, match=r"thumbnails\.pack cannot be read: .*No such file"):
        upgrade(old, tmp_path / "new.auxbit")
    assert not (tmp_path / "new.auxbit").exists()


def test_what_cannot_be_upgraded_is_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="is not a collection of format 1"):
        upgrade(tmp_path / "nowhere", tmp_path / "new.auxbit")
    with pytest.raises(
        CollectionError, match=r"has the format of an older version.*auxbit collection upgrade"
    ):
        upgrade(old, old)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    with pytest.raises(FileExists, match="full exists"):
        upgrade(old, tmp_path / "full")
    (old / "pictures.json").write_text("{")
    with pytest.raises(Damaged, match=r"pictures\.json is damaged: it is not JSON"):
        upgrade(old, tmp_path / "new.auxbit")


def test_the_old_format_is_named_where_pictures_are_opened_or_made(old: Path, tmp_path: Path) -> None:
    before = contents(old)
    with pytest.raises(CollectionError, match=r"auxbit collection upgrade .*old\.auxbit NEW"):
        Pictures.open(old)
    folder_of(tmp_path / "in", 3)
    for overwrite in (False, True):
        with pytest.raises(CollectionError, match=r"auxbit collection upgrade .*old\.auxbit NEW"):
            create(tmp_path / "in", old, overwrite=overwrite)
    assert contents(old) == before
