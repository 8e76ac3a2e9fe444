"""What experiments share: a problem, the fits to it, the rows that are kept on disk, and a result.

problem = load("digits")
fits = Fits(problem, Path("raw"))             # what is kept there is not computed again
result = wrapper.run(fits)                    # tables, figures, and claims of the paper
write_result(result, Path("results"))
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from auxbit import evaluate
from auxbit.core import files
from auxbit.core.checks import Array, Ids, Packed
from auxbit.core.files import Format, Tensors
from auxbit.core.files import versions as versions
from auxbit.core.maps import LinearEncoder, encode, unpack
from auxbit.core.parallel import Workers
from auxbit.data import datasets
from auxbit.data import vectors as data
from auxbit.errors import FileProblem, InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.hashers.autoencoder import PRESETS, BinaryAutoencoder
from auxbit.hashers.registry import HASHER_NAMES, find_method, parameters_of
from auxbit.mac.fit import Fitted, Plan
from auxbit.mac.loop import decoder_sums, f_step
from auxbit.plot import figures
from auxbit.plot.style import darken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
RowKey = tuple[str, int, int]  # method, bits, seed

# what computes a fit, and what measures it; other parts of auxbit change no results
FITTING = ("core", "data", "evaluate.py", "experiments/study.py", "hashers", "mac", "quantiser")
MEASURING = (*FITTING, "experiments", "index")
FORMATS = (".svg", ".png")
ARRAYS = Format(
    "auxbit experiment", "experiment", 1, "codes of an experiment",
    "They are made by `auxbit experiment`.", FileProblem,
)  # fmt: skip

# ---- what is kept on disk


class KeptRows:
    """Rows of results, kept on disk as they finish, so that a stopped experiment resumes.

    `path` has one line of JSON per row, under a checksum of the settings that made it, and of the source of
    the parts of auxbit that computed it, `code`; rows of others stay in the file and are not found. `more`
    settings are of single rows. Arrays that belong to a row, such as codes, are in a file beside it. path
    None: rows are kept in memory only.
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], code: tuple[str, ...] = MEASURING
    ) -> None:
        self.path, self.settings = path, {"code": files.code_key(*code)} | dict(settings)
        self._rows: dict[str, dict[RowKey, Row]] = {}
        if path is not None and path.exists():
            for line in path.read_text(errors="replace").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # a line that a crash cut short
                    kept = json.loads(line)
                    self._remember(kept["key"], kept["row"])

    def read(self, **more: Any) -> dict[RowKey, Row]:
        """What is finished, by (method, bits, seed)."""
        return dict(self._rows.get(self._key(more), {}))

    def read_arrays(self, row: Row, **more: Any) -> Tensors | None:
        """The arrays of a row, None if they are not there or damaged."""
        path = self._array_path(row, self._key(more))
        with suppress(FileProblem):
            return None if path is None else ARRAYS.read(path)[1]
        return None

    def add(self, row: Row, arrays: Tensors | None = None, **more: Any) -> None:
        """Append a row, and return when it is on the disk."""
        key = self._key(more)
        text = json.dumps({"key": key, "row": row})
        self._remember(key, json.loads(text)["row"])  # as the file has it: lists for tuples
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        array_path = self._array_path(row, key)
        if arrays is not None and array_path is not None:  # before the line: a line never lacks its arrays
            ARRAYS.write(array_path, {"key": key}, arrays)
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # the last line was cut short
                    file.write(b"\n")
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _remember(self, key: str, row: Row) -> None:
        self._rows.setdefault(key, {})[row["method"], row["bits"], row["seed"]] = row

    def _key(self, more: dict[str, Any]) -> str:
        return files.checksum([json.dumps(self.settings | more, sort_keys=True).encode()])[:16]

    def _array_path(self, row: Row, key: str) -> Path | None:
        name = f"{row['method']}-{row['bits']}-{row['seed']}-{key}.safetensors"
        return None if self.path is None else self.path.with_name(name)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with their columns in order of appearance; None is left empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def array_checksum(X: Array) -> str:
    """SHA-256 of the values, shape and type of an array, read in blocks of rows."""
    content = files.checksum(np.ascontiguousarray(X[rows]).tobytes() for rows in data.blocks(X))
    return files.checksum([f"{X.shape} {X.dtype.str} {content}".encode()])


