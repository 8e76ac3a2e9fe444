"""Alternating optimisation in the Z step: a line for every start and group, and the claims on them."""

from __future__ import annotations

import pytest

from auxbit.experiments import altopt
from auxbit.hashers.autoencoder import PRESETS, BinaryAutoencoder


def test_the_relaxed_start_is_the_solution_of_the_qp_and_all_else_is_the_presets():
    options = dict(altopt.cell_of("relaxed", 2, 16, 0, "paper").options)
    assert options == {
        "preset": "paper", "max_iter": 100, "validation": None, "group_size": 2, "z_solver": "alternating",
        "z_start": "relaxed",
    }  # fmt: skip
    plan = BinaryAutoencoder(16, **options)._plan(16)
    assert plan.objective.z.uses_relaxed
    assert plan.objective.z.admm_iterations == PRESETS["paper"]["z_options"]["admm_iterations"] > 0
    assert plan.schedule(1.0)[:3] == [0.01, 0.02, 0.04]


def test_alternating_optimisation_has_a_line_for_every_start_and_group(problem, fits):
    result = altopt.run(fits, bits=8, groups=(1, 2))
    assert {row["how"] for row in result.tables["altopt"]} == {
        "g = 1, warm", "g = 2, warm", "g = 1, relaxed", "g = 2, relaxed", "exact",
    }  # fmt: skip
    seconds = [row["seconds"] for row in result.tables["altopt"] if row["how"] == "exact"]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("relaxed", "holds"), [(100.5, True), (101.5, False)])
def test_with_the_relaxed_start_groups_may_end_one_percent_from_the_exact_result(relaxed, holds):
    ends = {("warm", 1): 120.0, ("warm", 2): 110.0, ("relaxed", 1): relaxed, ("relaxed", 2): 100.0}
    rows = [{"start": start, "g": g, "E_BA": end} for (start, g), end in ends.items()]
    rows.append({"start": "exact", "g": 0, "E_BA": 100.0})
    below, same, larger = altopt._claims(rows, 8, "d")
    assert (below.holds, same.holds, larger.holds) == (True, holds, True)
