"""Collections whose items are divided into lists."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from auxbit import LSH, Collection
from auxbit.core.progress import Silent
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.index.lists import SortedCodes, map_arrays
from auxbit.quantiser.fit import LEAST_ROWS, rows_of_decoder
from auxbit.stores.push import of_collection


def rows(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(30, 12))
    return (centres[rng.integers(0, 30, n)] + rng.normal(size=(n, 12))).astype(np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "c.auxbit"
    X = rows(3000)
    metadata = [{"part": i % 4} for i in range(len(X))]
    Collection.create(path, X, bits=32, metadata=metadata, vectors="float32", lists=25, method="lsh").close()
    return path


def recall(ids, true) -> float:
    return (
        float(np.mean([len(np.intersect1d(*both)) for both in zip(ids, true, strict=True)])) / true.shape[1]
    )


def test_items_in_lists_are_found(made):
    X, queries = rows(3000), rows(50, 1)
    true = ground_truth(X, queries, 10)
    with Collection(made) as items:
        assert items.describe()["lists"] == 25
        assert items.describe()["bits"] == 32
        assert "codes of 32 bits" in repr(items)
        assert recall(items.search(queries, 10).ids, true) > 0.9
        assert recall(items.search(queries, 10, probes="all").ids, true) > 0.97
        many = ground_truth(X, queries, 60)
        assert recall(items.search(queries, 60, probes=1).ids, many) < 0.9
        some = items.search(queries, 10, where="part = 2", probes="all")
        of_part = np.arange(2, 3000, 4)
        assert recall(some.ids, of_part[ground_truth(X[of_part], queries, 10)]) > 0.97
        assert items.search(like=5, k=1).ids.tolist() == [5]


def test_items_that_came_later_or_are_gone(made, tmp_path):
    X, new = rows(600), rows(300, 3)
    with Collection.create(tmp_path / "c", X, bits=24, vectors="float32", lists=10, method="lsh") as items:
        ids = items.add(new)
        assert recall(items.search(new[:20], 1, probes="all").ids, ids[:20, None]) == 1
        items.delete(ids[:10])
        assert not np.isin(items.search(new[:10], 5, probes="all").ids, ids[:10]).any()
        items.add(new[:5], ids=ids[20:25], upsert=True)
        expected = items.search(new, 5, probes="all")
        items.compact()
        assert np.array_equal(items.search(new, 5, probes="all").ids, expected.ids)
    with Collection(tmp_path / "c") as items:
        assert np.array_equal(items.search(new, 5, probes="all").ids, expected.ids)
        items.retrain(bits=32)
        assert items.describe()["lists"] == 10
        assert items.describe()["bits"] == 32
        assert recall(items.search(new[30:50], 1, probes="all").ids, ids[30:50, None]) == 1


def test_hash_codes_in_lists(tmp_path):
    X, queries = rows(1500), rows(20, 1)
    how = {"bits": 32, "method": "lsh", "coding": "hash"}
    with (
        Collection.create(tmp_path / "c", X, lists=12, **how) as listed,
        Collection.create(None, X, **how) as plain,
    ):
        for both in zip(listed.search(queries, 7, probes="all"), plain.search(queries, 7), strict=True):
            assert np.array_equal(*both)
        assert listed.describe()["lists"] == 12
        assert len(listed.search_radius(queries, 5, probes="all").ids) == len(
            plain.search_radius(queries, 5).ids
        )
        with pytest.raises(InvalidInput, match="there are none"):
            plain.search(queries, probes=3)


def test_few_rows_have_no_lists_by_themselves(tmp_path):
    with Collection.create(None, rows(500), bits=16, method="lsh") as items:
        assert "lists" not in items.describe()
    for how in (
        {"lists": "some"}, {"lists": 0}, {"lists": 5, "coding": "hash", "refine_bits": 8}, {"refine_bits": 8},
    ):  # fmt: skip
        with pytest.raises(InvalidParameter, match=r"lists|refine_bits"):
            Collection.create(tmp_path / "c", rows(500), bits=16, method="lsh", **how)
    with pytest.raises(InvalidParameter, match="lists"):
        Collection.create(tmp_path / "c", bits=16, lists="some")
    assert not (tmp_path / "c").exists()


# ---- the file of sorted codes


@pytest.mark.parametrize("coding", ["optimal", "hash"])
def test_codes_sorted_by_list_are_mapped_not_sorted_again(coding, tmp_path, monkeypatch):
    X, queries = rows(1200), rows(20, 1)
    how = {"bits": 32, "method": "lsh", "coding": coding, "lists": 12}
    with Collection.create(tmp_path / "c", X, **how) as items:
        expected = items.search(queries, 7, probes=4)
    assert (tmp_path / "c" / "lists.0").exists()
    with monkeypatch.context() as patch:
        patch.setattr(SortedCodes, "__init__", None)
        with Collection(tmp_path / "c") as items:
            found = items.search(queries, 7, probes=4)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.distances, expected.distances)


def test_a_file_of_sorted_codes_that_is_damaged_stale_or_gone_is_made_without(tmp_path):
    X, queries = rows(1200), rows(20, 1)
    with Collection.create(tmp_path / "c", X, bits=32, method="lsh", lists=12) as items:
        expected, key = items.search(queries, 7, probes=4), items.state.key
    path = tmp_path / "c" / "lists.0"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    other = whole.replace(key.encode(), b"x" * len(key))
    for content in (bytes(flipped), whole[: len(whole) // 2], b"", b"nothing", other):
        path.write_bytes(content)
        assert (map_arrays(path) is None) == (content is not other)
        with Collection(tmp_path / "c", read_only=True) as items:
            assert np.array_equal(items.search(queries, 7, probes=4).ids, expected.ids)
    path.unlink()
    with Collection(tmp_path / "c") as items:
        assert np.array_equal(items.search(queries, 7, probes=4).ids, expected.ids)
        items.compact()
        assert not path.exists()
        assert (tmp_path / "c" / "lists.1").exists()
        assert items.check() == []


def test_items_added_and_deleted_after_codes_were_sorted(tmp_path):
    X, new, queries = rows(1200), rows(90, 5), rows(20, 1)
    with Collection.create(tmp_path / "c", X, bits=32, method="lsh", lists=12) as items:
        ids = items.add(new)
        items.delete(ids[::3])
        items.delete(np.arange(0, 1200, 5))
        expected = items.search(queries, 9, probes="all")
    with Collection(tmp_path / "c") as items:
        assert np.array_equal(items.search(queries, 9, probes="all").ids, expected.ids)
    with Collection.create(None, X, model=tmp_path / "c" / "model.0.safetensors") as fresh:
        fresh.add(new)
        fresh.delete(ids[::3])
        fresh.delete(np.arange(0, 1200, 5))
        assert np.array_equal(fresh.search(queries, 9, probes="all").ids, expected.ids)


def test_a_disk_that_is_full_keeps_what_was_added(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("auxbit.index.lists.write_arrays", full)
    with Collection.create(tmp_path / "c", rows(600), bits=16, method="lsh", lists=5) as items:
        assert len(items) == 600
        items.compact()
    assert not list((tmp_path / "c").glob("lists*"))


def test_finer_codes_rank_items_again_without_vectors(tmp_path):
    X, queries = rows(1500), rows(40, 1)
    true, found = ground_truth(X, queries, 10), []
    for refine_bits in (0, 32):
        how = {"bits": 16, "method": "lsh", "lists": 12, "refine_bits": refine_bits}
        with Collection.create(tmp_path / str(refine_bits), X, **how) as items:
            assert items.describe()["refine_bits"] == refine_bits
            assert items.describe()["bits"] == 16
            found.append(recall(items.search(queries, 10, probes="all").ids, true))
    assert found[1] > found[0] + 0.1
    with Collection(tmp_path / "32") as items:
        items.retrain(X=X)
        assert items.describe()["refine_bits"] == 32
        assert recall(items.search(queries, 10, probes="all").ids, true) > found[0] + 0.1


def test_hash_codes_of_a_collection_with_lists_are_pushed(tmp_path):
    X = rows(800)
    how = {"bits": 32, "method": "lsh", "lists": 10, "vectors": "float32"}
    with Collection.create(tmp_path / "c", X, **how) as items:
        source = of_collection(items)
        batch = source.read(slice(0, 5))
        assert source.n_bits == 32
        assert np.array_equal(batch["codes"], items.model.encode(X[:5], coding="hash"))


def test_a_create_that_is_stopped_continues_where_it_was(tmp_path, monkeypatch):
    X, queries, reached = rows(2000), rows(20, 1), []
    monkeypatch.setattr("auxbit.collection.collection.BATCH_ROWS", 500)
    np.save(tmp_path / "x.npy", X)

    class Stop(Silent):
        def advance(self, n):
            if not reached and len(Collection(tmp_path / "c")) >= 1000:
                raise KeyboardInterrupt

    how = {"bits": 32, "method": "lsh", "lists": 15}
    with pytest.raises(KeyboardInterrupt):
        Collection.create(
            tmp_path / "c", tmp_path / "x.npy", **how, progress=Stop(), stopped=lambda *at: reached.append(at)
        )
    assert reached == [(1000, 2000)]
    with Collection(tmp_path / "c") as items:
        items.add(tmp_path / "x.npy", first_row=1000)
        found = items.search(queries, 9, probes="all")
    with Collection.create(None, X, **how) as whole:
        assert np.array_equal(whole.search(queries, 9, probes="all").ids, found.ids)


DYING = """
import os, signal, sys
from pathlib import Path
from auxbit import Collection
from auxbit.collection import collection
from auxbit.core.progress import Silent
from auxbit.index import lists

