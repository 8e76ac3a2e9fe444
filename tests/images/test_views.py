"""Views: pictures that are found mirrored, turned and cropped, each once, by the best of its codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auxbit.collection.collection import Collection
from auxbit.errors import InvalidInput
from auxbit.images import build
from auxbit.images.pictures import Pictures
from auxbit.images.views import NAMES, PLACES, Views, views_of
from helpers.picture_collections import Counting, add, again, create, put
from helpers.picture_files import corners, noise, saved

SIDE = 16
FULL: dict[str, Any] = {"side": SIDE, "bits": 16, "views": True}


def square(seed: int) -> Any:
    return noise(SIDE, SIDE, seed=seed)


def copies(pixels: Any) -> dict[str, bytes]:
    """A picture as files that show it otherwise, by the name of the view that is meant to find it."""
    return {
        "mirrored": saved(pixels[:, ::-1]),
        "turned left": saved(np.rot90(pixels)),
        "upside down": saved(np.rot90(pixels, 2)),
        "turned right": saved(np.rot90(pixels, 3)),
        "middle": saved(pixels[2:-2, 2:-2]),
        "bottom right": saved(pixels[3:, 3:]),
    }


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder of 20 square pictures."""
    for number in range(20):
        path = tmp_path / "in" / f"img{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(saved(square(number)))
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path, pets: Path) -> Path:
    """Their collection, with views."""
    report = create(pets, tmp_path / "out", **FULL)
    assert (report.items, report.views) == (20, len(NAMES))
    return tmp_path / "out"


def seen_in(out: Path) -> list[int]:
    """The numbers of the views that are kept."""
    with Collection(out / "views", read_only=True) as kept:
        return sorted(kept.ids.tolist())


def of(*ids: int) -> list[int]:
    return [id_ * PLACES + place for id_ in ids for place in range(len(NAMES))]


def test_views_are_the_picture_turned_and_parts_of_it() -> None:
    pixels = np.stack(
        [np.asarray(Image.fromarray(corners(20, 20))), square(1).repeat(2, 0).repeat(2, 1)[:20, :20]]
    )
    made = dict(zip(NAMES, views_of(pixels), strict=True))
    assert all(each.shape == pixels.shape and each.dtype == np.uint8 for each in made.values())
    assert np.array_equal(made["mirrored"], pixels[:, :, ::-1])
    assert np.array_equal(made["upside down"], pixels[:, ::-1, ::-1])
    assert np.array_equal(made["turned left"][0], np.rot90(pixels[0]))
    assert np.array_equal(made["turned right"][1], np.rot90(pixels[1], 3))
    whole = Image.fromarray(pixels[1]).crop((4, 0, 20, 16)).resize((20, 20), Image.Resampling.BICUBIC)
    assert np.abs(made["top right"][1].astype(int) - np.asarray(whole)).mean() < 12


def test_a_picture_is_found_once_by_its_best_view_and_named_by_it(
    out: Path, tmp_path: Path, pets: Path
) -> None:
    create(pets, tmp_path / "plain", **FULL | {"views": False})
    with Pictures.open(out) as pictures, Pictures.open(tmp_path / "plain") as plain:
        missed = 0
        for view, content in copies(square(7)).items():
            found = pictures.search(content, 20)
            assert (found[0].id, found[0].view) == (7, view)
            assert sorted(each.id for each in found) == list(range(20))
            assert [each.distance for each in found] == sorted(each.distance for each in found)
            missed += plain.search(content, 1)[0].id != 7
        assert missed >= 3  # which is what views are for
        assert pictures.search(copies(square(7))["mirrored"], 1)[0].distance == pytest.approx(0, abs=1)
        for mode in ("hamming", "asymmetric"):
            assert 7 in [each.id for each in pictures.search(copies(square(7))["mirrored"], 3, mode=mode)]
        whole = pictures.search(pets / "img3.png", 2)
        assert (whole[0].id, whole[0].view, whole[0].distance) == (3, "", 0)
        assert 3 not in [each.id for each in pictures.search(3, 20)]


def test_views_follow_pictures_that_are_added_changed_and_deleted(out: Path, pets: Path) -> None:
    put(pets / "img20.png", 20, (SIDE, SIDE))
    assert add([pets], out).added == 1
    assert seen_in(out) == of(*range(21))
    (pets / "img20.png").write_bytes(saved(square(50)))
    assert again(pets, out).replaced == 1
    with Pictures.open(out) as pictures:
        found = pictures.search(copies(square(50))["upside down"], 1)[0]
        assert (found.id, found.view) == (20, "upside down")
        assert pictures.search(copies(square(20))["upside down"], 1)[0].distance > 10
    (pets / "img4.png").unlink()
    add([pets], out, prune=True)
    assert seen_in(out) == of(*(id_ for id_ in range(21) if id_ != 4))


