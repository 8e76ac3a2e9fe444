"""`store push` and `store search`: codes in PostgreSQL, Milvus, SQLite and others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Option

from auxbit.cli import options as opt
from auxbit.cli import output
from auxbit.cli.options import check_k_or_radius, choice, refuse
from auxbit.cli.search import print_answers

if TYPE_CHECKING:
    from auxbit.stores import Store

ALL_LISTS = 65_536  # more than there are
PROBING = {"pgvector": "ef_search", "milvus": "n_probe", "milvus file": "n_probe", "lancedb": "n_probe"}

To = Annotated[str, Option(
    "--to", metavar="URL", envvar="AUXBIT_STORE", help="postgresql://user@host/database, "
    "milvus://host:19530, file.sqlite, file.duckdb, folder.lancedb, folder.chdb (ClickHouse) or file.db "
    "(Milvus Lite); for other names write sqlite:PATH and the like. Put the password into PGPASSWORD or "
    "~/.pgpass instead."
)]  # fmt: skip
Name = Annotated[str | None, Option(
    "--name", metavar="NAME", show_default="auxbit_codes", help="The SQL table or collection in the store."
)]  # fmt: skip


def push(
    context: typer.Context,
    source: Annotated[str, typer.Argument(
        metavar="SOURCE",
        help="The folder of a collection, or an .npy file of packed codes, as written by encode."
    )],
    to: To,
    name: Name = None,
    bits: Annotated[int | None, Option(
        metavar="N", show_default="8 per byte", help="For a file of codes: bits per code."
    )] = None,
    ids: Annotated[str | None, Option(
        metavar="FILE", show_default="0, 1, 2, …",
        help="For a file of codes: an .npy or .txt file with an integer for each code."
    )] = None,
    metadata: Annotated[str | None, Option(
        metavar="FILE", help=f"For a file of codes. {opt.METADATA_HELP}"
    )] = None,
    vectors: Annotated[str | None, Option(
        metavar="FILE", help="For a file of codes: the vectors that were encoded, for search --rerank."
    )] = None,
    model: Annotated[str | None, Option(
        metavar="MODEL", help="For a file of codes: the model that made them, so that PostgreSQL can rank by "
        "its decoder, and vectors are prepared for its metric."
    )] = None,
    with_vectors: Annotated[bool, Option(
        "--with-vectors", help="For a collection: also push its vectors, for search --rerank."
    )] = False,
    without_metadata: Annotated[bool, Option(
        "--without-metadata", help="For a collection: leave its metadata out, if the store cannot keep them."
    )] = False,
    index: Annotated[str | None, choice(
        "hnsw", "ivf",
        help="Build an approximate index afterwards: hnsw in PostgreSQL, ivf in Milvus and LanceDB."
    )] = None,
    resume: Annotated[bool, Option(
        "--resume", help="Resume where a push of the same rows was interrupted."
    )] = False,
    force: Annotated[bool, Option(
        "--force", help="Replace the SQL table by a new one, if auxbit created it."
    )] = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Copy codes, ids and metadata into a store.

    The store is created if it does not exist; rows whose ids exist are replaced. Rows are sent in batches. If
    it is interrupted, --resume continues.
    """
    refuse(resume and force, "--resume", "what is replaced is begun again: give one of them.")
    is_collection = Path(source).is_dir()
    of_files = {"--bits": bits, "--ids": ids, "--metadata": metadata, "--vectors": vectors, "--model": model}
    for option, value in of_files.items():
        refuse(is_collection and value is not None, option, "a collection has its own: leave it out.")
    refuse(
        with_vectors and not is_collection, "--with-vectors",
        "it is for the folder of a collection: give --vectors FILE.",
    )  # fmt: skip
    refuse(
        without_metadata and not is_collection, "--without-metadata",
        "it is for the folder of a collection: leave --metadata out.",
    )  # fmt: skip
    from auxbit import Collection
    from auxbit.collection.collection import load_model
    from auxbit.stores import push as pushing

    with ExitStack() as opened:
        if is_collection:
            collection = opened.enter_context(Collection.open(source, read_only=True))
            rows = pushing.of_collection(collection, vectors=with_vectors, metadata=not without_metadata)
        else:
            made_by = None if model is None else load_model(model)
            rows = pushing.of_files(
                source, n_bits=bits, ids=ids, metadata=metadata, vectors=vectors, model=made_by
            )

        def stopped(row: int) -> None:
            if row:
                again = output.given_again(context, "--resume", hidden=["--to"])  # it may have a password
                output.say_resume(f"{row:,} of {len(rows):,} rows are in.", again)

        into = opened.enter_context(_connected(to, name))
        stages = opened.enter_context(output.Stages("pushing", len(rows)))
        done = pushing.push(
            into, rows, resume=resume, overwrite=force, index=index, progress=stages.advance, stopped=stopped
        )
        facts = {
            "store": str(into),
            "created": done.created,
            "pushed": done.rows,
            "first_row": done.first,
            "items": into.count(),
            "bits": into.n_bits,
            "vectors": into.n_features,
            "exact": into.exact,
        }
    if json:
        output.print_json(facts)
        return
    before = f", after {done.first:,} before" if done.first else ""
    output.say(f"{facts['store']}: {done.rows:,} rows pushed{before}; {facts['items']:,} items.")
    if not facts["exact"]:
        output.say("Searches use the approximate index, and may miss neighbours; --exact searches all rows.")
    encoder = source if is_collection and rows.model is not None else model
    if encoder is not None:
        where = ["--to", "URL" if urlsplit(to).password else to, *(["--name", name] if name else [])]
        output.say_next("store", "search", *where, "--queries", "queries.npy", "--model", encoder)


