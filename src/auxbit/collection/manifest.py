"""The manifest: the one file that says what a collection consists of. Replacing it is what commits a change.

It stands in its file twice, a line of JSON each with its own checksum and an empty line between them, so that
a damaged byte anywhere does no harm. Whatever it does not name is not part of the collection.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from auxbit import files
from auxbit.codes import check_n_bits
from auxbit.collection.segment_file import Written
from auxbit.errors import AuxbitError, CollectionError, Damaged

NAME = "manifest.jsonl"
FORMAT, VERSION = "auxbit collection", 1
COPIES = 2


@dataclass(frozen=True)
class Errors:
    """Reconstruction errors of rows that came as vectors: how many were measured, and their mean."""

    rows: int = 0
    mean: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        rows = self.rows + other.rows
        return Errors(rows, (self.rows * self.mean + other.rows * other.mean) / rows if rows else 0.0)


@dataclass(frozen=True)
class Part(Written):
    """A segment of rows."""

    errors: Errors = field(default_factory=Errors)


@dataclass(frozen=True)
class Manifest:
    """A collection at one moment.

    Rows have positions, 0, 1, 2, … through `segments`; those in the files `removed` are deleted. Positions
    mean the same as long as `key`, which no other collection has, and `generation` do; `changes` counts
    commits. model : the file of the hasher, of which `coding` and `mu` say how it encodes; it was trained on
    what is before position `trained_at`, or elsewhere. vectors : the type they are kept in, None for none.
    """

    n_bits: int
    n_features: int | None = None
    key: str = ""
    model: str | None = None
    coding: str = "hash"
    mu: float = 0.0
    vectors: str | None = None
    segments: tuple[Part, ...] = ()
    removed: tuple[Written, ...] = ()
    next_id: int = 0
    next_file: int = 0
    trained_at: int = 0
    generation: int = 0
    changes: int = 0

    @property
    def n_positions(self) -> int:
        """Rows, the deleted ones included."""
        return sum(part.rows for part in self.segments)

    @property
    def n_removed(self) -> int:
        """Rows that are deleted."""
        return sum(part.rows for part in self.removed)

    @property
    def files(self) -> set[str]:
        """The names of all files that are part of the collection."""
        parts = {part.file for part in (*self.segments, *self.removed)}
        return parts | ({self.model} if self.model is not None else set())

    def write(self, folder: Path) -> None:
        """Make this the manifest of a folder, atomically and durably."""
        from auxbit import __version__

        body = json.dumps(
            {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__} | asdict(self),
            sort_keys=True,
        )
        line = json.dumps({"check": files.checksum([body.encode()]), "manifest": body})
        files.write_text(folder / NAME, (line + "\n\n") * COPIES)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder."""
        path = folder / NAME
        try:
            lines = path.read_bytes().split(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            what = "is not a collection: it has no manifest" if folder.exists() else "does not exist"
            raise CollectionError(
                f"{folder} {what}. Collections are made by Collection.create or `auxbit collection create`."
            ) from None
        except OSError as error:
            raise CollectionError(f"{path} cannot be read: {error.strerror}.") from error
        for line in lines:
            body = _whole(line)
            if body is not None:
                return cls._parse(body, path)
        raise Damaged(f"{path} is damaged: no copy of it matches its checksum. Restore it from a copy.")

    @classmethod
    def _parse(cls, body: str, path: Path) -> Manifest:
        fields: dict[str, Any] = json.loads(body)
        kind, version = fields.pop("format", None), fields.pop("format_version", None)
        made_by = fields.pop("auxbit_version", "a newer version")
        if kind != FORMAT or version != VERSION:
            raise CollectionError(
                f"{path} has format {version}, made by auxbit {made_by}; this version reads {VERSION}. "
                "Upgrade: pip install -U auxbit."
            )
        try:
            check_n_bits(fields["n_bits"])
            segments = tuple(
                Part(**part | {"errors": Errors(**part["errors"])}) for part in fields["segments"]
            )
            removed = tuple(Written(**part) for part in fields["removed"])
            manifest = cls(**fields | {"segments": segments, "removed": removed})
            if any(Path(name).name != name for name in manifest.files):
                raise ValueError("a file name that leads elsewhere")
            return manifest
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise CollectionError(f"{path} is not a complete manifest: {error!r}.") from error

    def continues(self, before: Manifest) -> bool:
        """Whether positions mean the same as in `before`."""
        return (self.key, self.generation) == (before.key, before.generation)

    def but(self, **changes: Any) -> Manifest:
        """The next manifest: this one with some fields changed."""
        return replace(self, **{"changes": self.changes + 1} | changes)


def _whole(line: bytes) -> str | None:
    """The manifest in a line, None where that is damaged."""
    try:
        copy = json.loads(line)
        body: str = copy["manifest"]
        return body if files.checksum([body.encode()]) == copy["check"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
