"""`search`, `duplicates` and `evaluate`: using models. Answers of any search are printed here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.models import effective
from auxbit.cli.options import check_k_or_radius, refuse

if TYPE_CHECKING:
    from auxbit.index.queries import Answers

SHOWN_QUERIES, SHOWN_NEIGHBOURS, SHOWN_ROWS = 10, 5, 12


def search(
    model: opt.Model,
    base: Annotated[str, Option(
        "--base", "-b",
        help="The rows to search: vectors, which are then encoded, or packed codes as written by encode."
    )],
    queries: opt.Queries,
    k: opt.Nearest = None,
    radius: opt.WithinRadius = None,
    codes: Annotated[bool, Option(
        "--codes", help="--base contains packed codes, even if they have the shape of vectors."
    )] = False,
    mode: opt.Mode = None,
    shortlist: Annotated[int | None, Option(
        help="With --mode asymmetric: rank only this many, the nearest by Hamming distance."
    )] = None,
    coding: opt.Coding = None,
    mu: opt.Mu = None,
    out: Annotated[str | None, Option(
        "--out", "-o", help="Write distances and ids to this .npz file."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find the nearest codes to each query."""
    check_k_or_radius(k, radius, ("--mode asymmetric", mode == "asymmetric"))
    by_decoder = shortlist is None or mode == "asymmetric"
    refuse(not by_decoder, "--shortlist", "it is for --mode asymmetric only.")
    from auxbit.core.files import check_output
    from auxbit.hashers.registry import load
    from auxbit.index.queries import search_files

    if out is not None:
        check_output(out, overwrite=force, endings=[".npz"])
    with output.Stages() as stages:
        found = search_files(
            load(model), base, queries, 10 if k is None else k, radius=radius, codes=codes, coding=coding,
            mu=mu, mode=mode, shortlist=shortlist, n_jobs=jobs, progress=stages,
        )  # fmt: skip
    if out is not None:
        found.write(out, overwrite=force)
    if json:
        _print_json(found, out)
        return
    in_bits = found.distances.dtype.kind == "i"
    _print_queries(found, "distance" if in_bits else "squared distance", "rows")
    output.say(f"Written to {out}." if out else "--out results.npz writes all of it, --json prints it.")


def print_answers(found: Answers, out: str | None, json: bool) -> None:
    """Answers with metadata. One query: one line per answer. Several: one line each, with the nearest."""
    if json:
        _print_json(found, out)
        return
    about = found.about
    measure = "distance" if about["rerank"] is None and about["mode"] == "hamming" else "squared distance"
    more = 0
    if not about["retrieved"]:
        limits = f" with {about['where']}" if about["where"] else ""
        output.say(f"Nothing is found among {about['items']:,} items{limits}.")
    elif found.n_queries > 1:
        more = _print_queries(found, measure, "items")
    else:
        more = _print_query(found, measure)
    if out is not None:
        output.say(f"Written to {out}.")
    elif more:
        output.say("--out FILE writes all of them, --json prints them.")


def _print_json(found: Answers, out: str | None) -> None:
    """What was asked, with all answers if no file has them."""
    output.print_json(found.about | ({"results": list(found.queries())} if out is None else {"written": out}))


def _print_query(found: Answers, measure: str) -> int:
    """The answers to the only query, one per line; how many are not shown."""
    from auxbit.index.queries import fields_on_a_line

    best = found.first(0, SHOWN_QUERIES)
    _print_columns(
        ["id", measure, "metadata"],
        zip(best["ids"], best["distances"], map(fields_on_a_line, best["metadata"])),
    )
    more = found.n_found(0) - len(best["ids"])
    if more:
        output.say(f"… and {more:,} items more.")
    return more


def _print_queries(found: Answers, measure: str, what: str) -> int:
    """The first queries, one per line, with their nearest answers; how many queries are not shown."""
    from auxbit.index.queries import fields_on_a_line

    lines = []
    for query in range(min(SHOWN_QUERIES, found.n_queries)):
        best = found.first(query, SHOWN_NEIGHBOURS)
        near = [f"{id_} ({output.number(far)})" for id_, far in zip(best["ids"], best["distances"])]
        about = fields_on_a_line(best["metadata"][0]) if near and "metadata" in best else ""
        lines.append((str(query), found.n_found(query), "  ".join(near), about))
    _print_columns(["query", "found", f"nearest {what}, with their {measure}", "the nearest"], lines)
    more = max(0, found.n_queries - SHOWN_QUERIES)
    if more:
        output.say(f"… and {more:,} queries more.")
    return more


