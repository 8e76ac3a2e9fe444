"""Codes in place of sentence-transformers' sign bits, beside the real functions if these are installed."""

from __future__ import annotations

import numpy as np
import pytest

from auxbit import HammingIndex
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.evaluate import ground_truth
from auxbit.integrations.sentence_transformers import learn_codes, quantize_embeddings, semantic_search_auxbit


@pytest.fixture(scope="module")
def embeddings():
    """Rows of 32 numbers on a curved surface, divided by their norms, and queries like them."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(1100, 6))
    X = np.tanh(hidden @ rng.normal(size=(6, 32))) + 0.1 * rng.normal(size=(1100, 32))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    return X[:1000], X[1000:]


@pytest.fixture(scope="module")
def optimal(embeddings):
    return learn_codes(embeddings[0], 32)


@pytest.fixture(scope="module")
def hashing(embeddings):
    return learn_codes(embeddings[0], 32, coding="hash")


def recall(results, truth):
    found = [[each["corpus_id"] for each in row] for row in results]
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth.tolist())])


def test_learned_codes_find_more_than_signs_of_as_many_bits(embeddings, optimal, hashing):
    corpus, queries = embeddings
    truth = ground_truth(corpus, queries, 10, metric="cosine")
    found = {}
    for name, model in (("optimal", optimal), ("hash", hashing)):
        codes = quantize_embeddings(corpus, "ubinary", model=model)
        assert (codes.shape, codes.dtype) == ((1000, 4), np.uint8)
        results, seconds = semantic_search_auxbit(queries, codes, model=model)
        assert seconds > 0
        assert [len(row) for row in results] == [10] * 100
        found[name] = recall(results, truth)
    signs, asked = (np.packbits(each > 0, axis=1, bitorder="little") for each in embeddings)
    index = HammingIndex(32)
    index.add(signs)
    by_signs = recall([[{"corpus_id": id_} for id_ in row] for row in index.search(asked, 10)[1]], truth)
    assert found["optimal"] > found["hash"] > by_signs


def test_scores_are_about_cosines_from_the_largest_down(embeddings, optimal):
    corpus, queries = embeddings
    codes = quantize_embeddings(corpus, model=optimal)
    results, _ = semantic_search_auxbit(queries, codes, model=optimal)
    for x, row in zip(queries, results):
        scores = [each["score"] for each in row]
        assert scores == sorted(scores, reverse=True)
        assert np.allclose(scores, corpus[[each["corpus_id"] for each in row]] @ x, atol=0.15)


def test_binary_is_ubinary_minus_128_and_finds_the_same(embeddings, hashing):
    corpus, queries = embeddings
    ubinary, binary = (quantize_embeddings(corpus, each, model=hashing) for each in ("ubinary", "binary"))
    assert np.array_equal(binary, (ubinary.astype(np.int16) - 128).astype(np.int8))
    results = [
        semantic_search_auxbit(queries, codes, None, precision, model=hashing)[0]
        for codes, precision in ((ubinary, "ubinary"), (binary, "binary"))
    ]
    assert results[0] == results[1]


def test_queries_that_are_codes_and_rescore_false_give_hamming_distances(embeddings, hashing):
    queries = embeddings[1]
    codes, asked = (quantize_embeddings(each, model=hashing) for each in embeddings)
    plain, _ = semantic_search_auxbit(asked, codes, model=hashing)
    assert plain == semantic_search_auxbit(queries, codes, rescore=False, model=hashing)[0]
    first = plain[0][0]
    assert first["score"] == np.unpackbits(codes[first["corpus_id"]] ^ asked[0]).sum()


def test_a_shortlist_is_rescored_and_an_index_is_used_again(embeddings, hashing):
    corpus, queries = embeddings
    codes = quantize_embeddings(corpus, model=hashing)
    how = {"model": hashing, "top_k": 5}
    every, _, index = semantic_search_auxbit(queries, codes, output_index=True, **how)
    assert len(index) == 1000
    assert semantic_search_auxbit(queries, corpus_index=index, **how)[0] == every
    whole, _ = semantic_search_auxbit(queries, corpus_index=index, rescore_multiplier=200, **how)
    assert whole == every
    few, _ = semantic_search_auxbit(queries, corpus_index=index, rescore_multiplier=2, **how)
    assert few != every
    assert [len(row) for row in semantic_search_auxbit(queries[0], codes[:3], **how)[0]] == [3]


def test_one_embedding_and_lists_of_matrices_are_quantized(embeddings, hashing):
    corpus, _ = embeddings
    codes = quantize_embeddings(corpus[:5], model=hashing)
    assert np.array_equal(quantize_embeddings(corpus[0], model=hashing), codes[0])
    parts = quantize_embeddings([corpus[:2], corpus[2:5]], model=hashing)
    assert np.array_equal(np.concatenate(parts), codes)


def test_bad_input_is_named(embeddings, optimal, hashing):
    corpus, queries = embeddings
    codes = quantize_embeddings(corpus, model=optimal)
    with pytest.raises(InvalidParameter, match=r"precision='int8' is invalid: .* sentence-transformers' own"):
        quantize_embeddings(corpus, "int8", model=optimal)
    with pytest.raises(InvalidInput, match="must be floats; got uint8"):
        quantize_embeddings(codes, model=optimal)
    with pytest.raises(InvalidInput, match="either corpus_embeddings or corpus_index"):
        semantic_search_auxbit(queries, model=optimal)
    with pytest.raises(
        InvalidInput, match=r"must be codes of the model, \(n, 4\) uint8; got shape \(1000, 32\)"
    ):
        semantic_search_auxbit(queries, corpus, model=optimal)
    with pytest.raises(InvalidInput, match="Hamming"):
        semantic_search_auxbit(queries, codes, rescore=False, model=optimal)
    with pytest.raises(InvalidParameter, match="top_k=0"):
        semantic_search_auxbit(queries, codes, top_k=0, model=optimal)


# ---- beside the real functions


@pytest.fixture(scope="module")
def real():
    reason = "sentence-transformers is not installed: torch is too large for the tests' extra"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports
            return pytest.importorskip("sentence_transformers.util.quantization", reason=reason)


def test_codes_have_the_types_and_shapes_of_the_real_ones(real, embeddings, hashing):
    corpus, _ = embeddings
    for precision in ("ubinary", "binary"):
        theirs = real.quantize_embeddings(corpus, precision)
        ours = quantize_embeddings(corpus, precision, model=hashing)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def test_the_real_search_finds_the_same_in_hash_codes(real, embeddings, hashing):
    codes, asked = (quantize_embeddings(each, model=hashing) for each in embeddings)
    theirs, seconds = real.semantic_search_faiss(
        asked, corpus_embeddings=codes, corpus_precision="ubinary", top_k=10, rescore=False
    )
    ours, ours_seconds = semantic_search_auxbit(asked, codes, top_k=10, model=hashing)
    assert [[each["score"] for each in row] for row in ours] == [
        [each["score"] for each in row] for row in theirs
    ]
    assert theirs[0][0].keys() == ours[0][0].keys()
    assert type(seconds) is type(ours_seconds) is float


def test_codes_find_more_than_the_real_search_of_signs(real, embeddings, optimal):
    corpus, queries = embeddings
    truth = ground_truth(corpus, queries, 10, metric="cosine")
    signs = real.quantize_embeddings(corpus, "ubinary")
    theirs, _ = real.semantic_search_faiss(
        queries, corpus_embeddings=signs, corpus_precision="ubinary", top_k=10
    )
    codes = quantize_embeddings(corpus, "ubinary", model=optimal)
    ours, _ = semantic_search_auxbit(queries, codes, top_k=10, model=optimal)
    assert codes.nbytes == signs.nbytes
    assert recall(ours, truth) > recall(theirs, truth)


def test_tensors_of_torch_are_taken(real, embeddings, hashing):
    import torch

    corpus, _ = embeddings
    codes = quantize_embeddings(corpus[:9], model=hashing)
    assert np.array_equal(quantize_embeddings(torch.from_numpy(corpus[:9]), model=hashing), codes)
    assert np.array_equal(quantize_embeddings(list(torch.from_numpy(corpus[:9])), model=hashing), codes)
    halves = torch.from_numpy(corpus[:9]).bfloat16().requires_grad_()
    assert quantize_embeddings(halves, model=hashing).shape == (9, 4)
