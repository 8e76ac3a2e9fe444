"""Pages that are made while the site is built: gallery, HTTP API, licences, files of the root."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import gallery

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the page about security in the navigation, if there is one."""
    if (ROOT / "SECURITY.md").is_file() and config.nav is not None:
        config.nav[-1]["Project"].append({"Security": "security.md"})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    made: dict[str, str | bytes] = {
        "reference/http.md": http_reference(openapi()),
        "licences.md": licences(),
        **gallery.pages(),
    }
    there = [ROOT / name for name in FROM_ROOT if (ROOT / name).is_file()]
    made |= {page_of(path): at_home(path) for path in there}
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


TOGETHER = re.compile(
    r"(?<=\d) (?=(?:ms|µs|s|min|h|kB|KB|MB|GB|CPU)\b|\(\d+\))"  # 0.15 ms, 0.667 (2)
    r"|(?<=[≤≥<>±×/→]) (?=[+−-]?\d)|(?<=\d) (?=[±×/→] [+−-]?\d)"  # ≤ 2.5, 50,000 × 320, 0.5 / 0.1
    r"|(?<=\d) (?=of \d)|(?<=\d of) (?=\d)"  # 9 of 9
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keep "96 %", and in tables figures with their units, on one line."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.S | re.M)
    for place in range(0, len(parts), 2):  # the others are code
        text = re.sub(r"(?<=\d) %", "\u00a0%", parts[place])
        parts[place] = re.sub(r"^\|.*\|$", lambda row: _together(row[0]), text, flags=re.M)
    return "".join(parts)


def _together(row: str) -> str:
    """A row of a table whose figures are not broken; 1.40–1.71 has a word joiner after the dash."""
    return re.sub(r"(?<=\d)–(?=\d)", "–\u2060", TOGETHER.sub("\u00a0", row))


def on_page_content(html: str, **_: Any) -> str:
    """Mark options, such as --out, which no line shall be broken within."""
    parts = re.split(r"(<pre.*?</pre>|<code.*?</code>|<[^>]+>)", html, flags=re.S)
    option = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = option.sub(r'<span class="option">\1</span>', part)
        elif part.startswith("<code>") and len(part) < 50 and re.match(r"<code>--?\w", part):
            parts[place] = part.replace("<code>", '<code class="option">', 1)
        elif part.startswith("<code>"):
            parts[place] = option.sub(r'<span class="option">\1</span>', part)
    return "".join(parts)


# ---- files of the root


def page_of(path: Path) -> str:
    """The page of a file: contributing.md of CONTRIBUTING.md, license.md of LICENSE."""
    return f"{path.stem.lower()}.md"


def at_home(path: Path) -> str:
    """Its text, with links as they are from a page of the site."""
    text = path.read_text()
    if path.suffix != ".md":
        return f"# Licence\n\n{text}"

    def link(found: re.Match[str]) -> str:
        target, hash_, anchor = found[2].partition("#")
        page = {"README.md": "index.md"} | {name: page_of(Path(name)) for name in FROM_ROOT}
        stem = Path(target).stem.lower()
        said = found[1] if found[1] != target else {"http": "HTTP"}.get(stem, stem)
        target = page.get(target, target.removeprefix("docs/"))
        return f"[{said}]({target}{hash_}{anchor})"

    text = re.sub(r"(?<![\w/`(\[])docs/[\w-]+\.md", r"[\g<0>](\g<0>)", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)\s]+)\)", link, text)


# ---- licences of dependencies

LICENCES_HEAD = """# Licences of dependencies

auxbit is under the [MIT licence](license.md). It contains no code of others; what it needs is installed
beside it, under the licences that these packages declare of themselves. A plain `pip install auxbit`
installs the core alone.

| package | licence | needed for |
| --- | --- | --- |
"""


def licences() -> str:
    """What pyproject.toml asks for, with the licences that the installed packages name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"core": project["dependencies"]} | project["optional-dependencies"]
    needed: dict[str, list[str]] = {}
    for group, requirements in groups.items():
        for requirement in requirements:
            name = re.split(r"[\[<>=;! ]", requirement)[0]
            if name != "auxbit" and group not in ("test", "docs", "all"):
                needed.setdefault(name, []).append(group)
    return LICENCES_HEAD + "".join(
        f"| {name} | {licence_of(name)} | {', '.join(groups)} |\n" for name, groups in needed.items()
    )


def licence_of(package: str) -> str:
    """The licence in a package's metadata: its expression, its classifiers, or its one line of text."""
    try:
        about = metadata(package)
    except PackageNotFoundError:
        return "not installed where these pages were built: see its home page"
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    text = (about.get("License") or "").strip()
    said = about.get("License-Expression") or ", ".join(classified) or text.partition("\n")[0]
    return said[:60] or "not declared: see its home page"