# ---- what an experiment is run on, and what it gives


@dataclass(frozen=True, eq=False)  # arrays have no truth value to compare by
class Problem:
    """A data set as experiments use it: rows to train on and to search, and queries that are not among them.

    train : (n, D), queries : (q, D); images and labels of both, if there are any.
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
        return files.checksum(array_checksum(rows).encode() for rows in (self.train, self.queries))[:16]

    def smaller(self, n_train: int | None, n_queries: int | None) -> Problem:
        """At most that many rows and queries, drawn with a fixed seed; itself if it has no more."""
        rows, asked = some_of(len(self.train), n_train), some_of(len(self.queries), n_queries)
        if isinstance(rows, slice) and isinstance(asked, slice):
            return self
        return Problem(
            self.name, self.train[rows], self.queries[asked], part(self.train_images, rows),
            part(self.query_images, asked), part(self.train_labels, rows), part(self.query_labels, asked),
            self.about,
        )  # fmt: skip


def some_of(n: int, most: int | None) -> slice | Array:
    """At most `most` of n rows, drawn with a fixed seed, in their order."""
    if most is None or most >= n:
        return slice(None)
    return np.sort(np.random.RandomState(0).permutation(n)[:most])


def part(array: Array | None, rows: slice | Array) -> Array | None:
    """Some rows of an array that may not be there."""
    return None if array is None else array[rows]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what we found, and whether it holds; None: it cannot be judged here.

    cases : how many it was checked in; of them it failed in some, and some were ties.
    """

    claim: str
    ours: str
    holds: bool | None
    experiment: str = ""
    data: str = ""
    cases: int = 0
    failed: int = 0
    ties: int = 0


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


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write tables as CSV, settings and claims as JSON, figures as SVG and PNG, light and dark."""
    written = []
    for name, rows in result.tables.items():
        written.append(folder / f"{name}.csv")
        files.write_text(written[-1], as_csv([row | made_by(result) for row in rows]))
    document = {
        "experiment": result.name, "title": result.title, "settings": result.settings,
        "versions": versions(), "claims": [asdict(claim) for claim in result.claims],
    }  # fmt: skip
    written.append(folder / f"{result.name}.json")
    files.write_text(written[-1], json.dumps(document, indent=2) + "\n")
    about = f"{result.title}; {made_by(result)}; {versions()}"
    for (name, make), suffix, dark in product(result.figures.items(), FORMATS, (False, True)):
        written.append(folder / f"{name}{'-dark' if dark else ''}{suffix}")
        figures.write(darken(make()) if dark else make(), written[-1], overwrite=True, about=about)
    return written


def check_folder(folder: Path, names: Iterable[str], *, overwrite: bool) -> None:
    """Refuse before the work what would be refused when these files are written after it."""
    if folder.exists() and not folder.is_dir():
        raise FileProblem(f"{folder} is a file; expected the name of a folder to write to.")
    for name in names:
        if Path(name).suffix in FORMATS:
            figures.check_output(folder / name)
        files.check_output(folder / name, overwrite=overwrite)


def made_by(result: Result) -> dict[str, str]:
    """The seeds, preset and version that made a result: columns of its tables, and what its figures say."""
    seeds = result.settings.get("seeds", [result.settings.get("seed", 0)])
    made = {"made_with_seeds": " ".join(map(str, seeds))}
    if "preset" in result.settings:
        made["made_with_preset"] = result.settings["preset"]
    return made | {"made_by": f"auxbit {versions().get('auxbit', '')}"}


# Seeds differ: what is compared are means over them, and what lies within this many standard errors of the
# difference is a tie, neither for a claim nor against it.
CLEAR = 2.0

Case = tuple[str, bool | None]  # its words, and whether the claim holds in it; None: a tie


def verdict(gap: float, error: float, *, slack: float = 0.0) -> bool | None:
    """Whether a difference with this standard error is at least 0; None for a tie. slack : of rounding."""
    return None if error > 0 and abs(gap) <= CLEAR * error else gap >= -slack


def error_of(row: Row, value: str) -> float:
    """The standard error of a mean over seeds, 0 for one seed."""
    spread, seeds = float(row.get(f"{value}_std") or 0.0), int(row.get("seeds", 1))
    return spread / math.sqrt(max(1, seeds - 1))


def above(better: Row, worse: Row, value: str) -> bool | None:
    """Whether a mean over seeds is above another."""
    return verdict(better[value] - worse[value], math.hypot(error_of(better, value), error_of(worse, value)))


def checked(
    experiment: str, data: str, found: Mapping[str, Iterable[Case]], *, mostly: bool = False
) -> list[Claim]:
    """Claims by their words, each of which holds if it fails in no case; says in which it does.

    mostly : it holds if it does so in more cases than it fails in, as the paper says "generally".
    """
    claims = []
    for claim, each in found.items():
        cases = list(each)
        failed = [case for case, holds in cases if holds is False]
        held, ties = sum(holds is True for _, holds in cases), sum(holds is None for _, holds in cases)
        tied = f", {ties} tie{'s' * (ties > 1)}" if ties else ""
        ours = f"holds in {held if ties else 'all'}{' of' * bool(ties)} {len(cases)} cases{tied}"
        if failed:
            ours = f"fails in {len(failed)} of {len(cases)} cases{tied}: {'; '.join(failed[:6])}"
        holds = (held > len(failed) if mostly else not failed) if held or failed else None
        counts = (len(cases), len(failed), ties)
        claims.append(Claim(claim, ours if cases else "not measured", holds, experiment, data, *counts))
    return claims


def means(rows: Iterable[Row], keys: Sequence[str], *, spread: bool = False) -> list[Row]:
    """One row per combination of `keys`: means over seeds, how many there were, and spreads as `…_std`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    made = []
    for key, group in groups.items():
        mean: Row = dict(zip(keys, key, strict=True)) | {"seeds": len({row.get("seed") for row in group})}
        for name in (name for name in group[0] if name not in (*keys, "seed")):
            values = [row[name] for row in group]
            mean[name] = None if None in values else fmean(values)
            if spread and not name.endswith("_bound"):
                mean[f"{name}_std"] = None if None in values else pstdev(values)
        made.append(mean)
    return made


