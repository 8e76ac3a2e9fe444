"""Code utilisation: effective bits and their bounds, and how many rows share a code."""

from __future__ import annotations

import numpy as np

from auxbit.experiments import entropy


def test_effective_bits_lie_below_their_bounds(problem, fits):
    result = entropy.run(fits, methods=("itq", "lsh", "tpca"), bits=(4, 8), K=10)
    for row in result.tables["entropy"]:
        assert row["train"] <= row["train_bound"] + 1e-9
        assert row["queries"] <= row["queries_bound"] + 1e-9
    counts = [row for row in result.tables["counts"] if row["method"] == "ITQ"]
    assert counts[0]["rank"] == 1
    assert counts == sorted(counts, key=lambda row: -row["count"])


def test_a_histogram_goes_from_the_most_used_code_to_the_least():
    counts = np.arange(1, 1001)
    rows = entropy._histogram({"method": "BA"}, counts)
    assert (rows[0]["rank"], rows[0]["count"]) == (1, 1000)
    assert (rows[-1]["rank"], rows[-1]["count"]) == (1000, 1)
    assert len(rows) <= entropy.POINTS
