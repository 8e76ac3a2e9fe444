"""Long work shown as it goes on: a bar a stage, and how to go on where it was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from auxbit.cli import output


class Stages:
    """Progress as bars, one a stage, each with the time left where its length is known."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._bar: output.Bar | None = None

    def stage(self, what: str, total: int | None) -> None:
        """A bar for the stage that begins."""
        self._open.close()
        self._bar = self._open.enter_context(output.progress(what, total))

    def advance(self, steps: int = 1) -> None:
        """Move it on."""
        if self._bar is not None:
            self._bar.advance(steps)

    def say(self, detail: str) -> None:
        """Beside the bar."""
        if self._bar is not None:
            self._bar.show(detail=detail)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()


@contextmanager
def goes_on(command: list[str], folder: str) -> Iterator[None]:
    """Where it is interrupted, say that nothing is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from auxbit.collection.storage import MANIFEST

        if (Path(folder) / MANIFEST).is_file():
            output.note(f"What was done is kept in {folder}. It goes on with:")
            output.note(shlex.join(command))
        raise


def command_again(*words: str, **options: Any) -> list[str]:
    """The command with these options, of which None and False are left out."""
    command = ["auxbit", *words]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def printable(name: str) -> str:
    """A file's name without what a terminal would act on."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in name)
