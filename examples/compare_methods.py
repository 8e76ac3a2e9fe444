"""# Compare methods

The binary autoencoder (BA) compared with ITQ, LSH and others on handwritten digits, at
equal numbers of bits. `auxbit compare` makes the same comparison on the vectors in a
file.
"""

from sklearn.datasets import load_digits

from auxbit import plot
from auxbit.experiments.compare import compare

X = load_digits().data
base, queries = X[300:], X[:300]

# %% Every method is trained on the base rows, and the queries are searched among them.
# Precision is the share of true neighbours among the 50 nearest codes.
methods = ["ba", "itq", "tpca", "lsh", "sh", "pq"]
rows = compare(base, base, queries, methods, bits=[8, 16, 32])
for row in rows:
    if row["bits"] == 32:
        seconds = f"{row['cpu_fit']:.2f} CPU seconds"
        print(f"{row['method']:8} {row['precision']:.3f}  trained in {seconds}")

# %% One line per method. PQ (product quantization) compares codes with the exact query;
# Hamming distance compares them with the query's code.
plot.precision(rows)
