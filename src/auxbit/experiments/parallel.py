"""The paper's figure of speed-up by processors (section 6, parallel processing): one fit on 1, 2, … cores.

fits = planned([16, 32])                  # best of three each, for up to all cores
result = run_parallel(noisy_digits(), fits, out_dir="parallel")
"""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Array, check_integer
from auxbit.core.parallel import BLOCK_ROWS, resolve_n_jobs
from auxbit.data import vectors
from auxbit.errors import AuxbitError, InvalidParameter
from auxbit.experiments.study import (
    PAPER,
    Claim,
    Fits,
    KeptRows,
    Result,
    Row,
    array_checksum,
    as_csv,
    check_folder,
    check_preset,
)
from auxbit.hashers.autoencoder import BinaryAutoencoder
from auxbit.plot import figures

N_ROWS = 50_000  # as many as the paper's CIFAR has
NOISE = 1.0  # standard deviation; pixels are 0..16
WARM_UP_ROWS = 2 * BLOCK_ROWS
STEPS = ("h", "f", "z")
TIMES = ("seconds", "seconds_h", "seconds_f", "seconds_z", "seconds_rest")
FILES = {"table": "table.csv", "results": "results.json", "plot": "speedup.png", "drawing": "speedup.svg"}
PICTURES = ("plot", "drawing")
ROWS = "rows.jsonl"


class Fit(NamedTuple):
    """A fit to be timed."""

    bits: int
    processors: int
    repeat: int


def planned(bits: Iterable[int], *, repeats: int = 3, n_jobs: int | None = None) -> list[Fit]:
    """Every fit in order: 1, 2, …, P processors, then again, so that a busy machine slows all alike.

    n_jobs : the most processors; never more than the cores that this process may use.
    """
    wanted = list(dict.fromkeys(BinaryAutoencoder.check_bits(each) for each in bits))
    if not wanted:
        raise InvalidParameter("bits", wanted, "at least one number of bits", "Try 16,32.")
    check_integer("repeats", repeats, 1)
    most = min(resolve_n_jobs(n_jobs), resolve_n_jobs(None))
    every = product(wanted, range(repeats), range(1, most + 1))
    return [Fit(each, processors, repeat) for each, repeat, processors in every]


def noisy_digits(n_rows: int | None = None) -> npt.NDArray[np.float32]:
    """Rows like real ones, by default N_ROWS: scikit-learn's digits over and over, with noise."""
    n_rows = N_ROWS if n_rows is None else check_integer("rows", n_rows, 2)
    digits, _ = vectors.embedded_digits()
    X = digits[np.arange(n_rows) % len(digits)]
    X += np.float32(NOISE) * np.random.default_rng(0).standard_normal(X.shape, dtype=np.float32)
    return X


def run_parallel(
    X: Array, fits: Sequence[Fit], *, preset: str = PAPER, seed: int = 0, source: str = "",
    out_dir: str | os.PathLike[str] | None = None, overwrite: bool = False,
    on_fit: Callable[[Row, bool], object] = lambda row, fresh: None,
) -> Row:  # fmt: skip
    """Time the fits on the rows of X and derive the speed-ups; with `out_dir`, write them and a picture.

    Fits that `out_dir` keeps from this machine are not timed again; `on_fit(row, fresh)` is called for each
    fit. It is an error if codes differ in a single bit between numbers of processors.
    """
    most, model = max(fit.processors for fit in fits), partial(_model, check_preset(preset), seed)
    folder = Path(out_dir) if out_dir is not None else None
    if folder is not None:
        names = [name for key, name in FILES.items() if most > 1 or key not in PICTURES]
        check_folder(folder, names, overwrite=overwrite)
    machine = [platform.node(), resolve_n_jobs(None)]  # times belong to it
    data = array_checksum(X) if folder is not None else ""
    settings = {"experiment": "parallel", "data": data, "preset": preset, "machine": machine}
    kept = KeptRows(folder and folder / ROWS, settings)
    rows: list[Row] = []
    warm: set[int] = set()
    n_kept = 0
    for fit in fits:
        place: dict[str, Any] = {"processors": fit.processors, "repeat": fit.repeat}
        row = kept.read(**place).get(("BA", fit.bits, seed))
        fresh = row is None
        if row is None:
            if fit.bits not in warm:
                _warm_up(X, model(fit.bits, most))
                warm.add(fit.bits)
            quiet = any(before["bits"] == fit.bits for before in rows)
            row = _timed(X, fit, seed, model(fit.bits, fit.processors), quiet=quiet)
        _check_same_codes(rows, row, kept.path)
        rows.append(row)
        if fresh:
            kept.add(row, **place)
        n_kept += not fresh
        on_fit(row, fresh)
    result: Row = {
        "data": source, "preset": preset, "train_rows": X.shape[0], "columns": X.shape[1],
        "cores": resolve_n_jobs(None), "processors": most, "most_speedup": most_speedup(len(X), most),
        "repeats": max(fit.repeat for fit in fits) + 1, "seed": seed, "same_codes": True,
        "spread": spread(rows), "kept_fits": n_kept, "rows": speedups(rows), "fits": rows,
    }  # fmt: skip
    return result if folder is None else result | {"files": _write(result, folder, overwrite)}


