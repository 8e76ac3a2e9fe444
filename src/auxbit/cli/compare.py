"""`compare`, `bits` and `demo`: methods and numbers of bits side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import integers, words
from auxbit.hashers.registry import COMPARED_METHODS, METHODS

COMPARED = {
    "method": "method", "bits": "bits", "bytes": "payload_bytes", "resident": "resident_bytes",
    "precision": "precision", "recall@10": "recall_at", "re-ranked": "recall_reranked",
    "train s": "seconds_fit", "µs/row": "encode_us", "ms/query": "search_ms",
}  # fmt: skip
CHOSEN = {
    "bits": "bits", "bytes": "payload_bytes", "coding": "coding", "re-ranked": "rerank", "recall": "recall",
    "L_eff": "effective_bits", "train s": "seconds_fit", "µs/row": "encode_us", "ms/query": "search_ms",
}  # fmt: skip
TIMES = ("seconds_fit", "encode_us", "search_ms")
DEMO = {
    "method": "method",
    "squared error": "reconstruction_error",
    "precision@50": "precision_average",
    "precision@10": "precision_10",
    "effective bits": "effective_bits",
}
STOPPED = "Stopped: this is what is finished."
BITS_FILES = ("bits.csv", "bits.json", "bits.svg", "bits.png", "bits-dark.svg", "bits-dark.png")


def compare(
    context: typer.Context,
    data: opt.Data,
    queries: Annotated[str | None, Option(
        "--queries", "-q", show_default="held-out rows of DATA", help="A file of queries."
    )] = None,
    n_queries: Annotated[int, Option(
        help="How many rows of DATA to hold out as queries, drawn with a fixed seed."
    )] = 500,
    train: Annotated[str | None, Option(
        show_default="the rows that are searched", help="A file of rows to train on."
    )] = None,
    methods: Annotated[str, Option(
        metavar="NAME,…",
        help=f"Any of {', '.join(name + f' ({m.note})' * bool(m.note) for name, m in METHODS.items())}; or "
        "your own as module:Class."
    )] = ",".join(COMPARED_METHODS),
    bits: Annotated[str | None, Option(
        metavar="N,…", show_default="32,64,128,256", help="Numbers of bits."
    )] = None,
    metric: Annotated[str, opt.choice(*opt.METRICS, help="The metric of the true neighbours.")] = "euclidean",
    K: opt.TrueNeighbours = 50,
    k: opt.Retrieved = 50,
    radius: opt.Radius = 2,
    rerank: Annotated[int, Option(
        metavar="N", min=10, help="How many candidates are ranked again by their vectors."
    )] = 40,
    seeds: opt.Seeds = 1,
    limit: Annotated[float, Option(
        metavar="SECONDS", min=0.001, help="Stop a method that takes longer than this at a number of bits."
    )] = 300.0,
    out: Annotated[str | None, Option(
        "--out", "-o", help="A folder for table.csv, results.json, precision.png, and rows.jsonl, from which "
        "an interrupted comparison resumes."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Compare methods and numbers of bits on your data.

    All methods have the same bytes per code. Ctrl-C shows the results so far.
    """
    names, counts = words(methods), None if bits is None else integers(bits)
    from auxbit.experiments.compare import best_first, compare_files, mean_over_seeds

    done: list[dict[str, Any]] = []
    with output.resumable(context, out), output.Stages("reading") as stages:

        def on_row(row: dict[str, Any], fresh: bool) -> None:
            stages.advance()
            done.append(row)
            if fresh and not json and not (row["skipped"] and row["seed"]):
                output.note(_line(row))

        try:
            result = compare_files(
                data, names, counts, queries=queries, n_queries=n_queries, train=train, K=K, k=k,
                radius=radius, seeds=seeds, metric=metric, rerank=rerank, limit=limit, out=out,
                overwrite=force, n_jobs=jobs, on_start=lambda n: stages.stage("comparing", n), on_row=on_row,
            )  # fmt: skip
        except KeyboardInterrupt:
            stages.close()
            if done and not json:
                _print_compared(best_first(mean_over_seeds(done)))
                output.say(STOPPED)
            raise
    if json:
        output.print_json(result)
        return
    rows = result["rows"]
    _print_compared(rows)
    averaged = "One seed" if seeds == 1 else f"Means of {seeds} seeds"
    output.say(
        f"{averaged}; {result['queries']:,} queries in {result['base_rows']:,} rows, metric {metric}.\n"
        f"precision: of the {k} nearest against {K} true neighbours. recall@10: the share of the true 10 "
        f"among the first 10;\nre-ranked: the same if {rerank} are found and ranked again by their vectors. "
        "bytes: of a code; resident: with what search\nkeeps beside it, without vectors. "
        "µs/row: to encode. ms/query: to search, many queries at a time, all threads."
    )
    output.say_left_out(rows)
    if "files" in result:
        output.say(f"Written: {', '.join(result['files'].values())}")


