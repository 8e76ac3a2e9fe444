"""Running the server: from a folder to a socket that listens, and an end that finishes what is running."""

from __future__ import annotations

import gc
import importlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from auxbit.collection import storage
from auxbit.collection.collection import Collection
from auxbit.core.checks import require
from auxbit.core.parallel import resolve_n_jobs
from auxbit.core.progress import Progress
from auxbit.data.vectors import embedded_digits
from auxbit.errors import AuxbitError, InvalidParameter
from auxbit.images.build import Plan, build, compare_pictures
from auxbit.images.decode import Decoders, decode
from auxbit.images.features import Recipe
from auxbit.images.pictures import Pictures
from auxbit.images.sources import Source
from auxbit.serve.app import make_app
from auxbit.serve.search import warm_up
from auxbit.serve.security import LOOPBACK_NAMES, Limits, Problem, logger
from auxbit.serve.state import Embed, Site, png

MADE_BY = "Collections are made by `auxbit collection create` and, of pictures, `auxbit images create`."
SHUTDOWN_SECONDS = 30  # for requests that are running when the server is told to end

# of the demonstration
SIDE, BITS = 8, 32
LEVELS = 16  # the digits' greys are 0 to 16
METHODS, COMPARED_BITS = ("tpca", "itq", "bfa", "ba"), (8, 16, 32)


@dataclass(frozen=True)
class Settings:
    """path : the folder of a collection, None for the demonstration; jobs : None for all cores.

    embed : "module:function", which makes vectors of texts; read_only : nobody may add and delete, as without
    a token
    """

    path: str | None
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    browser: bool = True
    jobs: int | None = None
    embed: str | None = None
    read_only: bool = False


@dataclass(frozen=True)
class Serving:
    """What is served, and where. address : without the token; what : pictures or items."""

    name: str
    items: int
    address: str
    what: str


