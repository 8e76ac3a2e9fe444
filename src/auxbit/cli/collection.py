"""`collection …`: codes, ids, metadata and vectors in a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import check_k_or_radius, choice, refuse, words
from auxbit.cli.search import print_answers, print_groups

if TYPE_CHECKING:
    from auxbit import Collection
    from auxbit.hashers.drift import Measure, Statistics

SHOWN_ITEMS, SHOWN_FIELDS, SHOWN_LETTERS = 20, 6, 40


# ---- create and add


def create(
    out: Annotated[str, Argument(metavar="OUT", help="The folder of the new collection.")],
    data: Annotated[str | None, Option(
        "--data", "-d", metavar="FILE", help=f"The first rows. {opt.RECORDS_HELP}"
    )] = None,
    vectors_column: opt.VectorsColumn = None,
    id_column: opt.IdColumn = None,
    metadata_columns: opt.MetadataColumns = None,
    model: Annotated[str | None, Option(
        metavar="MODEL", show_default="fitted to --data", help="A model file, as written by fit."
    )] = None,
    bits: Annotated[int | None, Option(
        metavar="N", show_default="about half of the dimensions, 16 to 256", help="Bits per code, 1 to 8192. "
        "Without --data and --model: a collection for codes that are made elsewhere."
    )] = None,
    method: opt.OptionalMethod = None,
    vectors: Annotated[str, choice(
        "float32", "float16", "none",
        help="Keep the vectors, as this type, for re-ranking and retraining."
    )] = "none",
    metadata: opt.Metadata = None,
    ids: opt.Ids = None,
    codes: opt.RowsAreCodes = False,
    coding: Annotated[str | None, choice(
        "hash", "optimal", show_default="optimal; with --model that of its decoder",
        help="hash: codes h(x), for Hamming distance; optimal: the codes from which the decoder "
        "reconstructs rows best, for search by the decoder, which finds more."
    )] = None,
    mu: Annotated[float | None, Option(help=opt.MU_HELP)] = None,
    decoder: opt.Decoder = None,
    lists: opt.Lists = None,
    refine_bits: opt.RefineBits = 0,
    metric: Annotated[str | None, choice(
        *opt.METRICS, show_default="euclidean, or that of --model",
        help="The metric whose nearest neighbours a search should find."
    )] = None,
    memory: opt.Memory = None,
    seed: opt.Seed = 0,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Create a collection, and add the first rows.

    It keeps a copy of the model, which encodes all rows added later. If a file has columns, one contains the
    vectors, --id-column the ids, and the others become metadata.
    """
    trains = data is not None and model is None and not codes
    of_rows = {
        "--vectors-column": vectors_column, "--id-column": id_column, "--metadata-columns": metadata_columns,
        "--ids": ids, "--metadata": metadata,
    }  # fmt: skip
    _check_sources(data, model, bits, codes, of_rows)
    _check_model_options(model, bits, codes, trains, {"--method": method, "--metric": metric})
    _check_coding_options(model, codes, trains, vectors, coding, {"--mu": mu, "--decoder": decoder})
    rows = _rows_of(ids, metadata, id_column, metadata_columns)
    from auxbit import Collection
    from auxbit.collection.storage import is_collection

    reached: list[tuple[int, int]] = []
    try:
        with (
            output.Stages("making") as stages,
            Collection.create(
                out, None if codes else data, codes=data if codes else None, model=model, method=method,
                bits=bits, random_state=seed, metric=metric, vectors_column=vectors_column, **rows,
                vectors=None if vectors == "none" else vectors, coding=coding, mu=mu, decoder=decoder,
                lists=opt.lists_of(lists), refine_bits=refine_bits, memory=memory, overwrite=force,
                n_jobs=jobs, progress=stages, stopped=lambda *at: reached.append(at),
            ) as made,
        ):  # fmt: skip
            facts = made.describe()
            first = made.list(limit=1)
    except BaseException:
        if reached and is_collection(Path(out)):
            given = [
                word for option, value in of_rows.items() if value is not None for word in (option, value)
            ]
            given += [] if memory is None else ["--memory", memory]
            again = ["--data", data or "", *given, *["--codes"] * codes, "--from-row", str(reached[0][0])]
            done = f"{reached[0][0]:,} of {reached[0][1]:,} rows are in."
            output.say_resume(done, output.shell("collection", "add", out, *again))
        raise
    if json:
        output.print_json(facts)
        return
    source = f"fitted to {data}" if trains else f"from {model}"
    output.print_facts(
        [
            ("collection", out),
            ("items", f"{facts['items']:,}"),
            *([("ids", f"{facts['ids']}, as {first[0]['id']}")] if first else []),
            *([("metadata", ", ".join(facts["fields"]))] if facts["fields"] else []),
            ("codes", f"{facts['bits']} bits, {facts['coding']}{_searched(facts)}"),
            *([("lists", f"{facts['lists']:,}")] if facts.get("lists") else []),
            *([("finer codes", f"{facts['refine_bits']} bits")] if facts.get("refine_bits") else []),
            ("metric", facts["metric"]),
            ("model", f"{facts['method']}, {source}" if facts["method"] else "none: it holds codes alone"),
            ("vectors", _kept(facts)),
        ]
    )
    if data is None:
        file = ["rows.npy"] if model is not None else ["codes.npy", "--codes"]
        output.say_next("collection", "add", out, "--data", *file)
    elif id_column is not None and first:
        output.say_next("collection", "search", out, "--id", str(first[0]["id"]))
    else:
        column = [] if vectors_column is None else ["--vectors-column", vectors_column]
        output.say_next("collection", "search", out, "--queries", data, *column, *["--codes"] * codes)


