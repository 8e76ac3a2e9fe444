"""# Read the history of a fit

`history_` has one record per iteration. It shows how a growing penalty μ makes the codes
equal to those of the hash function, and which model was kept.
"""

from sklearn.datasets import load_digits

from auxbit import BinaryAutoencoder, plot

X = load_digits().data
ba = BinaryAutoencoder(16, random_state=0).fit(X)

# %% E_BA is the error of the hash function with its decoder, E_Q that of the free codes
# plus the penalty; `mismatched` counts the bits in which the codes and the hash function
# still differ.
print("  μ       E_Q      E_BA   mismatched  precision  kept")
for record in ba.history_:
    print(
        f"{record.mu:.3f}  {record.E_Q:.0f}  {record.E_BA:.0f}  {record.mismatched:8}"
        f"  {record.precision:10.4f}  {'yes' if record.kept else ''}"
    )

# %% The same as a figure. The model that is kept is the last one that raised the
# precision on held-out queries.
plot.history(ba)


# %% To follow a fit while it runs, give a callback; without validation it ends when no
# bit differs.
def show(record):
    print(record.mismatched, end=" ")


full = BinaryAutoencoder(16, validation=None, random_state=0, callback=show).fit(X)

# %% How the codes use their bits.
plot.codes(ba.encode(X))
