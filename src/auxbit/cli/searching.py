"""`search`, `duplicates` and `evaluate`: using models."""

from __future__ import annotations

from typing import Annotated

import typer

from auxbit.cli import output
from auxbit.cli.models import DATA_HELP, Coding, Data, Force, Jobs, Json, Model, Mu

BASE_HELP = "The rows to search: vectors, which are encoded, or packed codes as written by encode."
SHOWN_QUERIES, SHOWN_NEIGHBOURS, SHOWN_ROWS = 10, 5, 12

Nearest = Annotated[
    int | None, typer.Option(help="How many neighbours; 10 unless given.", show_default=False)
]
WithinRadius = Annotated[
    int | None,
    typer.Option(help="All within this Hamming distance instead of the k nearest.", show_default=False),
]

Rerank = Annotated[
    int | None,
    typer.Option(
        metavar="N", show_default=False,
        help="Find so many, say 10 for each neighbour, and rank them by the distances of their vectors, "
        "where these are kept.",
    ),
]  # fmt: skip
AnswersOut = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", metavar="FILE", show_default=False,
        help="Write all answers: distances and ids to an .npz file, or with metadata to a .jsonl file.",
    ),
]  # fmt: skip

Queries = Annotated[
    str, typer.Option("--queries", "-q", help=f"The rows to search for. {DATA_HELP}", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    for command in (search, duplicates, evaluate):
        app.command()(command)


def search(
    model: Model,
    base: Annotated[str, typer.Option("--base", "-b", help=BASE_HELP, show_default=False)],
    queries: Queries,
    k: Nearest = None,
    radius: WithinRadius = None,
    codes: Annotated[
        bool, typer.Option("--codes", help="--base holds packed codes, where its shape leaves that open.")
    ] = False,
    asymmetric: Annotated[
        bool,
        typer.Option(
            "--asymmetric",
            help="Rank by the distance from the query itself to what the decoder makes of a code.",
        ),
    ] = False,
    shortlist: Annotated[
        int | None,
        typer.Option(
            help="With --asymmetric: rank only so many, the nearest by Hamming distance.", show_default=False
        ),
    ] = None,
    coding: Coding = "hash",
    mu: Mu = 0.0,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Write distances and ids to this .npz file.", show_default=False),
    ] = None,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find the nearest codes to each query."""
    if k is not None and radius is not None:
        raise typer.BadParameter("give --k or --radius, not both.", param_hint="--k")
    if radius is not None and asymmetric:
        raise typer.BadParameter("a radius is of Hamming distance: drop --asymmetric.", param_hint="--radius")
    if shortlist is not None and not asymmetric:
        raise typer.BadParameter("it is ranked anew by --asymmetric only.", param_hint="--shortlist")
    from auxbit.cli import answers

    with output.progress("searching") as bar:
        found = answers.search_files(
            model, base, queries, k=10 if k is None and radius is None else k, radius=radius, codes=codes,
            coding=coding, mu=mu, asymmetric=asymmetric, shortlist=shortlist, out=out, force=force,
            n_jobs=jobs, step=lambda what: bar.show(what=what),
        )  # fmt: skip
    if json:
        output.print_json(found.document(whole=out is None))
        return
    rows = [found.line(query, SHOWN_NEIGHBOURS) for query in range(min(SHOWN_QUERIES, found.n_queries))]
    measure = "squared distance" if asymmetric else "distance"
    output.print_table(["query", "found", f"nearest rows, with their {measure}"], rows)
    if found.n_queries > SHOWN_QUERIES:
        output.say(f"… and {found.n_queries - SHOWN_QUERIES:,} queries more.")
    output.say(f"Written to {out}." if out else "--out results.npz writes all of it, --json prints it.")


def duplicates(
    model: Model,
    data: Data,
    radius: Annotated[
        int, typer.Option(help="How many bits the codes of near-duplicates may differ in.")
    ] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Write group and row numbers to this .csv.", show_default=False),
    ] = None,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find groups of rows whose codes are equal, or nearly so."""
    from auxbit.cli import answers

    with output.progress("looking for duplicates") as bar:
        found = answers.duplicate_rows(
            model, data, radius, out, force=force, n_jobs=jobs, step=lambda what: bar.show(what=what)
        )
    if json:
        output.print_json(found)
        return
    groups = sorted(found["groups"], key=len, reverse=True)
    rows = [
        (str(len(group)), "  ".join(map(str, group[:SHOWN_ROWS])) + (" …" if len(group) > SHOWN_ROWS else ""))
        for group in groups[:SHOWN_QUERIES]
    ]
    if rows:
        output.print_table(["rows", "which"], rows)
    n_rows = sum(map(len, groups))
    output.say(
        f"{n_rows:,} of {found['n_rows']:,} rows are in {len(groups):,} groups within radius {radius}."
    )
    output.say(f"Written to {out}." if out else "--out groups.csv writes all of them, --json prints them.")


def evaluate(
    model: Model,
    base: Annotated[str, typer.Option("--base", "-b", help="The vectors to search.", show_default=False)],
    queries: Queries,
    truth: Annotated[
        str | None,
        typer.Option(
            help="True neighbours: row numbers of the base, nearest first, .npy or .ivecs; else computed.",
            show_default=False,
        ),
    ] = None,
    K: Annotated[int, typer.Option("--K", help="How many true neighbours a query has.")] = 50,
    k: Annotated[int, typer.Option("--k", help="How many of the nearest codes are looked at.")] = 50,
    radius: Annotated[int, typer.Option(help="Hamming radius.")] = 2,
    curve: Annotated[
        str | None,
        typer.Option(help="Write precision and recall by radius to this .csv.", show_default=False),
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Draw that curve to this .png or .svg.", show_default=False)
    ] = None,
    coding: Coding = "hash",
    mu: Mu = 0.0,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure precision and recall of a model.

    What is true are the Euclidean neighbours of the vectors; for a model fitted with --normalize, those by
    cosine.
    """
    from auxbit.cli import answers

    with output.progress("evaluating") as bar:
        result = answers.evaluate_files(
            model, base, queries, truth=truth, K=K, k=k, radius=radius, curve=curve, picture=plot,
            coding=coding, mu=mu, force=force, n_jobs=jobs, step=lambda what: bar.show(what=what),
        )  # fmt: skip
    if json:
        output.print_json(result)
        return
    output.say(
        f"{result['method']}, {result['bits']} bits: {result['queries']:,} queries, "
        f"{result['n_base']:,} rows, {K} true neighbours each; neighbours {result['neighbours']}"
    )
    output.print_table(
        ["of what is retrieved", "precision", "recall"],
        [
            (f"the {k} nearest, ties by id", result["precision"], result["recall"]),
            (f"the {k} nearest, ties averaged", result["precision_average"], result["recall_average"]),
            (f"the {k} nearest by the decoder", result["precision_asymmetric"], result["recall_asymmetric"]),
            (f"within radius {radius}", result["precision_radius"], result["recall_radius"]),
        ],
    )
    output.print_facts(
        [
            ("mean average precision", result["map"]),
            *((f"recall@{R}", share) for R, share in result["recall_at"].items()),
            (output.error_label(result), result["reconstruction_error"]),
            (
                "effective bits",
                f"{result['effective_bits']:.2f} of at most {result['effective_bits_bound']:.2f}",
            ),
        ]
    )
    for written in filter(None, (curve, plot)):
        output.say(f"Written: {written}")
