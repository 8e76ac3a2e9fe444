"""The model's training, and how its codes use their bits."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import Packed, unpack
from auxbit.collection.collection import Collection
from auxbit.evaluate import code_counts, effective_bits_bound
from auxbit.experiments.methods import label_of
from auxbit.serve.states import consistently

BLOCK = 8192
FIELDS = ("iteration", "mu", "E_Q", "E_BA", "changed", "mismatched", "precision")

Float64 = npt.NDArray[np.float64]


def report(collection: Collection) -> bytes:
    """The report as JSON; it takes a pass over all codes."""
    document = consistently(collection, lambda: _document(collection))
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _document(collection: Collection) -> dict[str, Any]:
    model, codes, n_bits = collection.model, collection.codes(), collection.n_bits
    balance, correlation = bit_statistics(codes, n_bits)
    counts = code_counts(codes) if len(codes) else np.zeros(0, dtype=np.int64)
    sizes, buckets = np.unique(counts, return_counts=True)
    return {
        "method": label_of(model),
        "bits": n_bits,
        "items": len(codes),
        "dimension": int(model.n_features_in_),
        "parameters": {name: _plain(value) for name, value in model.get_params(deep=False).items()},
        "history": [_iteration(record) for record in getattr(model, "history_", [])],
        "effective_bits": {
            "bits": n_bits,
            "effective": round(_entropy(counts), 4),
            "bound": round(effective_bits_bound(n_bits, len(codes)), 4) if len(codes) else 0.0,
        },
        "balance": np.round(balance, 4).tolist(),
        "correlation": (np.round(correlation, 3) + 0.0).tolist(),
        "buckets": {
            "distinct": len(counts),
            "largest": int(counts[0]) if len(counts) else 0,
            "sizes": [
                {"items": size, "buckets": number} for size, number in zip(sizes.tolist(), buckets.tolist())
            ],
        },
        "training": _training(getattr(model, "training_", None)),
    }


def bit_statistics(codes: Packed, n_bits: int) -> tuple[Float64, Float64]:
    """The share of ones of each bit, (L,), and the correlations of bits, (L, L); 0 of one that never varies.

    codes : (n, ceil(L/8)) packed
    """
    ones, both = np.zeros(n_bits), np.zeros((n_bits, n_bits))
    for first in range(0, len(codes), BLOCK):
        Z = unpack(codes[first : first + BLOCK], n_bits).astype(np.float32)  # sums of a block are exact
        ones += Z.sum(axis=0)
        both += Z.T @ Z
    n = max(1, len(codes))
    share = ones / n
    covariance = both / n - np.outer(share, share)
    spread = np.sqrt(share * (1 - share))
    scale = np.outer(spread, spread)
    correlation = np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)
    np.fill_diagonal(correlation, np.where(spread > 0, 1.0, 0.0))
    return share, np.clip(correlation, -1.0, 1.0)


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    if not len(counts):
        return 0.0
    share = counts / counts.sum()
    return max(0.0, float(-(share * np.log2(share)).sum()))


def _iteration(record: Any) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in FIELDS}


def _training(record: Any) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "rows": int(record.n_rows),
        "error": float(record.error),
        "coding": record.coding,
        "mu": float(record.mu),
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it; what is no number, text or list of them is named by its type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= 100:
        return [_plain(each) for each in value]
    return type(value).__name__
