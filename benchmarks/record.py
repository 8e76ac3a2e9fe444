"""Raw results as JSON lines: what was measured, on which machine, with which versions."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
LIBRARIES = ("auxbit", "numpy", "scipy", "numba", "scikit-learn", "faiss-cpu")


def data_folder() -> Path:
    """The folder of real data: AUXBIT_DATA, or ../shared/data from the repository's root."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUXBIT_DATA") or default)
    if not folder.is_dir():
        raise SystemExit(f"no data: set AUXBIT_DATA to a folder with siftsmall/, mnist/ …, or make {default}")
    return folder


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Seconds of wall and CPU time, and peak resident megabytes above those at the start."""
    out: dict[str, float] = {}
    reset_peak()
    base = resident("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    yield out
    out["seconds"] = round(time.perf_counter() - wall, 3)
    out["cpu_seconds"] = round(time.process_time() - cpu, 3)
    out["peak_mb"] = round(resident("VmHWM") - base, 1)


def reset_peak() -> None:
    """Let the kernel forget the peak so far (Linux; elsewhere the peak is that of the whole process)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> float:
    """A line of /proc/self/status in megabytes."""
    for line in _read("/proc/self/status").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Results:
    """A file of raw results; each line carries its command and machine."""

    def __init__(self, name: str, command: str) -> None:
        self.path = RESULTS / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")
        self._common = {"command": command, "machine": machine()}
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        """Append a row at once, so that an interrupted run keeps what it has."""
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(self._common | row, default=float) + "\n")

    def mean(self, value: str, **where: Any) -> float:
        """The mean of a column over the rows that match."""
        return float(np.mean([row[value] for row in self.where(**where)]))

    def least(self, value: str, **where: Any) -> float:
        """The least of a column over the rows that match."""
        return float(min(row[value] for row in self.where(**where)))

    def where(self, **where: Any) -> list[dict[str, Any]]:
        """The rows that match."""
        return [row for row in self.rows if where.items() <= row.items()]


def seconds_of(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall seconds of a process of its own."""
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def run(prefix: str, jobs: dict[str, Callable[[Results], str]], quick: Iterable[str] | None = None) -> None:
    """The command line of a file of benchmarks: run those named, or all (the quick ones), and print tables.

    A table also replaces the one before in the pages of docs/ that have a place for it.
    """
    names = sys.argv[1:] or list(quick or jobs)
    if unknown := set(names) - set(jobs):
        raise SystemExit(f"unknown: {', '.join(unknown)}. There are: {', '.join(jobs)}")
    for name in names:
        command = f"python benchmarks/{prefix}.py {name}"
        results = Results(f"{prefix}-{name}", command)
        print(f"\n## {name}: {jobs[name].__doc__}\n", flush=True)
        start = time.perf_counter()
        made = jobs[name](results)
        print(f"{made}\n\n({time.perf_counter() - start:.0f} s)", flush=True)
        about = " ".join((jobs[name].__doc__ or "").split())
        fill_in(f"{prefix}-{name}", f"{made}\n\n`{command}`: {about}")


def fill_in(name: str, text: str) -> None:
    """Put the text between <!-- name --> and <!-- /name --> in README and the pages of docs/."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    for page in (RESULTS.parents[1] / "README.md", *RESULTS.parent.glob("*.md")):
        content = page.read_text()
        if begin in content:
            head, rest = content.split(begin, 1)
            page.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
