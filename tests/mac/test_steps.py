"""Rows in memory and rows out of core behind one protocol: the same sums, the same steps."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from auxbit.core.maps import LinearEncoder, Scaling, pack_bools, unpack
from auxbit.core.parallel import BLOCK_ROWS, Workers
from auxbit.mac.h_step import SvmOptions
from auxbit.mac.loop import precision_of
from auxbit.mac.rows import CodePair, FileRows, ScaledRows
from auxbit.mac.steps import MemoryRows, Reconstruction, Steps, weights_of
from auxbit.mac.z_step import ZOptions

N, D, L = BLOCK_ROWS + 300, 6, 5
RNG = np.random.default_rng(0)
RAW = (RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D))).astype(np.float32)
HELD_OUT = np.arange(7, N, 400)
H = LinearEncoder(RNG.standard_normal((D, L)).astype(np.float32), np.zeros(L, np.float32))
OTHER = LinearEncoder(RNG.standard_normal((D, L)).astype(np.float32), np.full(L, 0.1, np.float32))
OBJECTIVE = Reconstruction(ZOptions.resolve(L, "auto", "best", 1, None))


@pytest.fixture
def workers():
    with Workers(2) as workers:
        yield workers


@pytest.fixture
def both(workers):
    """The same rows in memory and out of core, the codes H's with some bits flipped."""
    scaling = Scaling.measure(RAW, workers)
    chosen = np.setdiff1d(np.arange(N), HELD_OUT)
    X = scaling.apply_all(RAW, workers, chosen)
    inside = MemoryRows(X, np.zeros((len(X), L), np.uint8), workers, RAW, chosen)
    outside = FileRows(ScaledRows(RAW, scaling, HELD_OUT), CodePair(len(X), L), workers)
    Z = (H(X) ^ (np.random.default_rng(1).random((len(X), L)) < 0.1)).astype(np.uint8)
    codes = np.zeros((N, Z.shape[1]), np.uint8)
    codes[chosen] = Z
    for rows in (inside, outside):
        rows.fill(lambda raw, places: pack_bools(codes[places]))
        rows.note(weights_of(H))
    return inside, outside


def codes_of(rows):
    return rows.Z if isinstance(rows, MemoryRows) else unpack(rows.codes.now, L)


def assert_alike(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-3)


def test_first_codes_are_made_of_rows_as_they_came_by_their_numbers(both):
    np.testing.assert_array_equal(codes_of(both[0]), codes_of(both[1]))
    rows = np.array([0, 5, 1000])
    for each in both:
        np.testing.assert_array_equal(each.places(rows), np.setdiff1d(np.arange(N), HELD_OUT)[rows])


@pytest.mark.parametrize(
    "sums",
    [
        lambda rows: rows.moments(),
        lambda rows: rows.code_sums(),
        lambda rows: astuple(rows.hash_sums(OTHER)),
        lambda rows: [rows.differing(OTHER)],
        lambda rows: rows.label_sums()[1:],
        lambda rows: vars(rows.label_sums()[0]).values(),
        lambda rows: vars(rows.count(np.array([1, 3]))).values(),
        lambda rows: rows.begin(weights_of(OTHER)),
    ],
    ids=["moments", "codes", "hash", "differing", "labels", "slack", "count", "begin"],
)
def test_every_sum_is_the_same_wherever_rows_are(both, sums):
    assert_alike(sums(both[0]), sums(both[1]))


def test_products_with_the_hessian_are_the_same(both):
    P, bits = np.random.default_rng(2).standard_normal((D + 1, 2)), np.array([0, 4])
    for rows in both:
        rows.count(np.arange(L))  # notes which rows have slack
    assert_alike([both[0].hessian_product(P, bits)], [both[1].hessian_product(P, bits)])


def test_a_line_search_goes_as_far_and_the_weights_noted_go_along(both):
    bits, step = np.arange(L), -0.01 * weights_of(H)
    sizes = []
    for rows in both:
        slack = rows.label_sums()[0]
        gradient = rows.W + 200 * slack.half_gradient
        sizes.append(rows.search(bits, rows.W, step, gradient, slack.slack, 100.0))
    np.testing.assert_allclose(*sizes, rtol=1e-2)
    np.testing.assert_allclose(both[1].W, weights_of(H) + sizes[1] * step)


def test_scaled_and_constant_bits_have_the_scores_of_their_weights(both):
    for rows in both:
        rows.scale(np.arange(1.0, L + 1))
        rows.set_constant(np.array([2]), np.array([-1.0]))
    np.testing.assert_allclose(both[0].W, both[1].W)
    X = both[0].X
    np.testing.assert_allclose(both[0].scores, X @ both[0].W[:-1] + both[0].W[-1], rtol=1e-4, atol=1e-4)
    assert_alike(vars(both[0].label_sums()[0]).values(), vars(both[1].label_sums()[0]).values())


