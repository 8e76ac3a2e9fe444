"""`images …` and `serve`: folders of pictures, searched by what they look like."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import choice, integers, refuse, words
from auxbit.errors import printable

if TYPE_CHECKING:
    from auxbit.images.build import Report
    from auxbit.images.pictures import Copy
    from auxbit.serve.server import Serving

SHOWN_BAD = 10
SHOWN_GROUPS, SHOWN_COPIES = 20, 10
COLUMNS = {
    "method": "method", "bits": "bits", "precision": "precision", "recall": "recall", "mAP": "map",
    "error": "squared_error", "L_eff": "effective_bits", "seconds": "seconds",
}  # fmt: skip
USAGE = "give the folder of a collection (auxbit serve pets.auxbit), or --demo for handwritten digits"

Pets = Annotated[str, Argument(metavar="COLLECTION", help="A collection made by create.")]
Prune = Annotated[bool, Option("--prune", help="Delete items whose file is missing.")]
Retrain = Annotated[bool | None, Option(
    "--retrain/--no-retrain", show_default="if most pictures were added after the last fit",
    help="Afterwards fit a new model to all pictures, and encode them again."
)]  # fmt: skip


def create(
    context: typer.Context,
    folder: Annotated[str, Argument(
        metavar="DIR",
        help="A folder of pictures, read with its subfolders: jpeg, png, webp, gif, tiff, bmp, avif, heic."
    )],
    out: Annotated[str, Option("--out", "-o", metavar="COLLECTION", help="The folder of the collection.")],
    bits: Annotated[int | None, Option(metavar="N", help="Bits per code.", show_default="64")] = None,
    method: opt.OptionalMethod = None,
    features: Annotated[str | None, choice(
        "gist", "pixels", show_default="gist",
        help="How pictures are compared: by gist, which describes their structure, or by their pixels."
    )] = None,
    side: Annotated[int | None, Option(
        metavar="N", show_default="by the pictures", help="Pixels of the square that pictures are scaled to."
    )] = None,
    colour: Annotated[float | None, Option(
        metavar="WEIGHT", show_default="0",
        help="gist: the weight of colours; 0 ignores them, 1 gives them the weight of the structure."
    )] = None,
    grey: Annotated[bool | None, Option("--grey", help="pixels: use only their brightness.")] = None,
    model: Annotated[str | None, Option(
        metavar="FILE.onnx", help="A network that turns pictures into vectors, instead of --features."
    )] = None,
    mean: Annotated[str | None, Option(
        metavar="R,G,B", show_default="0,0,0", help="--model: is subtracted from the channels, which are 0 "
        "to 1."
    )] = None,
    std: Annotated[str | None, Option(
        metavar="R,G,B", show_default="1,1,1", help="--model: divides the channels after that."
    )] = None,
    text_model: Annotated[str | None, Option(
        metavar="FILE.onnx", help="--model: the network that turns words into such vectors, for search "
        "--text."
    )] = None,
    tokenizer: Annotated[str | None, Option(
        metavar="FILE.json", help="--text-model: its tokenizer.json."
    )] = None,
    seed: Annotated[int | None, Option(help=opt.SEED_HELP, show_default="0")] = None,
    views: Annotated[bool | None, Option(
        "--views", help="Also keep codes of each picture mirrored, rotated and cropped, to find such copies."
    )] = None,
    prune: Prune = False,
    retrain: Retrain = None,
    jobs: opt.Jobs = None,
    force: Annotated[bool, Option(
        "--force", help="If the collection exists, begin again instead of resuming."
    )] = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Make a collection of the pictures in a folder.

    The same command resumes after an interruption, and adds new and changed pictures. Files that cannot be
    read and links that lead out of the folder are listed and left out.
    """
    channels = _channels(mean, "--mean"), _channels(std, "--std")
    with output.resumable(context, out, without=["--force"]), output.Stages() as stages:
        from auxbit.images import build

        report = build.create(
            folder, out, bits=bits, method=method, features=features, side=side, colour=colour, grey=grey,
            model=model, mean=channels[0], std=channels[1], text_model=text_model,
            tokenizer=tokenizer, seed=seed, views=views, prune=prune, retrain=retrain, overwrite=force,
            n_jobs=jobs, progress=stages,
        )  # fmt: skip
    _print(report, out, json)


