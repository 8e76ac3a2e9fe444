"""The main job on embedded data: tPCA, ITQ, BFA and BA at 16 bits on scikit-learn's handwritten digits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.core import files
from auxbit.core.checks import Array
from auxbit.data import vectors
from auxbit.experiments.compare import mean_over_seeds
from auxbit.experiments.measure import Task, about, measure_quantiser, prepare
from auxbit.experiments.quantisers import Hashed, make_quantiser
from auxbit.experiments.study import Row, as_csv, check_folder
from auxbit.hashers.base import Hasher
from auxbit.hashers.registry import find_method
from auxbit.index import HammingIndex
from auxbit.plot import figures

METHODS, BITS, SEEDS = ("tpca", "itq", "bfa", "ba"), 16, (0, 1, 2)
N_QUERIES, K, K_SMALL = 300, 50, 10
SHOWN_NEIGHBOURS = 8
FILES = {
    "model": "model.safetensors", "codes": "codes.npy", "history": "history.png",
    "precision": "precision.png", "digits": "digits.png", "table": "table.csv", "results": "results.json",
}  # fmt: skip


def run_demo(
    out_dir: str | os.PathLike[str], *, overwrite: bool = False, n_jobs: int | None = None,
    progress: Callable[[str], object] = lambda step: None,
) -> Row:  # fmt: skip
    """Train, measure and draw into `out_dir`; returns settings, table rows, seconds and the files written.

    300 of the 1,797 digits, drawn with a fixed seed, are queries; the rest are trained on and searched. Rows
    are means over three seeds; the model, codes and pictures are those of the first seed.
    """
    start = time.perf_counter()
    folder = Path(out_dir)
    check_folder(folder, FILES.values(), overwrite=overwrite)
    X, labels = vectors.embedded_digits()
    order = np.random.RandomState(0).permutation(len(X))
    asked, base = np.sort(order[:N_QUERIES]), np.sort(order[N_QUERIES:])
    progress("true neighbours")
    task = prepare(X[base], X[asked], K=K, k=K, radius=2, n_jobs=n_jobs)
    rows: list[Row] = []
    models: dict[str, Hasher] = {}
    for name in METHODS:
        method = find_method(name)
        progress(f"training {method.label}")
        for seed in SEEDS if method.seeded else SEEDS[:1]:
            made = make_quantiser(name, BITS, seed=seed, n_jobs=n_jobs).fit(task.base)
            row = about((method.label, BITS, seed), made) | measure_quantiser(made, task)
            nearer = measure_quantiser(made, task._replace(truth=task.truth[:, :K_SMALL], k=K_SMALL))
            rows.append(row | {f"precision_{K_SMALL}": nearer["precision_average"]})
            if isinstance(made, Hashed):
                models.setdefault(method.label, made.model)
    progress("drawing")
    table = mean_over_seeds(rows)
    ba = models["BA"]
    written = {key: folder / name for key, name in FILES.items()}
    ba.save(written["model"], overwrite=overwrite)
    vectors.write_vectors(written["codes"], ba.encode(task.base), overwrite=overwrite)
    history = [asdict(record) for record in ba.history_]
    figures.write(figures.history(history), written["history"], overwrite=overwrite)
    values = {f"precision_{K_SMALL}": f"of the {K_SMALL} nearest", "precision_average": f"of the {K} nearest"}
    title = f"Digits at {BITS} bits: how many of the nearest codes are true neighbours"
    drawn = figures.precision(table, values=values, title=title)
    figures.write(drawn, written["precision"], overwrite=overwrite)
    panels = digit_panels(models, task, labels[base], labels[asked])
    title = f"The nearest by pixels (exact) and by {BITS}-bit codes; framed: another digit than the query"
    figures.write(figures.retrieved(panels, title=title), written["digits"], overwrite=overwrite)
    files.write_text(written["table"], as_csv(table), overwrite=overwrite)
    result = {
        "data": "scikit-learn digits", "bits": BITS, "train_and_base_rows": len(base), "queries": len(asked),
        "K": K, "k": K, "seeds": list(SEEDS), "rows": table, "history": history,
        "seconds": round(time.perf_counter() - start, 2),
        "files": {key: str(path) for key, path in written.items()},
    }  # fmt: skip
    files.write_text(written["results"], json.dumps(result, indent=2), overwrite=overwrite)
    return result


def digit_panels(models: Mapping[str, Hasher], task: Task, base_labels: Any, query_labels: Any) -> list[Any]:
    """The first query of each of several digits, with the true and the retrieved neighbours."""
    chosen = [int(np.flatnonzero(query_labels == digit)[0]) for digit in (2, 3, 5, 7, 8, 9)]
    lists = {figures.EXACT: task.truth[chosen, :SHOWN_NEIGHBOURS]}
    for label, model in models.items():
        index = HammingIndex(model.n_bits, n_jobs=task.n_jobs)
        index.add(model.encode(task.base))
        lists[label] = index.search(model.encode(task.queries[chosen]), SHOWN_NEIGHBOURS)[1]

    def pictures(X: Array) -> Array:
        """Pixels of 0..16 as ink on white."""
        return (255 - X.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)

    panels = []
    for place, query in enumerate(chosen):
        label, found = query_labels[query], {name: ids[place] for name, ids in lists.items()}
        rows = [(name, pictures(task.base[ids]), base_labels[ids] != label) for name, ids in found.items()]
        panels.append({"query": pictures(task.queries[query])[0], "caption": f"query: {label}", "rows": rows})
    return panels
