"""Opening a collection of pictures: what is one, and what is one that is finished."""

from __future__ import annotations

import os
from pathlib import Path

from auxbit.collection.collection import Collection
from auxbit.collection.manifest import NAME
from auxbit.errors import CollectionError
from auxbit.images.about import About, go_on_command
from auxbit.tables import nearest

MADE_BY = "Collections of pictures are made by `auxbit images create DIR --out NAME`."


def open_pictures(
    path: str | os.PathLike[str], *, read_only: bool = False, n_jobs: int | None = None
) -> tuple[Collection, About]:
    """The collection of pictures in a folder; CollectionError where there is none, or it is not finished."""
    folder = Path(path)
    if not (folder / NAME).is_file():
        what = "is not a collection" if folder.exists() else "does not exist"
        near = ""
        if folder.parent.is_dir():
            others = (each.name for each in folder.parent.iterdir() if (each / NAME).is_file())
            near = nearest(folder.name, others)
        raise CollectionError(f"{folder} {what}.{near} {MADE_BY}")
    collection = Collection.open(folder, read_only=read_only, n_jobs=n_jobs)
    try:
        return collection, finished(collection)
    except BaseException:
        collection.close()
        raise


def about_pictures(collection: Collection) -> About:
    """What makes a collection one of pictures; CollectionError where it is not."""
    about = About.read(collection.path, collection.manifest.key)
    if about is None:
        raise CollectionError(f"{collection.path} is a collection, but not of pictures. {MADE_BY}")
    return about


def finished(collection: Collection) -> About:
    """The same of a collection that has a model."""
    about = about_pictures(collection)
    if collection.manifest.model is None:
        raise CollectionError(
            f"{collection.path} is not finished: its {len(collection):,} pictures have no codes yet. "
            f"Go on with: {go_on_command(collection.path, about)}"
        )
    return about
