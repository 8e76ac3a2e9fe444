"""Files that released versions have written, in tests/corpus/formats, are read by this one.

`python tests/system/test_formats.py` writes those of the present version: once, before its release.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import ITQ, BinaryAutoencoder, Collection, HammingIndex

FORMATS = Path(__file__).parents[1] / "corpus" / "formats"
VERSIONS = sorted(path.name for path in FORMATS.iterdir()) if FORMATS.is_dir() else []


def rows() -> Any:
    return np.random.default_rng(0).normal(size=(70, 6)).astype(np.float32).round(3)


def answers(folder: Path) -> dict[str, Any]:
    """What the files say: codes of models, and what indexes and collections find."""
    X, found = rows(), dict[str, Any]()
    for path in sorted(folder.glob("model-*.safetensors")):
        model = auxbit.load(path)
        found[path.name] = (
            model.encode(X[:9]).tolist(),
            np.round(model.decode(model.encode(X[:2])), 3).tolist(),
        )
    for path in sorted(folder.glob("index-*.safetensors")):
        index = HammingIndex.load(path, n_jobs=1)
        found[path.name] = [
            each.tolist() for each in index.search(np.arange(3, dtype=np.uint8)[:, None], k=4)
        ]
    for path in sorted(folder.glob("*.auxbit")):
        with Collection.open(path, read_only=True, n_jobs=1) as collection:
            near = collection.search(X[:3], k=4)
            where = collection.search(X[:3], k=2, where="label = 1")
            found[path.name] = {
                "n": len(collection), "ids": near.ids.tolist(), "where": where.ids.tolist(),
                "distances": np.round(near.distances, 3).tolist(), "item": str(collection.get([5])),
                "damage": collection.check(),
            }  # fmt: skip
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def write(folder: Path) -> None:
    """One file of each kind and format, small."""
    X = rows()
    folder.mkdir(parents=True)
    itq, ba = ITQ(6, random_state=0).fit(X), BinaryAutoencoder(8, random_state=0, n_jobs=1).fit(X)
    itq.save(folder / "model-itq.safetensors")
    ba.save(folder / "model-ba.safetensors")
    index = HammingIndex(model=ba)
    index.add(ba.encode(X), ids=np.arange(70) * 2)
    index.save(folder / "index-ba.safetensors")
    labels = [{"label": i % 3, "name": f"ä {i}"} for i in range(70)]
    for name, options in {"hash": {"model": itq}, "optimal": {"bits": 8}}.items():
        path = folder / f"{name}.auxbit"
        with Collection.create(path, X, metadata=labels, vectors="float16", n_jobs=1, **options) as made:
            made.delete([3, 4])
        (path / "writer.lock").unlink()
    (folder / "answers.json").write_text(json.dumps(answers(folder)) + "\n")


def test_the_files_of_this_version_are_kept():
    assert auxbit.__version__ in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_a_released_version_give_the_answers_that_they_gave(version, tmp_path):
    folder = shutil.copytree(FORMATS / version, tmp_path / version)
    assert answers(folder) == json.loads((folder / "answers.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_collection_of_a_released_version_can_be_changed(version, tmp_path):
    for path in sorted(shutil.copytree(FORMATS / version, tmp_path / version).glob("*.auxbit")):
        with Collection.open(path, n_jobs=1) as collection:
            added = collection.add(rows()[:3], metadata=[{"label": 7}] * 3)
            assert set(added.tolist()) == set(collection.search(rows()[:3], k=3, where="label=7").ids.ravel())
            collection.compact()
            assert collection.check() == []


if __name__ == "__main__":
    write(FORMATS / auxbit.__version__)
