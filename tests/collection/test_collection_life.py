"""The life of a collection: any history of changes, creation, other readers, retraining, statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from auxbit import ITQ, Collection
from auxbit.collection import storage
from auxbit.errors import FileExists, InvalidInput
from helpers.index_truth import random_codes, slow_search

# ---- histories


class Histories(RuleBasedStateMachine):
    """Any history of changes: contents and answers are those of a dict of rows in order."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.collection = Collection.create(
            self.folder.name + "/c", n_bits=12, n_features=2, vectors="float32"
        )
        self.truth: dict[int, tuple] = {}
        self.seed = 0

    @rule(n=st.integers(0, 200), upsert=st.booleans(), spread=st.sampled_from([5, 1000]))
    def add(self, n, upsert, spread):
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        ids = rng.choice(spread * 10, size=min(n, spread), replace=False)
        codes = random_codes(len(ids), 12, self.seed)
        rows = rng.random((len(ids), 2)).astype(np.float32)
        texts = [{"value": int(value)} for value in rng.integers(0, 9, len(ids))]
        if not upsert and any(int(each) in self.truth for each in ids):
            with pytest.raises(InvalidInput, match="already"):
                self.collection.add(rows, codes=codes, ids=ids, metadata=texts)
            return
        self.collection.add(rows, codes=codes, ids=ids, metadata=texts, upsert=upsert)
        for each in zip(ids.tolist(), codes, rows, texts, strict=True):
            self.truth.pop(each[0], None)
            self.truth[each[0]] = each[1:]

    @rule(share=st.floats(0, 1))
    def delete(self, share):
        unwanted = list(self.truth)[: int(share * len(self.truth))]
        self.collection.delete(np.array(unwanted, dtype=np.int64))
        for each in unwanted:
            del self.truth[each]

    @rule()
    def compact(self):
        self.collection.compact()
        assert len(self.collection._storage.manifest.segments) <= 1

    @rule()
    def reopen(self):
        self.collection.close()
        self.collection = Collection.open(self.folder.name + "/c")

    @rule(value=st.integers(0, 9))
    def filter(self, value):
        lims, _, ids = self.collection.search_radius(
            codes=np.zeros((1, 2), np.uint8), r=12, where={"value": value}
        )
        assert sorted(ids) == sorted(each for each, row in self.truth.items() if row[2]["value"] == value)
        assert lims[-1] == len(ids)

    @invariant()
    def contents_are_the_truth(self):
        ids = list(self.truth)
        assert len(self.collection) == len(ids)
        assert self.collection.ids.tolist() == ids
        if ids:
            base = np.array([self.truth[each][0] for each in ids])
            np.testing.assert_array_equal(self.collection.codes(), base)
            np.testing.assert_array_equal(
                self.collection.vectors(ids), np.array([self.truth[each][1] for each in ids])
            )
            assert self.collection.metadata(ids) == [self.truth[each][2] for each in ids]
            queries = random_codes(5, 12, self.seed)
            for found, wanted in zip(
                self.collection.search(codes=queries, k=7), slow_search(base, ids, queries, 7), strict=True
            ):
                np.testing.assert_array_equal(found, wanted)

    def teardown(self):
        self.collection.close()
        self.folder.cleanup()


Histories.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestHistories = Histories.TestCase


def test_many_small_additions_end_in_few_segments_and_keep_their_order(tmp_path):
    with Collection.create(tmp_path / "c", n_bits=8) as collection:
        for row in range(600):
            collection.add(codes=np.array([[row % 256]], np.uint8), metadata=[{"row": row}])
        assert len(collection._storage.manifest.segments) <= 2 * storage.MERGED
        assert len(list(collection.path.iterdir())) <= 2 * storage.MERGED + 2
        np.testing.assert_array_equal(collection.codes()[:, 0], np.arange(600) % 256)
        assert [row["row"] for row in collection.metadata(np.arange(600))] == list(range(600))
        for row in range(0, 100, 2):
            collection.delete([row])
        assert len(collection._storage.manifest.removed) <= storage.MERGED + 1
        assert len(collection) == 550


# ---- creating and opening


def test_creating_does_not_replace_what_is_there_unless_told(tmp_path, model, digits):
    path = tmp_path / "c"
    with Collection.create(path, model) as collection:
        collection.add(digits[:10])
    with pytest.raises(FileExists, match="exists"):
        Collection.create(path, model)
    assert len(Collection.open(path)) == 10
    with Collection.create(path, n_bits=8, overwrite=True) as collection:
        assert len(collection) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(FileExists, match="is not a collection"):
        Collection.create(other, model, overwrite=True)
    assert (other / "mine.txt").read_text() == "mine"


