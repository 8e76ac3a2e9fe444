"""A collection as a file that others read: a FAISS index of its codes, or its hash function as ONNX."""

from __future__ import annotations

import os

from auxbit.collection.storage import Storage
from auxbit.errors import InvalidParameter
from auxbit.export import to_faiss, to_onnx


def export(storage: Storage, path: str | os.PathLike[str], to: str, form: str, overwrite: bool) -> str:
    """Write the file; returns its form."""
    if to not in ("faiss", "onnx"):
        raise InvalidParameter("to", to, "'faiss' or 'onnx'")
    view = storage.view
    present = view.present()  # first: the snapshot after it has their rows
    manifest = view.snapshot.manifest
    if to == "onnx":
        to_onnx(view.model(), path, overwrite=overwrite)
        return "onnx"
    model = None if manifest.model is None else view.model()
    if form == "auto" and manifest.coding == "optimal":
        form = "additive"  # the ranking that such codes are for
    codes, ids = view.snapshot.codes(present), view.ids.at(present)
    return to_faiss(path, model, codes, ids, form=form, overwrite=overwrite)
