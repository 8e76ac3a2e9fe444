"""`auxbit images`: what its commands print, refuse, and leave behind when they are stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auxbit.cli.reference import reference
from auxbit.collection.collection import Collection
from auxbit.collection.storage import State, is_collection
from helpers.cli_runner import run, run_json
from helpers.picture_collections import contents, folder_of, put
from helpers.picture_files import noise, saved
from helpers.picture_network import network, text_network, tokenizer

COMMANDS = ("create", "add", "search", "duplicates", "compare")
FEW = ("--features", "pixels", "--side", "8", "--bits", "4", "--method", "itq", "--jobs", "1")


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with 12 pictures in `in`."""
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "in", 12)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 24 pictures in `in` and their collection, pets.auxbit, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("made")
    run("images", "create", folder_of(folder / "in", 24), "--out", folder / "pets.auxbit", *FEW)
    return folder


def images(*arguments: object, code: int = 0) -> Any:
    return run("images", *arguments, code=code)


# ---- the group


def test_without_a_command_the_help_lists_them() -> None:
    shown = run("images", code=2).output
    assert all(f"  {command}  " in shown for command in COMMANDS)
    assert "Did you mean 'create'?" in images("crate", code=2).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str) -> None:
    assert f"Usage: auxbit images {command}" in images(command, "--help").stdout
    section = reference().split(f"## auxbit images {command}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines
    assert all(len(line.split(" | ")[1]) > 10 for line in lines)


def test_help_is_there_without_importing_what_is_heavy() -> None:
    code = (
        "import sys\nfrom auxbit.cli.app import app\n"
        "try:\n    app(['images', 'create', '--help'])\nexcept SystemExit:\n    pass\n"
        "print({'numpy', 'sklearn', 'numba', 'PIL', 'onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create"], "Missing argument 'DIR'"),
        (["create", "in"], "Missing option '--out'"),
        (["create", "in", "--out", "x", "--features", "gost"], "'gost' is not one of gist, pixels."),
        (["create", "in", "--out", "x", "--method", "baa"], "Did you mean ba?"),
        (["create", "in", "--out", "x", "--bits", "many"], "Invalid value for '--bits'"),
        (["create", "in", "--out", "x", "--bits", "0"], "--bits=0 is invalid"),
        (["create", "in", "--out", "x", "--mean", "0.5"], "'0.5' is not three numbers such as 0.485,"),
        (["create", "in", "--out", "x", "--mean", "1,2,x"], "'1,2,x' is not three numbers"),
        (["create", "in", "--out", "x", "--colour", "-1"], "--colour=-1.0 is invalid"),
        (["create", "in", "--out", "x", "--side", "4"], "--side=4 is invalid"),
        (["add"], "Missing argument 'COLLECTION'"),
        (["add", "x"], "Missing argument 'FILE_OR_DIR'"),
        (["search", "x"], "give one of PICTURE, --id N and --text WORDS."),
        (["search", "x", "y.png", "--id", "3"], "give one of PICTURE, --id N and --text WORDS."),
        (["search", "x", "--id", "3", "--mode", "haming"], "'haming' is not one of hamming, asymmetric"),
        (["duplicates", "x", "--out", "list.txt"], "a name that ends in .csv or .sh"),
        (["compare", "x", "--bits", "8,x"], "'8,x' is not a list of integers"),
    ],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_2(pets: Path, arguments: list[str], said: str) -> None:
    assert said in " ".join(images(*arguments, code=2).stderr.split())
    assert not (pets / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "nowhere", "--out", "x"], "nowhere does not exist. Name a folder of pictures"),
        (["create", "empty", "--out", "x"], "there are no pictures in empty"),
        (["create", "in", "--out", "x", "--model", "net.onnx"], "net.onnx cannot be read: No such file"),
        (["create", "in", "--out", "x", "--model", "text.onnx"], "text.onnx is not an ONNX network"),
        (["create", "in", "--out", "full"], "full exists"),
        (["add", "x", "in"], "x does not exist."),
        (["search", "x", "in/img1.png"], "x does not exist."),
        (["compare", "x"], "x does not exist."),
        (["duplicates", "x"], "x does not exist."),
        (["search", "in", "in/img1.png"], "in is not a collection. Collections of pictures are made by"),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_with_1(pets: Path, arguments: list[str], said: str) -> None:
    (pets / "empty").mkdir()
    (pets / "full").mkdir()
    (pets / "full" / "text.onnx").write_text("mine")
    (pets / "text.onnx").write_text("no network")
    result = images(*arguments, code=1)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (pets / "x").exists()


