"""# Find duplicates

Codes that are equal, or differ in a few bits, are of rows that are nearly the same. Groups of them are
found without comparing all pairs.
"""

import numpy as np
from sklearn.datasets import load_digits

from auxbit import LSH, HammingIndex

# %% Digits, and 100 of them again with a little noise, in another order.
rng = np.random.default_rng(0)
X = load_digits().data
copied = rng.choice(len(X), 100, replace=False)
rows = np.vstack([X, X[copied] + rng.normal(scale=0.1, size=(100, X.shape[1]))])

# %% Long codes of random hyperplanes: a row and its copy differ in a few bits of 256, different digits in
# many. For codes as short as those of a search, near and same are hard to tell apart.
lsh = LSH(256, random_state=0).fit(X)
index = HammingIndex(model=lsh)
index.add(lsh.encode(rows))

# %% A larger radius finds more copies, and more that are not.
true = {(int(original), len(X) + place) for place, original in enumerate(copied)}
for radius in (0, 4, 8, 12, 16):
    groups = index.find_duplicates(radius)
    pairs = {(int(a), int(b)) for group in groups for a in group for b in group if a < b}
    print(f"radius {radius}: {len(pairs & true)} of 100 copies, and {len(pairs - true)} other pairs")
