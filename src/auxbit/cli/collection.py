"""`collection …`: codes, ids, metadata and vectors in a folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.models import applicable
from auxbit.cli.options import check_k_or_radius, choice, refuse
from auxbit.cli.search import print_answers

if TYPE_CHECKING:
    from auxbit.collection.statistics import Statistics
    from auxbit.hashers.drift import Measure

KINDS = {"positions": "deletions", "total": "all on disk"}  # of what takes room on disk


# ---- create and add


def create(
    out: Annotated[str, Argument(metavar="OUT", help="The folder to make the collection in.")],
    data: Annotated[str | None, Option(
        "--data", "-d", metavar="FILE", help=f"The first rows. {opt.DATA_HELP}"
    )] = None,
    model: Annotated[str | None, Option(
        metavar="MODEL", show_default="fitted to --data", help="A model file, as written by fit."
    )] = None,
    bits: Annotated[int | None, Option(
        metavar="N", show_default="32", help="Bits per code, 1 to 1024. With neither --data nor --model: a "
        "collection for codes that are made elsewhere."
    )] = None,
    method: opt.OptionalMethod = None,
    vectors: Annotated[str, choice(
        "float32", "float16", "none",
        help="Keep the vectors in this type, for search --rerank and for retrain."
    )] = "none",
    metadata: opt.Metadata = None,
    ids: opt.Ids = None,
    codes: opt.RowsAreCodes = False,
    coding: Annotated[str | None, choice(
        "hash", "optimal", show_default="what the model's decoder is for",
        help="Codes h(x), or those from which the decoder reconstructs rows best, which is then what "
        "searches."
    )] = None,
    mu: Annotated[float | None, Option(help=opt.MU_HELP)] = None,
    decoder: Annotated[str | None, choice(
        "linear", "tables", help="For optimal codes, fitted to --data if the model has no such decoder: one "
        "vector per bit, or one for each value of a byte, which reconstructs better and needs many rows."
    )] = None,
    normalize: opt.Normalize = False,
    seed: opt.Seed = 0,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Make a collection, and add the first rows.

    It keeps a copy of the model, which encodes all that is added later.
    """
    trains = data is not None and model is None and not codes
    _check_sources(data, model, bits, codes, {"--ids": ids, "--metadata": metadata})
    _check_model_options(model, bits, codes, trains, {"--method": method, "--normalize": normalize or None})
    _check_coding_options(model, codes, trains, vectors, coding, {"--mu": mu, "--decoder": decoder})
    if normalize:
        applicable(method or "ba", normalize=True)
    from auxbit.collection import build

    def stopped(row: int, n_rows: int) -> None:
        options = [word for name, value in (("--ids", ids), ("--metadata", metadata)) if value is not None
                   for word in (name, value)] + ["--codes"] * codes  # fmt: skip
        again = ("collection", "add", out, "--data", data or "", *options, "--from-row", str(row))
        output.say_resume(f"{row:,} of {n_rows:,} rows are in.", output.shell(*again))

    with output.Stages("making") as stages:
        facts = build.create(
            out, data, model=model, method=method, n_bits=bits, seed=seed, normalize=normalize, ids=ids,
            metadata=metadata, codes=codes, vectors=None if vectors == "none" else vectors, coding=coding,
            mu=mu, decoder=decoder, overwrite=force, n_jobs=jobs, progress=stages, stopped=stopped,
        )  # fmt: skip
    if json:
        output.print_json(facts)
        return
    source = f"fitted to {data}" if trains else f"from {model}"
    output.print_facts(
        [
            ("collection", out),
            ("items", f"{facts['items']:,}"),
            ("codes", f"{facts['bits']} bits" + (", optimal" if facts["coding"] == "optimal" else "")),
            ("model", f"{facts['method']}, {source}" if facts["method"] else "none: it holds codes alone"),
            ("vectors", _kept(facts)),
        ]
    )
    if data is not None:
        output.say_next("collection", "search", out, "--queries", data, *["--codes"] * codes)
    else:
        file = ["rows.npy"] if model is not None else ["codes.npy", "--codes"]
        output.say_next("collection", "add", out, "--data", *file)


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
    data: Annotated[str, Option("--data", "-d", metavar="FILE", help=f"The rows to add. {opt.DATA_HELP}")],
    codes: opt.RowsAreCodes = False,
    ids: opt.Ids = None,
    metadata: opt.Metadata = None,
    upsert: Annotated[
        bool, Option("--upsert", help="Replace the rows of ids that are there already.")
    ] = False,
    from_row: Annotated[
        int, Option(metavar="N", help="Begin at this row of the files; 0 is the first.")
    ] = 0,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Add rows, encoded by the collection's model.

    Each batch of 131,072 rows is on disk before the next begins. If it is stopped, it says how to resume.
    """
    refuse(upsert and ids is None, "--upsert", "rows are replaced by their ids: add --ids FILE.")
    from auxbit.collection import build

    def stopped(row: int, n_rows: int) -> None:
        if row > from_row:
            done = f"{row:,} of {n_rows:,} rows are in."
            output.say_resume(done, output.given_again(context, "--from-row", row))

    with output.Stages("reading") as stages:
        done = build.add(
            folder, data, ids=ids, metadata=metadata, codes=codes, upsert=upsert, first=from_row, n_jobs=jobs,
            progress=stages, stopped=stopped,
        )  # fmt: skip
    if json:
        output.print_json(done)
        return
    replaced = f", {done['replaced']:,} of them in place of old ones" if done["replaced"] else ""
    output.say(f"{folder}: {done['added']:,} rows added{replaced}; {done['items']:,} items.")


# ---- search


def search(
    folder: opt.Folder,
    queries: Annotated[str | None, Option(
        "--queries", "-q", metavar="FILE", help=f"The rows to search for. {opt.DATA_HELP}"
    )] = None,
    id_: opt.LikeItem = None,
    codes: opt.RowsAreCodes = False,
    k: opt.Nearest = None,
    radius: opt.WithinRadius = None,
    mode: Annotated[str | None, Option(
        metavar="hamming|asymmetric", show_default="asymmetric if codes are optimal, else hamming",
        help="By the distance of codes in bits, or from the query itself to what the decoder makes of codes."
    )] = None,
    rerank: opt.Rerank = None,
    where: opt.Where = None,
    out: opt.AnswersOut = None,
    skip_damaged: opt.SkipDamaged = False,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find the nearest items to each query."""
    refuse((queries is None) == (id_ is None), "--queries", "give --queries FILE or --id N, one of them.")
    by_vectors = mode == "asymmetric" or rerank is not None
    check_k_or_radius(k, radius, ("--mode asymmetric and --rerank", by_vectors))
    from auxbit.collection import build
    from auxbit.core.files import check_output
    from auxbit.index.answers import ENDINGS

    if out is not None:
        check_output(out, overwrite=force, endings=ENDINGS)
    with build.open_collection(folder, read_only=True, skip_damaged=skip_damaged, n_jobs=jobs) as items:
        with output.Stages("searching"):
            if queries is not None:
                asked = build.read_queries(items, queries, codes=codes)
            else:
                asked = build.stored_item(items, id_ or 0)
            found = build.search(
                items, asked, 10 if k is None else k, radius=radius, mode=mode, rerank=rerank, where=where
            )
            if out is not None:
                found.write(out, overwrite=force)
        _warn_of(items.damage)
        print_answers(found, out, json)


