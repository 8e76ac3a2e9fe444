"""The functions of `auxbit.plot`: charts of what the library returns.

Each draws into the axes that are given, or into new ones of pyplot, and returns them, so that the figure can
be changed and saved like any other: `axes.figure.savefig("precision.png")`.

from auxbit import plot

plot.history(ba)                       # a fit: errors by iteration and μ, validation precision
plot.precision(compare(...))           # methods by bits
plot.recall(choose_bits(...))          # codings by bytes and by time
plot.curve({"BA": ranking})            # precision by recall, over all radii
plot.codes(collection)                 # how codes use their bits
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit import evaluate
from auxbit.core.checks import Bits, Packed, check_integer, require
from auxbit.core.maps import unpack
from auxbit.data.records import is_missing
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.plot import figures, style
from auxbit.plot.style import FAINT, INK, STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAIRS = 20_000  # of codes, whose distances are counted


def history(model: Any, *, axes: Axes | Sequence[Axes] | None = None) -> list[Axes]:
    """The history of a fit: the errors E_Q and E_BA by iteration, μ along the top, validation precision.

    model : a fitted BinaryAutoencoder or BinaryFactorAnalysis. axes : two, or one for only the errors.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import BinaryAutoencoder, plot
    >>> ba = BinaryAutoencoder(n_bits=8, random_state=0).fit(load_digits().data)
    >>> errors, precision = plot.history(ba)
    >>> errors.get_ylabel()
    'squared error, training rows'
    """
    records = [row if isinstance(row, Mapping) else vars(row) for row in getattr(model, "history_", ())]
    if not records:
        raise InvalidInput("history needs a fitted BinaryAutoencoder or BinaryFactorAnalysis.")
    judged = any(row.get("precision") is not None for row in records)
    panels = _given(axes, 1) or _new(5.0, 4.6 if judged else 3.2, [2, 1] if judged else [1])
    figures.draw_history(panels, records)
    return panels


def precision(
    comparison: Iterable[Mapping[str, Any]], *, value: str = "precision", ax: Axes | None = None
) -> Axes:
    """A measure by bits, one line per method; with only one number of bits, one bar per method.

    comparison : the rows of `auxbit.experiments.compare.compare`, or any dicts with method, bits and the
        value; for several seeds the means are drawn, with their spread. Rows without the value, or with NaN,
        are left out. value : "precision", "recall_at" …

    >>> from auxbit import plot
    >>> rows = [{"method": "BA", "bits": bits, "precision": 0.2 * bits**0.3} for bits in (16, 32)]
    >>> plot.precision(rows).get_xlabel()
    'bits per code'
    """
    groups: dict[tuple[str, int], list[float]] = {}
    for row in comparison:
        if not is_missing(row.get(value)):
            groups.setdefault((row["method"], row["bits"]), []).append(float(row[value]))
    if not groups:
        raise InvalidParameter("value", value, "a column with at least one number to draw")
    rows = [
        {"method": method, "bits": bits, value: np.mean(some), f"{value}_std": np.std(some)}
        for (method, bits), some in groups.items()
    ]
    ax = ax or _new(5.6, 3.4)[0]
    figures.draw_methods(ax, rows, value)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(value.replace("_", " "))
    return ax


def recall(choice: Any, *, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Recall by the bytes of a code, and by the time of a query, one line per way to search.

    >>> from sklearn.datasets import load_digits
    >>> from auxbit import plot
    >>> from auxbit.experiments.bits import choose_bits
    >>> choice = choose_bits(load_digits().data[:400], bits=[8], n_queries=50)
    >>> by_bytes, by_time = plot.recall(choice)
    >>> by_bytes.get_ylabel()
    'recall@10'

    choice : what `auxbit.experiments.bits.choose_bits` returns. axes : two.
    """
    if not (hasattr(choice, "rows") and hasattr(choice, "settings")):
        raise InvalidInput(f"recall needs what choose_bits returns, got {type(choice).__name__}.")
    panels = _given(axes, 2) or _new(8.6, 3.7, [1, 1], across=True)
    figures.draw_recall(
        panels, choice.rows, name=f"recall@{choice.settings['recall_at']}", wanted=choice.settings["recall"],
        best=choice.best,
    )  # fmt: skip
    panels[0].legend(frameon=False, fontsize=8)
    return panels


