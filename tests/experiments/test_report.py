"""The report: one HTML file that needs no other, the same bytes for the same results, everything escaped."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from auxbit.experiments import report
from auxbit.experiments.study import Claim, Result
from auxbit.plot import figures as plot

EVIL = """<script>alert("1")</script>&'"""
VOID = {"meta", "img", "source", "br"}


def drawn() -> Any:
    rows = [{"method": m, "bits": L, "precision": L / 40} for m in ("BA", "ITQ") for L in (8, 16)]
    return plot.precision(rows, title="drawn")


def result(name: str = "wrapper", *, rows: int = 3, figures: int = 1, claims: Any = None) -> Result:
    if claims is None:
        claims = [Claim("BA is best", f"{name} says so", True, name, "ours")]
    table = [{"method": "BA", "bits": 8 * i, "error": 1234.5678 / (i + 1), "none": None} for i in range(rows)]
    return Result(
        name, f"Title of {name}", f"As fig. 3: about {name}.", {"bits": [8, 16], "sets": [{"K": 5}]},
        {name: table}, {f"{name}-{i}": drawn for i in range(figures)}, claims,
    )  # fmt: skip


def made(*results: tuple[str, Result], **settings: Any) -> str:
    return report.page(list(results), settings)


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def values(self, tag: str, name: str) -> list[str | None]:
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


# ---- the whole


def test_the_page_is_well_formed_and_its_links_lead_somewhere() -> None:
    page = Page(made(("digits", result()), ("sift 1M", result()), ("digits", result("path"))))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = page.values("a", "href")
    assert {link[1:] for link in links if link} <= set(ids)
    assert {"#claims", "#digits-wrapper", "#sift-1m-wrapper", "#digits-path"} <= set(links)


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = made(("digits", result()))
    assert "<script" not in text
    assert not re.search(r"url\(|@import|<link", text)
    page = Page(text)
    sources = [*page.values("img", "src"), *page.values("source", "srcset")]
    assert len(sources) == 2
    assert all(source and source.startswith("data:image/svg+xml;base64,") for source in sources)
    for source in sources:
        svg = base64.b64decode(str(source).split(",")[1]).decode()
        assert not re.search(r'href="(?!#|data:)', svg)


def test_everything_is_escaped() -> None:
    claim = Claim(EVIL, EVIL, None, EVIL, EVIL)
    evil = Result(EVIL, EVIL, EVIL, {EVIL: EVIL}, {EVIL: [{EVIL: EVIL}]}, {EVIL: drawn}, [claim])
    text = made((EVIL, evil), **{EVIL: EVIL})
    assert "<script" not in text
    page = Page(text)
    assert page.text.count(EVIL) >= 10
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "dl", "dt", "dd",
        "nav", "ul", "li", "a", "b", "small", "section", "table", "caption", "thead", "tbody", "tr", "th",
        "td", "figure", "picture", "source", "img", "div", "details", "summary",
    }  # fmt: skip


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t; "
        "from auxbit.experiments.report import page; "
        "text = page([('digits', t.result())], {'seconds': 1.5}); sys.stdout.buffer.write(text.encode())"
    )
    tests = str(Path(__file__).parent)
    other = subprocess.run([sys.executable, "-c", code, tests], check=True, capture_output=True).stdout
    assert other == report.page([("digits", result())], {"seconds": 1.5}).encode()


def test_a_report_without_results_says_that_there_are_no_checks() -> None:
    assert "Of 0 checks" in Page(made()).text


# ---- claims


def test_claims_come_first_each_with_what_was_found_on_every_data_set() -> None:
    text = made(
        ("digits", result(claims=[Claim("BA is best", "ours: 3", True, "wrapper", "digits")])),
        ("mnist", result(claims=[Claim("BA is best", "ours: 5", False, "wrapper", "mnist")])),
        ("sift", result(claims=[Claim("BA is best", "ours: 7", None, "wrapper", "sift")])),
    )
    table = text[text.index('<table class="claims">') : text.index("</table>")]
    assert table.count("BA is best") == 1
    found = re.findall(
        r'<td><a href="#(.*?)">(.*?)</a></td><td><b class="(.*?)">(.*?)</b></td><td>(.*?)</td>', table
    )
    assert found == [
        ("digits-wrapper", "digits", "yes", "yes", "ours: 3"),
        ("mnist-wrapper", "mnist", "no", "no", "ours: 5"),
        ("sift-wrapper", "sift", "unknown", "unknown", "ours: 7"),
    ]
    assert text.index('<table class="claims">') < text.index("Title of wrapper")
    assert "Of 3 checks, a claim on a data set each, 1 hold and 1 do not; 1 cannot be judged here." in text


