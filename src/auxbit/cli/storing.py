"""`store push` and `store search`: codes in PostgreSQL or Milvus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auxbit.cli import output
from auxbit.cli.collection_changes import METADATA_HELP
from auxbit.cli.collection_reports import Where, _print_answers
from auxbit.cli.models import Force, Json
from auxbit.cli.searching import AnswersOut, Nearest, Rerank, WithinRadius

To = Annotated[
    str,
    typer.Option(
        "--to", metavar="URL", envvar="AUXBIT_STORE", show_default=False,
        help="postgresql://user@host/database, milvus://host:19530 or a file.db of Milvus Lite. "
        "A password is best left to PGPASSWORD or ~/.pgpass.",
    ),
]  # fmt: skip
Name = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", show_default=False,
        help="The table or collection there; auxbit_codes unless given.",
    ),
]  # fmt: skip

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group to the app."""
    for command in (push, search):
        group.command()(command)
    app.add_typer(group, name="store")


@group.callback()
def store() -> None:
    """Keep codes in PostgreSQL (pgvector) or Milvus, and search them there."""


def push(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", show_default=False,
            help="The folder of a collection, or an .npy file of packed codes, as written by encode.",
        ),
    ],
    to: To,
    name: Name = None,
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="Of a file: bits a code; 8 for each byte unless given.",
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False,
            help="Of a file of codes: an .npy file with an integer for each; 0, 1, 2, … unless given.",
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="FILE", show_default=False, help=f"Of a file of codes. {METADATA_HELP}"),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False,
            help="Of a file of codes: the vectors they were made of, for search --rerank.",
        ),
    ] = None,
    with_vectors: Annotated[
        bool,
        typer.Option("--with-vectors", help="Of a collection: push its vectors, too, for search --rerank."),
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="hnsw|ivf", show_default=False,
            help="Build an approximate index afterwards: hnsw in PostgreSQL, ivf in Milvus.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a push of the same rows was interrupted.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the table by a new one, if auxbit has made it.")
    ] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Bring codes, ids and metadata into a store.

    It is made where it is not there; rows of ids that are there are replaced. Each batch is in before the
    next begins: where it is stopped, --resume goes on.
    """
    if resume and force:
        raise typer.BadParameter("what is replaced is begun anew: give one of them.", param_hint="--resume")
    is_collection = Path(source).is_dir()
    of_files = {"--bits": bits, "--ids": ids, "--metadata": metadata, "--vectors": vectors}
    for option, value in of_files.items():
        if is_collection and value is not None:
            raise typer.BadParameter("a collection has its own: leave it out.", param_hint=option)
    if with_vectors and not is_collection:
        raise typer.BadParameter(
            "it is for the folder of a collection: give --vectors FILE.", param_hint="--with-vectors"
        )
    from contextlib import ExitStack

    from auxbit.cli import store_tasks

    _quiet_drivers()
    with ExitStack() as open_until_the_end:
        if is_collection:
            rows, collection = store_tasks.collection_source(source, vectors=with_vectors)
            open_until_the_end.enter_context(collection)
        else:
            rows = store_tasks.file_source(source, bits=bits, ids=ids, metadata=metadata, vectors=vectors)

        def stopped(row: int) -> None:
            if row:
                output.note(
                    f"{row:,} of {len(rows):,} rows are in. The same command with --resume goes on there."
                )

        into = open_until_the_end.enter_context(store_tasks.connected(to, name))
        with output.progress("pushing", len(rows)) as bar:
            done = store_tasks.pushed(
                into, rows, resume=resume, force=force, index=index, advance=bar.advance, stopped=stopped
            )
    if json:
        output.print_json(done)
        return
    before = f", after {done['first_row']:,} before" if done["first_row"] else ""
    output.say(f"{done['store']}: {done['pushed']:,} rows pushed{before}; {done['items']:,} items.")
    if not done["exact"]:
        output.say(
            "Searches use the approximate index, and may miss neighbours; --exact looks at all of them."
        )


def search(
    to: To,
    queries: Annotated[
        str,
        typer.Option(
            "--queries", "-q", metavar="FILE", show_default=False,
            help="The rows to search for: packed codes, or with --model vectors.",
        ),
    ],
    name: Name = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", show_default=False,
            help="A model file or the folder of a collection, whose model encodes the queries.",
        ),
    ] = None,
    k: Nearest = None,
    radius: WithinRadius = None,
    rerank: Rerank = None,
    where: Where = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Leave an approximate index out, and look at everything.")
    ] = False,
    ef_search: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="PostgreSQL: how far an hnsw index looks, 1 to 1000; 100 unless given.",
        ),
    ] = None,
    n_probe: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="Milvus: how many lists of an ivf index are looked at; 32 unless given.",
        ),
    ] = None,
    out: AnswersOut = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Find the nearest items to each query, in the store."""
    if k is not None and radius is not None:
        raise typer.BadParameter("give --k or --radius, not both.", param_hint="--k")
    if radius is not None and rerank is not None:
        raise typer.BadParameter("a radius is of Hamming distance: drop --rerank.", param_hint="--radius")
    from auxbit.cli import collection_answers, store_tasks

    if out is not None:
        collection_answers.check_out(out, force=force)
    _quiet_drivers()
    far = {"ef_search": ef_search, "n_probe": n_probe}
    with store_tasks.connected(to, name, exact=exact, **far) as holding:
        with output.progress("searching"):
            found = store_tasks.searched(
                holding, queries, model=model, k=10 if k is None else k, radius=radius, rerank=rerank,
                where=where or [], out=out, force=force,
            )  # fmt: skip
        if json:
            output.print_json(found.document(whole=out is None))
            return
        _print_answers(found)
    if not found.about["exact"]:
        output.say("By an approximate index, which may miss neighbours.")
    if out is not None:
        output.say(f"Written to {out}.")


def _quiet_drivers() -> None:
    """Leave it to our messages to say what is wrong: pymilvus logs a traceback for every error."""
    import logging

    for name in ("pymilvus", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