def test_what_was_deleted_elsewhere_is_not_found_by_its_views(out: Path, pets: Path) -> None:
    with Collection(out) as collection:
        collection.delete([7])
    with Pictures.open(out) as pictures:
        assert 7 not in [each.id for each in pictures.search(copies(square(7))["mirrored"], 20)]
        assert all(each.id != 7 for group in pictures.duplicates(16) for each in group)
    (pets / "img7.png").unlink()
    again(pets, out)
    assert 7 * PLACES not in seen_in(out)


@pytest.mark.parametrize("mode", ["hamming", "asymmetric"])
def test_a_view_is_found_behind_those_of_all_pictures_that_are_not_wanted(out: Path, mode: str) -> None:
    with Pictures.open(out) as pictures:
        views, asked = pictures.views(), pictures.collection.vectors([3])[0]
        assert views is not None
        every = views.search(asked, 20, mode=mode) + pictures.nearest(asked, 20, mode=mode)
        for id_ in range(20):
            (found,) = pictures.nearest(asked, 1, mode=mode, where=f"file = img{id_}.png")
            assert found.id == id_
            assert found.distance == min(each.distance for each in every if each.id == id_)


def test_views_may_be_wanted_later_and_stay_when_it_is_run_again(tmp_path: Path, pets: Path) -> None:
    place = tmp_path / "out"
    create(pets, place, **FULL | {"views": None})
    with Pictures.open(place) as pictures:
        assert pictures.views() is None
        report = again(pets, place, views=True)
        assert (report.replaced, report.unchanged, report.trained) == (20, 0, False)
        assert pictures.search(copies(square(7))["turned left"], 1)[0].view == "turned left"
    counting = Counting()
    report = again(pets, place, decoders=counting)
    assert (report.unchanged, report.views, counting.decoded) == (20, len(NAMES), 0)


def test_a_run_that_was_stopped_between_pictures_and_views_resumes(
    tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    monkeypatch.setattr(build, "BATCH", 8)
    put_views = Views.put

    def stop(self: Views, ids: list[int], *rest: Any) -> None:
        if 9 in ids:
            raise KeyboardInterrupt
        put_views(self, ids, *rest)

    with monkeypatch.context() as patched:
        patched.setattr("auxbit.images.sources.AHEAD", 16)
        patched.setattr("auxbit.images.build.fitting", lambda most, side: 8)
        patched.setattr(Views, "put", stop)
        with pytest.raises(KeyboardInterrupt):
            create(pets, place, **FULL)
    assert seen_in(place) == of(*range(8))
    again(pets, place)
    assert seen_in(place) == of(*range(20))
    create(pets, tmp_path / "whole", **FULL)
    codes = []
    for each in (place, tmp_path / "whole"):
        with Collection(each / "views", read_only=True) as kept:
            codes.append(kept.codes(of(*range(20))).tobytes())
    assert codes[0] == codes[1]


def test_views_have_the_model_of_the_pictures_after_it_was_fitted_again(out: Path, pets: Path) -> None:
    for number in range(20, 26):
        put(pets / f"img{number}.png", number, (SIDE, SIDE))
    with Pictures.open(out) as pictures:
        before = pictures.collection.state.model
        with Collection(out) as collection:
            collection.retrain(random_state=3)
        assert pictures.views() is None  # codes of two models are not compared
        assert pictures.search(copies(square(7))["mirrored"], 1)[0].view == ""
        add([pets], out, retrain=True)
        assert pictures.collection.state.model != before
        views = pictures.views()
        assert views is not None
        vectors = views.collection.vectors(of(25)).astype(np.float32)
        state = pictures.collection.state
        wanted = pictures.collection.model.encode(vectors, coding=state.coding, mu=state.mu)
        assert np.array_equal(views.collection.codes(of(25)), wanted)


def test_force_without_views_leaves_none_behind(out: Path, pets: Path) -> None:
    create(pets, out, **FULL | {"views": None}, overwrite=True)
    assert not (out / "views").exists()
    with Pictures.open(out) as pictures:
        assert pictures.views() is None


@pytest.mark.parametrize("view", ["mirrored", "turned left", "upside down", "turned right"])
def test_duplicates_are_found_by_views(tmp_path: Path, pets: Path, view: str) -> None:
    (pets / "z.png").write_bytes(copies(square(7))[view])
    create(pets, tmp_path / "out", **FULL)
    with Pictures.open(tmp_path / "out") as pictures:
        assert pictures.duplicates() == []
        ((kept, copy),) = (
            (one, each)
            for group in pictures.duplicates(0) for each in group if each.action == "delete"
            for one in group if one.id == each.of
        )  # fmt: skip
        assert kept.action == "keep"
        assert {Path(each.path).name for each in (kept, copy)} == {"img7.png", "z.png"}
        assert copy.why.startswith("0 bits apart, ")
        assert copy.why.endswith(", at distance 0")
        with pytest.raises(InvalidInput, match="radius=17 is invalid"):
            pictures.duplicates(17)
