"""The life of a collection: creation, other readers, retraining, statistics."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.errors import FileExists, InvalidInput

# ---- creating and opening


def test_creating_does_not_replace_what_is_there_unless_told(tmp_path, model, digits):
    path = tmp_path / "c"
    with Collection.create(path, model) as collection:
        collection.add(digits[:10])
    with pytest.raises(FileExists, match="exists"):
        Collection.create(path, model)
    assert len(Collection.open(path)) == 10
    with Collection.create(path, bits=8, overwrite=True) as collection:
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
        ({}, "give rows, a fitted model, or bits"),
        ({"bits": 0}, "bits=0 is invalid"),
        ({"source": ITQ(8)}, "is not fitted"),
        ({"source": model, "bits": 8}, "the model has 16 bits"),
        ({"source": model, "vectors": "int8"}, "vectors='int8' is invalid"),
        ({"source": model, "coding": "best"}, "coding='best' is invalid"),
        ({"bits": 8, "vectors": "float32"}, "n_features"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            Collection.create(tmp_path / "c", **wrong)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_model_that_is_given_stays_as_it_is_and_may_be_fitted_again(tmp_path, digits, on_disk):
    model, path = ITQ(16, random_state=0).fit(digits), tmp_path / "c" if on_disk else None
    decoder, codes = model.decoder_, model.encode(digits)
    with Collection.create(None, digits, model=model, coding="optimal") as other:
        assert other.state.coding == "optimal"
        other.retrain(model, X=digits)
    assert model.decoder_ is decoder
    with Collection.create(path, model) as collection:
        assert collection.state.coding == "hash"
        model.fit(digits[::-1] ** 2 + np.arange(64))
        collection.add(digits)
        np.testing.assert_array_equal(collection.codes(), codes)


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
        filled.add(digits[:5])
        assert len(reader) == 1205
        assert (reader.search(digits[:5], 1)[0] == 0).all()
        filled.delete(np.arange(5500, 5505))
        filled.compact()
        for found, wanted in zip(reader.search(digits[:5], 10), before, strict=True):
            np.testing.assert_array_equal(found, wanted)
        with pytest.raises(OSError, match="opened with read_only"):
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
    told = mock.Mock()
    new = filled.retrain(progress=told)
    assert told.stage.call_args == mock.call("encoding", 1199)
    last = told.mock_calls.index(mock.call.stage("encoding", 1199))
    assert sum(call.args[0] for call in told.mock_calls[last + 1 :]) == 1199
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
    with pytest.raises(InvalidInput, match="for rows of 10 numbers, but the collection for 64"):
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
    with Collection.create(tmp_path / "c", bits=8, n_features=64, vectors="float32") as collection:
        collection.add(digits[:300], codes=np.zeros((300, 1), dtype=np.uint8))
        collection.retrain(model)
        state = collection.state
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
