"""Results of many experiments as one HTML file that needs no other files: claims, then figures and tables."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from auxbit.core.checks import require
from auxbit.experiments.study import Claim, Result, Row, versions
from auxbit.plot.style import darken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Hashing with binary autoencoders: the paper's experiments"
LEAD = (
    "The experiments of Carreira-Perpiñán and Raziperchikolaei (arXiv, January 2015), run again with auxbit "
    "on the data at hand. Numbers of sections and figures are the paper’s."
)
SHOWN_ROWS = 8  # of a long table, before the fold
LONG = 14  # rows that are not worth folding
MOST_ROWS = 400  # in the page: the rest is in the CSV file
WORDS = {True: "yes", False: "no", None: "unknown"}
# what to look for in a figure, by the name of the experiment
READING = {
    "wrapper": "Lower is better on the left, higher in the middle and on the right. In the paper BA is best "
    "in all three, tPCA worst, ITQ and BFA between them.",
    "altopt": "Lower is better. In the paper every dashed line (warm start) ends above every solid one "
    "(relaxed start), and the solid ones end together, at the exact result.",
    "parallel": "In the paper (fig. 5) the speed-up is nearly perfect up to 12 processors.",
    "retrieval": "Higher is better. In the paper BA is mostly above all others, BFA close below it, and "
    "within small r precision falls at large L, since many queries then find nothing.",
    "samples": "The first row of each block is what a perfect method would show.",
    "entropy": "Nearer to the dotted bound is a better use of codes. In the paper tPCA is highest though its "
    "precision is poor; the others come in the order of their precision.",
    "path": "The paper's figure is a sketch; here are the numbers. The three energies meet where Z = h(X).",
    "solvers": "The gap between the lines is the speed-up; the paper says 10 to 100 times.",
    "bits": "The grey bar marks the recommendation.",
}


def page(results: Sequence[tuple[str, Result]], settings: Mapping[str, Any]) -> str:
    """An HTML page of results, each with the name of its data; the same input gives the same bytes.

    settings : what made them all, such as the command, the machine and the time it took.
    """
    order = list(dict.fromkeys(data for data, _ in results))
    results = sorted(results, key=lambda named: order.index(named[0]))
    names = anchors(results)
    parts = [
        f'<header><h1>{escape(TITLE)}</h1>\n<p class="lead">{escape(LEAD)}</p>\n{_facts(settings)}</header>',
        _contents(results, names),
        _claims(results, names),
    ]
    for data, some in groupby(zip(results, names, strict=True), key=lambda each: each[0][0]):
        parts.append(f"<h2>{escape(data)}</h2>")
        parts += [_section(result, name) for (_, result), name in some]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(TITLE)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def anchors(results: Iterable[tuple[str, Result]]) -> list[str]:
    """A unique name for the section of each result."""
    made: list[str] = []
    for data, result in results:
        name = f"{_slug(data)}-{_slug(result.name)}"
        others = (f"{name}-{n}" for n in range(2, len(made) + 2))
        made.append(next(each for each in (name, *others) if each not in made))
    return made


def _contents(results: Sequence[tuple[str, Result]], names: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {}
    for (data, result), name in zip(results, names, strict=True):
        groups.setdefault(data, []).append(f'<a href="#{name}">{escape(result.name)}</a>')
    lines = [f"<li><b>{escape(data)}</b>: {', '.join(links)}</li>" for data, links in groups.items()]
    return f'<nav aria-label="Contents"><ul><li><a href="#claims">Claims</a></li>{"".join(lines)}</ul></nav>'


def _claims(results: Sequence[tuple[str, Result]], names: Sequence[str]) -> str:
    """The claims of the paper one after another, and under each, what was found on each data set."""
    every = [(data, claim) for data, result in results for claim in result.claims]
    places: dict[tuple[str, str], str] = {}  # the first section of an experiment on data
    for (data, result), name in zip(results, names, strict=True):
        places.setdefault((data, result.name), name)
    groups: dict[tuple[str, str], list[tuple[str, Claim]]] = {}
    for data, claim in every:
        groups.setdefault((claim.experiment, claim.claim), []).append((data, claim))
    counts = [sum(claim.holds is holds for _, claim in every) for holds in WORDS]
    bodies = []
    for (experiment, text), found in groups.items():
        rows = ""
        for data, claim in found:
            place = places.get((data, experiment))
            link = f'<a href="#{place}">{escape(data)}</a>' if place else escape(data)
            rows += f"<tr><td>{link}</td><td>{_word(claim)}</td><td>{escape(claim.ours)}</td></tr>"
        head = f"{escape(text)} <small>{escape(experiment)}</small>"
        bodies.append(f'<tbody><tr><th colspan="3" scope="rowgroup">{head}</th></tr>{rows}</tbody>')
    return (
        '<section id="claims"><h2>What the paper says, and what we find</h2>\n'
        f"<p>Of {len(every)} checks, a claim on a data set each, {counts[0]} hold and {counts[1]} do not; "
        f"{counts[2]} cannot be judged here. A claim that fails in one of its cases counts as “no”, unless "
        "it is about most of them. What is within two standard errors over the seeds is a tie, and counts "
        "for neither side.</p>\n"
        '<table class="claims"><thead><tr><th scope="col">data</th><th scope="col">holds</th>'
        f'<th scope="col">ours</th></tr></thead>{"".join(bodies)}</table></section>'
    )


def _word(claim: Claim) -> str:
    return f'<b class="{WORDS[claim.holds]}">{WORDS[claim.holds]}</b>'


def _section(result: Result, name: str) -> str:
    parts = [f"<h3>{escape(result.title)}</h3>", f"<p>{escape(result.about)}</p>"]
    if result.figures and result.name in READING:
        parts.append(f"<p>{escape(READING[result.name])}</p>")
    for title, make in result.figures.items():
        label = f"{result.title}: {title}. Its numbers are in the tables below."
        parts.append(f'<figure tabindex="0">{picture(make, label)}</figure>')
    if result.claims:
        lines = "".join(
            f"<li>{_word(claim)} {escape(claim.claim)}: {escape(claim.ours)}</li>" for claim in result.claims
        )
        parts.append(f'<ul class="found">{lines}</ul>')
    parts += [table(title, rows) for title, rows in result.tables.items()]
    made_with = _facts({**result.settings, "versions": versions()})
    parts.append(f"<details><summary>Settings and versions</summary>{made_with}</details>")
    parts.append('<p class="up"><a href="#claims">to the claims</a></p>')
    return f'<section id="{name}">{"".join(parts)}</section>'


def picture(make: Callable[[], Figure], label: str) -> str:
    """A figure as inline SVG, light and dark; in print it is light."""
    light, dark = (_as_uri(figure) for figure in (make(), darken(make())))
    return (
        f'<picture><source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{escape(label)}" src="{light}"></picture>'
    )


def table(name: str, rows: Sequence[Row]) -> str:
    """Rows as HTML; of many, the first are shown and the others folded."""
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [all(_is_number(row.get(key)) for row in rows) for key in columns]
    shown = rows if len(rows) <= LONG else rows[:SHOWN_ROWS]
    text = _rows(f"{name}.csv", columns, numeric, shown)
    if len(shown) < len(rows):
        rest = "" if len(rows) <= MOST_ROWS else f" (up to {MOST_ROWS}; all are in {escape(name)}.csv)"
        text += f"<details><summary>The other {len(rows) - SHOWN_ROWS:,} rows{rest}</summary>"
        text += f"{_rows('', columns, numeric, rows[SHOWN_ROWS:MOST_ROWS])}</details>"
    return text


def _rows(caption: str, columns: Sequence[str], numeric: Sequence[bool], rows: Sequence[Row]) -> str:
    pairs = [(key, ' class="n"' if each else "") for key, each in zip(columns, numeric, strict=True)]
    head = "".join(f'<th scope="col"{mark}>{escape(key)}</th>' for key, mark in pairs)
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(_text(row.get(key)))}</td>" for key, mark in pairs) + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _facts(settings: Mapping[str, Any]) -> str:
    lines = "".join(
        f"<dt>{escape(str(key))}</dt><dd>{escape(_text(value))}</dd>" for key, value in settings.items()
    )
    return f"<dl>{lines}</dl>" if lines else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _text(value: Any) -> str:
    """Four significant digits; lists with commas; mappings as names and values."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return WORDS[value]
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e9 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        between = "; " if any(isinstance(each, (list, tuple, Mapping)) for each in value) else ", "
        return between.join(f"({_text(each)})" if between == "; " else _text(each) for each in value)
    return str(value)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


