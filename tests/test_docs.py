"""The site: it is built without a warning, asks nobody else, and its figures are those of MAC."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install 'auxbit[docs]'")
    pytest.importorskip("mkdocstrings", reason="no mkdocstrings: pip install 'auxbit[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def test_it_is_built_without_warnings_and_has_a_page_for_each_file(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {path.name for path in site.iterdir() if (path / "index.html").exists()} >= pages
    assert not (site / "results").exists()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?(https?:[^\"' >]+)")
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page


def test_the_reference_has_examples_as_code_and_parameters_as_lists(site: Path) -> None:
    text = (site / "reference" / "python" / "index.html").read_text()
    assert "&gt;&gt;&gt;" not in text
    assert re.search(r"<li>\s*<code>source</code>: the first rows", text)


PATHS = json.loads((ROOT / "docs" / "assets" / "mac.json").read_text())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path['name']}, {path['bits']} bits")
def test_the_paths_that_are_shown_have_the_energies_of_their_codes_and_end_at_those_of_h(path: dict) -> None:
    X = np.array(path["points"])
    for step in path["steps"]:
        weights, A, b = (np.array(step[name]) for name in ("weights", "A", "b"))
        Z = np.array(step["codes"])[:, None] >> np.arange(path["bits"]) & 1
        free = np.square(X - (Z @ A.T + b)).sum()
        differ = int(((X @ weights[:, :2].T + weights[:, 2] >= 0) != Z).sum())
        assert free == pytest.approx(step["E_BFA"], rel=0.01, abs=0.01)
        assert abs(differ - step["differ"]) <= 2  # coordinates are rounded
        assert step["E_Q"] == pytest.approx(step["E_BFA"] + step["mu"] * step["differ"], abs=1e-3)
    assert path["steps"][-1]["differ"] == 0
    assert path["steps"][-1]["E_BA"] == path["steps"][-1]["E_Q"]
