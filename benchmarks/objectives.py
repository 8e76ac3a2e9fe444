"""Reconstruction and affinity as objectives of MAC: `python benchmarks/objectives.py`, resumed if stopped.

Each cell (data, bits, objective, seed) is kept in docs/results/objectives.jsonl as soon as it is done; cells
that are there are not run again. Fits are those of the default preset.

    python benchmarks/objectives.py --data digits mnist --bits 16 32 --seeds 0 1 2
    python benchmarks/objectives.py --table         # only write the page again

AUXBIT_DATA is a folder with siftsmall, mnist and wordnet.
"""

from __future__ import annotations

import argparse
import json
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from auxbit import ITQ, BinaryAutoencoder
from auxbit.core.checks import Array, Ids
from auxbit.evaluate import ground_truth, hamming_ranking, precision_recall_at_k
from auxbit.mac.affinity import label_ranking
from record import RESULTS, data_folder, fill_in, machine, measured, table

PATH = RESULTS / "objectives.jsonl"
DATA, BITS, SEEDS, K = ("digits", "siftsmall", "mnist", "wordnet"), (16, 32, 64), (0, 1, 2), 50
LABELLED = ("digits", "mnist")
NEIGHBOURS, LABELS, CLASSES = "affinity", "affinity, labels", "predicted classes"
OBJECTIVES = ("itq", "reconstruction", NEIGHBOURS, LABELS, CLASSES)
N_ROWS, N_QUERIES = 10_000, 1000


@lru_cache(maxsize=1)
def task(data: str, seed: int) -> tuple[Array, Array, Array, Ids, Ids, Ids]:
    """Rows to train on, to search, and queries; true neighbours; labels of rows and of queries, if any."""
    none = np.zeros(0, dtype=np.int64)
    folder = data_folder() / data
    if data == "digits":
        X, y = load_digits(return_X_y=True)
        order = np.random.RandomState(seed).permutation(len(X))
        rows, asked = order[:1297], order[1297:]
        return X[rows], X[rows], X[asked], ground_truth(X[rows], X[asked], K), y[rows], y[asked]
    if data == "siftsmall":
        train, base = (np.load(folder / f"{name}.npy").astype(np.float32) for name in ("learn", "base"))
        return train, base[500:], base[:500], ground_truth(base[500:], base[:500], K), none, none
    if data == "mnist":
        images = [np.load(folder / f"{part}_images.npy") for part in ("train", "test")]
        labels = [np.load(folder / f"{part}_labels.npy").astype(np.int64) for part in ("train", "test")]
        base, queries = (each.reshape(len(each), -1).astype(np.float32) for each in images)
        base, queries = base[:N_ROWS], queries[:N_QUERIES]
        truth = ground_truth(base, queries, K)
        return base, base, queries, truth, labels[0][:N_ROWS], labels[1][:N_QUERIES]
    base = np.load(folder / "base.npy")
    base = base[np.sort(np.random.RandomState(0).choice(len(base), N_ROWS, replace=False))]
    both = [each.astype(np.float32) for each in (base, np.load(folder / "query.npy")[:N_QUERIES])]
    base, queries = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in both)
    return base, base, queries, ground_truth(base, queries, K), none, none


def cell(data: str, bits: int, objective: str, seed: int) -> dict[str, Any]:
    """One fit, and what it finds: true neighbours, and rows of the query's label, among the first 50."""
    train, base, queries, truth, labels, wanted = task(data, seed)
    if objective == CLASSES:
        return by_classes(base, labels, queries, wanted)
    kind = "affinity" if objective in (NEIGHBOURS, LABELS) else "reconstruction"
    model = ITQ(bits, random_state=seed, n_jobs=1)
    if objective != "itq":
        model = BinaryAutoencoder(bits, objective=kind, random_state=seed, n_jobs=1)
    with measured() as cost, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train, labels if objective == LABELS else None)
    ranking = hamming_ranking(model.encode(base), model.encode(queries), truth, bits)
    found = {"precision": precision_recall_at_k(ranking, K, ties="average").precision, **cost}
    if len(labels):
        ranking = label_ranking(model.transform(base), labels, model.transform(queries), wanted)
        found["label_precision"] = precision_recall_at_k(ranking, K, ties="average").precision
    if objective != "itq":
        path = [record.precision for record in model.history_]
        found |= {"path": path, "kept": int(np.argmax(path)), "mu": model.history_[0].mu, "C": model.C_}
    return found


