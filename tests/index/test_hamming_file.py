from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from auxbit import ITQ, HammingIndex
from auxbit.errors import FileExists, IndexFileError
from auxbit.index.hamming import INDEX
from helpers.index_truth import KINDS, check_search, clustered_codes, random_codes


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_index_answers_as_the_saved_one(kind, tmp_path):
    base, queries = clustered_codes(1000, 44), clustered_codes(9, 44, seed=1)
    index = HammingIndex(44, kind=kind)
    index.add(base, ids=np.random.default_rng(0).permutation(5000)[:1000])
    index.remove(index.ids[10:40])
    index.save(tmp_path / "codes.index")
    loaded = HammingIndex.load(tmp_path / "codes.index", n_jobs=1)
    assert (loaded.kind, loaded.n_bits) == (kind, 44)
    np.testing.assert_array_equal(loaded.ids, index.ids)
    np.testing.assert_array_equal(loaded.codes, index.codes)
    for ours, theirs in zip(index.search(queries, 10), loaded.search(queries, 10), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("kind", "options"), [("hnsw", {"links": 32}), ("ivf", {"lists": None})])
def test_a_file_of_a_former_approximate_index_is_read_as_an_exact_one(kind, options, tmp_path):
    base, queries = clustered_codes(1000, 44), clustered_codes(9, 44, seed=1)
    header = {"n_bits": 44, "kind": kind, "options": options, "next_id": 2000, "decoder": None}
    INDEX.write(tmp_path / "old.index", header, {"codes": base, "ids": np.arange(1000) + 7})
    loaded = HammingIndex.load(tmp_path / "old.index", n_jobs=1)
    assert loaded.kind == "auto"
    check_search(loaded, base, np.arange(1000) + 7, queries, 10)
    loaded.add(base[:1])
    assert loaded.ids[-1] == 2000
    loaded.save(tmp_path / "new.index")
    assert HammingIndex.load(tmp_path / "new.index").kind == "auto"


def test_numbering_continues_where_it_was(tmp_path):
    index = HammingIndex(8)
    index.add(random_codes(5, 8))
    index.remove([3, 4])
    index.save(tmp_path / "i")
    loaded = HammingIndex.load(tmp_path / "i")
    loaded.add(random_codes(1, 8))
    assert loaded.ids.tolist() == [0, 1, 2, 5]


def test_an_empty_index_can_be_saved(tmp_path):
    HammingIndex(20).save(tmp_path / "i")
    loaded = HammingIndex.load(tmp_path / "i")
    assert (len(loaded), loaded.n_bits) == (0, 20)
    loaded.add(random_codes(2, 20))


