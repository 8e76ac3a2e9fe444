"""The gallery and the examples of docstrings run, and say what they promise."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import auxbit
from auxbit import evaluate, export, plot, stores
from auxbit.hashers.registry import METHODS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "reference"))
gallery = importlib.import_module("gallery")

# what the quick scripts must say; `make docs` runs the others, too
QUICK = {
    "read_history": r"yes",
    "own_estimator": r"validation precision: 0\.\d+ at first",
    "faiss_index": r"form 'additive': recall@10 = 0\.8\d",
    "duplicates": r"radius 8: 100 of 100 copies, and 0 other pairs",
    "paper_in_numpy": r"bits that differ: 0\n(.*\n)*auxbit, preset='default'",
}


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="no matplotlib: pip install 'auxbit[plot]'")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    methods = dict(METHODS)
    yield
    pyplot.close("all")
    for name in METHODS.keys() - methods.keys():  # of `register`, which other tests do not expect
        del METHODS[name]


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("name", QUICK)
def test_a_script_of_the_gallery_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert re.search(QUICK[name], capsys.readouterr().out)


def test_every_script_is_in_the_gallery_and_begins_with_its_title() -> None:
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == set(gallery.ORDER)
    for name in gallery.ORDER:
        first = gallery.cells_of((ROOT / "examples" / f"{name}.py").read_text())[0]
        assert re.match(r"# \w[^\n]*\n\n\S", first.text), name


def test_cells_keep_every_line_of_a_script_and_notebooks_hold_them() -> None:
    script = '"""# Title\n\nAbout."""\nimport os\n\n# %% A cell,\n# in two lines.\nx = 1\nprint(x)\n'
    cells = gallery.cells_of(script)
    assert [(cell.text, cell.code) for cell in cells] == [
        ("# Title\n\nAbout.", "import os"),
        ("A cell,\nin two lines.", "x = 1\nprint(x)"),
    ]
    cells[1].output = "1"
    notebook = json.loads(gallery.as_notebook(cells))
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code"] * 2
    assert notebook["cells"][3]["outputs"][0]["text"] == "1\n"


def test_a_script_is_run_cell_by_cell_with_what_it_prints_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib: pip install 'auxbit[plot]'")
    path = tmp_path / "drawn.py"
    path.write_text(
        '"""# T\n\nAbout."""\nprint("a")\n# %% Draw.\nimport matplotlib.pyplot as plt\nplt.plot([1])\n'
    )
    first, second = gallery.run(path)
    assert (first.output, first.figures) == ("a", [])
    assert second.output == ""
    assert [png[:4] for png in second.figures] == [b"\x89PNG"]


# ---- examples of docstrings

PUBLIC: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (auxbit, plot, export)
    for name in module.__all__
}
PUBLIC |= {
    f"evaluate.{name}": value
    for name, value in vars(evaluate).items()
    if inspect.isfunction(value) and value.__module__ == evaluate.__name__ and name[0] != "_"
    if name not in ("check_metric", "nearest_scaled")  # for other modules
}
PUBLIC |= {"stores.connect": stores.connect}


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_an_example_that_is_true(name: str) -> None:
    example, found = PUBLIC[name], doctest.DocTestFinder(recurse=False)
    tests = found.find(example, name, globs=vars(inspect.getmodule(example)).copy())
    assert tests, f"{name} has no docstring"
    assert tests[0].examples, f"{name} has no example: lines of its docstring that begin with >>>"
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(tests[0], out=said.write).failed == 0, said.getvalue()


def test_help_of_the_autoencoder_begins_with_an_example() -> None:
    first, blank, example = inspect.getdoc(auxbit.BinaryAutoencoder).splitlines()[:3]  # type: ignore[union-attr]
    assert (first[:18], blank, example[:3]) == ("Binary autoencoder", "", ">>>")
