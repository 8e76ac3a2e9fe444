"""Asymmetric search: equal to sorting all distances that float tables give, whatever the tables are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import HammingIndex
from auxbit.core.decoders import Coverage, ListDecoder, TableDecoder
from auxbit.core.maps import LinearDecoder
from auxbit.core.parallel import Workers
from auxbit.core.simd import index_bits
from auxbit.index import asymmetric
from auxbit.index.asymmetric import distances_by, nearest, rank_by_vectors, rerank
from auxbit.index.codes import CodeBlocks, CodeNorms, all_lanes, lanes_of
from helpers.index_truth import norms_of

WIDTHS = [*range(1, 18), 32, 128, 192, 1024]
TABLES = ["random", "additive", "integers", "equal", "negative", "one huge", "huge range", "tiny", "offset"]


def distances_to_all(codes, norms, table):
    total = norms.astype(np.float32)
    for j in range(codes.shape[1]):
        total = total + table[j, codes[:, j]]
    return total


def sorted_by_distance(codes, norms, allowed, tables, offsets, k):
    """The k nearest of the allowed positions, which are a list a query or one for all."""
    distances = np.full((len(tables), k), np.inf, dtype=np.float32)
    positions = np.full((len(tables), k), -1, dtype=np.int64)
    for q, table in enumerate(tables):
        total = distances_to_all(codes, norms, table)
        among = np.asarray(allowed[q] if isinstance(allowed, list) else allowed)
        order = among[np.lexsort((among, total[among]))][:k]
        distances[q, : len(order)] = np.maximum(total[order] + offsets[q], 0)
        positions[q, : len(order)] = order
    return distances, positions


def made_tables(kind, n_queries, width, rng):
    tables = rng.normal(size=(n_queries, width, 256))
    if kind in ("additive", "tiny", "offset"):
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        tables = rng.normal(size=(n_queries, width, 8)) @ bits.T
    if kind == "integers":
        tables = rng.integers(-2, 3, size=tables.shape)
    if kind == "equal":
        tables = np.full(tables.shape, 0.1)
    if kind == "negative":
        tables = -np.abs(tables) - 1
    if kind == "one huge":
        tables[:, 0, 7] = 1e30
    if kind == "huge range":
        tables = np.sign(tables) * 10.0 ** rng.uniform(-20, 20, size=tables.shape)
    if kind == "tiny":
        tables = tables * 1e-42
    if kind == "offset":
        tables = tables + 1e5
    return tables.astype(np.float32)


def made_norms(kind, n, rng):
    if kind == "integers":
        return rng.integers(0, 3, size=n).astype(np.float32)
    if kind in ("equal", "tiny"):
        return np.zeros(n, dtype=np.float32)
    if kind == "one huge":
        return np.where(rng.random(n) < 1e-3, 1e20, rng.random(n)).astype(np.float32)
    return (rng.random(n) * 5).astype(np.float32)


def found(codes, norms, allowed, tables, offsets, k, n_jobs=1):
    blocks = CodeBlocks.of(codes, 8 * codes.shape[1])
    with Workers(n_jobs) as workers:
        return nearest(blocks.planes, norms_of(norms), allowed, tables, offsets, k, workers)


def assert_same(answers, truth):
    for answer, expected in zip(answers, truth, strict=True):
        assert answer.dtype == expected.dtype
        assert np.array_equal(answer, expected)


# ---- all codes


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("width", WIDTHS)
def test_search_equals_sorting_all_distances(width, kind):
    rng = np.random.default_rng(width)
    n, k = 4000 + width, 1 + 3 * min(width, 128)
    codes = rng.integers(0, 256, (n, width), dtype=np.uint8)
    tables, norms = made_tables(kind, 3, width, rng), made_norms(kind, n, rng)
    offsets = rng.normal(size=3).astype(np.float32)
    allowed = rng.random(n) < 0.8
    truth = sorted_by_distance(codes, norms, np.flatnonzero(allowed), tables, offsets, k)
    assert_same(found(codes, norms, lanes_of(allowed), tables, offsets, k), truth)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("kind", ["additive", "random", "integers"])
@pytest.mark.parametrize("width", [1, 3, 8, 40, 1024])
def test_search_is_the_same_with_smaller_tables_or_none(width, kind, bits, monkeypatch):
    monkeypatch.setattr(asymmetric, "index_bits", lambda: bits)
    rng = np.random.default_rng(width)
    codes = rng.integers(0, 256, (5000, width), dtype=np.uint8)
    tables, norms = made_tables(kind, 3, width, rng), made_norms(kind, 5000, rng)
    offsets = np.zeros(3, dtype=np.float32)
    truth = sorted_by_distance(codes, norms, np.arange(5000), tables, offsets, 20)
    assert_same(found(codes, norms, all_lanes(5000), tables, offsets, 20), truth)


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("n_bits", [12, 32, 128, 300, 8191])
def test_search_ranks_by_the_distance_to_the_reconstruction(n_bits, linear):
    rng = np.random.default_rng(n_bits)
    decoder = LinearDecoder(rng.normal(size=(20, n_bits)), rng.normal(size=20))
    if not linear:
        tables = rng.normal(size=(-(-n_bits // 8), 256, 20)).astype(np.float32)
        decoder = TableDecoder(tables, rng.normal(size=20), n_bits)
    codes = np.packbits(rng.random((6000, n_bits)) < 0.5, axis=1, bitorder="little")
    X = decoder.decode(codes[:5]) + rng.normal(size=(5, 20))
    norms = CodeNorms(decoder)
    norms.append(codes)
    with Workers(1) as workers:
        distances, positions = nearest(
            CodeBlocks.of(codes, n_bits).planes, norms, all_lanes(6000), decoder.query_tables(X),
            decoder.query_offsets(X), 5, workers,
        )  # fmt: skip
    true = ((X[:, None] - decoder.decode(codes)[None]) ** 2).sum(axis=2)
    scale = decoder.query_offsets(X).max() + norms.largest
    assert np.allclose(distances, np.sort(true, axis=1)[:, :5], atol=1e-5 * scale)
    assert np.allclose(np.take_along_axis(true, positions, 1), distances, atol=1e-5 * scale)


@given(data=st.data())
def test_search_equals_sorting_for_any_small_case(data):
    n, width = data.draw(st.integers(0, 3000)), data.draw(st.integers(1, 5))
    n_queries, k = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 200))
    kind, share = data.draw(st.sampled_from(TABLES)), data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    codes = rng.integers(0, data.draw(st.sampled_from([2, 256])), (n, width), dtype=np.uint8)
    tables, norms = made_tables(kind, n_queries, width, rng), made_norms(kind, n, rng)
    offsets = rng.normal(size=n_queries).astype(np.float32)
    allowed = rng.random(n) < share
    truth = sorted_by_distance(codes, norms, np.flatnonzero(allowed), tables, offsets, k)
    assert_same(found(codes, norms, lanes_of(allowed), tables, offsets, k), truth)


@pytest.mark.parametrize("n_queries", [1, 3, 300])
@pytest.mark.parametrize("kind", ["integers", "additive"])
def test_search_is_the_same_for_any_number_of_jobs(n_queries, kind, monkeypatch):
    monkeypatch.setattr(asymmetric, "PART_BLOCKS", 40)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (9000, 2), dtype=np.uint8)
    tables, norms = made_tables(kind, n_queries, 2, rng), made_norms(kind, 9000, rng)
    offsets = np.zeros(n_queries, dtype=np.float32)
    truth = sorted_by_distance(codes, norms, np.arange(9000), tables, offsets, 400)
    for n_jobs in (1, 2, 5):
        assert_same(found(codes, norms, all_lanes(9000), tables, offsets, 400, n_jobs), truth)


def test_codes_that_come_nearer_and_nearer_are_all_found():
    """Each code is nearer than all before it: limits fall with every code, and tables are rounded often."""
    n = 8000
    norms = np.linspace(1000, 0, n).astype(np.float32)
    codes, tables = np.zeros((n, 3), dtype=np.uint8), np.zeros((2, 3, 256), dtype=np.float32)
    tables[:, :, 1:] = np.random.default_rng(0).random((2, 3, 255))
    truth = sorted_by_distance(codes, norms, np.arange(n), tables, np.zeros(2, np.float32), 25)
    assert_same(found(codes, norms, all_lanes(n), tables, np.zeros(2, np.float32), 25), truth)


@pytest.mark.parametrize("kind", TABLES)
def test_codes_just_within_the_limit_are_not_lost_to_rounding(kind):
    """Many codes whose distances differ in the last bits only, where a bound that is a bit too high shows."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2, (20000, 5), dtype=np.uint8)
    tables = made_tables(kind, 4, 5, rng)
    norms = (np.float32(3) + rng.integers(0, 8, 20000) * np.float32(2**-22)).astype(np.float32)
    truth = sorted_by_distance(codes, norms, np.arange(20000), tables, np.zeros(4, np.float32), 100)
    assert_same(found(codes, norms, all_lanes(20000), tables, np.zeros(4, np.float32), 100), truth)


