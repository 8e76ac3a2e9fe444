"""docs/cli.md, written from the commands themselves: `python -m auxbit.cli.reference [docs/cli.md]`.

It asks each command for its parameters, as `--help` does: what that prints changes with the version of typer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from auxbit.cli.app import app
from auxbit.core import files

HEAD = """# The command line

<!-- Written by `python -m auxbit.cli.reference docs/cli.md`; a test keeps it up to date. -->

Results go to stdout; messages, warnings and progress go to stderr. `error: …` says what is wrong and how to
correct it. Existing files are overwritten only with `--force`. Files are written under a temporary name and
renamed.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | the command failed, because of files or data |
| 2 | wrong usage, such as a value that an option cannot have |
| 130 | interrupted |
"""


def reference() -> str:
    """The reference as Markdown."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD]
    for name, command in _commands(group):
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        options = [param for param in command.params if param.param_type_name == "option"]
        needed = [f"{param.opts[0]} {param.name.upper()}" for param in options if param.required]
        given = [_argument(param) if param.required else f"[{_argument(param)}]" for param in arguments]
        usage = " ".join([f"auxbit {name}", *given, *needed, "[OPTIONS]"])
        lines = [f"## auxbit {name}", "", " ".join(command.help.split()), "", f"    {usage}", ""]
        lines += ["| name | meaning |", "| --- | --- |", *map(_line, [*arguments, *options]), ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name, those of a group inside after the group's."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _argument(param: Any) -> str:
    """The name of an argument, with … if it can be repeated."""
    return str(param.metavar) + "…" * bool(param.nargs == -1)


def _line(param: Any) -> str:
    is_option = param.param_type_name == "option"
    name = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len, reverse=True)) if is_option else ""
    choices = (param.metavar or "").split("|")
    if is_option and param.metavar and len(choices) == 1:
        name += " " + param.metavar
    notes = [param.help.replace("|", "\\|")]
    if len(choices) > 1:  # too long for the first column
        notes.append(f"Values: {', '.join(choices)}.")
    if param.required:
        notes.append("Required.")
    else:
        default = param.show_default if isinstance(param.show_default, str) else param.default
        if param.show_default and default not in (None, False, ""):
            notes.append(f"Default: {default}." if " " in str(default) else f"Default: `{default}`.")
    return f"| {name or f'`{_argument(param)}`'} | {' '.join(notes)} |"


if __name__ == "__main__":
    files.write_text(sys.argv[1] if sys.argv[1:] else "docs/cli.md", reference())
