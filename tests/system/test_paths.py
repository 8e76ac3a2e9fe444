"""Every way that README, guide and --help offer, from vectors to answers, finds far more than chance.

On handwritten digits: 1,497 to search, 300 queries. What means nothing is refused, and says what to do.
"""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import Collection, HammingIndex
from auxbit.evaluate import ground_truth
from auxbit.hashers.registry import HASHER_NAMES
from helpers.cli_runner import run, run_json

pytest_plugins = ["helpers.store_fixtures"]

ROOT = Path(__file__).parents[2]
BITS = 32
LEAST = 0.30  # of the true 10 nearest among the first 10: chance is 0.007, Hamming distance at 32 bits 0.42


@pytest.fixture(scope="module")
def truth(digits: Any) -> Any:
    return ground_truth(digits[300:], digits[:300], 10)


def recall(ids: Any, truth: Any) -> float:
    """The share of the true 10 among the 10 that are found."""
    return float(
        np.mean([len(set(a) & set(b)) / 10 for a, b in zip(np.asarray(ids).tolist(), truth.tolist())])
    )


def outcome(truth: Any, *command: object) -> str:
    """What comes of a search: "found", or "refused" with a remedy; anything else fails."""
    from typer.testing import CliRunner

    from auxbit.cli.app import app

    done = CliRunner().invoke(app, [*map(str, command), "--json"], prog_name="auxbit")
    if done.exit_code:
        assert re.search("drop|Drop|Search (it )?with|[Ee]ncode|add --|Add --|give", done.stderr), done.stderr
        refused = ("mean nothing", "is for", "cannot rank hash codes", "another way")
        assert any(each in done.stderr for each in refused)
        return "refused"
    import json

    found = recall([each["ids"] for each in json.loads(done.stdout)["results"]], truth)
    assert found > LEAST, (command, found)
    return "found"


MODELS = {
    "hash": (),
    "linear": ("--coding", "optimal", "--decoder", "linear"),
    "tables": ("--decoder", "tables"),
    "auto": ("--coding", "optimal"),
    "both": ("--mu", 0.03),
    "itq": ("--method", "itq", "--coding", "optimal"),
    "inner product": ("--metric", "inner_product"),
    "optimal, inner product": ("--metric", "inner_product", "--coding", "optimal"),
}


def some(kinds: Any, *usual: str) -> list[Any]:
    """All kinds; those that are not usual take their time in `make test-slow`."""
    return [each if each in usual else pytest.param(each, marks=pytest.mark.slow) for each in kinds]


@pytest.mark.parametrize("kind", some(MODELS, "both", "optimal, inner product"))
def test_files_are_searched_in_a_way_that_means_something(
    folder: Path, digits: Any, truth: Any, kind: str
) -> None:
    truth = truth_for(MODELS[kind], digits, truth)
    run("fit", "base.npy", "-o", "model.safetensors", "--bits", BITS, *MODELS[kind])
    run("encode", "model.safetensors", "base.npy", "-o", "codes.npy")
    run("encode", "model.safetensors", "base.npy", "-o", "hashed.npy", "--coding", "hash")
    bases = (("base.npy",), ("codes.npy",), ("hashed.npy",), ("base.npy", "--coding", "hash"))
    ways = ((), ("--mode", "hamming"), ("--mode", "asymmetric"), ("--mode", "asymmetric", "--shortlist", 200))
    search = ("search", "model.safetensors", "--queries", "queries.npy", "--base")
    came = {(base, way): outcome(truth, *search, *base, *way) for base, way in product(bases, ways)}
    assert all(came[base, ()] == "found" for base in bases)
    assert came[("hashed.npy",), ("--mode", "hamming")] == "found"
    by_decoder = kind not in ("hash", "both", "inner product")
    assert came[("codes.npy",), ("--mode", "hamming")] == ("refused" if by_decoder else "found")
    assert came[("hashed.npy",), ("--mode", "asymmetric")] == ("refused" if by_decoder else "found")


