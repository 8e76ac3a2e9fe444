from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.core import maps
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import (
    Ranking,
    code_counts,
    effective_bits,
    effective_bits_bound,
    ground_truth,
    hamming_ranking,
    largest_norm,
    lift_queries,
    lift_rows,
    mean_average_precision,
    one_recall_at,
    precision_recall_at_k,
    precision_recall_at_radius,
    precision_recall_curve,
    recall_at,
    retrieved_ranking,
    unit_rows,
)


def slow_truth(base, queries, k):
    """Sort all float64 distances, summed one dimension after another, by (distance, id)."""
    rows, asked = base.astype(np.float64), queries.astype(np.float64)
    distances = np.zeros((len(asked), len(rows)))
    for j in range(rows.shape[1]):
        distances += (asked[:, j, None] - rows[None, :, j]) ** 2
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


def random_codes(n, n_bits, seed=0):
    return maps.pack(np.random.default_rng(seed).integers(0, 2, (n, n_bits)))


def random_truth(q, n_true, n, seed=0):
    return np.argsort(np.random.default_rng(seed).random((q, n)), axis=1)[:, :n_true]


small_case = st.tuples(
    st.integers(1, 12), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(0, 999)
)


def make_case(case):
    """Packed codes with many ties, truth, and the number of bits."""
    n_bits, q, n, n_true, seed = case
    base, queries = random_codes(n, n_bits, seed), random_codes(q, n_bits, seed + 1)
    return base, queries, random_truth(q, min(n, n_true), n, seed), n_bits


# ---- ground truth


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64])
def test_ground_truth_equals_sorting_all_distances(dtype):
    rng = np.random.default_rng(0)
    base, queries = (rng.normal(100, 20, (n, 24)).astype(dtype) for n in (3000, 150))
    for k in (1, 10, 3000):
        ids = ground_truth(base, queries, k)
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(ids, slow_truth(base, queries, k))


def test_ground_truth_of_more_rows_than_a_block_equals_sorting_all_distances():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 4, (40_000, 5)).astype(np.uint8)  # 1,024 distinct rows: ties everywhere
    queries = rng.integers(0, 4, (20, 5)).astype(np.uint8)
    np.testing.assert_array_equal(ground_truth(base, queries, 100), slow_truth(base, queries, 100))
    k = 20_000  # more than a block has
    np.testing.assert_array_equal(ground_truth(base, queries[:2], k), slow_truth(base, queries[:2], k))


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e9])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e6])
def test_ground_truth_is_exact_where_float32_is_not(offset, spread):
    rng = np.random.default_rng(1)
    centres = rng.normal(0, spread, (8, 16))
    base = offset + centres[rng.integers(0, 8, 5000)] + 1e-3 * rng.normal(size=(5000, 16))
    queries = base[:40] + 1e-4 * rng.normal(size=(40, 16))
    np.testing.assert_array_equal(ground_truth(base, queries, 20), slow_truth(base, queries, 20))


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e-30, 1e30, 1e139])
def test_ground_truth_holds_for_tiny_and_huge_values(scale):
    rng = np.random.default_rng(2)
    base, queries = scale * rng.normal(size=(2000, 6)), scale * rng.normal(size=(10, 6))
    unit = 2.0**600 if scale < 1e-100 else 1.0  # squares of such numbers vanish
    wanted = slow_truth(base * unit, queries * unit, 7)
    np.testing.assert_array_equal(ground_truth(base, queries, 7), wanted)
    products = (queries * unit) @ (base * unit).T if scale < 1e100 else (queries / scale) @ (base / scale).T
    found = ground_truth(base, queries, 7, metric="inner_product")
    np.testing.assert_array_equal(found, np.argsort(-products, axis=1, kind="stable")[:, :7])
    assert np.array_equal(ground_truth(np.zeros((9, 2)), np.zeros((1, 2)), 3), [[0, 1, 2]])


@pytest.mark.parametrize("function", [unit_rows, largest_norm, lambda X: lift_rows(X, 9.0),
                                      lambda X: lift_queries(X, 9.0)])  # fmt: skip
