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
        help=f"Of {', '.join(name + f' ({m.note})' * bool(m.note) for name, m in METHODS.items())}; or your "
        "own as module:Class."
    )] = ",".join(COMPARED_METHODS),
    bits: Annotated[str | None, Option(
        metavar="N,…", show_default="32,64,128,256", help="Numbers of bits."
    )] = None,
    metric: Annotated[str, opt.choice(*opt.METRICS, help="By which neighbours are true.")] = "euclidean",
    K: opt.TrueNeighbours = 50,
    k: opt.Retrieved = 50,
    radius: opt.Radius = 2,
    rerank: Annotated[int, Option(
        metavar="N", min=10, help="Candidates that the column of re-ranking ranks again by their vectors."
    )] = 40,
    seeds: opt.Seeds = 1,
    limit: Annotated[float, Option(
        metavar="SECONDS", min=0.001, help="Stop a method that takes longer at a number of bits."
    )] = 120.0,
    out: Annotated[str | None, Option(
        "--out", "-o", help="A folder for table.csv, results.json, precision.png, and rows.jsonl, from which "
        "a comparison that was stopped resumes."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Compare methods and numbers of bits on your data.

    All have the same bytes per code. Ctrl-C shows what is finished.
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
                output.say("Stopped: this is what is finished.")
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
    times = ("seconds_fit", "encode_us", "search_ms")
    rounded = [{key: round(row[key], 3) for key in times if row.get(key) is not None} for row in rows]
    output.print_results(COMPARED, [row | short for row, short in zip(rows, rounded)])


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
