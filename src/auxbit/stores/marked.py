"""What stores on servers share: a table or collection with a mark of ours that says what it holds."""

from __future__ import annotations

from typing import Any, Protocol, Self


class Place(Protocol):
    """A table or collection."""

    name: str

    def find(self) -> dict[str, Any] | None:
        """What its mark says, None where it is not there; an error where it is not ours."""

    def known(self) -> dict[str, Any]:
        """What its mark says, read once; an error where it is not there."""


class MarkedStore:
    """A store that is one place, `_place`, of a connection that `close` ends."""

    _place: Place

    @property
    def name(self) -> str:
        """Of the table or collection."""
        return self._place.name

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        return int(self._place.known()["n_bits"])

    @property
    def n_features(self) -> int | None:
        """Numbers of a vector, None where only codes are kept."""
        found: int | None = self._place.known()["n_features"]
        return found

    @property
    def exists(self) -> bool:
        """Whether it is there and ours; an error where it is somebody else's."""
        return self._place.find() is not None

    def close(self) -> None:
        """End the connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
