"""`compare`, `bits` and `demo`: methods and numbers of bits side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import integers, words
from auxbit.hashers.registry import DEFAULT_METHODS, METHODS

COMPARED = {
    "method": "method", "bits": "bits", "seconds": "seconds_fit", "error": "reconstruction_error",
    "precision": "precision", "ties avg.": "precision_average", "radius": "precision_radius", "mAP": "map",
    "L_eff": "effective_bits",
}  # fmt: skip
CHOSEN = {
    "bits": "bits", "L_eff": "effective_bits", "at most": "bound", "growth per bit": "growth",
    "precision": "precision", "recall": "recall",
}  # fmt: skip
DEMO = {
    "method": "method",
    "squared error": "reconstruction_error",
    "precision@50": "precision_average",
    "precision@10": "precision_10",
    "effective bits": "effective_bits",
}
BITS_FILES = ("bits.csv", "bits.json", "bits.svg", "bits.png", "bits-dark.svg", "bits-dark.png")


def compare(
    context: typer.Context,
    data: opt.Data,
    queries: Annotated[str | None, Option(
        "--queries", "-q", show_default="rows of DATA", help="A file of queries."
    )] = None,
    n_queries: Annotated[int, Option(
        help="How many rows of DATA to set aside, drawn with a fixed seed."
    )] = 500,
    train: Annotated[str | None, Option(
        show_default="those that are searched", help="Other rows to train on."
    )] = None,
    methods: Annotated[str, Option(
        metavar="NAME,…",
        help=f"Of {', '.join(name + f' ({m.note})' * bool(m.note) for name, m in METHODS.items())}."
    )] = ",".join(DEFAULT_METHODS),
    bits: opt.Bits = "8,16,24,32",
    K: opt.TrueNeighbours = 50,
    k: opt.Retrieved = 50,
    radius: opt.Radius = 2,
    seeds: opt.Seeds = 3,
    out: Annotated[str | None, Option(
        "--out", "-o", help="A folder for table.csv, results.json, precision.png, and rows.jsonl, from which "
        "a comparison that was stopped resumes."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Compare methods and numbers of bits on your data."""
    names, counts = words(methods), integers(bits)
    from auxbit.experiments.compare import cells, compare_files

    n_rows = len(cells(names, counts, range(seeds)))
    with output.resumable(context, out), output.Stages("comparing", n_rows) as stages:

        def on_row(row: dict[str, Any], fresh: bool) -> None:
            stages.advance()
            if fresh and not json and not (row["skipped"] and row["seed"]):
                output.note(_line(row))

        result = compare_files(
            data, names, counts, queries=queries, n_queries=n_queries, train=train, K=K, k=k, radius=radius,
            seeds=seeds, out=out, overwrite=force, n_jobs=jobs, on_row=on_row,
        )  # fmt: skip
    if json:
        output.print_json(result)
        return
    rows = result["rows"]
    output.print_results(COMPARED, rows)
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
    output.say_left_out(rows)
    if out is not None:
        output.say(f"Written: {', '.join(result['files'].values())}")


def _line(row: dict[str, Any]) -> str:
    head = f"{row['method']:<5}{row['bits']:>4} bits  seed {row['seed']}"
    if row["skipped"]:
        return f"{head}  left out: {row['skipped']}"
    return f"{head}  precision {row['precision']:.3f}  fitted in {output.number(row['seconds_fit'])} s"


def demo(
    out: Annotated[str, Option("--out", "-o", help="The folder to write.")] = "auxbit-demo",
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Train four methods on handwritten digits.

    Prints a table, and writes a model, codes and pictures.
    """
    with output.Stages("importing") as stages:
        from auxbit.experiments.demo import run_demo

        result = run_demo(out, overwrite=force, n_jobs=jobs, progress=stages.stage)
    if json:
        output.print_json(result)
        return
    output.say(
        f"Handwritten digits: {result['train_and_base_rows']:,} to train on and search, "
        f"{result['queries']} queries, {result['bits']} bits"
    )
    output.print_results(DEMO, result["rows"])
    output.say(f"Means of {len(result['seeds'])} seeds, {result['seconds']:.0f} s. Written:")
    for path in result["files"].values():
        output.say(f"  {path}")
    output.say_next("info", result["files"]["model"])


def bits(
    data: opt.Data,
    bits: Annotated[str, Option(metavar="N,…", help="Numbers of bits to try.")] = "8,16,24,32,48,64",
    method: Annotated[str, Option(metavar="itq|ba", help="How codes are learned.")] = "itq",
    queries: Annotated[int, Option(
        metavar="N", min=1, help="Rows held out as queries; at most a fifth of the sample."
    )] = 500,
    rows: Annotated[int, Option(
        metavar="N", min=20,
        help="Rows at most to train on and to search, drawn with the seed; L_eff is of all rows."
    )] = 20_000,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="The seed of sample and fits.")] = 0,
    out: Annotated[str | None, Option(
        "--out", "-o", help=f"A folder for {', '.join(BITS_FILES[:4])}."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Recommend a number of bits.

    By the effective bits of the codes (their entropy, at most log2 of the rows) and by precision.
    """
    counts = integers(bits)
    from auxbit.core.files import check_output
    from auxbit.data.vectors import read_data
    from auxbit.experiments.bits import RULE, as_result, choose_bits
    from auxbit.experiments.study import write_result

    for name in BITS_FILES if out is not None else ():
        check_output(Path(out or "") / name, overwrite=force)
    X = read_data(data, finite=True)
    with output.Stages("measuring", len(set(counts))) as stages:
        advice = choose_bits(
            X, bits=counts, method=method, n_queries=queries, max_rows=rows, seed=seed, n_jobs=jobs,
            name=Path(data).name, on_bits=lambda row: stages.advance(),
        )  # fmt: skip
    written = [] if out is None else [str(path) for path in write_result(as_result(advice), Path(out))]
    if json:
        found = {"recommended": advice.bits, "settled": advice.settled, "reason": advice.reason, "rule": RULE}
        more = {"left_out": advice.left_out, **advice.settings, "table": advice.rows, "files": written}
        output.print_json(found | more)
        return
    output.print_results(CHOSEN, advice.rows)
    _explain(advice.settings)
    for L, why in advice.left_out.items():
        output.say(f"Left out: {L} bits: {why}")
    output.say(f"\n{'Recommended' if advice.settled else 'At least'}: {advice.bits} bits.")
    output.say(advice.reason)
    output.say(RULE)
    if written:
        output.say(f"Written: {', '.join(written)}")
    output.say_next("fit", data, "--method", method, "--bits", str(advice.bits), "--out", "model.safetensors")


def _explain(made: dict[str, Any]) -> None:
    sampled = made["sample_rows"] + made["queries"] < made["rows"]
    searched = f"a sample of {made['sample_rows']:,}" if sampled else f"{made['sample_rows']:,} rows"
    output.say(
        f"{made['method']}; L_eff of all {made['rows']:,} rows. Precision of the {made['K']} nearest codes, "
        f"and recall of the {made['wanted']} nearest\nrows among the {made['shortlist']} nearest codes, by "
        f"{made['queries']:,} held-out queries in {searched}, ties averaged."
    )
    if sampled:
        output.say("In all rows, precision is lower, and longer codes gain more: raise --rows to see.")
