"""Upgrade: a collection of format 1, segments of columns under a manifest, becomes one of the present format.

This is all that still reads format 1; nothing writes it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.collection import storage
from auxbit.collection.collection import Collection
from auxbit.collection.storage import CHUNK, FORMER, State
from auxbit.core import files
from auxbit.core.checks import Array, PathLike
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import Records
from auxbit.errors import CollectionError, Damaged

Attach = Callable[[list[dict[str, Any]]], Sequence[bytes | None]]


def upgrade(
    old: PathLike, new: PathLike, *, attach: Attach | None = None,
    finish: Callable[[Collection], object] | None = None, overwrite: bool = False,
    n_jobs: int | None = None, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the collection of format 1 in the folder `old` to the folder `new`; `old` stays as it is.

    attach : metadata of items, which it may change, to the bytes that are attached to them. finish : called
    with the new collection before that appears in `new`, whole. overwrite : replace a collection in `new`.
    Returns what `describe` does.
    """
    source, target, told = Path(old), Path(new).absolute(), progress or Silent()
    manifest = read_manifest(source)
    storage.refuse_existing(Path(new), overwrite=overwrite)
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}.part"
    told.stage("upgrading", sum(part["rows"] for part in manifest["segments"]))
    try:
        with Collection._made(temporary, None, _state(manifest), n_jobs) as made:
            _copy(source, manifest, made, attach, told)
            if finish is not None:
                finish(made)
        _rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with Collection(new, read_only=True) as made:
        return made.describe()


def _rename(temporary: Path, target: Path) -> None:
    """Give the new collection its name, in place of one that nobody writes to."""
    aside = temporary.with_suffix(".old")
    if storage.is_collection(target):
        with Collection(target) as replaced:
            replaced.lock()
            os.replace(target, aside)
    os.replace(temporary, target)
    shutil.rmtree(aside, ignore_errors=True)
    files.sync_folder(target.parent)


def _copy(
    source: Path, manifest: dict[str, Any], made: Collection, attach: Attach | None, told: Progress
) -> None:
    """Add the rows of all segments but those that are deleted, and then the model."""
    removed = [columns_of(source, part)["positions"] for part in manifest["removed"]]
    gone = np.concatenate([np.zeros(0, dtype=np.int64), *removed])
    start = 0
    for part in manifest["segments"]:
        stop = start + part["rows"]
        alive = np.setdiff1d(np.arange(start, stop), gone) - start
        rows, codes = _rows(columns_of(source, part), manifest["n_bits"], alive, part["file"])
        attached = None if attach is None else attach(list(rows.metadata or ()))
        if len(alive):
            made._add(
                rows, codes, False, stop <= manifest["trained_at"], attached,
                packed_only=manifest["vectors"] is None,
            )  # fmt: skip
            _keep(made, part["errors"])
        told.advance(part["rows"])
        start = stop
    with made._storage.changing(f"upgraded from {source.name}") as change:
        if manifest["model"] is not None and made.path is not None:
            content = (source / manifest["model"]).read_bytes()
            files.write_bytes(made.path / "model.0.safetensors", content)
            change.update(model="model.0.safetensors")
        change.update(
            next_number=max(change.state.next_number, manifest["next_id"]), coding=manifest["coding"],
            mu=manifest["mu"],
        )  # fmt: skip


def _keep(made: Collection, errors: dict[str, Any]) -> None:
    """Take over the reconstruction errors that were measured when the rows of a segment came."""
    if errors["rows"]:
        with made._storage.changing("errors taken over") as change:
            change.connection.execute(
                "UPDATE commits SET error_rows = ?, error_sum = ? WHERE number = ?",
                (errors["rows"], errors["rows"] * errors["mean"], change.before.commit),
            )
            change.update()


def _state(manifest: dict[str, Any]) -> State:
    from auxbit import __version__

    return State(
        manifest["n_bits"], manifest["key"], manifest["n_features"], manifest["vectors"],
        auxbit_version=__version__,
    )  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of format 1: the first of its two lines that matches its checksum."""
    try:
        lines = (folder / FORMER).read_bytes().split(b"\n")
    except OSError as error:
        if storage.is_collection(folder):
            raise CollectionError(f"{folder} has the present format already.") from error
        raise CollectionError(f"{folder} is not a collection of format 1: it has no {FORMER}.") from error
    for line in lines:
        try:
            copy = json.loads(line)
            if files.checksum([copy["manifest"].encode()]) == copy["check"]:
                manifest: dict[str, Any] = json.loads(copy["manifest"])
                return manifest
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    raise Damaged(f"{folder / FORMER} is damaged: no copy of it matches its checksum.")


def columns_of(folder: Path, part: dict[str, Any]) -> dict[str, Array]:
    """The columns of a file of format 1, a safetensors file with checksums, compared with these."""
    from safetensors.numpy import load

    path = folder / Path(part["file"]).name
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        layout, columns = json.loads(content[8 : 8 + length]), load(content)
        front = 8 + length + columns["checks"].nbytes
        whole = len(content) == part["bytes"] and zlib.crc32(content[:front]) == part["check"]
    except (OSError, ValueError, KeyError) as error:
        raise Damaged(f"{path} cannot be read: {error}.") from error
    names = [
        name for name in layout if name not in ("__metadata__", "checks") and not name.startswith("padding")
    ]
    found = [
        zlib.crc32(content[8 + length + at : 8 + length + min(at + CHUNK, stop)])
        for name in names
        for start, stop in [layout[name]["data_offsets"]]
        for at in range(start, stop, CHUNK)
    ]
    if not whole or found != columns["checks"].tolist():
        raise Damaged(f"{path} is damaged: it does not match its checksums. Restore it from a copy.")
    return {name: columns[name] for name in names}


def _rows(columns: dict[str, Array], n_bits: int, alive: Array, name: str) -> tuple[Records, Array]:
    """Rows that are not deleted, and their codes."""
    width = -(-n_bits // 8)
    codes = columns["codes"].transpose(0, 2, 1).reshape(-1, width)[alive]
    metadata: list[dict[str, Any]] = [{} for _ in alive]
    if "text" in columns:
        text, ends = columns["text"].tobytes(), columns["offsets"].tolist()
        metadata = [json.loads(text[ends[row] : ends[row + 1]] or "{}") for row in alive.tolist()]
    X = columns["vectors"][alive] if "vectors" in columns else codes
    return Records(X, columns["ids"][alive], metadata, name), codes
