"""What people are shown: stages and steps of long work, and tables in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol


class Progress(Protocol):
    """Told of each stage: what it is and how many steps it has (None: unknown), and of steps as they end."""

    def stage(self, what: str, total: int | None) -> None:
        """A stage begins, and the one before it has ended."""

    def advance(self, steps: int = 1) -> None:
        """That many more steps are done."""

    def say(self, detail: str) -> None:
        """A detail to show beside the stage."""


class Silent:
    """Progress that nobody looks at."""

    def stage(self, what: str, total: int | None) -> None:
        """Nothing."""

    def advance(self, steps: int = 1) -> None:
        """Nothing."""

    def say(self, detail: str) -> None:
        """Nothing."""


def html_table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for Jupyter: what is in it is escaped. columns : [] for a table without a head."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = [line(columns, "th")] * bool(columns) + [line(row, "td") for row in rows]
    return f"<strong>{escape(heading)}</strong><table>{''.join(body)}</table>"
