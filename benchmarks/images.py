"""The figures of docs/images.md: `python benchmarks/images.py NAME`, raw results in docs/results/.

create      a collection of CIFAR-10's 10,000 test images, written as PNG files
serve       200 searches by id per second for 30 seconds, answered by `auxbit serve` on loopback
precision   the class among the 10 nearest of CIFAR-10's 50,000 train images, codes against vectors
colour      the same for GIST with a colour histogram beside it, by weight, uncompressed
views       copies of CIFAR-10's pictures, mirrored, turned and cropped, searched with and without --views
photographs copies of the photographs in the folder AUXBIT_PHOTOS, likewise
duplicates  copies that were compressed, scaled or mirrored, found within a radius, and what is no copy

CIFAR-10 is looked for in AUXBIT_DATA/cifar10. create keeps its collection in benchmarks/raw/ for serve.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.data import datasets
from auxbit.data.gist import cached_gist
from auxbit.evaluate import ground_truth
from auxbit.images import build
from auxbit.images.features import Describer, Recipe
from auxbit.images.pictures import Copy, Pictures
from http_load import cpu_seconds, serving, steady
from record import Results, run, table

RAW = Path(__file__).parent / "raw"
COLLECTION = RAW / "cifar.auxbit"
SEEDS = (0, 1, 2)
NEAREST = 10
MU = 0.01  # of auxbit.images
RATE, SECONDS = 200, 30


def auxbit(*command: str) -> list[str]:
    return [sys.executable, "-m", "auxbit", *command]


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


COPIED, COPIES = 5000, 500  # pictures, and how many of them have copies
TURNS = {"mirrored": lambda a: a[:, ::-1]} | {
    f"turned by {90 * n}°": lambda a, n=n: np.rot90(a, n) for n in (1, 2, 3)
}
PARTS = (90, 75)


def views(results: Results) -> str:
    """Copies of 500 of 5,000 CIFAR-10 pictures, 64 bits: is the original first, or among the first 10?"""
    images = list(np.asarray(datasets.load("cifar10").queries[:COPIED]))
    return found_by_views(results, images, copies_of(images[:COPIES]))


def photographs(results: Results) -> str:
    """Copies of photographs, 64 bits, searched among these and twelve parts of each: is the original first,
    or among the first 10? The photographs are those in the folder AUXBIT_PHOTOS, of at most 1,280 pixels.
    """
    files = sorted(Path(os.environ["AUXBIT_PHOTOS"]).iterdir())
    images = [photograph(path) for path in files]
    parts = [part for image in images for part in twelve_parts(image)]
    half = {"half as wide, JPEG of quality 50": [half_as_wide(a) for a in images]}
    return found_by_views(results, images + parts, copies_of(images) | half, photographs=len(images))


def copies_of(images: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    copies = {name: [turn(a) for a in images] for name, turn in TURNS.items()}
    for part in PARTS:
        copies[f"{part} % of width and height"] = [cropped(a, part, rng) for a in images]
    return copies


def found_by_views(
    results: Results, images: list[np.ndarray], copies: dict[str, list[np.ndarray]], **about: int
) -> str:
    """How often a copy of the first pictures finds its original, with and without --views."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        write_numbered(place / "in", images)
        rows: dict[str, list[str]] = {name: [name] for name in copies}
        for with_views in (False, True):
            out = place / f"{with_views}.auxbit"
            build.create(place / "in", out, views=with_views)
            with Pictures.open(out) as pictures:
                for name, each in copies.items():
                    found = [[int(one.file[:5]) for one in pictures.search(png(a), NEAREST)] for a in each]
                    first = float(np.mean([ids[0] == number for number, ids in enumerate(found)]))
                    ten = float(np.mean([number in ids for number, ids in enumerate(found)]))
                    results.add(
                        copy=name, views=with_views, first=first, ten=ten, pictures=len(images), **about
                    )
                    rows[name] += [f"{first:.3f}", f"{ten:.3f}"]
    head = ("copy", "first", "among 10", "first, --views", "among 10, --views")
    return table(head, list(rows.values()))


def photograph(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.thumbnail((1280, 1280))
        return np.asarray(image.convert("RGB"))


def twelve_parts(image: np.ndarray) -> list[np.ndarray]:
    """Side by side, four across and three down."""
    return [part for row in np.array_split(image, 3) for part in np.array_split(row, 4, axis=1)]


def half_as_wide(image: np.ndarray) -> np.ndarray:
    stream, (height, width) = io.BytesIO(), image.shape[:2]
    Image.fromarray(image).resize((width // 2, height // 2)).save(stream, "JPEG", quality=50)
    return np.asarray(Image.open(stream))


def duplicates(results: Results) -> str:
    """5,000 CIFAR-10 pictures and 500 copies of each kind, 64 bits: what is found within a radius."""
    images = np.asarray(datasets.load("cifar10").queries[:COPIED])
    kinds = {
        "jpeg": lambda a: a,
        "scaled": lambda a: np.asarray(Image.fromarray(a).resize((48, 48), Image.Resampling.LANCZOS)),
        "mirrored": TURNS["mirrored"],
    }
    rows = []
    with TemporaryDirectory() as folder:
        place = Path(folder)
        write_numbered(place / "in", images)
        for number, image in enumerate(images[:COPIES]):
            for kind, change in kinds.items():
                copy = Image.fromarray(np.ascontiguousarray(change(image)))
                end, how = (".jpg", {"quality": 75}) if kind == "jpeg" else (".png", {})
                copy.save(place / "in" / f"{number:05d} {kind}{end}", **how)
        for with_views in (False, True):
            out = place / f"{with_views}.auxbit"
            build.create(place / "in", out, views=with_views)
            with Pictures.open(out) as pictures:
                for radius in (0, 2, 4, 6, 8):
                    found = pictures.duplicates(radius)
                    row = copies_found(found, kinds)
                    results.add(views=with_views, radius=radius, **row)
                    rows.append(("yes" if with_views else "no", radius, *row.values()))
    head = ("--views", "--radius", *(f"{kind}, of 500" for kind in kinds), "other pictures to delete")
    return table(head, rows)


def copies_found(groups: list[list[Copy]], kinds: Iterable[str]) -> dict[str, int]:
    """How many copies of each kind are in a group with another file of their picture.

    And how many pictures are to be deleted because of another one.
    """
    found = dict.fromkeys([*kinds, "wrong"], 0)
    for group in groups:
        names = {each.id: Path(each.path).stem for each in group}
        numbers = Counter(name[:5] for name in names.values())
        for each in group:
            number, kind = names[each.id][:5], names[each.id][6:]
            if kind and numbers[number] > 1:
                found[kind] += 1
            found["wrong"] += names[each.of][:5] != number
    return found


def write_numbered(folder: Path, images: Iterable[np.ndarray]) -> None:
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:05d}.png")


def cropped(image: np.ndarray, percent: int, rng: np.random.Generator) -> np.ndarray:
    """That much of width and height, from anywhere."""
    size = np.array(image.shape[:2])
    height, width = edges = np.rint(size * percent / 100).astype(int)
    top, left = rng.integers(0, size - edges + 1)
    return image[top : top + height, left : left + width]


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(stream, "PNG")
    return stream.getvalue()


if __name__ == "__main__":
    modes = (create, serve, precision, colour, views, duplicates)
    if "AUXBIT_PHOTOS" in os.environ:
        modes += (photographs,)
    run("images", {each.__name__: each for each in modes})
