"""pictures.json: what makes a collection one of pictures."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from auxbit import __version__, files
from auxbit.errors import AuxbitError, CollectionError, Damaged
from auxbit.images.recipe import Recipe

NAME = "pictures.json"
FORMAT, VERSION = "auxbit pictures", 1
REMEDY = "Restore it from a copy, or make the collection anew by `auxbit images create … --force`."


@dataclass(frozen=True)
class About:
    """How the vectors and codes of pictures are made, and which folders they come from.

    key : of the collection it belongs to, which a collection that replaces it does not have
    bits, method, seed : of the model that is fitted once all pictures are read
    roots : absolute folders that items name files in
    """

    key: str
    recipe: Recipe
    bits: int
    method: str
    seed: int
    roots: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Keep it with the collection, atomically."""
        document = {"format": FORMAT, "format_version": VERSION, "auxbit_version": __version__}
        content = asdict(self) | {"recipe": self.recipe.document()}
        files.write_text(folder / NAME, json.dumps(document | content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, key: str) -> About | None:
        """What is kept in a folder, None where that is nothing, or of a collection that was replaced."""
        path = folder / NAME
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CollectionError(f"{path} cannot be read: {error.strerror}.") from error
        try:
            document = json.loads(text)
        except ValueError as error:
            raise Damaged(f"{path} is damaged: it is not JSON. {REMEDY}") from error
        return cls._parse(document, path, key)

    @classmethod
    def _parse(cls, document: Any, path: Path, key: str) -> About | None:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise Damaged(f"{path} is not what it should be. {REMEDY}")
        if document.get("format_version") != VERSION:
            raise CollectionError(
                f"{path} was written by auxbit {document.get('auxbit_version')}, and this version cannot "
                "read it. Upgrade: pip install -U auxbit."
            )
        if document.get("key") != key:
            return None
        try:
            recipe = Recipe.from_document(document["recipe"])
            roots = tuple(map(str, document["roots"]))
            bits, seed = int(document["bits"]), int(document["seed"])
            return cls(key, recipe, bits, str(document["method"]), seed, roots)
        except (KeyError, TypeError, ValueError, AuxbitError) as error:
            raise Damaged(f"{path} is not complete: {error!r}. {REMEDY}") from error


def go_on_command(folder: Path, about: About) -> str:
    """What to type to finish a collection whose making was stopped."""
    root = about.roots[0] if about.roots else "DIR"
    return shlex.join(["auxbit", "images", "create", root, "--out", str(folder)])