# ---- fits: all metrics derive from their codes


PAPER = "paper"  # the preset of figures that are the paper's


def check_preset(preset: str) -> str:
    """The name of a preset of BA and BFA."""
    if preset not in PRESETS:
        raise InvalidParameter("preset", preset, " or ".join(PRESETS))
    return preset


class Cell(NamedTuple):
    """One fit: a method by name, bits, seed, and parameters beyond the defaults of its estimator."""

    method: str
    bits: int
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The method's name in tables and figures."""
        return find_method(self.method).label

    @classmethod
    def under(cls, preset: str, method: str, bits: int, seed: int, **options: Any) -> Cell:
        """The fit of a method under a preset, which BA and BFA alone have."""
        named = {"preset": check_preset(preset)} if "preset" in parameters_of(method) else {}
        return cls(method, bits, seed, tuple(sorted((named | options).items())))

    def row(self) -> Row:
        """What identifies the fit among kept rows, which are found by cell[:3]."""
        return {"method": self.method, "bits": self.bits, "seed": self.seed}


@dataclass(frozen=True)
class Trained:
    """What a fit gave: codes of the rows and of the queries, and facts about the training.

    facts : seconds, CPU seconds, mean squared errors of both, history (of BA and BFA), the scale of the data;
    `skipped` says why there are no codes, if the method cannot have that many bits.
    start : of BA, the hash function that this very fit started from, whose facts are train_error and its
    precision on the validation queries.
    """

    cell: Cell
    train: Packed
    queries: Packed
    facts: dict[str, Any]
    start: Trained | None = None

    @property
    def skipped(self) -> str | None:
        """Why there are no codes, None if there are."""
        return self.facts.get("skipped")

    def row(self) -> Row:
        """What identifies the fit in tables."""
        return self.cell.row() | {"method": self.cell.label}


