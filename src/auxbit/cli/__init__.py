"""The command line: thin commands, a file a group. Heavy imports happen inside the commands."""

from auxbit.cli.app import main

__all__ = ["main"]