def _print_compared(rows: list[dict[str, Any]]) -> None:
    """The best first among equal bits."""
    output.print_results(COMPARED, [_rounded(row) for row in rows])


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Times to the digits that mean something."""
    return row | {key: round(row[key], 3) for key in TIMES if row.get(key) is not None}


def _line(row: dict[str, Any]) -> str:
    """What is said of a row as it finishes."""
    head = f"{row['method']}, {row['bits']} bits, seed {row['seed']}:"
    if row["skipped"]:
        return f"{head} left out: {row['skipped']}"
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
    recall: Annotated[float | None, Option(
        metavar="SHARE", help="Find the cheapest setting with this recall@10, such as 0.95."
    )] = None,
    rerank: Annotated[int, Option(
        metavar="N", min=0, help="How many candidates are ranked again by their vectors; 0: none, codes "
        "alone."
    )] = 40,
    metric: Annotated[str, opt.choice(*opt.METRICS, help="The metric of the true neighbours.")] = "euclidean",
    bits: Annotated[str | None, Option(
        metavar="N,…", show_default="32, 64 … up to 8 per dimension and 1024", help="Numbers of bits to try."
    )] = None,
    queries: Annotated[int, Option(
        metavar="N", min=1, help="Rows to hold out as queries; at most a fifth of all, or a twentieth of "
        "--rows."
    )] = 500,
    rows: Annotated[int, Option(
        metavar="N", min=20, help="Rows to encode; if there are more, the true neighbours and a sample."
    )] = 40_000,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="The seed of the sample and the fits.")] = 0,
    limit: Annotated[float, Option(
        metavar="SECONDS", min=0.001, help="Stop a fit that takes longer than this, and try no more bits "
        "with it."
    )] = 300.0,
    out: Annotated[str | None, Option(
        "--out", "-o", help=f"A folder for {', '.join(BITS_FILES[:4])}."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Recommend bits, coding and re-ranking for a recall.

    Recall@10 is the share of the true 10 nearest rows among the first 10. It is measured with held-out rows.
    """
    counts = None if bits is None else integers(bits)
    from auxbit.core.files import check_output
    from auxbit.data.vectors import read_data
    from auxbit.experiments.bits import as_result, choose_bits, commands, on_what, verdict
    from auxbit.experiments.study import write_result

    for name in BITS_FILES if out is not None else ():
        check_output(Path(out or "") / name, overwrite=force)
    X = read_data(data, finite=True)
    done: list[dict[str, Any]] = []
    with output.Stages("measuring") as stages:

        def on_row(row: dict[str, Any]) -> None:
            done.append(row)
            stages.say(f"{row['bits']} bits, {row['coding']}: recall {row['recall']:.3f}")

        try:
            choice = choose_bits(
                X, recall=recall, rerank=rerank, metric=metric, bits=counts, n_queries=queries, max_rows=rows,
                seed=seed, limit=limit, n_jobs=jobs, name=Path(data).name, on_row=on_row,
            )  # fmt: skip
        except KeyboardInterrupt:
            stages.close()
            if done and not json:
                output.print_results(CHOSEN, [_rounded(row) for row in done])
                output.say(STOPPED)
            raise
    written = [] if out is None else [str(path) for path in write_result(as_result(choice), Path(out))]
    next_ = commands(choice, data)
    if json:
        found = {"best": choice.best, "verdict": verdict(choice), "table": choice.rows}
        more = {"left_out": choice.left_out, "next": [output.shell(*each) for each in next_]}
        output.print_json(found | more | choice.settings | {"files": written})
        return
    output.print_results(CHOSEN, [_rounded(row) for row in choice.rows])
    output.say(
        f"{on_what(choice.settings)}\nL_eff: the entropy of the codes, at most log2 of those rows. "
        "re-ranked: candidates whose vectors are compared, which are kept\nin 2 bytes per dimension. "
        "ms/query: many queries at a time, all threads."
    )
    output.say_left_out(choice.left_out)
    if recall is not None:
        output.say(f"\n{verdict(choice)}")
    if written:
        output.say(f"Written: {', '.join(written)}")
    for place, each in enumerate(next_):
        output.say_next(*each) if not place else output.say(f"      {output.shell(*each)}")
    if recall is None:
        output.say_next("bits", data, "--recall", "0.95", "--metric", metric)