def curve(rankings: evaluate.Ranking | Mapping[str, evaluate.Ranking], *, ax: Axes | None = None) -> Axes:
    """Precision by recall within every Hamming radius, one curve per ranking.

    rankings : what `auxbit.evaluate.hamming_ranking` returns, or a dict of several by name.

    >>> import numpy as np
    >>> from auxbit import LSH, plot
    >>> from auxbit.evaluate import ground_truth, hamming_ranking
    >>> X = np.random.default_rng(0).normal(size=(200, 8))
    >>> codes = LSH(8, random_state=0).fit(X).encode(X)
    >>> ranking = hamming_ranking(codes, codes[:20], ground_truth(X, X[:20], k=10), n_bits=8)
    >>> plot.curve({"LSH": ranking}).get_xlabel()
    'recall'
    """
    named = {"": rankings} if isinstance(rankings, evaluate.Ranking) else dict(rankings)
    rows = []
    for name, ranking in named.items():
        found = evaluate.precision_recall_curve(ranking)
        rows += [
            {"method": name, "bits": len(found.radius) - 1, "radius": int(r), "precision": p, "recall": q}
            for r, p, q, answered in zip(*found) if answered
        ]  # fmt: skip
    ax = ax or _new(5.0, 3.6)[0]
    if figures.draw_curves(ax, rows) > 1:
        ax.legend(frameon=False, fontsize=8)
    return ax


def codes(source: Any, n_bits: int | None = None, *, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """How codes use their bits: the share of ones per bit, and Hamming distances between pairs of codes.

    source : a Collection, a HammingIndex, or packed codes, (n, bytes) uint8.
    n_bits : bits of packed codes; by default all of their bytes.
    axes : two.

    Good hash codes have shares near a half, and distances around half of the bits; the line shows independent
    bits with shares of a half. Distances between codes of a "tables" decoder mean nothing.

    >>> import numpy as np
    >>> from auxbit import LSH, plot
    >>> X = np.random.default_rng(0).normal(size=(200, 8))
    >>> shares, distances = plot.codes(LSH(16, random_state=0).fit(X).encode(X))
    >>> shares.get_xlabel()
    'bit'
    """
    packed: Packed = np.asarray(
        source.codes() if callable(getattr(source, "codes", None)) else getattr(source, "codes", source)
    )
    if packed.ndim != 2 or packed.dtype != np.uint8 or len(packed) < 2:
        raise InvalidInput(
            "codes needs a Collection, a HammingIndex or packed codes, with at least two of them."
        )
    wanted = n_bits if n_bits is not None else getattr(source, "n_bits", 8 * packed.shape[1])
    bits = unpack(packed, check_integer("n_bits", wanted, 1, 8 * packed.shape[1]))
    panels = _given(axes, 2) or _new(8.6, 3.2, [1, 1], across=True)
    _shares(panels[0], bits)
    _distances(panels[1], bits)
    return panels


# ---- parts


def _shares(axes: Axes, bits: Bits) -> None:
    axes.bar(range(bits.shape[1]), bits.mean(axis=0), width=0.8, color=STYLES["BA"].colour)
    axes.axhline(0.5, color=FAINT, linewidth=1.0)
    axes.set(xlabel="bit", ylabel="share of ones", ylim=(0, 1))
    axes.locator_params(axis="x", integer=True)
    style.heading(axes, f"{len(bits):,} codes of {bits.shape[1]} bits")
    style.tidy(axes)


def _distances(axes: Axes, bits: Bits) -> None:
    """Of random pairs of different rows, beside the binomial distribution."""
    rng = np.random.default_rng(0)
    left = rng.integers(len(bits), size=PAIRS)
    right = (left + rng.integers(1, len(bits), size=PAIRS)) % len(bits)
    n_bits = bits.shape[1]
    counts = np.bincount((bits[left] != bits[right]).sum(axis=1), minlength=n_bits + 1) / PAIRS
    fair = [math.comb(n_bits, distance) / 2**n_bits for distance in range(n_bits + 1)]
    axes.bar(range(n_bits + 1), counts, width=0.9, color=STYLES["BA"].colour, label="these codes")
    axes.plot(range(n_bits + 1), fair, color=INK, linewidth=1.2, label="fair, independent bits")
    axes.set(xlabel="Hamming distance of two codes", ylabel="share of pairs")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(top=1.3 * max(counts.max(), *fair))  # for the legend
    axes.legend(frameon=False, fontsize=8)
    style.tidy(axes)


def _given(axes: Any, fewest: int) -> list[Axes]:
    """One or several axes, or an array of them as pyplot.subplots has it, as a list; [] for None."""
    panels = [] if axes is None else list(np.array(axes, dtype=object).ravel())
    if axes is not None and len(panels) < fewest:
        raise InvalidParameter("axes", axes, f"{fewest} or more", "None makes new ones.")
    return panels


def _new(width: float, height: float, parts: Sequence[float] = (1,), *, across: bool = False) -> list[Axes]:
    """New axes in a figure of pyplot, below each other with one x axis, or beside each other."""
    pyplot = require("matplotlib.pyplot", extra="plot", purpose="plotting")
    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    if across:
        return list(figure.subplots(1, len(parts), squeeze=False, width_ratios=parts)[0])
    return list(figure.subplots(len(parts), 1, squeeze=False, sharex=True, height_ratios=parts)[:, 0])
