"""The experiments of the paper on several data sets: planned, run, written, and put into one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from auxbit.core import files
from auxbit.core.checks import check_finite
from auxbit.core.parallel import Workers
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments import altopt, entropy, parallel, path, retrieval, samples, solvers, study, wrapper
from auxbit.experiments.report import page
from auxbit.experiments.study import (
    PAPER,
    Cell,
    Claim,
    Fits,
    Problem,
    Result,
    as_csv,
    check_preset,
    write_result,
)
from auxbit.hashers.autoencoder import BinaryAutoencoder

NAMES = ("wrapper", "altopt", "parallel", "retrieval", "samples", "entropy", "path", "solvers")
QUICK_BITS = (8, 16, 32)


@dataclass(frozen=True)
class Settings:
    """What may be chosen; None: as in the paper. quick : less of everything, for a first look.

    preset : of BA and BFA, in every experiment; caption : K, k, r and L of a figure of the paper.
    """

    preset: str = PAPER
    bits: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] | None = None
    caption: str | None = None
    groups: tuple[int, ...] = altopt.GROUPS
    quick: bool = False


@dataclass(frozen=True)
class Experiment:
    """One experiment on one problem: the fits that it needs, and what runs it with them."""

    name: str
    cells: list[Cell]
    run: Callable[[Fits], Result]
    problem: Problem


def planned(problem: Problem, settings: Settings, names: Sequence[str] = NAMES) -> list[Experiment]:
    """The experiments of these names, ready to run."""
    check_preset(settings.preset)
    if settings.quick:
        few = tuple(g for g in settings.groups if g <= 4)
        settings = replace(settings, bits=settings.bits or QUICK_BITS, groups=few)
    for n_bits in settings.bits or ():
        BinaryAutoencoder.check_bits(n_bits)
    for name in names:
        if name not in NAMES:
            raise InvalidParameter("experiment", name, f"one of {', '.join(NAMES)}")
    return [_plan(name, problem, settings) for name in names]


def _plan(name: str, problem: Problem, settings: Settings) -> Experiment:
    preset, seeds, seed = settings.preset, settings.seeds, settings.seeds[0]
    cells: list[Cell] = []
    run: Callable[[Fits], Result] = partial(parallel.run, seed=seed, preset=preset)
    if name == "wrapper":
        bits = settings.bits or wrapper.BITS
        cells = retrieval.cells(retrieval.shown(preset, wrapper.METHODS), bits, seeds, preset)
        run = partial(wrapper.run, bits=bits, seeds=seeds, preset=preset)
    elif name == "altopt":
        L = altopt.BITS if settings.bits is None or altopt.BITS in settings.bits else max(settings.bits)
        every = altopt.settings_of(settings.groups)
        cells = [altopt.cell_of(start, g, L, seed, preset) for start, g, _ in every]
        run = partial(altopt.run, bits=L, groups=settings.groups, seed=seed, preset=preset)
    elif name == "solvers":
        bits = settings.bits or solvers.BITS
        cells, run = retrieval.cells([solvers.METHOD], bits, [0]), partial(solvers.run, bits=bits)
    elif name != "parallel":
        caption = retrieval.caption_of(settings.caption, problem)
        bits, methods = settings.bits or caption.bits, settings.methods or retrieval.shown(preset)
        cells = retrieval.cells(methods, bits, seeds, preset)
        if name in ("retrieval", "entropy"):
            measure = retrieval.run if name == "retrieval" else entropy.run
            run = partial(measure, caption=caption, methods=methods, bits=bits, seeds=seeds, preset=preset)
        elif name == "samples":
            cells = retrieval.cells(samples.METHODS, [max(bits)], [seed], preset)
            run = partial(samples.run, bits=max(bits), seed=seed, preset=preset)
        else:
            bits = settings.bits or tuple(L for L in bits if L in (16, 32))
            cells = [path.cell_of(L, seed, preset) for L in bits]
            run = partial(path.run, bits=bits, seed=seed, preset=preset)
    return Experiment(name, cells, run, problem)


# ---- several experiments on several data sets

RAW, REPORT, CLAIMS = "raw", "report.html", "claims.csv"


class Campaign:
    """What to run; every fit is kept in folder/raw, and results in a folder for each data set."""

    def __init__(self, folder: Path, settings: Settings, *, n_jobs: int | None = None) -> None:
        self.folder, self.settings, self.n_jobs = folder, settings, n_jobs
        self.results: list[tuple[str, Result]] = []
        self._failed: list[str] = []
        self._fits: dict[Problem, Fits] = {}
        self._planned: list[tuple[str, Experiment]] = []

    def add(
        self, source: str, names: Sequence[str], *, n_train: int | None = None, n_queries: int | None = None
    ) -> None:
        """Read a data set, and plan experiments on it."""
        problem = study.load(
            source, n_train=n_train, n_queries=n_queries, cache=self.folder / RAW, n_jobs=self.n_jobs
        )
        with Workers(self.n_jobs) as workers:
            check_finite(problem.train, workers, f"{source}: the rows")
            check_finite(problem.queries, workers, f"{source}: the queries")
        label = self._label(problem, n_train, n_queries)
        self._planned += [(label, each) for each in planned(problem, self.settings, names)]

    def _label(self, problem: Problem, n_train: int | None, n_queries: int | None) -> str:
        """A name of its own for the results of a data set: with fewer rows they are others."""
        sizes = [("rows", n_train, len(problem.train)), ("queries", n_queries, len(problem.queries))]
        wanted = "-".join([problem.name, *(f"{n}-{what}" for what, limit, n in sizes if limit is not None)])
        taken = {label for label, _ in self._planned}
        others = (f"{wanted}-{number}" for number in range(2, len(taken) + 3))
        return next(label for label in (wanted, *others) if label not in taken)

    def n_steps(self) -> int:
        """Fits that are not kept yet, and experiments."""
        cells: dict[Problem, list[Cell]] = {}
        for _, each in self._planned:
            cells.setdefault(each.problem, []).extend(each.cells)
        missing = (len(self._fits_of(problem).missing(some)) for problem, some in cells.items())
        return sum(missing) + len(self._planned)

    def run(
        self, *, step: Callable[[str], object] = lambda what: None,
        advance: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Run everything; `step` is called with what is being done, `advance` after each step."""
        self._step, self._advance = step, advance
        for label, experiment in self._planned:
            step(f"{label}: {experiment.name}")
            try:
                result = experiment.run(self._fits_of(experiment.problem))
            except InvalidInput as error:  # one that these data cannot give does not end the others
                if len(self._planned) == 1:
                    raise
                self._failed.append(f"{label}: {experiment.name}: {error}")
                continue
            write_result(result, self.folder / label)
            self.results.append((label, result))
            advance()

    def claims(self) -> list[Claim]:
        """What the paper says, and what was found, over all results."""
        return [claim for _, result in self.results for claim in result.claims]

    def left_out(self) -> list[str]:
        """Fits and experiments that were not possible, with the reason."""
        return self._failed + [
            f"{fits.problem.name}: {what}: {why}"
            for fits in self._fits.values()
            for what, why in fits.left_out().items()
        ]

    def folders(self) -> list[Path]:
        """Where the results of each data set are."""
        return list(dict.fromkeys(self.folder / name for name, _ in self.results))

    def write_report(self) -> Path:
        """One page with every figure and table; the claims also as CSV."""
        files.write_text(self.folder / CLAIMS, as_csv([asdict(claim) for claim in self.claims()]))
        files.write_text(self.folder / REPORT, page(self.results, asdict(self.settings)))
        return self.folder / REPORT

    def document(self, report: Path | None) -> dict[str, Any]:
        """What was found, for JSON."""
        return {
            "results": [
                {"data": name, "experiment": each.name, "settings": each.settings, "tables": each.tables}
                for name, each in self.results
            ],
            "claims": [asdict(claim) for claim in self.claims()],
            "folders": [str(each) for each in self.folders()],
            "report": None if report is None else str(report),
            "left_out": self.left_out(),
        }

    def _fits_of(self, problem: Problem) -> Fits:
        if problem not in self._fits:
            self._fits[problem] = Fits(
                problem, self.folder / RAW, n_jobs=self.n_jobs,
                on_start=lambda cell: self._step(f"{problem.name}: {cell.label}, {cell.bits} bits"),
                on_fit=lambda cell, fresh: self._advance() if fresh else None,
            )  # fmt: skip
        return self._fits[problem]
