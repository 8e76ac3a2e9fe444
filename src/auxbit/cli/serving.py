"""`serve`: the web page and the HTTP API of a collection of pictures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from auxbit.cli import output
from auxbit.cli.models import Jobs

if TYPE_CHECKING:
    from auxbit.serve.server import Serving

USAGE = "give the folder of a picture collection (auxbit serve pets.auxbit), or --demo for handwritten digits"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(serve)


def serve(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]", help="A collection, as made by `auxbit images create`.", show_default=False
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the embedded handwritten digits; nothing is kept.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than this machine's own need --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="AUXBIT_TOKEN",
            help="What clients must know: `Authorization: Bearer TOKEN`, or open /?token=TOKEN once.",
            show_default=False,
        ),
    ] = None,
    max_upload_mb: Annotated[
        float, typer.Option(min=0.001, max=1024, help="The largest upload, in megabytes.")
    ] = 20,
    max_upload_megapixels: Annotated[
        float, typer.Option(min=0.001, max=1000, help="The largest upload, in millions of pixels.")
    ] = 50,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    jobs: Jobs = None,
) -> None:
    """Open the web page of a collection of pictures."""
    if (path is None) != demo:
        raise typer.BadParameter(f"{USAGE}{', not both' if demo else ''}.", param_hint="PATH")
    from auxbit.serve import server
    from auxbit.serve.security import Limits

    limits = Limits(
        upload_bytes=int(max_upload_mb * 1_000_000), upload_pixels=int(max_upload_megapixels * 1_000_000)
    )
    settings = server.Settings(path, host, port, token, limits, not no_browser, jobs)
    server.serve(settings, progress=_Steps(), ready=_ready)


def _ready(serving: Serving) -> None:
    output.say(f"{serving.name}, {serving.items:,} pictures: {serving.address}")
    output.say("Ctrl-C ends it.")
    sys.stdout.flush()  # whoever starts this by a program reads the address


class _Steps:
    """What the demo is doing, a line each."""

    def stage(self, what: str, total: int | None) -> None:
        output.note(f"{what} …")

    def advance(self, steps: int = 1) -> None:
        pass

    def say(self, detail: str) -> None:
        pass
