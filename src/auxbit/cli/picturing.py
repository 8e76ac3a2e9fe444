"""`images …`: the group of its commands, `create` and `add`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.choices import one_of
from auxbit.cli.collection_changes import METHODS, method_or_none
from auxbit.cli.models import Jobs, Json
from auxbit.cli.picture_answers import Folder, compare, search
from auxbit.cli.stages import Stages, command_again, goes_on, printable

if TYPE_CHECKING:
    from auxbit.images.build import Report

SHOWN_BAD = 10
FEATURES = ("gist", "pixels")

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Prune = Annotated[
    bool, typer.Option("--prune", help="Delete items whose file is gone; unless given they are counted.")
]


def register(app: typer.Typer) -> None:
    """Add the group to the app."""
    commands: list[Callable[..., None]] = [create, add, search, compare]
    for command in commands:
        group.command()(command)
    app.add_typer(group, name="images")


@group.callback()
def images() -> None:
    """Make folders of pictures searchable by what they look like."""


def create(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR", show_default=False,
            help="A folder of pictures, with those within it: jpeg, png, webp, gif, tiff.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="COLLECTION", help="The folder to make.", show_default=False)
    ],
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="Bits a code; 64 unless given.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar=METHODS, callback=method_or_none, show_default=False,
            help="How codes are learned; ba unless given.",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(FEATURES), callback=one_of(*FEATURES), show_default=False,
            help="What pictures are compared by: gist, their structure, unless given; or their pixels.",
        ),
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False,
            help="Pixels of the square that pictures are scaled to; unless given, what suits them.",
        ),
    ] = None,
    colour: Annotated[
        float | None,
        typer.Option(
            metavar="WEIGHT", show_default=False,
            help="gist: what colours count beside structure; 1 is as much, 0, unless given, is nothing.",
        ),
    ] = None,
    grey: Annotated[
        bool | None, typer.Option("--grey", help="pixels: their brightness alone.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.onnx", show_default=False,
            help="A network that makes vectors of pictures, instead of --features.",
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B", show_default=False,
            help="--model: taken from the channels, of 0 to 1; 0,0,0 unless given.",
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B", show_default=False,
            help="--model: what the channels are divided by then; 1,1,1 unless given.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="The same seed gives the same model. 0 to 4294967295; 0 unless given.", show_default=False
        ),
    ] = None,
    prune: Prune = False,
    jobs: Jobs = None,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew where the collection exists; else it goes on.")
    ] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a collection of the pictures in a folder.

    Run again it goes on where it was stopped, and takes in what is new or changed. Files that cannot be read
    are listed and left out.
    """
    channels = _channels(mean, "--mean"), _channels(std, "--std")
    options: dict[str, Any] = {
        "bits": bits, "method": method, "features": features, "side": side, "colour": colour, "grey": grey,
        "model": model, "seed": seed, "prune": prune,
    }  # fmt: skip
    # without --force, which would begin anew
    again = command_again("images", "create", folder, out=out, mean=mean, std=std, jobs=jobs, **options)
    with goes_on(again, out), Stages() as stages:
        from auxbit.images import build

        report = build.create(
            folder, out, mean=channels[0], std=channels[1], overwrite=force, n_jobs=jobs, progress=stages,
            **options,
        )  # fmt: skip
    _print(report, out, json)


def add(
    folder: Folder,
    places: Annotated[
        list[str],
        typer.Argument(metavar="FILE_OR_DIR…", help="Pictures, and folders of them.", show_default=False),
    ],
    prune: Prune = False,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Then fit a new model to all pictures, and make new codes.")
    ] = False,
    jobs: Jobs = None,
    json: Json = False,
) -> None:
    """Add pictures, and take in those that have changed.

    What is in the collection and is the same is not read again. Run again it goes on where it was stopped.
    """
    again = command_again("images", "add", folder, *places, prune=prune, retrain=retrain, jobs=jobs)
    with goes_on(again, folder), Stages() as stages:
        from auxbit.images import build

        report = build.add(places, folder, prune=prune, retrain=retrain, n_jobs=jobs, progress=stages)
    _print(report, folder, json)


def _print(report: Report, folder: str, json: bool) -> None:
    from auxbit.cli import picture_tasks

    document = picture_tasks.report_document(report, folder)
    if json:
        output.print_json(document)
        return
    output.print_facts(picture_tasks.report_facts(report, document))
    if report.bad:
        output.say(f"\nNot read: {len(report.bad):,}")
        for name, reason in report.bad[:SHOWN_BAD]:
            output.say(f"  {printable(name)} {reason}")
        if len(report.bad) > SHOWN_BAD:
            output.say(f"  and {len(report.bad) - SHOWN_BAD:,} more; --json lists all")
    if report.missing:
        output.say(f"\nThe files of {report.missing:,} items are gone; --prune deletes these.")
    output.say_next("serve", folder)


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
