"""The linear scan against sorting all distances."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core.maps import bytes_per_code, hamming_distances, pack, unpack
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidInput
from auxbit.index import scan as linear
from auxbit.index.codes import CodeBlocks, all_lanes, lanes_of

FAR = 2**31 - 1
WIDTHS = [
    1,
    7,
    8,
    12,
    31,
    32,
    33,
    64,
    65,
    128,
    200,
    248,
    249,
    255,
    256,
    257,
    512,
    1000,
    1024,
    1536,
    3072,
    8191,
    8192,
]


def random_codes(n, n_bits, seed=0):
    return pack(np.random.default_rng(seed).random((n, n_bits)) < 0.5).reshape(n, bytes_per_code(n_bits))


def queries_for(codes, n_bits):
    """Codes themselves, their opposites (the largest distances there are) and strangers."""
    return np.concatenate([codes[:3], pack(1 - unpack(codes[:3], n_bits)), random_codes(3, n_bits, seed=1)])


def codes_at_distances(distances, n_bits):
    """Codes at these distances from zero."""
    return pack(np.arange(n_bits) < np.asarray(distances)[:, None])


def truth(codes, queries, allowed):
    """For each query all allowed positions by (distance, position), and their distances."""
    positions = np.flatnonzero(allowed)
    distances = hamming_distances(queries, codes[positions])
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(distances, order, axis=1), positions[order]


def check_nearest(codes, queries, n_bits, k, *, allowed=None, n_jobs=1):
    lanes = all_lanes(len(codes)) if allowed is None else lanes_of(allowed)
    with Workers(n_jobs) as workers:
        distances, positions = linear.nearest(
            CodeBlocks.of(codes, n_bits).planes, lanes, queries, n_bits, k, workers
        )
    true_distances, true_positions = truth(
        codes, queries, np.ones(len(codes)) if allowed is None else allowed
    )
    found = min(k, true_positions.shape[1])
    assert (distances.dtype, positions.dtype) == (np.int32, np.int64)
    assert distances.shape == positions.shape == (len(queries), k)
    np.testing.assert_array_equal(distances[:, :found], true_distances[:, :k])
    np.testing.assert_array_equal(positions[:, :found], true_positions[:, :k])
    assert (distances[:, found:] == FAR).all()
    assert (positions[:, found:] == -1).all()


def check_within(codes, queries, n_bits, r, *, allowed=None, n_jobs=1):
    lanes = all_lanes(len(codes)) if allowed is None else lanes_of(allowed)
    with Workers(n_jobs) as workers:
        lims, distances, positions = linear.within(
            CodeBlocks.of(codes, n_bits).planes, lanes, queries, n_bits, r, workers
        )
    true_distances, true_positions = truth(
        codes, queries, np.ones(len(codes)) if allowed is None else allowed
    )
    near = true_distances <= r
    assert (lims.dtype, distances.dtype, positions.dtype) == (np.int64, np.int32, np.int64)
    np.testing.assert_array_equal(lims, np.concatenate([[0], np.cumsum(near.sum(axis=1))]))
    np.testing.assert_array_equal(distances, true_distances[near])
    np.testing.assert_array_equal(positions, true_positions[near])


@pytest.mark.parametrize("n_bits", WIDTHS)
@pytest.mark.parametrize("k", [1, 10, 500, 700, 900])
def test_nearest_equals_sorting_all_distances(n_bits, k):
    codes = random_codes(700, n_bits)
    check_nearest(codes, queries_for(codes, n_bits), n_bits, k)


@pytest.mark.parametrize("n_bits", WIDTHS)
@pytest.mark.parametrize("share", [0, 0.2, 0.5, 1, 2])
def test_within_equals_sorting_all_distances(n_bits, share):
    codes = random_codes(700, n_bits)
    check_within(codes, queries_for(codes, n_bits), n_bits, int(share * n_bits))


@pytest.mark.parametrize("n_bytes", [*range(1, 129), 192, 500, 1024])
def test_any_number_of_bytes_is_scanned_to_its_last_bit(n_bytes):
    n_bits = 8 * n_bytes
    codes = codes_at_distances(np.random.default_rng(n_bytes).permutation(n_bits + 1), n_bits)
    queries = np.stack([np.zeros_like(codes[0]), np.full_like(codes[0], 255)])
    check_nearest(codes, queries, n_bits, n_bits + 1)
    check_within(codes, queries, n_bits, n_bits - 1)


@pytest.mark.parametrize("n_bits", [32, 72, 256, 1024, 8192])
@pytest.mark.parametrize("order", ["rising", "falling", "equal", "two", "all far"])
@pytest.mark.parametrize("k", [1, 3, 300])
def test_the_order_of_distances_does_not_matter(n_bits, order, k):
    n = 2000
    rising = np.arange(n) * (n_bits + 1) // n
    distances = {
        "rising": rising,
        "falling": rising[::-1],
        "equal": np.full(n, n_bits // 2),
        "two": np.arange(n) % 2,
        "all far": np.full(n, n_bits),
    }[order]
    codes = codes_at_distances(distances, n_bits)
    check_nearest(codes, np.zeros_like(codes[:1]), n_bits, k)


@pytest.mark.parametrize("n_bits", [24, 32, 256, 300])
@pytest.mark.parametrize("kept", [0, 1, 64, 3000])
def test_only_allowed_codes_are_answered(n_bits, kept):
    codes = random_codes(5000, n_bits)
    allowed = np.zeros(len(codes), dtype=bool)
    allowed[np.random.default_rng(kept).permutation(len(codes))[:kept]] = True
    queries = queries_for(codes, n_bits)
    for k in (1, 50, 100):
        check_nearest(codes, queries, n_bits, k, allowed=allowed)
    check_within(codes, queries, n_bits, n_bits // 2, allowed=allowed)


def test_whole_blocks_may_be_forbidden():
    codes = random_codes(64 * 40, 64)
    allowed = np.zeros(len(codes), dtype=bool)
    allowed[64 * 7 : 64 * 9] = allowed[-64:] = True
    check_nearest(codes, codes[:5], 64, 20, allowed=allowed)
    check_within(codes, codes[:5], 64, 30, allowed=allowed)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 64 * 129])
def test_the_zeros_after_the_last_code_are_no_answers(n):
    codes = np.full((n, 4), 255, dtype=np.uint8)
    zero = np.zeros((1, 4), dtype=np.uint8)
    check_nearest(codes, zero, 32, 3)
    check_within(codes, zero, 32, 31)
    check_within(codes, zero, 32, 32)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize(("n", "q"), [(0, 0), (0, 3), (100, 0)])
def test_nothing_to_search_or_to_ask(n, q, n_jobs):
    check_nearest(random_codes(n, 40), random_codes(q, 40), 40, 5, n_jobs=n_jobs)
    check_within(random_codes(n, 40), random_codes(q, 40), 40, 15, n_jobs=n_jobs)


@pytest.mark.parametrize("n_jobs", [2, 3, 5])
@pytest.mark.parametrize("q", [1, 2, 30, 600])
def test_any_number_of_jobs_gives_the_same_answers(n_jobs, q):
    codes, queries = random_codes(3000, 12), random_codes(q, 12, seed=1)
    for k in (1, 40):
        check_nearest(codes, queries, 12, k, n_jobs=n_jobs)
    check_within(codes, queries, 12, 3, n_jobs=n_jobs)


@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize("q", [1, 5])
def test_few_queries_share_out_the_codes(n_jobs, q, monkeypatch):
    asked = []
    shares = linear._Scan.shares
    monkeypatch.setattr(linear, "PART_BYTES", 1000)
    monkeypatch.setattr(linear._Scan, "shares", lambda scan, n: asked.append(shares(scan, n)) or asked[-1])
    codes, queries = random_codes(3000, 12), random_codes(q, 12, seed=1)
    allowed = np.arange(3000) > 1500  # so that a share has nothing to answer, and another too little
    for k in (1, 40, 1200, 3000):
        check_nearest(codes, queries, 12, k, n_jobs=n_jobs)
        check_nearest(codes, queries, 12, k, n_jobs=n_jobs, allowed=allowed)
    for r in (0, 4, 12):
        check_within(codes, queries, 12, r, n_jobs=n_jobs)
        check_within(codes, queries, 12, r, n_jobs=n_jobs, allowed=allowed)
    assert {len(each) for each in asked} == {n_jobs}


def test_small_groups_and_batches_give_the_same_answers(monkeypatch):
    codes, queries = random_codes(3000, 20), random_codes(50, 20, seed=1)
    monkeypatch.setattr(linear, "QUERY_GROUP", 3)
    monkeypatch.setattr(linear, "MAX_CANDIDATES", 100)
    monkeypatch.setattr(linear, "MAX_COUNTS", 30)
    check_nearest(codes, queries, 20, 25)
    check_within(codes, queries, 20, 5)
    check_within(codes, queries, 20, 5, n_jobs=2)


def test_more_answers_than_a_buffer_holds():
    codes, queries = random_codes(70_000, 8), random_codes(2, 8, seed=1)
    check_within(codes, queries, 8, 8)


@pytest.mark.parametrize("n_bits", [1024, 8192])
def test_a_full_group_of_queries_keeps_them_apart(n_bits):
    codes = random_codes(500, n_bits)
    queries = np.concatenate([random_codes(297, n_bits, seed=1), pack(1 - unpack(codes[:3], n_bits))])
    check_within(codes, queries, n_bits, n_bits)


def test_arrays_may_lie_in_memory_as_they_like():
    codes, queries = random_codes(3000, 64), random_codes(9, 64, seed=1)
    planes, lanes = CodeBlocks.of(codes, 64).planes, all_lanes(3000)
    with Workers(1) as workers:
        expected = linear.nearest(planes, lanes, queries, 64, 7, workers)
        scattered = np.repeat(lanes, 2)[::2], np.asfortranarray(queries)
        np.testing.assert_equal(linear.nearest(planes, *scattered, 64, 7, workers), expected)
        scattered = np.asfortranarray(planes), lanes, queries[::-1][::-1]
        np.testing.assert_equal(linear.nearest(*scattered, 64, 7, workers), expected)


def test_shapes_that_do_not_fit_are_refused():
    planes, lanes, queries = CodeBlocks.of(random_codes(100, 64), 64).planes, all_lanes(100), np.zeros((1, 8))
    with Workers(1) as workers:
        for wrong in (
            (planes, lanes[:1], queries),
            (planes[:1], lanes, queries),
            (planes, lanes, queries[:, :4]),
        ):
            with pytest.raises(InvalidInput, match="need lanes of shape"):
                linear.nearest(*wrong, 64, 1, workers)
            with pytest.raises(InvalidInput, match="need lanes of shape"):
                linear.within(*wrong, 64, 1, workers)


@given(st.data())
def test_small_cases(data):
    n_bits = data.draw(st.integers(1, 40))
    n, q = data.draw(st.integers(0, 200)), data.draw(st.integers(0, 4))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    share = data.draw(st.sampled_from([0.02, 0.5]))  # few ones: many ties
    codes = pack(rng.random((n, n_bits)) < share).reshape(n, bytes_per_code(n_bits))
    queries = pack(rng.random((q, n_bits)) < share).reshape(q, bytes_per_code(n_bits))
    allowed = rng.random(n) < data.draw(st.sampled_from([0, 0.1, 0.9, 1]))
    check_nearest(codes, queries, n_bits, data.draw(st.integers(1, 250)), allowed=allowed)
    check_within(codes, queries, n_bits, data.draw(st.integers(0, 45)), allowed=allowed)


PLAIN = """
import sys
import numpy as np
from auxbit.core.parallel import Workers
from auxbit.index import scan
from auxbit.index.codes import CodeBlocks, all_lanes

