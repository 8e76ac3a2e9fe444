"""Making collections of pictures: what is read, what is left out, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auxbit.collection.collection import Collection
from auxbit.errors import CollectionError, FileExists, FileProblem, InUse, InvalidInput, InvalidParameter
from auxbit.images import build, sources
from auxbit.images.decode import Decoders, decode
from auxbit.images.features import Recipe
from auxbit.images.pictures import Pictures
from auxbit.images.sources import Source
from helpers.picture_collections import Counting, Told, again, create, files_of, folder_of, put
from helpers.picture_files import FORMATS, bad_files, exif_of, fill, noise, saved


def test_every_format_is_read_in_order_with_what_is_known_of_it(tmp_path: Path) -> None:
    names = fill(tmp_path / "in", 12)
    (tmp_path / "in" / "dated.jpg").write_bytes(
        saved(noise(40, 60), "JPEG", exif=exif_of(6, "2020:01:02 03:04:05"))
    )
    with Decoders(2) as decoders:
        report = create(tmp_path / "in", tmp_path / "out", decoders=decoders)
    assert (report.added, report.items, report.bad, report.trained) == (13, 13, [], True)
    with Pictures.open(tmp_path / "out") as pictures:
        known = {each["file"]: each for each in pictures.collection.metadata(pictures.collection.ids)}
        assert set(known) == {*names, "dated.jpg"}
        for name, about in known.items():
            path = tmp_path / "in" / name
            assert about["root"] == str(tmp_path / "in")
            assert about["bytes"] == path.stat().st_size
            assert about["mtime_ns"] == path.stat().st_mtime_ns
            assert about["format"] in FORMATS
        dated = known["dated.jpg"]
        assert (dated["width"], dated["height"], dated["taken"]) == (60, 40, "2020-01-02T03:04:05")
        assert "taken" not in known[names[0]]
        expected = decode((tmp_path / "in" / names[0]).read_bytes(), 8)
        first = next(
            id_ for id_ in pictures.collection.ids.tolist() if pictures.about(id_)["file"] == names[0]
        )
        assert pictures.thumbnail(first) == expected.thumbnail
        assert np.array_equal(pictures.collection.vectors([first])[0], pictures.describe(expected))
    assert [name for name in files_of(tmp_path / "out") if name != "dated.jpg"] == names


def test_bad_files_are_listed_with_reasons_and_never_fatal(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 5)
    for name, content in bad_files().items():
        (tmp_path / "in" / name).write_bytes(content)
    with Decoders(2) as decoders:
        report = create(tmp_path / "in", tmp_path / "out", bits=2, decoders=decoders)
    assert report.items == 5
    assert {name for name, _ in report.bad} == set(bad_files())
    assert all(reason.strip() for _, reason in report.bad)


def test_two_files_of_the_same_content_are_two_items(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "deep/a.png"):
        put(tmp_path / "in" / name, 1)
    put(tmp_path / "in" / "c.png", 2)
    assert create(tmp_path / "in", tmp_path / "out", method="ba").items == 4
    assert sorted(files_of(tmp_path / "out")) == ["a.png", "b.png", "c.png", "deep/a.png"]


def test_progress_is_told_of_every_stage_with_its_length(tmp_path: Path) -> None:
    told = Told()
    report = create(folder_of(tmp_path / "in", 20), tmp_path / "out", method="ba", progress=told)
    assert [each.what for each in told.stages] == ["finding", "reading", "training", "decoder", "encoding"]
    assert all(each.done == each.total for each in told.stages if each.what not in ("finding", "training"))
    training = next(each for each in told.stages if each.what == "training")
    assert training.done >= 1
    assert training.total is None  # nobody knows how many iterations it takes
    assert list(report.seconds) == [each.what for each in told.stages]


def test_the_model_serves_asymmetric_search_and_is_the_one_asked_for(tmp_path: Path) -> None:
    create(folder_of(tmp_path / "in", 12), tmp_path / "out", bits=7, seed=3)
    with Pictures.open(tmp_path / "out") as pictures:
        state, model = pictures.collection.state, pictures.collection.model
        assert (state.n_bits, state.coding, state.mu, state.vectors) == (7, "optimal", 0.01, "float16")
        assert (type(model).__name__, model.random_state) == ("ITQ", 3)
        codes = model.encode(pictures.collection.vectors(pictures.collection.ids), coding="optimal", mu=0.01)
        assert np.array_equal(codes, pictures.collection.codes())


@pytest.mark.parametrize(
    ("sizes", "features", "side"),
    [
        ([(50, 70), (44, 40), (90, 60)], "gist", 50),
        ([(20, 30), (24, 20), (9, 9)], "gist", 32),
        ([(300, 200), (200, 300), (400, 400)], "gist", 128),
        ([(12, 20), (30, 13), (14, 14)], "pixels", 13),
        ([(300, 200), (200, 300), (400, 400)], "pixels", 32),
    ],
)
def test_the_side_suits_the_pictures(
    tmp_path: Path, sizes: list[tuple[int, int]], features: str, side: int
) -> None:
    for place, size in enumerate(sizes):
        put(tmp_path / "in" / f"{place}.png", place, size)
    create(tmp_path / "in", tmp_path / "out", features=features, side=None, bits=2)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.recipe == Recipe(features, side)


def test_colour_is_part_of_the_vectors(tmp_path: Path) -> None:
    create(folder_of(tmp_path / "in", 3), tmp_path / "out", features="gist", side=16, colour=0.3, bits=2)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.recipe == Recipe("gist", 16, colour=0.3)
        assert pictures.collection.state.n_features == pictures.describer.dimension == 368


# ---- where nothing can be made


def test_a_folder_without_pictures_says_what_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    with pytest.raises(FileProblem, match=r"no pictures in .*in: expected files that end in \.avif, \.bmp"):
        create(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_bad_files_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(7):
        (tmp_path / "in" / f"{number}.png").write_text("no picture")
    with pytest.raises(InvalidInput, match=r"none of the 7 pictures could be read(.|\n)*4\.png(.|\n)*2 more"):
        create(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_single_picture_is_too_few_and_more_may_follow(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 1)
    with pytest.raises(InvalidInput, match="has 1 picture; a model needs at least 2"):
        create(tmp_path / "in", tmp_path / "out", bits=2)
    with pytest.raises(
        CollectionError, match=r"not finished: its 1 .* auxbit images create .*in --out .*out"
    ):
        Pictures.open(tmp_path / "out")
    put(tmp_path / "in" / "new.png", 5)
    report = again(tmp_path / "in", tmp_path / "out")
    assert (report.added, report.unchanged, report.items, report.trained) == (1, 1, 2, True)


def test_bits_that_so_few_pictures_cannot_have_can_be_lowered(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 3)
    with pytest.raises(InvalidInput, match="For 3 pictures, lower --bits or use ba"):
        create(tmp_path / "in", tmp_path / "out", bits=64)
    counting = Counting()
    report = again(tmp_path / "in", tmp_path / "out", bits=2, decoders=counting)
    assert (counting.decoded, report.trained) == (0, True)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.collection.n_bits == 2


def test_fewer_pictures_than_bits_are_no_reason_to_warn(tmp_path: Path) -> None:
    report = create(folder_of(tmp_path / "in", 3), tmp_path / "out", bits=None, method=None)
    assert report.trained
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.collection.n_bits == 64


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="nowhere does not exist"):
        create(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"bits": 0}, "n_bits"),
        ({"bits": 9000}, "n_bits"),
        ({"method": "pq"}, "method"),
        ({"method": "baa"}, "method"),
        ({"seed": -1}, "seed"),
        ({"features": "gost"}, "features"),
        ({"features": "onnx"}, "features"),
        ({"side": 4}, "side"),
        ({"colour": 1.0}, "colour"),
        ({"features": "gist", "side": 32, "grey": True}, "grey"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean"),
        ({"model": "net.onnx"}, "features"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_made(
    tmp_path: Path, wrong: dict[str, Any], parameter: str
) -> None:
    with pytest.raises(InvalidParameter, match="is invalid") as error:
        create(folder_of(tmp_path / "in", 2), tmp_path / "out", **wrong)
    assert error.value.parameter == parameter
    assert not (tmp_path / "out").exists()


def test_what_stands_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExists, match="full"):
            create(tmp_path / "in", tmp_path / "full", overwrite=overwrite)
    with Collection.create(tmp_path / "rows", bits=8) as other:
        other.add(codes=np.zeros((1, 1), np.uint8))
    with pytest.raises(CollectionError, match="is a collection, but not of pictures"):
        create(tmp_path / "in", tmp_path / "rows", bits=2)
    create(tmp_path / "in", tmp_path / "rows", bits=2, overwrite=True)
    assert len(files_of(tmp_path / "rows")) == 3


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 3)
    create(tmp_path / "in", tmp_path / "out", bits=2)
    with Collection.open(tmp_path / "out") as other:
        other.lock()
        for overwrite in (False, True):
            with pytest.raises(InUse, match="is being written to by process"):
                create(tmp_path / "in", tmp_path / "out", bits=2, overwrite=overwrite)


def test_files_that_vanish_or_may_not_be_read_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path / "in", 6)
    read = sources.read_file

    def reading(path: Path) -> bytes:
        if path.name == "img1.png":
            path.unlink()
        if path.name == "img2.png":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(sources, "read_file", reading)
    report = create(tmp_path / "in", tmp_path / "out", bits=2)
    assert report.items == 4
    assert dict(report.bad) == {
        "img1.png": "is not there any more",
        "img2.png": "cannot be read: Permission denied",
    }


def test_files_that_are_larger_than_pictures_are_not_read(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 3)
    with open(tmp_path / "in" / "huge.png", "wb") as file:
        file.truncate(2**30)  # takes no room on disk
    report = create(tmp_path / "in", tmp_path / "out", bits=2)
    assert report.bad == [("huge.png", "has 1,073,741,824 bytes; at most 536,870,912 are read")]


def test_pictures_that_are_no_files_are_built_from(tmp_path: Path) -> None:
    contents = [saved(noise(8, 8, seed)) for seed in range(10)]
    made = [
        Source("", f"digit {place}.png", len(content), 0, read=lambda content=content: content)  # type: ignore[misc]
        for place, content in enumerate(contents)
    ]
    recipe = Recipe("pixels", 8, grey=True)
    told = Told()
    build.build(made, tmp_path / "out", recipe, bits=4, method="itq", decode=decode, progress=told)
    assert told.stages[0].what == "reading"
    with Pictures.open(tmp_path / "out") as pictures:
        assert len(pictures) == 10
        assert pictures.about(3)["file"] == "digit 3.png"
    counting = Counting()
    report = build.build(made, tmp_path / "out", recipe, bits=4, method="itq", decode=counting.decode)
    assert (report.unchanged, report.trained, counting.decoded) == (10, False, 0)


def test_what_is_kept_is_json_and_no_more_than_needed(tmp_path: Path) -> None:
    create(folder_of(tmp_path / "in", 3), tmp_path / "out", bits=2)
    kept = {each.name for each in (tmp_path / "out").iterdir()}
    assert kept == {"collection.sqlite", "codes.1", "vectors.1", "model.1.safetensors", "writer.lock"}
    with Collection(tmp_path / "out") as collection:
        document = json.loads(collection.about or "")
        assert set(collection.metadata([0])[0]) == {
            "file", "root", "sha256", "bytes", "mtime_ns", "width", "height", "format"
        }  # fmt: skip
    assert document["recipe"] == {"kind": "pixels", "side": 8, "grey": False}
    assert document["roots"] == [os.path.realpath(tmp_path / "in")]
