"""The gallery: runs the scripts of examples/ and keeps what they print and draw, for site and notebooks.

`python docs/reference/gallery.py [NAME …]` runs all, or those named, into build/gallery/; the site is
built with what is there. A script is a docstring in Markdown, then cells, each after a line `# %% text`.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "build" / "gallery"
CELL = re.compile(r"^# %% ?(.*(?:\n# .*)*)\n", re.M)
MARK = "\x1e"  # between the outputs of cells

# in the order of the page
ORDER = (
    "shrink_text", "compare_methods", "paper_in_numpy", "read_history", "own_estimator",
    "pictures", "duplicates", "faiss_index", "postgresql", "dask_cluster",
)  # fmt: skip


@dataclass
class Cell:
    """A piece of a script. text : Markdown; output : what it printed; figures : PNG."""

    text: str
    code: str
    output: str = ""
    figures: list[bytes] = field(default_factory=list)


def cells_of(script: str) -> list[Cell]:
    """The cells of a script; the first one has its docstring as text."""
    tree = ast.parse(script)
    docstring = ast.get_docstring(tree) or ""
    rest = "\n".join(script.splitlines()[tree.body[0].end_lineno or 0 :]) + "\n"
    first, *others = CELL.split(rest)
    pairs = zip(others[::2], others[1::2])
    return [Cell(docstring, first.strip("\n"))] + [
        Cell(text.replace("\n# ", "\n"), code.strip("\n")) for text, code in pairs
    ]


def run(path: Path) -> list[Cell]:
    """The cells with what they print and draw, from a process and a folder of their own."""
    cells = cells_of(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        lines = path.read_text()
        step = f"print({MARK!r}, flush=True)\n"
        marked = CELL.sub(lambda found: f"_keep_figures()\n{step}{found[0]}", lines)
        (Path(folder) / "script.py").write_text(f"{PROLOGUE}\n{marked}\n_keep_figures()\n")
        command = [sys.executable, "-W", "ignore", "script.py"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment())
        if ran.returncode != 0:
            raise SystemExit(f"{path.name} failed:\n{ran.stderr[-3000:]}")
        for place, (cell, output) in enumerate(zip(cells, ran.stdout.split(f"{MARK}\n"), strict=True)):
            cell.output = output.rstrip()
            cell.figures = [each.read_bytes() for each in sorted(Path(folder).glob(f"figure-{place}-*.png"))]
    return cells


PROLOGUE = """
def _keep_figures(state={"cell": 0}):
    import sys
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        figure = pyplot.figure(number)
        figure.savefig(f"figure-{state['cell']}-{number:02}.png", dpi=110, bbox_inches="tight")
        pyplot.close(number)
    state["cell"] += 1
"""


def environment() -> dict[str, str]:
    """That of this process, for figures without a screen."""
    return os.environ | {"MPLBACKEND": "Agg", "COLUMNS": "100"}


# ---- what is made of them


def title_of(cells: list[Cell]) -> str:
    """The first line of the docstring."""
    return cells[0].text.splitlines()[0].removeprefix("# ")


def as_markdown(name: str, cells: list[Cell]) -> str:
    """The page of a script."""
    heading, _, about = cells[0].text.partition("\n")
    lines = [heading, "", about.strip(), ""]
    lines += [f"The script: [{name}.py]({name}.py); as a notebook: [{name}.ipynb]({name}.ipynb).", ""]
    for place, cell in enumerate(cells):
        lines += [cell.text, ""] if place else []
        lines += ["```python", cell.code, "```", ""]
        lines += ["```text", cell.output, "```", ""] if cell.output else []
        said = re.sub(r"[`\[\]]", "", " ".join(cell.text.split())) if place else title_of(cells)
        for number, figure in enumerate(cell.figures):
            lines.append(f"![{said}]({picture(name, place, number)}){shape(figure)}\n")
    return "\n".join(lines)


def picture(name: str, cell: int, number: int) -> str:
    """The file of a figure."""
    return f"{name}-{cell}-{number}.png"


def shape(png: bytes) -> str:
    """What site.css is told of a figure of several panels: it needs room on a phone."""
    width, height = (int.from_bytes(png[start : start + 4]) for start in (16, 20))
    return "{ .wide }" if width > 2 * height else ""


def as_notebook(cells: list[Cell]) -> str:
    """A notebook (format 4.5) with outputs."""
    made: list[dict[str, Any]] = []
    for place, cell in enumerate(cells):
        common: dict[str, Any] = {"metadata": {}}
        made.append(common | {"id": f"text-{place}", "cell_type": "markdown", "source": cell.text})
        outputs: list[dict[str, Any]] = []
        if cell.output:
            outputs.append({"output_type": "stream", "name": "stdout", "text": cell.output + "\n"})
        for figure in cell.figures:
            data = {"image/png": base64.b64encode(figure).decode()}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        code = {"id": f"code-{place}", "cell_type": "code", "source": cell.code}
        made.append(common | code | {"outputs": outputs, "execution_count": None})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps(
        {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5},
        ensure_ascii=False,
        indent=1,
    )


def keep(name: str, cells: list[Cell]) -> None:
    """Write what a script printed and drew, for the site."""
    MADE.mkdir(parents=True, exist_ok=True)
    rows = [
        asdict(cell) | {"figures": [base64.b64encode(png).decode() for png in cell.figures]} for cell in cells
    ]
    (MADE / f"{name}.json").write_text(json.dumps(rows))


def kept(name: str) -> list[Cell]:
    """The cells of a script, with what it printed and drew if it was run as it is now."""
    cells = cells_of((ROOT / "examples" / f"{name}.py").read_text())
    path = MADE / f"{name}.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    if [(row["text"], row["code"]) for row in rows] == [(cell.text, cell.code) for cell in cells]:
        return [Cell(**row | {"figures": [base64.b64decode(f) for f in row["figures"]]}) for row in rows]
    return cells


def pages() -> dict[str, str | bytes]:
    """Every file of the gallery on the site, by its address."""
    made: dict[str, str | bytes] = {}
    index = [
        "# Gallery\n\nShort scripts with what they print and draw, also as notebooks. All data come with "
        "scikit-learn or Python, so they run anywhere: `pip install 'auxbit[all]'`.\n"
    ]
    for name in ORDER:
        cells = kept(name)
        about = textwrap.shorten(cells[0].text.partition("\n")[2], 400, placeholder=" …")
        index.append(f"## [{title_of(cells)}]({name}.md)\n\n{about}\n")
        made[f"gallery/{name}.md"] = as_markdown(name, cells)
        made[f"gallery/{name}.ipynb"] = as_notebook(cells)
        made[f"gallery/{name}.py"] = (ROOT / "examples" / f"{name}.py").read_bytes()
        for place, cell in enumerate(cells):
            made |= {f"gallery/{picture(name, place, n)}": figure for n, figure in enumerate(cell.figures)}
    return made | {"gallery/index.md": "\n".join(index)}


if __name__ == "__main__":
    for name in sys.argv[1:] or ORDER:
        start = time.perf_counter()
        keep(name, run(ROOT / "examples" / f"{name}.py"))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