def test_true_neighbours_and_their_ranks_are_the_same(both):
    queries = both[0].X[:20] + 0.01
    truth = both[0].nearest(queries, 10)
    np.testing.assert_array_equal(truth, both[1].nearest(queries, 10))
    found = []
    for rows in both:
        rows.truth = truth
        found.append(rows.ranking(OTHER, pack_bools(OTHER(queries))))
    assert found[0].counts[:, L + 1 :].sum() == 0  # bits that pad a byte are the same in all codes
    np.testing.assert_array_equal(found[0].counts[:, : L + 1], found[1].counts)
    np.testing.assert_array_equal(found[0].hits[:, : L + 1], found[1].hits)
    assert precision_of(found[0]) == precision_of(found[1])


def test_an_iteration_gives_the_same_codes_energies_and_maps(both):
    results = []
    for rows in both:
        steps = Steps(rows, svm=SvmOptions(), objective=OBJECTIVE)
        h = steps.begin(H)
        f = steps.f_step()
        first = steps.z_step(h, f, 0.01)
        h = steps.h_step(h)
        f = steps.f_step()
        results.append((first, h, f, steps.z_step(h, f, 0.02), steps.decoder_of(h), codes_of(rows).copy()))
    (first, h, f, second, decoder, codes), (first_, h_, f_, second_, decoder_, codes_) = results
    assert pytest.approx(first_.E_Q, rel=1e-5) == first.E_Q
    assert first.changed == first_.changed
    assert pytest.approx(second_.E_BA, rel=1e-4) == second.E_BA
    np.testing.assert_allclose(h.weights, h_.weights, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(f.A, f_.A, atol=1e-4)
    np.testing.assert_allclose(decoder.A, decoder_.A, atol=1e-3)
    assert (codes != codes_).mean() < 1e-3


def test_steps_can_be_taken_up_again_where_a_state_was_taken(both):
    rows = both[1]
    steps = Steps(rows, svm=SvmOptions(), objective=OBJECTIVE)
    h = steps.begin(H)
    steps.z_step(h, steps.f_step(), 0.01)
    state = steps.state()
    following = steps.h_step(h)
    resumed = Steps(rows, svm=SvmOptions(), objective=OBJECTIVE, moments=steps.moments)
    again = resumed.restore(state)
    np.testing.assert_array_equal(again.weights, h.weights)
    np.testing.assert_array_equal(resumed.h_step(again).weights, following.weights)


@pytest.mark.parametrize("in_files", [False, True])
def test_a_state_that_was_kept_can_be_gone_back_to_again_and_again(both, workers, tmp_path, in_files):
    inside, outside = both
    if in_files:
        codes = CodePair(outside.n_rows, L, tmp_path)
        codes.now[...] = outside.codes.now
        outside.codes = codes
    for rows in (inside, outside):
        steps = Steps(rows, svm=SvmOptions(), objective=OBJECTIVE)
        h = steps.h_step(H)
        kept, before = steps.keep(), codes_of(rows).copy()
        found = []
        for mu in (0.5, 0.01, 0.5):
            steps.z_step(h, steps.f_step(), mu)
            steps.h_step(h)
            found.append(codes_of(rows).copy())
            h = steps.go_back(kept)
            np.testing.assert_array_equal(codes_of(rows), before)
            np.testing.assert_array_equal(steps.h.weights, h.weights)
        np.testing.assert_array_equal(found[0], found[2])
        assert (found[0] != found[1]).any()
        steps.forget(kept)
    assert not list(tmp_path.glob("kept-*"))


class Watched(Steps):
    """Steps that note which SVMs are solved."""

    def __init__(self, rows):
        super().__init__(rows, svm=SvmOptions(tol=1e-2), objective=OBJECTIVE)
        self.asked = []

    def _solve(self, rows, W, bits, *rest):
        if rows is self.rows:  # not a sample of them
            self.asked.append(bits.tolist())
        return super()._solve(rows, W, bits, *rest)


@pytest.mark.parametrize("place", [0, 1], ids=["memory", "files"])
def test_svms_that_are_solved_are_left_alone_until_their_codes_change(both, place, monkeypatch):
    rows = both[place]
    steps = Watched(rows)
    h = steps.h_step(steps.h_step(None), exact=True)
    steps.asked.clear()
    same = steps.h_step(h)
    assert steps.asked == []
    np.testing.assert_array_equal(same.weights, h.weights)

    def z_pass(*arguments):  # as if it had changed bits 1 and 3 of some rows
        return *np.zeros(8), np.array([0, 3, 0, 1, 0]), 4

    f = steps.f_step()
    with monkeypatch.context() as patch:
        patch.setattr(rows, "z_pass", z_pass)
        steps.z_step(same, f, 0.01)
    if place == 1:  # what is resumed remembers
        again = Watched(rows)
        again.h_step(again.restore(steps.state()))
        assert again.asked == [[1, 3]]
        rows.note(weights_of(same))
    steps.h_step(same)
    assert steps.asked == [[1, 3]]
    # another h than the one whose weights are noted, or none at all, is solved for all bits
    steps.asked.clear()
    steps.h_step(LinearEncoder(same.weights.copy(), same.bias.copy()))
    steps.h_step(None)
    assert steps.asked == [list(range(L))] * 2
