"""The folder of a fit's state: what resumes, what is refused, what is damaged."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from auxbit import ITQ
from auxbit.core.files import WriterLock
from auxbit.errors import FileExists, FileProblem, InUse, InvalidInput
from auxbit.mac.checkpoint import FORMAT
from auxbit.mac.rows import CodePair
from helpers.large_rows import history_of, quick, stored

X = np.random.default_rng(0).normal(size=(600, 12)).astype(np.float32)
LONG = {"max_iter": 5, "mu0": 0.003, "mu_factor": 1.1, "patience": 9, "C": 100}


class Stopped(Exception):
    """What a callback stops a fit with."""


def stop_at(iteration):
    def stop(record):
        if record.iteration == iteration:
            raise Stopped

    return stop


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A fit of X that was stopped in its third iteration."""
    folder = tmp_path_factory.mktemp("begun") / "state"
    with pytest.raises(Stopped):
        quick(**LONG, callback=stop_at(3)).fit(X, checkpoint=folder)
    return folder


@pytest.fixture
def folder(tmp_path, begun):
    """A copy of it."""
    shutil.copytree(begun, tmp_path / "state")
    return tmp_path / "state"


def test_a_fit_continues_from_its_last_state(folder):
    seen = []
    model = quick(**LONG, callback=seen.append).fit(X, checkpoint=folder, resume=True)
    wanted = quick(**LONG).fit(X, memory="1GB")
    assert [record.iteration for record in seen] == [3, 4, 5]
    assert history_of(model) == history_of(wanted)
    assert model.n_passes_ == wanted.n_passes_
    np.testing.assert_array_equal(model.encoder_.weights, wanted.encoder_.weights)
    np.testing.assert_array_equal(model.decoder_.A, wanted.decoder_.A)


def test_the_same_rows_in_another_kind_of_file_are_the_same_data(tmp_path, folder):
    path = stored(".parquet", X, tmp_path)
    assert quick(**LONG).fit(path, checkpoint=folder, resume=True).n_iter_ == 5


def test_threads_and_callbacks_may_be_others(folder):
    model = quick(**LONG | {"n_jobs": 1, "verbose": 0}).fit(X, checkpoint=folder, resume=True)
    assert model.n_iter_ == 5


@pytest.mark.parametrize("there", [False, True])
def test_to_resume_what_has_not_begun_is_to_begin(tmp_path, there):
    folder = tmp_path / "new" / "state"
    if there:
        folder.mkdir(parents=True)
    model = quick(**LONG).fit(X, checkpoint=folder, resume=True)
    assert model.n_iter_ == 5
    assert (folder / "state.safetensors").is_file()


def test_codes_of_a_fit_that_left_no_state_are_not_used(tmp_path):
    folder = tmp_path / "state"
    with pytest.raises(Stopped):
        quick(**LONG, callback=stop_at(1)).fit(X, checkpoint=folder)
    assert not (folder / "state.safetensors").exists()
    model = quick(**LONG).fit(X * 2, checkpoint=folder)
    np.testing.assert_array_equal(model.transform(X * 2), quick(**LONG).fit(X * 2).transform(X * 2))


def test_a_state_that_is_there_is_not_overwritten(folder):
    before = (folder / "state.safetensors").read_bytes()
    with pytest.raises(FileExists, match=r"holds the state of a fit\. Resume it with resume=True, or remove"):
        quick(**LONG).fit(X, checkpoint=folder)
    assert (folder / "state.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("parameters", "rows", "memory", "why"),
    [
        ({"n_bits": 16}, X, None, "another n_bits, which was 8, and is 16 now"),
        ({"mu_factor": 1.2}, X, None, r"another mu_factor, which was 1\.1"),
        ({"max_iter": 9}, X, None, "another max_iter"),
        ({"random_state": 1}, X, None, "another random_state"),
        ({"h_solver": "ridge"}, X, None, "another h_solver"),
        ({"z_options": {"theorem_4_3": False}}, X, None, "another z_options"),
        ({"validation": X[:20]}, X, None, "another validation"),
        ({}, X, "500MB", "another memory, which was 1000000000, and is 500000000"),
        ({}, X[:-1], None, "another number of rows, which was 600, and is 599"),
        ({}, X.astype(np.float64), None, "another type of numbers"),
        ({}, X[::-1].copy(), None, r"another content of X\. "),
    ],
    ids=lambda given: str(given)[:20] if isinstance(given, dict) else "",
)
def test_another_fit_does_not_go_on_from_it_and_is_told_why(folder, parameters, rows, memory, why):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InvalidInput, match=why):
        quick(**LONG | parameters).fit(rows, checkpoint=folder, resume=True, memory=memory)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before | {
        "fit.lock": (folder / "fit.lock").read_bytes()
    }


@pytest.mark.parametrize(
    ("init", "other"),
    [
        (ITQ(8, random_state=0), ITQ(8, random_state=1)),
        (ITQ(8, random_state=0).fit(X), ITQ(8, random_state=0).fit(X[:90])),
    ],
)
def test_another_hasher_to_start_from_is_told_from_the_first(tmp_path, init, other):
    with pytest.raises(Stopped):
        quick(**LONG, init=init, callback=stop_at(2)).fit(X, checkpoint=tmp_path / "s")
    with pytest.raises(InvalidInput, match=r"another init, which was .*ITQ"):
        quick(**LONG, init=other).fit(X, checkpoint=tmp_path / "s", resume=True)
    quick(**LONG, init=init).fit(X, checkpoint=tmp_path / "s", resume=True)