def _print_columns(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """A table; its last column is left out if no item has metadata."""
    rows = list(rows)
    n = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    output.print_table(columns[:n], [row[:n] for row in rows])


def duplicates(
    model: opt.Model,
    data: opt.Data,
    radius: Annotated[int, Option(help="The number of bits in which codes of a group may differ.")] = 0,
    out: Annotated[
        str | None, Option("--out", "-o", help="Write group and row numbers to this .csv.")
    ] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Find groups of rows whose codes are equal, or nearly so."""
    from auxbit.core.files import check_output, write_text
    from auxbit.hashers.files import codes_of
    from auxbit.hashers.registry import load
    from auxbit.index import HammingIndex

    if out is not None:
        check_output(out, overwrite=force, endings=[".csv"])
    with output.Stages("encoding") as stages:
        hasher = load(model)
        packed, made = codes_of(hasher, data)
        index = HammingIndex(hasher.code_bits(made.coding), coding=made.coding, mu=made.mu, n_jobs=jobs)
        index.add(packed)
        stages.stage("comparing codes")
        groups = [group.tolist() for group in index.find_duplicates(radius)]
    if out is not None:
        lines = [f"{number},{row}\n" for number, group in enumerate(groups) for row in group]
        write_text(out, "".join(["group,row\n", *lines]), overwrite=force)
    if json:
        found = {"bits": hasher.n_bits, "n_rows": len(index), "radius": radius, "groups": groups}
        output.print_json(found | ({} if out is None else {"written": out}))
        return
    print_groups(groups, "rows", len(index), radius)
    output.say(f"Written to {out}." if out else "--out groups.csv writes all of them, --json prints them.")


def print_groups(groups: list[list[Any]], what: str, n: int, radius: int) -> None:
    """The largest groups of near-duplicates, one per line, and how many there are."""
    groups = sorted(groups, key=len, reverse=True)
    rows = [
        (str(len(group)), "  ".join(map(str, group[:SHOWN_ROWS])) + (" …" if len(group) > SHOWN_ROWS else ""))
        for group in groups[:SHOWN_QUERIES]
    ]
    if rows:
        output.print_table([what, "which"], rows)
    inside = sum(map(len, groups))
    output.say(f"{inside:,} of {n:,} {what} are in {len(groups):,} groups within radius {radius}.")


def evaluate(
    model: opt.Model,
    base: Annotated[str, Option("--base", "-b", help="The vectors to search.")],
    queries: opt.Queries,
    truth: Annotated[str | None, Option(
        show_default="computed",
        help="True neighbours: row numbers of the base, nearest first, .npy or .ivecs."
    )] = None,
    K: opt.TrueNeighbours = 50,
    k: opt.Retrieved = 50,
    radius: opt.Radius = 2,
    curve: Annotated[str | None, Option(
        help="Write precision and recall for each radius to this .csv."
    )] = None,
    plot: Annotated[str | None, Option(help="Draw precision and recall to this .png or .svg.")] = None,
    metric: Annotated[str | None, opt.choice(
        *opt.METRICS, show_default="that of the model", help="The metric of the true neighbours."
    )] = None,
    rerank: Annotated[int, Option(
        metavar="N", min=0, help="Also rank this many candidates again by their vectors; 0: do not."
    )] = 100,
    coding: opt.Coding = None,
    mu: opt.Mu = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Measure precision and recall of a model's codes."""
    _check_written(curve, plot, force)
    from auxbit.data.vectors import read_data
    from auxbit.experiments.measure import evaluate_model
    from auxbit.hashers.files import read_vectors_for
    from auxbit.hashers.registry import load

    with output.Stages("reading") as stages:
        hasher = load(model)
        result = evaluate_model(
            hasher, read_vectors_for(hasher, base), read_vectors_for(hasher, queries), K=K, k=k,
            radius=radius, truth=None if truth is None else read_data(truth), coding=coding, mu=mu,
            metric=metric, rerank=rerank or None, n_jobs=jobs, progress=stages,
        )  # fmt: skip
        if truth is not None:
            result["neighbours"] = f"from {truth}"
        _write_curve(result, curve, plot, force)
    if json:
        output.print_json(result)
        return
    output.say(
        f"{result['method']}, {result['bits']} bits: {result['queries']:,} queries, "
        f"{result['n_base']:,} rows, {K} true neighbours each; neighbours {result['neighbours']}"
    )
    by_hamming = result["ways"][0]["way"]
    ways = [(way["way"], way["precision"], way["recall"], way["recall_at"]) for way in result["ways"]]
    averaged = (f"{by_hamming}, ties averaged", result["precision_average"], result["recall_average"], None)
    within = (f"all within radius {radius}", result["precision_radius"], result["recall_radius"], None)
    output.print_table(
        [f"the {k} nearest", "precision", "recall", f"recall@{min(10, K)}"], [*ways, averaged, within]
    )
    output.print_facts(
        [
            ("mean average precision", result["map"]),
            *((f"recall@{n}", share) for n, share in result["recall_at"].items()),
            *((f"1-recall@{R}", share) for R, share in result["one_recall_at"].items()),
            (output.error_label(result["model_metric"]), result["reconstruction_error"]),
            ("effective bits", effective(result)),
        ]
    )
    output.say(
        "recall@k: the share of the true k among the first k; 1-recall@R: how often the nearest is among the "
        "first R,\nboth by Hamming distance."
    )
    for written in filter(None, (curve, plot)):
        output.say(f"Written: {written}")


def _check_written(curve: str | None, plot: str | None, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    from auxbit.core.files import check_output
    from auxbit.errors import InvalidParameter
    from auxbit.plot import figures

    if curve is not None and plot is not None and Path(curve).resolve() == Path(plot).resolve():
        raise InvalidParameter("plot", plot, "a file other than that of --curve")
    if curve is not None:
        check_output(curve, overwrite=force, endings=[".csv"], name="curve")
    if plot is not None:
        figures.check_output(plot)
        check_output(plot, overwrite=force)


def _write_curve(result: dict[str, Any], curve: str | None, plot: str | None, force: bool) -> None:
    from auxbit.core.files import write_text
    from auxbit.experiments.study import as_csv
    from auxbit.plot import figures

    if curve is not None:
        write_text(curve, as_csv(result["curve"]), overwrite=force)
    if plot is not None:
        title = f"{result['method']}, {result['bits']} bits: precision and recall within radius r"
        figures.write(figures.pr_curves(result["curve"], title=title), plot, overwrite=force)
