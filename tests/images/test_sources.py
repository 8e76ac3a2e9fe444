"""The pictures in a folder: which are found, under which names, in which order."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import helpers.picture_files as files
from auxbit import LSH, Collection
from auxbit.errors import FileProblem
from auxbit.images.sources import natural, walk

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes, and permissions")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def put(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))


def names(folder):
    return [found.name for found in walk(folder)]


def test_pictures_are_found_in_folders_within_folders_in_natural_order(tmp_path):
    put(
        tmp_path,
        "img10.png",
        "img2.png",
        "IMG3.JPG",
        "b/c/d.webp",
        "a/9.gif",
        "a/10.tiff",
        "a-b/1.jpeg",
        "readme.txt",
    )
    assert names(tmp_path) == [
        "a/9.gif",
        "a/10.tiff",
        "a-b/1.jpeg",
        "b/c/d.webp",
        "img2.png",
        "IMG3.JPG",
        "img10.png",
    ]


def test_what_is_found_tells_path_size_and_time(tmp_path):
    put(tmp_path, "a/b.png")
    os.utime(tmp_path / "a/b.png", ns=(1, 1_234_567_891_000_000_000))
    (found,) = walk(tmp_path)
    assert (Path(found.path), found.name) == (tmp_path / "a/b.png", "a/b.png")
    assert (found.size, found.mtime_ns) == (7, 1_234_567_891_000_000_000)


@pytest.mark.parametrize(
    "suffix",
    [".jpg", ".jfif", ".png", ".webp", ".gif", ".tif", ".bmp", ".avif", ".heic", ".JPG", ".TiFf", ".HEIC"],
)
def test_every_suffix_counts_in_any_case(tmp_path, suffix):
    put(tmp_path, f"a{suffix}", "a.mov", "png", "a.png.txt")
    assert names(tmp_path) == [f"a{suffix}"]


def test_what_is_left_out_is_named_if_it_may_be_a_picture_and_counted_if_not(tmp_path):
    put(tmp_path, "a.png", "b.svg", "raw/c.CR2", ".hidden.jxl")
    put(tmp_path, "notes.txt", "raw/more.txt", "film.mov", "README")
    skipped, others = [], Counter()
    assert [found.name for found in walk(tmp_path, skipped, others)] == ["a.png"]
    assert sorted(name for name, _ in skipped) == ["b.svg", "raw/c.CR2"]
    assert {reason for _, reason in skipped} == {
        "is not read: JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC pictures are"
    }
    assert others == {".txt": 2, ".mov": 1, "": 1}


def test_what_the_support_module_writes_is_what_is_found(tmp_path):
    assert names(tmp_path) == []
    assert files.fill(tmp_path, 12) == names(tmp_path)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    put(tmp_path, ".a.png", ".thumbs/b.png", "c/.d/e.png", "f.png")
    assert names(tmp_path) == ["f.png"]


def test_a_hidden_folder_that_is_named_is_walked(tmp_path):
    put(tmp_path, ".mine/a.png")
    assert names(tmp_path / ".mine") == ["a.png"]


def test_a_single_file_is_found_whatever_its_suffix(tmp_path):
    put(tmp_path, "photo", "b.png")
    (found,) = walk(tmp_path / "photo")
    assert (Path(found.path), found.name, found.size) == (tmp_path / "photo", "photo", 5)


def test_a_folder_may_be_named_as_text_and_relative(tmp_path, monkeypatch):
    put(tmp_path, "a/b.png")
    monkeypatch.chdir(tmp_path)
    (found,) = walk("a")
    assert Path(found.path) == Path("a/b.png")
    (found,) = walk(".")
    assert found.name == "a/b.png"


# ---- what is not there, or no folder


def test_a_folder_that_does_not_exist_is_named_with_a_remedy(tmp_path):
    with pytest.raises(
        FileProblem, match=r"nowhere does not exist\. Name a folder of pictures, or a picture\."
    ):
        walk(tmp_path / "nowhere")


def test_what_is_neither_folder_nor_file_is_refused():
    with pytest.raises(FileProblem, match=r"/dev/null is neither a folder nor a file"):
        walk(Path("/dev/null"))


def test_a_path_through_a_file_is_a_problem_of_the_path(tmp_path):
    put(tmp_path, "a.png")
    with pytest.raises(FileProblem, match=r"a\.png.b cannot be read: Not a directory"):
        walk(tmp_path / "a.png" / "b")


def test_a_collection_is_not_walked(tmp_path):
    put(tmp_path, "a.png", "pets.auxbit/x/stray.png")
    (tmp_path / "pets.auxbit" / "collection.sqlite").write_text("{}")
    skipped = []
    assert [found.name for found in walk(tmp_path, skipped)] == ["a.png"]
    assert skipped == []  # it is no picture that somebody would miss
    with pytest.raises(FileProblem, match=r"pets\.auxbit is a collection of auxbit\. Name the folder"):
        walk(tmp_path / "pets.auxbit")


def test_a_collection_that_was_made_is_known_as_one(tmp_path, digits):
    Collection.create(tmp_path / "c", LSH(8, random_state=0).fit(digits[:50])).close()
    with pytest.raises(FileProblem, match="is a collection of auxbit"):
        walk(tmp_path / "c")


# ---- links


def test_a_folder_is_found_under_its_own_name_and_not_again_through_links(tmp_path):
    put(tmp_path, "m/real/a.png")
    (tmp_path / "alias").symlink_to(tmp_path / "m" / "real")
    (tmp_path / "m" / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "z").symlink_to(tmp_path / "m")
    assert names(tmp_path) == ["m/real/a.png"]


def test_links_that_lead_out_of_the_folder_are_told_and_not_followed(tmp_path):
    put(tmp_path, "elsewhere/deep/a.png", "here/b.png", "here too/c.png", "here/d/e.png")
    here = tmp_path / "here"
    (here / "folder").symlink_to(tmp_path / "elsewhere")
    (here / "file.png").symlink_to(tmp_path / "elsewhere" / "deep" / "a.png")
    (here / "beside.png").symlink_to(Path("..") / "here too" / "c.png")
    (here / "notes.txt").symlink_to(tmp_path / "elsewhere" / "deep" / "a.png")
    (here / "d" / "through").symlink_to(here / "folder")
    (here / "inside.png").symlink_to(here / "b.png")
    (tmp_path / "door").symlink_to(here)  # the folder itself may be a link
    for top in (here, tmp_path / "door"):
        skipped = []
        assert [found.name for found in walk(top, skipped)] == ["b.png", "d/e.png", "inside.png"]
        assert sorted(name for name, _ in skipped) == ["beside.png", "d/through", "file.png", "folder"]
        assert all("is a link that leads out of the folder" in reason for _, reason in skipped)


def test_a_link_to_a_file_is_found_and_one_to_nothing_is_told(tmp_path):
    put(tmp_path, "a.png")
    (tmp_path / "b.png").symlink_to("a.png")
    (tmp_path / "c.png").symlink_to("gone.png")
    (tmp_path / "d.png").symlink_to("d.png")
    (tmp_path / "e.txt").symlink_to("gone.txt")
    skipped = []
    assert [found.name for found in walk(tmp_path, skipped)] == ["a.png", "b.png"]
    assert [name for name, _ in sorted(skipped)] == ["c.png", "d.png"]
    assert all(reason.startswith("cannot be read: ") for _, reason in skipped)


# ---- what cannot be read


@LINUX
def test_a_pipe_named_like_a_picture_is_told_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    skipped = []
    assert walk(tmp_path, skipped) == []
    assert skipped == [("a.png", "is not a regular file")]


@LINUX
def test_names_that_are_not_utf_8_are_told(tmp_path):
    put(tmp_path, "gr\u00fc\u00dfe \u4e2d.png", "new\nline.png")
    for name in (b"caf\xe9.jpg", b"caf\xe9.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")), "in.png")
    skipped = []
    assert [found.name for found in walk(tmp_path, skipped)] == [
        "gr\u00fc\u00dfe \u4e2d.png",
        "new\nline.png",
    ]
    reason = "has a name that is not UTF-8"
    assert sorted(skipped) == [(r"caf\xe9.jpg", reason), (r"d\xff", reason)]
    with pytest.raises(FileProblem, match=r"d\\xff has a name that is not UTF-8\. Rename it\."):
        walk(Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")))


@LINUX
@pytest.mark.skipif(ROOT, reason="root may read everything")
def test_a_folder_without_permission_is_told_and_the_others_are_walked(tmp_path):
    put(tmp_path, "a/b.png", "c/d.png")
    (tmp_path / "a").chmod(0)
    try:
        skipped = []
        assert [found.name for found in walk(tmp_path, skipped)] == ["c/d.png"]
        assert skipped == [("a", "cannot be read: Permission denied")]
        with pytest.raises(FileProblem, match="a cannot be read: its permissions do not allow it"):
            walk(tmp_path / "a")
    finally:
        (tmp_path / "a").chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_told_and_the_others_are_walked(tmp_path, monkeypatch):
    put(tmp_path, "a/b.png", "c/d.png")
    real = os.scandir

    def scandir(path):
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    skipped = []
    assert [found.name for found in walk(tmp_path, skipped)] == ["c/d.png"]
    assert skipped == [("a", "cannot be read: Permission denied")]


def test_folders_may_be_nested_deeply(tmp_path):
    deep = "/".join(["d"] * 200)
    put(tmp_path, f"{deep}/a.png")
    assert names(tmp_path) == [f"{deep}/a.png"]


# ---- natural order


def test_a_file_and_a_folder_whose_names_differ_in_case_are_sorted(tmp_path):
    put(tmp_path, "a.png", "A.png/b.png", "a.PNG.png")
    assert sorted(names(tmp_path)) == ["A.png/b.png", "a.PNG.png", "a.png"]


@given(st.lists(st.text(st.sampled_from("aAB10/.é²٣ "), max_size=8)))
def test_natural_order_can_sort_any_names_and_tells_different_ones_apart(texts):
    other_way = texts[::-1]
    assert sorted(other_way, key=natural) == sorted(texts, key=natural)
    assert len({natural(text) for text in texts}) == len(set(texts))


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_numbers_are_sorted_by_their_value(a, b):
    assert (natural(f"img{a}.png") < natural(f"img{b}.png")) == (a < b)