COLLECTIONS = {
    "defaults": (),
    "with vectors": ("--vectors", "float16"),
    "hash": ("--coding", "hash"),
    "hash with vectors": ("--coding", "hash", "--vectors", "float16"),
    "tables": ("--decoder", "tables"),
    "linear, both ways": ("--decoder", "linear", "--mu", 0.03),
    "itq, cosine": ("--method", "itq", "--metric", "cosine", "--vectors", "float32"),
    "inner product": ("--metric", "inner_product"),
    "inner product, hash": ("--metric", "inner_product", "--coding", "hash"),
    "inner product with vectors": ("--metric", "inner_product", "--vectors", "float16"),
}


def truth_for(options: tuple[object, ...], digits: Any, truth: Any) -> Any:
    metric = next((each for each in options if each in ("cosine", "inner_product")), None)
    return truth if metric is None else ground_truth(digits[300:], digits[:300], 10, metric=str(metric))


@pytest.mark.parametrize("kind", some(COLLECTIONS, "defaults", "hash", "inner product with vectors"))
def test_collections_and_stores_are_searched_in_a_way_that_means_something(
    folder: Path, digits: Any, places: Any, truth: Any, kind: str
) -> None:
    truth = truth_for(COLLECTIONS[kind], digits, truth)
    run("collection", "create", "c", "--data", "base.npy", "--bits", BITS, *COLLECTIONS[kind])
    search = ("collection", "search", "c", "--queries", "queries.npy")
    ways = ((), ("--mode", "hamming"), ("--mode", "asymmetric"), ("--rerank", 100))
    came = {way: outcome(truth, *search, *way) for way in ways[:3]}
    assert came[()] == came[ways[2]] == "found"
    with Collection.open("c") as c:
        by_decoder, keeps = c.state.by_decoder, c.state.vectors is not None
        like = np.array([c.search(like=row).ids for row in range(50)])
        if "inner_product" in COLLECTIONS[kind]:  # an item's product with itself need not be the largest
            assert (
                recall(like, ground_truth(digits[300:], digits[300:350], 10, metric="inner_product")) > LEAST
            )
        else:
            assert np.mean(like[:, 0] == np.arange(50)) > 0.9
        best = recall(c.search(digits[:300], 10).ids, truth)
    assert came[ways[1]] == ("refused" if by_decoder else "found")
    if keeps:
        assert outcome(truth, *search, *ways[3]) == "found"
        assert best > 0.85  # re-ranked by default
    to = ("--to", places.url("pgvector"), "--name", "walked")
    if by_decoder and not keeps:
        refused = run("store", "push", "c", *to, "--force", code=1).stderr
        assert "--vectors float16" in refused
        return
    run("store", "push", "c", *to, "--force", *(("--with-vectors",) if keeps else ()))
    there = ("store", "search", *to, "--queries", "queries.npy", "--model", "c")
    assert outcome(truth, *there) == outcome(truth, *there, "--rerank", 0) == "found"
    run("fit", "base.npy", "-o", "other.safetensors", "--bits", BITS, "--seed", 9)
    assert "another model" in run(*there[:-1], "other.safetensors", code=1).stderr


def test_files_of_codes_are_not_taken_for_others(folder: Path, places: Any, truth: Any) -> None:
    run("fit", "base.npy", "-o", "model.safetensors", "--bits", BITS, "--decoder", "tables")
    run("encode", "model.safetensors", "base.npy", "-o", "codes.npy")
    to = ("--to", places.url("pgvector"), "--name", "walked")
    assert "mean nothing" in run("store", "push", "codes.npy", *to, code=1).stderr
    refused = run(
        "collection", "create", "n", "--data", "codes.npy", "--codes", "--bits", BITS, code=1
    ).stderr
    assert "holds optimal codes" in refused
    run("collection", "create", "c", "--data", "codes.npy", "--codes", "--model", "model.safetensors")
    assert outcome(truth, "collection", "search", "c", "--queries", "queries.npy") == "found"
    run("encode", "model.safetensors", "base.npy", "-o", "hashed.npy", "--coding", "hash")
    assert (
        "holds hash codes" in run("collection", "add", "c", "--data", "hashed.npy", "--codes", code=1).stderr
    )
    run("store", "push", "hashed.npy", *to, "--force")
    there = ("store", "search", *to, "--queries", "queries.npy", "--model", "model.safetensors")
    assert outcome(truth, *there) == "found"
    export = ("export", "model.safetensors", "c.faiss", "--to", "faiss", "--codes", "codes.npy")
    assert run_json(*export)["form"] == "additive"
    assert "mean nothing" in run(*export, "--form", "lsh", "--force", code=1).stderr


