"""Codes as FAISS index files: what FAISS reads answers as HammingIndex does."""

from __future__ import annotations

import copy

import faiss
import numpy as np
import pytest

from auxbit import (
    ITQ,
    LSH,
    BinaryAutoencoder,
    BinaryFactorAnalysis,
    HammingIndex,
    SphericalHashing,
    ThresholdedPCA,
)
from auxbit.core.maps import LinearDecoder, Scaling, hamming_distances, unpack
from auxbit.errors import FileExists, FileProblem, InvalidInput, InvalidParameter
from auxbit.export import index_to_faiss, to_faiss
from helpers.every_hasher import every_hasher
from helpers.export_models import digits_rows, doubtful, fitted, on_hyperplanes

LINEAR = [LSH, ThresholdedPCA, ITQ, BinaryAutoencoder, BinaryFactorAnalysis]
every_linear = pytest.mark.parametrize("hasher", LINEAR, ids=lambda cls: cls.__name__)
IDS = np.random.default_rng(0).permutation(10**6)[:600]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def base_and_queries():
    return digits_rows()[:600], digits_rows()[600:900]


def check_hamming(distances, ids, codes, all_ids, query_codes, k):
    """The k nearest, of which some that are equally near may have been left out."""
    true = hamming_distances(query_codes, codes)
    assert np.array_equal(distances, np.sort(true, axis=1)[:, :k])
    places = np.argsort(all_ids)[np.searchsorted(np.sort(all_ids), ids)]
    assert np.array_equal(np.take_along_axis(true, places, axis=1), distances)
    assert all(len(set(row)) == k for row in ids)


# ---- lsh


@every_linear
@pytest.mark.parametrize("n_bits", [12, 32])
def test_faiss_answers_float_queries_with_the_distances_of_hamming_index(hasher, n_bits, tmp_path):
    base, queries = base_and_queries()
    model = fitted(hasher, n_bits)
    codes, query_codes = model.encode(base), model.encode(queries)
    assert to_faiss(tmp_path / "i.faiss", model, codes, IDS) == "lsh"
    index = faiss.read_index(str(tmp_path / "i.faiss"))
    distances, ids = index.search(queries, 9)
    check_hamming(distances, ids, codes, IDS, query_codes, 9)
    ours = HammingIndex(n_bits, n_jobs=1)
    ours.add(codes, IDS)
    assert np.array_equal(distances, ours.search(query_codes, 9)[0])


