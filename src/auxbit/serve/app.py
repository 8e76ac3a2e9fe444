"""The app: endpoints put together behind the gate."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.requests import Request

from auxbit import __version__
from auxbit.images.decoders import Decoders
from auxbit.images.pictures import Pictures
from auxbit.serve import errors, static_files
from auxbit.serve.answering import kept
from auxbit.serve.errors import not_found
from auxbit.serve.info_routes import info_routes
from auxbit.serve.item_routes import item_routes
from auxbit.serve.limits import Limits
from auxbit.serve.search_routes import search_routes
from auxbit.serve.security import LOOPBACK_NAMES, Gate
from auxbit.serve.site import Site

API = "/api/v1"


def make_app(
    source: Pictures,
    *,
    token: str | None = None,
    allowed_hosts: Collection[str] | None = LOOPBACK_NAMES,
    limits: Limits | None = None,
    decoders: Decoders | None = None,
) -> FastAPI:
    """The app that serves the pictures of an open collection, which is left open when it ends.

    token : what clients must know; allowed_hosts : names to answer to, None for any; decoders : what decodes
    uploads, closed by who made it.
    """
    limits = limits or Limits()
    site = Site(source, limits, decoders)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        site.close()

    app = FastAPI(
        title="auxbit",
        version=__version__,
        description="Search pictures by short binary codes.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_middleware(Gate, token=token, allowed_hosts=allowed_hosts, limits=limits)
    errors.install(app, lambda: f"{source.collection.path.parent}{os.sep}")
    for routes in (info_routes, item_routes, search_routes):
        app.include_router(routes(site), prefix=API)
    _add_page(app)
    app.state.site = site
    return app


def _add_page(app: FastAPI) -> None:
    files = static_files.load()

    def send(request: Request, name: str) -> Response:
        if name not in files:
            raise not_found("A file of this name")
        return kept(request, files[name].content, files[name].media_type, files[name].etag)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return send(request, "index.html")

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return send(request, name)