def search(
    to: To,
    queries: Annotated[str, Option(
        "--queries", "-q", metavar="FILE",
        help="The rows to search for: packed codes, or with --model vectors."
    )],
    name: Name = None,
    model: Annotated[str | None, Option(
        metavar="MODEL", help="A model file or the folder of a collection, whose model encodes the queries."
    )] = None,
    k: opt.Nearest = None,
    radius: opt.WithinRadius = None,
    mode: Annotated[str | None, choice(
        "hamming", "asymmetric", show_default="asymmetric if the model's decoder suits these codes",
        help="hamming: rank by the number of bits in which codes differ; asymmetric: rank a shortlist of "
        "these by the distance from the query vector to the decoded codes."
    )] = None,
    shortlist: Annotated[int | None, Option(
        metavar="N", show_default="50 per neighbour, at least 500",
        help="With --mode asymmetric: how many candidates the decoder ranks."
    )] = None,
    rerank: opt.Rerank = None,
    where: opt.Where = None,
    exact: Annotated[bool, Option("--exact", help="Search all rows, without an approximate index.")] = False,
    ef_search: Annotated[int | None, Option(
        metavar="N", show_default="100",
        help="PostgreSQL: how many candidates an hnsw index keeps, 1 to 1000."
    )] = None,
    n_probe: Annotated[int | None, Option(
        metavar="N", show_default="32", help="Milvus, LanceDB: how many lists of an ivf index are searched."
    )] = None,
    out: opt.AnswersOut = None,
    force: opt.Force = False,
    json: opt.Json = False,
) -> None:  # fmt: skip
    """Find the nearest items to each query, in the store.

    With --model the queries are vectors. Results are then ranked by vectors if the store keeps them, else by
    the model's decoder if it suits the codes in the store, else by Hamming distance.
    """
    check_k_or_radius(k, radius, ("--rerank", rerank or mode == "asymmetric" or None))
    refuse(shortlist is not None and bool(rerank), "--shortlist", "--rerank says how many: give one of them.")
    from auxbit.collection.collection import load_model
    from auxbit.core.files import check_output
    from auxbit.index.queries import ENDINGS
    from auxbit.stores.push import search_file

    if out is not None:
        check_output(out, overwrite=force, endings=ENDINGS)
    with _connected(to, name, exact=exact, ef_search=ef_search, n_probe=n_probe) as there:
        with output.Stages("searching"):
            found = search_file(
                there, queries, 10 if k is None else k, model=None if model is None else load_model(model),
                radius=radius, rerank=rerank, where=where, mode=mode, candidates=shortlist,
            )  # fmt: skip
            if out is not None:
                found.write(out, overwrite=force)
        print_answers(found, out, json)
    if not json and model is not None and (mode, radius, rerank, found.about["candidates"]) == (None,) * 4:
        output.say(
            "By Hamming distance: vectors are ranked by the decoder if it is for the codes in the store, as "
            "after fit --coding hash."
        )
    if not json and not found.about["exact"]:
        output.say("By an approximate index, which may miss neighbours.")


def _connected(to: str, name: str | None, *, exact: bool = False, **options: int | None) -> Store:
    """The store at an address. exact : without approximate indexes; options : None for what is not given."""
    import logging

    from auxbit.core.checks import require
    from auxbit.errors import InvalidParameter
    from auxbit.stores import connect
    from auxbit.stores.base import parse

    kind = parse(to).kind
    if kind.startswith("milvus"):  # it logs a traceback for every error, and its import sets the levels
        require("pymilvus", extra="milvus", purpose="Milvus")
        for logger in ("pymilvus", "pymilvus.milvus_client", "grpc"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    own = PROBING.get(kind, "")
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option != own:
            allowed = f"--{own.replace('_', '-')} for this store, or neither" if own else "neither, here"
            raise InvalidParameter(option.replace("_", "-"), value, allowed)
    if exact:
        given |= {"use_index": False} if kind in ("pgvector", "lancedb") else {}
        given |= {"n_probe": ALL_LISTS} if kind.startswith("milvus") else {}
    return connect(to, **({} if name is None else {"name": name}), **given)
