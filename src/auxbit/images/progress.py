"""What long work on pictures tells whoever waits for it, and how long its stages took."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """Told of each stage: what it is and how many steps it has (None: unknown), and of steps as they end."""

    def stage(self, what: str, total: int | None) -> None:
        """A stage begins, and the one before it has ended."""

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""

    def say(self, detail: str) -> None:
        """Something to stand beside the bar."""


class Silent:
    """Progress that nobody looks at."""

    def stage(self, what: str, total: int | None) -> None:
        """Nothing."""

    def advance(self, steps: int = 1) -> None:
        """Nothing."""

    def say(self, detail: str) -> None:
        """Nothing."""


class Timed:
    """Passes everything on, and notes the seconds that each stage took."""

    def __init__(self, to: Progress) -> None:
        self._to = to
        self._present: tuple[str, float] | None = None
        self._seconds: dict[str, float] = {}

    def stage(self, what: str, total: int | None) -> None:
        """A stage begins."""
        self._close()
        self._present = what, time.perf_counter()
        self._to.stage(what, total)

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""
        self._to.advance(steps)

    def say(self, detail: str) -> None:
        """Something to stand beside the bar."""
        self._to.say(detail)

    def seconds(self) -> dict[str, float]:
        """By stage, up to now."""
        self._close()
        return dict(self._seconds)

    def _close(self) -> None:
        if self._present is not None:
            what, since = self._present
            self._seconds[what] = self._seconds.get(what, 0.0) + time.perf_counter() - since
            self._present = None
