"""Searching collections of pictures, and comparing methods on them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auxbit.collection.collection import Collection
from auxbit.core import files
from auxbit.errors import (
    BadPicture,
    CollectionError,
    FileExists,
    FileProblem,
    InvalidInput,
    InvalidParameter,
)
from auxbit.images.build import Plan, compare_pictures
from auxbit.images.decode import decode
from auxbit.images.pictures import MODES, Pictures, write_duplicates
from helpers.picture_collections import Told, add, again, create, folder_of, put
from helpers.picture_files import noise, saved


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 40 pictures in `in`, and the collection `out` of them."""
    folder = tmp_path_factory.mktemp("pets")
    create(folder_of(folder / "in", 40), folder / "out", bits=16)
    return folder


def truth(pictures: Pictures, vector: np.ndarray, k: int) -> list[int]:
    """The ids of the k nearest vectors."""
    ids = pictures.collection.ids
    vectors = pictures.collection.vectors(ids).astype(np.float64)
    return ids[np.argsort(((vectors - vector) ** 2).sum(axis=1), kind="stable")[:k]].tolist()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_an_item_is_not_among_its_own_answers(pets: Path, mode: str | None) -> None:
    with Pictures.open(pets / "out") as pictures:
        for id_ in (0, 17, 39):
            found = pictures.search(id_, k=7, mode=mode)
            assert len(found) == len({each.id for each in found}) == 7
            assert id_ not in {each.id for each in found}
            assert [each.distance for each in found] == sorted(each.distance for each in found)
            assert all(each.file == f"img{each.id}.png" for each in found)
        assert len(pictures.search(5, k=1000, mode=mode)) == 39


def test_a_file_its_bytes_and_its_path_find_the_same_and_itself_first(pets: Path) -> None:
    path = pets / "in" / "img7.png"
    with Pictures.open(pets / "out") as pictures:
        found = pictures.search(path, k=5, mode="reranked")
        assert found[0] == (7, "img7.png", 0.0, "")
        assert pictures.search(str(path), k=5, mode="reranked") == found
        assert pictures.search(path.read_bytes(), k=5, mode="reranked") == found
        assert [each.id for each in found][1:] == [
            each.id for each in pictures.search(7, k=4, mode="reranked")
        ]


def test_distances_are_bits_or_euclidean(pets: Path) -> None:
    content = saved(noise(30, 30, seed=1000))
    with Pictures.open(pets / "out") as pictures:
        vector = pictures.describe(decode(content, pictures.recipe.side))
        collection, model = pictures.collection, pictures.collection.model
        by_bits = pictures.search(content, k=40, mode="hamming")
        codes = np.unpackbits(collection.codes() ^ model.encode(vector[None]), axis=1).sum(axis=1)
        assert [(each.id, each.distance) for each in by_bits] == sorted(
            enumerate(codes.tolist()), key=lambda x: (x[1], x[0])
        )
        assert all(isinstance(each.distance, int) for each in by_bits)
        by_decoder = pictures.search(content, k=3, mode="asymmetric")
        made = model.decode(collection.codes())
        for each in by_decoder:
            assert each.distance == pytest.approx(np.linalg.norm(vector - made[each.id]), rel=1e-4)
        reranked = pictures.search(content, k=4, mode="reranked")  # of 100 candidates, which are all
        assert [each.id for each in reranked] == truth(pictures, vector, 4)
        assert pictures.search(content, k=4) == reranked


