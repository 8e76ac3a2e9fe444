"""Fixtures that several test files use."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from auxbit import ITQ, Collection, load
from auxbit.data import vectors

# no deadline: on a busy machine the time of a single example says nothing
# the same examples every time, so that a run can be repeated; HYPOTHESIS=explore looks for new ones
settings.register_profile("auxbit", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS", "auxbit"))

# a shell that starts tests in the background lets them ignore Ctrl-C, and so the processes that they start
signal.signal(signal.SIGINT, signal.default_int_handler)

# kernels are compiled once by these, then what takes long begins, so that none of it ends late
FIRST = ("core", "mac", "index", "quantiser", "hashers", "system", "stores", "cli", "experiments")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: folders.get(item.path.parent.name, len(FIRST)))


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """The tests of a file run in one process, and share what is slow to make; so do those of all stores."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            shared = next((name for name in ("store", "test_page") if name in file), None)
            return shared or file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data: AUXBIT_DATA, or ../shared/data from the repository's root."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUXBIT_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"no real data: AUXBIT_DATA is not set to a folder, and {default} is not there")
    return folder


@pytest.fixture
def little_memory() -> Iterator[None]:
    """The process may take 256 MB more than it has."""
    resource = pytest.importorskip("resource", reason="this system has no limits of memory")
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="session")
def digits() -> Any:
    return vectors.embedded_digits()[0]


@pytest.fixture(scope="session")
def trained(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An ITQ model of 16 bits, as the bytes of its file."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    ITQ(16, random_state=0).fit(digits[300:]).save(path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Any, trained: bytes) -> Path:
    """The working folder, with base.npy, queries.npy and m.safetensors in it."""
    monkeypatch.chdir(tmp_path)
    np.save("base.npy", digits[300:])
    np.save("queries.npy", digits[:300])
    Path("m.safetensors").write_bytes(trained)
    return tmp_path


@pytest.fixture(scope="session")
def model(digits: Any) -> ITQ:
    """ITQ of 16 bits, fitted to the digits from 300 on."""
    return ITQ(16, random_state=0).fit(digits[300:])


@pytest.fixture
def filled(tmp_path: Path, model: ITQ, digits: Any) -> Iterator[Collection]:
    """A collection of digits 300 to 1500 in two segments, with vectors, the first with metadata."""
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        rows = [{"row": row, "odd": row % 2 == 1} for row in range(300, 1000)]
        collection.add(digits[300:1000], metadata=rows)
        collection.add(digits[1000:1500], ids=np.arange(5000, 5500))
        yield collection


@pytest.fixture(scope="session")
def papers(digits: Any, trained: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`papers`, a collection of base.npy with vectors and metadata, to be copied."""
    from helpers.collection_runner import c, metadata_of

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("base.npy", digits[300:])
        Path("m.safetensors").write_bytes(trained)
        Path("base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata_of(1497)))
        files = ("--data", "base.npy", "--metadata", "base.jsonl", "--model", "m.safetensors")
        c("create", "papers", *files, "--vectors", "float32")
    return folder / "papers"


@pytest.fixture
def place(folder: Path, digits: Any) -> Path:
    """The working folder, with metadata of base.npy and packed codes of it as well."""
    from helpers.collection_runner import metadata_of

    Path("base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metadata_of(1497)))
    np.save("codes.npy", load("m.safetensors").encode(digits[300:]))
    return folder


@pytest.fixture
def made(place: Path, papers: Path) -> Path:
    """The working folder with a copy of `papers` in it."""
    shutil.copytree(papers, "papers")
    return place
