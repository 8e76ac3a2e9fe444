"""Options that have one of a few values."""

from __future__ import annotations

from typing import Any

import typer


def one_of(*allowed: str) -> Any:
    """A callback that refuses other values before any work."""

    def checked(value: str | None) -> str | None:
        if value is not None and value not in allowed:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}.")
        return value

    return checked