# ---- delete, compact and retrain


def delete(
    folder: opt.Folder,
    ids: Annotated[str | None, Option("--ids", metavar="N,…", help="Ids to delete, as 1,2,3.")] = None,
    ids_file: Annotated[str | None, Option(metavar="FILE", help="An .npy file of ids to delete.")] = None,
    where: opt.Where = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before deleting by --where.")] = False,
    json: opt.Json = False,
) -> None:
    """Delete items by their ids or metadata, all or none of them."""
    if sum(bool(each is not None and each != []) for each in (ids, ids_file, where)) != 1:
        raise typer.BadParameter("say what to delete by one of --ids, --ids-file and --where.")
    wanted: Any = None if ids is None else _integers(ids)
    from auxbit.collection import build
    from auxbit.data.records import read_ids

    with build.open_collection(folder) as items:
        if where:
            items.lock()  # so that what is counted is what is deleted
            found = items.count(where)
            there = f"{found:,} of {len(items):,} items"
            refuse(
                found and not yes and not _at_terminal(), "--where",
                f"it finds {there}. Add --yes if nobody can be asked.",
            )  # fmt: skip
            if found and not yes:
                typer.confirm(f"Delete {there}?", abort=True, err=True)
            deleted = items.delete(where=where)
        else:
            deleted = items.delete(wanted if ids_file is None else read_ids(ids_file))
        left = len(items)
    if json:
        output.print_json({"collection": folder, "deleted": deleted, "items": left})
        return
    output.say(f"{folder}: {deleted:,} items deleted, {left:,} left.")
    if deleted:
        output.say(f"Their room on disk is freed by: {output.shell('collection', 'compact', folder)}")


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of ids like 1,2,3.", param_hint="--ids") from error


