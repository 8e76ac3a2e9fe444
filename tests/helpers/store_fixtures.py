"""Fixtures of the tests of stores: servers that are started once, and places in every kind of store.

Test files take them by `pytest_plugins = ["helpers.store_fixtures"]`; imported, they would start one server
per file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auxbit.stores import Store, connect
from helpers.store_servers import EMBEDDED, Milvus, Postgres, milvus_or_skip, postgres_or_skip, skip_without


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL with pgvector, shared by all tests."""
    server = postgres_or_skip()
    yield server
    server.close()


@pytest.fixture(scope="session")
def milvus() -> Iterator[Milvus]:
    """A Milvus server, shared by all tests."""
    server = milvus_or_skip()
    MILVUS.append(server)
    yield server
    server.close()


MILVUS: list[Milvus] = []


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test of stores Milvus stops, since it takes a fifth of a core even if nobody uses it."""
    if nextitem is None or "store" not in nextitem.nodeid:
        for server in MILVUS:
            server.stop()


class Places:
    """Addresses of every kind of store, with a name that no other test uses."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request, self._used = request, 0

    def open(self, kind: str, folder: Path, **options: Any) -> Store:
        self._used += 1
        name = f"t{os.getpid()}_{self._used}"
        return connect(self.url(kind, folder), name, **options)

    def url(self, kind: str, folder: Path | None = None) -> str:
        """Of a server, or the path of a file in the folder."""
        if kind not in ("pgvector", "milvus"):
            assert folder is not None
            skip_without(kind)
            return str(folder / ("m.db" if kind == "milvus file" else EMBEDDED[kind][0]))
        server = self._request.getfixturevalue("postgres" if kind == "pgvector" else "milvus")
        return str(server.url())


@pytest.fixture(scope="session")
def places(request: pytest.FixtureRequest) -> Places:
    return Places(request)


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for files of stores: Milvus starts a process for each file, so tests share one."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def no_notes_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes about pushes go to the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
