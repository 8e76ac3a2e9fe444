"""Changes of a collection on a simulated disk, and what is lost when its power is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from helpers.collection_truth import Contents, change, difference, found_after
from helpers.simulated_disk import SimulatedDisk, lay_out

LARGEST = 200  # rows to add at once: a state is built and compared in milliseconds
GO_ON = 0.1  # of the states, in which a writer makes the next change


class Recorded:
    """Changes 0..n of a run on a disk, and the contents before and after each."""

    def __init__(self, folder: Path, seed: int, n_changes: int, lies: tuple[str, ...] = ()) -> None:
        self.seed, self.folder = seed, folder
        root = folder / "recorded"
        root.mkdir(parents=True)
        self.disk = SimulatedDisk(root, lies)
        self.contents: list[Contents | None] = [None]
        collection = None
        with self.disk.recording():
            for number in range(n_changes):
                make, after = self._change(number)
                collection = make(root / "collection", collection)
                self.contents.append(after)
                self.disk.mark(number)
            assert collection is not None
            collection.close()
        self.contents.append(self._change(n_changes)[1])
        real = {str(file.relative_to(root)): file for file in root.rglob("*") if file.is_file()}
        journalled = self.disk.contents()
        assert {name: len(some) for name, some in journalled.items()} == {
            name: file.stat().st_size for name, file in real.items()
        }
        for name, file in real.items():
            assert journalled[name] == file.read_bytes(), f"the journal of {name} is not complete"

    def _change(self, number: int) -> tuple:
        return change(self.contents[number], self.seed, number, LARGEST)

    def losses(self, rng: random.Random, share: float = 1.0, in_order: bool | None = None) -> Iterator[str]:
        """What is wrong in each of the states that a crash may leave, empty where nothing is."""
        for acknowledged, content in self.disk.crashes(rng, share, in_order):
            place = self.folder / "after"
            lay_out(content, place)
            path, number = place / "collection", acknowledged + 1
            wrong, came_about = found_after(path, *self.contents[number : number + 2])
            number += came_about
            if not wrong and number <= len(self.contents) - 2 and rng.random() < GO_ON:
                make, after = self._change(number)
                with make(path, None) as collection:
                    wrong = difference(collection, after) or "; ".join(collection.check())
            shutil.rmtree(place)
            yield f"after change {acknowledged}: {wrong}" if wrong else ""