@pytest.mark.parametrize(
    ("X", "match"),
    [
        ([1.0, 2.0], r"X must be a 2-D array of numbers .*\(2,\)"),
        ([[1.0, np.nan]], "X contains NaN at row 0, column 1"),
        ([[1.0, 2j]], "complex128"),
        ([["1", "2"]], "<U1"),
        ([[1.0], [2.0, 3.0]], "inhomogeneous"),
    ],
)
def test_rows_that_have_no_norms_are_refused(function, X, match):
    with pytest.raises(InvalidInput, match=match):
        function(X)
    assert np.size(function([[3.0, 4.0]])) >= 1  # lists of numbers will do


def test_one_far_outlier_does_not_spoil_the_ground_truth():
    rng = np.random.default_rng(3)
    base, queries = rng.normal(size=(2000, 6)), rng.normal(size=(10, 6))
    base[77] = 1e35
    np.testing.assert_array_equal(ground_truth(base, queries, 7), slow_truth(base, queries, 7))


def test_identical_rows_tie_by_the_smallest_id():
    base = np.tile(np.random.default_rng(4).normal(size=(1, 33)), (5000, 1))
    np.testing.assert_array_equal(ground_truth(base, base[:3] + 1, 50), np.tile(np.arange(50), (3, 1)))


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 4), st.integers(1, 60), st.integers(0, 999))
def test_any_small_ground_truth_equals_sorting_all_distances(n, q, n_dims, k, seed):
    rng = np.random.default_rng(seed)
    base, queries = rng.integers(-3, 4, (n, n_dims)), rng.integers(-3, 4, (q, n_dims))
    k = min(k, n)
    np.testing.assert_array_equal(ground_truth(base, queries, k, n_jobs=1), slow_truth(base, queries, k))


def slow_products(base, queries, k):
    """Sort all float64 products, summed one dimension after another, by (product falling, id)."""
    rows, asked = base.astype(np.float64), queries.astype(np.float64)
    products = np.zeros((len(asked), len(rows)))
    for j in range(rows.shape[1]):
        products -= asked[:, j, None] * rows[None, :, j]
    return np.argsort(products, axis=1, kind="stable")[:, :k]


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 4), st.integers(1, 60), st.integers(0, 999))
def test_any_small_inner_products_are_those_of_sorting_them_all(n, q, n_dims, k, seed):
    rng = np.random.default_rng(seed)
    base, queries = rng.integers(-3, 4, (n, n_dims)), rng.integers(-3, 4, (q, n_dims))  # many ties
    k = min(k, n)
    found = ground_truth(base, queries, k, metric="inner_product", n_jobs=1)
    np.testing.assert_array_equal(found, slow_products(base, queries, k))


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e30, 1e70])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_inner_products_are_exact_where_float32_is_not(scale, offset):
    rng = np.random.default_rng(1)
    base = scale * (offset + rng.normal(size=(8, 16))[rng.integers(0, 8, 20_000)])
    base += 1e-7 * scale * rng.normal(size=base.shape)
    queries = rng.normal(size=(10, 16))
    found = ground_truth(base, queries, 20, metric="inner_product")
    np.testing.assert_array_equal(found, slow_products(base, queries, 20))


def test_the_neighbours_of_lifted_rows_are_those_by_inner_product():
    rng = np.random.default_rng(2)
    base, queries = rng.normal(size=(2000, 8)) * rng.gamma(2, size=(2000, 1)), rng.normal(size=(30, 8))
    largest = largest_norm(base)
    assert largest == pytest.approx(np.linalg.norm(base, axis=1).max())
    lifted, asked = lift_rows(base, largest), lift_queries(queries, largest)
    np.testing.assert_allclose(np.linalg.norm(lifted, axis=1), largest)
    np.testing.assert_allclose(np.linalg.norm(asked, axis=1), largest)
    np.testing.assert_array_equal(ground_truth(lifted, asked, 10), slow_products(base, queries, 10))
    with pytest.raises(InvalidInput, match="Use largest_norm of all rows"):
        lift_rows(2 * base, largest)


@pytest.mark.parametrize("largest", [0.0, -1.0, np.nan, np.inf, "3"])
@pytest.mark.parametrize("function", [lift_rows, lift_queries])
def test_a_length_that_nothing_can_be_lifted_to_is_refused(function, largest):
    with pytest.raises(InvalidParameter, match=r"largest=.* is invalid: .*Use largest_norm of all rows"):
        function(np.zeros((2, 3)), largest)


