"""The page in a real browser: servers to look at, pages that are watched, pictures of what was seen.

A plugin of pytest; a test file says `pytest_plugins = ["helpers.browser"]`. The browser is Chromium:
AUXBIT_CHROMIUM, or the first of its names on PATH. Screenshots go to AUXBIT_SCREENSHOTS, or to
auxbit-screenshots/ at the root.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\"'.png"
LONG = "a-very-long-file-name-that-goes-on-and-on-and-ends-with-number-0042.jpg"
WAIT = 30_000  # milliseconds: a busy machine may need ten to answer a first search

READY = """() => document.querySelector("main > section:not([hidden])")
    && ![...document.querySelectorAll("[aria-busy], .skeleton")].some((node) => node.checkVisibility())
    && [...document.images].every((image) => {
        const { top, bottom } = image.getBoundingClientRect();
        return image.complete || bottom < 0 || top > innerHeight || !image.checkVisibility();
    })"""

# what the policy forbids is an error of the page, also where the browser's own words change
TELL_OF_POLICY = """addEventListener("securitypolicyviolation", (event) => console.error(
    `policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));"""


def find_chromium() -> str | None:
    """The browser's program, or None."""
    given = os.environ.get("AUXBIT_CHROMIUM")
    return given or next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """`auxbit serve` in a process of its own, at a free port."""
    command = [
        sys.executable,
        "-m",
        "auxbit",
        "serve",
        *arguments,
        "--no-browser",
        "--port",
        "0",
        "--jobs",
        "1",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "AUXBIT_TOKEN"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"no address in {line!r}; the server ended with {process.poll()}"
            yield Server(found.group().rstrip("/"), process)
        finally:
            process.terminate()
            process.communicate(timeout=20)


class Server:
    """address : http://127.0.0.1:port"""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self.process = address, process

    def stop(self) -> None:
        """End it, as Ctrl-C would."""
        self.process.terminate()
        self.process.wait(timeout=20)


class Window:
    """A page that is watched: errors, requests to other hosts and what the policy forbids fail the test."""

    def __init__(self, context: Any, server: Server, expected: Sequence[str]) -> None:
        self.server, self.expected = server, expected
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT)
        self.page.add_init_script(TELL_OF_POLICY)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    def open(self, address: str = "/") -> Any:
        """Go to an address of the server; the playwright page."""
        self.page.goto(self.server.address + address)
        return self.page

    def show(self, address: str = "/") -> Any:
        """Open an address and wait until all of it is there."""
        page = self.open(address)
        page.wait_for_function(READY)
        return page

    def check(self) -> None:
        """No complaint but those that are expected, no request to anyone else."""
        rest = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert rest == []
        others = [
            url
            for url in self.requests
            if not url.startswith((self.server.address + "/", "blob:" + self.server.address))
        ]
        assert others == []


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Chromium, once for a file: its event loop must not stay for others."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    path = find_chromium()
    if path is None:
        pytest.skip(
            "no browser: install chromium (apt install chromium), or set AUXBIT_CHROMIUM to its program"
        )
    sandbox = [] if not hasattr(os, "geteuid") or os.geteuid() else ["--no-sandbox"]  # root has none
    with api.sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield program
        program.close()


@pytest.fixture(scope="session")
def demo() -> Iterator[Server]:
    """The embedded digits: 1,797 pictures of 8 × 8, with reconstructions and a comparison."""
    for module in ("PIL.Image", "fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(module, reason=f"no {module}: pip install 'auxbit[web]'")
    with serving("--demo") as server:
        yield server


@pytest.fixture(scope="session")
def folder_of_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 coloured pictures of several shapes, two of them with odd names."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(60):
        name = {7: HOSTILE, 8: LONG}.get(number, f"shape {number:02d}.jpg")
        (folder / name).write_bytes(drawn(number, kind="PNG" if name.endswith("png") else "JPEG"))
    return folder


@pytest.fixture(scope="session")
def collection_of_shapes(folder_of_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection of these pictures: GIST, 24 bits, ITQ, so without a history."""
    pytest.importorskip("PIL.Image", reason="no Pillow: pip install 'auxbit[web]'")
    from auxbit.images.build import create

    path = tmp_path_factory.mktemp("made") / "shapes.auxbit"
    create(folder_of_shapes, path, bits=24, method="itq", colour=0.5, n_jobs=1)
    return path


@pytest.fixture(scope="session")
def shapes(collection_of_shapes: Path) -> Iterator[Server]:
    """A server of that collection."""
    pytest.importorskip("fastapi", reason="no fastapi: pip install 'auxbit[web]'")
    with serving(str(collection_of_shapes)) as server:
        yield server


@pytest.fixture(scope="session")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of 60 texts without pictures, of which the last ten have the vectors of the first."""
    pytest.importorskip("fastapi", reason="no fastapi: pip install 'auxbit[web]'")
    from auxbit import ITQ, Collection

    folder = tmp_path_factory.mktemp("docs")
    X = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    X[50:] = X[:10]
    words = ["sea", "wind", "stone"]
    titles = [HOSTILE if row == 7 else f"Text of {row}: {words[row % 3]}" for row in range(60)]
    rows = [{"title": title, "even": row % 2 == 0} for row, title in enumerate(titles)]
    with Collection.create(folder / "docs.auxbit", ITQ(8, random_state=0).fit(X), vectors="float32") as made:
        made.add(X, metadata=rows)
    (folder / "embedding_of_docs.py").write_text(
        "import numpy as np\ndef embed(texts):\n    return np.ones((len(texts), 8))\n"
    )
    arguments = [str(folder / "docs.auxbit"), "--embed", "embedding_of_docs:embed"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with serving(*arguments) as server:
            yield server


@pytest.fixture
def serve_again(collection_of_shapes: Path) -> Callable[..., Any]:
    """Start another server of that collection, to be stopped within the test."""
    return lambda *arguments: serving(str(collection_of_shapes), *arguments)


@pytest.fixture
def window(chromium: Any) -> Iterator[Callable[..., Window]]:
    """Open a window on a server; what it complains about fails the test in the end."""
    with ExitStack() as stack:
        windows: list[Window] = []

        def new(
            server: Server, *, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False,
            expected: Sequence[str] = (),
        ) -> Window:  # fmt: skip
            context = chromium.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
                has_touch=phone, is_mobile=phone, reduced_motion="reduce",
            )  # fmt: skip
            stack.callback(context.close)
            windows.append(Window(context, server, expected))
            return windows[-1]

        yield new
        for each in windows:
            each.check()


@pytest.fixture(scope="session")
def screenshot() -> Callable[..., None]:
    """Keep a picture of a page, once its own pictures are there."""
    folder = Path(os.environ.get("AUXBIT_SCREENSHOTS") or ROOT / "auxbit-screenshots")

    def take(page: Any, name: str, *, whole: bool = False, at_once: bool = False) -> None:
        if not at_once:
            page.wait_for_function(READY)
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / f"{name}.png", full_page=whole)

    return take


@pytest.fixture(scope="session")
def picture() -> Callable[..., bytes]:
    """Draw a picture: see `drawn`."""
    return drawn


def drawn(number: int, *, width: int = 200, height: int = 150, kind: str = "JPEG") -> bytes:
    """A coloured shape over a gradient, another for each number, as a file."""
    image = pytest.importorskip("PIL.Image", reason="no Pillow: pip install 'auxbit[web]'")
    random = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    corners = random.integers(30, 226, size=(3, 3))
    pixels = (
        corners[0] * (1 - y - x / 2)[..., None] + corners[1] * y[..., None] + corners[2] * (x / 2)[..., None]
    )
    middle, size = random.uniform(0.3, 0.5, 2), random.uniform(0.12, 0.3)
    across, down = np.abs(x - middle[0]), np.abs(y - middle[1] * 0.8)
    inside = [across**2 + down**2 < size**2, np.maximum(across, down) < size, across + down < size][
        number % 3
    ]
    pixels[inside] = random.integers(0, 256, 3)
    stripes = (x * random.integers(8, 20) + y * random.integers(0, 12)) % 1 < 0.2
    pixels[stripes & ~inside] *= 0.8
    file = io.BytesIO()
    image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, kind)
    return file.getvalue()
