"""How long work tells of its progress: stages, steps of a stage, and a detail beside them."""

from __future__ import annotations

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
