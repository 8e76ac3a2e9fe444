"""The path from BFA to BA: three energies that become one, and the claims on them."""

from __future__ import annotations

import pytest

from auxbit.experiments import path


def test_the_path_ends_where_the_three_energies_are_one(problem, fits):
    rows = path.run(fits, bits=(8,)).tables["path"]
    assert rows[-1]["mismatched"] == 0
    assert rows[-1]["E_BFA"] == pytest.approx(rows[-1]["E_Q"])
    assert rows[-1]["E_Q"] == pytest.approx(rows[-1]["E_BA"], rel=1e-6)
    assert all(row["E_BFA"] <= row["E_Q"] * (1 + 1e-9) for row in rows)
    assert rows[0]["mismatched"] > 0


@pytest.mark.parametrize(("iterations", "holds"), [(9, False), (10, True), (15, True), (16, False)])
def test_the_number_of_iterations_is_judged_by_the_papers(iterations, holds):
    rows = [
        {"bits": 8, "iteration": i, "mu": 0.01 * 2**i, "mismatched": 0.0, "pruned": i / 20}
        for i in range(1, iterations + 1)
    ]
    stops, together, pruned = path._claims(rows, "d")
    assert (stops.holds, together.holds, pruned.holds) == (holds, True, True)
