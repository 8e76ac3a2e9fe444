"""`collection search`, `stats` and `check`: the commands that change nothing."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.models import DATA_HELP, Force, Jobs, Json
from auxbit.cli.searching import AnswersOut, Nearest, Rerank, WithinRadius

SHOWN_QUERIES, SHOWN_NEIGHBOURS, SHOWN_FIELDS, SHOWN_LETTERS = 10, 5, 3, 30
WHERE_HELP = (
    "Only items with such metadata: label=cat, label=cat,dog, label!=cat, 'year>=2000', name~part, "
    "name^=start, label? or !label. May be given several times; then all must hold."
)
KINDS = {"positions": "deletions", "total": "all on disk"}  # of what takes room on disk

Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="The folder of the collection.", show_default=False)
]
Where = Annotated[
    list[str] | None, typer.Option("--where", metavar="COND", help=WHERE_HELP, show_default=False)
]
RowsAreCodes = Annotated[
    bool, typer.Option("--codes", help="The file holds codes, as written by encode, and not vectors.")
]
SkipDamaged = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave out what is damaged on disk, and use the rest.")
]


def search(
    folder: Folder,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries", "-q", metavar="FILE", help=f"The rows to search for. {DATA_HELP}", show_default=False
        ),
    ] = None,
    id_: Annotated[
        int | None,
        typer.Option("--id", metavar="N", help="Search for what is like this item.", show_default=False),
    ] = None,
    codes: RowsAreCodes = False,
    k: Nearest = None,
    radius: WithinRadius = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="hamming|asymmetric", show_default=False,
            help="By the distance of codes in bits, or from the query itself to what the decoder makes of "
            "codes. Unless given: hamming, but asymmetric where codes are optimal.",
        ),
    ] = None,
    rerank: Rerank = None,
    where: Where = None,
    out: AnswersOut = None,
    skip_damaged: SkipDamaged = False,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Find the nearest items to each query."""
    if (queries is None) == (id_ is None):
        raise typer.BadParameter("give --queries FILE or --id N, one of them.", param_hint="--queries")
    if k is not None and radius is not None:
        raise typer.BadParameter("give --k or --radius, not both.", param_hint="--k")
    if radius is not None and (mode == "asymmetric" or rerank is not None):
        raise typer.BadParameter(
            "a radius is of Hamming distance: drop --mode asymmetric and --rerank.", param_hint="--radius"
        )
    from auxbit.cli import collection_answers, collection_rows

    if out is not None:
        collection_answers.check_out(out, force=force)
    with collection_rows.opened(folder, read_only=True, skip_damaged=skip_damaged, n_jobs=jobs) as items:
        with output.progress("searching"):
            asked = (
                collection_answers.stored_item(items, id_)
                if id_ is not None
                else collection_answers.read_queries(items, queries or "", codes=codes)
            )
            found = collection_answers.search(
                items, asked, k=10 if k is None and radius is None else k, radius=radius, mode=mode,
                rerank=rerank, where=where or [], out=out, force=force,
            )  # fmt: skip
        warn_of(items.damage)
        if json:
            output.print_json(found.document(whole=out is None))
            return
        _print_answers(found)
    if out is not None:
        output.say(f"Written to {out}.")


