"""The app: every command and group of commands, errors translated, exit codes.

0: fine. 1: the work failed, because of files, data or the system. 2: wrong usage, which is what cannot be
parsed, or a value that an option never has, whatever the data (InvalidParameter). 130: interrupted.
"error: …" on stderr says what is wrong.
"""

from __future__ import annotations

import re
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from auxbit import __version__
from auxbit.cli import collection, compare, experiment, export, images, models, output, search, store
from auxbit.errors import AuxbitError, InvalidParameter

Command = Callable[..., None]
SHORTER = {"n_bits": "bits", "n_jobs": "jobs", "random_state": "seed"}  # options of other names


class Commands(TyperGroup):
    """The group of all commands, in which errors become messages and exit codes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands of --help, by what they are for."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                room = formatter.width - 6 - max(map(len, self.commands))
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warnings_once()
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # typer ends quietly
            except InvalidParameter as error:
                output.note(str(error), "error")
                raise typer.Exit(2) from error
            except (AuxbitError, OSError, MemoryError) as error:
                output.note(str(error) or "there is not enough memory", "error")
                raise typer.Exit(1) from error
            except KeyboardInterrupt as error:
                output.note("interrupted; nothing half-written is left")
                raise typer.Exit(130) from error


class OneCommand(TyperCommand):
    """A command, whose errors name its options as they are typed: --bits, not n_bits."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except InvalidParameter as error:
            name = error.parameter
            option = "--" + SHORTER.get(name, name).replace("_", "-")
            if any(option in each.opts for each in self.params):
                error.args = (re.sub(rf"(?<![\w-]){re.escape(name)}=", f"{option}=", str(error)),)
            raise


# ---- Every command, and the order of --help

SECTIONS = {
    "Search": ("collection", "images", "serve", "store"),
    "See what codes find": ("bits", "compare", "evaluate", "demo", "experiment"),
    "Models and codes": ("fit", "encode", "decode", "search", "duplicates", "export", "info"),
}
START = """\b
Start with:
  auxbit demo                                    handwritten digits, no data needed
  auxbit collection create docs.auxbit --data vectors.npy --vectors float16
  auxbit collection search docs.auxbit --queries queries.npy
"""

COMMANDS: tuple[Command, ...] = (
    models.fit, models.encode, models.decode, models.info, search.search, search.duplicates, search.evaluate,
    images.serve, export.export, compare.compare, compare.demo, compare.bits,
)  # fmt: skip
GROUPS: dict[str, tuple[str, tuple[Command, ...]]] = {
    "collection": ("Keep vectors, as codes, in a folder, and search them.", (
        collection.create, collection.add, collection.search, collection.get, collection.list_,
        collection.update, collection.delete, collection.duplicates, collection.index, collection.stats,
        collection.compact, collection.retrain, collection.check,
    )),
    "images": ("Make folders of pictures searchable by what they look like.", (
        images.create, images.add, images.search, images.duplicates, images.compare,
    )),
    "store": ("Keep codes in a database, and search them there.", (
        store.push, store.search,
    )),
    "experiment": ("Run an experiment of the paper on your machine.", experiment.COMMANDS),
}  # fmt: skip


def group(name: str) -> typer.Typer:
    """The commands `auxbit NAME …`."""
    about, commands = GROUPS[name]
    made = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    for command in commands:
        made.command(command.__name__.rstrip("_"), cls=OneCommand)(command)  # list_ is no list
    return made


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
for command in COMMANDS:
    app.command(cls=OneCommand)(command)
for name in GROUPS:
    app.add_typer(group(name), name=name)


def _version(asked: bool) -> None:
    if asked:
        output.say(f"auxbit {__version__}")
        raise typer.Exit


@app.callback(epilog=START)
def auxbit(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Learn short binary codes for vectors and pictures, and search with them."""


def main() -> None:
    """The entry point `auxbit`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without μ shows "?"
    try:
        app(prog_name="auxbit")
    except KeyboardInterrupt:  # just before or after a command
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what was done is done, and its exit code stands


def _warnings_once() -> Callable[..., None]:
    """What shows warnings, each once."""
    shown: set[str] = set()

    def show(message: Any, *args: object, **kwargs: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            output.note(str(message), "warning")

    return show