def serve(
    settings: Settings,
    *,
    progress: Progress | None = None,
    ready: Callable[[Serving], object] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is running. ready : called when the socket listens."""
    for module in ("fastapi", "uvicorn", "httptools", "python_multipart", "PIL.Image"):
        require(module, extra="web", purpose="the web page")
    _check_token(settings)
    n_processes = resolve_n_jobs(settings.jobs)  # which refuses a wrong number before any work is done
    with ExitStack() as stack:
        # SIGTERM unwinds the stack, as Ctrl-C does, so that temporary folders are removed
        stack.enter_context(_handled([signal.SIGTERM], signal.default_int_handler))
        listening = stack.enter_context(_listening(settings.host, settings.port))
        if settings.path is not None:
            path = Path(settings.path)
        else:
            path = stack.enter_context(digits_collection(progress, settings.jobs))
        writable = settings.token is not None and not settings.read_only
        source = open_source(path, read_only=not writable)
        stack.callback(source.close)
        decoders = stack.enter_context(Decoders(n_processes))
        hosts = LOOPBACK_NAMES | {settings.host} if is_loopback(settings.host) else None
        app = make_app(
            source, token=settings.token, allowed_hosts=hosts, limits=settings.limits, decoders=decoders,
            embed=None if settings.embed is None else find_embed(settings.embed), writable=writable,
        )  # fmt: skip
        site = app.state.site
        if settings.embed is not None:
            _check_embed(site)
        elif site.embed is not None:
            _check_words(site)
        warm_up(site)
        gc.collect()
        gc.freeze()  # these objects stay: for the collector to visit them again takes a tenth of a second
        what = "items" if site.pictures is None else "pictures"
        serving = Serving(path.name, len(source), _address(settings.host, listening), what)

        def listens() -> None:
            ready(serving)
            if settings.browser:
                page = stack.enter_context(_page_to_open(serving.address, settings.token))
                threading.Thread(target=webbrowser.open, args=[page], daemon=True).start()

        _run(app, listening, listens, settings.limits)


def open_source(path: Path, *, read_only: bool = True) -> Pictures | Collection:
    """The collection in a folder, as pictures if it is one of these."""
    storage.check_folder(path, MADE_BY)
    # a search of one query is over before a second thread could help with it
    collection = Collection(path, read_only=read_only, n_jobs=1)
    is_of_pictures = collection.state.about is not None
    if not is_of_pictures:
        return collection
    collection.close()
    return Pictures.open(path, n_jobs=1)


def find_embed(name: str) -> Embed:
    """The function "module:function", found as Python would from the current folder."""
    module, _, attribute = name.partition(":")
    remedy = "It takes a list of texts and returns their vectors, (n, D): --embed mymodel:embed."
    if not module or not attribute:
        raise InvalidParameter("embed", name, "module:function", remedy)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        text = f"{type(error).__name__}: {error}. {remedy}"
        raise InvalidParameter("embed", name, "a function that can be imported", text) from error
    if not callable(found):
        raise InvalidParameter("embed", name, f"a function; it is of type {type(found).__name__}", remedy)
    embed: Embed = found
    return embed


def _check_embed(site: Site) -> None:
    """Try the function before anybody waits for it."""
    if site.collection.state.model is None:
        raise AuxbitError("--embed needs a model, but the collection holds codes without one.")
    try:
        site.vectors_of(["a text"])
    except Problem as problem:
        why = f" ({problem.__cause__!r})" if problem.__cause__ else ""
        dimension = site.collection.state.n_features
        text = f"{problem}{why} Expected {dimension} numbers for each text."
        raise AuxbitError(f"--embed cannot be used: {text}") from problem


def _check_words(site: Site) -> None:
    """Leave search by words out, with the reason, if the network that pictures have for it cannot be used."""
    try:
        site.vectors_of(["a text"])
    except Problem as problem:
        logger.warning("the pictures cannot be searched by words: %s", problem.__cause__ or problem)
        site.embed = None


def _run(app: Any, listening: socket.socket, listens: Callable[[], None], limits: Limits) -> None:
    import uvicorn

    from auxbit.serve.connection import Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listens()

    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the sender of a bad form is told
    http: Any = partial(Connection, limits=limits)
    config = uvicorn.Config(
        # below errors there are only warnings of what clients send, of whom each could fill the log
        app, http=http, lifespan="on", log_level="error", access_log=False, server_header=False, ws="none",
        proxy_headers=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    # requests run side by side: one that took all cores for its products would slow down the others
    # the server raises the signals that ended it again after its end: by then there is nothing to end
    ignored = _handled([signal.SIGINT, signal.SIGTERM], lambda number, frame: None)
    with threadpool_limits(limits=1), ignored:
        Server(config).run([listening])


@contextmanager
def _handled(numbers: list[signal.Signals], handler: Any) -> Iterator[None]:
    """Let `handler` handle these signals inside; Python allows that in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


# ---- Addresses


def is_loopback(host: str) -> bool:
    """Whether a name or address is of this machine alone."""
    return all(ipaddress.ip_address(each).is_loopback for each in _addresses(host))


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        remedy = "Leave it out for 127.0.0.1."
        raise InvalidParameter("host", host, "a name or address of this machine", remedy) from error
    return [str(each[4][0]).partition("%")[0] for each in found]


def _check_token(settings: Settings) -> None:
    token = settings.token
    if token is None:
        if not is_loopback(settings.host):
            remedy = "Others can reach this address: add --token SECRET, or set AUXBIT_TOKEN."
            raise InvalidParameter("host", settings.host, "127.0.0.1, or a token beside it", remedy)
    elif not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidParameter("token", "…", "ASCII letters, digits and signs, without spaces")


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; bound before any other work, so that a port in use is told at once."""
    address = _addresses(host)[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # named as TCP, asyncio sends answers at once; else the body of each waits 40 ms for an acknowledgement
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        if os.name == "posix":  # elsewhere it would let two servers have one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
            listening.listen()
        except OSError as error:
            raise AuxbitError(
                f"cannot listen at port {port} of {host}: {error.strerror}. Choose another, as in "
                f"--port {port + 1 if 1023 < port < 65535 else 8000}, or --port 0 for any that is free."
            ) from error
        yield listening


def _address(host: str, listening: socket.socket) -> str:
    """Where a browser on this machine finds the page."""
    port = listening.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


@contextmanager
def _page_to_open(address: str, token: str | None) -> Iterator[str]:
    """What a browser is told to open: the page, or with a token a file that leads to it.

    Everybody on this machine sees what programs are started with; only this user can read the file.
    """
    if token is None:
        yield address
        return
    there = escape(f"{address}?token={quote(token)}")
    with tempfile.TemporaryDirectory(prefix="auxbit-serve-", ignore_cleanup_errors=True) as folder:
        page = Path(folder, "open.html")
        page.touch(0o600)
        page.write_text(
            f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={there}">'
            f'<title>auxbit</title><a href="{there}">Open auxbit</a>'
        )
        yield page.as_uri()


# ---- The demonstration


@contextmanager
def digits_collection(progress: Progress | None = None, n_jobs: int | None = None) -> Iterator[Path]:
    """The embedded digits as a collection of pictures, with a small comparison; its folder is temporary."""
    with tempfile.TemporaryDirectory(prefix="auxbit-demo-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "digits")
        recipe = Recipe("pixels", SIDE, grey=True)
        sources = list(_digits(Path(folder, "pictures")))
        build(sources, path, recipe, bits=BITS, n_jobs=n_jobs, decode=decode, progress=progress)
        plan = Plan(METHODS, COMPARED_BITS, n_queries=300)
        compare_pictures(path, plan, command="auxbit serve --demo", n_jobs=n_jobs, progress=progress)
        yield path


def _digits(folder: Path) -> Iterator[Source]:
    """The digits as PNG files, named by what they show."""
    folder.mkdir()
    X, labels = embedded_digits()
    grey = np.rint(X.reshape(-1, SIDE, SIDE) * (255 / LEVELS)).astype(np.uint8)
    for number, (picture, label) in enumerate(zip(grey, labels)):
        path, content = folder / f"digit-{label}-{number:04d}.png", png(picture)
        path.write_bytes(content)
        yield Source(str(folder), path.name, len(content), path.stat().st_mtime_ns, path.read_bytes)
