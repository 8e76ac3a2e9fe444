"""Raw results: the codes that a method gives to a problem, kept on disk. All metrics derive from them."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit import evaluate, files
from auxbit.codes import Packed
from auxbit.errors import FileProblem, InvalidInput
from auxbit.experiments.kept import Row
from auxbit.experiments.methods import find_method, make_hasher
from auxbit.experiments.study import Problem, versions
from auxbit.neighbours import ground_truth
from auxbit.tensor_file import Format

CODES = Format(
    "auxbit experiment",
    "experiment",
    1,
    "codes of an experiment",
    "They are made by `auxbit experiment`.",
    FileProblem,
)


@dataclass(frozen=True)
class Cell:
    """One fit: a method by name, bits, seed, and parameters beyond the defaults of its estimator."""

    method: str
    bits: int
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The method's name in tables and figures."""
        return find_method(self.method).label


@dataclass(frozen=True)
class Trained:
    """What a fit gave: codes of the rows and of the queries, and facts about the training.

    facts : seconds, CPU seconds, mean squared errors of both, history (of BA and BFA), the scale of the data;
    `skipped` says why there are no codes where a method cannot have so many bits.
    """

    cell: Cell
    train: Packed
    queries: Packed
    facts: dict[str, Any]

    @property
    def skipped(self) -> str | None:
        """Why there is nothing, None where there is."""
        return self.facts.get("skipped")

    def row(self) -> Row:
        """What identifies the fit in tables."""
        return {"method": self.cell.label, "bits": self.cell.bits, "seed": self.cell.seed}


class Store:
    """Fits of one problem, in a folder; one that is there is not computed again.

    folder None: nothing is kept. on_start is called with each cell before it is fitted, on_fit after it is
    fitted or read, with whether it is new.
    """

    def __init__(
        self,
        problem: Problem,
        folder: Path | None,
        *,
        n_jobs: int | None = None,
        on_start: Callable[[Cell], object] | None = None,
        on_fit: Callable[[Cell, bool], object] | None = None,
    ) -> None:
        self.problem, self.n_jobs = problem, n_jobs
        self.folder = None if folder is None else folder / f"{problem.name}-{problem.key()}"
        self._on_start = on_start or (lambda cell: None)
        self._on_fit = on_fit or (lambda cell, fresh: None)
        self._made: dict[Cell, Trained] = {}
        self._truths: dict[int, npt.NDArray[np.int64]] = {}

    def get(self, cell: Cell) -> Trained:
        """The fit of a cell, from memory, from disk, or made now."""
        if cell not in self._made:
            found = self._read(cell)
            if found is None:
                self._on_start(cell)
            self._made[cell] = found if found is not None else self._make(cell)
            self._on_fit(cell, found is None)
        return self._made[cell]

    def left_out(self) -> dict[str, str]:
        """The fits that could not be had, and why."""
        return {
            f"{cell.label}, {cell.bits} bits": made.skipped
            for cell, made in self._made.items()
            if made.skipped
        }

    def ranking(self, made: Trained, K: int) -> evaluate.Ranking:
        """Where the K true neighbours of the queries come among the codes of a fit."""
        if K not in self._truths:
            self._truths[K] = ground_truth(self.problem.train, self.problem.queries, K, n_jobs=self.n_jobs)
        return evaluate.hamming_ranking(
            made.train, made.queries, self._truths[K], made.cell.bits, n_jobs=self.n_jobs
        )

    def all(self, cells: Iterable[Cell]) -> list[Trained]:
        """The fits of several cells, without those that a method cannot have."""
        return [found for found in map(self.get, cells) if not found.skipped]

    def derived(self, cell: Cell, settings: dict[str, Any], compute: Callable[[Trained], Any]) -> Any:
        """What `compute` makes of a fit with these settings, as JSON has it; kept beside the codes."""
        made = self.get(cell)
        path = self._path(cell)
        if path is None:
            return compute(made)
        key = files.checksum([json.dumps(settings, sort_keys=True, default=str).encode()])[:8]
        path = path.with_suffix(f".{key}.json")
        try:
            kept = json.loads(path.read_text())
            same = kept["versions"].get("auxbit") == versions().get("auxbit")
            if same and kept["settings"] == settings:
                return kept["found"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, or damaged: made anew
        found = compute(made)
        document = {"settings": settings, "cell": asdict(cell), "versions": versions(), "found": found}
        files.write_text(path, json.dumps(document))
        return json.loads(json.dumps(found))

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Which cells are not kept yet."""
        return [cell for cell in dict.fromkeys(cells) if cell not in self._made and self._read(cell) is None]

    def _path(self, cell: Cell) -> Path | None:
        if self.folder is None:
            return None
        key = files.checksum([json.dumps(asdict(cell), sort_keys=True, default=str).encode()])[:8]
        return self.folder / f"{cell.method}-{cell.bits}-{cell.seed}-{key}.safetensors"

    def _read(self, cell: Cell) -> Trained | None:
        path = self._path(cell)
        if path is None or not path.exists():
            return None
        try:
            header, tensors = CODES.read(path)
            if header["versions"].get("auxbit") != versions().get("auxbit"):
                return None  # another version may fit otherwise
            return Trained(cell, tensors["train"], tensors["queries"], header["facts"])
        except (FileProblem, KeyError):
            return None  # a file that is damaged is made anew

    def _make(self, cell: Cell) -> Trained:
        made = fit(cell, self.problem, self.n_jobs)
        path = self._path(cell)
        if path is not None:
            header = {"cell": asdict(cell), "facts": made.facts, "versions": versions()}
            CODES.write(path, header, {"train": made.train, "queries": made.queries})
        return made


def fit(cell: Cell, problem: Problem, n_jobs: int | None) -> Trained:
    """Fit a method to the rows of a problem, and encode rows and queries."""
    model = make_hasher(cell.method, cell.bits, random_state=cell.seed, n_jobs=n_jobs, **dict(cell.options))
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of bits beyond the dimensions
            model.fit(problem.train)
    except InvalidInput as error:  # so many bits cannot be had of this method
        none = np.zeros((0, 1), dtype=np.uint8)
        return Trained(cell, none, none, {"skipped": str(error)})
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    train, queries = model.encode(problem.train), model.encode(problem.queries)
    errors = {
        "train_error": model._error_of(problem.train, train),
        "query_error": model._error_of(problem.queries, queries),
    }
    history = [asdict(record) for record in getattr(model, "history_", [])]
    facts = seconds | errors | {"history": history, "scale": model.scaling_.scale}
    return Trained(cell, train, queries, facts)
