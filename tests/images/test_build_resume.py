"""Collections of pictures that are gone on with: stopped work, changed files, more folders, moved ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auxbit.collection.collection import Collection
from auxbit.errors import CollectionError, Damaged, FileProblem, InvalidInput
from auxbit.images import build
from auxbit.images.pictures import Pictures
from helpers.picture_collections import Counting, Told, add, again, contents, create, files_of, folder_of, put


class Stop(BaseException):
    """As Ctrl-C, at a moment of the test's choosing."""


def stop_at(number: int) -> Any:
    def hook(decoded: int) -> None:
        if decoded == number:
            raise Stop("here")

    return hook


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder of 12 pictures."""
    return folder_of(tmp_path / "in", 12)


@pytest.fixture
def out(tmp_path: Path, pets: Path) -> Path:
    """A collection of them."""
    create(pets, tmp_path / "out", bits=4)
    return tmp_path / "out"


# ---- work that was stopped


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_wherever_reading_was_stopped_the_end_is_the_same(
    tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    monkeypatch.setattr(build, "BATCH", 4)
    monkeypatch.setattr(build, "fitting", lambda most, side: most)
    shutil.rmtree(tmp_path / "stopped", ignore_errors=True)
    if not (tmp_path / "whole").exists():
        create(pets, tmp_path / "whole", bits=4)
    for number in stops:
        try:
            create(pets, tmp_path / "stopped", bits=4, decoders=Counting(stop_at(number)))
        except Stop:
            continue
    create(pets, tmp_path / "stopped", bits=4)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.parametrize("stage", ["training", "decoder", "encoding"])
def test_wherever_the_model_was_stopped_the_end_is_the_same(tmp_path: Path, pets: Path, stage: str) -> None:
    class Stopping(Told):
        def stage(self, what: str, total: int | None) -> None:
            super().stage(what, total)
            if what == stage:
                raise Stop("here")

    create(pets, tmp_path / "whole", bits=4)
    with pytest.raises(Stop, match="here"):
        create(pets, tmp_path / "stopped", bits=4, progress=Stopping())
    with pytest.raises(
        CollectionError, match=r"its 12 pictures have no codes yet\. Resume with: auxbit images"
    ):
        Pictures.open(tmp_path / "stopped")
    with pytest.raises(CollectionError, match="is not finished"):
        add([pets], tmp_path / "stopped")
    counting = Counting()
    report = again(pets, tmp_path / "stopped", decoders=counting)
    assert (report.unchanged, report.trained, counting.decoded) == (12, True, 0)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_a_collection_that_was_only_just_made_is_begun_anew(tmp_path: Path, pets: Path) -> None:
    Collection.create(tmp_path / "out", bits=4, n_features=7, vectors="float16").close()
    assert create(pets, tmp_path / "out", bits=4).added == 12


def test_what_was_read_before_a_stop_is_not_read_again(
    tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "fitting", lambda most, side: 5)

    def broken(*args: object) -> None:
        raise Stop("here")

    with monkeypatch.context() as patched:
        patched.setattr(build, "fit_reporting", broken)
        with pytest.raises(Stop, match="here"):
            create(pets, tmp_path / "out", bits=4)
    put(pets / "new.png", 99)
    counting = Counting()
    report = again(pets, tmp_path / "out", decoders=counting)
    assert (report.added, report.unchanged, counting.decoded, report.items) == (1, 12, 1, 13)


# ---- files that change


def test_run_again_nothing_is_decoded_and_nothing_is_written(pets: Path, out: Path) -> None:
    before = {each.name: each.read_bytes() for each in out.iterdir() if each.name != "writer.lock"}
    counting = Counting()
    for work in (again, lambda folder, into, **options: add([folder], into, **options)):
        report = work(pets, out, decoders=counting)
        assert (report.unchanged, report.added, report.replaced, report.trained) == (12, 0, 0, False)
    assert counting.decoded == 0
    assert {each.name: each.read_bytes() for each in out.iterdir() if each.name != "writer.lock"} == before


def test_a_file_that_was_replaced_keeps_its_id(pets: Path, out: Path) -> None:
    before = contents(out)
    put(pets / "img3.png", 77)
    report = again(pets, out)
    assert (report.replaced, report.unchanged, report.items) == (1, 11, 12)
    after = contents(out)
    changed = str(pets / "img3.png")
    assert after[changed][0] == before[changed][0]
    assert all(new != old for new, old in zip(after[changed][1:3], before[changed][1:3]))
    assert after[changed][4] != before[changed][4]
    assert {path: each for path, each in after.items() if path != changed} == {
        path: each for path, each in before.items() if path != changed
    }


def test_a_file_that_was_only_touched_is_hashed_once_and_not_decoded(pets: Path, out: Path) -> None:
    before = contents(out)
    for place in range(5):
        os.utime(pets / f"img{place}.png", ns=(1, 10**18))
    counting = Counting()
    report = again(pets, out, decoders=counting)
    assert (report.unchanged, report.replaced, counting.decoded) == (12, 0, 0)
    assert contents(out) == before
    told = Told()
    again(pets, out, progress=told)
    assert [each.what for each in told.stages] == ["finding"]


def test_a_file_that_became_bad_is_listed_and_its_item_stays(pets: Path, out: Path) -> None:
    before = contents(out)
    (pets / "img5.png").write_bytes(b"no picture any more")
    report = again(pets, out)
    assert [name for name, _ in report.bad] == ["img5.png"]
    assert contents(out) == before


def test_files_that_are_gone_are_counted_and_deleted_when_asked(pets: Path, out: Path) -> None:
    (pets / "img1.png").unlink()
    (pets / "img2.png").rename(pets / "img2 renamed.png")
    put(pets / "img3.png", 70).rename(pets / "img3 renamed.png")
    report = again(pets, out)
    assert (report.missing, report.removed, report.added, report.moved, report.items) == (2, 0, 1, 1, 13)
    report = add([pets], out, prune=True)
    assert (report.missing, report.removed, report.items) == (0, 2, 11)
    assert {"img1.png", "img2.png", "img3.png"}.isdisjoint(files_of(out))


def test_only_what_was_in_the_places_named_is_pruned(tmp_path: Path, out: Path) -> None:
    folder_of(tmp_path / "other", 2)
    add([tmp_path / "other"], out)
    shutil.rmtree(tmp_path / "in")
    report = add([tmp_path / "other"], out, prune=True)
    assert (report.missing, report.removed, report.items) == (0, 0, 14)


def test_a_folder_that_is_empty_of_a_sudden_loses_nothing(pets: Path, out: Path) -> None:
    for each in pets.iterdir():
        each.unlink()
    with pytest.raises(FileProblem, match=r"there are no pictures in .*: expected files that end in .*png"):
        add([pets], out, prune=True)
    assert len(files_of(out)) == 12


# ---- other places


def test_single_files_and_folders_are_added(tmp_path: Path, pets: Path, out: Path) -> None:
    more = folder_of(tmp_path / "more", 3)
    single = put(tmp_path / "alone" / "cat.png", 50)
    put(tmp_path / "alone" / "dog.png", 51)
    report = add([more, single, pets / "img0.png"], out)
    assert (report.added, report.unchanged, report.items) == (4, 1, 16)
    assert files_of(out)[12:] == ["img0.png", "img1.png", "img2.png", "cat.png"]
    with Pictures.open(out) as pictures:
        assert pictures.roots == (str(pets), str(more), str(tmp_path / "alone"))
        assert pictures.original(15) == single.read_bytes()


def test_a_root_is_the_same_however_it_is_spelt(
    tmp_path: Path, pets: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(pets)
    monkeypatch.chdir(tmp_path)
    for spelling in ("in", "./in/", "in/../in", tmp_path / "link", pets / "."):
        report = again(spelling, out)
        assert (report.unchanged, report.added, report.items) == (12, 0, 12)
    report = add(["in", "link", pets / "img1.png", "in/img2.png"], out)
    assert (report.unchanged, report.added) == (12, 0)


def test_a_folder_within_a_root_is_named_within_it(pets: Path, out: Path) -> None:
    put(pets / "cats" / "tom.png", 60)
    put(pets / "cats" / "new" / "kit.png", 61)
    assert add([pets / "cats" / "tom.png"], out).added == 1
    assert add([pets / "cats"], out).added == 1
    assert files_of(out)[12:] == ["cats/tom.png", "cats/new/kit.png"]
    assert again(pets, out).unchanged == 14
    with Pictures.open(out) as pictures:
        assert pictures.roots == (str(pets),)


def test_a_collection_within_the_folder_is_not_walked_into(pets: Path) -> None:
    inside = pets / "pets.auxbit"
    create(pets, inside, bits=4)
    (inside / "stray.png").write_bytes((pets / "img0.png").read_bytes())
    report = again(pets, inside)
    assert (report.unchanged, report.added, report.bad) == (12, 0, [])


def test_a_collection_that_was_moved_still_has_its_pictures(tmp_path: Path, pets: Path, out: Path) -> None:
    before = contents(out)
    out.rename(tmp_path / "elsewhere")
    assert contents(tmp_path / "elsewhere") == before
    with Pictures.open(tmp_path / "elsewhere") as pictures:
        assert pictures.original(0) == (pets / "img0.png").read_bytes()
    assert again(pets, tmp_path / "elsewhere").unchanged == 12


@pytest.mark.parametrize("views", [False, True])
def test_pictures_that_were_moved_keep_their_items(tmp_path: Path, views: bool) -> None:
    pets, there, out = folder_of(tmp_path / "in", 12), tmp_path / "there", tmp_path / "out"
    shutil.copy(pets / "img4.png", pets / "same.png")
    shutil.copy(pets / "img5.png", pets / "stays.png")
    create(pets, out, bits=4, views=views)
    before = sorted(contents(out).values())
    there.mkdir()
    for number, each in enumerate(sorted(pets.glob("img*.png"))):
        each.rename(there / f"{number}.png")
    (pets / "same.png").rename(there / "same.png")
    (there / "0.png").unlink()
    report = add([there], out)
    assert (report.added, report.unchanged, report.moved, report.items) == (0, 0, 12, 14)
    assert sorted(contents(out).values()) == before
    assert again(there, out).unchanged == 12
    assert again(pets, out, prune=True).removed == 1
    with Pictures.open(out) as pictures:
        every = pictures.collection.ids
        assert {pictures.original(id_) for id_ in every} == {
            each.read_bytes() for each in [*there.iterdir(), pets / "stays.png"]
        }


def test_a_root_that_is_gone_names_what_to_do(tmp_path: Path, pets: Path, out: Path) -> None:
    shutil.rmtree(pets)
    other = put(tmp_path / "other" / "new.png", 90).parent
    for call in (lambda: again(pets, out), lambda: add([other, pets], out, prune=True)):
        with pytest.raises(
            FileProblem, match=r"does not exist\. If its pictures were moved, .*--where 'root="
        ):
            call()
    assert len(files_of(out)) == 12
    add([other], out)
    with Collection(out) as collection:
        assert collection.delete(where=f'root="{pets}"') == 12


def test_another_folder_is_not_merged_by_create_and_the_command_that_adds_it_is_named(
    tmp_path: Path, pets: Path, out: Path
) -> None:
    other, before = folder_of(tmp_path / "other folder", 3), contents(out)
    for folder in (other, tmp_path, put(tmp_path / "alone.png", 7)):
        with pytest.raises(InvalidInput, match=r"from .*in, not from .*: auxbit images add .*--force"):
            again(folder, out)
    assert contents(out) == before
    put(pets / "cats" / "tom.png", 60)
    assert again(pets / "cats", out).items == 13  # which is within the folder
    add([other], out)
    assert again(other, out).items == 16
    assert again(pets, out).items == 16


# ---- other recipes and models


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"side": 9}, "--side 8, not 9"),
        ({"grey": True}, "--grey False, not True"),
        ({"features": "gist"}, "--features pixels, not gist"),
    ],
)
def test_another_recipe_is_refused_and_named(
    pets: Path, out: Path, other: dict[str, Any], difference: str
) -> None:
    before = contents(out)
    with pytest.raises(InvalidInput, match=f"was made with {difference}.*--force"):
        again(pets, out, **other)
    assert contents(out) == before


@pytest.mark.parametrize("other", [{"bits": 5}, {"method": "lsh"}, {"seed": 1}])
def test_another_model_is_refused_once_there_is_one(pets: Path, out: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"has a model already.* `auxbit collection retrain"):
        again(pets, out, **other)
    assert create(pets, out, bits=4, seed=0).unchanged == 12


def test_force_begins_anew_and_an_open_reader_follows(pets: Path, out: Path) -> None:
    with Pictures.open(out) as pictures:
        old = pictures.thumbnail(11)
        (pets / "img11.png").unlink()
        for place in range(11):
            put(pets / f"img{place}.png", 100 + place)
        report = create(pets, out, side=10, bits=3, overwrite=True)
        assert (report.added, report.items) == (11, 11)
        assert pictures.recipe.side == 10
        assert pictures.thumbnail(10) != old
        assert len(pictures) == 11
        assert len(pictures.search(3, k=20)) == 10
    assert not (out / "comparison.json").exists()


def test_retraining_takes_in_what_was_added_since(pets: Path, out: Path) -> None:
    before = contents(out)
    for place in range(20, 30):
        put(pets / f"img{place}.png", place)
    report = add([pets], out, retrain=True)
    assert (report.added, report.trained, report.items) == (10, True, 22)
    after = contents(out)
    assert all(after[path][:3] == each[:3] for path, each in before.items())
    with Pictures.open(out) as pictures:
        assert pictures.collection.state.trained == 22
        assert pictures.collection.state.coding == "optimal"


def test_a_model_that_most_pictures_came_after_is_fitted_again_unless_told_not_to(
    pets: Path, out: Path
) -> None:
    for place in range(20, 32):
        put(pets / f"img{place}.png", place)
    report = again(pets, out)
    assert (report.items, report.trained, report.fitted) == (24, False, 12)
    put(pets / "img40.png", 40)
    report = add([pets], out, retrain=False)
    assert (report.items, report.trained, report.fitted) == (25, False, 12)
    report = again(pets, out)
    assert (report.items, report.trained, report.fitted) == (25, True, 25)
    whole = out.with_name("whole")
    create(pets, whole, bits=4)
    assert contents(whole).keys() == contents(out).keys()
    codes = [{path: each[3] for path, each in contents(place).items()} for place in (out, whole)]
    assert codes[0] == codes[1]  # as if all had been there at first


def test_a_damaged_description_says_so(pets: Path, out: Path) -> None:
    def say(text: str) -> None:
        with Collection(out) as collection:
            collection.about = text

    with Collection(out) as collection:
        whole = collection.about or ""
    for text, reason in (
        ("{", "not JSON"),
        ("[]", "has unexpected contents"),
        (whole.replace('"bits"', '"bots"'), "bits"),
    ):
        say(text)
        with pytest.raises(Damaged, match=f"out: the description of its pictures .*{reason}"):
            Pictures.open(out)
    say(whole.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(CollectionError, match="Upgrade: pip install"):
        again(pets, out)
