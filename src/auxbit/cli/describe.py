"""What a file is, for `auxbit info`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from auxbit.cli import tasks
from auxbit.cli.output import number
from auxbit.core.codes import bytes_per_code

Facts = dict[str, Any]


def describe(name: str) -> Facts:
    """The facts of a model, an index, or else a file of vectors."""
    if Path(name).suffix.lower() == ".safetensors" or _is_safetensors(Path(name)):
        return _describe_index(name) if _is_index(name) else _describe_model(name)
    return _describe_data(name)


def as_lines(facts: Facts) -> list[tuple[str, object]]:
    """The facts for reading: names with spaces, parameters on a line."""
    lines: list[tuple[str, object]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={number(item)}" for key, item in value.items()) or "none"
        lines.append((name.replace("_", " ") if name.islower() else name, value))
    return lines


def _is_safetensors(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(10)
    return len(start) == 10 and start[8:] == b'{"'


def _is_index(name: str) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(name, framework="numpy") as file:
            return bool((file.metadata() or {}).get("format") == "auxbit index")
    except (SafetensorError, OSError):
        return False  # what is wrong with it is said of a model


def _describe_index(name: str) -> Facts:
    from auxbit.index import HammingIndex

    index = HammingIndex.load(name)
    return {
        "file": name,
        "kind": "index",
        "codes": len(index),
        "bits": index.n_bits,
        "search": index.kind,
        "decoder": type(index.decoder).__name__ if index.decoder is not None else "none",
    }


def _describe_model(name: str) -> Facts:
    from auxbit.hashers.registry import load, read_header

    header, model = read_header(name), load(name)
    facts: Facts = {
        "file": name,
        "kind": "model",
        "class": header["class"],
        "bits": model.n_bits,
        "bytes_per_code": bytes_per_code(model.n_bits),
        "dimensions": int(model.n_features_in_),
        "parameters": {key: value for key, value in header["parameters"].items() if key != "n_bits"},
        "format": header["format_version"],
        "made_by": f"auxbit {header['auxbit_version']}",
    }
    if header.get("left_out"):  # could not be saved: loaded, they have their defaults
        facts["left_out"] = header["left_out"]
    history = getattr(model, "history_", None)
    if history:
        kept = [record for record in history if record.kept][-1]
        facts["iterations"] = len(history)
        facts["kept"] = {"iteration": kept.iteration, "mu": round(kept.mu, 6)}
        facts["E_BA"] = {"first": history[0].E_BA, "kept": kept.E_BA, "last": history[-1].E_BA}
        if kept.precision is not None:
            facts["validation_precision"] = {"first": history[0].precision, "kept": kept.precision}
    return facts


def _describe_data(name: str) -> Facts:
    X = tasks.read(name)
    low, high, bad = np.inf, -np.inf, 0
    for rows in tasks.blocks(X):
        block = np.asarray(X[rows])
        finite = block[np.isfinite(block)]
        bad += block.size - finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    facts: Facts = {
        "file": name,
        "kind": "data",
        "rows": len(X),
        "columns": X.shape[1],
        "dtype": str(X.dtype),
        "megabytes": round(X.size * X.dtype.itemsize / 1e6, 3),
        "memory_mapped": isinstance(X, np.memmap),
        "smallest": low,
        "largest": high,
        "nan_or_infinite": bad,
    }
    return facts
