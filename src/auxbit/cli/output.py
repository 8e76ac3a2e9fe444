"""What the commands print: tables and JSON on stdout; messages, warnings and progress on stderr."""

from __future__ import annotations

import json
import math
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import typer
from rich import progress
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from auxbit.errors import printable

SHOW_AFTER = 1.0  # seconds: what is over by then needs no progress bar
WIDE = 100  # the width of tables if stdout is a file or a pipe
CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], " ")  # a terminal would act on those of metadata

_err = Console(stderr=True, highlight=False)  # it follows sys.stderr, which tests replace


def say(text: str = "") -> None:
    """A line on stdout."""
    _out().print(_shown(text), markup=False, soft_wrap=True)


def note(text: str, kind: str = "") -> None:
    """A line on stderr, after a coloured "error: " or "warning: "."""
    colour = {"error": "bold red", "warning": "bold yellow"}.get(kind, "")
    _err.print(Text.assemble((f"{kind}: " if kind else "", colour), _shown(text)), soft_wrap=True)


def _shown(text: str) -> str:
    """Lines without what a terminal would act on: file names are among them."""
    return "\n".join(map(printable, text.split("\n")))


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout; what is not a finite number becomes null."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def print_json_lines(documents: Iterable[Mapping[str, Any]]) -> None:
    """One JSON document per line on stdout."""
    for document in documents:
        sys.stdout.write(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; columns of text are flush left, of numbers flush right.

    If it is too wide, text is wrapped; a number is never cut, nor is a name in the first column.
    """
    rows = [list(row) for row in rows]
    cells = [[number(cell).translate(CONTROLS) for cell in row] for row in rows]
    texts = [place for place in range(len(columns)) if any(isinstance(row[place], str) for row in rows)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        whole = place not in texts or (place == 0 and len(texts) > 1)
        width = max(cell_len(text) for text in [name, *(row[place] for row in cells)]) if whole else None
        justify: Literal["left", "right"] = "left" if place in texts else "right"
        table.add_column(name, justify=justify, no_wrap=whole, min_width=width, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console = _out()
    least = console.measure(table, options=console.options.update(width=sys.maxsize)).minimum
    console.width = max(console.width, least)
    console.print(table)


def print_results(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of measurements, with the keys of its columns; rows that have none are left out."""
    measured = [row for row in rows if not row.get("skipped")]
    print_table(list(columns), [[row[key] for key in columns.values()] for row in measured])


def say_left_out(rows: Iterable[Mapping[str, Any]]) -> None:
    """Why rows of a comparison have no measurements."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["skipped"]:
            reasons.setdefault((row["method"], row["skipped"]), []).append(str(row["bits"]))
    for (method, why), bits in reasons.items():
        say(f"Left out: {method} at {', '.join(bits)} bits: {why}")


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one per line, values aligned."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(f"{name:<{width}}  {number(value).translate(CONTROLS)}")


def error_label(metric: str) -> str:
    """What the reconstruction error of a model for that metric is measured per."""
    kind = {"cosine": "normalised ", "inner_product": "lifted "}.get(metric, "")
    return f"squared error per {kind}row"


def number(value: object) -> str:
    """A cell as text: three or four digits that matter, "-" for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if not isinstance(value, float):
        return str(value)
    if 0.001 <= abs(value) <= 1:
        return f"{value:.3f}"
    return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e9 else f"{value:,.0f}"


def counted(n: int, noun: str) -> str:
    """A number of things for reading: 1 item, 2,000 items."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def size(n_bytes: float) -> str:
    """Bytes for reading."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


# ---- Commands to type next, or to resume with


def shell(*command: str) -> str:
    """A command of ours, ready for a shell."""
    return shlex.join(["auxbit", *command])


def say_next(*command: str) -> None:
    """What to type next."""
    say(f"\nNext: {shell(*command)}")


def given_again(
    context: typer.Context, *more: object, without: Sequence[str] = (), hidden: Sequence[str] = ()
) -> str:
    """The running command as it was given, and `more`; hidden options, of secrets, have a placeholder."""
    command = context.command_path.split()
    for parameter in context.command.params:
        name, names = str(parameter.name), parameter.opts
        source, value = context.get_parameter_source(name), context.params.get(name)
        if source is None or source.name != "COMMANDLINE" or {*more, *without} & {*names}:
            continue
        option = [] if parameter.param_type_name == "argument" else names[:1]
        if value is True:
            command += option
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            command += [*option, str(parameter.metavar if names[0] in hidden else each)]
    return shlex.join([*command, *map(str, more)])


def say_resume(done: str, command: str) -> None:
    """What is done, and the command that does the rest."""
    note(f"{done} Resume with:")
    note(command)


@contextmanager
def resumable(
    context: typer.Context, folder: str | None, *more: object, without: Sequence[str] = ()
) -> Iterator[None]:
    """At an interrupt, say how to resume the command from what is kept in a folder, if there is one."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is not None:
            say_resume(f"What was done is kept in {folder}.", given_again(context, *more, without=without))
        raise


# ---- Progress


class Stages:
    """Progress on stderr, one bar per stage: only on a terminal, and only if a stage takes over a second."""

    def __init__(self, what: str = "", total: int | None = None) -> None:
        self._lock = threading.Lock()  # the timer starts a bar in a thread of its own
        self._shown: progress.Progress | None = None
        if what:
            self.stage(what, total)

    def stage(self, what: str, total: int | None = None) -> None:
        """A bar for the stage that begins, with the time left if its length is known."""
        self.close()
        text = progress.TextColumn
        columns: list[progress.ProgressColumn] = [text("{task.description}"), progress.BarColumn(24)]
        columns += [text("{task.fields[detail]}"), progress.TimeElapsedColumn()]
        if total is not None:
            columns += [text("left"), progress.TimeRemainingColumn()]
        self._shown = progress.Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal)
        self._task = self._shown.add_task(what, total=total, detail="")
        self._timer = threading.Timer(SHOW_AFTER, self._start, [self._shown])
        self._timer.daemon = True
        self._timer.start()

    def advance(self, steps: int = 1) -> None:
        """That many more steps are done."""
        if self._shown is not None:
            self._shown.advance(self._task, steps)

    def say(self, detail: str) -> None:
        """A detail beside the bar."""
        if self._shown is not None:
            self._shown.update(self._task, detail=detail)

    def close(self) -> None:
        """The stage is over."""
        with self._lock:
            shown, self._shown = self._shown, None
        if shown is not None:
            self._timer.cancel()
            shown.stop()

    def _start(self, shown: progress.Progress) -> None:
        with self._lock:
            if shown is self._shown:
                shown.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