def _print_answers(found: Any) -> None:
    """One query: a line an answer. Several: a line each, with the nearest few."""
    if not found.about["retrieved"]:
        limits = f" with {found.about['where']}" if found.about["where"] else ""
        output.say(f"Nothing is found among {found.about['items']:,} items{limits}.")
        return
    by_vectors = found.about["rerank"] is not None or found.about["mode"] == "asymmetric"
    measure = "squared distance" if by_vectors else "distance"
    if found.n_queries == 1:
        best = found.of(0, SHOWN_QUERIES)
        rows = zip(best["ids"], best["distances"], map(_fields, best["metadata"]))
        _print_table([("id", measure, "metadata"), *rows])
        more = found.about["retrieved"] - len(best["ids"])
        if more:
            output.say(f"… and {more:,} items more: --out FILE writes all of them, --json prints them.")
        return
    lines = []
    for query in range(min(SHOWN_QUERIES, found.n_queries)):
        best = found.of(query, SHOWN_NEIGHBOURS)
        near = [f"{id_} ({output.number(far)})" for id_, far in zip(best["ids"], best["distances"])]
        n_found = int(found.lims[query + 1] - found.lims[query])
        about = _fields(best["metadata"][0]) if near else ""
        lines.append((str(query), n_found, "  ".join(near), about))
    _print_table([("query", "found", f"nearest items, with their {measure}", "the nearest"), *lines])
    if found.n_queries > SHOWN_QUERIES:
        output.say(f"… and {found.n_queries - SHOWN_QUERIES:,} queries more: --out FILE writes all of them.")


def _print_table(table: list[Any]) -> None:
    """A table with a header; its last column is left out where no item has metadata."""
    shown = table if any(row[-1] for row in table[1:]) else [row[:-1] for row in table]
    output.print_table(shown[0], shown[1:])


def _fields(metadata: dict[str, Any]) -> str:
    """Some fields of an item, a line of them."""
    shown = [f"{name}={_short(value)}" for name, value in list(metadata.items())[:SHOWN_FIELDS]]
    return "  ".join(shown) + (" …" if len(metadata) > SHOWN_FIELDS else "")


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"


def stats(folder: Folder, skip_damaged: SkipDamaged = False, json: Json = False) -> None:
    """Show sizes, and whether the model still fits what is added."""
    from auxbit.cli import collection_answers, collection_rows

    with collection_rows.opened(folder, read_only=True, skip_damaged=skip_damaged) as items:
        with output.progress("measuring"):
            found = items.stats()
        damage = items.damage
    if json:
        output.print_json(found.document() | {"damage": damage})
        return
    warn_of(damage)
    kinds = [(KINDS.get(kind, kind), size(n)) for kind, n in found.bytes.items()]
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
            *kinds,
            ("added since training", f"{found.added:,}"),
        ]
    )
    lines = collection_answers.drift_lines(found)
    if lines:
        output.say()
        output.print_table(["measure", "of", "trained on", "found", "change", "limit", "verdict"], lines)
    else:
        output.say()
    output.say(collection_answers.verdict(found, lambda *words: shlex.join(["auxbit", *words])))


def check(folder: Folder, json: Json = False) -> None:
    """Look for damage on disk.

    Every byte is compared with its checksum; the exit code is 1 where one differs.
    """
    from auxbit.cli import collection_answers, collection_rows

    with (
        output.progress("checking"),
        collection_rows.opened(folder, read_only=True, skip_damaged=True) as items,
    ):
        found = collection_answers.check(items)
    if json:
        output.print_json(found)
    elif not found["damage"]:
        output.say(
            f"{folder} is whole: {found['items']:,} items, {size(found['bytes'])}, {found['files']} files."
        )
    else:
        output.say(
            f"{folder} is damaged; of {found['items'] + found['lost']:,} items {found['lost']:,} are lost:"
        )
        for line in found["damage"]:
            output.say(f"  {line}")
        output.say("Restore these files from a copy. Where there is none:")
        command = ["auxbit", "collection"]
        if found["model_is_damaged"]:
            output.say(f"  {shlex.join([*command, 'retrain', folder, '--model', 'MODEL'])} makes codes anew")
        if len(found["damage"]) > found["model_is_damaged"]:
            output.say("  --skip-damaged of search and stats uses what is left; to keep that alone:")
            output.say(f"  {shlex.join([*command, 'compact', folder, '--skip-damaged'])}")
    if found["damage"]:
        raise typer.Exit(1)


def warn_of(damage: list[str]) -> None:
    """A warning for each part of a collection that is damaged."""
    for line in damage:
        output.note(line, "warning")


def size(n_bytes: float) -> str:
    """Bytes for reading."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