@pytest.mark.parametrize("hasher", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_faiss_normalises_queries_where_the_hasher_does(hasher, tmp_path):
    base, queries = base_and_queries()
    model = fitted(hasher, normalize=True)
    to_faiss(tmp_path / "i.faiss", model, model.encode(base))
    index = faiss.read_index(str(tmp_path / "i.faiss"))
    queries = np.vstack([queries * 1000, queries[:9] / 1000, np.zeros((1, 64), dtype=np.float32)])
    assert np.array_equal(index.sa_encode(queries), model.encode(queries))
    distances, ids = index.search(queries, 5)
    check_hamming(distances, ids, model.encode(base), np.arange(600), model.encode(queries), 5)


@pytest.mark.parametrize("mean", [0.0, 5.0, 1000.0, 1e6])
def test_bits_by_faiss_differ_from_encode_only_where_scores_are_too_near_0_for_float32(mean, tmp_path):
    X = (np.random.default_rng(0).normal(size=(300, 20)) + mean).astype(np.float32)
    model = ITQ(12, random_state=0, n_jobs=1).fit(X)
    to_faiss(tmp_path / "i.faiss", model, model.encode(X))
    index = faiss.read_index(str(tmp_path / "i.faiss"))
    assert np.array_equal(index.sa_encode(X), model.encode(X))
    hard = on_hyperplanes(model, X.astype(np.float64))
    differ = unpack(index.sa_encode(hard) ^ model.encode(hard), 12).astype(bool)
    assert not (differ & ~doubtful(model, hard)).any()
    assert differ.any() or mean == 1e6  # there float32 has no rows so near to hyperplanes


def test_bits_at_exactly_0_are_1_in_faiss_too(tmp_path):
    X = np.random.default_rng(0).integers(-9, 9, (50, 6)).astype(np.float32)
    X = np.vstack([X, -X])  # whose mean is 0
    model = ThresholdedPCA(6, random_state=0, n_jobs=1).fit(X)
    to_faiss(tmp_path / "i.faiss", model, model.encode(X))
    zero = np.zeros((1, 6), dtype=np.float32)
    assert model.encode(zero).item() == 0b111111
    assert np.array_equal(faiss.read_index(str(tmp_path / "i.faiss")).sa_encode(zero), model.encode(zero))


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_the_units_of_rows_do_not_matter_to_faiss(unit, tmp_path):
    base = (digits_rows()[:300].astype(np.float64) * unit).astype(np.float32)
    model = ITQ(12, random_state=0, n_jobs=1).fit(base)
    to_faiss(tmp_path / "i.faiss", model, model.encode(base))
    assert np.array_equal(faiss.read_index(str(tmp_path / "i.faiss")).sa_encode(base), model.encode(base))


# ---- binary


@every_hasher
def test_the_codes_of_every_hasher_can_be_searched_by_faiss(hasher, tmp_path):
    base, queries = base_and_queries()
    model = fitted(hasher)
    codes, query_codes = model.encode(base), model.encode(queries)
    to_faiss(tmp_path / "i.faiss", model, codes, IDS, form="binary")
    distances, ids = faiss.read_index_binary(str(tmp_path / "i.faiss")).search(query_codes, 9)
    check_hamming(distances, ids, codes, IDS, query_codes, 9)


def test_codes_without_a_model_have_the_binary_form_only(tmp_path):
    codes = np.random.default_rng(0).integers(0, 256, (20, 3)).astype(np.uint8)
    assert to_faiss(tmp_path / "i.faiss", None, codes) == "binary"
    index = faiss.read_index_binary(str(tmp_path / "i.faiss"))
    assert np.array_equal(index.reconstruct_n(0, 20), codes)
    for form in ("lsh", "additive"):
        with pytest.raises(InvalidInput, match="needs a model"):
            to_faiss(tmp_path / "i.faiss", None, codes, form=form)
    with pytest.raises(InvalidInput, match="must be packed codes"):
        to_faiss(tmp_path / "i.faiss", None, codes[0])


# ---- additive


@pytest.mark.parametrize("n_bits", [12, 16])
@pytest.mark.parametrize("decoder", ["linear", "tables"])
@pytest.mark.parametrize("normalize", [False, True])
def test_faiss_ranks_by_the_decoder_as_search_asymmetric_does(n_bits, decoder, normalize, tmp_path):
    base, queries = base_and_queries()
    model = fitted(BinaryAutoencoder, n_bits, decoder=decoder, normalize=normalize)
    codes = model.encode(base, coding="optimal")
    assert to_faiss(tmp_path / "i.faiss", model, codes, IDS, form="additive") == "additive"
    index = faiss.read_index(str(tmp_path / "i.faiss"))
    distances, ids = index.search(queries, 9)
    ours = HammingIndex(n_bits, decoder=model.decoder_, n_jobs=1)
    ours.add(codes, IDS)
    true, _ = ours.search_asymmetric(queries, 9)  # ids of equal codes may be others
    tolerance = 1e-5 * float(true.max())
    assert np.abs(distances - true).max() < tolerance
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True) if normalize else queries
    places = np.argsort(IDS)[np.searchsorted(np.sort(IDS), ids)]
    by_hand = ((unit[:, None] - model.decode(codes)[places]) ** 2).sum(axis=2)
    by_hand += model.decoder_.expected(codes)[places]
    assert np.abs(by_hand - distances).max() < tolerance
    assert all(len(set(row)) == 9 for row in ids)


@pytest.mark.parametrize("decoder", ["linear", "tables"])
def test_digits_of_a_large_mean_that_float32_lacks_are_in_the_first_table(decoder, tmp_path):
    X = (np.random.default_rng(0).normal(size=(900, 16)) + 1e7).astype(np.float32)
    model = BinaryAutoencoder(16, random_state=0, n_jobs=1).fit(X)
    model.fit_decoder(X, decoder=decoder)
    codes = model.encode(X, coding="optimal")
    to_faiss(tmp_path / "i.faiss", model, codes, form="additive")
    found, _ = faiss.read_index(str(tmp_path / "i.faiss")).search(X[:200], 10)
    ours = HammingIndex(16, decoder=model.decoder_, n_jobs=1)
    ours.add(codes)
    true, _ = ours.search_asymmetric(X[:200], 10)
    assert np.abs(found - true).max() < 1e-5 * float(true.max())


@pytest.mark.parametrize("decoder", ["linear", "tables"])
def test_rows_that_faiss_adds_by_itself_are_coded_well(decoder, tmp_path):
    base, queries = base_and_queries()
    model = fitted(BinaryAutoencoder, 12, decoder=decoder)
    to_faiss(tmp_path / "i.faiss", model, model.encode(base), form="additive")
    index = faiss.read_index(str(tmp_path / "i.faiss"))
    index.add(queries)
    error = ((index.reconstruct_n(600, 300) - queries) ** 2).sum(axis=1).mean()
    best = ((model.decode(model.encode(queries, coding="optimal")) - queries) ** 2).sum(axis=1).mean()
    assert error < 1.01 * best


