"""`compare` and `demo`: methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.models import Data, Force, Jobs, Json
from auxbit.hashers.registry import DEFAULT_METHODS, METHODS

COLUMNS = {
    "method": "method",
    "bits": "bits",
    "seconds": "seconds_fit",
    "error": "reconstruction_error",
    "precision": "precision",
    "ties avg.": "precision_average",
    "radius": "precision_radius",
    "mAP": "map",
    "L_eff": "effective_bits",
}


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    for command in (compare, demo):
        app.command()(command)


def compare(
    data: Data,
    queries: Annotated[
        str | None,
        typer.Option("--queries", "-q", help="A file of queries; else rows of DATA.", show_default=False),
    ] = None,
    n_queries: Annotated[
        int, typer.Option(help="How many rows of DATA to set aside, drawn with a fixed seed.")
    ] = 500,
    train: Annotated[
        str | None,
        typer.Option(help="Other rows to train on; else those that are searched.", show_default=False),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help=f"Of {', '.join(name + f' ({m.note})' * bool(m.note) for name, m in METHODS.items())}.",
        ),
    ] = ",".join(DEFAULT_METHODS),
    bits: Annotated[str, typer.Option(metavar="N,…", help="Numbers of bits.")] = "8,16,24,32",
    K: Annotated[int, typer.Option("--K", help="How many true neighbours a query has.")] = 50,
    k: Annotated[int, typer.Option("--k", help="How many of the nearest codes are looked at.")] = 50,
    radius: Annotated[int, typer.Option(help="Hamming radius.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 3,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", show_default=False,
            help="A folder for table.csv, results.json, precision.png, and rows.jsonl: a comparison that was "
            "stopped goes on from there.",
        ),
    ] = None,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Compare methods and numbers of bits on your data."""
    counts = integers(bits)
    from auxbit.cli import comparing

    plan = comparing.Plan(
        data=data, queries=queries, n_queries=n_queries, train=train, methods=_words(methods), bits=counts,
        K=K, k=k, radius=radius, seeds=seeds, out=out, force=force, n_jobs=jobs,
    )  # fmt: skip
    with output.progress("comparing", plan.n_cells) as bar:

        def on_row(row: dict[str, Any], fresh: bool) -> None:
            bar.advance()
            if fresh and not json and not (row["skipped"] and row["seed"]):
                output.note(_line(row))

        try:
            result = comparing.run(plan, on_row)
        except KeyboardInterrupt:
            if out is not None:
                output.note(f"finished rows are kept in {out}: the same command goes on from there")
            raise
    if json:
        output.print_json(result)
        return
    rows = result["rows"]
    output.print_table(
        list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in rows if not row["skipped"]]
    )
    averaged = "One seed" if seeds == 1 else f"Means of {seeds} seeds"
    output.say(
        f"{averaged}. Precision of the {k} nearest against {K} true neighbours, ties by id and\n"
        f"averaged, and of what lies within radius {radius}. L_eff is at most the bits, and log2 of the\n"
        f"{result['base_rows']:,} rows searched."
    )
    if any(row["search"] == "asymmetric" for row in rows):
        output.say(
            "PQ and OPQ search asymmetrically: queries keep their floats, so theirs are not Hamming codes."
        )
    for row in rows:
        if row["skipped"]:
            output.say(f"Left out: {row['method']} at {row['bits']} bits: {row['skipped']}")
    if out is not None:
        output.say(f"Written: {', '.join(result['files'].values())}")


def demo(
    out: Annotated[str, typer.Option("--out", "-o", help="The folder to write.")] = "auxbit-demo",
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train four methods on handwritten digits.

    Prints a table, and writes a model, codes and pictures.
    """
    with output.progress("importing") as bar:
        from auxbit.experiments.demo import run_demo

        result = run_demo(out, overwrite=force, n_jobs=jobs, progress=lambda what: bar.show(what=what))
    if json:
        output.print_json(result)
        return
    output.say(
        f"Handwritten digits: {result['train_and_base_rows']:,} to train on and search, "
        f"{result['queries']} queries, {result['bits']} bits"
    )
    columns = ["method", "squared error", "precision of 50", "precision of 10", "effective bits"]
    keys = ("method", "reconstruction_error", "precision_average", "precision_10", "effective_bits")
    output.print_table(columns, [[row[key] for key in keys] for row in result["rows"]])
    output.say(f"Means of {len(result['seeds'])} seeds, {result['seconds']:.0f} s. Written:")
    for path in result["files"].values():
        output.say(f"  {path}")
    output.say_next("info", result["files"]["model"])


def _line(row: dict[str, Any]) -> str:
    head = f"{row['method']:<5}{row['bits']:>4} bits  seed {row['seed']}"
    if row["skipped"]:
        return f"{head}  left out: {row['skipped']}"
    return f"{head}  precision {row['precision']:.3f}  fitted in {output.number(row['seconds_fit'])} s"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def integers(text: str, option: str = "--bits") -> Sequence[int]:
    """A list of integers, as --bits takes it."""
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of integers such as 8,16,32.", param_hint=option
        ) from None
