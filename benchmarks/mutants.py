"""Mutation testing: `python benchmarks/mutants.py --count 50`, results in docs/results/mutants.jsonl.

The source is changed in one place at random (an operator, a number, a condition …, by the operators of
cosmic-ray), and the tests must notice. Each mutant is tried on a copy of the repository, first by the test
files of its module, then by all tests of its package. Mutants that were tried before are not tried again;
survivors are printed at the end, with the reason that SURVIVORS has for them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import RESULTS, table

ROOT, PATH = RESULTS.parents[1], RESULTS / "mutants.jsonl"
PACKAGES = ("mac", "index", "collection", "quantiser")
SECONDS = 900.0  # of the tests of one mutant; one that hangs is noticed, too
SURVIVORS = {  # the changed line, and why no test can or need notice
    "nearest_first(found[at : at + n_parts], k) if n_parts > 1 else found[at]": "what is sorted stays sorted",
    "for block in range(first, min(last, first + FETCHED // size)):": "only has memory fetched",
    "for v in range(1, n_values[j]):": "the first value is what the others are compared with",
    "self._planes, self._ours = grown, True": "codes are copied once more than they need be",
    "with self._guard.reading(), Workers(self.n_jobs, blas=False) as workers:": "only tells BLAS its threads",
}


def operators() -> dict[str, Any]:
    """The operators of cosmic-ray, by name, without those that make no sense of typed code."""
    from cosmic_ray.plugins import get_operator, operator_names

    found = {name: get_operator(name) for name in operator_names()}
    return {name: kind() for name, kind in found.items() if not kind.arguments() and "Decorator" not in name}


def untried_lines(tree: ast.AST) -> set[int]:
    """Lines that no test can notice: annotations, imports for types, and texts of errors."""
    lines = set[int]()
    for node in ast.walk(tree):
        inner = list[Any]()
        if isinstance(node, ast.arg | ast.AnnAssign):
            inner = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            inner = [node.returns]
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            inner = [node]
        for each in filter(None, inner):
            lines |= set(range(each.lineno, each.end_lineno + 1))
    return lines


def mutants_of(path: Path) -> Iterator[tuple[str, int, int]]:
    """All mutants of a module: operator, occurrence and line."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    nodes, left_out = list(ast_nodes(get_ast_from_path(path))), untried_lines(ast.parse(path.read_text()))
    for name, operator in operators().items():
        places = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, ((line, _), _) in enumerate(places):
            if line not in left_out:
                yield name, occurrence, line


def chosen(package: str, count: int, seed: int) -> list[tuple[str, str, int, int]]:
    """A sample: every line of a package has the same chance, and so have the operators that change it."""
    by_line: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for path in sorted((ROOT / "src/auxbit" / package).glob("*.py")):
        for name, occurrence, line in mutants_of(path):
            by_line.setdefault((path.name, line), []).append((name, occurrence))
    draw = random.Random(seed)
    lines = draw.sample(sorted(by_line), min(count, len(by_line)))
    return [(module, *draw.choice(by_line[module, line]), line) for module, line in lines]


def tests_of(package: str, module: str) -> list[list[str]]:
    """The test files of a module, and then those of its package."""
    folder = ROOT / "tests" / package
    near = sorted(folder.glob(f"test_{Path(module).stem}*.py"))
    return [
        [str(each.relative_to(ROOT)) for each in some]
        for some in (near, sorted(set(folder.glob("*.py")) - set(near)))
        if some
    ]


def attempt(copy: Path, package: str, module: str, name: str, occurrence: int) -> dict[str, Any]:
    """Change the copy, run the tests, and change it back."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path = copy / "src/auxbit" / package / module
    before = path.read_text()
    after = mutate_code(before, get_operator(name)(), occurrence)
    changes = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]
    removed, added = ([line[1:].strip() for line in changes if line[0] == sign] for sign in "-+")
    start, noticed = time.perf_counter(), False
    try:
        path.write_text(after)
        for files in tests_of(package, module):
            noticed = noticed or not passes(copy, files)
    finally:
        path.write_text(before)
    lines = {"before": " ".join(removed), "after": " ".join(added)}
    return lines | {"killed": noticed, "seconds": round(time.perf_counter() - start, 1)}


def passes(copy: Path, files: list[str]) -> bool:
    """Whether tests pass, in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    environment = os.environ | {
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy / 'tests'}",
        "NUMBA_CACHE_DIR": str(copy / "kernels"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
    }
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=copy, env=environment, start_new_session=True, **quiet) as tests:
        try:
            return tests.wait(SECONDS) == 0
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            return False


def summary(rows: list[dict[str, Any]]) -> str:
    """How many were killed, package by package, and all that survived."""
    lines = []
    for package in PACKAGES:
        some = [row for row in rows if row["package"] == package]
        killed = sum(row["killed"] for row in some)
        reasons = sum(not row["killed"] and row["before"] in SURVIVORS for row in some)
        if some:
            share = f"{100 * killed / len(some):.0f} %"
            lines.append((package, len(some), killed, share, reasons))
    alive = [
        f"{row['package']}/{row['module']}:{row['line']}: {row['before']}  →  {row['after']}"
        + (f"  ({SURVIVORS[row['before']]})" if row["before"] in SURVIVORS else "")
        for row in rows
        if not row["killed"]
    ]
    return "\n".join(
        [table(("package", "mutants", "killed", "share", "survive with a reason"), lines), "", *alive]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--count", type=int, default=50, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = [json.loads(line) for line in PATH.read_text().splitlines()] if PATH.exists() else []
    tried = {(row["package"], row["module"], row["operator"], row["line"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "auxbit"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "site", "__pycache__"))
        for package in options.packages:
            for module, name, occurrence, line in chosen(package, options.count, options.seed):
                if (package, module, name, line) in tried:
                    continue
                about = {"package": package, "module": module, "line": line, "operator": name}
                rows.append(about | attempt(copy, package, module, name, occurrence))
                with PATH.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    print(summary(rows))


if __name__ == "__main__":
    main()