def test_reconstructions_by_faiss_are_the_decoders(tmp_path):
    base, _ = base_and_queries()
    model = fitted(ITQ)
    to_faiss(tmp_path / "i.faiss", model, model.encode(base), form="additive")
    rows = faiss.read_index(str(tmp_path / "i.faiss")).reconstruct_n(0, 600)
    assert np.allclose(rows, model.decode(model.encode(base)), atol=1e-4)


# ---- ids, sizes, files


@pytest.mark.parametrize("form", ["lsh", "binary", "additive"])
def test_ids_are_wrapped_only_where_they_are_not_the_positions(form, tmp_path):
    base, queries = base_and_queries()
    model, path = fitted(ITQ), str(tmp_path / "i.faiss")
    read = faiss.read_index_binary if form == "binary" else faiss.read_index
    wrapper = faiss.IndexBinaryIDMap2 if form == "binary" else faiss.IndexIDMap2
    asked = model.encode(queries) if form == "binary" else queries
    to_faiss(path, model, model.encode(base), np.arange(600), form=form)
    plain = read(path)
    assert not isinstance(plain, wrapper)
    to_faiss(path, model, model.encode(base), np.arange(600) * 5 + 1, form=form)
    wrapped = read(path)
    assert isinstance(wrapped, wrapper)
    assert plain.ntotal == wrapped.ntotal == 600
    assert np.array_equal(wrapped.search(asked, 4)[1], plain.search(asked, 4)[1] * 5 + 1)
    assert np.array_equal(wrapped.reconstruct(16), plain.reconstruct(3))
    assert wrapped.remove_ids(np.array([1, 6])) == 2


@pytest.mark.parametrize("form", ["lsh", "binary", "additive"])
@pytest.mark.parametrize("ids", [None, []])
def test_an_index_without_codes_can_be_read_and_filled(form, ids, tmp_path):
    model = fitted(ITQ)
    to_faiss(tmp_path / "i.faiss", model, np.zeros((0, 2), dtype=np.uint8), ids, form=form)
    index = (faiss.read_index_binary if form == "binary" else faiss.read_index)(str(tmp_path / "i.faiss"))
    rows = digits_rows()[:5]
    rows = model.encode(rows) if form == "binary" else rows
    assert index.ntotal == 0
    assert (index.search(rows, 2)[1] == -1).all()
    index.add(rows)
    assert np.array_equal(index.search(rows, 1)[0][:, 0], index.search(rows, 5)[0].min(axis=1))


@pytest.mark.parametrize("form", ["auto", "binary", "additive"])
def test_an_index_of_ours_is_exported_with_its_ids(form, tmp_path):
    base, queries = base_and_queries()
    model = fitted(SphericalHashing)
    index = HammingIndex(13, decoder=model.decoder_, n_jobs=1)
    index.add(model.encode(base), IDS)
    index.remove(IDS[:100])
    assert index_to_faiss(tmp_path / "i.faiss", index, form=form) == ("binary" if form == "auto" else form)
    if form == "additive":
        distances, _ = faiss.read_index(str(tmp_path / "i.faiss")).search(queries, 5)
        assert np.allclose(distances, index.search_asymmetric(queries, 5)[0], rtol=1e-4)
        return
    distances, ids = faiss.read_index_binary(str(tmp_path / "i.faiss")).search(model.encode(queries), 5)
    check_hamming(distances, ids, model.encode(base)[100:], IDS[100:], model.encode(queries), 5)