# ---- create and add


def test_create_says_what_it_made_and_what_comes_next(pets: Path) -> None:
    shown = images("create", "in", "--out", "pets.auxbit", *FEW).stdout
    assert "pictures    12 (12 added)" in shown
    assert "features    pixels, of 8 × 8 pixels, 192-D" in shown
    assert "codes       4 bits, ITQ, fitted to 12 pictures" in shown
    assert shown.endswith("\nNext: auxbit serve pets.auxbit\n")
    again = images("create", "in", "--out", "pets.auxbit").stdout
    assert "pictures    12 (12 unchanged)" in again


def test_bad_files_are_listed_the_first_ten_of_them(pets: Path) -> None:
    for number in range(13):
        (pets / "in" / f"bad{number}.jpg").write_text("no picture")
    shown = images("create", "in", "--out", "pets.auxbit", *FEW).stdout
    assert "Not read: 13\n  bad0.jpg is not a JPEG" in shown
    assert "bad9.jpg" in shown
    assert "bad10.jpg" not in shown
    assert "  and 3 more; --json lists all\n" in shown
    document = run_json("images", "create", "in", "--out", "pets.auxbit")
    assert [each["file"] for each in document["bad"]] == [f"bad{number}.jpg" for number in range(13)]
    assert (document["items"], document["unchanged"], document["trained"]) == (12, 12, False)


def test_a_folder_of_bad_files_exits_with_1_and_names_them(pets: Path) -> None:
    (pets / "bad").mkdir()
    (pets / "bad" / "a.jpg").write_text("no picture")
    result = images("create", "bad", "--out", "pets.auxbit", code=1)
    assert "none of the 1 pictures could be read.\n  a.jpg " in result.stderr
    assert not (pets / "pets.auxbit").exists()


def test_add_takes_files_and_folders_and_prunes_when_asked(pets: Path) -> None:
    images("create", "in", "--out", "pets.auxbit", *FEW)
    put(pets / "alone.png", 50)
    put(pets / "in" / "more" / "new.png", 51)
    (pets / "in" / "img3.png").unlink()
    shown = images("add", "pets.auxbit", "alone.png", "in").stdout
    assert "pictures    14 (2 added, 11 unchanged)" in shown
    assert "The files of 1 items are gone; --prune deletes these." in shown
    shown = images("add", "pets.auxbit", "in", "--prune").stdout
    assert "pictures    13 (12 unchanged, 1 deleted)" in shown
    document = run_json("images", "add", "pets.auxbit", "in", "--retrain")
    assert (document["trained"], document["items"], document["method"]) == (True, 13, "ITQ")


def test_another_recipe_is_refused_and_force_begins_anew(pets: Path) -> None:
    images("create", "in", "--out", "pets.auxbit", *FEW)
    said = images("create", "in", "--out", "pets.auxbit", "--grey", code=1).stderr
    assert "was made with --grey False, not True." in said
    document = run_json("images", "create", "in", "--out", "pets.auxbit", "--grey", "--force", *FEW)
    assert document["features"] == {"kind": "pixels", "side": 8, "grey": True}
    assert document["added"] == 12