def by_classes(base: Array, labels: Ids, queries: Array, wanted: Ids) -> dict[str, Any]:
    """scikit-learn's logistic regression; the code of a row is the class that it predicts, a bit each."""
    scaler = StandardScaler().fit(base)
    with measured() as cost:
        classifier = LogisticRegression(C=0.01, max_iter=300).fit(scaler.transform(base), labels)
    codes = [np.eye(10, dtype=np.uint8)[classifier.predict(scaler.transform(X))] for X in (base, queries)]
    ranking = label_ranking(codes[0], labels, codes[1], wanted)
    return {"label_precision": precision_recall_at_k(ranking, K, ties="average").precision, **cost}


def present() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PATH.read_text().splitlines()] if PATH.exists() else []


def run(data: list[str], bits: list[int], seeds: list[int]) -> None:
    """Measure the cells that are not there."""
    names = ("data", "bits", "objective", "seed")
    done = {tuple(each[name] for name in names) for each in present()}
    cells = [(d, b, o, s) for s in seeds for d in data for b in bits for o in OBJECTIVES]
    for each in cells:
        name, n_bits, objective, _ = each
        if objective in (LABELS, CLASSES) and name not in LABELLED:
            continue
        if each in done or (objective == CLASSES and n_bits != BITS[0]):
            continue
        found = dict(zip(names, each)) | cell(*each)
        with PATH.open("a") as file:
            common = {"command": "python benchmarks/objectives.py", "machine": machine()}
            file.write(json.dumps(common | found, default=float) + "\n")
        print(*each, f"{found.get('precision', 0):.4f} {found.get('label_precision', 0):.4f}", flush=True)


def pages() -> None:
    """The two tables."""
    rows = present()

    def mean(value: str, **where: Any) -> float | None:
        found = [each[value] for each in rows if where.items() <= each.items() and value in each]
        return float(np.mean(found)) if found else None

    def cells(value: str, objectives: tuple[str, ...], data: str, bits: int) -> list[str]:
        wheres = [{"bits": BITS[0] if each == CLASSES else bits, "objective": each} for each in objectives]
        means = [mean(value, data=data, **where) for where in wheres]
        best = max((each for each in means if each is not None), default=0.0)
        texts = ["" if each is None else f"{each:.3f}" for each in means]
        return [f"**{text}**" if text and text == f"{best:.3f}" else text for text in texts]

    def starts_kept(data: str, bits: int) -> str:
        where = {"data": data, "bits": bits, "objective": NEIGHBOURS}
        fits = [each for each in rows if where.items() <= each.items()]
        return f"{sum(each['kept'] == 0 for each in fits)} of {len(fits)}"

    unsupervised = ("itq", "reconstruction", NEIGHBOURS)
    lines = [
        [data, bits, *cells("precision", unsupervised, data, bits), starts_kept(data, bits)]
        for data in DATA
        for bits in BITS
    ]
    about = "precision at K = k = 50 by Hamming distance, ties averaged; means of the seeds"
    head = ["data", "bits", "ITQ", "BA, reconstruction", "BA, affinity of neighbours"]
    made = table([*head, "fits by affinity that kept their start"], lines)
    fill_in("objectives-neighbours", f"{made}\n\n`python benchmarks/objectives.py`: {about}.")
    lines = [
        [
            data,
            bits,
            *cells("label_precision", (*unsupervised, LABELS, CLASSES), data, bits),
            *(text.strip("*") for text in cells("precision", (LABELS,), data, bits)),
        ]
        for data in LABELLED
        for bits in BITS
    ]
    head += ["BA, affinity of labels", "classes that logistic regression predicts, as codes"]
    made = table([*head, "Euclidean neighbours that affinity of labels finds"], lines)
    about = "share of the nearest 50 codes that has the query's label, ties averaged; means of the seeds"
    fill_in("objectives-labels", f"{made}\n\n`python benchmarks/objectives.py`: {about}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    parser.add_argument("--bits", nargs="*", type=int, default=list(BITS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        run(options.data, options.bits, options.seeds)
    pages()


if __name__ == "__main__":
    main()
