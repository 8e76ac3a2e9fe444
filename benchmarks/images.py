"""The figures of docs/images.md: `python benchmarks/images.py NAME`, raw results in docs/results/.

create      a collection of CIFAR-10's 10,000 test images, written as PNG files
serve       200 searches by id per second for 30 seconds, answered by `auxbit serve` on loopback
precision   the class among the 10 nearest of CIFAR-10's 50,000 train images, codes against vectors
colour      the same for GIST with a colour histogram beside it, by weight, uncompressed

CIFAR-10 is looked for in AUXBIT_DATA/cifar10. create keeps its collection in benchmarks/raw/ for serve.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.data import datasets
from auxbit.data.gist import cached_gist
from auxbit.evaluate import ground_truth
from auxbit.images.features import Describer, Recipe
from http_load import cpu_seconds, serving, steady
from record import Results, run, table

RAW = Path(__file__).parent / "raw"
COLLECTION = RAW / "cifar.auxbit"
SEEDS = (0, 1, 2)
NEAREST = 10
MU = 0.01  # of auxbit.images
RATE, SECONDS = 200, 30


def auxbit(*command: str) -> list[str]:
    return [sys.executable, "-m", "auxbit.cli", *command]


def create(results: Results) -> str:
    """`auxbit images create` on 10,000 PNG files of 32 × 32 pixels, 64 bits, and once more on the same."""
    pictures = RAW / "cifar-test"
    if not pictures.exists():
        write_pictures(pictures)
    shutil.rmtree(COLLECTION, ignore_errors=True)
    rows = []
    for what in ("first", "again"):
        start = time.perf_counter()
        command = auxbit("images", "create", str(pictures), "--out", str(COLLECTION), "--json")
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        took, report = time.perf_counter() - start, json.loads(done.stdout)
        results.add(run=what, seconds=took, stages=report["seconds"], items=report["items"])
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report["seconds"].items())
        rows.append((what, f"{report['items']:,}", f"{took:.1f} s", stages))
    return table(("run", "pictures", "all of it", "of which"), rows)


def write_pictures(folder: Path) -> None:
    """The test images as class/number.png."""
    found = datasets.load("cifar10")
    for number, (image, label) in enumerate(zip(found.queries, found.query_labels)):
        path = folder / str(int(label)) / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def serve(results: Results) -> str:
    """Searches by id in 10,000 pictures, 64 bits, k = 20: 200 per second for 30 s on loopback."""
    if not COLLECTION.exists():
        raise SystemExit("first: python benchmarks/images.py create")
    rows = []
    with serving(COLLECTION) as (address, process):
        for mode in ("hamming", "asymmetric", "reranked"):
            steady(address, searches(mode, 1), rate=50, seconds=2)  # the first ones compile and map
            cpu = cpu_seconds(process)
            load = steady(address, searches(mode, 2), rate=RATE, seconds=SECONDS)
            cpu = cpu_seconds(process) - cpu
            n = len(load.seconds)
            row = {f"p{q}": float(np.percentile(load.seconds, q) * 1000) for q in (50, 99, 100)}
            row |= {"at_server_p99": float(np.percentile(load.at_server, 99) * 1000)}
            results.add(mode=mode, answers=n, failures=load.failures[:5], failed=len(load.failures),
                        cpu_ms=cpu / n * 1000, **row)  # fmt: skip
            times = [f"{row[name]:.1f} ms" for name in ("at_server_p99", "p50", "p99", "p100")]
            rows.append((mode, f"{n:,}", len(load.failures), *times, f"{cpu / n * 1000:.1f} ms"))
    head = ("mode", "answers", "errors", "p99 of the search", "median", "p99", "slowest", "server's CPU each")
    return table(head, rows)


def searches(mode: str, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        yield f"/api/v1/search?id={rng.randrange(10_000)}&k=20&mode={mode}"


@lru_cache
def cifar() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """GIST of 50,000 train images and of 1,000 test images, and the labels of both."""
    found = datasets.load("cifar10")
    images = found.base, found.queries[:1000]
    base, queries = (cached_gist(np.asarray(each), RAW) for each in images)
    return base, queries, np.asarray(found.labels), np.asarray(found.query_labels[:1000])


def precision(results: Results) -> str:
    """The share of the query's class among the 10 nearest, 1,000 queries, means of three seeds."""
    X, Q, labels, wanted = cifar()

    def share(ids: np.ndarray) -> float:
        return float((labels[ids] == wanted[:, None]).mean())

    whole = share(ground_truth(X, Q, NEAREST))
    results.add(bits=X.shape[1] * 32, search="uncompressed", seed=0, precision=whole)
    for bits in (64, 128):
        for seed in SEEDS:
            ba = BinaryAutoencoder(bits, random_state=seed).fit(X)
            found = {}
            index = HammingIndex(bits, decoder=ba.decoder_)
            index.add(ba.encode(X))
            found["Hamming, h(x)"] = index.search(ba.encode(Q), NEAREST)[1]
            found["asymmetric, h(x)"] = index.search_asymmetric(Q, NEAREST)[1]
            for kind, mu in (("linear", 0.0), ("tables", 0.0), ("tables", MU)):
                model = copy.deepcopy(ba).fit_decoder(X, kind, mu=mu)  # each from the decoder of h(x)
                index = HammingIndex(bits, decoder=model.decoder_)
                index.add(model.encode(X, coding="optimal", mu=mu))
                name = f"optimal, {kind}, μ = {mu:g}"
                found[f"asymmetric, {name}"] = index.search_asymmetric(Q, NEAREST)[1]
                if mu == MU:
                    found[f"Hamming, {name}"] = index.search(ba.encode(Q), NEAREST)[1]
            for name, ids in found.items():
                results.add(bits=bits, search=name, seed=seed, precision=share(ids))
    rows = [("GIST itself, 10,240 bits", f"{whole:.4f}", "", "")]
    for bits in (64, 128):
        for name in dict.fromkeys(row["search"] for row in results.where(bits=bits)):
            each = [row["precision"] for row in results.where(bits=bits, search=name)]
            kept = [f"{100 * value / whole:.1f} %" for value in (np.mean(each), min(each))]
            rows.append((f"{bits} bits, {name}", f"{np.mean(each):.4f}", *kept))
    return table(("codes and search", "precision", "of the vectors'", "worst seed"), rows)


def colour(results: Results) -> str:
    """The class among the 10 nearest for GIST and a colour histogram of some weight, not compressed."""
    found = datasets.load("cifar10")
    labels, wanted = np.asarray(found.labels), np.asarray(found.query_labels[:1000])
    rows = []
    for weight in (0.0, 0.25, 0.5, 1.0, 2.0):
        describe = Describer(Recipe("gist", side=32, colour=weight))
        X, Q = (describe(np.asarray(images)) for images in (found.base, found.queries[:1000]))
        ids = ground_truth(X, Q, NEAREST)
        share = float((labels[ids] == wanted[:, None]).mean())
        results.add(colour=weight, dimension=X.shape[1], precision=share)
        rows.append((weight, X.shape[1], f"{share:.4f}"))
    return table(("--colour", "dimensions", "precision"), rows)


if __name__ == "__main__":
    run("images", {"create": create, "serve": serve, "precision": precision, "colour": colour})
