"""`images search` and `images compare`: the commands that leave the pictures as they are."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from auxbit.cli import output
from auxbit.cli.choices import one_of
from auxbit.cli.collection_changes import METHODS
from auxbit.cli.experiments import integers
from auxbit.cli.models import Force, Jobs, Json
from auxbit.cli.stages import Stages, command_again, goes_on, printable

MODES = ("hamming", "asymmetric", "reranked")
COMPARED = "ba,itq,sh,tpca,lsh"
COLUMNS = {
    "method": "method",
    "bits": "bits",
    "precision": "precision",
    "recall": "recall",
    "mAP": "map",
    "error": "squared_error",
    "L_eff": "effective_bits",
    "seconds": "seconds",
}

Folder = Annotated[
    str, typer.Argument(metavar="COLLECTION", help="A folder that create has made.", show_default=False)
]


def search(
    folder: Folder,
    picture: Annotated[
        str | None, typer.Argument(metavar="[PICTURE]", help="A picture to search for.", show_default=False)
    ] = None,
    id_: Annotated[
        int | None,
        typer.Option("--id", metavar="N", help="Search for what is like this item.", show_default=False),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="How many to find.")] = 10,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(MODES), callback=one_of(*MODES), show_default=False,
            help="By the distance of codes in bits; from the picture itself to what codes stand for, which "
            "it is unless given; or the best of these by their true distances.",
        ),
    ] = None,
    jobs: Jobs = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Find the pictures that look most like one."""
    if (picture is None) == (id_ is None):
        raise typer.BadParameter("give a PICTURE or --id N, one of them.", param_hint="PICTURE")
    from auxbit.cli import picture_tasks

    with output.progress("searching"):
        found = picture_tasks.search(folder, picture, id_, k, mode, jobs)
    if json:
        output.print_json(found)
        return
    if not found["results"]:
        output.say(f"Nothing else is among the {found['items']:,} pictures.")
        return
    unit = "bits" if found["mode"] == "hamming" else "distance"
    output.print_table(
        ["id", unit, "file"],
        [(each["id"], each["distance"], printable(each["file"])) for each in found["results"]],
    )


def compare(
    folder: Folder,
    bits: Annotated[str, typer.Option(metavar="N,…", help="Numbers of bits.")] = "16,32,64",
    methods: Annotated[str, typer.Option(metavar="NAME,…", help=f"Of {METHODS}, pq, opq.")] = COMPARED,
    n_queries: Annotated[int, typer.Option(min=1, help="How many pictures to search for, at most.")] = 500,
    K: Annotated[int, typer.Option("--K", min=1, help="How many true neighbours a picture has.")] = 50,
    k: Annotated[int, typer.Option("--k", min=1, help="How many of the nearest codes are looked at.")] = 50,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to average over.")] = 1,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Compare methods and numbers of bits on the pictures of a collection.

    The table is kept with it, and shown by auxbit serve.
    """
    counts, names = integers(bits), [name.strip() for name in methods.split(",") if name.strip()]
    again = command_again(
        "images", "compare", folder, bits=bits, methods=methods, n_queries=n_queries, K=K, k=k, seeds=seeds
    )
    with goes_on(again, folder), Stages() as stages:
        from auxbit.images import build

        plan = build.Plan(names, counts, n_queries=n_queries, K=K, k=k, seeds=seeds)
        found = build.compare_pictures(
            folder, plan, command=shlex.join(again), overwrite=force, n_jobs=jobs, progress=stages
        )
    if json:
        output.print_json(found)
        return
    output.print_table(
        list(COLUMNS),
        [[row[key] for key in COLUMNS.values()] for row in found["rows"] if not row["skipped"]],
    )
    output.say(
        f"{found['queries']:,} pictures searched for among {found['items']:,}: precision of the {found['k']} "
        f"nearest against {found['K']} true neighbours."
    )
    for row in found["rows"]:
        if row["skipped"]:
            output.say(f"Left out: {row['method']} at {row['bits']} bits: {row['skipped']}")
    output.say_next("serve", folder)
