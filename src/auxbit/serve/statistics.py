"""The collection in figures."""

from __future__ import annotations

from typing import Any

from auxbit.collection.manifest import Manifest
from auxbit.experiments.methods import label_of
from auxbit.images.pictures import Pictures


def modes_of(manifest: Manifest) -> tuple[list[str], str]:
    """How a collection can be searched, and how it is unless told."""
    modes = ["hamming", "asymmetric", *(["reranked"] if manifest.vectors is not None else [])]
    return modes, "asymmetric" if manifest.coding == "optimal" else "hamming"


def measure(pictures: Pictures) -> dict[str, Any]:
    """What does not change as long as the collection does not."""
    collection, recipe = pictures.collection, pictures.recipe
    manifest, found = collection.manifest, collection.stats()
    modes, default = modes_of(manifest)
    return {
        "name": collection.path.name.removesuffix(".auxbit"),
        "items": found.items,
        "bits": found.n_bits,
        "method": label_of(collection.model),
        "coding": manifest.coding,
        "mu": float(manifest.mu),
        "dimension": found.n_features or 0,
        "features": {
            "kind": recipe.kind, "side": recipe.side, "colour": float(recipe.colour), "grey": recipe.grey
        },
        "modes": modes,
        "default_mode": default,
        "reconstructs": recipe.kind == "pixels",
        "bytes": found.bytes,
        "added_since_training": found.added,
        "retrain": found.retrain,
        "reasons": found.reasons,
    }  # fmt: skip
