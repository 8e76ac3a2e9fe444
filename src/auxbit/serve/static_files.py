"""The files of the page: a fixed list, read once from the package. No name from outside is ever opened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

PACKAGE = "auxbit.serve"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/vnd.microsoft.icon",
    "woff2": "font/woff2",
    "webmanifest": "application/manifest+json",
}


class StaticFile(NamedTuple):
    """A file of the page, ready to be sent."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, StaticFile]:
    """The files by their names below /static/."""
    return {name: _read(file) for name, file in _walk(resources.files(PACKAGE) / "static", "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield f"{prefix}{entry.name}", entry


def _read(file: Traversable) -> StaticFile:
    content = file.read_bytes()
    media_type = MEDIA_TYPES[file.name.rpartition(".")[2]]
    return StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
