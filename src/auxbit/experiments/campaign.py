"""Several experiments on several data sets: planned, run, written, and put into one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auxbit import files
from auxbit.blocks import Workers
from auxbit.checks import check_finite
from auxbit.errors import InvalidInput
from auxbit.experiments import problems
from auxbit.experiments.everything import Experiment, Settings, planned
from auxbit.experiments.kept import as_csv
from auxbit.experiments.report import write_report
from auxbit.experiments.study import Claim, Problem, Result, write_result
from auxbit.experiments.trained import Cell, Store

RAW, REPORT, CLAIMS = "raw", "report.html", "claims.csv"


class Campaign:
    """What to run; every fit is kept in folder/raw, and results in a folder for each data set."""

    def __init__(self, folder: Path, settings: Settings, *, n_jobs: int | None = None) -> None:
        self.folder, self.settings, self.n_jobs = folder, settings, n_jobs
        self.results: list[tuple[str, Result]] = []
        self._failed: list[str] = []
        self._stores: dict[Problem, Store] = {}
        self._planned: list[tuple[str, list[Experiment]]] = []
        self._steps: tuple[Callable[[str], object], Callable[[], object]] = (lambda what: None, lambda: None)

    def add(
        self, source: str, names: Sequence[str], *, n_train: int | None = None, n_queries: int | None = None
    ) -> None:
        """Read a data set, and plan experiments on it."""
        problem = problems.load(
            source, n_train=n_train, n_queries=n_queries, cache=self.folder / RAW, n_jobs=self.n_jobs
        )
        with Workers(self.n_jobs) as workers:
            check_finite(problem.train, workers, f"{source}: the rows")
            check_finite(problem.queries, workers, f"{source}: the queries")
        self._planned.append(
            (self._label(problem, n_train, n_queries), planned(problem, self.settings, names))
        )

    def _label(self, problem: Problem, n_train: int | None, n_queries: int | None) -> str:
        """A name of its own for the results of a data set: with fewer rows they are others."""
        sizes = [("rows", n_train, len(problem.train)), ("queries", n_queries, len(problem.queries))]
        wanted = "-".join([problem.name, *(f"{n}-{what}" for what, limit, n in sizes if limit is not None)])
        taken = {label for label, _ in self._planned}
        return next(
            label
            for label in (wanted, *(f"{wanted}-{number}" for number in range(2, len(taken) + 3)))
            if label not in taken
        )

    def n_steps(self) -> int:
        """Fits that are not kept yet, and experiments."""
        cells: dict[Problem, list[Cell]] = {}
        every = [each for _, experiments in self._planned for each in experiments]
        for each in every:
            cells.setdefault(each.problem, []).extend(each.cells)
        missing = (len(self._store(problem).missing(some)) for problem, some in cells.items())
        return sum(missing) + len(every)

    def run(
        self, *, step: Callable[[str], object] | None = None, advance: Callable[[], object] | None = None
    ) -> None:
        """Run everything; `step` is called with what is being done, `advance` after each step."""
        self._steps = (step or (lambda what: None), advance or (lambda: None))
        for label, experiments in self._planned:
            for experiment in experiments:
                self._steps[0](f"{label}: {experiment.name}")
                try:
                    result = experiment.run(self._store(experiment.problem))
                except InvalidInput as error:  # one that cannot be had of these data does not end the others
                    if sum(len(each) for _, each in self._planned) == 1:
                        raise
                    self._failed.append(f"{label}: {experiment.name}: {error}")
                    continue
                write_result(result, self.folder / label)
                self.results.append((label, result))
                self._steps[1]()

    def claims(self) -> list[Claim]:
        """What the paper says, and what was found, over all results."""
        return [claim for _, result in self.results for claim in result.claims]

    def left_out(self) -> list[str]:
        """Fits and experiments that could not be had, with the reason."""
        return self._failed + [
            f"{store.problem.name}: {what}: {why}"
            for store in self._stores.values()
            for what, why in store.left_out().items()
        ]

    def folders(self) -> list[Path]:
        """Where the results of each data set are."""
        return list(dict.fromkeys(self.folder / name for name, _ in self.results))

    def write_report(self) -> Path:
        """One page with every figure and table; the claims as a table, too."""
        files.write_text(self.folder / CLAIMS, as_csv([asdict(claim) for claim in self.claims()]))
        path = self.folder / REPORT
        write_report(self.results, path, settings=asdict(self.settings))
        return path

    def document(self, report: Path | None) -> dict[str, Any]:
        """What was found, for JSON."""
        return {
            "results": [
                {
                    "data": name,
                    "experiment": result.name,
                    "settings": result.settings,
                    "tables": result.tables,
                }
                for name, result in self.results
            ],
            "claims": [asdict(claim) for claim in self.claims()],
            "folders": [str(each) for each in self.folders()],
            "report": None if report is None else str(report),
            "left_out": self.left_out(),
        }

    def _store(self, problem: Problem) -> Store:
        if problem not in self._stores:
            self._stores[problem] = self._new_store(problem)
        return self._stores[problem]

    def _new_store(self, problem: Problem) -> Store:
        def on_start(cell: Cell) -> None:
            self._steps[0](f"{problem.name}: {cell.label}, {cell.bits} bits")

        def on_fit(cell: Cell, fresh: bool) -> None:
            if fresh:
                self._steps[1]()

        return Store(problem, self.folder / RAW, n_jobs=self.n_jobs, on_start=on_start, on_fit=on_fit)
