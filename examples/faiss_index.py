"""# Codes in FAISS

FAISS can search auxbit's codes. One index file holds them together with the hash
function, for Hamming distance, or with the decoder.
"""

import faiss
import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex
from auxbit.evaluate import ground_truth
from auxbit.export import to_faiss

X = load_digits().data.astype(np.float32)
base, queries = X[300:], X[:300]
truth = ground_truth(base, queries, k=10)


def recall(ids):
    return np.mean([np.isin(row, true).mean() for row, true in zip(ids, truth)])


# %% Hash codes: FAISS hashes the queries itself and compares bits.
ba = BinaryAutoencoder(32, random_state=0).fit(base)
form = to_faiss("hash.faiss", ba, ba.encode(base))
_, ids = faiss.read_index("hash.faiss").search(queries, 10)
print(f"form {form!r}: recall@10 = {recall(ids):.3f}")

# %% Optimal codes: FAISS computes distances from the query to the vector that each code
# decodes to.
ba.fit_decoder(base, "auto")
codes = ba.encode(base, coding="optimal")
form = to_faiss("optimal.faiss", ba, codes)
distances, ids = faiss.read_index("optimal.faiss").search(queries, 10)
print(f"form {form!r}: recall@10 = {recall(ids):.3f}")

# %% The distances are those of auxbit's own search, up to rounding.
index = HammingIndex(model=ba)
index.add(codes)
ours, _ = index.search_asymmetric(queries, k=10)
largest = np.abs(distances / ours - 1).max()
print(f"largest relative difference of distances: {largest:.1e}")
