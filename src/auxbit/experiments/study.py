"""What an experiment is run on and what it gives: a problem, settings, and tables with their figures."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit import files
from auxbit.experiments.kept import Row, array_checksum, as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

LIBRARIES = ("auxbit", "numpy", "scipy", "numba", "scikit-learn", "faiss-cpu")
FORMATS = (".svg", ".png")


@dataclass(frozen=True, eq=False)  # arrays have no truth value to compare by
class Problem:
    """A data set as experiments use it: rows to train on and to search, and queries that are not among them.

    train : (n, D), queries : (q, D); images and labels of both where the rows are pictures.
    """

    name: str
    train: Array
    queries: Array
    train_images: Array | None = None
    query_images: Array | None = None
    train_labels: Array | None = None
    query_labels: Array | None = None
    about: str = ""

    def key(self) -> str:
        """A checksum of the rows."""
        return files.checksum([array_checksum(self.train).encode(), array_checksum(self.queries).encode()])[
            :16
        ]

    def smaller(self, n_train: int | None, n_queries: int | None, seed: int = 0) -> Problem:
        """At most so many rows and queries, drawn with a fixed seed; itself if it has no more."""
        few = n_train is None or n_train >= len(self.train)
        if few and (n_queries is None or n_queries >= len(self.queries)):
            return self
        rows, asked = some_of(len(self.train), n_train, seed), some_of(len(self.queries), n_queries, seed)
        return Problem(
            self.name, self.train[rows], self.queries[asked], part(self.train_images, rows),
            part(self.query_images, asked), part(self.train_labels, rows), part(self.query_labels, asked),
            self.about,
        )  # fmt: skip


def some_of(n: int, most: int | None, seed: int = 0) -> slice | Array:
    """At most so many of n rows, drawn with a fixed seed, in their order."""
    if most is None or most >= n:
        return slice(None)
    return np.sort(np.random.RandomState(seed).permutation(n)[:most])


def part(array: Array | None, rows: slice | Array) -> Array | None:
    """Some rows of an array that may not be there."""
    return None if array is None else array[rows]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what we found, and whether it holds; `holds` None: it cannot be told here."""

    claim: str
    ours: str
    holds: bool | None
    experiment: str = ""
    data: str = ""


@dataclass(frozen=True)
class Result:
    """What an experiment gives. tables : rows by name; figures : functions that draw, by name.

    about : what the figure shows, for a reader who has the paper open; settings : all that made it.
    """

    name: str
    title: str
    about: str
    settings: dict[str, Any]
    tables: dict[str, list[Row]]
    figures: dict[str, Callable[[], Figure]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


def versions() -> dict[str, str]:
    """Of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def write_result(result: Result, folder: Path, *, draw: bool = True) -> list[Path]:
    """Write tables as CSV, settings and claims as JSON, figures as SVG and PNG, light and dark."""
    written = []
    for name, rows in result.tables.items():
        written.append(folder / f"{name}.csv")
        files.write_text(written[-1], as_csv([row | made_by(result) for row in rows]))
    document = {
        "experiment": result.name,
        "title": result.title,
        "settings": result.settings,
        "versions": versions(),
        "claims": [asdict(claim) for claim in result.claims],
    }
    written.append(folder / f"{result.name}.json")
    files.write_text(written[-1], json.dumps(document, indent=2) + "\n")
    if draw:
        written += draw_figures(result, folder)
    return written


def made_by(result: Result) -> dict[str, str]:
    """The seeds and the version that made a result: columns of its tables, and what its figures say."""
    seeds = result.settings.get("seeds", [result.settings.get("seed", 0)])
    return {"made_with_seeds": " ".join(map(str, seeds)), "made_by": f"auxbit {versions().get('auxbit', '')}"}


def draw_figures(result: Result, folder: Path) -> list[Path]:
    """Every figure as NAME.svg, NAME.png, NAME-dark.svg and NAME-dark.png."""
    from auxbit import plot
    from auxbit.plot_parts import darken

    written, about = [], f"{result.title}; {made_by(result)}; {versions()}"
    for name, make in result.figures.items():
        for suffix in FORMATS:
            for dark in (False, True):
                figure = make()
                path = folder / f"{name}{'-dark' if dark else ''}{suffix}"
                plot.write(darken(figure) if dark else figure, path, overwrite=True, about=about)
                written.append(path)
    return written


def checked(claim: str, found: Iterable[tuple[str, bool]], experiment: str, data: str) -> Claim:
    """A claim that holds if it does in every case; says in which it does not."""
    cases = list(found)
    failed = [case for case, holds in cases if not holds]
    if not cases:
        return Claim(claim, "not measured", None, experiment, data)
    if not failed:
        return Claim(claim, f"holds in all {len(cases)} cases", True, experiment, data)
    return Claim(
        claim,
        f"fails in {len(failed)} of {len(cases)} cases: {'; '.join(failed[:6])}",
        False,
        experiment,
        data,
    )


def means(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """One row for each combination of `keys`: means of numbers over the others, and how many there were."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    made = []
    for key, group in groups.items():
        mean: Row = dict(zip(keys, key, strict=True)) | {"seeds": len({row.get("seed") for row in group})}
        for name, value in group[0].items():
            if name not in keys and name != "seed" and isinstance(value, (int, float)):
                mean[name] = float(np.mean([row[name] for row in group]))
        made.append(mean)
    return made