folder, moment = Path(sys.argv[1]), sys.argv[2]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(Silent):
    def advance(self, n):
        if moment == "batch" and len(Collection(folder / "c")) >= 1000:
            die()

collection.BATCH_ROWS = 500
if moment == "sorted":
    lists.write_arrays = die
Collection.create(folder / "c", folder / "x.npy", bits=32, method="lsh", lists=15, progress=Dying())
"""


@pytest.mark.parametrize(
    ("moment", "n_there"), [("batch", 1000), pytest.param("sorted", 2000, marks=pytest.mark.slow)]
)
def test_a_create_that_is_killed_resumes_from_the_rows_that_are_there(tmp_path, moment, n_there):
    X, queries = rows(2000), rows(20, 1)
    np.save(tmp_path / "x.npy", X)
    died = subprocess.run([sys.executable, "-c", DYING, tmp_path, moment], timeout=600)
    assert died.returncode == -signal.SIGKILL
    with Collection(tmp_path / "c") as items:
        assert len(items) == n_there
        assert items.describe()["lists"] == 15
        items.add(tmp_path / "x.npy", first_row=len(items))
        found = items.search(queries, 9)
    with Collection.create(None, X, bits=32, method="lsh", lists=15) as whole:
        expected = whole.search(queries, 9)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.distances, expected.distances)


def test_with_little_memory_samples_and_batches_are_smaller_and_codes_are_those_of_all_at_once(
    tmp_path, monkeypatch
):
    D, n, fitted = 2000, 4000, []
    X = np.random.default_rng(0).standard_normal((n, D)).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    fit = LSH._fit

    def noted(self, place, *how):
        fitted.append(place.table.shape[0])
        fit(self, place, *how)

    monkeypatch.setattr(LSH, "_fit", noted)

    class Batches(Silent):
        sizes: ClassVar[list[int]] = []

        def advance(self, n):
            self.sizes.append(n)

    with Collection.create(
        tmp_path / "c", tmp_path / "x.npy", bits=32, method="lsh", decoder="linear", lists=5,
        memory="128MB", progress=Batches(),
    ) as items:  # fmt: skip
        assert np.array_equal(items.codes(), items.model.encode(X, coding="optimal"))
        with pytest.raises(InvalidParameter, match="memory='1KB' is invalid: expected bytes"):
            items.add(tmp_path / "x.npy", memory="1KB")
        assert len(items) == n
    most = rows_of_decoder(128_000_000, D)
    assert LEAST_ROWS < most < n / 2
    assert fitted == [most]
    assert [size for size in Batches.sizes if size > 1] == [most] * (n // most) + [n % most]


def test_a_limit_of_memory_that_is_wrong_replaces_no_collection(tmp_path):
    X = rows(300)
    with Collection.create(tmp_path / "c", X, bits=16, method="lsh") as items:
        model = items.model
    with pytest.raises(InvalidParameter, match="memory='1KB' is invalid"):
        Collection.create(tmp_path / "c", X, model=model, memory="1KB", overwrite=True)
    assert len(Collection(tmp_path / "c")) == 300