def test_cosine_neighbours_are_those_of_rows_divided_by_their_norms():
    rng = np.random.default_rng(3)
    base, queries = rng.normal(size=(500, 8)) * rng.gamma(2, size=(500, 1)), rng.normal(size=(30, 8))
    base[7] = 0
    np.testing.assert_allclose(np.linalg.norm(unit_rows(base), axis=1), np.arange(500) != 7)
    cosines = (queries @ base.T) / np.maximum(np.linalg.norm(base, axis=1), 1e-300)
    found = ground_truth(base, queries, 10, metric="cosine")
    np.testing.assert_array_equal(found, np.argsort(-cosines, axis=1)[:, :10])
    with pytest.raises(InvalidParameter, match="one of euclidean, cosine, inner_product"):
        ground_truth(base, queries, 10, metric="dot")


def test_ground_truth_reads_memory_maps_and_does_not_depend_on_the_number_of_jobs(tmp_path):
    rng = np.random.default_rng(5)
    np.save(tmp_path / "base.npy", rng.normal(size=(3000, 12)).astype(np.float32))
    base, queries = np.load(tmp_path / "base.npy", mmap_mode="r"), rng.normal(size=(300, 12))
    one, three = (ground_truth(base, queries, 9, n_jobs=n_jobs) for n_jobs in (1, 3))
    np.testing.assert_array_equal(one, three)
    np.testing.assert_array_equal(one, slow_truth(np.array(base), queries, 9))


def test_ground_truth_refuses_what_it_cannot_use():
    X = np.zeros((5, 3))
    for k in (0, 6, 2.0, True):
        with pytest.raises(InvalidParameter, match=r"k=.* is invalid: expected an integer in 1\.\.5.*5 rows"):
            ground_truth(X, X, k)
    with pytest.raises(InvalidInput, match="X_query must have the 3 columns of X_base, got 2"):
        ground_truth(X, X[:, :2], 1)
    with pytest.raises(InvalidInput, match=r"X_base must be a 2-D array.*got shape \(3,\)"):
        ground_truth(X[0], X, 1)
    with pytest.raises(InvalidInput, match=r"X_query must be .* at least one row.*got shape \(0, 3\)"):
        ground_truth(X, X[:0], 1)
    with pytest.raises(InvalidInput, match="of complex128"):
        ground_truth(X + 1j, X, 1)
    for bad in (np.nan, [np.inf, -np.inf], -1e200):
        spoilt = X.copy()
        spoilt[3:, 1] = bad
        with pytest.raises(InvalidInput, match="X_base must be finite"):
            ground_truth(spoilt, X, 1)
        with pytest.raises(InvalidInput, match="X_query must be finite"):
            ground_truth(X, spoilt, 1)


# ---- rankings


def check_ranking(base, queries, truth, n_bits):
    ranking = hamming_ranking(base, queries, truth, n_bits)
    distances = maps.hamming_distances(queries, base)
    places = np.argsort(np.argsort(distances, axis=1, kind="stable"), axis=1)
    np.testing.assert_array_equal(ranking.ranks, np.take_along_axis(places, truth, axis=1))
    every = np.arange(n_bits + 1)
    np.testing.assert_array_equal(ranking.counts, (distances[:, :, None] == every).sum(axis=1))
    near = np.take_along_axis(distances, truth, axis=1)
    np.testing.assert_array_equal(ranking.hits, (near[:, :, None] == every).sum(axis=1))
    assert ranking.n_base == len(base)


@given(small_case)
def test_any_small_ranking_equals_sorting_all_distances(case):
    check_ranking(*make_case(case))


@pytest.mark.parametrize("n_bits", [8, 32, 33, 64, 130, 8192])
def test_a_ranking_of_several_chunks_equals_sorting_all_distances(n_bits):
    base, queries = random_codes(2600, n_bits), random_codes(40, n_bits, seed=1)
    check_ranking(base, queries, random_truth(40, 300, 2600), n_bits)


def test_without_n_bits_all_bits_of_the_bytes_count():
    base, queries, truth = random_codes(50, 16), random_codes(3, 16, 1), random_truth(3, 5, 50)
    assert hamming_ranking(base, queries, truth).counts.shape == (3, 17)