def test_a_network_makes_the_vectors(pets: Path) -> None:
    (pets / "net.onnx").write_bytes(network([None, 3, 24, 24]))
    options = ("--model", "net.onnx", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")
    document = run_json("images", "create", "in", "--out", "pets.auxbit", *options, "--bits", 2, "--jobs", 1)
    assert document["features"]["kind"] == "onnx"
    assert document["features"]["mean"] == [0.5, 0.5, 0.5]
    assert document["dimensions"] == 3
    (pets / "net.onnx").unlink()  # a copy is kept
    assert run_json("images", "create", "in", "--out", "pets.auxbit")["unchanged"] == 12
    found = run_json("images", "search", "pets.auxbit", "in/img4.png", "--mode", "reranked", "--k", 1)
    assert found["results"][0]["file"] == "img4.png"
    (pets / "net.onnx").write_bytes(network([None, 3, 24, 24], scale=2.0))
    said = images("create", "in", "--out", "pets.auxbit", "--model", "net.onnx", code=1).stderr
    assert "was made with another --model." in said


# ---- search and compare


def test_search_prints_the_nearest(made: Path) -> None:
    shown = images(
        "search", made / "pets.auxbit", made / "in" / "img5.png", "--k", 3, "--mode", "reranked"
    ).stdout
    rows = [line.split() for line in shown.splitlines() if "img" in line]
    assert len(rows) == 3
    assert rows[0] == ["5", "0", "img5.png"]
    assert images("search", made / "pets.auxbit", "--id", 5, "--mode", "hamming").stdout.count("img") == 10


def test_search_as_json(made: Path) -> None:
    found = run_json("images", "search", made / "pets.auxbit", "--id", 5, "--k", 4)
    assert (found["query"], found["mode"], found["items"]) == (5, "reranked", 24)
    assert len(found["results"]) == 4
    assert set(found["results"][0]) == {"id", "file", "distance", "view"}


def test_views_are_kept_when_asked_and_name_what_was_found(pets: Path) -> None:
    shown = images("create", "in", "--out", "pets.auxbit", "--views", *FEW).stdout
    assert "views       9 more codes per picture" in shown
    with Image.open(pets / "in" / "img5.png") as image:
        image.transpose(Image.Transpose.ROTATE_180).save(pets / "turned.png")
    shown = images("search", "pets.auxbit", "turned.png", "--k", 2).stdout
    row = next(line for line in shown.splitlines() if "img5.png" in line)
    assert row.split()[2:] == ["upside", "down", "img5.png"]


def test_words_find_pictures_with_a_network_for_them(pets: Path) -> None:
    for name, content in (("net.onnx", network([None, 3, 8, 8])), ("text.onnx", text_network())):
        (pets / name).write_bytes(content)
    (pets / "tokenizer.json").write_bytes(tokenizer())
    (pets / "in" / "blue.png").write_bytes(saved(np.full((9, 9, 3), (0, 0, 255), dtype=np.uint8)))
    words = ("--text-model", "text.onnx", "--tokenizer", "tokenizer.json")
    images("create", "in", "--out", "pets.auxbit", "--model", "net.onnx", *words, "--bits", 2, "--jobs", 1)
    found = run_json("images", "search", "pets.auxbit", "--text", "blue", "--k", 1)
    assert (found["query"], found["results"][0]["file"]) == ("blue", "blue.png")
    assert "blue.png" in images("search", "pets.auxbit", "--text", "blue").stdout
    assert "--text='' is invalid" in images("search", "pets.auxbit", "--text", "", code=2).stderr


def test_a_collection_without_a_network_for_words_says_what_it_needs(made: Path) -> None:
    said = images("search", made / "pets.auxbit", "--text", "cat", code=1).stderr
    assert "cannot be searched by words" in said
    assert "--text-model and --tokenizer" in said


def test_duplicates_are_listed_and_written_and_nothing_is_deleted(pets: Path) -> None:
    for name in ("b\x1b[31m\n.png", "c.png"):
        put(pets / "in" / name, 3)
    images("create", "in", "--out", "pets.auxbit", *FEW)
    before = sorted((pets / "in").iterdir())
    result = images("duplicates", "pets.auxbit")
    assert "\x1b" not in result.stdout
    assert "1 group of the same bytes among 14 pictures; 2 could be deleted, " in result.stdout
    assert "Nothing was deleted.\n--out list.csv writes all of them" in result.stdout
    assert "Written to list.csv." in images("duplicates", "pets.auxbit", "--out", "list.csv").stdout
    assert "list.csv exists" in images("duplicates", "pets.auxbit", "--out", "list.csv", code=1).stderr
    images("duplicates", "pets.auxbit", "--out", "list.csv", "--force", "--radius", 1)
    document = run_json("images", "duplicates", "pets.auxbit", "--out", "list.sh")
    assert (document["items"], document["radius"], document["written"]) == (14, None, "list.sh")
    assert [each["action"] for each in document["groups"][0]] == ["keep", "delete", "delete"]
    assert (pets / "list.sh").read_text().startswith("#!/bin/sh\n")
    assert sorted((pets / "in").iterdir()) == before
    for name in ("b\x1b[31m\n.png", "c.png"):
        (pets / "in" / name).unlink()
    assert images("duplicates", "pets.auxbit").stdout.startswith("0 groups of the same bytes among 14")
    assert "Written to none.csv." in images("duplicates", "pets.auxbit", "--out", "none.csv").stdout


def test_search_for_what_is_no_picture_exits_with_1(made: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    assert (
        "text.jpg is not a JPEG, PNG"
        in images("search", made / "pets.auxbit", tmp_path / "text.jpg", code=1).stderr
    )
    assert "item 99 is not in" in images("search", made / "pets.auxbit", "--id", 99, code=1).stderr


def test_compare_prints_and_keeps_a_table(made: Path) -> None:
    arguments = ("images", "compare", made / "pets.auxbit", "--bits", "4,8", "--methods", "itq,lsh", "--k", 5)
    shown = run(*arguments).stdout
    said = " ".join(shown.split())
    assert "4 pictures searched for among 20: precision of the 5 nearest against 20 true" in said
    assert f"Next: auxbit serve {made / 'pets.auxbit'}" in shown
    kept = json.loads((made / "pets.auxbit" / "comparison.json").read_text())
    assert kept["command"].startswith("auxbit images compare ")
    assert run_json(*arguments)["rows"] == kept["rows"]


# ---- stopped


def started(*arguments: str) -> Any:
    command = [sys.executable, "-m", "auxbit", "images", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def state_of(folder: Path) -> State:
    with Collection(folder, read_only=True) as collection:
        return collection.state


def wait_for_rows(folder: Path, rows: int, process: Any) -> None:
    """Until so many rows are in a collection."""
    for _ in range(6000):
        if is_collection(folder) and state_of(folder).positions >= rows:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("nothing was read")


@pytest.mark.slow
def test_a_killed_and_an_interrupted_run_end_as_one_that_was_not(pets: Path) -> None:
    for number in range(520):
        (pets / "in" / f"n{number}.png").write_bytes(saved(noise(9, 9, seed=number)))
    images("create", "in", "--out", "whole.auxbit", *FEW)
    with started("create", "in", "--out", "pets.auxbit", *FEW) as process:
        wait_for_rows(pets / "pets.auxbit", 256, process)
        process.kill()
    with started("create", "in", "--out", "pets.auxbit", "--force", *FEW) as process:
        key = state_of(pets / "pets.auxbit").key
        while state_of(pets / "pets.auxbit").key == key:
            assert process.poll() is None
            time.sleep(0.01)
        wait_for_rows(pets / "pets.auxbit", 256, process)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C: the decoders get it, too
        stdout, stderr = process.communicate(timeout=60)
    if process.returncode != 0:  # it may have been faster
        assert (process.returncode, stdout) == (130, "")
        assert "Traceback" not in stderr
        assert "What was done is kept in pets.auxbit." in stderr
        goes_on = next(line for line in stderr.splitlines() if line.startswith("auxbit"))
        assert "--force" not in goes_on
        shown = run(*shlex.split(goes_on)[1:]).stdout
        assert "unchanged" in shown
    assert contents("pets.auxbit") == contents("whole.auxbit")


def test_what_is_left_out_is_said_and_what_most_pictures_came_after(pets: Path) -> None:
    images("create", "in", "--out", "pets.auxbit", *FEW)
    folder_of(pets / "more", 20)
    (pets / "more" / "scan.psd").write_text("no picture")
    (pets / "more" / "b\x1b[31m.t\nxt").write_text("no picture")
    (pets / "more" / "out.png").symlink_to(pets / "in" / "img1.png")
    shown = images("add", "pets.auxbit", "more", "--no-retrain").stdout
    assert "Not read: 2\n" in shown
    assert "  scan.psd is not read: JPEG, PNG, WebP" in shown
    assert "  out.png is a link that leads out of the folder" in shown
    assert "Not pictures by their names: 1 file (1 .t\\x0axt)" in shown
    assert "Most pictures came after the model was fitted; --retrain fits a new one to all." in shown
    shown = images("add", "pets.auxbit", "more").stdout
    assert "fitted to 32 pictures" in shown
    assert "Most pictures" not in shown


def test_errors_cannot_write_to_the_terminal(pets: Path) -> None:
    (pets / "bad\x1b[31m\n").mkdir()
    (pets / "bad\x1b[31m\n" / "a\x1b[2Jb\nc.jpg").write_text("no picture")
    said = images("create", "bad\x1b[31m\n", "--out", "x", code=1).stderr
    assert "  a\\x1b[2Jb\\x0ac.jpg is not a JPEG" in said
    assert "\x1b" not in images("create", "bad\x1b[31m", "--out", "x", code=1).stderr


def test_names_cannot_write_to_the_terminal(pets: Path) -> None:
    (pets / "in" / "evil\x1b[31m.png").write_text("no picture")
    shown = images("create", "in", "--out", "pets.auxbit", *FEW).stdout
    assert "\x1b" not in shown
    assert "evil\\x1b[31m.png is not a JPEG" in shown
