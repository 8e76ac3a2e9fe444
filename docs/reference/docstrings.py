"""Docstrings as Markdown for the site: examples as code, parameters (`name : what it is`) as a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAMETER = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) : (?P<text>.*)")


class Readable(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The same words; >>> lines are fenced, parameters become items with their further lines."""
    out: list[str] = []
    kind = ""
    for line in text.splitlines():
        found = PARAMETER.fullmatch(line)
        now = "code" if line.startswith((">>>", "...")) else "item" if found else ""
        if kind == "code" and now == "" and line:  # what it prints
            line, now = f">>> # {line}", "code"
        if kind == "item" and now == "" and line.startswith(" "):
            now = "more"
        if kind == "code" and now != "code":
            out += ["```", ""]
        if now == "code" and kind != "code":
            out += ["", "```python"]
        if now == "item" and kind not in ("item", "more"):
            out.append("")
        if now == "" and kind in ("item", "more") and line:
            out.append("")
        out.append(_line(line, now, found))
        kind = "item" if now == "more" else now
    return "\n".join([*out, "```"] if kind == "code" else out)


def _line(line: str, kind: str, found: re.Match[str] | None) -> str:
    if kind == "item" and found is not None:
        names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
        return f"- {names}: {found['text']}"
    return f"    {line.strip()}" if kind == "more" else line[4:] if kind == "code" else line