answers = {}
with np.load(sys.argv[1]) as given, Workers(1) as workers:
    for name in given.files:
        codes, n_bits = given[name], int(name)
        blocks = CodeBlocks.of(codes, n_bits).planes, all_lanes(len(codes)), codes[:9], n_bits
        parts = *scan.nearest(*blocks, 20, workers), *scan.within(*blocks, n_bits // 2, workers)
        answers |= {f"{name}.{i}": part for i, part in enumerate(parts)}
assembly = "".join(scan.scan_nearest.inspect_asm().values())
assert "popcntb" not in assembly and "zmm" not in assembly, "compiled for this processor"
np.savez(sys.argv[2], **answers)
"""


@pytest.mark.slow
def test_a_plain_processor_gives_the_same_answers(tmp_path: Path):
    given = {str(n_bits): random_codes(1000, n_bits) for n_bits in (8, 32, 40, 64, 128, 256, 300, 1024, 8191)}
    np.savez(tmp_path / "given.npz", **given)
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "given.npz"), str(tmp_path / "answers.npz")]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "answers.npz") as answers, Workers(1) as workers:
        for name, codes in given.items():
            blocks = CodeBlocks.of(codes, int(name)).planes, all_lanes(len(codes)), codes[:9], int(name)
            ours = *linear.nearest(*blocks, 20, workers), *linear.within(*blocks, int(name) // 2, workers)
            for i, part in enumerate(ours):
                np.testing.assert_array_equal(answers[f"{name}.{i}"], part)


@pytest.mark.parametrize("where", ["everywhere", "in the middle", "at the ends"])
def test_a_guess_from_a_sample_changes_no_answer(where, monkeypatch):
    """The k nearest lie where the sample is taken, where it is not, or anywhere."""
    rng = np.random.default_rng(0)
    bits = rng.random((20_000, 32)) < 0.5
    queries = rng.random((5, 32)) < 0.5
    near = slice(9_990, 10_060) if where == "in the middle" else slice(0, 70)
    if where != "everywhere":
        bits[near] = queries[rng.integers(5, size=70)] ^ (rng.random((70, 32)) < 0.03)
    guesses = []

    def guess(*arguments):
        guesses.append(likely(*arguments))
        return guesses[-1].copy()

    likely = linear._likely_limits
    monkeypatch.setattr(linear, "_likely_limits", guess)
    codes, asked = pack(bits), pack(queries)
    for k in (60, 200):
        check_nearest(codes, asked, 32, k)
    assert all((each < 32).all() for each in guesses)
    true = np.sort(hamming_distances(asked, codes), axis=1)[:, 59]
    too_low = guesses[0] < true
    assert too_low.any() if where == "in the middle" else not too_low.any()
