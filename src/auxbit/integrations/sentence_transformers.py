"""sentence-transformers' quantize_embeddings and semantic search, with learned codes instead of signs.

    from auxbit.integrations.sentence_transformers import *

    model = learn_codes(corpus_embeddings, n_bits=128)
    codes = quantize_embeddings(corpus_embeddings, "ubinary", model=model)
    results, seconds = semantic_search_auxbit(query_embeddings, codes, top_k=10, model=model)

Embeddings are arrays or tensors of torch. Neither torch nor sentence-transformers needs to be installed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Packed, check_integer
from auxbit.core.maps import bytes_per_code
from auxbit.core.progress import Silent
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.hashers.base import Hasher
from auxbit.hashers.files import model_for
from auxbit.index.hamming import HammingIndex
from auxbit.integrations.documents import similarity

__all__ = ["learn_codes", "quantize_embeddings", "semantic_search_auxbit"]

PRECISIONS = ("ubinary", "binary")

Results = list[list[dict[str, Any]]]


def learn_codes(
    embeddings: Any, n_bits: int | None = None, *, coding: str = "optimal", metric: str = "cosine",
    random_state: int = 0, n_jobs: int | None = None,
) -> Hasher:  # fmt: skip
    """Fit a model that turns embeddings, (n, D), into codes.

    n_bits : by default about half as many as dimensions, 16 to 256; sign bits would take one per dimension.
    coding : "optimal", codes of the highest recall, which only semantic_search_auxbit can search; or "hash",
        codes for any engine that compares bits, such as semantic_search_faiss.
    """
    model, _ = model_for(
        None, _array(embeddings), "embeddings", are_codes=False, progress=Silent(), metric=metric,
        coding=coding, mu=None, decoder=None, lists=None, refine_bits=0, method=None, bits=n_bits,
        n_features=None, random_state=random_state, n_jobs=n_jobs,
    )  # fmt: skip
    assert model is not None
    return model


def quantize_embeddings(embeddings: Any, precision: str = "ubinary", *, model: Hasher) -> Any:
    """Packed codes of embeddings, (n, D) → (n, ceil(n_bits/8)); for a list of matrices, a list of these.

    precision : "ubinary", uint8; or "binary", the same minus 128 as int8, as in sentence-transformers.
    """
    _check_precision(precision)
    if isinstance(embeddings, list) and embeddings and getattr(embeddings[0], "ndim", 1) == 2:
        return [quantize_embeddings(matrix, precision, model=model) for matrix in embeddings]
    rows = _array(embeddings)
    if rows.dtype.kind != "f":
        raise InvalidInput(f"embeddings to quantize must be floats; got {rows.dtype}.")
    codes = model.encode(np.atleast_2d(rows), coding=model.decoder_.coding, mu=model.decoder_.mu or 0.0)
    codes = codes if rows.ndim == 2 else codes[0]
    return codes if precision == "ubinary" else (codes ^ 0x80).view(np.int8)


def semantic_search_auxbit(
    query_embeddings: Any, corpus_embeddings: Any = None, corpus_index: HammingIndex | None = None,
    corpus_precision: str = "ubinary", top_k: int = 10, *, model: Hasher, rescore: bool = True,
    rescore_multiplier: int | None = None, output_index: bool = False, n_jobs: int | None = None,
) -> tuple[Results, float] | tuple[Results, float, HammingIndex]:  # fmt: skip
    """The nearest codes to each query: [[{"corpus_id", "score"}, …], …], and the seconds of the search.

    query_embeddings : (q, D) floats, which are compared as they are; or their codes.
    corpus_embeddings : codes of quantize_embeddings, whose precision is `corpus_precision`; or corpus_index :
        the HammingIndex that an earlier call with output_index=True returned.
    rescore : if queries are floats, rank by the vectors that the decoder makes of codes: scores are cosines,
        larger is nearer. If False, or if queries are codes, scores are Hamming distances.
    rescore_multiplier : rescore this many per result, the nearest by Hamming distance; None: all codes.
    """
    if (corpus_embeddings is None) == (corpus_index is None):
        raise InvalidInput("give either corpus_embeddings or corpus_index.")
    _check_precision(corpus_precision)
    check_integer("top_k", top_k, 1, None, "Try top_k=10.")
    if corpus_index is None:
        corpus_index = HammingIndex(model=model, n_jobs=n_jobs)
        corpus_index.add(_codes(corpus_embeddings, corpus_precision, model, "corpus_embeddings"))
    queries = _array(query_embeddings)
    queries = queries[None] if queries.ndim == 1 else queries
    start = time.perf_counter()
    if queries.dtype.kind == "f" and rescore:
        how: dict[str, Any] = {}
        if rescore_multiplier is not None:
            shortlist = top_k * check_integer("rescore_multiplier", rescore_multiplier, 1)
            how = {"query_codes": model.encode(queries, queries=True), "shortlist": shortlist}
        distances, found = corpus_index.search_asymmetric(queries, top_k, **how)
        scores = similarity(distances.astype(np.float64), model.scaling_.metric)
    else:
        floats = queries.dtype.kind == "f"
        packed = (
            model.encode(queries, queries=True)
            if floats
            else _codes(queries, None, model, "query_embeddings")
        )
        scores, found = corpus_index.search(packed, top_k)
    seconds = time.perf_counter() - start
    results = [
        [{"corpus_id": int(id_), "score": float(score)} for id_, score in zip(*row) if id_ >= 0]
        for row in zip(found, scores)
    ]
    return (results, seconds, corpus_index) if output_index else (results, seconds)


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        remedy = "sentence-transformers' own functions have the others."
        raise InvalidParameter("precision", precision, " or ".join(map(repr, PRECISIONS)), remedy)


def _array(embeddings: Any) -> Array:
    """Embeddings as an array: a tensor of torch, also in half precision, or a list of these."""
    if isinstance(embeddings, list | tuple) and embeddings and hasattr(embeddings[0], "detach"):
        return np.stack([_array(each) for each in embeddings])
    if hasattr(embeddings, "detach"):
        tensor = embeddings.detach().cpu()
        embeddings = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return np.asarray(embeddings)


def _codes(given: Any, precision: str | None, model: Hasher, name: str) -> Packed:
    """Codes as they are packed here. precision : None: by their type."""
    codes = _array(given)
    precision = ("binary" if codes.dtype == np.int8 else "ubinary") if precision is None else precision
    wanted, width = (
        np.dtype(np.int8 if precision == "binary" else np.uint8),
        bytes_per_code(model.decoder_.n_bits),
    )
    if codes.dtype != wanted or codes.ndim != 2 or codes.shape[1] != width:
        raise InvalidInput(
            f"{name} must be codes of the model, (n, {width}) {wanted}; got shape {codes.shape} of "
            f"{codes.dtype}. Make them by quantize_embeddings(embeddings, {precision!r}, model=model)."
        )
    packed: Packed = codes.view(np.uint8)
    return packed ^ np.uint8(0x80) if precision == "binary" else packed
