"""Collections of pictures that the tests of the server share, and a client that calls the app in process."""

from __future__ import annotations

import asyncio
import atexit
import functools
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from auxbit.data.vectors import embedded_digits
from auxbit.images.build import build
from auxbit.images.decode import decode
from auxbit.images.features import Recipe
from auxbit.images.pictures import Pictures
from auxbit.images.sources import Source
from auxbit.serve.app import make_app
from auxbit.serve.server import open_source

HERE = "http://127.0.0.1:8000"
N = 120


def png(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def digit_pixels(number: int) -> Any:
    """One of the digits as an 8 × 8 picture."""
    return np.rint(embedded_digits()[0][number].reshape(8, 8) * (255 / 16)).astype(np.uint8)


def write_digits(folder: Path, numbers: Any) -> list[Source]:
    """Digits as PNG files, named by what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    labels, sources = embedded_digits()[1], []
    for number in numbers:
        path = folder / f"Digit {labels[number]}/img{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(digit_pixels(number)))
        name, about = path.relative_to(folder).as_posix(), path.stat()
        sources.append(Source(str(folder), name, about.st_size, about.st_mtime_ns, path.read_bytes))
    return sources


@functools.cache
def _made(kind: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="auxbit-serve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    recipe = Recipe("pixels", 8, grey=True) if kind == "pixels" else Recipe("gist", 16)
    sources = write_digits(folder / "pictures", range(N))
    build(sources, folder / "digits.auxbit", recipe, bits=12, method="itq", n_jobs=1, decode=decode)
    return folder


def digits(kind: str = "pixels") -> Path:
    """A collection of N digits, 12 bits, ITQ; made once, only to be read."""
    return _made(kind) / "digits.auxbit"


def own_digits(folder: Path, kind: str = "pixels") -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(_made(kind) / "digits.auxbit", folder / "digits.auxbit")
    return folder / "digits.auxbit"


class Client:
    """Calls an app in process, as a browser on this machine would."""

    def __init__(self, path: Path, **options: Any) -> None:
        source = open_source(path, read_only=not options.get("writable"))
        self.app = make_app(source, **options)
        self.source: Any = source
        self.site = self.app.state.site
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        self._client = httpx.AsyncClient(transport=transport, base_url=HERE, follow_redirects=False)

    @property
    def pictures(self) -> Any:
        """The collection of pictures that is served."""
        assert isinstance(self.source, Pictures)
        return self.source

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, url, **options))

    def get(self, url: str, **options: Any) -> httpx.Response:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> httpx.Response:
        return self.request("POST", url, **options)

    def upload(self, content: bytes, query: str = "", name: str = "x.png") -> httpx.Response:
        return self.post(f"/api/v1/search/upload{query}", files={"file": (name, content)})

    def json(self, url: str) -> Any:
        response = self.get(f"/api/v1{url}")
        assert response.status_code == 200, response.text
        return response.json()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
        self.site.close()
        self.source.close()


def refused(response: httpx.Response, status: int, code: str) -> str:
    """The message of an error, which has this status and code and the form that all errors have."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"code", "message"}
    assert response.json()["error"]["code"] == code
    return str(response.json()["error"]["message"])