def test_parameters_of_create_that_do_not_go_together_are_errors(tmp_path, model):
    for wrong, match in [
        ({}, "give a fitted model, or n_bits"),
        ({"n_bits": 0}, "n_bits=0 is invalid"),
        ({"model": ITQ(8)}, "is not fitted"),
        ({"model": model, "n_bits": 8}, "the model has 16 bits"),
        ({"model": model, "vectors": "int8"}, "vectors='int8' is invalid"),
        ({"model": model, "coding": "best"}, "coding='best' is invalid"),
        ({"n_bits": 8, "vectors": "float32"}, "n_features"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            Collection.create(tmp_path / "c", **wrong)
    assert not (tmp_path / "c").exists()


def test_a_collection_of_optimal_codes_is_searched_by_the_decoder(tmp_path, digits):
    model = ITQ(16, random_state=0).fit(digits).fit_decoder(digits)
    with Collection.create(tmp_path / "c", model) as collection:  # as its decoder is meant
        collection.add(digits[100:])
        np.testing.assert_array_equal(collection.codes(), model.encode(digits[100:], coding="optimal"))
        for found, wanted in zip(
            collection.search(digits[:9], 5), collection.search(digits[:9], 5, mode="asymmetric"), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_other_readers_see_what_is_written_and_a_compaction_takes_nothing_from_them(filled, digits):
    with Collection.open(filled.path, read_only=True) as reader:
        before = reader.search(digits[:5], 10)
        snapshot = reader._storage._view.snapshot
        filled.add(digits[:5])
        assert len(reader) == 1205
        assert (reader.search(digits[:5], 1)[0] == 0).all()
        filled.delete(np.arange(5500, 5505))
        filled.compact()
        for found, wanted in zip(reader.search(digits[:5], 10), before, strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert snapshot.vectors(np.arange(3)).shape == (3, 64)  # of files that are gone
        with pytest.raises(OSError, match="opened to be read"):
            reader.add(digits[:1])


def test_a_closed_collection_says_so(filled, digits):
    filled.close()
    with pytest.raises(InvalidInput, match="is closed"):
        filled.search(digits[:1])
    assert repr(filled).endswith("closed")


# ---- retraining


def test_retraining_gives_the_codes_of_the_new_model_and_keeps_the_rest(filled, digits, model):
    filled.delete([0])
    ids, rows = filled.ids, filled.metadata(filled.ids)
    steps, done = [], []
    new = filled.retrain(step=steps.append, advance=done.append)
    assert steps[-1] == "encoding"
    assert sum(done) == 1199
    assert new is not model
    np.testing.assert_array_equal(filled.ids, ids)
    assert filled.metadata(ids) == rows
    vectors = filled.vectors(ids)
    np.testing.assert_array_equal(filled.codes(), new.encode(vectors))
    with Collection.open(filled.path) as again:
        np.testing.assert_array_equal(again.model.encode(vectors), again.codes())
    other = ITQ(24, random_state=1).fit(digits)
    filled.retrain(other)
    assert filled.n_bits == 24
    np.testing.assert_array_equal(filled.codes(), other.encode(vectors))
    with pytest.raises(InvalidInput, match="for rows of 10 numbers, the collection for 64"):
        filled.retrain(ITQ(8, random_state=0).fit(digits[:, 20:30]))
    np.testing.assert_array_equal(filled.codes(), other.encode(vectors))


def test_retraining_without_vectors_needs_them_given(tmp_path, model, digits):
    with Collection.create(tmp_path / "c", model) as collection:
        collection.add(digits[:50])
        with pytest.raises(InvalidInput, match="keeps no vectors to make new codes from"):
            collection.retrain()
        with pytest.raises(InvalidInput, match="a row for each of the 50 items"):
            collection.retrain(X=digits[:3])
        new = collection.retrain(X=digits[:50])
        np.testing.assert_array_equal(collection.codes(), new.encode(digits[:50]))


# ---- statistics


def test_a_collection_without_a_model_gets_one_and_encodes_as_its_decoder_is_meant(tmp_path, digits):
    model = ITQ(16, random_state=0).fit(digits).fit_decoder(digits, mu=0.02, n_iter=2)
    with Collection.create(tmp_path / "c", n_bits=8, n_features=64, vectors="float32") as collection:
        collection.add(digits[:300], codes=np.zeros((300, 1), dtype=np.uint8))
        collection.retrain(model)
        state = collection.manifest
        assert (state.n_bits, state.coding, state.mu) == (16, "optimal", 0.02)
        wanted = model.encode(digits[:300].astype(np.float32), coding="optimal", mu=0.02)
        assert np.array_equal(collection.codes(), wanted)
        collection.add(digits[300:310])
        more = model.encode(digits[300:310], coding="optimal", mu=0.02)
        assert np.array_equal(collection.codes()[300:], more)


def test_statistics_count_what_is_there_and_tell_when_retraining_is_due(tmp_path, digits):
    model = ITQ(16, random_state=0).fit(digits)
    with Collection.create(tmp_path / "c", model, vectors="float32") as collection:
        collection.add(digits[:900])
        stats = collection.stats()
        assert (stats.items, stats.deleted, stats.added) == (900, 0, 900)
        assert stats.bytes["vectors"] == 900 * 64 * 4
        assert not stats.retrain
        assert collection.check() == []
        collection.add(16 - digits)
        collection.delete([0])
        stats = collection.stats()
        assert stats.deleted == 1
        assert stats.retrain
        assert any("error" in reason for reason in stats.reasons)
        collection.retrain()
        assert not collection.stats().retrain
        assert "nothing has been added since" in collection.stats().reasons[0]
