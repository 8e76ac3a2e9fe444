"""# Find duplicates

Rows that are nearly the same have codes that are equal or differ in a few bits. Groups of
such codes are found without comparing all pairs.
"""

import numpy as np
from sklearn.datasets import load_digits

from auxbit import LSH, HammingIndex

# %% Handwritten digits, and copies of 100 of them with a little noise, in another order.
rng = np.random.default_rng(0)
X = load_digits().data
copied = rng.choice(len(X), 100, replace=False)
rows = np.vstack([X, X[copied] + rng.normal(scale=0.1, size=(100, X.shape[1]))])

# %% Long codes of random hyperplanes: a row and its copy differ in a few of 256 bits,
# different digits in many. Short codes, as used for search, cannot tell copies from rows
# that are only similar.
lsh = LSH(256, random_state=0).fit(X)
index = HammingIndex(model=lsh)
index.add(lsh.encode(rows))

# %% A larger radius finds more copies, and more pairs that are not copies.
true = {(int(original), len(X) + place) for place, original in enumerate(copied)}
for radius in (0, 4, 8, 12, 16):
    groups = index.find_duplicates(radius)
    pairs = {(int(a), int(b)) for group in groups for a in group for b in group if a < b}
    copies, others = len(pairs & true), len(pairs - true)
    print(f"radius {radius}: {copies} of 100 copies, and {others} other pairs")
