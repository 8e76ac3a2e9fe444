"""Index files: codes, ids and decoder of a HammingIndex, as safetensors."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import numpy as np

from auxbit.blocks import resolve_n_jobs
from auxbit.codes import bytes_per_code, check_packed
from auxbit.decoders import decoder_from, decoder_parts
from auxbit.errors import AuxbitError, IndexFileError
from auxbit.index.hamming import HammingIndex
from auxbit.index.id_table import MAX_ID
from auxbit.tensor_file import Format, Tensors

Index = TypeVar("Index", bound=HammingIndex)

INDEX = Format(
    "auxbit index", "index", 1, "an auxbit index", "Indexes are made by HammingIndex.save.", IndexFileError
)


def save(index: HammingIndex, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write an index, atomically. Ids are left out where they are 0, 1, 2, …"""
    with index._guard.reading():
        store = index._store
        present = store.present()
        ids = store.ids.at(present)
        tensors: Tensors = {"codes": store.codes.take(present)}
        header: dict[str, Any] = {
            "n_bits": index.n_bits,
            "kind": index.kind,
            "options": index.options,
            "next_id": store.ids.next_id,
            "decoder": None,
        }
        if not np.array_equal(ids, np.arange(len(ids))):
            tensors["ids"] = ids
        if index.decoder is not None:
            header["decoder"], parts = decoder_parts(index.decoder)
            tensors |= {f"decoder.{key}": value for key, value in parts.items()}
    INDEX.write(path, header, tensors, overwrite=overwrite)


def load(index_class: type[Index], path: str | os.PathLike[str], n_jobs: int | None) -> Index:
    """Read an index back."""
    resolve_n_jobs(n_jobs)
    header, tensors = INDEX.read(path)
    try:
        n_bits, codes = header["n_bits"], tensors["codes"]
        parts = {
            key.removeprefix("decoder."): value
            for key, value in tensors.items()
            if key.startswith("decoder.")
        }
        decoder = decoder_from(header["decoder"], parts) if header["decoder"] is not None else None
        index = index_class(
            n_bits, kind=header["kind"], decoder=decoder, options=header["options"] or None, n_jobs=n_jobs
        )
        if len(codes) or codes.shape == (0, bytes_per_code(n_bits)):
            index.add(check_packed(codes, n_bits), tensors.get("ids"))
        if not 0 <= header["next_id"] <= MAX_ID + 1:
            raise ValueError(f"next_id {header['next_id']}")
        index._store.ids.next_id = max(index._store.ids.next_id, int(header["next_id"]))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, AuxbitError) as error:
        raise IndexFileError(f"{path} is not a complete auxbit index: {error!r}.") from error
    return index
