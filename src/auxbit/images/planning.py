"""From what is asked for to a recipe: what suits the pictures, and what a collection has already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from auxbit.collection.collection import Collection
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.experiments.methods import find_method
from auxbit.images.network import network_recipe, read_network
from auxbit.images.reading import Decode, Read, read_pictures
from auxbit.images.recipe import KINDS, Channels, Recipe
from auxbit.images.sources import Source

SIDES = {"gist": (32, 128), "pixels": (8, 32)}  # least and most that is chosen unless told
MEASURED = 64  # pictures whose sizes choose the side
OPTIONS = {"kind": "--features", "sha256": "--model"}  # where they are not named as in the recipe
NO_MEAN: Channels = (0.0, 0.0, 0.0)
NO_STD: Channels = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Wanted:
    """What is asked of a collection; None for what it has, or for what is usual."""

    features: str | None = None
    side: int | None = None
    colour: float | None = None
    grey: bool | None = None
    model: str | os.PathLike[str] | None = None
    mean: Channels | None = None
    std: Channels | None = None
    bits: int | None = None
    method: str | None = None
    seed: int | None = None

    @property
    def kind(self) -> str | None:
        """The features, which a network implies."""
        return "onnx" if self.model is not None else self.features

    def check(self) -> None:
        """Refuse before any work what no pictures and no collection can make right."""
        if self.features is not None and self.features not in KINDS:
            raise InvalidParameter("features", self.features, f"one of {', '.join(KINDS)}")
        if self.model is not None and self.features not in (None, "onnx"):
            raise InvalidParameter("features", self.features, "'onnx' with the file of a network")
        if self.kind in SIDES:
            side = self.side or SIDES[self.kind][0]
            Recipe(self.kind, side, colour=self.colour or 0.0, grey=self.grey or False)


def recipe_for(
    wanted: Wanted, present: Recipe | None, sources: Sequence[Source], decode: Decode, n_jobs: int | None
) -> tuple[Recipe, bytes | None]:
    """The recipe, and the bytes of its network where that is to be kept.

    present : of the collection that is gone on with, from which what is not asked for is taken
    """
    kind = wanted.kind or (present.kind if present is not None else "gist")
    if kind != "onnx" and (wanted.mean is not None or wanted.std is not None):
        raise InvalidParameter("mean", wanted.mean or wanted.std, "none without the file of a network")
    if present is not None and kind == present.kind and wanted.model is None:
        names = ("side", "colour", "grey", "mean", "std")
        changes = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        return replace(present, **changes), None
    if kind == "onnx":
        if wanted.model is None:
            raise InvalidParameter("features", kind, "the file of a network beside it", "Add --model FILE.")
        before = present if present is not None and present.kind == kind else None
        mean = wanted.mean or (before.mean if before is not None else NO_MEAN)
        std = wanted.std or (before.std if before is not None else NO_STD)
        content = read_network(wanted.model)
        return network_recipe(content, str(wanted.model), wanted.side, mean, std), content
    side = wanted.side or fitting_side(kind, sources, decode, n_jobs)
    return Recipe(kind, side, colour=wanted.colour or 0.0, grey=wanted.grey or False), None


def fitting_side(kind: str, sources: Sequence[Source], decode: Decode, n_jobs: int | None) -> int:
    """The median of the shorter sides of some pictures, within what is sensible."""
    least, most = SIDES[kind]
    some = sources[:: -(-len(sources) // MEASURED)]
    read = read_pictures([(source, None) for source in some], decode, least, n_jobs)
    shorter = [
        min(each.decoded.width, each.decoded.height)
        for each in read
        if isinstance(each, Read) and each.decoded is not None
    ]
    return min(max(median_low(shorter), least), most) if shorter else least


def check_same(collection: Collection, before: Recipe, after: Recipe, wanted: Wanted) -> None:
    """Refuse to go on with another recipe, or with another model once there is one."""
    out, old, new = collection.path, before.document(), after.document()
    differences = [
        (OPTIONS.get(key, f"--{key}"), old.get(key), new.get(key))
        for key in ("kind", "side", "colour", "grey", "sha256", "mean", "std")
        if old.get(key) != new.get(key)
    ]
    if differences:
        option, was, asked = differences[0]
        which = f"another {option}" if option == "--model" else f"{option} {_shown(was)}, not {_shown(asked)}"
        raise InvalidInput(
            f"{out} was made with {which}. Leave the option out to go on with it, choose another --out, or "
            "add --force to begin anew."
        )
    if collection.manifest.model is not None and _is_other_model(collection, wanted):
        raise InvalidInput(
            f"{out} has a model already. Leave --bits, --method and --seed out to go on with it, or fit "
            f"another by `auxbit collection retrain {out}` with these options."
        )


def _is_other_model(collection: Collection, wanted: Wanted) -> bool:
    if wanted.bits not in (None, collection.n_bits):
        return True
    if wanted.method is None and wanted.seed is None:
        return False  # before the model is loaded
    model = collection.model
    if wanted.method is not None:
        method = find_method(wanted.method)
        has = model.get_params(deep=False)
        if type(model).__name__ != method.estimator or any(
            has[key] != value for key, value in method.options.items()
        ):
            return True
    return wanted.seed not in (None, model.random_state)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)
