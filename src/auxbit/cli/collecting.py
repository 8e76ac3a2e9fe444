"""`collection …`: the group of its commands, and `create`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from auxbit.cli import models, output
from auxbit.cli.choices import one_of
from auxbit.cli.collection_changes import (
    METHODS,
    Ids,
    Metadata,
    Seed,
    add,
    add_command,
    compact,
    delete,
    goes_on,
    method_or_none,
    retrain,
)
from auxbit.cli.collection_reports import RowsAreCodes, check, search, stats
from auxbit.cli.models import DATA_HELP, Force, Jobs, Json

DEFAULT_METHOD, DEFAULT_BITS = "ba", 32

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group to the app."""
    commands: list[Callable[..., None]] = [create, add, search, delete, stats, compact, retrain, check]
    for command in commands:
        group.command()(command)
    app.add_typer(group, name="collection")


@group.callback()
def collection() -> None:
    """Keep codes, ids, metadata and vectors in a folder that survives crashes."""


def create(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder to make the collection in.", show_default=False)
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="FILE", help=f"The first rows. {DATA_HELP}", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", show_default=False,
            help="A model file, as written by fit; without one, a model is fitted to --data.",
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="Bits a code, 1 to 1024; 32 unless given. With neither --data nor --model: a collection for "
            "codes that are made elsewhere.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar=METHODS, callback=method_or_none, show_default=False,
            help="How codes are learned; ba unless given.",
        ),
    ] = None,
    vectors: Annotated[
        str,
        typer.Option(
            metavar="float32|float16|none", callback=one_of("float32", "float16", "none"),
            help="Keep the vectors in this type, for search --rerank and for retrain.",
        ),
    ] = "none",
    metadata: Metadata = None,
    ids: Ids = None,
    codes: RowsAreCodes = False,
    coding: Annotated[
        str | None,
        typer.Option(
            metavar="hash|optimal", callback=one_of("hash", "optimal"), show_default=False,
            help="Codes h(x), or those from which the decoder reconstructs rows best, which is then what "
            "searches. Unless given: what the model's decoder is for.",
        ),
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option(
            help="How much optimal codes are held to h(x): 0 not at all, large wholly.", show_default=False
        ),
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(
            metavar="linear|tables", callback=one_of("linear", "tables"), show_default=False,
            help="For optimal codes, fitted to --data where the model has none such: a vector a bit, or one "
            "for each value of a byte, which reconstructs better and wants many rows.",
        ),
    ] = None,
    normalize: Annotated[
        bool,
        typer.Option("--normalize", help="ba and bfa: divide rows by their norm, for cosine neighbours."),
    ] = False,
    seed: Seed = 0,
    jobs: Jobs = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a collection, and add the first rows.

    It keeps a copy of the model, which encodes all that is added later.
    """
    trains = data is not None and model is None and not codes
    _check_sources(data, model, bits, codes, {"--ids": ids, "--metadata": metadata})
    _check_model_options(model, bits, codes, trains, {"--method": method, "--normalize": normalize or None})
    _check_coding_options(model, codes, trains, vectors, coding, {"--mu": mu, "--decoder": decoder})
    if trains:
        method, bits = method or DEFAULT_METHOD, DEFAULT_BITS if bits is None else bits
    options = models._applicable(method, {"normalize": True}) if method and normalize else {}
    from auxbit.cli import collection_rows, collection_tasks

    plan = collection_tasks.plan(
        out, data=data, codes=codes, ids=ids, metadata=metadata, model=model, method=method, bits=bits,
        parameters=options | {"random_state": seed, "n_jobs": jobs}, coding=coding, mu=mu, decoder=decoder,
        vectors=None if vectors == "none" else vectors, force=force,
    )  # fmt: skip
    most = models._most_iterations(method, {}) if method else None
    with output.progress(f"fitting {method}" if method else "making", most, time_left=False) as bar:
        made = collection_tasks.create(
            plan, force=force, n_jobs=jobs, step=lambda what: bar.show(what=what),
            on_record=lambda record: bar.show(done=record.iteration, detail=models._detail(record)),
        )  # fmt: skip
    with made:
        if plan.rows is not None and data is not None:
            command = add_command(out, data, codes=codes, ids=ids, metadata=metadata)
            resume = goes_on(command, plan.rows, always=True)
            with output.progress("adding", len(plan.rows.X)) as bar:
                collection_rows.add_rows(
                    made, plan.rows, upsert=False, advance=bar.advance, stopped=resume, trained=trains
                )
        facts = collection_tasks.describe(made)
    if json:
        output.print_json(facts)
        return
    source = f"fitted to {data}" if trains else f"from {model}"
    about = f"{facts['method']}, {source}" if facts["method"] else "none: it holds codes alone"
    output.print_facts(
        [
            ("collection", out),
            ("items", f"{facts['items']:,}"),
            ("codes", f"{facts['bits']} bits" + (", optimal" if facts["coding"] == "optimal" else "")),
            ("model", about),
            ("vectors", _kept(facts)),
        ]
    )
    if data is not None:
        output.say_next("collection", "search", out, "--queries", data, *(["--codes"] if codes else []))
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
        _refuse(data is None and value is not None, option, "it is about the rows of --data: add these.")
    _refuse(
        codes and model is None and bits is None, "--codes",
        "codes do not tell how many bits they have: add --bits N, or --model MODEL.",
    )  # fmt: skip


def _check_model_options(
    model: str | None, bits: int | None, codes: bool, trains: bool, of_fit: dict[str, object]
) -> None:
    """Refuse options of a fit where nothing is fitted."""
    why = "the model is fitted already" if model else "no model is fitted to codes" if codes else "add --data"
    for option, value in of_fit.items():
        _refuse(value is not None and not trains, option, f"it is for a model that is fitted here: {why}.")
    _refuse(model and bits is not None, "--bits", "the model has bits of its own: leave it out.")


def _check_coding_options(
    model: str | None,
    codes: bool,
    trains: bool,
    vectors: str,
    coding: str | None,
    of_optimal: dict[str, object],
) -> None:
    """Refuse what is asked of codes or vectors that the collection will not have."""
    without_model = not trains and model is None
    _refuse(
        vectors != "none" and (codes or without_model), "--vectors",
        "codes come without vectors to keep: leave it out, or give --data of vectors or a --model.",
    )  # fmt: skip
    for option, value in of_optimal.items():
        _refuse(
            value is not None and coding == "hash", option, "it is for optimal codes: drop --coding hash."
        )
    for option, value in ({"--coding": coding} | of_optimal).items():
        _refuse(value is not None and without_model, option, "codes that are made elsewhere have theirs.")


def _refuse(wrong: object, option: str, text: str) -> None:
    if wrong:
        raise typer.BadParameter(text, param_hint=option)
