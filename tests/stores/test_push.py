"""Pushes: all rows arrive, once; a push that is interrupted can go on; nothing is mixed up."""

from __future__ import annotations

import os
import signal
import uuid
from dataclasses import replace

import numpy as np
import pytest

from auxbit import BinaryAutoencoder, Collection
from auxbit.errors import InvalidInput
from auxbit.evaluate import largest_norm, lift_queries
from auxbit.stores import StoreError, StoreUnreachable, connect
from auxbit.stores.push import identity_of_files, of_arrays, of_collection, of_files, push
from helpers.index_truth import random_codes
from helpers.store_servers import Postgres, postgres_or_skip, skip_without_milvus_file

pytest_plugins = ["helpers.store_fixtures"]
pytestmark = pytest.mark.usefixtures("no_notes_at_home")

KINDS = ("pgvector", "milvus file", "sqlite", "duckdb", "lancedb", "chdb")  # a Milvus server is like a file


class Interrupted(Exception):
    """Raised by a test in the middle of a push."""


@pytest.fixture(params=KINDS)
def opened(request, places, store_folder):
    with places.open(request.param, store_folder) as store:
        yield store


def stopping_after(rows):
    """A progress that raises once so many rows have gone in."""
    seen = [0]

    def progress(more):
        if seen[0] >= rows:
            raise Interrupted
        seen[0] += more

    return progress


def check_holds(store, source):
    """The store holds the rows of a source and no others."""
    assert store.count() == len(source)
    batch = source.read(slice(0, len(source)))
    some = np.linspace(0, len(source) - 1, 40).astype(int)
    lims, _, ids = store.search_radius(batch["codes"][some], 0)
    for row, start, stop in zip(some, lims, lims[1:]):
        assert source.ids[row] in ids[start:stop]
    if "metadata" in batch and any(batch["metadata"]):
        assert store.metadata(source.ids) == [each or {} for each in batch["metadata"]]


def test_a_push_brings_everything_and_again_changes_nothing(opened):
    source = of_arrays(random_codes(250, 32), 32, ids=np.arange(250)[::-1], identity="x")
    opened.batch_rows = 100
    done = []
    first = push(opened, source, progress=done.append)
    assert (first.rows, first.first, first.created, sum(done)) == (250, 0, True, 250)
    check_holds(opened, source)
    again = push(opened, source)
    assert (again.rows, again.first, again.created) == (250, 0, False)
    check_holds(opened, source)
    assert opened.pushed("x") == 0  # complete pushes are forgotten


def test_an_interrupted_push_continues_where_it_stopped(opened):
    source = of_arrays(random_codes(250, 32), 32, identity="x")
    opened.batch_rows, stopped = 100, []
    with pytest.raises(Interrupted):
        push(opened, source, progress=stopping_after(150), stopped=stopped.append)
    assert stopped[0] in (100, 200)
    assert opened.pushed("x") == stopped[0]
    assert opened.count() >= stopped[0]
    done = []
    other = of_arrays(random_codes(250, 32, seed=1), 32, identity="y")
    assert opened.pushed(other.identity) == 0  # another source begins at its first row
    went_on = push(opened, source, resume=True, progress=done.append)
    assert (went_on.rows, went_on.first, sum(done)) == (250 - stopped[0], stopped[0], 250)
    check_holds(opened, source)
    assert push(opened, source, resume=True).first == 0
    check_holds(opened, source)


def test_overwriting_begins_anew_and_forgets_the_push(opened):
    source = of_arrays(random_codes(250, 32), 32, identity="x")
    opened.batch_rows = 100
    with pytest.raises(Interrupted):
        push(opened, source, progress=stopping_after(150))
    small = of_arrays(random_codes(10, 16), 16, identity="z")
    push(opened, small, overwrite=True)
    check_holds(opened, small)
    assert opened.pushed("x") == 0
    with pytest.raises(InvalidInput, match="resume or overwrite, not both"):
        push(opened, small, resume=True, overwrite=True)


def test_a_push_of_which_nothing_goes_in_leaves_no_store_behind(opened):
    source = of_arrays(random_codes(250, 32), 32, identity="x")
    opened.batch_rows, stopped = 100, []

    def fails(rows):
        raise Interrupted

    with pytest.raises(Interrupted):
        push(opened, replace(source, read=fails), stopped=stopped.append)
    assert stopped == [0]
    assert not opened.exists
    push(opened, source)
    with pytest.raises(Interrupted):
        push(opened, replace(source, read=fails))
    assert opened.count() == 250  # what was there before is


def test_rows_that_do_not_go_with_the_store_are_refused(opened):
    push(opened, of_arrays(random_codes(10, 32), 32))
    with pytest.raises(
        StoreError, match=r"holds codes of 32 bits, but these have 64\. Choose another name.*--force"
    ):
        push(opened, of_arrays(random_codes(10, 64), 64))
    with pytest.raises(StoreError, match="keeps no vectors, but these rows have vectors of 3"):
        push(opened, of_arrays(random_codes(10, 32), 32, vectors=np.zeros((10, 3))))
    assert opened.count() == 10


def test_wrong_sources_are_refused():
    codes = random_codes(4, 8)
    with pytest.raises(InvalidInput, match="ids must differ, but 1 occurs more than once"):
        of_arrays(codes, 8, ids=[1, 1, 2, 3])
    with pytest.raises(InvalidInput, match="metadata has 1 rows for 4 codes"):
        of_arrays(codes, 8, metadata=[{}])
    with pytest.raises(InvalidInput, match="vectors must be 4 rows"):
        of_arrays(codes, 8, vectors=np.zeros((3, 2)))
    with pytest.raises(InvalidInput, match="codes must be packed codes of 9 bits"):
        of_arrays(codes, 9)


