"""What `images …` does around the library: answers and facts; it prints nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from auxbit.hashers.registry import label_of
from auxbit.images.build import Report
from auxbit.images.pictures import Pictures


def search(
    folder: str, picture: str | None, id_: int | None, k: int, mode: str | None, n_jobs: int | None
) -> dict[str, Any]:
    """The pictures that look most like one, for JSON."""
    with Pictures.open(folder, n_jobs=n_jobs) as pictures:
        query = id_ if id_ is not None else picture
        assert query is not None
        found = pictures.search(query, k, mode=mode)
        coding = pictures.collection.manifest.coding
        return {
            "query": query,
            "mode": mode or ("asymmetric" if coding == "optimal" else "hamming"),
            "items": len(pictures),
            "results": [each._asdict() for each in found],
        }


def report_document(report: Report, folder: str) -> dict[str, Any]:
    """What was done, and what the collection is now, for JSON."""
    with Pictures.open(folder) as pictures:
        state = pictures.collection.manifest
        bad = [{"file": name, "reason": reason} for name, reason in report.bad]
        return {"collection": folder, **asdict(report), "bad": bad} | {
            "bits": state.n_bits,
            "dimensions": state.n_features,
            "method": label_of(pictures.collection.model),
            "features": pictures.recipe.document(),
        }


def report_facts(report: Report, document: dict[str, Any]) -> list[tuple[str, object]]:
    """What was done, a line a fact."""
    counts = {
        "added": report.added,
        "replaced": report.replaced,
        "unchanged": report.unchanged,
        "deleted": report.removed,
    }
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    facts: list[tuple[str, object]] = [
        ("collection", document["collection"]),
        ("pictures", f"{report.items:,}" + (f" ({said})" if said else "")),
        ("features", _features(document["features"], document["dimensions"])),
        ("codes", f"{document['bits']} bits, {document['method']}"),
    ]
    took = [(name, spent) for name, spent in report.seconds.items() if spent >= 0.5]
    if took:
        facts.append(("seconds", ", ".join(f"{name} {spent:.0f}" for name, spent in took)))
    return facts


def _features(recipe: dict[str, Any], dimensions: int) -> str:
    kinds = {"gist": "GIST", "pixels": "pixels", "onnx": "a network"}
    extras = " and colour" if recipe.get("colour") else ", grey" if recipe.get("grey") else ""
    return f"{kinds[recipe['kind']]}{extras}, of {recipe['side']} × {recipe['side']} pixels, {dimensions:,}-D"