def compact(folder: opt.Folder, skip_damaged: opt.SkipDamaged = False, json: opt.Json = False) -> None:
    """Write everything into one file without what is deleted.

    Searches continue meanwhile. It takes as much disk again until it is done.
    """
    from auxbit.collection import build

    with (
        build.open_collection(folder, skip_damaged=skip_damaged) as items,
        output.Stages("compacting", len(items)) as stages,
    ):
        damage = items.damage
        done: dict[str, Any] = {
            "collection": str(items.path),
            "items": len(items),
            "dropped": items.manifest.n_positions - len(items),
            "bytes_before": items.manifest.n_bytes,
        }
        items.compact(advance=stages.advance)
        done |= {"bytes_after": items.manifest.n_bytes, "damage": damage}
    if json:
        output.print_json(done)
        return
    _warn_of(damage)
    what = "deleted or damaged" if damage else "deleted"
    output.say(f"{folder}: {done['items']:,} items; {done['dropped']:,} {what} ones are gone.")
    output.say(f"{output.size(done['bytes_after'])} on disk, {output.size(done['bytes_before'])} before.")


def retrain(
    folder: opt.Folder,
    model: Annotated[str | None, Option(
        metavar="MODEL", show_default="fitted to the collection's vectors", help="A model file to encode by."
    )] = None,
    data: Annotated[str | None, Option(
        "--data", "-d", metavar="FILE",
        help="For a collection without vectors: one row per item, in the order they were added in."
    )] = None,
    bits: Annotated[int | None, Option(
        metavar="N", show_default="as many as now", help="Bits per code."
    )] = None,
    method: opt.OtherMethod = None,
    seed: Annotated[int | None, Option(help=opt.SEED_HELP, show_default="that of the present model")] = None,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Make new codes by a new model, and switch to them in one step.

    The model is fitted to at most 100,000 of the items. Searches continue meanwhile; if it is stopped, the
    collection is as it was.
    """
    given = model is not None and (bits is not None or method is not None)
    refuse(given, "--model", "it is fitted already: leave --bits and --method out.")
    from auxbit.collection import build

    with output.Stages("retraining") as stages:
        facts = build.retrain(
            folder, data, model=model, method=method, n_bits=bits, seed=seed, n_jobs=jobs, progress=stages
        )
    if json:
        output.print_json(facts)
        return
    output.say(
        f"{folder}: {facts['items']:,} items have new codes, {facts['method']} of {facts['bits']} bits."
    )
    output.say_next("collection", "stats", folder)


# ---- stats and check


def stats(folder: opt.Folder, skip_damaged: opt.SkipDamaged = False, json: opt.Json = False) -> None:
    """Show sizes, and whether the model still fits what is added."""
    from auxbit.collection.build import open_collection

    with open_collection(folder, read_only=True, skip_damaged=skip_damaged) as items:
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
            ("coding", found.coding),
            ("vectors", found.vectors or "not kept"),
            ("segments", found.segments),
            *((KINDS.get(kind, kind), output.size(n)) for kind, n in found.bytes.items()),
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

    Every byte is compared with its checksum; the exit code is 1 if one differs.
    """
    from auxbit.collection.build import open_collection

    with output.Stages("checking"), open_collection(folder, read_only=True, skip_damaged=True) as items:
        state, damage, lost, n_items = items.manifest, items.damage, items.lost, len(items)
    of_model = any(state.model is not None and state.model in line for line in damage)
    n_files = len(state.files) + 1
    if json:
        sizes = {"items": n_items, "lost": lost, "files": n_files, "bytes": state.n_bytes}
        output.print_json({"collection": folder} | sizes | {"damage": damage, "model_is_damaged": of_model})
    elif not damage:
        output.say(f"{folder} is whole: {n_items:,} items, {output.size(state.n_bytes)}, {n_files} files.")
    else:
        output.say(f"{folder} is damaged; of {n_items + lost:,} items {lost:,} are lost:")
        for line in damage:
            output.say(f"  {line}")
        output.say("Restore these files from a copy. If there is none:")
        if of_model:
            again = output.shell("collection", "retrain", folder, "--model", "MODEL")
            output.say(f"  {again} makes the codes again")
        if len(damage) > of_model:
            output.say("  --skip-damaged of search and stats uses what is left; to keep that alone:")
            output.say(f"  {output.shell('collection', 'compact', folder, '--skip-damaged')}")
    if damage:
        raise typer.Exit(1)


def _warn_of(damage: list[str]) -> None:
    for line in damage:
        output.note(line, "warning")