def test_the_decoder_is_saved_with_the_codes(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 12))
    hasher = ITQ(n_bits=8, random_state=0).fit(X)
    index = HammingIndex(8, decoder=hasher.decoder_)
    index.add(hasher.encode(X))
    index.save(tmp_path / "i")
    loaded = HammingIndex.load(tmp_path / "i")
    for ours, theirs in zip(
        index.search_asymmetric(X[:9], 5), loaded.search_asymmetric(X[:9], 5), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_what_stands_there_is_not_overwritten_unless_allowed(tmp_path):
    index = HammingIndex(8)
    index.save(tmp_path / "i")
    with pytest.raises(FileExists):
        index.save(tmp_path / "i", overwrite=False)
    index.save(tmp_path / "i")
    assert [each.name for each in tmp_path.iterdir()] == ["i"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "i"
    index = HammingIndex(16)
    index.add(random_codes(50, 16), ids=np.arange(50) * 3)
    index.save(path)
    return path.read_bytes()


@given(st.data())
def test_no_change_of_a_byte_and_no_cut_goes_unnoticed(saved, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "i"
    at = data.draw(st.integers(0, len(saved) - 1))
    if data.draw(st.booleans()):
        content = saved[:at]
    else:
        content = saved[:at] + bytes([saved[at] ^ data.draw(st.integers(1, 255))]) + saved[at + 1 :]
    path.write_bytes(content)
    try:
        loaded = HammingIndex.load(path)
    except IndexFileError:
        return
    # only what JSON does not mind can have changed: spaces in the header of safetensors
    np.testing.assert_array_equal(loaded.codes, random_codes(50, 16))
    np.testing.assert_array_equal(loaded.ids, np.arange(50) * 3)


@pytest.mark.parametrize("decoder", ["linear", "tables"])
def test_a_tensor_of_another_shape_or_type_is_refused_whatever_its_checksum(tmp_path, decoder):
    X, path = np.random.default_rng(0).normal(size=(300, 12)), tmp_path / "i"
    hasher = ITQ(n_bits=11, random_state=0).fit(X)
    if decoder == "tables":
        hasher.fit_decoder(X, "tables", n_iter=1)
    index = HammingIndex(11, decoder=hasher.decoder_)
    index.add(hasher.encode(X, coding="hash"), ids=np.arange(300) + 5)
    index.save(path)
    header, tensors = INDEX.read(path)
    changes = [
        lambda tensor: tensor[:-1],
        lambda tensor: tensor[:0],
        lambda tensor: tensor[..., :-1],
        lambda tensor: np.concatenate([tensor, tensor[..., -1:]], axis=-1),
        lambda tensor: tensor[None],
        lambda tensor: tensor.reshape(-1)[: 1 if tensor.ndim == 1 else None],
        lambda tensor: tensor.astype(np.float16),
        lambda tensor: tensor.astype(np.int32),
        lambda tensor: np.zeros(4_000_000, tensor.dtype),
    ]
    for key, tensor in tensors.items():
        for change in changes:
            INDEX.write(path, header, tensors | {key: change(tensor)})
            with pytest.raises(
                IndexFileError, match=r"i is not a complete auxbit index: (codes|ids|decoder..*) is"
            ):
                HammingIndex.load(path)
    INDEX.write(path, header, tensors)
    np.testing.assert_array_equal(HammingIndex.load(path).codes, index.codes)


def test_an_empty_index_of_another_width_is_refused(tmp_path):
    HammingIndex(20).save(tmp_path / "i")
    header, _ = INDEX.read(tmp_path / "i")
    INDEX.write(tmp_path / "i", header, {"codes": np.zeros((0, 2), np.uint8)})
    with pytest.raises(IndexFileError, match=r"codes is \(0, 2\) of uint8, expected \(n=0, M=3\) of uint8"):
        HammingIndex.load(tmp_path / "i")


def test_files_that_are_no_index_are_refused(tmp_path):
    with pytest.raises(IndexFileError, match="does not exist"):
        HammingIndex.load(tmp_path / "nothing")
    with pytest.raises(IndexFileError, match="is a folder; expected an auxbit index"):
        HammingIndex.load(tmp_path)
    (tmp_path / "text").write_text("not an index")
    with pytest.raises(IndexFileError, match="not an auxbit index, or was cut short"):
        HammingIndex.load(tmp_path / "text")
    ITQ(n_bits=2).fit(np.random.default_rng(0).normal(size=(30, 3))).save(tmp_path / "model")
    with pytest.raises(IndexFileError, match=r"not an auxbit index\. Indexes are made by HammingIndex\.save"):
        HammingIndex.load(tmp_path / "model")


def test_an_index_of_a_newer_format_says_so(tmp_path, saved):
    (tmp_path / "i").write_bytes(saved)
    with safe_open(tmp_path / "i", framework="numpy") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    metadata |= {"format_version": "9", "auxbit_version": "7.0"}
    save_file(tensors, tmp_path / "i", metadata)
    with pytest.raises(
        IndexFileError, match=r"format 9, made by auxbit 7\.0.*Upgrade: pip install -U auxbit"
    ):
        HammingIndex.load(tmp_path / "i")
    assert json.loads(metadata["index"])["n_bits"] == 16