def test_sums_that_float32_rounds_down_below_the_limit_are_found():
    """2²⁴ + 1 is 2²⁴ in float32: the last code is the nearest, though its exact sum is larger than all."""
    codes, tables = np.zeros((3000, 16), dtype=np.uint8), np.ones((1, 16, 256), dtype=np.float32)
    codes[-1], tables[:, :, 0] = 1, 0
    norms = np.full(3000, 2**24 + 2, dtype=np.float32)
    norms[-1] = 2**24
    distances, positions = found(codes, norms, all_lanes(3000), tables, np.zeros(1, np.float32), 1)
    assert distances[0, 0] == 2**24
    assert positions[0, 0] == 2999


def test_entries_a_little_below_the_sum_of_their_bits_are_found():
    """Tables so nearly sums over bits that they are taken for it; the last code has the entry that is not."""
    terms = np.ones((5, 8))
    terms[0, :2] = 0.5
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    tables = (terms @ bits.T).astype(np.float32)[None]
    tables[0, 0, 3] = 0.97  # not 1
    codes, norms = np.zeros((3000, 5), dtype=np.uint8), np.full(3000, 0.99, dtype=np.float32)
    codes[-1, 0], norms[-1] = 3, 0
    _, positions = found(codes, norms, all_lanes(3000), tables, np.zeros(1, np.float32), 2)
    assert positions.tolist() == [[2999, 0]]


