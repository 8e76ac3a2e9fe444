"""# Compare methods

The binary autoencoder beside ITQ, LSH and others on handwritten digits, at the same number of bits, and
what the decoder adds: the same comparison that `auxbit compare` makes of a file.
"""

from sklearn.datasets import load_digits

from auxbit import plot
from auxbit.experiments.compare import compare

X = load_digits().data
base, queries = X[300:], X[:300]

# %% Every method is trained on the base and searched for the queries; precision is the share of true
# neighbours among the 50 nearest codes.
methods = ["ba", "itq", "tpca", "lsh", "sh", "pq"]
rows = compare(base, base, queries, methods, bits=[8, 16, 32])
for row in rows:
    if row["bits"] == 32:
        print(f"{row['method']:8} {row['precision']:.3f}  trained in {row['cpu_fit']:.2f} CPU seconds")

# %% One line per method. PQ keeps the query as it is, which Hamming distance cannot.
plot.precision(rows)