def test_an_index_refuses_what_its_codes_are_not_for(digits: Any) -> None:
    ba = auxbit.BinaryAutoencoder(16, random_state=0, max_iter=3).fit(digits[300:])
    index = HammingIndex(model=ba)
    index.add(ba.encode(digits[300:]))
    index.search(ba.encode(digits[:3]))
    index.search_asymmetric(digits[:3])
    ba.fit_decoder(digits[300:], "tables")
    asked = ba.encode(digits[:3], queries=True)
    for made in (HammingIndex(model=ba), HammingIndex(16, decoder=ba.decoder_)):
        made.add(ba.encode(digits[300:], coding=made.coding))
        made.search_asymmetric(digits[:3])
        made.find_duplicates()
        for search in (
            lambda made=made: made.search(asked),
            lambda made=made: made.search_radius(asked, 2),
            lambda made=made: made.search_asymmetric(
                digits[:3], query_codes=ba.encode(digits[:3], queries=True)
            ),
            lambda made=made: made.find_duplicates(1),
        ):
            with pytest.raises(
                auxbit.errors.InvalidInput, match="Hamming distances between them mean nothing"
            ):
                search()
    with pytest.raises(auxbit.errors.InvalidInput, match="it cannot rank hash codes"):
        HammingIndex(16, decoder=ba.decoder_, coding="hash")
    with pytest.raises(auxbit.errors.InvalidInput, match="it cannot rank hash codes"):
        index.attach(ba.decoder_)
    both = HammingIndex(model=ba.fit_decoder(digits[300:], "linear", mu=0.03))
    both.add(ba.encode(digits[300:], coding=both.coding, mu=both.mu))
    both.search(ba.encode(digits[:3]))
    both.search_asymmetric(digits[:3])


def test_an_index_file_keeps_what_its_codes_are(digits: Any, tmp_path: Path) -> None:
    ba = auxbit.ITQ(16, random_state=0).fit(digits[300:]).fit_decoder(digits[300:], "tables", n_iter=2)
    index = HammingIndex(model=ba)
    index.add(ba.encode(digits[300:], coding="optimal"))
    index.save(tmp_path / "i")
    again = HammingIndex.load(tmp_path / "i")
    assert (again.coding, again.mu, again.model) == ("optimal", 0.0, ba.fingerprint("optimal"))
    assert again.decoder is not None
    assert again.decoder.mu == 0
    with pytest.raises(auxbit.errors.InvalidInput, match="mean nothing"):
        again.search(ba.encode(digits[:3], queries=True))


PAGES = {page: re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
         for page in ("README.md", "docs/guide.md")}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_what_readme_and_guide_show_in_python_runs_and_finds_neighbours(
    page: str, folder: Path, digits: Any, truth: Any
) -> None:
    pandas = pytest.importorskip("pandas")
    names = {"base": digits[300:], "queries": digits[:300], "X": digits[300:], "np": np}
    np.save("vectors.npy", digits[300:])
    names["df"] = pandas.DataFrame({"embedding": list(digits[300:]), "doi": [f"d{i}" for i in range(1497)]})
    searched = 0
    for block in PAGES[page]:
        lines = [line for line in block.splitlines() if "dask_array" not in line]  # which needs a cluster
        exec(compile("\n".join(lines), page, "exec"), names)
        ids = names.pop("ids", None)
        if ids is not None and np.shape(ids) == np.shape(truth):
            assert recall(ids, truth) > LEAST, block
            searched += 1
    assert searched >= 2


# ---- what they show on the command line, and what each command says to type next