def test_results_of_one_data_set_stand_together_in_their_order() -> None:
    text = made(
        ("a", result("wrapper")), ("b", result("wrapper")), ("a", result("path")), ("a", result("path"))
    )
    assert re.findall(r"<h2>(.*?)</h2>", text)[1:] == ["a", "b"]
    assert re.findall(r'<section id="(.*?)"', text) == [
        "claims",
        "a-wrapper",
        "a-path",
        "a-path-2",
        "b-wrapper",
    ]


# ---- figures, tables, settings


def test_a_figure_is_drawn_for_light_and_for_dark_screens() -> None:
    page = Page(made(("digits", result(figures=2))))
    assert page.values("source", "media") == ["screen and (prefers-color-scheme: dark)"] * 2
    light, dark = (
        base64.b64decode(str(page.values(tag, name)[0]).split(",")[1]).decode()
        for tag, name in (("img", "src"), ("source", "srcset"))
    )
    for svg in (light, dark):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "<text" not in svg  # letters are outlines
    assert "#16181d" in dark
    assert "#16181d" not in light
    assert all(page.values("img", "alt"))


def test_short_tables_are_shown_whole_and_long_ones_folded() -> None:
    def rows(text: str) -> tuple[int, int]:
        shown, folded = text.split("Settings and versions")[0].split("</table></section>")[1], 0
        if "<details>" in shown:
            shown, rest = shown.split("<details>")[:2]
            folded = rest.count("<tr><td")
        return shown.count("<tr><td"), folded

    few = {"figures": 0, "claims": []}
    assert rows(made(("d", result(rows=report.LONG, **few)))) == (report.LONG, 0)
    long = made(("d", result(rows=report.LONG + 1, **few)))
    assert rows(long) == (report.SHOWN_ROWS, report.LONG + 1 - report.SHOWN_ROWS)
    assert f"The other {report.LONG + 1 - report.SHOWN_ROWS} rows<" in long
    huge = made(("d", result(rows=report.MOST_ROWS + 5, **few)))
    assert rows(huge) == (report.SHOWN_ROWS, report.MOST_ROWS - report.SHOWN_ROWS)
    assert f"(up to {report.MOST_ROWS}; all are in wrapper.csv)" in huge
    assert rows(made(("d", result(rows=0, **few)))) == (0, 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (True, "yes"), (False, "no"), (3, "3"), (0.123456, "0.1235"), (12345.678, "12,346"),
        (1e12, "1e+12"), (float("nan"), "nan"), ([1, 2.5], "1, 2.5"), ("a<b", "a<b"),
        ({"K": 5, "r": [1, 2]}, "K 5; r 1, 2"), ([{"K": 5}, {"K": 6}], "(K 5); (K 6)"), (("a", "b"), "a, b"),
    ],
)  # fmt: skip
def test_values_are_written_for_people(value: Any, text: str) -> None:
    assert report._text(value) == text


def test_columns_of_numbers_are_flush_right_and_of_words_left() -> None:
    text = report.table("t", [{"method": "BA", "bits": 8, "none": None}, {"method": "ITQ", "bits": None}])
    assert re.findall(r'<th scope="col"(.*?)>(.*?)</th>', text) == [
        ("", "method"), (' class="n"', "bits"), (' class="n"', "none")
    ]  # fmt: skip


def test_settings_and_versions_are_with_every_result_and_those_of_the_run_at_the_top() -> None:
    page = Page(made(("digits", result()), command="auxbit experiment all", seconds=12.5))
    assert page.text.index("auxbit experiment all") < page.text.index("BA is best")
    assert page.text.count("Settings and versions") == 1
    assert "numpy" in page.text
    assert "bits8, 16" in page.text


def test_how_to_read_a_figure_is_said_where_there_is_one() -> None:
    assert "In the paper BA is best in all three" in Page(made(("digits", result()))).text
    assert "In the paper BA is best in all three" not in Page(made(("digits", result(figures=0)))).text