def test_another_array_of_codes_or_queries_is_told_from_the_first(tmp_path):
    codes = np.random.default_rng(0).integers(0, 2, (600, 8))
    with pytest.raises(Stopped):
        quick(**LONG, init=codes, callback=stop_at(2)).fit(X, checkpoint=tmp_path / "s")
    with pytest.raises(InvalidInput, match="another init"):
        quick(**LONG, init=1 - codes).fit(X, checkpoint=tmp_path / "s", resume=True)
    quick(**LONG, init=codes).fit(X, checkpoint=tmp_path / "s", resume=True)


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "empty"])
def test_a_damaged_state_is_refused(folder, damage):
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-9] ^= 1
    made = {"cut": content[:-10], "flip": content, "text": b"hello", "empty": b""}[damage]
    path.write_bytes(made)
    with pytest.raises(FileProblem, match=r"state\.safetensors is (not the state of a fit|damaged)"):
        quick(**LONG).fit(X, checkpoint=folder, resume=True)


def present(folder):
    """The names of the state's file of codes and of the other one."""
    number = FORMAT.read(folder / "state.safetensors")[0]["present"]
    return folder / f"codes-{number}.bits", folder / f"codes-{1 - number}.bits"


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "other"])
def test_codes_that_are_not_those_of_the_state_are_refused(folder, damage):
    now, other = present(folder)
    content = bytearray(now.read_bytes())
    content[100] ^= 1
    if damage == "gone":
        now.unlink()
    else:
        now.write_bytes({"flip": content, "cut": content[:-50], "other": other.read_bytes()}[damage])
    with pytest.raises(FileProblem, match=r"codes do not match its state\. Remove it and start again"):
        quick(**LONG).fit(X, checkpoint=folder, resume=True)


@pytest.mark.parametrize("damage", ["half", "cut", "gone", "longer"])
def test_whatever_the_other_file_of_codes_holds_is_of_no_account(folder, damage):
    _, other = present(folder)
    content = other.read_bytes()
    half = content[: len(content) // 2]
    if damage == "gone":
        other.unlink()
    else:
        other.write_bytes(
            {"half": half + bytes(len(content) - len(half)), "cut": half}.get(damage, content * 2)
        )
    model = quick(**LONG).fit(X, checkpoint=folder, resume=True)
    np.testing.assert_array_equal(model.transform(X), quick(**LONG).fit(X).transform(X))


def test_one_fit_at_a_time_has_the_folder(folder):
    lock = WriterLock(folder / "fit.lock")
    lock.acquire("a test")
    with pytest.raises(InUse, match="is being written to by process"):
        quick(**LONG).fit(X, checkpoint=folder, resume=True)
    lock.release()
    for _ in range(2):  # and lets go of it
        quick(**LONG).fit(X, checkpoint=folder, resume=True)


def test_a_place_where_no_folder_can_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileProblem, match="file is a file; expected a folder"):
        quick().fit(X, checkpoint=tmp_path / "file")
    with pytest.raises(FileProblem, match="could not be made: Not a directory"):
        quick().fit(X, checkpoint=tmp_path / "file" / "in it")


def test_codes_take_the_place_of_those_before_only_when_swapped(tmp_path):
    for folder in (None, tmp_path):
        pair = CodePair(5, 12, folder)
        pair.following[:] = 7
        assert not pair.now.any()
        before = pair.checksum()
        pair.swap()
        assert (pair.now == 7).all()
        assert pair.checksum() != before
        pair.sync()
    again = CodePair(5, 12, tmp_path, present=1)
    assert (again.now == 7).all()


def test_state_and_codes_are_all_that_is_kept(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {"state.safetensors", "codes-0.bits", "codes-1.bits", "fit.lock"}


def test_of_what_is_being_written_only_a_state_is_removed(folder):
    ours, others = (folder / f".{name}.0123456789abcdef.part" for name in ("state.safetensors", "model"))
    for path in (ours, others):
        path.touch()
    quick(**LONG).fit(X, checkpoint=folder, resume=True)
    assert not ours.exists()
    assert others.exists()


@pytest.mark.parametrize("iteration", [1, 2, 3, 4])
def test_a_fit_that_chooses_C_resumes_before_and_after_it_has_chosen(tmp_path, iteration):
    options = {"max_iter": 6, "patience": 9, "mu_factor": 1.2}
    with pytest.raises(Stopped):
        quick(**options, callback=stop_at(iteration)).fit(X, checkpoint=tmp_path / "state")
    model = quick(**options).fit(X, checkpoint=tmp_path / "state", resume=True)
    wanted = quick(**options).fit(X)
    assert model.C_ == wanted.C_
    assert history_of(model) == history_of(wanted)
    np.testing.assert_array_equal(model.encoder_.weights, wanted.encoder_.weights)
    assert not list((tmp_path / "state").glob("kept-*"))


def test_a_state_of_an_older_version_is_refused_with_the_remedy(folder):
    header, arrays = FORMAT.read(folder / "state.safetensors")
    FORMAT.write(folder / "state.safetensors", header, arrays, version=1)
    with pytest.raises(FileProblem, match="Remove it and start again"):
        quick(**LONG).fit(X, checkpoint=folder, resume=True)
