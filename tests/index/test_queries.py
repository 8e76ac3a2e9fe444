"""Queries in files are searched as arrays are, by the same rules as those of a collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auxbit
from auxbit import Collection, HammingIndex
from auxbit.errors import InvalidInput
from auxbit.index.queries import search_files


def test_files_are_searched_as_arrays_are(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(digits[300:]))
    queries = model.encode(digits[:300])
    for options, wanted in (
        ({"k": 3}, index.search(queries, 3)),
        ({"radius": 2}, index.search_radius(queries, 2)),
        ({"k": 3, "mode": "asymmetric"}, index.search_asymmetric(digits[:300], 3)),
    ):
        found = search_files(model, "base.npy", "queries.npy", **options)
        assert (found.about["n_base"], found.about["queries"]) == (1497, 300)
        for name, array in zip(("ids", "distances"), reversed(wanted[-2:])):
            np.testing.assert_array_equal(getattr(found, name), array)
    with pytest.raises(InvalidInput, match="optimal codes, chosen for the decoder alone"):
        search_files(model, "base.npy", "queries.npy", coding="optimal", mode="hamming")


def test_files_are_searched_as_a_collection_of_them_is(folder: Path, digits: Any) -> None:
    model = auxbit.ITQ(16, random_state=0).fit(digits[300:])
    model.fit_decoder(digits[300:], lists=8)
    collection = Collection.create(None, "base.npy", model=model, lists=None)
    wanted = collection.search("queries.npy", k=40)
    found = search_files(model, "base.npy", "queries.npy", 40)
    assert (found.ids >= 0).all()
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.distances, wanted.distances)
    everything = search_files(model, "base.npy", "queries.npy", 5000)
    assert everything.about["retrieved_per_query"] == 1497
    assert (np.sort(everything.ids, axis=1) == np.arange(1497)).all()
    np.save("codes.npy", model.encode(digits[:5], coding="optimal"))
    with pytest.raises(InvalidInput, match="optimal codes, chosen for the decoder alone"):
        search_files(model, "base.npy", "codes.npy")


@pytest.mark.parametrize(("n_rows", "n_codes"), [(40, 3), (3, 40), (1, 3)])
def test_rows_without_codes_of_their_own_are_refused(n_rows: int, n_codes: int, digits: Any) -> None:
    model = auxbit.ITQ(16, random_state=0).fit(digits)
    collection = Collection.create(None, digits, model=model, vectors="float32")
    codes = model.encode(digits[:n_codes])
    with pytest.raises(InvalidInput, match=f"X has {n_rows} rows, but codes has {n_codes}"):
        collection.search(digits[:n_rows], 3, codes=codes, mode="hamming", rerank=True)
    one = collection.search(digits[0], 3, codes=codes[:1], mode="hamming", rerank=True)
    assert one.ids.shape == (3,)


def test_a_shortlist_by_hamming_distance_is_ranked_by_the_decoder(folder: Path, digits: Any) -> None:
    model = auxbit.load("m.safetensors")
    index = HammingIndex(16, decoder=model.decoder_)
    index.add(model.encode(digits[300:]))
    how = {"query_codes": model.encode(digits[:300]), "shortlist": 20}
    found = search_files(model, "base.npy", "queries.npy", 3, mode="asymmetric", shortlist=20)
    np.testing.assert_array_equal(found.ids, index.search_asymmetric(digits[:300], 3, **how)[1])
