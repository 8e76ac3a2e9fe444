"""The stores of docs/frameworks.md on real text embeddings.

    python benchmarks/frameworks.py langchain

AUXBIT_DATA is a folder with wordnet.
"""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from auxbit.evaluate import ground_truth
from auxbit.integrations.langchain import AuxbitVectorStore
from record import Results, data_folder, run

K, SIZES = 10, (10_000, 60_000)


class Known(Embeddings):
    """The embeddings of texts that are known."""

    def __init__(self, vectors: dict[str, Any]) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[Any]:
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> Any:
        return self.vectors[text]


def langchain(results: Results) -> str:
    """WordNet's glosses, 256 dimensions, cosine: recall@10 of AuxbitVectorStore against exact search,
    1,000 queries."""
    folder = data_folder() / "wordnet"
    rows = {name: np.load(folder / f"{name}.npy").astype(np.float32) for name in ("base", "query")}
    with gzip.open(folder / "query_texts.txt.gz", "rt", encoding="utf-8") as lines:
        asked = [f"{number}: {line.strip()}" for number, line in enumerate(lines)]
    store = AuxbitVectorStore(Known(dict(zip(asked, rows["query"]))))
    lines_made = ["| documents | searched by | recall@10 |", "| --- | --- | --- |"]
    for n in SIZES:
        base, first = rows["base"][:n], len(store.documents)
        for start in range(first, n, K * 1000):  # as documents come: batch by batch
            names = [str(row) for row in range(start, min(start + K * 1000, n))]
            store.embedding.vectors |= dict(zip(names, base[start:]))
            store.add_texts(names, ids=names)
        found = [[int(each.id) for each in store.similarity_search(text, K)] for text in asked]
        truth = ground_truth(base, rows["query"], K, metric="cosine")
        recall = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth.tolist())]))
        bits = store.collection.n_bits
        how = "all vectors" if bits == 8 else f"codes of {bits} bits, then {max(50 * K, 500)} vectors"
        results.add(documents=n, bits=bits, recall=recall)
        lines_made.append(f"| {n:,} | {how} | {recall:.4f} |")
    return "\n".join(lines_made)


if __name__ == "__main__":
    run("frameworks", {"langchain": langchain})
