"""Figures of fits, comparisons and codes.

`from auxbit import plot`, then `plot.history(ba)`, `plot.precision(rows)`, `plot.recall(choice)`,
`plot.curve(rankings)`, `plot.codes(collection)`: each takes objects of auxbit and returns matplotlib axes.
They need `pip install 'auxbit[plot]'`.
"""

from auxbit.plot.charts import codes, curve, history, precision, recall

__all__ = ["codes", "curve", "history", "precision", "recall"]
