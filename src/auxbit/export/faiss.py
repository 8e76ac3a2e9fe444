"""Codes as FAISS index files, with the hash function or decoder if FAISS can hold it.

lsh       IndexLSH behind the hash function: float queries, Hamming distances. Linear encoders only.
binary    IndexBinaryFlat: queries are codes, which the hasher (or its ONNX model) makes. Any codes.
additive  IndexLocalSearchQuantizer: float queries, ‖x − f(z)‖², as search_asymmetric. f(z) is a sum of one
          vector per byte, which is what FAISS calls an additive quantizer.

Ids other than 0, 1, 2, … are kept by IndexIDMap2 (IndexBinaryIDMap2) around it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.core import files
from auxbit.core.checks import Float32, Ids, Packed, PathLike, check_squares
from auxbit.core.decoders import Decoder, ListDecoder, TableDecoder, byte_contributions
from auxbit.core.maps import (
    VALUES,
    LinearDecoder,
    LinearEncoder,
    bytes_per_code,
    check_packed,
    only_for_decoder,
    refuse_hamming,
)
from auxbit.errors import FileProblem, InvalidInput, InvalidParameter
from auxbit.hashers.base import Hasher
from auxbit.index.codes import check_ids, repeats
from auxbit.index.hamming import HammingIndex, coding_for

FORMS = ("lsh", "binary", "additive")
PERTURBED = 4  # bytes that FAISS changes at random between local searches, its own choice


def to_faiss(
    path: PathLike, model: Hasher | None, codes: npt.ArrayLike, ids: npt.ArrayLike | None = None, *,
    form: str = "auto", coding: str | None = None, mu: float | None = None, overwrite: bool = True,
) -> str:  # fmt: skip
    """Write packed codes, and the model if the form holds it, as a FAISS index file, atomically.

    >>> import faiss
    >>> import numpy as np
    >>> from auxbit import LSH
    >>> from auxbit.export import to_faiss
    >>> X = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    >>> model = LSH(n_bits=32, random_state=0).fit(X)
    >>> to_faiss("items.faiss", model, model.encode(X))
    'lsh'
    >>> distances, ids = faiss.read_index("items.faiss").search(X[:3], 1)
    >>> ids.ravel().tolist()
    [0, 1, 2]

    model : a fitted hasher, or None for codes made elsewhere, which have only the binary form.
    codes : (n, ceil(n_bits/8)) uint8; ids : (n,) distinct integers of 0 and up, by default 0 to n − 1.
    form : "lsh", "binary", "additive", or "auto": "additive" for optimal codes, else "lsh" for linear
    encoders, "binary" for others. coding, mu : how the codes were made, by default as the decoder needs.
    Returns the form. Read the file by faiss.read_index, or faiss.read_index_binary for the binary form.
    """
    files.refuse_existing(Path(path), overwrite=overwrite)
    if model is None:
        form = _check_form(form, "binary")
        if form != "binary":
            raise InvalidInput(f"the {form} form needs a model, and there are only codes. Give a model.")
        packed = np.asarray(codes)
        packed, numbers = _check_codes(packed, ids, 8 * packed.shape[1] if packed.ndim == 2 else 8)
        _write(path, _binary(packed), numbers, overwrite)
        return form
    form = _form_for(form, check_model(model, form), model.decoder_, coding, mu)
    _refuse_lifted(form, model.decoder_)
    packed, numbers = _check_codes(codes, ids, model.decoder_.n_bits)
    content = _lsh(model, packed) if form == "lsh" else _of_codes(form, packed, model.decoder_)
    _write(path, content, numbers, overwrite)
    return form


def check_model(model: Hasher, form: str) -> str:
    """The form that "auto" is for this model; refuses forms that it cannot have."""
    name = type(model).__name__
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {name} is not fitted: call fit before it is exported.")
    linear = isinstance(model.encoder_, LinearEncoder)
    if form == "lsh" and not linear:
        raise InvalidInput(f"the lsh form is for linear hash functions, and {name}'s is not: use binary.")
    return "lsh" if linear and not model.scaling_.lift else "binary"


def index_to_faiss(path: PathLike, index: HammingIndex, *, form: str = "auto", overwrite: bool = True) -> str:
    """Write the codes and ids of a HammingIndex as a FAISS index file, atomically.

    >>> import numpy as np
    >>> from auxbit import HammingIndex
    >>> from auxbit.export import index_to_faiss
    >>> index = HammingIndex(n_bits=16)
    >>> index.add(np.array([[0, 1], [2, 3]], dtype=np.uint8))
    >>> index_to_faiss("index.faiss", index)
    'binary'

    form : "binary", or "additive", with the index's decoder; "auto": the one that suits its codes. Returns
    the form.
    """
    files.refuse_existing(Path(path), overwrite=overwrite)
    form = _form_for(form, "binary", index.decoder, index.coding, index.mu)
    if form == "lsh":
        raise InvalidInput("the lsh form needs a hash function, and an index has none: give model and codes.")
    if form == "additive" and index.decoder is None:
        raise InvalidInput("the additive form needs a decoder, and this index has none: use binary.")
    _refuse_lifted(form, index.decoder)
    with index.reading() as store:  # codes and ids of one moment
        present = store.present()
        codes, ids = store.codes.take(present), store.ids.at(present)
    packed, numbers = _check_codes(codes, ids, index.n_bits)
    _write(path, _of_codes(form, packed, index.decoder), numbers, overwrite)
    return form


def _check_form(form: object, auto: str) -> str:
    if not isinstance(form, str) or form not in ("auto", *FORMS):
        raise InvalidParameter("form", form, f"one of auto, {', '.join(FORMS)}")
    return auto if form == "auto" else form


def _form_for(form: str, usual: str, decoder: Decoder | None, coding: str | None, mu: float | None) -> str:
    """The form for codes of that kind; refuses one whose distances mean nothing for them."""
    if coding == "hash" and form != "additive":
        return _check_form(form, usual)
    coding, mu = coding_for(decoder, coding, mu)
    form = _check_form(form, "additive" if only_for_decoder(coding, mu) else usual)
    if form != "additive":
        refuse_hamming("the source", coding, mu, f"The {form} form compares by them: take additive.")
    return form


def _refuse_lifted(form: str, decoder: Decoder | None) -> None:
    if isinstance(decoder, ListDecoder) and form == "additive":
        raise InvalidInput(
            "codes with lists have no FAISS form. Fit a decoder without lists: fit_decoder(X, lists=None)."
        )
    if form != "binary" and decoder is not None and decoder.lift:
        raise InvalidInput(
            f"the {form} form treats rows and queries alike, but a model with lift=True treats them "
            "differently. Export hash codes in the binary form, and search for encode(X, queries=True); or "
            "fit a model to evaluate.lift_rows(X, M), and search for evaluate.lift_queries(X, M)."
        )


def _check_codes(codes: npt.ArrayLike, ids: npt.ArrayLike | None, n_bits: int) -> tuple[Packed, Ids | None]:
    """The codes, contiguous, and the ids, None if they are 0, 1, 2, …"""
    packed = np.ascontiguousarray(check_packed(codes, n_bits))
    if ids is None:
        return packed, None
    numbers = check_ids(ids, len(packed))
    if np.array_equal(numbers, np.arange(len(numbers))):
        return packed, None
    twice = repeats(numbers)
    if twice.any():
        raise InvalidInput(f"ids must differ, but {numbers[twice][0]} occurs more than once.")
    return packed, np.ascontiguousarray(numbers)


def _write(path: PathLike, index: Any, ids: Ids | None, overwrite: bool) -> None:
    faiss = _faiss()
    binary = isinstance(index, faiss.IndexBinary)
    if ids is not None:
        n, index.ntotal = index.ntotal, 0  # FAISS wraps nothing but empty ones
        wrapped = (faiss.IndexBinaryIDMap2 if binary else faiss.IndexIDMap2)(index)
        wrapped.ntotal = index.ntotal = n
        # the map from ids to rows is left empty: a file has none, its reader makes it
        faiss.copy_array_to_vector(ids, wrapped.id_map)
        index = wrapped
    write = faiss.write_index_binary if binary else faiss.write_index
    with files.replacing(path, overwrite=overwrite) as temporary:
        try:
            write(index, os.fspath(temporary))
        except RuntimeError as error:
            raise FileProblem(f"{path} cannot be written: {error}") from error


# ---- the three forms


def _of_codes(form: str, codes: Packed, decoder: Decoder | None) -> Any:
    return _binary(codes) if form == "binary" else _additive(codes, decoder)


def _binary(codes: Packed) -> Any:
    faiss = _faiss()
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])  # bits past n_bits are 0, which no distance sees
    index.add(codes)
    return index


def _lsh(model: Hasher, codes: Packed) -> Any:
    """Signs of (x − mean)W + scale·bias: those of the scaled scores, by the very weights of the encoder.

    The mean is in the bias, or subtracted first if it is so large that float32 would lose digits.
    """
    faiss = _faiss()
    encoder, scaling = model.encoder_, model.scaling_
    assert isinstance(encoder, LinearEncoder)
    W = encoder.weights.astype(np.float64)
    before, mean = [], scaling.mean
    if scaling.normalize:
        before.append(faiss.NormalizationTransform(len(mean), 2.0))
    bias = encoder.bias.astype(np.float64) * scaling.scale
    if encoder.before(scaling).folded:
        bias = bias - mean @ W
    else:
        rounded = _float32(mean)
        before.append(_centring(rounded))
        bias = bias + (rounded - mean) @ W
    last = faiss.LinearTransform(*W.shape, True)
    faiss.copy_array_to_vector(_float32(W.T).ravel(), last.A)
    faiss.copy_array_to_vector(_float32(bias), last.b)
    last.is_trained = True
    n_bits = W.shape[1]
    return _filled(faiss.IndexLSH(n_bits, n_bits, False, False), codes, [*before, last])


def _additive(codes: Packed, decoder: Decoder | None) -> Any:
    """Tables of 256 vectors per byte, which FAISS calls codebooks; behind each code its norm, in float32."""
    faiss = _faiss()
    if not isinstance(decoder, Decoder):
        raise InvalidInput(f"a {type(decoder).__name__} has no additive form.")
    decoder, n_dims = _about_float32(decoder), len(decoder.b)
    width = bytes_per_code(decoder.n_bits)
    kind = faiss.AdditiveQuantizer.ST_norm_float
    index = faiss.IndexLocalSearchQuantizer(n_dims, width, 8, faiss.METRIC_L2, kind)
    faiss.copy_array_to_vector(decoder.tables.ravel(), index.lsq.codebooks)
    index.lsq.nperts = min(PERTURBED, width)  # more than there are bytes, and FAISS refuses to add
    index.lsq.is_trained = index.is_trained = True
    with np.errstate(over="ignore", invalid="ignore"):
        norms = decoder.squared_norms(codes)
    check_squares(norms, decoder.reach, "reconstructions")
    with_norms = np.hstack([codes, norms.astype("<f4").view(np.uint8).reshape(len(codes), 4)])
    before = [faiss.NormalizationTransform(n_dims, 2.0)] if decoder.normalize else []
    return _filled(index, with_norms, [*before, _centring(_float32(decoder.b))])


def _about_float32(decoder: Decoder) -> TableDecoder:
    """The same function about a b of float32, which FAISS subtracts; the first table has b's other digits."""
    b = _float32(decoder.b).astype(np.float64)
    tables = _tables(decoder)
    tables[0] = _float32(tables[0] + (decoder.b - b))
    if isinstance(decoder, TableDecoder):
        return replace(decoder, tables=tables, b=b)
    return TableDecoder(tables, b, decoder.n_bits, decoder.normalize)


