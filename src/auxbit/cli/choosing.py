"""`bits`: how many bits to use for a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.experiments import integers
from auxbit.cli.models import Data, Force, Jobs, Json

COLUMNS = {
    "bits": "bits",
    "L_eff": "effective_bits",
    "at most": "bound",
    "growth a bit": "growth",
    "precision": "precision",
    "recall": "recall",
}
FILES = ("bits.csv", "bits.json", "bits.svg", "bits.png", "bits-dark.svg", "bits-dark.png")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(bits)


def bits(
    data: Data,
    bits: Annotated[str, typer.Option(metavar="N,…", help="Numbers of bits to try.")] = "8,16,24,32,48,64",
    method: Annotated[str, typer.Option(metavar="itq|ba", help="How codes are learned.")] = "itq",
    queries: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows held out as queries; at most a fifth of the sample.")
    ] = 500,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=20,
            help="Rows at most to train on and to search, drawn with the seed; L_eff is of all rows.",
        ),
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The seed of sample and fits.")] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", show_default=False, help=f"A folder for {', '.join(FILES[:4])}."),
    ] = None,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Recommend a number of bits.

    By the effective bits of the codes (their entropy, at most log2 of the rows) and by precision.
    """
    counts = integers(bits)
    from auxbit.cli import tasks
    from auxbit.experiments import bits as choosing

    if out is not None:
        for name in FILES:
            tasks.check_output(Path(out) / name, force=force)
    X = tasks.read(data)
    tasks.check_all_finite(X, data)
    with output.progress("measuring", len(set(counts))) as bar:
        advice = choosing.choose_bits(
            X, bits=counts, method=method, n_queries=queries, max_rows=rows, seed=seed, n_jobs=jobs,
            name=Path(data).name, on_bits=lambda row: bar.advance(),
        )  # fmt: skip
    written = _write(choosing.as_result(advice), Path(out)) if out is not None else []
    if json:
        output.print_json(
            {
                "recommended": advice.bits,
                "settled": advice.settled,
                "reason": advice.reason,
                "rule": choosing.RULE,
            }
            | {"left_out": advice.left_out, **advice.settings, "table": advice.rows, "files": written}
        )
        return
    made = advice.settings
    output.print_table(list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in advice.rows])
    _explain(made)
    for L, why in advice.left_out.items():
        output.say(f"Left out: {L} bits: {why}")
    output.say(f"\n{'Recommended' if advice.settled else 'At least'}: {advice.bits} bits.")
    output.say(advice.reason)
    output.say(choosing.RULE)
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


def _write(result: Any, folder: Path) -> list[str]:
    from auxbit.experiments.study import write_result

    return [str(path) for path in write_result(result, folder)]