def _as_uri(figure: Figure) -> str:
    """SVG with letters as outlines, so that it looks the same without the fonts."""
    matplotlib = require("matplotlib", extra="plot", purpose="plotting")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "auxbit", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


STYLE = """
:root{--paper:#fff;--ink:#222;--soft:#5c5f66;--line:#dcdde1;--link:#0b5cad;--yes:#0a6b3d;--no:#b3123f;
--unknown:#6b5d00;--band:#f4f5f7}
@media screen and (prefers-color-scheme:dark){:root{--paper:#16181d;--ink:#e8e8e8;--soft:#a9acb4;
--line:#33363d;--link:#7db8f5;--yes:#5fd394;--no:#ff7d9f;--unknown:#e0c95a;--band:#1f2229}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.35rem;margin:2.5rem 0 .5rem}
h3{font-size:1.1rem;margin:2rem 0 .25rem}p{margin:.5rem 0;max-width:46rem}.lead{color:var(--soft)}
a{color:var(--link)}small{color:var(--soft);font-weight:normal}
nav ul{padding-left:1.1rem;margin:.75rem 0}section{scroll-margin-top:1rem}
figure{margin:1rem 0;overflow-x:auto}img{display:block;max-width:100%;height:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{text-align:left;vertical-align:top;padding:.2rem .7rem .2rem 0;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right}.wide{overflow-x:auto;margin:.75rem 0}.wide td,.wide th{white-space:nowrap}
.claims{width:100%}.claims tbody th{padding-top:.8rem;border-bottom:0}
.claims td:first-child{white-space:nowrap;padding-left:.8rem}
.yes{color:var(--yes)}.no{color:var(--no)}.unknown{color:var(--unknown)}
.found{padding-left:1.1rem;font-size:.9rem}dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .9rem;
font-size:.85rem;margin:.75rem 0}dt{color:var(--soft)}dd{margin:0;min-width:0}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--link);font-size:.9rem}
.up{font-size:.85rem}
@media (max-width:40rem){body{padding:.75rem}figure img{max-width:none;width:40rem}
.claims td:first-child{white-space:normal;padding-left:0}th,td{padding-right:.5rem}}
@media print{body{max-width:none;font-size:10pt}nav,.up,summary,.found{display:none}a{color:inherit;
text-decoration:none}figure,tr{break-inside:avoid}h2,h3{break-after:avoid}figure{overflow:visible}
figure img{max-width:100%;width:auto}.wide{overflow:visible}.wide table{font-size:7pt}
.wide td,.wide th{white-space:normal;overflow-wrap:anywhere}}
"""
