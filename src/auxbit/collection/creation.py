"""Making a collection: a folder that appears whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from auxbit import files
from auxbit.checks import check_integer
from auxbit.codes import check_n_bits
from auxbit.collection.coding import coding_of
from auxbit.collection.manifest import NAME, Manifest
from auxbit.collection.storage import LOCK, file_name, number_of, sweep
from auxbit.errors import AuxbitError, FileExists, FileProblem, InvalidInput, InvalidParameter
from auxbit.lock import WriterLock

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

VECTORS = (None, "float32", "float16")


def create(
    path: Path,
    model: Hasher | None,
    *,
    vectors: str | None,
    coding: str | None,
    mu: float | None,
    n_bits: int | None,
    n_features: int | None,
    overwrite: bool,
) -> None:
    """Make the folder of an empty collection."""
    manifest = _manifest(model, vectors, coding, mu, n_bits, n_features)
    refuse_existing(path, overwrite=overwrite)
    try:
        _make(path.absolute(), model, manifest)
    except AuxbitError:
        raise
    except OSError as error:
        raise FileProblem(f"{path} could not be made: {error.strerror or error}.") from error


def _make(path: Path, model: Hasher | None, manifest: Manifest) -> None:
    files.make_folder(path.parent)
    if (path / NAME).is_file():
        _replace(path, model, manifest)
        return
    temporary = path.parent / f".{path.name[:40]}.{secrets.token_hex(8)}.part"
    os.mkdir(temporary)
    try:
        if model is not None:
            model.save(temporary / file_name("model", 0))
        manifest.write(temporary)
        os.replace(temporary, path)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)
    files.sync_folder(path.parent)


def _replace(path: Path, model: Hasher | None, manifest: Manifest) -> None:
    """Commit an empty collection in the place of one that is there: it is the old one or the new one."""
    lock = WriterLock(path / LOCK)
    lock.acquire(f"the collection {path}")
    try:
        number = 1 + max((number_of(each.name) for each in path.iterdir()), default=0)
        if model is not None:
            manifest = replace(manifest, model=file_name("model", number))
            model.save(path / file_name("model", number))
        files.sync_folder(path)
        replace(manifest, next_file=number + 1).write(path)
        sweep(path)
    finally:
        lock.release()


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise FileExists where something stands at `path` that must not be replaced."""
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise FileExists(f"{path} exists. Choose another name, or replace it with --force (overwrite=True).")
    if not (path / NAME).is_file():
        raise FileExists(f"{path} is not a collection, and is not replaced by one. Choose another name.")


def _manifest(
    model: Hasher | None,
    vectors: str | None,
    coding: str | None,
    mu: float | None,
    n_bits: int | None,
    n_features: int | None,
) -> Manifest:
    """The manifest of an empty collection, of parameters that go together."""
    key = secrets.token_hex(16)
    if vectors not in VECTORS:
        raise InvalidParameter("vectors", vectors, "'float32', 'float16' or None")
    if coding not in (None, "hash", "optimal"):
        raise InvalidParameter("coding", coding, "'hash', 'optimal' or None")
    if model is None:
        if n_bits is None:
            raise InvalidInput("give a fitted model, or n_bits for codes that are made elsewhere.")
        if vectors is not None and n_features is None:
            raise InvalidInput("to keep vectors without a model, give n_features, their dimension.")
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 1)
        return Manifest(check_n_bits(n_bits), n_features, key, vectors=vectors)
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {type(model).__name__} is not fitted: call fit first.")
    fitted, dims = model.decoder_.n_bits, int(model.n_features_in_)
    if n_bits not in (None, fitted) or n_features not in (None, dims):
        raise InvalidInput(f"the model has {fitted} bits and {dims} features: leave n_bits, n_features out.")
    coding, mu = coding_of(model, coding, mu)
    return Manifest(
        fitted, dims, key, model=file_name("model", 0), coding=coding, mu=mu, vectors=vectors, next_file=1
    )