def test_what_is_no_picture_is_refused(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with Pictures.open(pets / "out") as pictures:
        with pytest.raises(BadPicture, match=r"text\.png is not a JPEG"):
            pictures.search(tmp_path / "text.png")
        with pytest.raises(BadPicture, match="picture"):
            pictures.search(b"no picture")
        with pytest.raises(FileProblem, match=r"nowhere\.png cannot be read: No such file"):
            pictures.search(tmp_path / "nowhere.png")
        with pytest.raises(FileProblem, match=r"cannot be read: .*embedded null"):
            pictures.search("a\0b")
        with pytest.raises(BadPicture, match="is a folder"):
            pictures.search(tmp_path)
        with pytest.raises(InvalidInput, match="item 40 is not in the collection of 40 pictures"):
            pictures.search(40)
        with pytest.raises(InvalidInput, match="item -1 is not in"):
            pictures.search(-1)
        with pytest.raises(InvalidParameter, match="mode='haming' is invalid: expected one of hamming"):
            pictures.search(0, mode="haming")
        with pytest.raises(InvalidParameter, match="k=0 is invalid"):
            pictures.search(0, k=0)


def test_originals_are_given_out_only_as_they_were(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", 5)
    create(folder, tmp_path / "out", bits=2)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.original(2) == (folder / "img2.png").read_bytes()
        put(folder / "img2.png", 99)
        with pytest.raises(FileProblem, match="has changed since item 2"):
            pictures.original(2)
        again(folder, tmp_path / "out")
        assert pictures.original(2) == (folder / "img2.png").read_bytes()  # an open reader sees it
        (folder / "img3.png").unlink()
        with pytest.raises(FileProblem, match="item 3 was made, cannot be read: No such file"):
            pictures.original(3)
        (folder / "img4.png").unlink()
        os.mkfifo(folder / "img4.png")
        with pytest.raises(FileProblem, match="item 4 was made, cannot be read: is not a file"):
            pictures.original(4)
        with pytest.raises(InvalidInput, match="id 5 is not in the collection"):
            pictures.original(5)
        assert pictures.thumbnail(3)


def test_what_is_no_collection_of_pictures_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CollectionError, match=r"folder is not a collection.*auxbit images create"):
        Pictures.open(tmp_path / "folder")
    Collection.create(tmp_path / "rows.auxbit", bits=8).close()
    with pytest.raises(CollectionError, match="is a collection, but not of pictures"):
        Pictures.open(tmp_path / "rows.auxbit")
    with pytest.raises(CollectionError, match=r"row\.auxbit does not exist\. Did you mean rows\.auxbit"):
        Pictures.open(tmp_path / "row.auxbit")


def test_an_item_without_a_picture_is_told_apart(tmp_path: Path) -> None:
    create(folder_of(tmp_path / "in", 5), tmp_path / "out", bits=2)
    with Collection.open(tmp_path / "out") as collection:
        collection.add(np.zeros((1, 192)), metadata=[{"note": "a row"}])
    with Pictures.open(tmp_path / "out") as pictures:
        with pytest.raises(InvalidInput, match="item 5 is not a picture"):
            pictures.thumbnail(5)
        assert len(pictures.search(0, k=10)) == 5
    assert again(tmp_path / "in", tmp_path / "out").unchanged == 5


# ---- known files and duplicates


def test_a_file_that_is_known_is_at_distance_0_whatever_its_name_and_the_limits_of_a_search(
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path / "in", 30)
    (folder / "img30.png").write_bytes((folder / "img4.png").read_bytes())
    create(folder, tmp_path / "out", bits=1)  # by which nothing can be told apart
    content = (folder / "img4.png").read_bytes()
    (tmp_path / "upload").write_bytes(content)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.known(files.checksum([content])) == [4, 30]
        assert pictures.known("0" * 64) == []
        for mode in (None, "reranked", "hamming"):
            for query in (content, tmp_path / "upload"):
                found = pictures.search(query, k=3, mode=mode)
                assert [(each.id, each.distance) for each in found[:2]] == [(4, 0), (30, 0)]
                assert len(found) == 3
        again = saved(np.asarray(Image.open(folder / "img4.png")), compress_level=1)  # other bytes
        assert again != content
        assert pictures.search(again, k=1)[0].distance == 0
        assert "sha256" in pictures.collection.describe()["indexed"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with 12 pictures: of one there are copies of the same bytes, of another a smaller one."""
    folder = folder_of(tmp_path / "in", 12)
    for name in ("b.png", "deep/c.png"):
        put(folder / name, 3)
    (folder / "small.png").write_bytes(saved(Image.open(folder / "img5.png").resize((12, 10))))
    create(folder, tmp_path / "out", bits=8)
    return tmp_path


def listed(groups: Any) -> list[list[tuple[str, str]]]:
    return [[(Path(each.path).name, each.action) for each in group] for group in groups]


def test_files_of_the_same_bytes_are_a_group_of_which_the_first_is_kept(copied: Path) -> None:
    with Pictures.open(copied / "out") as pictures:
        (group,) = pictures.duplicates()
        assert listed([group]) == [[("b.png", "keep"), ("c.png", "delete"), ("img3.png", "delete")]]
        assert [each.why for each in group[1:]] == ["the same bytes"] * 2
        assert {each.of for each in group} == {group[0].id}
        assert all(Path(each.path).is_file() and each.bytes > 0 for each in group)


def test_pictures_that_look_the_same_are_found_by_radius_and_the_largest_is_kept(copied: Path) -> None:
    with Pictures.open(copied / "out") as pictures:
        found = pictures.duplicates(8)  # all codes: only what is much nearer than others is a copy
        pairs = {(name, action) for group in listed(found) for name, action in group}
        assert {("img5.png", "keep"), ("small.png", "delete"), ("b.png", "keep")} <= pairs
        assert {name for name, action in pairs if action == "delete"} == {"c.png", "img3.png", "small.png"}
        (small,) = (each for group in found for each in group if each.path.endswith("small.png"))
        assert "bits apart, at distance" in small.why
        assert pictures.about(small.of)["file"] == "img5.png"


def test_files_that_are_gone_changed_or_links_are_never_kept_nor_deleted(copied: Path) -> None:
    folder = copied / "in"
    (folder / "b.png").unlink()
    (folder / "deep" / "c.png").unlink()
    with Pictures.open(copied / "out") as pictures:
        assert pictures.duplicates() == []
        (folder / "b.png").symlink_to("img3.png")  # deleting what it leads to would lose the picture
        os.link(folder / "img3.png", folder / "hard.png")
        add([folder], copied / "out")
        assert pictures.duplicates() == []
        put(folder / "deep" / "c.png", 3)
        add([folder], copied / "out")
        ((one, other),) = pictures.duplicates()
        assert {Path(each.path).name for each in (one, other)} <= {"c.png", "img3.png", "hard.png"}
        (folder / "deep" / "c.png").write_bytes(b"edited since")
        assert pictures.duplicates() == []


def test_the_list_as_commands_deletes_copies_and_nothing_else_whatever_names_are(copied: Path) -> None:
    folder = copied / "in"
    odd = [
        "it's.png",
        "$(touch evil).png",
        "-rf.png",
        "a; touch evil;.png",
        "a\nb; touch evil.png",
        "x\x1b[2J.png",
    ]
    for name in [*odd, "n" * 240 + ".png"]:
        put(folder / name, 3)
    add([folder], copied / "out")
    with Pictures.open(copied / "out") as pictures:
        groups = pictures.duplicates(8)
    out = copied / "list.sh"
    write_duplicates(groups, out)
    assert out.read_text().replace("\n", "").isprintable()
    assert "# item " in out.read_text()  # for the two with control characters
    kept = {each.path for group in groups for each in group if each.action == "keep"}
    before = set(map(str, folder.rglob("*.png")))
    (folder / "small.png").with_name("img5.png").rename(folder / "img5 moved.png")
    subprocess.run(["sh", str(out)], cwd=copied, check=False, capture_output=True)
    after = set(map(str, folder.rglob("*.png")))
    assert kept - {str(folder / "img5.png")} <= after
    assert str(folder / "small.png") in after  # what it is a copy of has moved
    gone = before - after - {str(folder / "img5.png")}
    assert len(gone) == 7  # of ten of the same bytes, one is kept and two have control characters
    assert not list(copied.rglob("evil"))


def test_the_list_as_a_table_has_every_name_as_it_is(copied: Path) -> None:
    put(copied / "in" / 'a "new\nline", and more.png', 3)
    add([copied / "in"], copied / "out")
    with Pictures.open(copied / "out") as pictures:
        groups = pictures.duplicates()
    out = copied / "list.csv"
    write_duplicates(groups, out)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [each.path for each in groups[0]]
    assert [row["action"] for row in rows].count("keep") == 1
    assert {row["group"] for row in rows} == {"1"}
    with pytest.raises(FileExists, match=r"list\.csv exists"):
        write_duplicates(groups, out)
    with pytest.raises(InvalidParameter, match=r"ends in \.csv or \.sh"):
        write_duplicates(groups, copied / "list.txt")


# ---- comparing


def test_a_comparison_is_kept_with_the_collection(pets: Path) -> None:
    told = Told()
    plan = Plan(["itq", "lsh"], [4, 8], k=5, K=6, seeds=2)
    found = compare_pictures(pets / "out", plan, command="auxbit images compare …", progress=told)
    assert found == json.loads((pets / "out" / "comparison.json").read_text())
    assert [(row["method"], row["bits"], row["seeds"]) for row in found["rows"]] == [
        ("ITQ", 4, 2), ("ITQ", 8, 2), ("LSH", 4, 2), ("LSH", 8, 2),
    ]  # fmt: skip
    assert (found["queries"], found["items"], found["k"], found["K"]) == (8, 32, 5, 6)
    assert found["command"] == "auxbit images compare …"
    for row in found["rows"]:
        assert 0 <= row["precision"] <= 1
        assert row["recall"] == pytest.approx(row["precision"] * 5 / 6)
        assert row["squared_error"] > 0
        assert row["effective_bits"] <= row["bits"]
    assert [(each.what, each.done, each.total) for each in told.stages] == [("comparing", 8, 8)]
    again_told = Told()
    repeated = compare_pictures(pets / "out", plan, progress=again_told)
    assert repeated["rows"] == found["rows"]  # the seconds, too: nothing is measured twice
    with Pictures.open(pets / "out") as pictures:
        assert len(pictures) == 40


def test_bits_that_a_method_cannot_have_are_left_out_with_a_reason(pets: Path) -> None:
    rows = compare_pictures(pets / "out", Plan(["itq"], [4, 64], k=5))["rows"]
    assert rows[0]["skipped"] is None
    assert "n_bits=64" in rows[1]["skipped"]
    assert rows[1]["precision"] is None


def test_what_cannot_be_compared_is_refused(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must not be empty"):
        compare_pictures(pets / "out", Plan([], [8]))
    with pytest.raises(InvalidParameter, match="method='baa' is invalid"):
        compare_pictures(pets / "out", Plan(["baa"], [8]))
    create(folder_of(tmp_path / "in", 5), tmp_path / "out", bits=2)
    with pytest.raises(InvalidInput, match="at least 10 pictures, and there are 5"):
        compare_pictures(tmp_path / "out", Plan(["itq"], [2]))