def _rows_of(
    ids: str | None, metadata: str | None, id_column: str | None, metadata_columns: str | None
) -> dict[str, Any]:
    """The ids and metadata of rows, as create and add take them: files of their own, or columns."""
    both = "the ids come from a column or from a file of their own: give one of them."
    refuse(ids is not None and id_column is not None, "--ids", both)
    both = "metadata come from columns or from a file of their own: give one of them."
    refuse(metadata is not None and metadata_columns is not None, "--metadata", both)
    columns = None if metadata_columns is None else words(metadata_columns)
    return {
        "ids": id_column if ids is None else Path(ids),
        "metadata": columns if metadata is None else Path(metadata),
    }


def _searched(facts: dict[str, Any]) -> str:
    """How codes are searched by default."""
    return f", searched by {'the decoder' if facts['coding'] == 'optimal' else 'Hamming distance'}"


def _kept(facts: dict[str, Any]) -> str:
    if facts["vectors"]:
        return f"{facts['vectors']}, {facts['dimensions']} dimensions"
    return "not kept" + (", --vectors float16 would" if facts["method"] else "")


def _check_sources(
    data: str | None, model: str | None, bits: int | None, codes: bool, of_rows: dict[str, str | None]
) -> None:
    """Refuse options of create that leave open what it is to be made of."""
    if data is None and model is None and bits is None:
        raise typer.BadParameter(
            "give --data FILE to fit a model to, --model MODEL, or --bits N for codes made elsewhere."
        )
    for option, value in (of_rows | {"--codes": codes or None}).items():
        refuse(data is None and value is not None, option, "it is about the rows of --data: add these.")
    refuse(
        codes and model is None and bits is None, "--codes",
        "codes do not tell how many bits they have: add --bits N, or --model MODEL.",
    )  # fmt: skip


def _check_model_options(
    model: str | None, bits: int | None, codes: bool, trains: bool, of_fit: dict[str, object]
) -> None:
    """Refuse options of a fit if nothing is fitted."""
    why = "the model is fitted already" if model else "no model is fitted to codes" if codes else "add --data"
    for option, value in of_fit.items():
        refuse(value is not None and not trains, option, f"it is for a model that is fitted here: {why}.")
    refuse(model and bits is not None, "--bits", "the model has bits of its own: leave it out.")


def _check_coding_options(
    model: str | None, codes: bool, trains: bool, vectors: str, coding: str | None,
    of_optimal: dict[str, object],
) -> None:  # fmt: skip
    """Refuse options about codes or vectors that the collection will not have."""
    without_model = not trains and model is None
    refuse(
        vectors != "none" and (codes or without_model), "--vectors",
        "codes come without vectors to keep: leave it out, or give --data of vectors or a --model.",
    )  # fmt: skip
    for option, value in of_optimal.items():
        refuse(value is not None and coding == "hash", option, "it is for optimal codes: drop --coding hash.")
    for option, value in ({"--coding": coding} | of_optimal).items():
        refuse(value is not None and without_model, option, "codes that are made elsewhere have theirs.")


