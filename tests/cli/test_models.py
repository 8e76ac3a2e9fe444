"""`auxbit fit`, `encode`, `decode`, `info` and `demo` at work: what they print and write."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import ITQ
from auxbit.cli import collection, models
from auxbit.hashers.registry import HASHER_NAMES
from helpers.cli_runner import run, run_json


@pytest.mark.parametrize("method", HASHER_NAMES)
def test_fit_writes_a_model_of_each_method_that_loads(folder: Path, method: str) -> None:
    few = ["--max-iter", 3] if method in ("ba", "ba-agh", "bfa", "sph") else []
    result = run("fit", "base.npy", "--out", "new.safetensors", "--method", method, "--bits", 8, *few)
    assert auxbit.load("new.safetensors").n_bits == 8
    assert "effective bits" in result.stdout
    assert "Next: auxbit encode new.safetensors base.npy" in result.stdout


def test_fit_passes_its_options_on_and_reports_in_json(folder: Path) -> None:
    summary = run_json(
        "fit", "base.npy", "-o", "new.safetensors", "--bits", 8, "--init", "tpca", "--mu-factor", 2,
        "--mu0", 0.1, "--validation", "none", "--z-solver", "alternating", "--metric", "cosine", "--seed", 5,
        "--jobs", 1,
    )  # fmt: skip
    parameters = auxbit.load("new.safetensors").get_params()
    wanted = {"init": "tpca", "mu_factor": 2, "mu0": 0.1, "validation": None, "z_solver": "alternating",
              "normalize": True, "random_state": 5, "n_jobs": 1}  # fmt: skip
    assert {name: parameters[name] for name in wanted} == wanted
    assert summary["iterations"] == len(summary["history"]) > 0
    assert summary["reconstruction_error"] > 0


def test_fit_continues_from_a_model_with_its_bits(folder: Path) -> None:
    run("fit", "base.npy", "-o", "first.safetensors", "--bits", 8)
    summary = run_json("fit", "base.npy", "-o", "second.safetensors", "--from", "first.safetensors")
    first, second = (auxbit.load(f"{name}.safetensors") for name in ("first", "second"))
    assert summary["n_bits"] == 8
    assert second.history_[0].mu >= first.history_[0].mu
    assert second.n_iter_ <= first.n_iter_ + 3
    refused = run(
        "fit",
        "base.npy",
        "-o",
        "n.safetensors",
        "--method",
        "itq",
        "--from",
        "first.safetensors",
        code=2,
    )
    assert "--from" in refused.stderr


OF_ROWS = {
    "out", "data", "vectors_column", "id_column", "metadata_columns", "model", "vectors", "metadata", "ids",
    "codes",
}  # fmt: skip


def test_fit_makes_any_model_that_collection_create_makes(folder: Path) -> None:
    of_model = set(signature(collection.create).parameters) - OF_ROWS
    assert of_model <= set(signature(models.fit).parameters)
    same = (
        "--bits",
        8,
        "--method",
        "itq",
        "--lists",
        5,
        "--refine-bits",
        8,
        "--metric",
        "cosine",
        "--seed",
        3,
    )
    run("fit", "base.npy", "-o", "best.safetensors", *same)
    run("collection", "create", "c", "--data", "base.npy", *same)
    with auxbit.Collection("c") as made:
        assert auxbit.load("best.safetensors").fingerprint("optimal") == made.model.fingerprint("optimal")


def test_fit_takes_labels(folder: Path) -> None:
    labels = np.arange(len(np.load("base.npy"))) % 3
    np.save("labels.npy", labels)
    Path("labels.txt").write_text("".join(f"kind {each}\n" for each in labels))
    for file in ("labels.npy", "labels.txt"):
        run("fit", "base.npy", "-o", "new.safetensors", "--force", "--bits", 8, "--labels", file)
        assert auxbit.load("new.safetensors").get_params()["objective"] == "affinity"


def test_encode_writes_the_codes_of_the_model_and_decode_their_reconstructions(
    folder: Path, digits: Any
) -> None:
    model = auxbit.load("m.safetensors")
    run("encode", "m.safetensors", "base.npy", "--out", "codes.npy")
    np.testing.assert_array_equal(np.load("codes.npy"), model.encode(digits[300:]))
    run("decode", "m.safetensors", "codes.npy", "--out", "again.npy")
    np.testing.assert_allclose(np.load("again.npy"), model.decode(np.load("codes.npy")), rtol=1e-5)


def test_unpacked_codes_have_a_column_a_bit_and_decode_as_well(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    run("encode", "m.safetensors", "base.npy", "--out", "bits.npy", "--unpacked")
    np.testing.assert_array_equal(np.load("bits.npy"), model.transform(digits[300:]))
    run("decode", "m.safetensors", "bits.npy", "--out", "again.npy")
    np.testing.assert_allclose(np.load("again.npy"), model.inverse_transform(np.load("bits.npy")), rtol=1e-5)


def test_blocks_of_any_size_give_the_same_codes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("encode", "m.safetensors", "base.npy", "--out", "whole.npy")
    monkeypatch.setattr("auxbit.data.vectors.BLOCK_BYTES", 1000)
    run("encode", "m.safetensors", "base.npy", "--out", "parts.npy")
    np.testing.assert_array_equal(np.load("whole.npy"), np.load("parts.npy"))


def test_hints_can_be_pasted_into_a_shell(folder: Path) -> None:
    Path("base.npy").rename("my base (1).npy")
    fitted = run("fit", "my base (1).npy", "-o", "a model", "--method", "lsh", "--bits", 8).stdout
    assert "Next: auxbit encode 'a model' 'my base (1).npy' --out codes.npy" in fitted
    encoded = run("encode", "a model", "my base (1).npy", "-o", "my codes.npy").stdout
    assert "Next: auxbit search 'a model' --base 'my codes.npy' --queries 'my base (1).npy'" in encoded


def test_info_names_the_parameters_that_could_not_be_saved(folder: Path, digits: Any) -> None:
    auxbit.BinaryAutoencoder(8, init=ITQ(8, random_state=0), max_iter=2, random_state=0).fit(digits).save("i")
    assert run_json("info", "i")["left_out"] == {"init": "ITQ"}
    assert "init=ITQ" in run("info", "i").stdout
    run("fit", "base.npy", "-o", "ba.safetensors", "--bits", 8, "--max-iter", 2)
    assert "left_out" not in run_json("info", "ba.safetensors")  # not the command's own progress bar


def test_one_of_several_arrays_is_chosen_as_the_message_says(folder: Path, digits: Any) -> None:
    np.savez("two.npz", a=digits[:50], b=digits[50:])
    fit = ("--method", "lsh", "--bits", 8, "-o", "new.safetensors")
    assert "on the command line as two.npz:a." in run("fit", "two.npz", *fit, code=1).stderr
    run("fit", "two.npz:a", *fit)


def test_info_says_what_a_model_is_and_how_it_was_trained(folder: Path) -> None:
    run("fit", "base.npy", "-o", "ba.safetensors", "--bits", 8, "--max-iter", 4)
    facts = run_json("info", "ba.safetensors")
    assert (facts["kind"], facts["class"], facts["bits"]) == ("model", "BinaryAutoencoder", 8)
    assert facts["iterations"] == 4
    assert "validation precision" in run("info", "ba.safetensors").stdout


def test_info_says_what_a_data_file_is(folder: Path) -> None:
    facts = run_json("info", "base.npy")
    assert (facts["rows"], facts["columns"], facts["dtype"]) == (1497, 64, "float32")
    assert (facts["smallest"], facts["largest"], facts["nan_or_infinite"]) == (0, 16, 0)


def test_demo_prints_the_table_and_writes_every_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auxbit.experiments.demo.SEEDS", (0,))
    result = run("demo", "--out", "demo")
    assert all(method in result.stdout for method in ("tPCA", "ITQ", "BFA", "BA"))
    written = {path.name for path in Path("demo").iterdir()}
    pictures = {"history.png", "precision.png", "digits.png"}
    assert written == {"model.safetensors", "codes.npy", "table.csv", "results.json"} | pictures
    table = {row["method"]: row for row in json.loads(Path("demo/results.json").read_text())["rows"]}
    assert table["BA"]["reconstruction_error"] < table["ITQ"]["reconstruction_error"]
    before = Path("demo/table.csv").read_bytes()
    assert "exists" in run("demo", "--out", "demo", code=1).stderr
    assert Path("demo/table.csv").read_bytes() == before