def add(
    context: typer.Context,
    folder: Pets,
    places: Annotated[list[str], Argument(metavar="FILE_OR_DIR", help="Pictures, and folders of them.")],
    prune: Prune = False,
    retrain: Retrain = None,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:
    """Add new and changed pictures.

    Unchanged pictures are not read again, and those that were moved keep their items. The same
    command resumes after an interruption.
    """
    with output.resumable(context, folder), output.Stages() as stages:
        from auxbit.images import build

        report = build.add(places, folder, prune=prune, retrain=retrain, n_jobs=jobs, progress=stages)
    _print(report, folder, json)


def search(
    folder: Pets,
    picture: Annotated[str | None, Argument(metavar="PICTURE", help="A picture to search for.")] = None,
    id_: Annotated[int | None, Option("--id", metavar="N", help="Search for items like this one.")] = None,
    text: Annotated[str | None, Option(
        metavar="WORDS", help="Search by words, in a collection made with --text-model."
    )] = None,
    k: Annotated[int, Option("--k", "-k", min=1, help="How many to find.")] = 10,
    mode: Annotated[str | None, choice(
        "hamming", "asymmetric", "reranked", show_default="reranked", help="hamming: rank by the number of "
        "bits in which codes differ; asymmetric: by the distance from the picture's vector to the decoded "
        "codes; reranked: the best of these by their true distances."
    )] = None,
    jobs: opt.Jobs = None,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find the pictures most like a picture, or like words."""
    given = [each for each in (picture, id_, text) if each is not None]
    if len(given) != 1:
        raise typer.BadParameter("give one of PICTURE, --id N and --text WORDS.", param_hint="PICTURE")
    query = given[0]
    from auxbit.images.pictures import Pictures

    with output.Stages("searching"), Pictures.open(folder, n_jobs=jobs) as pictures:
        if text is not None:
            results = pictures.search_text(text, k, mode=mode)
        else:
            results = pictures.search(query, k, mode=mode)
        items = len(pictures)
        mode = mode or "reranked"
    if json:
        found = {"query": query, "mode": mode, "items": items}
        output.print_json(found | {"results": [each._asdict() for each in results]})
        return
    if not results:
        output.say(f"Nothing else is among the {items:,} pictures.")
        return
    with_views = any(each.view for each in results)
    output.print_table(
        ["id", "bits" if mode == "hamming" else "distance", *(["view"] if with_views else []), "file"],
        [
            (each.id, each.distance, *([each.view] if with_views else []), printable(each.file))
            for each in results
        ],
    )


def duplicates(
    folder: Pets,
    radius: Annotated[int | None, Option(
        metavar="N", help="Also find pictures that look alike: whose codes differ in at most this many bits.",
        show_default="only files with the same bytes",
    )] = None,
    out: Annotated[str | None, Option(
        "--out", "-o", metavar="FILE", help="Write a list to this .csv, or commands to this .sh."
    )] = None,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find copies of pictures, and which one of each group to keep.

    Nothing is deleted: --out writes a list for you to check.
    """
    from auxbit.core.files import check_output
    from auxbit.images.pictures import Pictures, write_duplicates

    if out is not None:
        check_output(out, overwrite=force, endings=[".csv", ".sh"])
    with output.Stages("comparing"), Pictures.open(folder, n_jobs=jobs) as pictures:
        groups, items = pictures.duplicates(radius), len(pictures)
    if out is not None:
        write_duplicates(groups, out, overwrite=force)
    if json:
        found = {"collection": folder, "items": items, "radius": radius}
        found["groups"] = [[each._asdict() for each in group] for group in groups]
        output.print_json(found | ({} if out is None else {"written": out}))
        return
    _print_duplicates(groups, items, radius)
    if out is not None:
        output.say(f"Written to {out}.")
    elif groups:
        output.say("--out list.csv writes all of them, --out list.sh commands.")


def _print_duplicates(groups: list[list[Copy]], items: int, radius: int | None) -> None:
    rows = [
        (str(number), each.action, printable(each.path), each.why)
        for number, group in enumerate(groups[:SHOWN_GROUPS], 1) for each in group[:SHOWN_COPIES]
    ]  # fmt: skip
    if rows:
        output.print_table(["group", "action", "file", "why"], rows)
    more = [each for group in groups for each in group if each.action == "delete"]
    n = f"{len(groups):,} group{'' if len(groups) == 1 else 's'}"
    what = "of the same bytes" if radius is None else f"of the same bytes or within {radius} bits"
    output.say(
        f"{n} {what} among {items:,} pictures; {len(more):,} could be deleted, "
        f"{output.size(sum(each.bytes for each in more))}. Nothing was deleted."
    )


def compare(
    context: typer.Context,
    folder: Pets,
    bits: opt.Bits = "16,32,64",
    methods: Annotated[
        str, Option(metavar="NAME,…", help=f"Any of {', '.join(opt.HASHER_NAMES)}, pq, opq.")
    ] = "ba,itq,sh,tpca,lsh",
    n_queries: Annotated[int, Option(min=1, help="The maximal number of pictures to search for.")] = 500,
    K: Annotated[int, Option("--K", min=1, help="How many true neighbours a picture has.")] = 50,
    k: Annotated[int, Option("--k", min=1, help="How many of the nearest codes are retrieved.")] = 50,
    seeds: opt.Seeds = 1,
    jobs: opt.Jobs = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:
    """Compare methods on the pictures of a collection.

    The table is kept in the collection, and auxbit serve shows it.
    """
    counts, command = integers(bits), output.given_again(context, without=["--force", "--json", "--jobs"])
    with output.resumable(context, folder), output.Stages() as stages:
        from auxbit.images import build

        plan = build.Plan(words(methods), counts, n_queries=n_queries, K=K, k=k, seeds=seeds)
        found = build.compare_pictures(
            folder, plan, command=command, overwrite=force, n_jobs=jobs, progress=stages
        )
    if json:
        output.print_json(found)
        return
    output.print_results(COLUMNS, found["rows"])
    output.say(
        f"{found['queries']:,} pictures searched for among {found['items']:,}: precision of the {found['k']} "
        f"nearest against {found['K']} true neighbours."
    )
    output.say_left_out(found["rows"])
    output.say_next("serve", folder)


def _print(report: Report, folder: str, json: bool) -> None:
    """What was done, and what the collection is now."""
    from auxbit.hashers.registry import label_of
    from auxbit.images.pictures import Pictures

    with Pictures.open(folder) as pictures:
        state, recipe = pictures.collection.state, pictures.recipe.document()
        method = label_of(pictures.collection.model)
    if json:
        bad = [{"file": name, "reason": reason} for name, reason in report.bad]
        model = {"bits": state.n_bits, "dimensions": state.n_features, "method": method, "features": recipe}
        output.print_json({"collection": folder, **asdict(report), "bad": bad} | model)
        return
    counts = {"added": report.added, "replaced": report.replaced}
    counts |= {"unchanged": report.unchanged, "moved": report.moved, "deleted": report.removed}
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    took = ", ".join(f"{name} {spent:.0f}" for name, spent in report.seconds.items() if spent >= 0.5)
    output.print_facts(
        [
            ("collection", folder),
            ("pictures", f"{report.items:,}" + (f" ({said})" if said else "")),
            ("features", _features(recipe, state.n_features)),
            ("codes", f"{state.n_bits} bits, {method}, fitted to {report.fitted:,} pictures"),
            *([("views", f"{report.views} more codes per picture")] if report.views else []),
            *([("seconds", took)] if took else []),
        ]
    )
    if report.bad:
        output.say(f"\nNot read: {len(report.bad):,}")
        for name, reason in report.bad[:SHOWN_BAD]:
            output.say(f"  {printable(name)} {reason}")
        if len(report.bad) > SHOWN_BAD:
            output.say(f"  and {len(report.bad) - SHOWN_BAD:,} more; --json lists all")
    if report.others:
        ends = ", ".join(
            f"{n:,} {printable(end) or 'without an ending'}" for end, n in report.others.most_common(5)
        )
        more = " …" if len(report.others) > 5 else ""
        n = report.others.total()
        output.say(f"\nNot pictures by their names: {n:,} file{'s' * (n != 1)} ({ends}{more})")
    if 2 * report.fitted < report.items:
        output.say("\nMost pictures came after the model was fitted; --retrain fits a new one to all.")
    if report.missing:
        output.say(f"\nThe files of {report.missing:,} items are gone; --prune deletes these.")
    output.say_next("serve", folder)


def _features(recipe: dict[str, Any], dimensions: int | None) -> str:
    kinds = {"gist": "GIST", "pixels": "pixels", "onnx": "a network"}
    extras = " and colour" if recipe.get("colour") else ", grey" if recipe.get("grey") else ""
    return f"{kinds[recipe['kind']]}{extras}, of {recipe['side']} × {recipe['side']} pixels, {dimensions:,}-D"


def _channels(text: str | None, option: str) -> tuple[float, float, float] | None:
    if text is None:
        return None
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not three numbers such as 0.485,0.456,0.406.", param_hint=option
        ) from None
    return red, green, blue


# ---- serve


def serve(
    path: Annotated[str | None, Argument(
        metavar="PATH", help="A collection, of pictures or of any vectors."
    )] = None,
    demo: Annotated[bool, Option(
        "--demo", help="Serve the embedded handwritten digits; nothing is kept."
    )] = False,
    host: Annotated[str, Option(
        help="The address to listen at; addresses that other machines can reach need --token."
    )] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    token: Annotated[str | None, Option(
        envvar="AUXBIT_TOKEN",
        help="The token that clients need: they send `Authorization: Bearer TOKEN`, or open /?token=TOKEN "
        "once. They may add and delete items, but not pictures."
    )] = None,
    read_only: Annotated[bool, Option("--read-only", help="Nobody may add or delete items.")] = False,
    embed: Annotated[str | None, Option(
        metavar="MODULE:FUNCTION", help="A function that turns a list of texts into vectors, to search by "
        "words."
    )] = None,
    max_upload_mb: Annotated[float, Option(
        min=0.001, max=1024, help="The largest upload, in megabytes."
    )] = 20,
    max_upload_megapixels: Annotated[float, Option(
        min=0.001, max=1000, help="The largest upload, in millions of pixels."
    )] = 50,
    no_browser: Annotated[bool, Option("--no-browser", help="Do not open a browser.")] = False,
    jobs: opt.Jobs = None,
) -> None:  # fmt: skip
    """Open the web page of a collection, and its HTTP API."""
    refuse((path is None) != demo, "PATH", f"{USAGE}{', not both' if demo else ''}.")
    from auxbit.serve import server
    from auxbit.serve.security import Limits

    limits = Limits(
        upload_bytes=int(max_upload_mb * 1_000_000), upload_pixels=int(max_upload_megapixels * 1_000_000)
    )
    settings = server.Settings(path, host, port, token, limits, not no_browser, jobs, embed, read_only)
    server.serve(settings, progress=_Lines(), ready=_ready)


def _ready(serving: Serving) -> None:
    output.say(f"{serving.name}, {serving.items:,} {serving.what}: {serving.address}")
    output.say("Ctrl-C ends it.")
    sys.stdout.flush()  # a program that starts this one reads the address


class _Lines(output.Stages):
    """What the demo is doing, one line per stage: the log of a server has no bars."""

    def stage(self, what: str, total: int | None = None) -> None:
        output.note(f"{what} …")
