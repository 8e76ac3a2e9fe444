"""Code utilisation: effective bits and their bounds, and how many rows share a code."""

from __future__ import annotations

import numpy as np

from auxbit.experiments import entropy, retrieval

SMALL = retrieval.Caption("fig. 10", (retrieval.Neighbours(10, 10, (1, 2)),), bits=(4, 8))


def claim(claims, words):
    (found,) = [each for each in claims if words in each.claim]
    return found


def test_effective_bits_lie_below_their_bounds(problem, fits):
    result = entropy.run(fits, caption=SMALL, methods=("itq", "lsh", "tpca"))
    for row in result.tables["entropy"]:
        assert row["train"] <= row["train_bound"] + 1e-9
        assert row["queries"] <= row["queries_bound"] + 1e-9
    counts = [row for row in result.tables["counts"] if row["method"] == "ITQ"]
    assert counts[0]["rank"] == 1
    assert {row["retrieved"] for row in result.tables["ranks"]} == set()  # ITQ alone is too few to rank
    assert counts == sorted(counts, key=lambda row: -row["count"])


def test_a_histogram_goes_from_the_most_used_code_to_the_least():
    counts = np.arange(1, 1001)
    rows = entropy._histogram({"method": "BA"}, counts)
    assert (rows[0]["rank"], rows[0]["count"]) == (1, 1000)
    assert (rows[-1]["rank"], rows[-1]["count"]) == (1000, 1)
    assert len(rows) <= entropy.POINTS


# ---- the claims of section 6.6


def rows_of(L_eff, bits=8, seed=0):
    return [
        {"method": m, "bits": bits, "seed": seed, "train": value, "queries": value}
        for m, value in L_eff.items()
    ]


def precisions_of(values, how="r=1", bits=8, seed=0):
    return [
        {"method": m, "bits": bits, "seed": seed, "K": 5, "retrieved": how, "precision": value}
        for m, value in values.items()
    ]


def test_ranks_are_of_the_papers_methods_without_tpca_and_by_seed():
    L_eff = {"BA": 7.0, "ITQ": 6.0, "SH": 5.0, "tPCA": 8.0, "LSH": 1.0}
    same, turned = {"BA": 0.9, "ITQ": 0.8, "SH": 0.7}, {"BA": 0.7, "ITQ": 0.8, "SH": 0.7}
    rows = rows_of(L_eff) + [row for row in rows_of(L_eff, seed=1) if row["method"] != "SH"]
    precisions = precisions_of(same | {"tPCA": 0.1, "LSH": 1.0})
    precisions += [row for row in precisions_of(turned, seed=1) if row["method"] != "SH"]
    found = entropy._ranks(rows, precisions, (0, 1))
    assert [row["correlation"] for row in found] == [1.0, 0.0]  # SH is not random: its first seed's


def test_the_orders_are_compared_within_radii_and_lsh_takes_no_part():
    table = [
        {"method": m, "bits": L, "seeds": 1, "train": value + L, "queries": value}
        for L in (8, 16)
        for m, value in (("BA", 3.0), ("ITQ", 2.0), ("tPCA", 4.0), ("LSH", 9.0))
    ]
    ranks = [
        {"bits": 8, "K": 5, "retrieved": how, "seeds": 3, "correlation": mean, "correlation_std": spread}
        for how, mean, spread in (("k=5", -0.9, 0.0), ("r=1", 0.9, 0.1), ("r=2", 0.45, 0.2))
    ]
    claims = entropy._claims(table, ranks, [], "paper", "d")
    assert claim(claims, "tPCA has the highest").ours == "holds in all 4 cases"
    assert claim(claims, "BA from AGH is above ITQ").holds is True
    assert claim(claims, "precision within r rank").ours == "holds in 1 of 2 cases, 1 tie"
    assert claim(claims, "more like precision within r").holds is True
    ranks[2] |= {"correlation": -0.1, "correlation_std": 0.0}
    assert claim(entropy._claims(table, ranks, [], "paper", "d"), "precision within r rank").failed == 1


def test_only_methods_whose_precision_falls_must_have_a_stagnant_use_of_codes():
    table = [
        {"method": m, "bits": L, "seeds": 1, "train": value, "queries": value}
        for m, line in {"BA": (12.0, 12.2), "ITQ": (8.0, 12.0)}.items()
        for L, value in zip((16, 24), line, strict=True)
    ]
    precisions = [
        {"method": m, "bits": L, "seeds": 1, "K": 5, "retrieved": how, "precision": value}
        for how, lines in {"r=1": {"BA": (0.5, 0.4), "ITQ": (0.5, 0.6)}, "r=2": {"ITQ": (0.5, 0.1)}}.items()
        for m, line in lines.items()
        for L, value in zip((16, 24), line, strict=True)
    ]
    found = claim(entropy._claims(table, [], precisions, "paper", "d"), "stagnant")
    assert (found.holds, found.cases) == (True, 1)
    precisions[3]["precision"] = 0.4  # now ITQ's falls too, while its L_eff grows
    found = claim(entropy._claims(table, [], precisions, "paper", "d"), "stagnant")
    assert found.ours == "fails in 1 of 2 cases: ITQ, K=5: 0.500 for a further bit"
