"""Put what `auxbit experiment all` wrote into docs/: `python benchmarks/experiments.py FOLDER`.

Its tables and settings go to docs/results/experiments, two figures to docs/images, and the claims, counted,
to the table of docs/experiments.md.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from pathlib import Path

from record import RESULTS, fill_in, table

LARGE = "samples-rows.csv"  # not kept: the figure shows the same
FIGURES = {
    "cifar10/retrieval-K1000.png": "experiment-retrieval.png",
    "cifar10/altopt.png": "experiment-altopt.png",
}
WORDS = {"True": "yes", "False": "**no**", "": "not measured"}


def publish(folder: Path) -> None:
    """Copy tables and figures, and fill in the claims."""
    kept = RESULTS / "experiments"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    shutil.copy(folder / "claims.csv", kept)
    for path in sorted(folder.glob("*/*")):
        if path.suffix in (".csv", ".json") and path.parent.name != "raw" and path.name != LARGE:
            (kept / path.parent.name).mkdir(exist_ok=True)
            shutil.copy(path, kept / path.parent.name)
    for drawn, name in FIGURES.items():
        if (folder / drawn).is_file():
            shutil.copy(folder / drawn, RESULTS.parent / "images" / name)
    with (folder / "claims.csv").open() as file:
        fill_in("experiments-claims", claims_table(list(csv.DictReader(file))))


def claims_table(claims: list[dict[str, str]]) -> str:
    """A line for each claim, a column for each data set."""
    data = list(dict.fromkeys(claim["data"] for claim in claims))
    found = {(claim["claim"], claim["data"]): claim for claim in claims}
    lines = []
    for text in dict.fromkeys(claim["claim"] for claim in claims):
        cells = [found.get((text, name)) for name in data]
        lines.append([text, *("" if each is None else said(each) for each in cells)])
    return table(["claim", *data], lines)


def said(claim: dict[str, str]) -> str:
    """Whether it holds, in how many cases, and how many are ties; or, without cases, what was found."""
    cases, failed, ties = (int(claim[name]) for name in ("cases", "failed", "ties"))
    word = WORDS[claim["holds"]]
    if not cases:
        return word if claim["holds"] == "" else f"{word}: {re.split(',| on | than ', claim['ours'])[0]}"
    tied = f", {ties} tie{'s' * (ties > 1)}" if ties else ""
    return f"{word}, {cases - failed - ties} of {cases}{tied}"


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "claims.csv").is_file():
        raise SystemExit(
            "usage: python benchmarks/experiments.py FOLDER, one that `auxbit experiment all` wrote to"
        )
    publish(Path(sys.argv[1]))
