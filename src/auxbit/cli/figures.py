"""`experiment wrapper`, `altopt`, `retrieval` … and `all`: the paper's figures, each from one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.experiments import integers
from auxbit.cli.models import Jobs, Json

SOURCES = "cifar10, mnist, siftsmall, sift1m, sift_photos, nuswide, nuswide-lite or digits"
SHOWN = {
    "wrapper": "Reconstruction error and precision of tPCA, ITQ, BFA and BA by bits (figure 3).",
    "altopt": "E_BA by iteration and time, by groups of bits, warm and relaxed starts (figure 4).",
    "samples": "Query images beside what each method retrieves (figure 9).",
    "entropy": "Effective bits of all methods, and rows a code (figure 11).",
    "path": "E_Q, E_BFA and E_BA from BFA to BA as μ grows (figure 2).",
    "solvers": "The relaxed Z step by ADMM against general QP solvers.",
}

Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", "-d", metavar="NAME|PATH", show_default=False,
        help=f"{SOURCES}, by name (in the folder AUXBIT_DATA) or by path; or a file of vectors, of which a "
        "tenth become queries. digits unless given.",
    ),
]  # fmt: skip
Out = Annotated[
    str,
    typer.Option("--out", "-o", help="A folder: figures, tables, settings, and raw results to resume from."),
]
Bits = Annotated[
    str | None,
    typer.Option(metavar="N,…", help="Numbers of bits; as in the paper unless given.", show_default=False),
]
Seeds = Annotated[str, typer.Option(metavar="N,…", help="Seeds of the fits; tables are their means.")]
Rows = Annotated[
    int | None, typer.Option(min=20, help="Rows at most, drawn with a fixed seed.", show_default=False)
]
Queries = Annotated[
    int | None, typer.Option(min=1, help="Queries at most, drawn with a fixed seed.", show_default=False)
]
Quick = Annotated[bool, typer.Option("--quick", help="Few bits and settings, for a first look.")]
Preset = Annotated[
    str | None,
    typer.Option(
        show_default=False,
        help="K, k, r and L of a figure: nuswide, sift, cifar or nuswide-lite; by the data unless given.",
    ),
]
EVERY = "auxbit-experiments"
LONGEST = 160  # characters of what was found; the whole is in the report


def register(group: typer.Typer) -> None:
    """Add the commands to `auxbit experiment`."""
    for name, about in SHOWN.items():
        group.command(name, help=about)(_command(name))
    group.command()(retrieval)
    group.command("all")(everything)


def _command(name: str) -> Callable[..., None]:
    def command(
        data: Data = None, bits: Bits = None, seeds: Seeds = "0", rows: Rows = None, queries: Queries = None,
        quick: Quick = False, out: Out = EVERY, jobs: Jobs = None, json: Json = False,
    ) -> None:  # fmt: skip
        run([name], data, bits, seeds, None, rows, queries, quick, out, jobs, json)

    return command


def retrieval(
    data: Data = None, bits: Bits = None, seeds: Seeds = "0", preset: Preset = None, rows: Rows = None,
    queries: Queries = None, quick: Quick = False, out: Out = EVERY, jobs: Jobs = None, json: Json = False,
) -> None:  # fmt: skip
    """Precision by bits and precision/recall curves of all methods (figures 6 to 8, 10)."""
    run(["retrieval"], data, bits, seeds, preset, rows, queries, quick, out, jobs, json)


def everything(
    data: Data = None, bits: Bits = None, seeds: Seeds = "0", preset: Preset = None, rows: Rows = None,
    queries: Queries = None, quick: Quick = False, out: Out = EVERY, jobs: Jobs = None, json: Json = False,
) -> None:  # fmt: skip
    """Every experiment, and one report of them all.

    Writes report.html, which needs nothing else: every figure and table, and the paper's claims beside what
    was found. --data may be given several times. A run that was stopped goes on from its raw results.
    """
    from auxbit.experiments.campaign import NAMES

    run(list(NAMES), data, bits, seeds, preset, rows, queries, quick, out, jobs, json)


def run(
    names: list[str], data: list[str] | None, bits: str | None, seeds: str, preset: str | None,
    rows: int | None, queries: int | None, quick: bool, out: str, jobs: int | None, json: bool,
) -> None:  # fmt: skip
    """Run experiments on data sets, write their results, and say what was found."""
    from auxbit.core.checks import require

    require("matplotlib", extra="plot", purpose="drawing figures")
    from auxbit.experiments.campaign import Campaign, Settings

    counts = None if bits is None else tuple(integers(bits))
    settings = Settings(bits=counts, seeds=tuple(integers(seeds, "--seeds")), preset=preset, quick=quick)
    campaign = Campaign(Path(out), settings, n_jobs=jobs)
    with output.progress("reading") as reading:
        for source in data or ["digits"]:
            reading.show(what=f"reading {source}")
            campaign.add(source, names, n_train=rows, n_queries=queries)
    total = campaign.n_steps()
    with output.progress("fitting", total) as bar:
        try:
            campaign.run(step=lambda what: bar.show(what=what), advance=lambda: bar.advance())
        except KeyboardInterrupt:
            output.note(f"finished fits are kept in {out}: the same command goes on from there")
            raise
    report = campaign.write_report() if len(names) > 1 or len(data or []) > 1 else None
    if json:
        output.print_json(campaign.document(report))
        return
    _print(campaign, report)


def _print(campaign: Any, report: Path | None) -> None:
    claims = campaign.claims()
    if claims:
        output.say("The paper's claims, and whether they hold here:\n")
    for claim in claims:
        output.say(f"{_word(claim.holds):>4}  {claim.claim} ({claim.data})")
        if claim.holds is not True:
            output.say(f"      {_short(claim.ours)}")
    for each in campaign.left_out():
        output.note(f"left out: {each}")
    output.say(f"{chr(10) if claims else ''}Written: {', '.join(map(str, campaign.folders()))}")
    if report is not None:
        output.say(f"Report: {report}")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(';', 1)[0]}; …"


def _word(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[holds]