def test_rankings_of_lists_give_the_same_metrics_at_k_as_rankings_of_codes():
    base, queries, truth = random_codes(300, 10), random_codes(20, 10, 1), random_truth(20, 6, 300)
    lists = np.argsort(maps.hamming_distances(queries, base), axis=1, kind="stable")
    by_codes, by_lists = hamming_ranking(base, queries, truth, 10), retrieved_ranking(lists, truth)
    np.testing.assert_array_equal(by_codes.ranks, by_lists.ranks)
    assert mean_average_precision(by_codes) == mean_average_precision(by_lists)
    short = retrieved_ranking(np.where(np.arange(60) < 50, lists[:, :60], -1), truth)
    for k in (1, 10, 50):
        assert precision_recall_at_k(by_codes, k) == precision_recall_at_k(short, k)
        assert one_recall_at(by_codes, k) == one_recall_at(short, k)


@pytest.mark.parametrize("kinds", [(np.uint64, np.int64), (np.int64, np.uint64), (np.uint64, np.uint64)])
def test_large_ids_are_told_apart_whatever_their_type(kinds):
    ids, truth = np.array([[2**60, 2**60 + 1, 2**60 + 2]]), np.array([[2**60 + 2, 2**60 + 3, 2**60 + 1]])
    ranking = retrieved_ranking(ids.astype(kinds[0]), truth.astype(kinds[1]))
    assert ranking.ranks.tolist() == [[2, 3, 1]]


def test_metrics_that_need_distances_or_all_ranks_refuse_rankings_of_lists():
    ranking = retrieved_ranking([[4, 2, 0]], [[2, 9]])
    assert precision_recall_at_k(ranking, 2) == (0.5, 0.5)
    for refused in (
        lambda: precision_recall_at_radius(ranking, 1),
        lambda: precision_recall_curve(ranking),
        lambda: precision_recall_at_k(ranking, 1, ties="average"),
        lambda: one_recall_at(ranking, 1, ties="average"),
        lambda: mean_average_precision(ranking, ties="average"),
    ):
        with pytest.raises(InvalidInput, match=r"needs Hamming distances.*lists of ids"):
            refused()
    with pytest.raises(InvalidInput, match="needs all true neighbours ranked"):
        mean_average_precision(ranking)
    with pytest.raises(InvalidParameter, match=r"k=4 is invalid: expected an integer in 1\.\.3"):
        precision_recall_at_k(ranking, 4)