def add(
    context: typer.Context,
    folder: opt.Folder,
    data: opt.Records,
    vectors_column: opt.VectorsColumn = None,
    id_column: opt.IdColumn = None,
    metadata_columns: opt.MetadataColumns = None,
    codes: opt.RowsAreCodes = False,
    ids: opt.Ids = None,
    metadata: opt.Metadata = None,
    upsert: Annotated[
        bool, Option("--upsert", help="Replace rows whose ids exist.")
    ] = False,
    from_row: Annotated[
        int, Option(metavar="N", help="Begin at this row of the files; 0 is the first.")
    ] = 0,
    memory: opt.Memory = None,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Add rows, encoded by the collection's model.

    Rows are committed in batches of 131,072, or fewer with --memory. If it is interrupted, it says how to
    resume.
    """
    by_ids = "rows are replaced by their ids: add --id-column NAME or --ids FILE."
    refuse(upsert and ids is None and id_column is None, "--upsert", by_ids)
    rows = _rows_of(ids, metadata, id_column, metadata_columns)
    from auxbit import Collection

    def stopped(row: int, n_rows: int) -> None:
        if row > from_row:
            done = f"{row:,} of {n_rows:,} rows are in."
            output.say_resume(done, output.given_again(context, "--from-row", row))

    with output.Stages("reading") as stages, Collection.open(folder, n_jobs=jobs) as items:
        before = len(items)
        added = items.add(
            None if codes else data, codes=data if codes else None, vectors_column=vectors_column, **rows,
            upsert=upsert, first_row=from_row, memory=memory, progress=stages, stopped=stopped,
        )  # fmt: skip
        n = len(items)
    done = {"collection": folder, "added": len(added), "replaced": before + len(added) - n, "items": n}
    if json:
        output.print_json(done | {"first_row": from_row})
        return
    replaced = f", {done['replaced']:,} of them in place of old ones" if done["replaced"] else ""
    output.say(f"{folder}: {output.counted(len(added), 'row')} added{replaced}; {output.counted(n, 'item')}.")


# ---- search


def search(
    folder: opt.Folder,
    queries: Annotated[str | None, Option(
        "--queries", "-q", metavar="FILE", help=f"The rows to search for. {opt.RECORDS_HELP}"
    )] = None,
    vectors_column: opt.VectorsColumn = None,
    id_: opt.LikeItem = None,
    codes: opt.RowsAreCodes = False,
    k: opt.Nearest = None,
    radius: opt.WithinRadius = None,
    mode: opt.Mode = None,
    rerank: opt.Rerank = None,
    where: opt.Where = None,
    probes: opt.Probes = None,
    recall: opt.Recall = None,
    out: opt.AnswersOut = None,
    skip_damaged: opt.SkipDamaged = False,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find the nearest items to each query."""
    refuse((queries is None) == (id_ is None), "--queries", "give --queries FILE or --id ID, one of them.")
    of_file = vectors_column is not None and queries is None
    refuse(of_file, "--vectors-column", "it is about the rows of --queries: add these.")
    by_vectors = mode == "asymmetric" or rerank
    check_k_or_radius(k, radius, ("--mode asymmetric and --rerank", by_vectors))
    from auxbit.core.files import check_output
    from auxbit.index.queries import ENDINGS

    if out is not None:
        check_output(out, overwrite=force, endings=ENDINGS)
    with _opened(folder, skip_damaged=skip_damaged, jobs=jobs) as items:
        with output.Stages("searching"):
            asked: dict[str, Any] = {"where": where or None, "vectors_column": vectors_column}
            asked |= {"probes": opt.probes_of(probes), "recall": recall}
            if id_ is not None:
                asked["like"] = items.parse_ids([id_])[0]
            else:
                asked["codes" if codes else "X"] = queries
            if radius is not None:
                found = items.search_radius(r=radius, **asked)
            else:
                candidates = False if rerank == 0 else rerank
                found = items.search(k=10 if k is None else k, mode=mode, rerank=candidates, **asked)
            if out is not None:
                found.write(out, overwrite=force)
        _warn_of(items.damage)
        print_answers(found, out, json)


def _opened(folder: str, *, skip_damaged: bool = False, jobs: int | None = None) -> Collection:
    """A collection that is read."""
    from auxbit import Collection

    return Collection.open(folder, read_only=True, damaged="skip" if skip_damaged else "error", n_jobs=jobs)


def duplicates(
    folder: opt.Folder,
    radius: Annotated[int, Option(help="The number of bits in which codes of a group may differ.")] = 0,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:
    """Find groups of items whose codes are equal, or nearly so."""
    with output.Stages("comparing codes"), _opened(folder, jobs=jobs) as items:
        groups, n = [group.tolist() for group in items.duplicates(radius)], len(items)
    if json:
        output.print_json({"collection": folder, "items": n, "radius": radius, "groups": groups})
        return
    print_groups(groups, "items", n, radius)
    if groups:
        output.say_next("collection", "get", folder, *map(str, groups[0][:2]))


# ---- get, list and update


def get(
    folder: opt.Folder,
    ids: Annotated[list[str], Argument(metavar="ID", help="The ids of items.")],
    json: opt.JsonLines = False,
) -> None:
    """Show items by their ids, with all of their metadata."""
    from auxbit.index.queries import as_text

    with _opened(folder) as items:
        found = items.get(items.parse_ids(ids))
    if json:
        output.print_json_lines(found)
        return
    for place, item in enumerate(found):
        if place:
            output.say()
        output.print_facts(
            [("id", item["id"]), *((name, as_text(each)) for name, each in item["metadata"].items())]
        )


def list_(
    context: typer.Context,
    folder: opt.Folder,
    where: opt.Where = None,
    limit: Annotated[int | None, Option(
        metavar="N", show_default=f"{SHOWN_ITEMS}, with --json all", help="The maximal number of items."
    )] = None,
    offset: Annotated[int, Option(metavar="N", min=0, help="Skip this many items first.")] = 0,
    order: Annotated[str | None, Option(
        metavar="FIELD", show_default="the order in which they were added",
        help="Sort by a field of the metadata; --order=-year sorts in descending order."
    )] = None,
    json: opt.JsonLines = False,
) -> None:  # fmt: skip
    """List items with their metadata."""
    with _opened(folder) as items:
        most = SHOWN_ITEMS if limit is None and not json else limit
        found = items.list(where or None, limit=most, offset=offset, order=order)
        if json:
            output.print_json_lines(found)
            return
        n = len(items) if not where else items.count(where)
    _print_items(found)
    more = n - offset - len(found)
    what = "items" if not where else "items that fit"
    if not found:
        output.say(f"None of {n:,} {what}." if n else f"{folder} has no {what}.")
    elif more > 0:
        output.say(f"{len(found):,} of {n:,} {what}; --json prints all. More by:")
        output.say(output.given_again(context, "--offset", offset + len(found)))
    else:
        output.say(f"{n:,} {what}.")


def _print_items(items: list[dict[str, Any]]) -> None:
    """A line per item, a column per field; those that most of them have."""
    counts: dict[str, int] = {}
    for item in items:
        for name in item["metadata"]:
            counts[name] = counts.get(name, 0) + 1
    shown = sorted(counts, key=lambda name: -counts[name])[:SHOWN_FIELDS]
    fields = [name for name in counts if name in shown]
    more = ["…"] if len(counts) > len(fields) else []
    lines = [
        [item["id"] if isinstance(item["id"], int) else str(item["id"])]
        + [_cell(item["metadata"].get(name, "")) for name in fields]
        + [
            "…" if len(item["metadata"]) > sum(name in item["metadata"] for name in fields) else ""
            for _ in more
        ]
        for item in items
    ]
    if lines:
        output.print_table(["id", *fields, *more], lines)


def _cell(value: Any) -> Any:
    """A value of metadata in a table, whose numbers are flush right."""
    from auxbit.index.queries import as_text

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else as_text(value, SHOWN_LETTERS)


def update(
    folder: opt.Folder,
    ids: opt.IdList = None,
    ids_file: opt.IdsFile = None,
    where: opt.Where = None,
    set_: Annotated[list[str] | None, Option(
        "--set", metavar="FIELD=VALUE", help="Set a field to text or JSON, such as year=2010, tags=[\"a\"] "
        "or old=true; a.b=1 sets b inside a. Can be repeated."
    )] = None,
    remove: Annotated[list[str] | None, Option(
        "--remove", metavar="FIELD", help="Remove a field. Can be repeated."
    )] = None,
    metadata: Annotated[str | None, Option(
        "--metadata", metavar="FILE", help="Set the fields in a file, which has one row for each id: .jsonl "
        "or .json of objects, .csv, .parquet or .arrow."
    )] = None,
    id_column: Annotated[str | None, Option(
        "--id-column", metavar="NAME", help="The column of --metadata with the ids of the items."
    )] = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Change the metadata of items.

    Codes, vectors and other fields do not change.
    """
    _one_of(**{"--ids": ids, "--ids-file": ids_file, "--where": where or None, "--id-column": id_column})
    fields = set_ or remove
    refuse(bool(fields) == (metadata is not None), "--set", "give --set or --remove, or --metadata FILE.")
    refuse(id_column is not None and metadata is None, "--id-column", "it is a column of --metadata FILE.")
    refuse(where and metadata is not None, "--where", "rows of --metadata are for ids: give these.")
    patch = Path(metadata) if metadata is not None else _patch(set_ or [], remove or [])
    from auxbit import Collection

    with output.Stages("updating"), Collection.open(folder) as items:
        which = id_column or (None if where else _wanted(items, ids, ids_file))
        n = items.update_metadata(which, patch, where=where or None)
    if json:
        output.print_json({"collection": folder, "updated": n})
    else:
        output.say(f"{folder}: metadata of {output.counted(n, 'item')} updated.")


def _patch(sets: list[str], removed: list[str]) -> dict[str, Any]:
    """What --set and --remove say, as a merge patch of JSON: null removes a field."""
    patch: dict[str, Any] = {}
    changes = [(text, *text.partition("=")) for text in sets]
    for text, field, sign, _ in changes:
        refuse(not sign or not field.strip(), "--set", f"{text!r} is not like year=2010.")
    for field, value in [(field, _value(value)) for _, field, _, value in changes] + [
        (field, None) for field in removed
    ]:
        *outer, last = field.strip().split(".")
        place = patch
        for name in outer:
            place = place.setdefault(name, {})
            refuse(not isinstance(place, dict), "--set", f"{field!r} is within a field that is set as well.")
        refuse(last in place, "--set", f"{field!r} is given twice.")
        place[last] = value
    return patch


def _value(text: str) -> Any:
    """A value that was typed: JSON if it is that, else text."""
    import json

    try:
        return json.loads(text, parse_constant=int)  # NaN is text, as in conditions
    except ValueError:
        return text


def _wanted(items: Collection, ids: str | None, ids_file: str | None) -> Any:
    """The ids that were typed, or those of a file."""
    from auxbit.data.records import read_ids

    return items.parse_ids(words(ids or "") if ids_file is None else list(read_ids(ids_file)))


def _one_of(**options: Any) -> None:
    """Refuse options of which none or several are given."""
    if sum(value is not None for value in options.values()) != 1:
        *first, last = options
        raise typer.BadParameter(f"choose items by one of {', '.join(first)} and {last}.")


# ---- delete, compact and retrain


def delete(
    folder: opt.Folder,
    ids: opt.IdList = None,
    ids_file: opt.IdsFile = None,
    where: opt.Where = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before deleting by --where.")] = False,
    json: opt.Json = False,
) -> None:
    """Delete items by their ids or metadata, all or none of them."""
    _one_of(**{"--ids": ids, "--ids-file": ids_file, "--where": where or None})
    from auxbit import Collection

    with Collection.open(folder) as items:
        if where:
            items.lock()  # so that what is counted is what is deleted
            found = items.count(where)
            there = f"{found:,} of {len(items):,} items"
            refuse(
                found and not yes and not _at_terminal(), "--where",
                f"it finds {there}. Add --yes to delete them.",
            )  # fmt: skip
            if found and not yes:
                typer.confirm(f"Delete {there}?", abort=True, err=True)
            deleted = items.delete(where=where) if found else 0
        else:
            deleted = items.delete(_wanted(items, ids, ids_file))
        left = len(items)
    if json:
        output.print_json({"collection": folder, "deleted": deleted, "items": left})
        return
    output.say(f"{folder}: {output.counted(deleted, 'item')} deleted, {left:,} left.")
    if deleted:
        output.say(f"Their room on disk is freed by: {output.shell('collection', 'compact', folder)}")


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def index(
    folder: opt.Folder,
    field: Annotated[str, Argument(metavar="FIELD", help="A field of the metadata: year or place.city.")],
    remove: Annotated[bool, Option("--remove", help="Remove the index.")] = False,
    json: opt.Json = False,
) -> None:
    """Make conditions on a field of the metadata fast."""
    from auxbit import Collection

    with output.Stages("indexing"), Collection.open(folder) as items:
        items.index_field(field, remove=remove)
    if json:
        output.print_json({"collection": folder, "field": field, "indexed": not remove})
    else:
        output.say(f"{folder}: {field} has {'no' if remove else 'an'} index now.")


def compact(folder: opt.Folder, skip_damaged: opt.SkipDamaged = False, json: opt.Json = False) -> None:
    """Rewrite codes and vectors without deleted items.

    Searches continue meanwhile. Until it ends it needs as much disk space again.
    """
    from auxbit import Collection

    damaged = "skip" if skip_damaged else "error"
    with (
        Collection.open(folder, damaged=damaged) as items,
        output.Stages("compacting", len(items)) as stages,
    ):
        damage = items.damage
        done: dict[str, Any] = {
            "collection": folder,
            "items": len(items),
            "dropped": items.state.positions - len(items),
            "bytes_before": items.n_bytes,
        }
        items.compact(progress=stages)
        done |= {"bytes_after": items.n_bytes, "damage": damage}
    if json:
        output.print_json(done)
        return
    _warn_of(damage)
    what = "deleted or damaged" if damage else "deleted"
    output.say(
        f"{folder}: {output.counted(done['items'], 'item')}; {done['dropped']:,} {what} ones are gone."
    )
    output.say(f"{output.size(done['bytes_after'])} on disk, {output.size(done['bytes_before'])} before.")


def retrain(
    folder: opt.Folder,
    model: Annotated[str | None, Option(
        metavar="MODEL", show_default="fitted to the collection's vectors", help="A model file to encode "
        "with."
    )] = None,
    data: Annotated[str | None, Option(
        "--data", "-d", metavar="FILE",
        help="For a collection without vectors: a file with one row per item, in the order they were added."
    )] = None,
    bits: Annotated[int | None, Option(
        metavar="N", show_default="unchanged", help="Bits per code."
    )] = None,
    method: opt.OtherMethod = None,
    seed: Annotated[int | None, Option(help=opt.SEED_HELP, show_default="that of the current model")] = None,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Fit a new model, and encode all items again.

    The model is fitted to at most 100,000 of the items. Searches continue meanwhile. If it is interrupted,
    the collection is unchanged.
    """
    given = model is not None and (bits is not None or method is not None)
    refuse(given, "--model", "it is fitted already: leave --bits and --method out.")
    from auxbit import Collection

    with output.Stages("retraining") as stages, Collection.open(folder, n_jobs=jobs) as items:
        items.retrain(model, X=data, method=method, bits=bits, random_state=seed, progress=stages)
        facts = items.describe()
    if json:
        output.print_json(facts)
        return
    output.say(
        f"{folder}: {facts['items']:,} items have new codes, {facts['method']} of {facts['bits']} bits."
    )
    output.say_next("collection", "stats", folder)


# ---- stats and check


def stats(folder: opt.Folder, skip_damaged: opt.SkipDamaged = False, json: opt.Json = False) -> None:
    """Show sizes, and whether the model still suits new rows."""
    with _opened(folder, skip_damaged=skip_damaged) as items:
        with output.Stages("measuring"):
            found = items.stats()
        damage = items.damage
    if json:
        output.print_json(found.document() | {"damage": damage})
        return
    _warn_of(damage)
    output.print_facts(
        [
            ("collection", found.path),
            ("items", f"{found.items:,}"),
            ("deleted", f"{found.deleted:,}"),
            ("bits", found.n_bits),
            ("method", found.method or "none: codes alone"),
            ("dimensions", found.n_features),
            ("metric", found.metric),
            ("coding", found.coding),
            ("vectors", found.vectors or "not kept"),
            ("ids", found.ids),
            *((f"{kind} on disk", output.size(n)) for kind, n in found.bytes.items()),
            ("added since training", f"{found.added:,}"),
        ]
    )
    output.say()
    lines = _drift_lines(found)
    if lines:
        output.print_table(["measure", "of", "trained on", "found", "change", "limit", "verdict"], lines)
    output.say(_verdict(found))


def _drift_lines(stats: Statistics) -> list[tuple[str, ...]]:
    """A line per comparison: measure, which rows, trained on, found, change, limit, verdict."""
    lines: list[tuple[str, ...]] = []
    for sample, drift in stats.drift.items():
        for measure in drift.measures:
            change, limit = (_change(measure, value) for value in (measure.change, measure.limit))
            verdict = "drifted" if measure.exceeded else "fine" if measure.limit is not None else "not judged"
            verdict = verdict if drift.enough else "too few rows"
            rows = f"{sample}, {drift.n_added:,} rows"
            found = output.number(measure.trained), output.number(measure.added)
            lines.append((measure.name, rows, *found, change, limit, verdict))
    return lines


def _change(measure: Measure, value: float | None) -> str:
    from auxbit.hashers.drift import EFFECTIVE_BITS, ERROR

    if value is None:
        return "-"
    if measure.name == ERROR:
        return f"× {value:.2f}" if value < 1e6 else f"× {value:.0e}"
    return f"{-value + 0.0:+.2f} bits" if measure.name == EFFECTIVE_BITS else f"{value:.3f}"


def _verdict(stats: Statistics) -> str:
    """The sentence whether retraining is due, and by which command."""
    reasons = "; ".join(stats.reasons)
    if stats.retrain:
        data = [] if stats.vectors is not None else ["--data", "FILE"]
        command = output.shell("collection", "retrain", stats.path, *data)
        return f"Retraining is due: {reasons}.\nNext: {command}"
    if stats.drift and all(drift.enough for drift in stats.drift.values()):
        return "Retraining is not due: what was added is like what the model was trained on."
    return f"Whether retraining is due cannot be told ({reasons})."


def check(folder: opt.Folder, json: opt.Json = False) -> None:
    """Look for damage on disk.

    It verifies the checksums of all data; the exit code is 1 if one does not match.
    """
    with output.Stages("checking"), _opened(folder, skip_damaged=True) as items:
        damage, state, n_bytes = items.check(), items.state, items.n_bytes
        lost = items.lost if damage else 0
    n_items, n_files = state.items - lost, len(state.files) + 1
    of_model = any(state.model is not None and state.model in line for line in damage)
    if json:
        sizes = {"items": n_items, "lost": lost, "files": n_files, "bytes": n_bytes}
        output.print_json({"collection": folder} | sizes | {"damage": damage, "model_is_damaged": of_model})
    elif not damage:
        output.say(f"{folder} is whole: {n_items:,} items, {output.size(n_bytes)}, {n_files} files.")
    else:
        output.say(f"{folder} is damaged; of {n_items + lost:,} items {lost:,} are lost:")
        for line in damage:
            output.say(f"  {line}")
        output.say("Restore these files from a copy. If there is none:")
        if of_model:
            again = output.shell("collection", "retrain", folder, "--model", "MODEL")
            output.say(f"  {again} makes the codes again")
        of_items = [line for line in damage if line.startswith("collection.sqlite")]
        if of_items:
            again = output.shell("collection", "delete", folder, "--ids", "ID,…")
            output.say(f"  {again} removes items that do not match, which can be added again")
        if len(damage) > of_model + len(of_items):
            output.say("  --skip-damaged of search and stats uses what is left; to keep that alone:")
            output.say(f"  {output.shell('collection', 'compact', folder, '--skip-damaged')}")
    if damage:
        raise typer.Exit(1)


def _warn_of(damage: list[str]) -> None:
    for line in damage:
        output.note(line, "warning")
