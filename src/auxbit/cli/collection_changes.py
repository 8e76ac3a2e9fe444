"""`collection add`, `delete`, `compact` and `retrain`: the commands that change a collection."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from auxbit.cli import models, output
from auxbit.cli.collection_reports import Folder, RowsAreCodes, SkipDamaged, Where, size, warn_of
from auxbit.cli.models import DATA_HELP, Jobs, Json
from auxbit.hashers.registry import HASHER_NAMES

METADATA_HELP = "Metadata of the rows, one for each: .jsonl or .json of objects, .csv or .parquet."
IDS_HELP = "An .npy file with an integer for each row; rows are numbered on unless given."
METHODS = "|".join(HASHER_NAMES)

Ids = Annotated[str | None, typer.Option("--ids", metavar="FILE", help=IDS_HELP, show_default=False)]
Metadata = Annotated[
    str | None, typer.Option("--metadata", metavar="FILE", help=METADATA_HELP, show_default=False)
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same model. 0 to 4294967295.")]
OptionalSeed = Annotated[
    int | None,
    typer.Option(
        help="The same seed gives the same model. 0 to 4294967295; that of the present model unless given.",
        show_default=False,
    ),
]


def method_or_none(name: str | None) -> str | None:
    """The method of that name, None where none is given."""
    return None if name is None else models._method(name)


def add(
    folder: Folder,
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="FILE", help=f"The rows to add. {DATA_HELP}", show_default=False
        ),
    ],
    codes: RowsAreCodes = False,
    ids: Ids = None,
    metadata: Metadata = None,
    upsert: Annotated[
        bool, typer.Option("--upsert", help="Replace the rows of ids that are there already.")
    ] = False,
    from_row: Annotated[
        int, typer.Option(metavar="N", help="Begin at this row of the files, 0 is the first.")
    ] = 0,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Add rows, encoded by the collection's model.

    Each batch of 131,072 rows is on disk before the next begins. Where it is stopped, it says how to go on.
    """
    if upsert and ids is None:
        raise typer.BadParameter("rows are replaced by their ids: add --ids FILE.", param_hint="--upsert")
    from auxbit.cli import collection_rows

    resume = add_command(folder, data, codes=codes, ids=ids, metadata=metadata, upsert=upsert)
    with collection_rows.opened(folder, n_jobs=jobs) as into:
        state = into.manifest
        rows = collection_rows.read_rows(
            data, ids, metadata, codes=codes, n_bits=state.n_bits, first=from_row,
            n_features=state.n_features if state.model is not None else None,
        )  # fmt: skip
        with output.progress("adding", len(rows.X) - from_row) as bar:
            done = collection_rows.add_rows(
                into, rows, upsert=upsert, advance=bar.advance, stopped=goes_on(resume, rows)
            )
    if json:
        output.print_json(done)
        return
    replaced = f", {done['replaced']:,} of them in place of old ones" if done["replaced"] else ""
    output.say(f"{folder}: {done['added']:,} rows added{replaced}; {done['items']:,} items.")


def add_command(
    folder: str, data: str | None, *, codes: bool, ids: str | None, metadata: str | None, upsert: bool = False
) -> list[str]:
    """The command that adds these files, to which --from-row may be added."""
    command = ["auxbit", "collection", "add", folder, "--data", data or ""]
    for name, value in (("--ids", ids), ("--metadata", metadata)):
        command += [name, value] if value is not None else []
    return command + [name for name, on in (("--codes", codes), ("--upsert", upsert)) if on]


def goes_on(command: list[str], rows: Any, *, always: bool = False) -> Callable[[int], None]:
    """What to say where adding stops, given the row that it got to; `always`: even if that is the first."""

    def stopped(row: int) -> None:
        if row > rows.first or always:
            output.note(f"{row:,} of {len(rows.X):,} rows are in. The rest follow with:")
            output.note(shlex.join([*command, "--from-row", str(row)]))

    return stopped


