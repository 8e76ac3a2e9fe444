"""`experiment …`: the paper's experiments, one command each, as one file of `experiments/` each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import integers

# ---- The figures of the paper

SOURCES = "cifar10, mnist, siftsmall, sift1m, sift_photos, nuswide, nuswide-lite or digits"
ALL = """Every experiment, and one report of them all.

It writes report.html with every figure and table, and the paper's claims beside the results. --data can be
repeated. An interrupted run resumes from its raw results.
"""
SHOWN = {
    "wrapper": "Error and precision of tPCA, ITQ, BFA and BA (figure 3).",
    "altopt": "E_BA over time, by groups of bits and starts (figure 4).",
    "samples": "Query images beside what each method retrieves (figure 9).",
    "entropy": "Effective bits of all methods, and rows per code (figure 11).",
    "path": "E_Q, E_BFA and E_BA from BFA to BA as μ grows (figure 2).",
    "solvers": "The relaxed Z step by ADMM against general QP solvers.",
    "retrieval": "Precision and recall of all methods (figures 6 to 8, 10).",
    "all": ALL,
}
ONE_SEED = ("seeds", "caption")
UNUSED = {  # options that a command has no use for
    "wrapper": ("caption",), "altopt": ONE_SEED, "samples": ONE_SEED, "path": ONE_SEED,
    "solvers": ("preset", *ONE_SEED),
}  # fmt: skip

Data = Annotated[list[str] | None, Option(
    "--data", "-d", metavar="NAME|PATH", show_default="digits", help=f"{SOURCES}, by name (in the folder "
    "AUXBIT_DATA) or by path; or a file of vectors, a tenth of which become queries."
)]  # fmt: skip
Out = Annotated[str, Option(
    "--out", "-o", help="A folder for figures, tables, settings, and raw results to resume from."
)]  # fmt: skip
Preset = Annotated[str, Option(
    metavar="paper|default",
    help="How BA and BFA are fitted. paper: as in the paper, BA starts from AGH; default: BA starts from ITQ."
)]  # fmt: skip
OptionalBits = Annotated[
    str | None, Option("--bits", metavar="N,…", help="Numbers of bits.", show_default="as in the paper")
]
FitSeeds = Annotated[int | None, Option(
    min=1, show_default="3, or 1 with --quick", help="The number of seeds of figures 3, 6 to 8, 10 and 11. "
    "Tables have means and standard deviations; differences within two standard errors are ties."
)]  # fmt: skip
Rows = Annotated[int | None, Option(min=20, help="The maximal number of rows, drawn with a fixed seed.")]
Queries = Annotated[int | None, Option(min=1, help="The maximal number of queries, drawn with a fixed seed.")]
Quick = Annotated[bool, Option("--quick", help="Few bits, settings and seeds, for a first look.")]
Caption = Annotated[str | None, Option(
    show_default="by the data", help="Use K, k, r and L of this figure: nuswide, sift, cifar or nuswide-lite."
)]  # fmt: skip
EVERY, SEEDS = "auxbit-experiments", 3
LONGEST = 160  # characters of what was found; the whole is in the report


def _figure(name: str, about: str) -> Callable[..., None]:
    """The command of an experiment, with the options that it uses."""

    def command(
        context: typer.Context, data: Data = None, preset: Preset = "paper", bits: OptionalBits = None,
        seeds: FitSeeds = None, caption: Caption = None, rows: Rows = None, queries: Queries = None,
        quick: Quick = False, out: Out = EVERY, jobs: opt.Jobs = None, json: opt.Json = False,
    ) -> None:  # fmt: skip
        chosen = {
            "preset": preset, "bits": None if bits is None else tuple(integers(bits)), "quick": quick,
            "seeds": tuple(range(seeds or (1 if quick else SEEDS))), "caption": caption,
        }  # fmt: skip
        _run(context, name, data or ["digits"], chosen, rows, queries, out, jobs, json)

    signature = inspect.signature(command, eval_str=True)  # for Typer, which takes one that is given as it is
    used = [each for each in signature.parameters.values() if each.name not in UNUSED.get(name, ())]
    vars(command)["__signature__"] = signature.replace(parameters=used)
    command.__name__, command.__doc__ = name, about
    return command


def _run(
    context: typer.Context, name: str, data: list[str], chosen: dict[str, Any], rows: int | None,
    queries: int | None, out: str, jobs: int | None, json: bool,
) -> None:  # fmt: skip
    """Run an experiment, or all, on data sets, write their results, and say what was found."""
    from auxbit.core.checks import require

    require("matplotlib", extra="plot", purpose="drawing figures")
    from auxbit.experiments.campaign import NAMES, Campaign, Settings

    names = list(NAMES) if name == "all" else [name]
    campaign = Campaign(Path(out), Settings(**chosen), n_jobs=jobs)
    with output.resumable(context, out), output.Stages() as stages:
        for source in data:
            stages.stage(f"reading {source}")
            campaign.add(source, names, n_train=rows, n_queries=queries)
        stages.stage("fitting", campaign.n_steps())
        campaign.run(step=stages.say, advance=stages.advance)
    report = campaign.write_report() if len(names) > 1 or len(data) > 1 else None
    if json:
        output.print_json(campaign.document(report))
        return
    _print(campaign, report)


def _print(campaign: Any, report: Path | None) -> None:
    claims = campaign.claims()
    if claims:
        output.say(f"The paper's claims, and whether they hold here (preset {campaign.settings.preset}):\n")
    for claim in claims:
        word = {True: "yes", False: "no", None: "-"}[claim.holds]
        output.say(f"{word:>4}  {claim.claim} ({claim.data})")
        if claim.holds is not True:
            output.say(f"      {_short(claim.ours)}")
    for each in campaign.left_out():
        output.note(f"left out: {each}")
    output.say(f"{chr(10) if claims else ''}Written: {', '.join(map(str, campaign.folders()))}")
    if report is not None:
        output.say(f"Report: {report}")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(';', 1)[0]}; …"


# ---- Speed-up by processors

COLUMNS = {
    "bits": "bits", "processors": "processors", "seconds": "seconds", "h": "seconds_h", "f": "seconds_f",
    "Z": "seconds_z", "rest": "seconds_rest", "speed-up": "speedup", "of h": "speedup_h", "of f": "speedup_f",
    "of Z": "speedup_z",
}  # fmt: skip
MADE = "scikit-learn's digits over and over, with noise of its own in every pixel (no DATA was given)"
NEARLY = 0.9  # of perfect speed-up: what falls short of that is explained
SPREAD = 0.25  # among equal fits: more is not the machine's own


def parallel(
    context: typer.Context,
    data: Annotated[str | None, Argument(
        metavar="DATA", show_default="50,000 rows: the digits, repeated with noise", help=opt.DATA_HELP
    )] = None,
    preset: Preset = "paper",
    bits: opt.Bits = "16,32",
    rows: Annotated[int | None, Option(
        min=2, help="The maximal number of rows, drawn with a fixed seed; without DATA, how many to make."
    )] = None,
    repeats: Annotated[int, Option(min=1, help="How often each fit is repeated; the fastest counts.")] = 3,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="The seed of all fits.")] = 0,
    out: Annotated[str | None, Option(
        "--out", "-o", help="A folder for table.csv, results.json, speedup.png and .svg, and rows.jsonl, "
        "from which an interrupted experiment resumes."
    )] = None,
    jobs: Annotated[int | None, Option(help="The maximal number of cores.", show_default="all cores")] = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Speed-up of training by processors.

    It times the fit of a binary autoencoder, and its steps, on 1, 2, … processors, as in figure 5.
    """
    counts = integers(bits)
    from auxbit.core.files import check_output
    from auxbit.data.vectors import read_data
    from auxbit.experiments import parallel as timing

    fits = timing.planned(counts, repeats=repeats, n_jobs=jobs)
    if out is not None:
        check_output(Path(out) / timing.FILES["table"], overwrite=force)
    with output.resumable(context, out), output.Stages("measuring", len(fits)) as stages:

        def on_fit(row: dict[str, Any], fresh: bool) -> None:
            stages.advance()
            if fresh and not json:
                output.note(_line(row))

        X = timing.noisy_digits(rows) if data is None else _drawn(read_data(data, finite=True), rows)
        result = timing.run_parallel(
            X,
            fits,
            preset=preset,
            seed=seed,
            source=data or MADE,
            out_dir=out,
            overwrite=force,
            on_fit=on_fit,
        )
    if json:
        output.print_json(result)
        return
    output.say(f"{result['train_rows']:,} rows of {result['columns']} numbers: {data or MADE}")
    output.print_results(COLUMNS, result["rows"])
    _explain(result, jobs)
    if out is not None:
        if result["kept_fits"]:
            output.say(
                f"{result['kept_fits']} of the {len(fits)} fits were timed before and kept in "
                f"{result['files']['rows']}; to time them again, remove it."
            )
        output.say(f"Written: {', '.join(result['files'].values())}")


def _drawn(X: Any, most: int | None) -> Any:
    """At most that many of the rows, drawn with a fixed seed."""
    import numpy as np

    if most is None or most >= len(X):
        return X
    return X[np.sort(np.random.RandomState(0).permutation(len(X))[:most])]


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


COMMANDS: tuple[Callable[..., None], ...] = (
    parallel, *(_figure(name, about) for name, about in SHOWN.items())
)  # fmt: skip
