"""`auxbit search`, `duplicates`, `evaluate`, and coding: what they print and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import HammingIndex
from auxbit.data import vectors
from helpers.cli_runner import run, run_json


def test_search_gives_the_same_for_vectors_and_for_their_codes(folder: Path) -> None:
    run("encode", "m.safetensors", "base.npy", "--out", "codes.npy")
    of_vectors = run_json(
        "search", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy", "--k", 7
    )
    of_codes = run_json(
        "search", "m.safetensors", "--base", "codes.npy", "--queries", "queries.npy", "--k", 7
    )
    assert of_vectors == of_codes
    assert [len(answer["ids"]) for answer in of_codes["results"]] == [7] * 300


def test_search_prints_the_first_queries_and_writes_all(folder: Path) -> None:
    result = run(
        "search", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy", "--out", "found.npz"
    )
    assert "290 queries more" in result.stdout
    with np.load("found.npz") as found:
        assert found["ids"].shape == found["distances"].shape == (300, 10)


def test_search_within_a_radius_is_in_the_layout_of_faiss(folder: Path) -> None:
    run("search", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--radius", 2, "-o", "found.npz")
    with np.load("found.npz") as found:
        assert found["distances"].max() == 2
        assert found["lims"][-1] == len(found["ids"])
        assert len(found["lims"]) == 301


def test_search_takes_k_or_a_radius_but_not_both(folder: Path) -> None:
    both = run("search", "m.safetensors", "-b", "base.npy", "-q", "base.npy", "--k", 1, "--radius", 1, code=2)
    assert "not both" in both.stderr
    none = run("search", "m.safetensors", "-b", "base.npy", "-q", "base.npy", "--k", 0, code=2)
    assert "--k=0 is invalid" in none.stderr


def test_the_codes_flag_decides_where_codes_look_like_vectors(folder: Path) -> None:
    rows = np.random.RandomState(0).randint(0, 256, (50, 2)).astype(np.uint8)
    np.save("two.npy", rows)
    run("fit", "two.npy", "--out", "two.safetensors", "--method", "lsh", "--bits", 16)
    search = ("search", "two.safetensors", "--base", "two.npy", "--queries", "two.npy", "--k", 1)
    assert all(answer["distances"] == [0] for answer in run_json(*search)["results"])
    assert any(answer["distances"] != [0] for answer in run_json(*search, "--codes")["results"])


def test_evaluate_measures_draws_and_writes_the_curve(folder: Path) -> None:
    result = run_json(
        "evaluate", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy", "--curve", "pr.csv",
        "--plot", "pr.svg",
    )  # fmt: skip
    assert 0.3 < result["precision"] < 0.9
    assert result["recall_at"].keys() == {"1", "10", "50"}
    assert result["one_recall_at"].keys() == {"1", "10", "100"}
    assert result["recall_at"]["50"] == result["recall"]  # K = k = 50
    assert len(Path("pr.csv").read_text().splitlines()) == 1 + 17
    assert "<svg" in Path("pr.svg").read_text()


def test_evaluate_with_true_neighbours_from_a_file_gives_the_same(folder: Path, digits: Any) -> None:
    from auxbit.evaluate import ground_truth

    vectors.write_vectors("truth.ivecs", ground_truth(digits[300:], digits[:300], 60).astype(np.int32))
    files = ("evaluate", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy")
    given = run_json(*files, "--truth", "truth.ivecs")
    assert given.pop("neighbours") == "from truth.ivecs"
    computed = run_json(*files)
    assert computed.pop("neighbours") == "Euclidean"
    assert given == computed
    assert "Lower K" in run(*files, "--truth", "truth.ivecs", "--K", 61, code=1).stderr
    assert "within radius 2" in run(*files).stdout


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        (("--K", -5), 2, "K=-5 is invalid"),
        (("--k", 0), 2, "--k=0 is invalid"),
        (("--radius", -1), 2, "--radius=-1 is invalid"),
        (("--K", 1498), 1, "K=1498 is more than the 1497 rows"),
        (("--k", 1498), 1, "k=1498 is more than the 1497 rows"),
    ],
    ids=str,
)
def test_evaluate_checks_its_numbers_with_true_neighbours_from_a_file_too(
    folder: Path, option: tuple[str, int], code: int, message: str
) -> None:
    np.save("truth.npy", np.zeros((300, 60), np.int64) + np.arange(60))
    files = ("evaluate", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy")
    for truth in ((), ("--truth", "truth.npy")):
        assert message in run(*files, *truth, *option, code=code).stderr


def test_evaluate_of_a_model_of_normalised_rows_takes_neighbours_by_cosine(folder: Path) -> None:
    from auxbit.evaluate import ground_truth

    rng = np.random.RandomState(0)
    X = rng.standard_normal((400, 8)) * rng.uniform(0.1, 10, (400, 1))
    X[100] = 0
    np.save("x.npy", X)
    fit = ("fit", "x.npy", "-o", "n.safetensors", "--bits", 8, "--max-iter", 3, "--metric", "cosine")
    assert "squared error per normalised row" in run(*fit).stdout
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    np.save("truth.npy", ground_truth(unit, unit[:50], 20))
    np.save("q.npy", X[:50])
    files = ("evaluate", "n.safetensors", "--base", "x.npy", "--queries", "q.npy", "--K", 20)
    computed, given = run_json(*files), run_json(*files, "--truth", "truth.npy")
    assert computed.pop("neighbours") == "by cosine"
    assert given.pop("neighbours") == "from truth.npy"
    assert computed == given
    shown = run(*files).stdout
    assert "neighbours by cosine" in shown
    assert "squared error per normalised row" in shown
    run("fit", "x.npy", "-o", "raw.safetensors", "--bits", 8, "--max-iter", 3)
    shown = run("evaluate", "raw.safetensors", *files[2:]).stdout
    assert "neighbours Euclidean" in shown
    assert "normalised" not in shown


def test_a_model_for_inner_products_is_measured_and_searched_by_them(folder: Path) -> None:
    rng = np.random.RandomState(0)
    X = rng.standard_normal((600, 12)) * np.exp(rng.standard_normal((600, 1)) / 2)
    np.save("x.npy", X)
    np.save("q.npy", rng.standard_normal((50, 12)))
    fit = ("fit", "x.npy", "-o", "n.safetensors", "--bits", 12, "--method", "itq", "--coding", "optimal")
    assert "squared error per lifted row" in run(*fit, "--metric", "inner_product").stdout
    result = run_json(
        "evaluate", "n.safetensors", "--base", "x.npy", "--queries", "q.npy", "--K", 20, "--k", 20
    )
    assert (result["metric"], result["neighbours"]) == ("inner_product", "by inner product")
    found = {way["way"]: way["recall_at"] for way in result["ways"]}
    assert found["hash codes by Hamming distance"] > 0.1  # chance is 0.017
    assert found["optimal codes by the decoder"] > 0.3
    run("encode", "n.safetensors", "x.npy", "-o", "codes.npy", "--coding", "hash")
    run("encode", "n.safetensors", "q.npy", "-o", "rows.npy", "--coding", "hash")
    run("encode", "n.safetensors", "q.npy", "-o", "asked.npy", "--coding", "hash", "--queries")
    search = ("search", "n.safetensors", "--base", "codes.npy", "--queries")
    assert run_json(*search, "q.npy")["results"] == run_json(*search, "asked.npy")["results"]
    assert "again with --queries" in run(*search, "rows.npy", code=1).stderr
    made = ("collection", "create", "c", "--model", "n.safetensors", "--coding", "hash")
    assert "again without --queries" in run(*made, "--data", "asked.npy", "--codes", code=1).stderr


def test_the_files_that_evaluate_writes_are_checked_before_any_work(folder: Path) -> None:
    files = ("evaluate", "missing.safetensors", "--base", "base.npy", "--queries", "queries.npy")
    same = run(*files, "--curve", "same.svg", "--plot", "./same.svg", code=2).stderr
    assert "a file other than that of --curve" in same
    assert "ends in .csv" in run(*files, "--curve", "pr.svg", code=2).stderr
    assert not list(folder.glob("*.svg"))


def test_search_says_how_many_were_retrieved(folder: Path) -> None:
    files = ("search", "m.safetensors", "--base", "base.npy", "--queries", "queries.npy")
    found = run_json(*files, "--k", 99999, "--out", "found.npz")
    assert (found["k"], found["retrieved_per_query"], found["retrieved"]) == (99999, 1497, 300 * 1497)
    within = run_json(*files, "--radius", 2)
    assert within["retrieved"] == sum(len(answer["ids"]) for answer in within["results"])


def test_asymmetric_search_gives_the_answers_of_the_index(folder: Path, digits: Any) -> None:
    found = run_json(
        "search", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--k", 7, "--mode", "asymmetric"
    )
    model = auxbit.load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(digits[300:]))
    distances, ids = index.search_asymmetric(digits[:300], 7)
    assert found["by"] == "the decoder"
    assert [answer["ids"] for answer in found["results"]] == ids.tolist()
    np.testing.assert_allclose([answer["distances"] for answer in found["results"]], distances, rtol=1e-6)


def test_a_shortlist_is_ranked_anew_and_a_long_one_is_the_whole_search(folder: Path) -> None:
    command = (
        "search",
        "m.safetensors",
        "-b",
        "base.npy",
        "-q",
        "queries.npy",
        "--k",
        5,
        "--mode",
        "asymmetric",
    )
    whole, long = run_json(*command), run_json(*command, "--shortlist", 10_000)
    assert whole["results"] == long["results"]
    short = run_json(*command, "--shortlist", 5)["results"]
    by_hamming = run_json(*command[:-2])["results"]
    assert [sorted(a["ids"]) for a in short] == [sorted(a["ids"]) for a in by_hamming]


def test_search_says_what_does_not_go_together(folder: Path) -> None:
    command = ("search", "m.safetensors", "-b", "base.npy", "-q", "base.npy")
    assert "drop --mode asymmetric" in run(*command, "--radius", 1, "--mode", "asymmetric", code=2).stderr
    assert "--mode asymmetric only" in run(*command, "--shortlist", 9, code=2).stderr
    assert "'best' is not one of hash, optimal" in run(*command, "--coding", "best", code=2).stderr
    optimal = ("--coding", "optimal")
    assert (
        "Hamming distances between them mean nothing" in run(*command, *optimal, "--radius", 1, code=1).stderr
    )
    assert "Add --coding optimal" in run(*command, "--mu", 3, code=2).stderr
    assert (
        "--shortlist=5 is invalid"
        in run(*command, "--k", 10, "--shortlist", 5, "--mode", "asymmetric", code=2).stderr
    )
    run("encode", "m.safetensors", "base.npy", "-o", "codes.npy")
    codes = ("search", "m.safetensors", "-b", "codes.npy", "-q", "base.npy", "--mode", "asymmetric")
    assert "holds hash codes. --coding is for vectors" in run(*codes, *optimal, code=1).stderr


def test_asymmetric_search_prints_squared_distances(folder: Path) -> None:
    shown = run(
        "search", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--mode", "asymmetric"
    ).stdout
    assert "squared distance" in shown


def test_encode_writes_optimal_codes_where_asked(folder: Path, digits: Any) -> None:
    run("encode", "m.safetensors", "base.npy", "-o", "best.npy", "--coding", "optimal", "--mu", 0.01)
    wanted = auxbit.load("m.safetensors").encode(digits[300:], coding="optimal", mu=0.01)
    np.testing.assert_array_equal(np.load("best.npy"), wanted)
    assert (
        "--mu=-1.0 is invalid"
        in run(
            "encode", "m.safetensors", "base.npy", "-o", "n.npy", "--coding", "optimal", "--mu", -1, code=2
        ).stderr
    )
    assert not Path("n.npy").exists()


def test_optimal_codes_raise_the_precision_of_asymmetric_search(folder: Path) -> None:
    command = ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "queries.npy", "--rerank", 0)
    (by_bits, hashed), (_, optimal) = (
        run_json(*command)["ways"],
        run_json(*command, "--coding", "optimal")["ways"],
    )
    assert by_bits["way"] == "hash codes by Hamming distance"
    assert (hashed["way"], optimal["way"]) == ("hash codes by the decoder", "optimal codes by the decoder")
    assert hashed["precision"] > by_bits["precision"] + 0.02
    assert optimal["precision"] > hashed["precision"]
    assert "hash codes by the decoder" in run(*command).stdout


def test_candidates_that_are_ranked_again_by_their_vectors_are_rows_of_their_own(folder: Path) -> None:
    command = ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "queries.npy")
    ways = run_json(*command, "--rerank", 40)["ways"]
    assert [way["way"].endswith("40 re-ranked") for way in ways] == [False, True] * 2
    assert ways[1]["precision"] is None  # 50 are not among 40
    assert ways[1]["recall_at"] > ways[0]["recall_at"] + 0.2
    assert ways[3]["recall_at"] > ways[2]["recall_at"] + 0.2
    assert run_json(*command, "--rerank", 1497)["ways"][1]["recall_at"] == 1.0
    assert run_json(*command)["ways"][1]["way"].endswith("100 re-ranked")
    assert "--rerank=9 is invalid" in run(*command, "--rerank", 9, code=2).stderr


def test_the_metric_says_which_neighbours_are_true(folder: Path, digits: Any) -> None:
    from auxbit.evaluate import ground_truth

    command = ("evaluate", "m.safetensors", "-b", "base.npy", "-q", "queries.npy")
    for metric, name in (("cosine", "by cosine"), ("inner_product", "by inner product")):
        np.save("truth.npy", ground_truth(digits[300:], digits[:300], 50, metric=metric))
        found = run_json(*command, "--metric", metric, "--rerank", 1497)
        assert found["neighbours"] == name
        assert found["precision"] == run_json(*command, "--truth", "truth.npy")["precision"]
        assert found["ways"][1]["recall_at"] > 0.99  # float16 may swap ties


def test_fit_makes_any_decoder_and_all_that_follows_uses_its_codes(folder: Path) -> None:
    for method in ("ba", "itq"):
        options = ("--method", method, "--bits", 8, "--decoder", "tables", "--metric", "cosine", "--force")
        fitted = run("fit", "base.npy", "-o", "t.safetensors", *options)
        assert fitted.stdout.endswith("Next: auxbit encode t.safetensors base.npy --out codes.npy\n")
        model = auxbit.load("t.safetensors")
        assert model.decoder_.tables.shape == (1, 256, 64)
        assert (model.decoder_.mu, model.scaling_.normalize) == (0.0, True)
    shown = run("encode", "t.safetensors", "base.npy", "-o", "c.npy").stdout
    assert "1,497 optimal codes of 8 bits" in shown
    assert "Next: auxbit search t.safetensors --base c.npy --queries base.npy" in shown
    search = ("search", "t.safetensors", "-b", "c.npy", "-q", "queries.npy")
    assert run_json(*search)["by"] == "the decoder"
    assert "Hamming distances between them mean nothing" in run(*search, "--mode", "hamming", code=1).stderr
    both = run_json("fit", "base.npy", "-o", "b.safetensors", "--bits", 8, "--max-iter", 2, "--mu", 0.03)
    assert (both["coding"], both["mu"]) == ("optimal", 0.03)
    assert run_json("search", "b.safetensors", "-b", "base.npy", "-q", "queries.npy", "--radius", 2)["radius"]
    wrong = ("fit", "base.npy", "-o", "x.safetensors", "--coding", "hash", "--decoder", "tables")
    assert "Drop --coding hash" in run(*wrong, code=2).stderr
    assert run_json("fit", "base.npy", "-o", "d.safetensors", "--max-iter", 2)["n_bits"] == 32
    evaluate = ("evaluate", "t.safetensors", "-b", "base.npy", "-q", "queries.npy")
    as_fitted, of_hash = run_json(*evaluate), run_json(*evaluate, "--coding", "hash")
    assert as_fitted["coding"] == "optimal"
    assert as_fitted["reconstruction_error"] < 0.5 * of_hash["reconstruction_error"]
    # the codes that Hamming distance compares are h(x) all the same
    assert as_fitted["ways"][0] == of_hash["ways"][0]
    assert as_fitted["ways"][1]["precision"] > as_fitted["ways"][0]["precision"] + 0.1


def test_duplicates_are_listed_and_written(folder: Path, digits: Any) -> None:
    np.save("twice.npy", np.vstack([digits[:20], digits[5:8]]))
    found = run_json("duplicates", "m.safetensors", "twice.npy", "--out", "groups.csv")
    for row in range(5, 8):
        assert any({row, row + 15} <= set(group) for group in found["groups"])
    lines = Path("groups.csv").read_text().splitlines()
    assert lines[0] == "group,row"
    assert len(lines) == 1 + sum(map(len, found["groups"]))
    shown = run("duplicates", "m.safetensors", "twice.npy", "--radius", 16).stdout
    assert "23 of 23 rows are in 1 groups within radius 16" in shown
    assert "r=-1 is invalid" in run("duplicates", "m.safetensors", "twice.npy", "--radius", -1, code=2).stderr


def test_no_duplicates_are_said_and_written_too(folder: Path, digits: Any) -> None:
    codes, first = np.unique(auxbit.load("m.safetensors").encode(digits), axis=0, return_index=True)
    np.save("once.npy", digits[first])
    shown = run("duplicates", "m.safetensors", "once.npy", "--out", "groups.csv").stdout
    assert f"0 of {len(codes)} rows are in 0 groups" in shown
    assert Path("groups.csv").read_text() == "group,row\n"


def test_info_says_what_an_index_is(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(digits))
    index.save("codes.index")
    facts = run_json("info", "codes.index")
    assert (facts["kind"], facts["codes"], facts["bits"]) == ("index", len(digits), 16)
    assert facts["decoder"] == "LinearDecoder"
