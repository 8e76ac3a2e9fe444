"""How far pushes are, noted in a small file here, for stores that cannot note it themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path

from auxbit import files


def state_folder() -> Path:
    """Where the notes are: $XDG_STATE_HOME/auxbit/pushes, or that of ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "auxbit" / "pushes"


class LocalPushes:
    """Notes about pushes into one store, which its `key` names; a store that is made anew has another key.

    A note is written after its rows are in, so it never says too much; rows that are pushed again because it
    says too little replace themselves.
    """

    def __init__(self, key: str) -> None:
        self._path = state_folder() / f"{key}.json"

    def pushed(self, source: str) -> int:
        """How many rows of a source are in, 0 where nothing is known."""
        return self._read().get(source, 0)

    def remember(self, source: str, rows: int | None) -> None:
        """Note that so many rows are in; None: all of them, and the note is removed."""
        notes = self._read()
        notes.pop(source, None)
        if rows is not None:
            notes[source] = rows
        if notes:
            files.write_text(self._path, json.dumps(notes))
        else:
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, int]:
        try:
            notes = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no note, or one that is damaged: then everything is pushed again
            return {}
        whole = isinstance(notes, dict) and all(isinstance(rows, int) for rows in notes.values())
        return notes if whole else {}
