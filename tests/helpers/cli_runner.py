"""Running commands in tests."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from auxbit.cli.app import app


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="auxbit")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)
