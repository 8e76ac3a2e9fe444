"""# Find duplicates

Codes that are equal, or differ in a bit or two, are of rows that are nearly the same. Groups of them are
found without comparing all pairs.
"""

import numpy as np
from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, HammingIndex

# %% Digits, and 100 of them again with a little noise, in another order.
rng = np.random.default_rng(0)
X = load_digits().data
copied = rng.choice(len(X), 100, replace=False)
rows = np.vstack([X, X[copied] + rng.normal(scale=0.1, size=(100, X.shape[1]))])

# %% Codes of 64 bits: long enough that different digits differ in more than a few.
ba = BinaryAutoencoder(64, random_state=0).fit(X)
index = HammingIndex(model=ba)
index.add(ba.encode(rows))

# %% A larger radius finds more copies, and more that are not.
true = {(int(original), len(X) + place) for place, original in enumerate(copied)}
for radius in range(5):
    groups = index.find_duplicates(radius)
    pairs = {(int(a), int(b)) for group in groups for a in group for b in group if a < b}
    print(f"radius {radius}: {len(pairs & true)} of 100 copies, and {len(pairs - true)} other pairs")