class Fits:
    """The fits of one problem, and what derives from them; what is kept in the folder is not computed again.

    folder None: nothing is kept. on_start is called with each cell before it is fitted, on_fit after it is
    fitted or read, with whether it is new.
    """

    def __init__(
        self, problem: Problem, folder: Path | None, *, n_jobs: int | None = None,
        on_start: Callable[[Cell], object] = lambda cell: None,
        on_fit: Callable[[Cell, bool], object] = lambda cell, fresh: None,
    ) -> None:  # fmt: skip
        self.problem, self.n_jobs = problem, n_jobs
        self.folder = None if folder is None else folder / f"{problem.name}-{problem.key()}"
        self._on_start, self._on_fit = on_start, on_fit
        self._made: dict[Cell, Trained] = {}
        self._truths: dict[int, Ids] = {}
        settings = {"data": self.folder and self.folder.name}  # the folder's name tells the rows
        self._kept = KeptRows(self.folder and self.folder / "rows.jsonl", settings, FITTING)
        self._measured_by = files.code_key(*MEASURING)  # of now: source may change while this runs

    def get(self, cell: Cell) -> Trained:
        """The fit of a cell, from memory, from disk, or made now."""
        if cell not in self._made:
            kept = self._read(cell)
            if kept is None:
                self._on_start(cell)
                made = fit(cell, self.problem, self.n_jobs)
                self._keep(made)
            self._made[cell] = kept or made
            self._on_fit(cell, kept is None)
        return self._made[cell]

    def all(self, cells: Iterable[Cell]) -> list[Trained]:
        """The fits of several cells, without those that a method cannot have."""
        return [found for found in map(self.get, cells) if not found.skipped]

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Which cells are not kept yet."""
        return [cell for cell in dict.fromkeys(cells) if cell not in self._made and self._read(cell) is None]

    def left_out(self) -> dict[str, str]:
        """The fits that a method cannot have, and why."""
        made = self._made.items()
        return {f"{cell.label}, {cell.bits} bits": each.skipped for cell, each in made if each.skipped}

    def truth(self, K: int) -> Ids:
        """The K true neighbours of each query, (q, K), found once."""
        if K not in self._truths:
            self._truths[K] = ground_truth(self.problem.train, self.problem.queries, K, n_jobs=self.n_jobs)
        return self._truths[K]

    def ranking(self, made: Trained, K: int) -> evaluate.Ranking:
        """Where the K true neighbours of the queries come among the codes of a fit."""
        truth, L = self.truth(K), made.cell.bits
        return evaluate.hamming_ranking(made.train, made.queries, truth, L, n_jobs=self.n_jobs)

    def derived(self, cell: Cell, settings: dict[str, Any], compute: Callable[[Trained], Any]) -> Any:
        """What `compute` makes of a fit with these settings, as JSON has it; kept beside the codes."""
        more: dict[str, Any] = {"options": cell.options, "derived": settings, "code": self._measured_by}
        if cell[:3] not in self._kept.read(**more):
            self._kept.add(cell.row() | {"found": compute(self.get(cell))}, **more)
        return self._kept.read(**more)[cell[:3]]["found"]

    def _keep(self, made: Trained) -> None:
        row, arrays = made.cell.row() | {"facts": made.facts}, {"train": made.train, "queries": made.queries}
        if made.start is not None:
            row["start"] = made.start.facts
            arrays |= {"start_train": made.start.train, "start_queries": made.start.queries}
        self._kept.add(row, arrays, options=made.cell.options)

    def _read(self, cell: Cell) -> Trained | None:
        row = self._kept.read(options=cell.options).get(cell[:3])
        arrays = row and self._kept.read_arrays(row, options=cell.options)
        if row is None or arrays is None:
            return None
        start = None
        if "start" in row:
            start = Trained(cell, arrays["start_train"], arrays["start_queries"], row["start"])
        return Trained(cell, arrays["train"], arrays["queries"], row["facts"], start)


class _Watched(BinaryAutoencoder):
    """A BA that remembers the hash function it started from."""

    def _plan(self, n_bits: int) -> Plan:
        plan = super()._plan(n_bits)

        def start(given: Any) -> Any:
            self.start_ = plan.start(given)
            return self.start_

        return replace(plan, start=start)

    def _warn_of(self, fitted: Fitted, *, continued: bool) -> None:
        super()._warn_of(fitted, continued=continued)
        self.start_precision_ = fitted.start_precision

    def start_codes(self, X: Array) -> Packed | None:
        """What the start gives to rows; None if it has no hash function."""
        if isinstance(self.start_, LinearEncoder):
            return encode(X, self.start_, self.scaling_, self.n_bits, self.n_jobs)
        codes: Packed | None = self.start_.of_queries(X)
        return codes


def fit(cell: Cell, problem: Problem, n_jobs: int | None) -> Trained:
    """Fit a method to the rows of a problem, and encode rows and queries."""
    method = find_method(cell.method, HASHER_NAMES)
    made_by = method.load_class()
    model = (_Watched if made_by is BinaryAutoencoder else made_by)(
        n_bits=cell.bits, random_state=cell.seed, n_jobs=n_jobs, **method.options | dict(cell.options)
    )
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of bits beyond the dimensions
            model.fit(problem.train)
    except InvalidInput as error:  # this method cannot have that many bits
        none = np.zeros((0, 1), dtype=np.uint8)
        return Trained(cell, none, none, {"skipped": str(error)})
    facts: dict[str, Any] = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    train, queries = model.encode(problem.train), model.encode(problem.queries)
    facts["train_error"] = model._error_of(problem.train, train)
    facts["query_error"] = model._error_of(problem.queries, queries)
    history = [asdict(record) for record in getattr(model, "history_", [])]
    facts |= {"history": history, "scale": model.scaling_.scale}
    return Trained(cell, train, queries, facts, _start_of(model, cell, problem))


def _start_of(model: Any, cell: Cell, problem: Problem) -> Trained | None:
    """The start of a BA, with the error of the decoder that is best for its codes."""
    if not isinstance(model, _Watched) or (train := model.start_codes(problem.train)) is None:
        return None
    with Workers(model.n_jobs) as workers:
        rows = model.scaling_.apply_all(problem.train, workers)
        f = f_step(decoder_sums(rows, unpack(train, cell.bits), workers))
    model.decoder_ = f.in_units_of(model.scaling_)  # nothing else is asked of the model
    precision = model.start_precision_
    facts = {
        "train_error": model._error_of(problem.train, train),
        "validation": model.history_[0].precision if precision is None else precision,
    }
    return Trained(cell, train, np.asarray(model.start_codes(problem.queries)), facts)


# ---- data sets as problems

HELD_OUT, MOST_HELD_OUT = 10, 1000  # of a file without queries, one row in ten is a query
VECTOR_FILES = (".npy", ".npz", ".fvecs", ".bvecs", ".ivecs", ".parquet")
KEYED = re.compile(r"\.(h5|hdf5|parquet|npz):[^/\\\\]+$", re.IGNORECASE)  # a file and what to read of it


def load(
    source: str, *, n_train: int | None = None, n_queries: int | None = None,
    cache: str | os.PathLike[str] | None = None, n_jobs: int | None = None,
) -> Problem:  # fmt: skip
    """A data set by name, or by the path of its folder; or a file of vectors, of which some become queries.

    n_train, n_queries : at most that many, drawn with a fixed seed; cache : for features of images.
    """
    if Path(source).suffix.lower() in VECTOR_FILES or KEYED.search(source):
        return _of_file(source).smaller(n_train, n_queries)
    found = datasets.load(source)
    kept, asked = some_of(len(found.base), n_train), some_of(len(found.queries), n_queries)
    small = replace(
        found, base=found.base[kept], queries=found.queries[asked], learn=None, neighbours=None,
        labels=part(found.labels, kept), query_labels=part(found.query_labels, asked),
    )  # fmt: skip
    vectors = small.vectors(cache=cache, n_jobs=n_jobs)
    images, query_images = small.images, small.query_images
    if small.name == "digits":
        pixels = (small.base, small.queries)  # 0..16, which 15 times fits into bytes
        images, query_images = ((15 * X).astype(np.uint8).reshape(-1, 8, 8) for X in pixels)
    labels = [y if y is not None and y.ndim == 1 else None for y in (small.labels, small.query_labels)]
    rows = vectors.base, vectors.queries
    return Problem(small.name, *rows, images, query_images, labels[0], labels[1], small.about)


def _of_file(source: str) -> Problem:
    """The rows of a file, some of them held out as queries."""
    X = data.read_vectors(source)
    if len(X) < 2 * HELD_OUT:
        raise InvalidInput(f"{source} has {len(X)} rows; an experiment needs at least {2 * HELD_OUT}.")
    order = np.random.RandomState(0).permutation(len(X))
    n_queries = min(len(X) // HELD_OUT, MOST_HELD_OUT)
    asked, kept = np.sort(order[:n_queries]), np.sort(order[n_queries:])
    name = Path(KEYED.sub("", source)).stem
    return Problem(name, X[kept], X[asked], about=f"{source}; {n_queries:,} of its rows are the queries")
