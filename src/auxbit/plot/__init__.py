"""Figures, from the results that they show.

`from auxbit import plot`, then `plot.history(ba)`, `plot.precision(rows)`, `plot.recall(choice)`,
`plot.curve(rankings)`, `plot.codes(collection)`: each takes our own objects and returns matplotlib's axes. It
needs `pip install 'auxbit[plot]'`.
"""

from auxbit.plot.charts import codes, curve, history, precision, recall

__all__ = ["codes", "curve", "history", "precision", "recall"]
