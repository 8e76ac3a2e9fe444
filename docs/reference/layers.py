"""Draws images/architecture.svg, the figure of architecture.md: `python docs/reference/layers.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

FIGURE = Path(__file__).resolve().parents[1] / "images" / "architecture.svg"
TITLE = "The packages of auxbit in layers, and the path of a row through them"
# the name of a layer, and its packages with what they do, in the order of architecture.md
LAYERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("base", {
        "errors": "raised on purpose",
        "core": "threads, kernels, files, codes, maps, decoders",
    }),
    ("rows, measures", {
        "data": "vectors and metadata from files and frames",
        "evaluate": "true neighbours, precision, recall",
    }),
    ("learning", {
        "mac": "the paper: loop, three steps, fit",
        "quantiser": "codes chosen for the decoder",
    }),
    ("methods", {"hashers": "BinaryAutoencoder, ITQ, LSH and others; the table of methods; model files"}),
    ("search", {"index": "by Hamming distance, by the decoder", "export": "FAISS indexes, ONNX models"}),
    ("storage", {"collection": "codes, vectors, ids and metadata in a folder"}),
    ("built on them", {
        "integrations": "LangChain, LlamaIndex …",
        "plot": "figures",
        "experiments": "the paper's, comparisons",
    }),
    ("", {
        "images": "folders of pictures",
        "stores": "PostgreSQL, Milvus …",
        "serve": "HTTP API and web page",
    }),
    ("command line", {"cli": "each command parses, calls one public function, prints"}),
)  # fmt: skip
TRAVELLED = ("core", "data", "mac", "hashers", "index", "collection")
STEPS = {  # numbered as in architecture.md, below a layer
    "rows, measures": ("1 read in slices", "2 scaled by core/maps"),
    "learning": ("3 h and f are learned",),
    "methods": ("4 encoded as packed codes",),
    "search": ("5 searched",),
    "storage": ("6 stored, and searched later",),
}

WIDTH, LEFT, GAP, HIGH, STEP = 760, 122, 10, 54, 28
ORANGE, DARK_ORANGE = "#d55e00", "#a04400"


def draw() -> str:
    """The figure as SVG."""
    top, parts = 16, []
    for name, packages in LAYERS:
        parts.append(_text(12, top + 32, 13, "#556", name))
        wide = (WIDTH - LEFT - 12 - GAP * (len(packages) - 1)) / len(packages)
        for place, (package, about) in enumerate(packages.items()):
            parts += _box(LEFT + place * (wide + GAP), top, wide, package, about)
        top += HIGH
        if name in STEPS:
            parts += [*_arrow(top, name), *_steps(STEPS[name], top + STEP / 2)]
        top += STEP if name in STEPS else GAP
    said = "A package imports only packages above it or to its left. Orange: the path of a row."
    parts.append(_text(12, top + 14, 13, "#556", said))
    size = f'viewBox="0 0 {WIDTH} {top + 28}" font-family="Helvetica, Arial, sans-serif"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{TITLE}">',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{ORANGE}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{top + 28}" fill="#ffffff"/>',
    )
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _box(x: float, y: float, wide: float, name: str, about: str) -> list[str]:
    fill, line = ("#fff4ec", ORANGE) if name in TRAVELLED else ("#f4f6f8", "#8a97a6")
    where = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{HIGH}" rx="6"'
    return [
        f'<rect {where} fill="{fill}" stroke="{line}"/>',
        _text(x + 10, y + 22, 15, "#222", name, 'font-weight="bold"'),
        _text(x + 10, y + 41, 12.5, "#333", about),
    ]


def _arrow(y: float, layer: str) -> list[str]:
    if layer == "storage":  # the path ends here
        return []
    ends = f'x1="420" y1="{y}" x2="420" y2="{y + STEP}"'
    return [f'<line {ends} stroke="{ORANGE}" stroke-width="2" marker-end="url(#a)"/>']


def _steps(steps: tuple[str, ...], y: float) -> list[str]:
    parts = []
    for place, step in enumerate(steps):
        number, _, text = step.partition(" ")
        x = LEFT + 14 + 132 * place
        parts.append(f'<circle cx="{x}" cy="{y:g}" r="10" fill="{ORANGE}"/>')
        parts.append(_text(x, y + 4.5, 12.5, "#fff", number, 'font-weight="bold" text-anchor="middle"'))
        parts.append(_text(x + 15, y + 4.5, 12.5, DARK_ORANGE, text))
    return parts


def _text(x: float, y: float, size: float, fill: str, text: str, more: str = "") -> str:
    said = f' x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" {more}'.rstrip()
    return f"<text{said}>{escape(text, quote=False)}</text>"


if __name__ == "__main__":
    FIGURE.write_text(draw())
