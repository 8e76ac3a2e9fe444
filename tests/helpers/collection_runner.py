"""Running `auxbit collection …` in tests."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from auxbit import Collection
from auxbit.cli.app import Commands, group

# typer builds all commands of an app for each run, which takes longer than most of them do
SMALL = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
SMALL.add_typer(group("collection"), name="collection")


def c(command: str, *arguments: object, code: int = 0, answer: str = "") -> Any:
    words = ["collection", command, *map(str, arguments)]
    result = CliRunner().invoke(SMALL, words, input=answer, prog_name="auxbit")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def c_json(command: str, *arguments: object) -> Any:
    return json.loads(c(command, *arguments, "--json").stdout)


def metadata_of(n: int) -> list[dict[str, Any]]:
    return [{"label": row % 10, "name": f"item {row}", "even": row % 2 == 0, "row": row} for row in range(n)]


def items(folder: str) -> int:
    with Collection.open(folder, read_only=True) as found:
        return len(found)


def records(X: Any) -> list[dict[str, Any]]:
    """Rows with the columns id, vector and those of metadata_of."""
    rows = metadata_of(len(X))
    return [{"id": f"doc-{n}", "vector": x.tolist()} | row for n, (x, row) in enumerate(zip(X, rows))]


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as .jsonl, .csv, .parquet or .arrow."""
    if name.endswith(".jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".csv"):
        with Path(name).open("w", newline="") as file:
            written = csv.DictWriter(file, rows[0])
            written.writeheader()
            texts = (
                {key: v if isinstance(v, str) else json.dumps(v) for key, v in row.items()} for row in rows
            )
            written.writerows(texts)
    else:
        import pyarrow
        from pyarrow import feather, parquet

        table = pyarrow.Table.from_pylist(rows)
        (parquet.write_table if name.endswith(".parquet") else feather.write_feather)(table, name)
