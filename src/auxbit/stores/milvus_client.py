"""A client of Milvus, a server or a file, with errors of ours in the place of its own."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from auxbit.errors import FileProblem, InvalidInput, InvalidParameter, StoreError, StoreUnreachable
from auxbit.extras import require
from auxbit.stores.addresses import MILVUS_PORT, Address

FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")
OWN_TABLE = "collection_meta"  # that every file of Milvus Lite has
GONE = ("UNAVAILABLE", "DEADLINE", "Retry timeout", "Fail connecting", "server unavailable", "closed channel")
PURPOSE = "Milvus"
RETRY_SECONDS = 0.2

_open_files: dict[str, int] = {}  # by path: Milvus Lite runs one process a file, ended with its last user
_opening = threading.Lock()


class Client:
    """pymilvus's client for an address; `call` names a method of it."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._file: str | None = None
        self._milvus = require("pymilvus", extra="milvus", purpose=PURPOSE)
        self._rpc_error = require("grpc", extra="milvus", purpose=PURPOSE).RpcError
        with self.translated():
            self._client = self._of_file() if address.kind == "milvus file" else self._of_server()

    @property
    def is_file(self) -> bool:
        """Whether it is a file of Milvus Lite."""
        return self._file is not None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client, which gives up after `timeout` seconds unless told another."""
        with self.translated():
            return getattr(self._client, method)(*arguments, **{"timeout": self.timeout} | options)

    def schema(self, **options: Any) -> Any:
        """An empty schema."""
        return self._client.create_schema(auto_id=False, enable_dynamic_field=False, **options)

    def index_parameters(self) -> Any:
        """An empty list of indexes."""
        return self._client.prepare_index_params()

    def version(self) -> tuple[int, ...]:
        """The server's version; that of a file is one that knows everything asked for here."""
        if self.is_file:
            return (2, 5)
        text = str(self.call("get_server_version"))
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    def close(self) -> None:
        """End the connection, and the process of a file that nobody else here uses."""
        self._client.close()
        if self._file is not None:
            with _opening:
                _open_files[self._file] -= 1
                if not _open_files[self._file]:
                    del _open_files[self._file]
                    _manager().release_server(self._file)
            self._file = None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of ours in the place of Milvus's and gRPC's."""
        try:
            yield
        except (self._milvus.MilvusException, self._rpc_error) as error:
            raise self._ours(error) from None

    def _ours(self, error: Any) -> Exception:
        text = " ".join(str(getattr(error, "message", "") or error).split())
        text = self.address.hide(re.sub(r"\s*at /\S+", "", text))[:400]
        if type(error).__name__ == "DataNotMatchException":
            return InvalidInput(
                f"Milvus cannot keep this metadata: its integers must be within 64 bits. ({text[:120]})"
            )
        if "auth" in text.lower():
            return StoreUnreachable(f"{self.address.shown}: {text}. Check the user and password in the URL.")
        if any(sign in text for sign in GONE):
            return StoreUnreachable(
                f"{self.address.shown} cannot be reached, or no longer: {text}. Is it running? What it has "
                "taken in is there; go on once it is back (push --resume)."
            )
        return StoreError(f"{self.address.shown}: Milvus says: {text}")

    def _of_server(self) -> Any:
        parts = self.address.parts
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        given = {
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "db_name": unquote(parts.path.strip("/")),
        }
        options = {name: value for name, value in given.items() if value}
        uri = f"http://{host}:{parts.port or MILVUS_PORT}"
        return self._milvus.MilvusClient(uri, timeout=self.timeout, **options)

    def _of_file(self) -> Any:
        path = Path(self.address.text).absolute()
        require("milvus_lite", extra="milvus", purpose="a file of Milvus")
        _check_file(path)
        with _opening:
            client = self._once_it_listens(str(path))
            self._file = str(path)
            _open_files[self._file] = _open_files.get(self._file, 0) + 1
        return client

    def _once_it_listens(self, path: str) -> Any:
        """A client of a file: its process is given half a second to start, which a busy machine exceeds."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self._milvus.MilvusClient(path, timeout=self.timeout)
            except self._milvus.MilvusException as error:
                if "Fail connecting" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _manager() -> Any:
    module = require("milvus_lite.server_manager", extra="milvus", purpose="a file of Milvus")
    return module.server_manager_instance


def _check_file(path: Path) -> None:
    """Refuse what is no file of Milvus Lite, which would write its tables into any database."""
    if not FILE_NAME.fullmatch(path.name):
        raise InvalidParameter("to", str(path), "a file name of up to 36 letters, digits, dots, - and _")
    if not path.parent.is_dir():
        raise FileProblem(f"{path} cannot be made: there is no folder {path.parent}.")
    if path.is_dir():
        raise FileProblem(f"{path} is a folder; expected a file of Milvus Lite.")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", [OWN_TABLE])
            ours = bool(found.fetchone()[0])
    except sqlite3.Error:
        ours = False
    if not ours:
        raise FileProblem(f"{path} is not a file of Milvus Lite, and is left alone. Choose another name.")