def delete(
    folder: Folder,
    ids: Annotated[
        str | None, typer.Option("--ids", metavar="N,…", help="Ids to delete, as 1,2,3.", show_default=False)
    ] = None,
    ids_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="An .npy file of ids to delete.", show_default=False)
    ] = None,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting by --where.")] = False,
    json: Json = False,
) -> None:
    """Delete items by their ids or metadata, all or none of them."""
    if sum(bool(each is not None and each != []) for each in (ids, ids_file, where)) != 1:
        raise typer.BadParameter("say what to delete by one of --ids, --ids-file and --where.")
    wanted = None if ids is None else _integers(ids)
    from auxbit.cli import collection_rows

    with collection_rows.opened(folder) as items:
        if where:
            items.lock()  # so that what is counted is what is deleted
            found = items.count(where)
            if found and not yes and not _at_terminal():
                raise typer.BadParameter(
                    f"it finds {found:,} of {len(items):,} items. Add --yes where nobody can be asked.",
                    param_hint="--where",
                )
            if found and not yes:
                typer.confirm(f"Delete {found:,} of {len(items):,} items?", abort=True, err=True)
            deleted = items.delete(where=where)
        else:
            deleted = items.delete(wanted if ids_file is None else collection_rows.read_ids(ids_file))
        left = len(items)
    if json:
        output.print_json({"collection": folder, "deleted": deleted, "items": left})
        return
    output.say(f"{folder}: {deleted:,} items deleted, {left:,} left.")
    if deleted:
        output.say(
            "Their room on disk is freed by: " + shlex.join(["auxbit", "collection", "compact", folder])
        )


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of ids like 1,2,3.", param_hint="--ids") from error


def compact(folder: Folder, skip_damaged: SkipDamaged = False, json: Json = False) -> None:
    """Write everything into one file without what is deleted.

    Searches go on meanwhile. It takes as much disk again until it is done.
    """
    from auxbit.cli import collection_rows, collection_tasks

    with (
        collection_rows.opened(folder, skip_damaged=skip_damaged) as items,
        output.progress("compacting", len(items)) as bar,
    ):
        done = collection_tasks.compact(items, bar.advance)
    if json:
        output.print_json(done)
        return
    warn_of(done["damage"])
    what = "deleted or damaged" if done["damage"] else "deleted"
    before, after = size(done["bytes_before"]), size(done["bytes_after"])
    output.say(f"{folder}: {done['items']:,} items; {done['dropped']:,} {what} ones are gone.")
    output.say(f"{after} on disk, {before} before.")


def retrain(
    folder: Folder,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", show_default=False,
            help="A model file to encode by; unless given, a model is fitted to the collection's vectors.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", metavar="FILE", show_default=False,
            help="For a collection without vectors: a row for each item, in the order they were added in.",
        ),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="Bits a code, if not as many as now.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar=METHODS, callback=method_or_none, show_default=False,
            help="Another method than the present one.",
        ),
    ] = None,
    seed: OptionalSeed = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Make new codes by a new model, and switch to them in one step.

    The model is fitted to at most 100,000 of the items. Searches go on meanwhile; where it is stopped, the
    collection is as it was.
    """
    if model is not None and (bits is not None or method is not None):
        raise typer.BadParameter("it is fitted already: leave --bits and --method out.", param_hint="--model")
    from auxbit.cli import collection_rows, collection_tasks

    with (
        collection_rows.opened(folder, n_jobs=jobs) as items,
        output.progress("retraining", len(items)) as bar,
    ):
        facts = collection_tasks.retrain(
            items, model=model, data=data, method=method, bits=bits, seed=seed, advance=bar.advance,
            step=lambda what: bar.show(what=what),
            on_record=lambda record: bar.show(detail=models._detail(record)),
        )  # fmt: skip
    if json:
        output.print_json(facts)
        return
    output.say(
        f"{folder}: {facts['items']:,} items have new codes, {facts['method']} of {facts['bits']} bits."
    )
    output.say_next("collection", "stats", folder)