LINES = {
    page: [
        line
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
        for line in re.findall(r"^auxbit .*?(?=  +#|$)", block, re.M)
        if not language
    ]
    for page in PAGES
}
ELSEWHERE = {  # which commands are walked in which tests
    "auxbit bits": "tests/experiments/test_bits.py::test_who_follows_the_commands_finds_what_was_promised",
    "auxbit compare": "tests/cli/test_compare.py",
    "auxbit experiment": "tests/cli/test_experiment.py",
    "auxbit images": "tests/cli/test_images.py",
    "auxbit serve": "test_what_a_collection_gives_to_others_finds_neighbours, tests/serve/",
}
WRITE = ("encode", "store")  # hints write the same files again


@pytest.mark.parametrize("page", LINES)
def test_what_readme_and_guide_show_on_the_command_line_finds_neighbours(
    page: str, folder: Path, digits: Any, truth: Any, places: Any
) -> None:
    pandas = pytest.importorskip("pandas")
    base, itself = digits[300:], ground_truth(digits[300:], digits[300:], 10)
    pandas.DataFrame({"embedding": list(base), "year": np.arange(1497)}).to_parquet("papers.parquet")
    for name, rows in {"vectors.npy": base, "new.npy": digits[:300]}.items():
        np.save(name, rows)
    truths = {"new.npy": truth, "queries.npy": truth, "vectors.npy": itself, "papers.parquet": itself}
    walked = list[str]()
    waiting = [line for line in LINES[page] if not line.startswith(tuple(ELSEWHERE))]
    while waiting:
        line = re.sub(r"postgresql://\S+", places.url("pgvector"), waiting.pop(0))
        words = shlex.split(line)[1:]
        walked.append(line)
        if "search" in words[:2]:
            assert outcome(truths[words[words.index("--queries") + 1]], *words) == "found", line
            continue
        if words[0] == "evaluate":
            assert all(way["recall_at"] > LEAST for way in run_json(*words)["ways"])
        said = run(*words, *["--force"] * (words[0] in WRITE)).stdout
        hints = re.findall(r"^Next: (auxbit .*)$", said, re.M)
        waiting = [hint for hint in hints if hint not in walked] + waiting
    assert sum("search" in line for line in walked) >= 3


# ---- every method, and what a collection gives to other programs


@pytest.mark.parametrize("method", HASHER_NAMES)
def test_codes_of_every_method_find_neighbours(method: str, digits: Any, truth: Any) -> None:
    items = Collection.create(None, digits[300:], bits=BITS, method=method, coding="hash")
    assert recall(items.search(digits[:300], 10).ids, truth) > 0.25  # two-layer AGH; chance is 0.007


@pytest.fixture(scope="module")
def made(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with the defaults."""
    path = tmp_path_factory.mktemp("made") / "c"
    Collection.create(path, digits[300:], metadata=[{"text": f"digit {row}"} for row in range(1497)]).close()
    return path


def test_what_a_collection_gives_to_others_finds_neighbours(
    made: Path, digits: Any, truth: Any, tmp_path: Path
) -> None:
    import faiss

    from helpers.serve_cases import Client

    found = {}
    assert run_json("export", made, tmp_path / "c.faiss", "--to", "faiss")["form"] == "additive"
    queries = np.ascontiguousarray(digits[:300], dtype=np.float32)
    found["faiss"] = faiss.read_index(str(tmp_path / "c.faiss")).search(queries, 10)[1]
    with Client(made) as client:
        found["http"] = []
        for query in digits[:300]:
            asked = {"vector": query.tolist(), "k": 10}
            answer = client.post("/api/v1/search/vector", json=asked).json()
            found["http"].append([each["id"] for each in answer["results"]])
        refused = client.post("/api/v1/search/vector", json={"vector": digits[0].tolist(), "mode": "hamming"})
        assert refused.status_code == 422, refused.text
    for way, ids in found.items():
        assert recall(ids, truth) > 0.75, way  # by the decoder, which finds 0.83


def test_the_onnx_model_gives_hash_codes_which_is_said(made: Path, digits: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    told = run("export", made, tmp_path / "h.onnx", "--to", "onnx").stdout
    assert "--coding hash" in told
    session = onnxruntime.InferenceSession(str(tmp_path / "h.onnx"))
    codes = session.run(None, {"X": digits[:300].astype(np.float32)})[0]
    with Collection(made) as items:
        np.testing.assert_array_equal(codes, items.model.encode(digits[:300], coding="hash"))