# ---- a shortlist


@pytest.mark.parametrize("kind", ["random", "integers"])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_reranking_equals_sorting_the_shortlist(kind, k):
    rng = np.random.default_rng(k)
    codes = rng.integers(0, 256, (500, 9), dtype=np.uint8)
    tables, norms = made_tables(kind, 4, 9, rng), made_norms(kind, 500, rng)
    offsets = rng.normal(size=4).astype(np.float32)
    shortlist = np.array([rng.permutation(500)[:40] for _ in range(4)])
    shortlist[1, 25:], shortlist[2, :] = -1, -1
    truth = sorted_by_distance(codes, norms, [row[row >= 0] for row in shortlist], tables, offsets, k)
    planes = CodeBlocks.of(codes, 72).planes
    for jobs in (1, 3):
        with Workers(jobs) as workers:
            found = rerank(planes, norms_of(norms), tables, offsets, shortlist, k, workers)
        assert_same(found, truth)


def test_a_shortlist_of_all_codes_gives_what_searching_gives():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (3000, 4), dtype=np.uint8)
    tables, norms = made_tables("additive", 2, 4, rng), made_norms("additive", 3000, rng)
    offsets = np.ones(2, dtype=np.float32)
    everything = np.tile(np.arange(3000)[::-1], (2, 1))
    with Workers(1) as workers:
        planes = CodeBlocks.of(codes, 32).planes
        answers = rerank(planes, norms_of(norms), tables, offsets, everything, 12, workers)
    assert_same(answers, found(codes, norms, all_lanes(3000), tables, offsets, 12))


