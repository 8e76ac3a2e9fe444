"""The command line: thin commands, one file per group. Heavy imports happen inside the commands."""

from auxbit.cli.app import main

__all__ = ["main"]