@pytest.mark.parametrize("n_bits", [1536, 8191, 8192])
def test_long_codes_are_exported(n_bits, tmp_path):
    codes = np.random.default_rng(0).integers(0, 256, (300, -(-n_bits // 8)), dtype=np.uint8)
    codes[:, -1] &= 0x7F
    index = HammingIndex(n_bits, n_jobs=1)
    index.add(codes, IDS[:300])
    index_to_faiss(tmp_path / "i.faiss", index)
    distances, ids = faiss.read_index_binary(str(tmp_path / "i.faiss")).search(codes[:9], 5)
    check_hamming(distances, ids, codes, IDS[:300], codes[:9], 5)


def test_what_an_index_cannot_be_exported_as_is_refused(tmp_path):
    index = HammingIndex(13, n_jobs=1)
    with pytest.raises(InvalidInput, match="needs a decoder"):
        index_to_faiss(tmp_path / "i.faiss", index, form="additive")
    with pytest.raises(InvalidInput, match="needs a hash function"):
        index_to_faiss(tmp_path / "i.faiss", index, form="lsh")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_faiss_index_is_refused(tmp_path):
    base, path = digits_rows()[:9], tmp_path / "i.faiss"
    model, codes = fitted(ITQ), fitted(ITQ).encode(digits_rows()[:9])
    with pytest.raises(InvalidInput, match="not fitted"):
        to_faiss(path, ITQ(), codes)
    with pytest.raises(InvalidInput, match="packed codes of 13 bits"):
        to_faiss(path, model, codes[:, :1])
    with pytest.raises(InvalidInput, match="beyond the first 13"):
        to_faiss(path, model, codes | 0x80)
    with pytest.raises(InvalidInput, match="one integer per code"):
        to_faiss(path, model, codes, [1, 2])
    with pytest.raises(InvalidInput, match="ids must differ, but 3 occurs"):
        to_faiss(path, model, codes, [0, 1, 2, 3, 4, 5, 6, 7, 3])
    with pytest.raises(InvalidInput, match="got -1"):
        to_faiss(path, model, codes, [0, 1, 2, 3, 4, 5, 6, 7, -1])
    with pytest.raises(InvalidParameter, match="one of auto, lsh, binary, additive"):
        to_faiss(path, model, codes, form="flat")
    spheres = fitted(SphericalHashing)
    with pytest.raises(InvalidInput, match="SphericalHashing's is not: use binary"):
        to_faiss(path, spheres, spheres.encode(base), form="lsh")
    assert list(tmp_path.iterdir()) == []


def test_numbers_too_large_or_too_small_for_float32_are_refused(tmp_path):
    model, codes = copy.deepcopy(fitted(ITQ)), fitted(ITQ).encode(digits_rows()[:9])
    model.decoder_ = model.decoder_.in_units_of(Scaling(np.zeros(64), 1e60))
    model.scaling_ = Scaling(1e60 * model.scaling_.mean, 1e60 * model.scaling_.scale)
    for form in ("lsh", "additive"):
        with pytest.raises(InvalidInput, match="too large"):
            to_faiss(tmp_path / "i.faiss", model, codes, form=form)
    index = HammingIndex(8, n_jobs=1)
    index.add(np.array([[255]], dtype=np.uint8))
    for size, why in ((1e25, "too large"), (1e-24, "too small")):
        with index.changing() as store:
            store.decoder = LinearDecoder(np.full((3, 8), size), np.zeros(3))
        with pytest.raises(InvalidInput, match=f"reconstructions are {why} to be squared in float32"):
            index_to_faiss(tmp_path / "i.faiss", index, form="additive")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stays_unless_it_may_be_overwritten(tmp_path, monkeypatch):
    model, path = fitted(ITQ), tmp_path / "i.faiss"
    codes = model.encode(digits_rows()[:9])
    path.write_bytes(b"old")
    with pytest.raises(FileExists, match="exists"):
        to_faiss(path, model, codes, overwrite=False)
    with pytest.raises(FileExists, match="exists"):
        index_to_faiss(path, HammingIndex(13, n_jobs=1), overwrite=False)
    with pytest.raises(FileProblem, match="is a folder"):
        to_faiss(tmp_path, model, codes)

    def full(index, name):
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(faiss, "write_index", full)
    with pytest.raises(FileProblem, match=r"i.faiss cannot be written: No space"):
        to_faiss(path, model, codes)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    to_faiss(path, model, codes)
    assert faiss.read_index(str(path)).ntotal == 9


def test_a_model_for_inner_products_has_the_binary_form_only(tmp_path):
    base, queries = base_and_queries()
    model = fitted(ITQ, lift=True)
    assert to_faiss(tmp_path / "f", model, model.encode(base)) == "binary"
    index = HammingIndex(13)
    index.add(model.encode(base))
    asked = model.encode(queries, queries=True)
    distances, _ = faiss.read_index_binary(str(tmp_path / "f")).search(asked, 10)
    np.testing.assert_array_equal(distances, index.search(asked, 10)[0])
    for form in ("lsh", "additive"):
        with pytest.raises(InvalidInput, match=rf"the {form} form treats.*evaluate\.lift_rows"):
            to_faiss(tmp_path / "g", model, model.encode(base), form=form)
    with pytest.raises(InvalidInput, match=r"evaluate\.lift_rows"):
        index_to_faiss(tmp_path / "g", HammingIndex(model=model), form="additive")
    assert not (tmp_path / "g").exists()
