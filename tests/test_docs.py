"""The site: it is built without a warning, asks nobody else, and its figures are those of MAC."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install 'auxbit[docs]'")
    pytest.importorskip("mkdocstrings", reason="no mkdocstrings: pip install 'auxbit[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def test_it_is_built_without_warnings_and_has_a_page_for_each_file(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    made = {"contributing", "changelog", "license", "licences"}
    assert {path.name for path in site.iterdir() if (path / "index.html").exists()} >= pages | made
    assert not (site / "results").exists()


class Links(HTMLParser):
    """The ids of a page, and what it links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.targets.append(value or "")


def test_every_link_leads_to_a_page_and_a_heading_that_are_there(site: Path) -> None:
    pages = {path: Links(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for target in page.targets:
            address, _, anchor = unquote(target).partition("#")
            if "://" in address or address.startswith(("mailto:", "data:")):
                continue
            there = (path.parent / address).resolve() if address else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file() or (anchor and there in pages and anchor not in pages[there].ids):
                broken.append(f"{path.relative_to(site)}: {target}")
    assert len(pages) > 25
    assert broken == []


def test_links_of_the_readme_and_other_files_of_the_root_lead_to_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", (ROOT / name).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == [], name


def test_the_http_reference_has_every_route_and_document(site: Path) -> None:
    text = (site / "reference" / "http" / "index.html").read_text()
    for wanted in ("GET /api/v1/items/{id}", "POST /api/v1/search/vector", 'id="vectorquery"'):
        assert wanted in text


def test_every_dependency_has_a_line_among_the_licences(site: Path) -> None:
    text = (site / "licences" / "index.html").read_text()
    for name in ("numpy", "faiss-cpu", "matplotlib", "psycopg"):
        assert f"<td>{name}</td>" in text


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?(https?:[^\"' >]+)")
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page


def test_the_reference_has_examples_as_code_and_parameters_as_lists(site: Path) -> None:
    text = (site / "reference" / "python" / "index.html").read_text()
    assert "&gt;&gt;&gt;" not in text
    assert re.search(r"<li>\s*<code>source</code>: the first rows", text)
    assert "auxbit.BinaryAutoencoder.encode" in text  # the methods that all hashers have


def test_no_markdown_is_left_as_text_or_quoted_by_mistake(site: Path) -> None:
    for page in site.rglob("index.html"):
        found = re.search(r"<article.*?</article>", page.read_text(), re.S)
        assert found, page
        words = re.sub(r"<(pre|code)\b.*?</\1>|<[^>]+>", "", found[0], flags=re.S)
        assert "<blockquote" not in found[0], page  # a line that begins with >= is one
        assert not re.search(r"`|\*\*[a-zA-Z]|\]\(", words), page


def test_no_line_of_code_has_to_be_scrolled_beside_a_table_of_contents(site: Path) -> None:
    for page in site.rglob("index.html"):
        for code in re.findall(r"<pre.*?</pre>", page.read_text(), re.S):
            lines = unescape(re.sub(r"<[^>]+>", "", code)).splitlines()
            assert [line for line in lines if len(line) > 91] == [], page


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
