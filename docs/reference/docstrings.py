"""Docstrings as Markdown for the site: examples as code, parameters (`name : what it is`) as a list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

NAMES = r"\*{0,2}\w+(?:, \*{0,2}\w+)*"
PARAMETER = re.compile(rf"(?P<names>{NAMES}) : (?P<text>.*)", re.S)
NEXT = re.compile(rf"(?<=[.;:])\s(?:or\s)?(?={NAMES} : )")  # a parameter in the midst of a line


class Readable(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when the package is read: defaults that are names of constants become their values."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                if isinstance(parameter.default, griffe.ExprName):
                    parameter.default = _constant(function, parameter.default.name) or parameter.default


def _functions(within: griffe.Object) -> Iterator[griffe.Function]:
    for member in within.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)


def _constant(function: griffe.Function, name: str) -> str | None:
    """The number that a constant of the function's module is, or of the module it is imported from."""
    found = function.module.members.get(name)
    found = found.final_target if isinstance(found, griffe.Alias) else found
    value = str(found.value) if isinstance(found, griffe.Attribute) else ""
    return value if re.fullmatch(r"[\d._]+", value) else None


def as_markdown(text: str) -> str:
    """The same words; >>> lines are fenced, parameters become items with their further lines, pages links."""
    text = re.sub(r"(?<![\w/`])docs/([\w-]+)\.md", r"[\1](../\1.md)", text)
    return "\n\n".join(
        block for part in text.split("\n\n") for block in _blocks(part.strip("\n").splitlines())
    )


def _blocks(lines: list[str]) -> Iterator[str]:
    """The code, the words and the lists of parameters of what stands between two empty lines."""
    if lines and lines[0].startswith(">>>"):
        yield "\n".join(["```python", *map(_as_code, lines), "```"])
        return
    starts = [place for place, line in enumerate(lines) if PARAMETER.fullmatch(line)] or [len(lines)]
    if starts[0] > 0:  # such as the heading of a list
        yield from _words("\n".join(lines[: starts[0]]))
    ends = [*starts[1:], len(lines)]
    texts = ["\n".join(lines[start:end]) for start, end in zip(starts, ends, strict=True)]
    if starts[0] < len(lines):
        yield "\n".join(_item(each) for text in texts for each in NEXT.split(text))


def _words(text: str) -> Iterator[str]:
    """A paragraph, and a list of the parameters within it."""
    first, *items = NEXT.split(text)
    yield first
    if items:
        yield "\n".join(map(_item, items))


def _as_code(line: str) -> str:
    """A line of a session: what is printed becomes a comment."""
    return line[4:] if line.startswith((">>>", "...")) else f"# {line}"


def _item(text: str) -> str:
    found = PARAMETER.fullmatch(text)
    if found is None:
        return text
    names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
    return f"- {names}: {' '.join(found['text'].split()).rstrip(';')}"
