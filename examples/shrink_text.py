"""# Shrink text embeddings

Text embeddings become codes of 8 bytes, which are searched in memory; the vectors stay on
disk and rank the best candidates. The texts are the docstrings of Python's standard
library, and scikit-learn makes their embeddings, so that this runs anywhere. Use your own
texts and embeddings instead.
"""

import ast
import sysconfig
import warnings
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from auxbit import Collection
from auxbit.evaluate import ground_truth

# %% Texts: one per function and class that has a docstring.
warnings.simplefilter("ignore", SyntaxWarning)
names, texts = [], []
for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        text = ast.get_docstring(node) or ""
        if len(text) > 40:
            names.append(f"{file.stem}.{node.name}")
            texts.append(text)
print(len(texts), "texts, such as", names[0])

# %% Embeddings of 128 numbers, by the words that occur together (LSA).
words = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english")
embed = make_pipeline(words, TruncatedSVD(128, random_state=0), Normalizer())
X = embed.fit_transform(texts).astype(np.float32)

# %% A collection: codes, ids, metadata and vectors. Searches can have conditions on
# metadata (`where`).
items = [{"name": name, "text": text.splitlines()[0]} for name, text in zip(names, texts)]
docs = Collection.create(
    "docs.auxbit", X, bits=64, metric="cosine", vectors="float16", metadata=items
)
query = embed.transform(["remove the directory and all its files"]).astype(np.float32)
found = docs.search(query, k=4)
for item in found.metadata[0]:
    print(f"{item['name']:28} {item['text'][:60]}")

# %% Recall: the share of the true ten nearest that is found, by codes alone and with 100
# re-ranked.
queries = np.random.default_rng(0).choice(len(X), 200, replace=False)
truth = ground_truth(X, X[queries], k=10, metric="cosine")
for name, how in (("codes alone", {"rerank": False}), ("100 re-ranked", {"rerank": 100})):
    _, ids = docs.search(X[queries], k=10, **how)
    share = np.mean([np.isin(row, true).mean() for row, true in zip(ids, truth)])
    print(f"{name}: recall@10 = {share:.3f}")
print(f"{X.itemsize * X.shape[1]} bytes per row became {docs.n_bits // 8}")