def speedups(rows: Sequence[Row]) -> list[Row]:
    """One row for each number of bits and processors: each part's best seconds, and T1/TP of each."""
    made: dict[tuple[int, int], Row] = {}
    for (bits, processors), group in sorted(_by_setting(rows).items()):
        best = {name: min(row[name] for row in group) for name in TIMES}
        row: Row = {"bits": bits, "processors": processors, "repeats": len(group)}
        row |= {"iterations": group[0]["iterations"]} | best
        made[bits, processors] = row
        for name, seconds in best.items():
            ratio = made[bits, 1][name] / seconds if seconds > 0 else None
            row[name.replace("seconds", "speedup")] = ratio
    return list(made.values())


def spread(rows: Sequence[Row]) -> float:
    """How much longer the slowest of equal fits took than the quickest, as a share, at worst."""
    seconds = [[float(row["seconds"]) for row in group] for group in _by_setting(rows).values()]
    return max(max(each) / min(each) for each in seconds) - 1


def most_speedup(n_rows: int, processors: int) -> float:
    """The largest speed-up of the steps: processors share whole blocks of rows, the last of them small."""
    whole, rest = divmod(n_rows, BLOCK_ROWS)
    rounds = -(-whole // processors)
    last = rest / BLOCK_ROWS if whole % processors == 0 else 0.0  # else it fits beside whole ones
    return n_rows / BLOCK_ROWS / (rounds + last)


def _warm_up(X: Array, model: BinaryAutoencoder) -> None:
    """A whole fit to few rows, so that nothing is compiled or imported in one that is timed."""
    few = X[:WARM_UP_ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(few).encode(few)


def _timed(X: Array, fit: Fit, seed: int, model: BinaryAutoencoder, *, quiet: bool) -> Row:
    """The times of a fit. quiet : its warnings were shown before."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        start = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - start
    steps = {f"seconds_{s}": sum(getattr(record, f"seconds_{s}") for record in model.history_) for s in STEPS}
    rest = seconds - sum(steps.values())  # scaling, the first codes, the last h and f
    codes = array_checksum(model.encode(X))
    return {
        "method": "BA", **fit._asdict(), "seed": seed, "seconds": seconds, **steps, "seconds_rest": rest,
        "iterations": model.n_iter_, "codes": codes,
    }  # fmt: skip


def _model(preset: str, seed: int, bits: int, processors: int) -> BinaryAutoencoder:
    return BinaryAutoencoder(bits, preset=preset, validation=None, random_state=seed, n_jobs=processors)


def _by_setting(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["bits"], row["processors"]), []).append(row)
    return groups


def _check_same_codes(rows: Sequence[Row], row: Row, kept: Path | None) -> None:
    other = next((each for each in rows if each["bits"] == row["bits"]), row)
    if other["codes"] != row["codes"]:
        remedy = f" Or {kept} holds fits of another build: remove it." if kept is not None else ""
        raise AuxbitError(
            f"the codes of {row['bits']} bits on {row['processors']} processors are not those on "
            f"{other['processors']}, and must be to the last bit: this is a bug of auxbit.{remedy}"
        )


def _write(result: Row, folder: Path, overwrite: bool) -> dict[str, str]:
    several = result["processors"] > 1
    paths = {key: folder / name for key, name in FILES.items() if several or key not in PICTURES}
    files.write_text(paths["table"], as_csv(result["rows"]), overwrite=overwrite)
    files.write_text(paths["results"], json.dumps(result, indent=2), overwrite=overwrite)
    if several:
        bits = {row["bits"] for row in result["rows"]}
        title = f"Training on {result['train_rows']:,} rows"
        title += f", {bits.pop()} bits" if len(bits) == 1 else ""
        figure = figures.speedup(result["rows"], title=f"{title}: speed-up by processors")
        for key in PICTURES:
            figures.write(figure, paths[key], overwrite=overwrite)
    return {key: str(path) for key, path in (paths | {"rows": folder / ROWS}).items()}


# ---- figure 5

NEARLY = 0.9  # of perfect: what the paper calls nearly perfect scaling


def run(
    fits: Fits, *, bits: tuple[int, ...] = (16,), repeats: int = 2, seed: int = 0, preset: str = PAPER
) -> Result:
    """Time fits on 1, 2, … processors, as many as there are."""
    problem = fits.problem
    plan = planned(bits, repeats=repeats, n_jobs=fits.n_jobs)
    folder = None if fits.folder is None else fits.folder / "parallel"
    found = run_parallel(
        problem.train, plan, preset=preset, seed=seed, source=problem.name, out_dir=folder, overwrite=True
    )
    rows: list[Row] = found.pop("rows")
    draw = partial(figures.speedup, rows, title=f"{problem.name}: speed-up by processors")
    return Result(
        "parallel",
        f"Speed-up by processors on {problem.name}",
        "As fig. 5 of the paper: how many times as fast a fit and its h, f and Z "
        "steps are on several processors. The codes are the same to the last bit on any number of them.",
        {key: value for key, value in found.items() if key != "files"} | {"data": problem.name},
        {"parallel": rows},
        {"parallel": draw} if found["processors"] > 1 else {},
        [_claim(rows, found["processors"], problem.name)],
    )


def _claim(rows: list[Row], processors: int, data: str) -> Claim:
    text = "training scales nearly perfectly with processors (at least 0.9 of perfect)"
    if processors < 2:
        return Claim(text, "only one processor may be used here", None, "parallel", data)
    worst = min(row["speedup"] for row in rows if row["processors"] == processors)
    ours = f"{worst:.2f} times as fast on {processors} processors"
    return Claim(text, ours, worst >= NEARLY * processors, "parallel", data)