def test_the_identity_of_files_is_that_of_their_content(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        np.save(path, np.zeros(3))
    a, b = (f"{path}.npy" for path in paths)
    assert identity_of_files([a, None], 8) == identity_of_files([b, None], 8)
    different = [[a, None], [None, a], [a, b]]
    assert len({identity_of_files(each, 8) for each in different} | {identity_of_files([a, None], 16)}) == 4


@pytest.mark.parametrize("how", [{}, {"normalize": True}, {"lift": True}], ids=str)
def test_a_collection_is_pushed_with_metadata_and_vectors(places, store_folder, tmp_path, digits, how):
    model = BinaryAutoencoder(16, random_state=0, max_iter=2, **how).fit(digits[:300])
    with (
        Collection.create(tmp_path / "c", model, vectors="float32") as collection,
        places.open("pgvector", store_folder) as store,
    ):
        collection.add(digits[:300], metadata=[{"row": row} for row in range(300)])
        collection.delete([5, 6])
        collection.add(digits[300:320], ids=np.arange(1000, 1020))
        source = of_collection(collection, vectors=True)
        store.batch_rows = 100
        push(store, source)
        check_holds(store, source)
        queries = digits[400:410].astype(np.float32)
        codes = collection.model.encode(queries, queries=True)
        wanted, true = collection.search(queries, 5, rerank=318)
        lengths = np.linalg.norm(queries, axis=1, keepdims=True)
        asked = queries / lengths if "normalize" in how else queries
        if "lift" in how:  # minus products to squared distances of lifted rows and queries
            longest = largest_norm(digits[:300])
            asked = lift_queries(queries, longest)
            wanted = 2 * longest * (longest + wanted / lengths)
        distances, ids = store.search(codes, 5, rerank=asked, candidates=318)
        np.testing.assert_allclose(distances, wanted, rtol=1e-3, atol=1e-5)
        assert (ids == true).mean() > 0.9
        before = source.identity
        collection.delete([7])
        assert of_collection(collection, vectors=True).identity != before


def test_a_collection_without_vectors_says_so(tmp_path):
    with Collection.create(tmp_path / "c", bits=8) as collection:
        collection.add(codes=random_codes(5, 8))
        with pytest.raises(InvalidInput, match="keeps no vectors: push its codes alone"):
            of_collection(collection, vectors=True)


@pytest.mark.parametrize("ids", [["a", "b"], [uuid.UUID(int=1), uuid.UUID(int=2)]], ids=["text", "uuid"])
def test_a_collection_whose_ids_are_no_integers_is_refused_with_the_remedy(ids):
    with Collection.create(None, bits=8) as collection:
        collection.add(codes=random_codes(2, 8), ids=ids)
        with pytest.raises(
            InvalidInput, match=r"stores keep integers\..*keep these as a field of its metadata"
        ):
            of_collection(collection)


def test_ids_of_a_file_that_are_no_integers_are_refused(tmp_path):
    np.save(tmp_path / "codes.npy", random_codes(2, 8))
    (tmp_path / "ids.txt").write_text("a\nb\n")
    with pytest.raises(InvalidInput, match=r"ids\.txt must be integers"):
        of_files(str(tmp_path / "codes.npy"), ids=str(tmp_path / "ids.txt"))
    (tmp_path / "ids.txt").write_text("7\n8\n")
    assert of_files(str(tmp_path / "codes.npy"), ids=str(tmp_path / "ids.txt")).ids.tolist() == [7, 8]


# ---- servers that go away


@pytest.fixture
def own_postgres():
    """A server that a test may kill."""
    server = postgres_or_skip()
    yield server
    server.close()


def test_a_server_killed_in_mid_push_is_pushed_to_again_until_all_is_there(own_postgres: Postgres):
    metadata = [{"row": row} for row in range(3000)]
    source = of_arrays(random_codes(3000, 64), 64, metadata=metadata, identity="x")
    noted = []
    for killed_after in (700, 1700):
        with connect(own_postgres.url()) as store:
            store.batch_rows, seen, stopped = 500, [0], []

            def progress(more, seen=seen, killed_after=killed_after):
                seen[0] += more
                if seen[0] >= killed_after:
                    own_postgres.kill()

            with pytest.raises(StoreUnreachable, match=r"the connection broke.*push --resume"):
                push(store, source, resume=True, progress=progress, stopped=stopped.append)
        own_postgres.start()
        with connect(own_postgres.url()) as store:
            noted.append(store.pushed("x"))
            assert noted[-1] == stopped[0] == store.count()  # rows and note are of one transaction
    assert noted == [500, 1500]
    with connect(own_postgres.url()) as store:
        assert push(store, source, resume=True).first == 1500
        check_holds(store, source)


def test_a_milvus_killed_in_mid_push_is_pushed_to_again_until_all_is_there(tmp_path):
    skip_without_milvus_file()
    import psutil

    source = of_arrays(random_codes(900, 32), 32, identity="x")
    path = tmp_path / "killed.db"
    with connect(str(path), timeout=2.0) as store:
        store.create(32)
        store.batch_rows, seen = 300, [0]

        def progress(more):
            seen[0] += more
            if seen[0] == 300:
                (process,) = [
                    each for each in psutil.Process().children() if str(path) in " ".join(each.cmdline())
                ]
                os.kill(process.pid, signal.SIGKILL)

        with pytest.raises(StoreUnreachable, match=r"cannot be reached, or no longer.*push --resume"):
            push(store, source, progress=progress)
    with connect(str(path)) as store:
        noted = store.pushed("x")
        assert noted == 300
        assert push(store, source, resume=True).first == noted
        check_holds(store, source)