# ---- candidates ranked by their vectors


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "inner_product"])
def test_candidates_are_ranked_by_their_vectors(metric, kind):
    rng = np.random.default_rng(0)
    vectors, X = rng.normal(size=(300, 21)).astype(kind), rng.normal(size=(70, 21)).astype(np.float32)
    vectors[100:140] = vectors[60:100]  # equal ones are ordered by position
    candidates = np.array([rng.permutation(300)[:40] for _ in X])
    candidates[::2, 30:], candidates[3] = -1, -1
    for k in (1, 7, 40):
        answers = [rank_by_vectors(X, candidates, vectors, k, metric=metric, n_jobs=jobs) for jobs in (1, 2)]
        assert_same(answers[0], answers[1])
        for x, listed, distances, positions in zip(X, candidates, *answers[0], strict=True):
            there = np.sort(listed[listed >= 0])
            far = distances_by(metric, x.astype(np.float64), vectors[there].astype(np.float64))
            order = np.argsort(np.round(far, 9), kind="stable")[:k]
            assert np.array_equal(positions[: len(order)], there[order])
            np.testing.assert_allclose(distances[: len(order)], far[order], rtol=1e-6, atol=1e-6)
            assert (positions[len(order) :] == -1).all()
            assert np.isinf(distances[len(order) :]).all()


@pytest.mark.parametrize(
    ("of_rows", "of_queries"), [(1e-30, 1), (1e-22, 1), (1e19, 1), (1e30, 1), (1, 1e-170), (1, 1e130)]
)
def test_angles_to_rows_of_any_length_are_told_apart(of_rows, of_queries):
    rng = np.random.default_rng(0)
    rows, X = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(5, 8))
    candidates = np.tile(np.arange(50), (5, 1))
    wanted = rank_by_vectors(X, candidates, rows, 5, metric="cosine", n_jobs=1)
    scaled = X * of_queries, candidates, rows * np.float32(of_rows)
    distances, positions = rank_by_vectors(*scaled, 5, metric="cosine", n_jobs=1)
    assert np.array_equal(positions, wanted[1])
    np.testing.assert_allclose(distances, wanted[0], rtol=1e-5)


# ---- machines without the instructions

ANSWERS = """
import sys
import numpy as np
from pathlib import Path
sys.path[:0] = {tests!r}
from test_asymmetric import answers_on_this_machine
np.savez({target!r}, *answers_on_this_machine())
"""


def answers_on_this_machine():
    rng = np.random.default_rng(5)
    answers = [np.array(index_bits())]
    for width, kind in [(4, "additive"), (5, "random"), (31, "additive"), (33, "integers")]:
        codes = rng.integers(0, 256, (4000, width), dtype=np.uint8)
        tables, norms = made_tables(kind, 2, width, rng), made_norms(kind, 4000, rng)
        answers += found(codes, norms, all_lanes(4000), tables, np.ones(2, np.float32), 15)
    for inner in (
        TableDecoder(rng.normal(size=(5, 256, 70)).astype(np.float32), np.zeros(70), 40, mu=0.0),
        LinearDecoder(rng.normal(size=(70, 40)), np.zeros(70), mu=0.0),
    ):
        decoder = ListDecoder(inner, rng.normal(size=(6, 70)), 0.5, Coverage.unknown(6))
        index = HammingIndex(decoder.n_bits, decoder=decoder, n_jobs=1)
        rest = rng.integers(0, 256, (4000, 5), dtype=np.uint8)
        index.add(decoder.joined(rng.integers(0, 6, 4000), rest))
        answers += index.search_asymmetric(rng.normal(size=(9, 70)), 15, probes="all")
    return answers


@pytest.mark.slow  # every kernel is compiled again
@pytest.mark.parametrize("without", ["avx512", "avx"])
def test_machines_without_the_instructions_give_the_same_answers(without, tmp_path):
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    kept = ",".join(f"+{name}" for name, has in features.items() if has and not name.startswith(without))
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": kept, "NUMBA_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    tests = [str(folder) for folder in Path(__file__).parents[:2]]
    code = ANSWERS.format(tests=tests, target=str(tmp_path / "answers.npz"))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    with np.load(tmp_path / "answers.npz") as theirs:
        there = [theirs[name] for name in theirs.files]
    assert there[0] == (4 if without == "avx512" and features.get("avx2") else 0)
    for ours, others in zip(answers_on_this_machine()[1:], there[1:], strict=True):
        assert np.array_equal(ours, others)
