"""Files of arrays with a JSON header: safetensors, with a format, a version and a checksum of all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from auxbit import files
from auxbit.errors import FileProblem

Tensors = dict[str, npt.NDArray[Any]]

CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Format:
    """A kind of file. name, key: of the format and of the header in its metadata; version: the newest that is
    read; what: in errors; made_by: a sentence on what writes such files.
    """

    name: str
    key: str
    version: int
    what: str
    made_by: str
    error: type[FileProblem]

    def write(
        self,
        path: str | os.PathLike[str],
        header: dict[str, Any],
        tensors: Tensors,
        *,
        version: int | None = None,
        overwrite: bool = True,
    ) -> None:
        """Write header and tensors, atomically; version: the oldest that can hold them."""
        from auxbit import __version__

        tensors = {key: np.ascontiguousarray(value) for key, value in sorted(tensors.items())}
        metadata = {
            "format": self.name,
            "format_version": str(version or self.version),
            "auxbit_version": __version__,
            self.key: json.dumps(header),
        }
        metadata["checksum"] = _checksum(metadata, tensors)
        with files.replacing(path, overwrite=overwrite) as temporary:
            try:
                save_file(tensors, temporary, metadata)
            except SafetensorError as error:  # of a full disk, for one
                raise self.error(f"{path} could not be written: {error}.") from error

    def read(self, path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
        """The header, with format_version and auxbit_version, and the tensors of a file that is whole."""
        if not Path(path).is_file():
            raise self.error(f"{path} does not exist or is not a file.")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
        except (SafetensorError, OSError) as error:
            raise self.error(
                f"{path} is not {self.what}, or was cut short: {error}. {self.made_by}"
            ) from error
        if metadata.get("format") != self.name:
            raise self.error(f"{path} is a safetensors file, but not {self.what}. {self.made_by}")
        version = metadata.get("format_version", "")
        if version not in map(str, range(1, self.version + 1)):
            made_by = metadata.get("auxbit_version", "a newer version")
            raise self.error(
                f"{path} has format {version or '?'}, made by auxbit {made_by}; this version reads up to "
                f"format {self.version}. Upgrade: pip install -U auxbit."
            )
        if metadata.pop("checksum", None) != _checksum(metadata, tensors):
            raise self.error(f"{path} is damaged: its checksum does not match. Restore it from a copy.")
        try:
            header: dict[str, Any] = dict(json.loads(metadata[self.key]))
        except (KeyError, ValueError, TypeError) as error:
            raise self.error(f"{path} has no readable header: {error!r}.") from error
        return header | {
            "format_version": int(version),
            "auxbit_version": metadata["auxbit_version"],
        }, tensors


def _checksum(metadata: dict[str, str], tensors: Tensors) -> str:
    """Of everything in the file, so that no byte of it can change unnoticed."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield json.dumps(metadata, sort_keys=True).encode()
        for key, tensor in sorted(tensors.items()):
            yield f"{key} {tensor.dtype.str} {tensor.shape}".encode()
            flat = tensor.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, CHUNK_BYTES):
                yield flat[start : start + CHUNK_BYTES].data

    return files.checksum(chunks())
