"""Models at work on files: fit, encode, decode, the codes of files, and what a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import BinaryAutoencoder
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from auxbit.hashers import files
from auxbit.hashers.registry import fit_reporting
from auxbit.index.queries import search_files


class Told:
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.steps = 0
        self.details: list[str] = []

    def stage(self, what: str, total: int | None) -> None:
        self.stages.append((what, total))

    def advance(self, steps: int = 1) -> None:
        self.steps += steps

    def say(self, detail: str) -> None:
        self.details.append(detail)


def test_fit_file_writes_the_model_that_fit_makes_of_the_rows(folder: Path, digits: Any) -> None:
    told = Told()
    summary = files.fit_file("base.npy", "ba", "ba", 8, seed=3, max_iter=2, progress=told)
    wanted = BinaryAutoencoder(8, random_state=3, max_iter=2).fit(digits[300:])
    np.testing.assert_array_equal(auxbit.load("ba").encode(digits), wanted.encode(digits))
    assert summary["reconstruction_error"] == pytest.approx(-wanted.score(digits[300:]))
    assert (summary["n_rows"], summary["n_features"], summary["iterations"]) == (1497, 64, 2)
    assert told.stages == [("fitting ba", None)]  # it may end before max_iter
    assert told.steps == 2
    assert told.details[0].startswith("iteration 1  μ 0.01  E_BA ")


def test_fit_file_refuses_what_cannot_be_before_the_work(folder: Path) -> None:
    np.save("one.npy", np.ones((1, 4)))
    with pytest.raises(InvalidInput, match=r"one.npy has 1 row; a model needs at least 2"):
        files.fit_file("one.npy", "out")
    with pytest.raises(InvalidParameter, match=r"seed=-1 is invalid"):
        files.fit_file("base.npy", "out", seed=-1)
    with pytest.raises(auxbit.AuxbitError, match=r"m.safetensors exists"):
        files.fit_file("missing.npy", "m.safetensors")


def test_a_fit_that_reports_leaves_no_callback_behind_and_blames_the_rows_for_the_bits(digits: Any) -> None:
    model = fit_reporting(BinaryAutoencoder(8, max_iter=1, random_state=0), digits[:200], Told())
    assert model.get_params()["callback"] is None
    with pytest.raises(InvalidInput, match="at most 64"):
        fit_reporting(auxbit.ITQ(65), digits[:200])


@pytest.mark.parametrize("unpacked", [False, True])
def test_files_are_encoded_and_decoded_as_arrays_are(
    folder: Path, digits: Any, monkeypatch: pytest.MonkeyPatch, unpacked: bool
) -> None:
    monkeypatch.setattr("auxbit.data.vectors.BLOCK_BYTES", 64 * 4 * 100)
    model, told = auxbit.load("m.safetensors"), Told()
    done = files.encode_file(model, "base.npy", "codes.npy", unpacked=unpacked, progress=told)
    assert done["bytes_per_row"] == (16 if unpacked else 2)
    assert (told.stages, told.steps) == ([("encoding", 1497)], 1497)
    wanted = model.transform(digits[300:]) if unpacked else model.encode(digits[300:])
    np.testing.assert_array_equal(np.load("codes.npy"), wanted)
    files.decode_file(model, "codes.npy", "again.npy")
    expected = model.decode(model.encode(digits[300:]))
    np.testing.assert_allclose(np.load("again.npy"), expected, rtol=1e-5)


def test_the_codes_of_a_file_are_those_of_its_vectors_or_its_own(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    codes = model.encode(digits[:300])
    np.save("codes.npy", codes)
    for source in ("queries.npy", "codes.npy"):
        packed, made = files.codes_of(model, source)
        np.testing.assert_array_equal(packed, codes)
        assert (made.coding, made.mu) == ("hash", 0.0)
    with pytest.raises(DataFileError, match=r"base.npy: .*"):
        files.codes_of(model, "base.npy", are_codes=True)


def test_a_file_of_codes_says_what_they_are_and_by_which_model(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    files.encode_file(model, "queries.npy", "codes.npy")
    model.fit_decoder(digits, "linear")
    assert files.encode_file(model, "queries.npy", "optimal.npy")["coding"] == "optimal"
    assert files.codes_of(model, "codes.npy")[1] == files.CodesMade("hash", 0.0, model.fingerprint(), 16)
    packed, made = files.codes_of(model, "optimal.npy")
    np.testing.assert_array_equal(packed, model.encode(digits[:300], coding="optimal"))
    assert made.by_decoder
    with pytest.raises(InvalidInput, match=r"optimal.npy holds optimal codes. --coding is for vectors"):
        files.codes_of(model, "optimal.npy", coding="hash")
    with pytest.raises(InvalidInput, match=r"codes.npy was made by another model"):
        files.codes_of(auxbit.ITQ(16, random_state=1).fit(digits), "codes.npy")
    with pytest.raises(InvalidInput, match="optimal codes, chosen for the decoder alone"):
        search_files(model, "optimal.npy", "queries.npy", mode="hamming")
    with pytest.raises(InvalidInput, match="optimal codes, chosen for the decoder alone"):
        search_files(model, "queries.npy", "queries.npy", radius=2)
    by_decoder = search_files(model, "optimal.npy", "queries.npy", 1)
    assert (by_decoder.ids[:, 0] == np.arange(300)).mean() > 0.5
    Path("optimal.npy.json").write_text("{")
    with pytest.raises(DataFileError, match=r"optimal.npy.json cannot be read"):
        files.codes_of(model, "optimal.npy")


def test_bits_are_by_default_about_half_of_the_dimensions() -> None:
    found = [files.default_bits(n) for n in (1, 20, 50, 64, 128, 256, 384, 784, 1536, 3072)]
    assert found == [16, 16, 32, 32, 64, 128, 256, 256, 256, 256]


def test_vectors_for_a_model_are_finite_and_as_wide_as_those_it_was_fitted_to(folder: Path) -> None:
    model = auxbit.load("m.safetensors")
    np.save("narrow.npy", np.zeros((5, 63)))
    np.save("nan.npy", np.full((5, 64), np.nan))
    with pytest.raises(InvalidInput, match=r"narrow.npy has 63 columns, but the model was fitted to 64"):
        files.read_vectors_for(model, "narrow.npy")
    with pytest.raises(InvalidInput, match=r"nan.npy contains NaN at row 0, column 0"):
        files.read_vectors_for(model, "nan.npy")


def test_a_model_file_says_how_it_was_trained(folder: Path) -> None:
    files.fit_file("base.npy", "ba", "ba", 8, max_iter=2)
    facts = files.describe_model("ba")
    assert (facts["class"], facts["bits"], facts["iterations"]) == ("BinaryAutoencoder", 8, 2)
    assert facts["E_BA"].keys() == {"first", "kept", "last"}
    assert "iterations" not in files.describe_model("m.safetensors")