def _tables(decoder: Decoder) -> Float32:
    """(M, 256, D); values of a last byte that differ only in bits beyond n_bits have the same vector."""
    if isinstance(decoder, LinearDecoder):
        return _float32(byte_contributions(decoder))
    assert isinstance(decoder, TableDecoder)
    tables, used = decoder.tables.copy(), decoder.n_bits % 8
    if used:
        tables[-1] = tables[-1, np.arange(VALUES) % (1 << used)]
    return np.ascontiguousarray(tables)


# ---- FAISS's parts


def _faiss() -> Any:
    """FAISS, imported on use; its type hints leave out what is needed here."""
    import faiss

    return faiss


def _filled(index: Any, codes: Packed, transforms: list[Any]) -> Any:
    """Codes as they are in a trained index of codes, behind transforms of queries, the first first."""
    faiss = _faiss()
    chain = faiss.IndexPreTransform(index)
    for transform in reversed(transforms):
        chain.prepend_transform(transform)
    faiss.copy_array_to_vector(np.ascontiguousarray(codes).ravel(), index.codes)
    index.ntotal = chain.ntotal = len(codes)
    return chain


def _centring(mean: Float32) -> Any:
    faiss = _faiss()
    transform = faiss.CenteringTransform(len(mean))
    faiss.copy_array_to_vector(mean, transform.mean)
    transform.is_trained = True
    return transform


def _float32(values: npt.NDArray[Any]) -> Float32:
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(rounded).all():
        raise InvalidInput("the model's numbers are too large for FAISS's float32. Rescale the rows.")
    return rounded