def test_rankings_refuse_what_they_cannot_use():
    base, queries = random_codes(9, 12), random_codes(2, 12)
    for truth, message in [
        ([[0, 1]], r"truth must be a \(2, K\) array"),
        ([[0.0], [1.0]], "of float64"),
        ([[0, 9], [1, 2]], r"in 0\.\.8, row numbers of the base, got values from 0 to 9"),
        ([[0, -1], [1, 2]], "got values from -1 to 2"),
        ([[0, 0], [1, 2]], "truth must not contain a row twice"),
        ([[0, 1], [2]], "truth must be an array of numbers"),
        (np.ma.masked_array([[0, 1], [1, 2]], mask=[[0, 1], [0, 0]]), "truth has masked numbers, 1 of"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            hamming_ranking(base, queries, truth, 12)
    with pytest.raises(InvalidInput, match="base_codes must be packed codes of 20 bits"):
        hamming_ranking(base, queries, [[0], [1]], 20)
    with pytest.raises(InvalidInput, match="query_codes must be packed codes of 12 bits"):
        hamming_ranking(base, queries[:, :1], [[0], [1]], 12)
    with pytest.raises(InvalidParameter, match="n_bits=0"):
        hamming_ranking(base, queries, [[0], [1]], 0)
    with pytest.raises(InvalidInput, match="ids must not contain a row twice"):
        retrieved_ranking([[1, 2, 1]], [[1]])
    with pytest.raises(InvalidInput, match=r"ids must be a \(q, R\) array of integers"):
        retrieved_ranking([[0.5]], [[1]])
    with pytest.raises(InvalidInput, match="ids has masked numbers, 1 of"):
        retrieved_ranking(np.ma.masked_array([[1, 2]], mask=[[0, 1]]), [[1]])
    with pytest.raises(InvalidInput, match="base_codes has masked numbers, 18 of"):
        hamming_ranking(np.ma.masked_array(base, mask=True), queries, [[0], [1]], 12)


# ---- metrics


@given(small_case, st.data())
def test_metrics_at_k_equal_their_definitions(case, data):
    base, queries, truth, n_bits = make_case(case)
    ranking = hamming_ranking(base, queries, truth, n_bits)
    k = data.draw(st.integers(1, len(base)))
    lists = np.argsort(maps.hamming_distances(queries, base), axis=1, kind="stable")
    found = [len(set(row[:k]) & set(true)) for row, true in zip(lists, truth, strict=True)]
    precision, recall = precision_recall_at_k(ranking, k)
    assert precision == pytest.approx(np.mean(found) / k)
    assert recall == pytest.approx(np.mean(found) / truth.shape[1])
    first = [true[0] in row[:k] for row, true in zip(lists, truth, strict=True)]
    assert one_recall_at(ranking, k) == pytest.approx(np.mean(first))
    k = min(k, truth.shape[1])
    shares = [len(set(row[:k]) & set(true[:k])) / k for row, true in zip(lists, truth, strict=True)]
    assert recall_at(ranking, k) == pytest.approx(np.mean(shares))
    average = []
    for row, true in zip(lists, truth, strict=True):
        relevant = np.isin(row, true)
        average.append((relevant.cumsum() / np.arange(1, len(row) + 1))[relevant].mean())
    assert mean_average_precision(ranking) == pytest.approx(np.mean(average))


@given(small_case)
def test_metrics_within_a_radius_equal_their_definitions(case):
    base, queries, truth, n_bits = make_case(case)
    ranking = hamming_ranking(base, queries, truth, n_bits)
    curve = precision_recall_curve(ranking)
    assert curve.radius.tolist() == list(range(n_bits + 1))
    for r in range(n_bits + 1):
        within = maps.hamming_distances(queries, base) <= r
        found = np.take_along_axis(within, truth, axis=1).sum(axis=1)
        returned = within.sum(axis=1)
        precision = np.array([f / n if n else 0.0 for f, n in zip(found, returned, strict=True)])
        assert precision_recall_at_radius(ranking, r) == pytest.approx(
            (precision.mean(), found.mean() / truth.shape[1])
        )
        some = returned > 0
        assert curve.answered[r] == some.sum()
        expected = (
            (precision[some].mean(), found[some].mean() / truth.shape[1]) if some.any() else (np.nan,) * 2
        )
        assert (curve.precision[r], curve.recall[r]) == pytest.approx(expected, nan_ok=True)


def all_orders(distances):
    """Every order of rows by distance, ties in all ways."""
    groups = [np.flatnonzero(distances == d).tolist() for d in np.unique(distances)]
    for orders in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield list(itertools.chain(*orders))


@pytest.mark.parametrize("distances", [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1], [2, 1, 2, 1, 0, 2, 1], [3, 1, 0]])
def test_averaged_ties_equal_the_mean_over_all_orders(distances):
    distances = np.array(distances)
    base = maps.pack(np.arange(3) < distances[:, None])
    query = maps.pack(np.zeros((1, 3)))
    orders = list(all_orders(distances))
    for n_true in range(1, len(distances) + 1):
        for true in itertools.permutations(range(len(distances)), n_true):
            if list(true[1:]) != sorted(true[1:]):
                continue  # only which neighbour comes first matters
            ranking = hamming_ranking(base, query, [true], 3)
            relevant = np.isin(orders, true)
            precisions = relevant.cumsum(axis=1) / np.arange(1, len(distances) + 1)
            expected = (precisions * relevant).sum(axis=1).mean() / n_true
            assert mean_average_precision(ranking, ties="average") == pytest.approx(expected)
            for k in range(1, len(distances) + 1):
                mean = precisions[:, k - 1].mean()
                assert precision_recall_at_k(ranking, k, ties="average") == pytest.approx(
                    (mean, mean * k / n_true)
                )
                first = np.mean([true[0] in order[:k] for order in orders])
                assert one_recall_at(ranking, k, ties="average") == pytest.approx(first)
                if k <= n_true:
                    shares = [len(set(order[:k]) & set(true[:k])) / k for order in orders]
                    assert recall_at(ranking, k, ties="average") == pytest.approx(np.mean(shares))


@given(small_case)
def test_averaged_ties_do_not_depend_on_the_order_of_rows(case):
    base, queries, truth, n_bits = make_case(case)
    order = np.random.default_rng(0).permutation(len(base))
    one = hamming_ranking(base, queries, truth, n_bits)
    other = hamming_ranking(base[order], queries, np.argsort(order)[truth], n_bits)
    k = 1 + len(base) // 2
    for metric in (
        lambda ranking: precision_recall_at_k(ranking, k, ties="average"),
        lambda ranking: one_recall_at(ranking, k, ties="average"),
        lambda ranking: mean_average_precision(ranking, ties="average"),
    ):
        assert metric(one) == pytest.approx(metric(other))


def test_without_ties_averaging_changes_nothing():
    base = maps.pack(np.arange(40) < np.random.default_rng(0).permutation(40)[:, None])
    query, truth = maps.pack(np.zeros((1, 40))), random_truth(1, 7, 40)
    ranking = hamming_ranking(base, query, truth, 40)
    assert mean_average_precision(ranking) == pytest.approx(mean_average_precision(ranking, ties="average"))
    assert precision_recall_at_k(ranking, 9) == pytest.approx(
        precision_recall_at_k(ranking, 9, ties="average")
    )


def test_metrics_are_plain_floats_of_a_frozen_ranking():
    ranking = hamming_ranking(random_codes(20, 8), random_codes(3, 8), random_truth(3, 4, 20))
    for value in (
        *precision_recall_at_k(ranking, 5),
        *precision_recall_at_radius(ranking, 2),
        one_recall_at(ranking, 5),
        recall_at(ranking, 4),
        mean_average_precision(ranking),
        mean_average_precision(ranking, ties="average"),
    ):
        assert type(value) is float
    assert isinstance(ranking, Ranking)
    with pytest.raises(AttributeError, match="n_base"):
        ranking.n_base = 3


def test_metrics_refuse_what_they_cannot_use():
    ranking = hamming_ranking(random_codes(20, 8), random_codes(3, 8), random_truth(3, 4, 20))
    for k in (0, 21, 1.5):
        with pytest.raises(InvalidParameter, match=r"k=.* is invalid: expected an integer in 1\.\.20"):
            precision_recall_at_k(ranking, k)
        with pytest.raises(InvalidParameter, match=r"R=.* is invalid: expected an integer in 1\.\.20"):
            one_recall_at(ranking, k)
    with pytest.raises(InvalidParameter, match=r"1\.\.4\. The truth has 4 neighbours per query"):
        recall_at(ranking, 5)
    for r in (-1, 9, 1.5):
        with pytest.raises(InvalidParameter, match=r"r=.* is invalid: expected an integer in 0\.\.8"):
            precision_recall_at_radius(ranking, r)
    for metric in (mean_average_precision, lambda each, ties: one_recall_at(each, 1, ties=ties)):
        with pytest.raises(InvalidParameter, match="ties='random' is invalid: expected 'id' or 'average'"):
            metric(ranking, ties="random")


# ---- code utilisation


@given(st.integers(1, 100), st.integers(1, 60), st.integers(0, 99))
def test_effective_bits_lie_between_zero_and_their_bound(n_bits, n, seed):
    packed = maps.pack(np.random.default_rng(seed).random((n, n_bits)) < 0.1)
    assert 0 <= effective_bits(packed) <= effective_bits_bound(n_bits, n) + 1e-9
    counts = code_counts(packed)
    assert counts.dtype == np.int64
    assert counts.tolist() == sorted(np.unique(packed, axis=0, return_counts=True)[1], reverse=True)


def test_effective_bits_of_known_distributions():
    every = np.arange(256, dtype=np.uint8)[:, None]
    assert effective_bits(every) == pytest.approx(8)
    assert effective_bits(np.tile(every, (3, 2))) == pytest.approx(8)
    assert effective_bits(every[[5] * 9]) == 0
    assert effective_bits(every[[1, 1, 2, 3]]) == pytest.approx(1.5)
    assert code_counts(every[[3, 1, 1, 2, 1, 2]]).tolist() == [3, 2, 1]
    assert effective_bits_bound(8, 1000) == 8
    assert effective_bits_bound(32, 1024) == 10
    assert effective_bits_bound(32, 10**30) == 32


def test_code_utilisation_refuses_what_it_cannot_use():
    for bad in (np.zeros((3, 8)), np.zeros((0, 2), np.uint8), np.zeros(4, np.uint8)):
        with pytest.raises(InvalidInput, match=r"codes must be packed codes.*pack"):
            effective_bits(bad)
    with pytest.raises(InvalidParameter, match="n_codes=0 is invalid: expected an integer of at least 1"):
        effective_bits_bound(8, 0)
