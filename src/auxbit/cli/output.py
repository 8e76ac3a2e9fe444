"""What the commands print: tables and JSON on stdout; messages, warnings and progress on stderr."""

from __future__ import annotations

import json
import math
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

SHOW_AFTER = 1.0  # seconds: what is over by then needs no progress bar
WIDE = 100  # the width of tables where stdout is a file or a pipe

_err = Console(stderr=True, highlight=False)  # it follows sys.stderr, which tests replace


def say(text: str = "") -> None:
    """A line on stdout."""
    _out().print(text, markup=False, soft_wrap=True)


def note(text: str, kind: str = "") -> None:
    """A line on stderr, after a coloured "error: " or "warning: "."""
    colour = {"error": "bold red", "warning": "bold yellow"}.get(kind, "")
    _err.print(Text.assemble((f"{kind}: " if kind else "", colour), text), soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout; what is not a finite number becomes null."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; columns of text are flush left, of numbers flush right."""
    rows = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        is_text = any(isinstance(row[place], str) for row in rows)
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text or place == 0)
    for row in rows:
        table.add_row(*(Text(number(cell)) for cell in row))
    _out().print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each, values aligned."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(f"{name:<{width}}  {number(value)}")


def error_label(result: Mapping[str, Any]) -> str:
    """What the reconstruction error of a model is of."""
    return "squared error a normalised row" if result["rows_normalized"] else "squared error a row"


def say_next(*command: str) -> None:
    """What to type next, ready for a shell."""
    say(f"\nNext: {shlex.join(['auxbit', *command])}")


@contextmanager
def going_on(context: typer.Context, option: str, *, possible: bool) -> Iterator[None]:
    """Say at an interrupt how the command goes on, if it can: as it was given, with this option."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not possible:
            raise
        note(f"interrupted; go on with: {shlex.join(['auxbit', *_given_again(context, option)])}")
        raise typer.Exit(130) from error


def _given_again(context: typer.Context, option: str) -> list[str]:
    """The command that is running as it was given, and this option."""
    words = [str(context.info_name)]
    for parameter in context.command.params:
        name, names = str(parameter.name), parameter.opts
        source, value = context.get_parameter_source(name), context.params.get(name)
        if source is None or source.name != "COMMANDLINE" or option in names:
            continue
        option_name = [] if parameter.param_type_name == "argument" else names[:1]
        words += option_name if value is True else [*option_name, str(value)]
    return [*words, option]


def number(value: object) -> str:
    """A cell as text: three or four digits that matter, "-" for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if not isinstance(value, float):
        return str(value)
    if 0.001 <= abs(value) <= 1:
        return f"{value:.3f}"
    return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e9 else f"{value:,.0f}"


class Bar:
    """A progress bar that a command moves on; `detail` stands beside it."""

    def __init__(self, progress: Progress, what: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total, detail="")

    def advance(self, steps: float = 1) -> None:
        """So many steps more are done."""
        self._progress.advance(self._task, steps)

    def show(self, *, done: float | None = None, what: str | None = None, detail: str = "") -> None:
        """How far it is, and what to say about it."""
        self._progress.update(self._task, completed=done, description=what, detail=detail)


@contextmanager
def progress(what: str, total: float | None = None, *, time_left: bool = True) -> Iterator[Bar]:
    """A bar on stderr, if that is a terminal, and only after a second."""
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(bar_width=24)]
    columns += [TextColumn("{task.fields[detail]}"), TimeElapsedColumn()]
    if total is not None and time_left:
        columns += [TextColumn("left"), TimeRemainingColumn()]
    shown = Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal)
    lock, over = threading.Lock(), False

    def start() -> None:
        with lock:
            if not over:
                shown.start()

    timer = threading.Timer(SHOW_AFTER, start)
    timer.daemon = True
    timer.start()
    try:
        yield Bar(shown, what, total)
    finally:
        timer.cancel()
        with lock:
            over = True
            shown.stop()


def _out() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # of NumPy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