# ---- HTTP, from OpenAPI


def openapi() -> dict[str, Any]:
    """What a server says of itself at /api/v1/openapi.json."""
    from auxbit import Collection
    from auxbit.serve.app import make_app

    with Collection.create(None, bits=8) as collection:
        described: dict[str, Any] = make_app(collection, writable=True).openapi()
    return described


HTTP_HEAD = """# HTTP

Written from the description that every server gives of itself at `/api/v1/openapi.json`. The
[guide](../http.md) tells how a server is started, who may do what, and what the answers mean.
"""


def http_reference(described: dict[str, Any]) -> str:
    """Every request with its parameters, and every document with its fields, as Markdown."""
    lines = [HTTP_HEAD]
    for path, methods in described["paths"].items():
        for method, request in methods.items():
            lines += [f"## {method.upper()} {path}", "", request["description"], ""]
            lines += _table("parameter", [
                (param["name"], param["schema"], param.get("description", ""), param.get("required", False))
                for param in request.get("parameters", [])
            ])  # fmt: skip
            body = request.get("requestBody", {}).get("content", {})
            lines += [f"Body: {_contents(body)}.", ""] if body else []
            answer = request["responses"]["200"].get("content", {})
            errors = ", ".join(code for code in request["responses"] if code >= "400")
            lines += [f"Returns {_contents(answer)}. Errors: {errors}.", ""]
    lines += [
        "## Documents",
        "",
        "The bodies of requests and of responses. A response has all of its fields.",
        "",
    ]
    sent = _documents_of(described)
    for name, schema in described["components"]["schemas"].items():
        if name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which are not sent
            continue
        lines += [f"### {name}", "", _fields_as_code(schema.get("description", "")), ""]
        lines += _table("field", [
            (field, said, said.get("description", ""), name in sent and field in schema.get("required", []))
            for field, said in schema.get("properties", {}).items()
        ])  # fmt: skip
    return "\n".join(lines)


def _documents_of(described: dict[str, Any]) -> set[str]:
    """The documents that clients send, with those inside them."""
    bodies = [request.get("requestBody") for path in described["paths"].values() for request in path.values()]
    found, new = set(), _named_in(bodies)
    while new:
        found |= new
        new = _named_in([described["components"]["schemas"][name] for name in new]) - found
    return found


def _named_in(schemas: list[Any]) -> set[str]:
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schemas)))


def _fields_as_code(text: str) -> str:
    """`total`: how many, of total : how many."""
    return re.sub(r"\b(\w+) : ", r"`\1`: ", text)


def _contents(content: dict[str, Any]) -> str:
    return " or ".join(
        _type(said.get("schema", {})) if kind == "application/json" else f"`{kind}`"
        for kind, said in content.items()
    )


def _table(first: str, rows: list[tuple[str, dict[str, Any], str, bool]]) -> list[str]:
    if not rows:
        return []
    notes = [_notes(schema, text, required) for _, schema, text, required in rows]
    columns = [(first, *(f"`{name}`" for name, *_ in rows)), ("type", *(_type(row[1]) for row in rows))]
    if any(notes):
        columns.append(("meaning", *notes))
    head, *others = zip(*columns)
    return [*(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others)), ""]


def _notes(schema: dict[str, Any], text: str, required: bool) -> str:
    default = schema.get("default")
    notes = [
        text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else "."),
        "Required." if required else "",
        f"Default: `{json.dumps(default).strip(chr(34))}`." if default not in (None, "") else "",
    ]
    return " ".join(filter(None, notes))


def _type(schema: dict[str, Any]) -> str:
    """A type in a few words, with its limits; documents are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        inner = _type(schema.get("items", {}))
        return f"list of {re.sub(r'^(?:list|[a-z]+$)', lambda kind: kind[0] + 's', inner)}"
    if schema.get("maximum", 0) >= 2**62:
        return f"{kind} (64 bits, {schema.get('minimum', 0):g} or more)"
    if "minimum" in schema and "maximum" in schema:
        return f"{kind}, {schema['minimum']:g} to {schema['maximum']:g}"
    return f"{kind}, at least {schema['minimum']:g}" if schema.get("minimum") else kind
