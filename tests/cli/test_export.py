"""`auxbit export`: what it writes, prints and refuses."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import pytest

from auxbit import ITQ, Collection, HammingIndex, load
from auxbit.export.onnx import onnx_bytes
from helpers.cli_runner import run, run_json
from helpers.export_models import digits_rows, fitted


def faiss_index(path):
    return faiss.read_index(str(path))


def test_it_exports_codes_of_a_model_and_vectors_alike(folder):
    run("encode", "m.safetensors", "base.npy", "--out", "codes.npy")
    done = run_json("export", "m.safetensors", "a.faiss", "--to", "faiss", "--codes", "codes.npy")
    n = len(np.load("codes.npy"))
    assert done == {"out": "a.faiss", "to": "faiss", "form": "lsh", "n_codes": n, "n_bits": 16}
    said = run("export", "m.safetensors", "b.faiss", "--to", "faiss", "--codes", "base.npy")
    assert f"{n:,} codes of 16 bits, form lsh" in said.stdout
    assert "faiss.read_index('b.faiss')" in said.stdout
    assert Path("a.faiss").read_bytes() == Path("b.faiss").read_bytes()
    queries = np.load("queries.npy").astype(np.float32)
    expected = run_json("search", "m.safetensors", "-b", "codes.npy", "-q", "queries.npy", "--k", 5)
    distances, _ = faiss_index("a.faiss").search(queries, 5)
    assert distances.tolist() == [answer["distances"] for answer in expected["results"]]


def test_it_exports_optimal_codes_for_the_ranking_that_they_are_for(folder):
    options = ("--to", "faiss", "--codes", "base.npy", "--coding", "optimal")
    assert run_json("export", "m.safetensors", "a.faiss", *options)["form"] == "additive"
    index = HammingIndex(16, decoder=load("m.safetensors").decoder_, n_jobs=1)
    index.add(load("m.safetensors").encode(np.load("base.npy"), coding="optimal"))
    queries = np.load("queries.npy").astype(np.float32)
    distances, _ = faiss_index("a.faiss").search(queries, 5)
    assert np.allclose(distances, index.search_asymmetric(queries, 5)[0], rtol=1e-4)


def test_it_takes_bytes_as_codes_where_they_could_be_vectors(folder):
    rows = np.random.RandomState(0).randint(0, 256, (50, 2)).astype(np.uint8)
    np.save("two.npy", rows)
    run("fit", "two.npy", "--out", "two.safetensors", "--method", "lsh", "--bits", 16)
    run("export", "two.safetensors", "a.faiss", "--to", "faiss", "--codes", "two.npy", "--form", "binary")
    assert np.array_equal(faiss.read_index_binary("a.faiss").reconstruct_n(0, 50), rows)


def test_it_exports_an_index(folder):
    model = load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_, n_jobs=1)
    index.add(model.encode(np.load("base.npy")[:50]), np.arange(50) + 7)
    index.save("i.safetensors")
    assert run_json("export", "i.safetensors", "a.faiss", "--to", "faiss")["form"] == "binary"
    said = run("export", "i.safetensors", "b.faiss", "--to", "faiss", "--form", "additive")
    assert "50 codes of 16 bits, form additive" in said.stdout
    assert faiss.vector_to_array(faiss_index("b.faiss").id_map).tolist() == list(range(7, 57))
    assert "faiss.read_index_binary" in run("export", "i.safetensors", "c", "--to", "faiss").stdout
    assert "has its codes" in run(
        "export", "i.safetensors", "d", "--to", "faiss", "--codes", "base.npy", code=2
    ).stderr  # fmt: skip
    assert "has no hash function" in run("export", "i.safetensors", "d", "--to", "onnx", code=1).stderr


@pytest.mark.parametrize("n_bits", [16, 13])
def test_it_exports_a_collection(folder, n_bits):
    model = fitted(ITQ, n_bits)
    with Collection.create("c", model, n_jobs=1) as collection:
        collection.add(digits_rows()[:50])
        collection.delete([0, 1])
    with Collection.create("codes_only", bits=n_bits, n_jobs=1) as collection:
        collection.add(codes=model.encode(digits_rows()[:50]))
    done = run_json("export", "c", "a.faiss", "--to", "faiss")
    assert done == {"out": "a.faiss", "to": "faiss", "form": "lsh", "n_codes": 48, "n_bits": n_bits}
    assert faiss.vector_to_array(faiss_index("a.faiss").id_map).tolist() == list(range(2, 50))
    done = run_json("export", "codes_only", "b.faiss", "--to", "faiss")
    assert (done["form"], done["n_bits"], done["n_codes"]) == ("binary", n_bits, 50)
    run("export", "c", "h.onnx", "--to", "onnx")
    assert Path("h.onnx").read_bytes() == onnx_bytes(model)
    assert "codes without a model" in run("export", "codes_only", "no.onnx", "--to", "onnx", code=1).stderr


def test_it_exports_a_hash_function(folder):
    said = run("export", "m.safetensors", "h.onnx", "--to", "onnx")
    assert "ITQ, 16 bits; X (n, 64) float32 to hash codes" in said.stdout
    rows = np.load("queries.npy").astype(np.float32)
    (codes,) = onnxruntime.InferenceSession("h.onnx", providers=["CPUExecutionProvider"]).run(
        None, {"X": rows}
    )
    assert np.array_equal(codes, load("m.safetensors").encode(rows))
    assert "h.onnx exists" in run("export", "m.safetensors", "h.onnx", "--to", "onnx", code=1).stderr
    done = run_json("export", "m.safetensors", "h.onnx", "--to", "onnx", "--force")
    expected = {"out": "h.onnx", "to": "onnx", "method": "ITQ", "n_bits": 16, "n_features": 64}
    assert done == expected | {"coding": "hash"}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--to", "faiss"], 2, "a model has no codes"),
        (["--to", "tensorrt"], 2, "not one of faiss, onnx"),
        (["--to", "faiss", "--form", "flat"], 2, "not one of auto, lsh, binary, additive"),
        (["--to", "onnx", "--codes", "base.npy"], 2, "holds no codes"),
        (["--to", "onnx", "--form", "lsh"], 2, "holds no codes"),
        (["--to", "faiss", "--codes", "missing.npy"], 1, "missing.npy"),
    ],
)
def test_it_says_what_is_wrong(folder, options, code, message):
    assert message in " ".join(run("export", "m.safetensors", "out", *options, code=code).stderr.split())
    assert not Path("out").exists()


def test_it_says_that_a_form_does_not_fit_before_rows_are_encoded(folder):
    run("fit", "base.npy", "--out", "s.safetensors", "--method", "sph", "--bits", 8)
    options = ("--to", "faiss", "--codes", "missing.npy", "--form", "lsh")
    assert "use binary" in run("export", "s.safetensors", "out", *options, code=1).stderr


def test_it_exports_documents_of_a_model_an_index_and_a_collection(folder):
    to = "vespa"
    run("encode", "m.safetensors", "base.npy", "--out", "codes.npy")
    n = len(np.load("codes.npy"))
    done = run_json("export", "m.safetensors", "a", "--to", to, "--codes", "codes.npy")
    assert (done["n_codes"], done["n_bits"], done["to"]) == (n, 16, to)
    index = HammingIndex(16, n_jobs=1)
    index.add(np.load("codes.npy"), np.arange(n))
    index.save("i.safetensors")
    run("export", "i.safetensors", "b", "--to", to)
    with Collection.create("c", load("m.safetensors"), coding="hash") as collection:
        collection.add(np.load("base.npy"))
    said = run("export", "c", "d", "--to", to).stdout
    assert f"{n:,} codes of 16 bits in auxbit_codes.sd, documents.jsonl, exact.json" in said
    for name in done["files"]:
        texts = {(Path(each) / name).read_text() for each in "abd"}
        assert len(texts) == 1
    assert "Choose the name of a new folder" in run("export", "c", "d", "--to", to, code=1).stderr
    assert "documents hold hash codes" in run("export", "c", "e", "--to", to, "--mu", 1, code=2).stderr
