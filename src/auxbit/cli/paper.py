"""`experiment …`: the paper's experiments, a command each, as one file of `experiments/` each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from auxbit.cli import figures, output
from auxbit.cli.experiments import integers
from auxbit.cli.models import DATA_HELP, Force, Json

COLUMNS = {
    "bits": "bits",
    "processors": "processors",
    "seconds": "seconds",
    "h": "seconds_h",
    "f": "seconds_f",
    "Z": "seconds_z",
    "rest": "seconds_rest",
    "speed-up": "speedup",
    "of h": "speedup_h",
    "of f": "speedup_f",
    "of Z": "speedup_z",
}

MADE = "scikit-learn's digits over and over, with noise of its own in every pixel (no DATA was given)"
NEARLY = 0.9  # of perfect speed-up: what falls short of that is explained
SPREAD = 0.25  # among equal fits: more is not the machine's own

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group to the app."""
    figures.register(group)
    app.add_typer(group, name="experiment")


@group.callback()
def experiment() -> None:
    """Run an experiment of the paper on your machine."""


@group.command()
def parallel(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", show_default=False,
            help=f"{DATA_HELP} Unless given: 50,000 rows made of the digits, repeated with noise.",
        ),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The same as DATA.", show_default=False),
    ] = None,
    bits: Annotated[str, typer.Option(metavar="N,…", help="Numbers of bits.")] = "16,32",
    rows: Annotated[
        int | None,
        typer.Option(
            min=2, show_default=False,
            help="Rows at most, drawn with a fixed seed; without DATA, how many are made.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Fits of each, of which the best counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The seed of all fits.")] = 0,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", show_default=False,
            help="A folder for table.csv, results.json, speedup.png and .svg, and rows.jsonl: an experiment "
            "that was stopped goes on from there.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processors at most; all cores unless given.", show_default=False)
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Speed-up of training by processors.

    Times the fit of a binary autoencoder, and its steps, on 1, 2, … processors, as the paper's figure does.
    """
    counts = integers(bits)
    if data is not None and named is not None:
        raise typer.BadParameter("DATA was given twice.", param_hint="--data")
    data = data if data is not None else named
    from auxbit.cli import tasks
    from auxbit.experiments import parallel as timing

    fits = timing.planned(counts, repeats=repeats, n_jobs=jobs)
    if out is not None:
        tasks.check_output(Path(out) / timing.FILES["table"], force=force)
    with output.progress("measuring", len(fits)) as bar:

        def on_fit(row: dict[str, Any], fresh: bool) -> None:
            bar.advance()
            if fresh and not json:
                output.note(_line(row))

        try:
            X, source = _read(data, rows) if data is not None else (timing.noisy_digits(rows), MADE)
            result = timing.run_parallel(
                X, fits, seed=seed, source=source, out_dir=out, overwrite=force, on_fit=on_fit
            )
        except KeyboardInterrupt:
            if out is not None:
                output.note(f"finished fits are kept in {out}: the same command goes on from there")
            raise
    if json:
        output.print_json(result)
        return
    output.say(f"{result['train_rows']:,} rows of {result['columns']} numbers: {source}")
    output.print_table(list(COLUMNS), [[row[key] for key in COLUMNS.values()] for row in result["rows"]])
    _explain(result, jobs)
    if out is not None:
        if result["kept_fits"]:
            output.say(
                f"{result['kept_fits']} of the {len(fits)} fits were timed before and kept in "
                f"{result['files']['rows']}; to time them again, remove it."
            )
        output.say(f"Written: {', '.join(result['files'].values())}")


def _read(name: str, most: int | None) -> tuple[Any, str]:
    """The rows of a file, at most so many, drawn with a fixed seed."""
    import numpy as np

    from auxbit.cli import tasks

    X = tasks.read(name)
    tasks.check_all_finite(X, name)
    if most is not None and most < len(X):
        X = X[np.sort(np.random.RandomState(0).permutation(len(X))[:most])]
    return X, name


def _explain(result: dict[str, Any], jobs: int | None) -> None:
    most, repeats = result["processors"], result["repeats"]
    timed = "Seconds of one fit" if repeats == 1 else f"Best seconds of {repeats} fits"
    output.say(
        f"{timed} and of its h, f and Z steps; the rest is scaling, the first codes, the last h and f."
    )
    if jobs is not None and jobs > most:
        output.say(f"--jobs {jobs} is more than the cores that this process may use: {most}.")
    if most == 1:
        output.say("One processor: there is nothing to compare, and no speed-up to draw.")
        return
    output.say(f"The codes are the same to the last bit on 1 to {most} processors.")
    if result["spread"] > SPREAD:
        output.say(
            f"Equal fits differ by up to {result['spread']:.0%}: other programs may be busy. "
            "Measure again without them, or raise --repeats."
        )
    if result["most_speedup"] < NEARLY * most:
        output.say(
            f"Processors share blocks of rows: with {result['train_rows']:,} rows, {most} of them make the "
            f"steps at most {result['most_speedup']:.2f} times as fast. More rows are shared better."
        )


def _line(row: dict[str, Any]) -> str:
    what = f"{row['bits']:>4} bits  {row['processors']:>3} processor{'s' if row['processors'] > 1 else ' '}"
    return f"{what}  fitted in {output.number(row['seconds'])} s"
