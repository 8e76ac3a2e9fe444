"""Early stopping: which hash function is kept along the path, and when the path ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auxbit.mac.loop import Walk, alternate, follow, neighbours_to_find
from helpers.mac_script import Script, path


def test_without_validation_the_last_encoder_is_kept():
    outcome = follow(path([1, 2, 3]))
    assert (outcome.h, outcome.stopped) == (2, "schedule")
    assert [record.kept for record in outcome.history] == [True] * 3
    assert [record.precision for record in outcome.history] == [None] * 3
    assert follow(path([1, 2], mismatched=[1])).stopped == "matched"


def test_a_record_holds_the_report_and_energies_in_the_unit_asked_for():
    seen = []
    outcome = follow(path([0.5]), energy_unit=10.0, callback=seen.append)
    assert seen == outcome.history
    record = seen[0]
    assert (record.iteration, record.mu, record.E_Q, record.E_BA) == (1, 0.5, 80.0, 90.0)
    assert (record.changed, record.mismatched) == (2, 1)
    assert (record.pruned, record.certified, record.unproven) == (3, 4, 5)
    assert (record.seconds_h, record.seconds_f, record.seconds_z) == (0.1, 0.2, 0.3)


def test_the_most_precise_encoder_is_kept_and_the_others_skipped():
    precision = [0.3, 0.2, 0.5, 0.5, 0.4, 0.1, 0.9]
    outcome = follow(path(range(1, 8)), precision=precision.__getitem__, patience=3)
    assert outcome.h == 2
    assert outcome.stopped == "patience"
    assert [record.precision for record in outcome.history] == precision[:6]
    assert [record.kept for record in outcome.history] == [True, False, True, False, False, False]


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_the_walk_ends_after_as_many_misses_as_patience_allows(patience):
    outcome = follow(path(range(1, 20)), precision=lambda h: 1.0 - h, patience=patience)
    assert len(outcome.history) == 1 + patience
    assert (outcome.h, outcome.stopped) == (0, "patience")


def test_an_improvement_gives_patience_back():
    precision = [0.3, 0.2, 0.2, 0.4, 0.1, 0.1, 0.1, 0.9]
    outcome = follow(path(range(1, 9)), precision=precision.__getitem__, patience=3)
    assert outcome.h == 3
    assert len(outcome.history) == 7


def test_several_steps_at_one_mu_are_one_miss():
    mus = [1, 1, 2, 2, 3, 3, 4, 4]
    precision = [0.3, 0.2, 0.2, 0.4, 0.1, 0.1, 0.1, 0.1]
    outcome = follow(path(mus), precision=precision.__getitem__, patience=2)
    assert outcome.h == 3
    assert len(outcome.history) == 8
    outcome = follow(path([*mus, 5]), precision=[*precision, 1.0].__getitem__, patience=2)
    assert (outcome.h, outcome.stopped, len(outcome.history)) == (3, "patience", 8)


def test_no_iteration_is_computed_after_patience_has_run_out():
    data = Script()
    outcome = follow(alternate(data, [1, 1, 2, 2, 3, 3]), precision=lambda h: 0.5, patience=1)
    assert (outcome.stopped, len(outcome.history), data.n_z) == ("patience", 4, 4)


def test_a_model_of_no_precision_at_all_is_still_a_model():
    outcome = follow(path([1, 2]), precision=lambda h: 0.0)
    assert outcome.h == 0


def test_a_schedule_without_a_value_is_an_error():
    with pytest.raises(ValueError, match="the schedule has no value of mu"):
        follow(path([]))


def test_without_validation_the_encoder_of_lowest_error_is_kept_and_patience_is_of_no_account():
    errors = [5.0, 3.0, 4.0, 4.5, 4.6, 4.7, 3.0, 3.5]
    steps = (
        replace(step, report=replace(step.report, E_BA=error))
        for step, error in zip(path(range(1, 9)), errors, strict=True)
    )
    outcome = follow(steps, patience=2)
    assert (outcome.h, outcome.stopped) == (6, "schedule")  # of equals the last
    assert [record.kept for record in outcome.history] == [True, True, *[False] * 4, True, False]


def test_with_settled_the_last_encoder_is_kept():
    rising = (
        replace(step, report=replace(step.report, E_BA=float(i))) for i, step in enumerate(path([1, 1, 1]))
    )
    assert follow(rising, settled=-1.0).h == 2


def test_a_walk_that_had_run_out_of_patience_takes_no_step_when_resumed():
    walked = follow(path(range(1, 9)), precision=lambda h: 1.0 - h, patience=2)
    walk = Walk(walked.history, walked.h, best_precision=1.0, misses=2)
    outcome = follow(path(range(1, 9)), precision=lambda h: 2.0, patience=2, walk=walk)
    assert (outcome.h, outcome.stopped, len(outcome.history)) == (0, "patience", 3)


def test_a_path_has_settled_when_the_objective_falls_by_a_small_share_of_itself():
    walk = Walk()
    first = follow(path([1])).history[0]
    assert not walk.has_settled(1.0)
    for before, now, settled in ((100.0, 98.9, False), (100.0, 99.1, True), (100.0, 100.5, True)):
        walk.history = [replace(first, E_Q=before), replace(first, E_Q=now)]
        assert walk.has_settled(0.01) == settled


def test_one_percent_of_the_rows_are_neighbours_to_find_between_10_and_100():
    wanted = {7: 7, 500: 10, 5_000: 50, 9_999: 99, 50_000: 100}
    assert {n: neighbours_to_find(n) for n in wanted} == wanted
