"""What the commands do with files: plain functions of paths that print nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.core import files
from auxbit.core.checks import check_integer
from auxbit.core.codes import bytes_per_code, check_n_bits, check_packed, pack, unpack
from auxbit.core.parallel import block_slices
from auxbit.core.types import Array, Packed
from auxbit.data import vectors as data
from auxbit.errors import DataFileError, FileProblem, InvalidInput, InvalidParameter

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

Advance = Callable[[int], object]

DIGITS = "digits"
BLOCK_BYTES = 1 << 26
MEASURED_ROWS = 20_000  # that a model is measured on, where rows are read by passes
OPTIMAL_ROWS = 10_000  # that the error of optimal codes is measured on
LARGEST_SEED = 2**32 - 1  # of NumPy's RandomState


def read(name: str) -> Array:
    """The rows of a file, or of the embedded digits where `name` is that word and no file is called so."""
    if name == DIGITS and not Path(name).exists():
        return data.embedded_digits()[0]
    if Path(name).suffix.lower() == ".safetensors":
        raise DataFileError(f"{name} looks like a model; expected a file of vectors here.")
    return data.read_vectors(name)


def check_output(path: str | os.PathLike[str], *, force: bool, suffix: str = "", name: str = "out") -> None:
    """Refuse before the work what could not be written after it."""
    target = Path(path)
    if suffix and target.suffix.lower() != suffix:
        raise InvalidParameter(name, str(target), f"a name that ends in {suffix}")
    files.refuse_existing(target, overwrite=force)
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise FileProblem(f"{target} cannot be written: {folder} is a file, not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileProblem(f"{target} cannot be written: no permission to write in {folder}.")


def load_model(path: str) -> Hasher:
    """The model in a file."""
    from auxbit.hashers.registry import load

    return load(path)


def fit_file(
    source: str, out: str, method: str, bits: int, options: dict[str, Any], *, force: bool,
    by_passes: dict[str, Any] | None = None, show: Callable[[Any, int | None], object] | None = None,
) -> Any:  # fmt: skip
    """Fit a method to the rows of a file and write the model; returns a summary.

    by_passes : what `fit` takes besides the rows, where they are not to be read into memory; "dask" in it is
    the address of a scheduler whose workers read them. show : called with the record of each iteration, and
    how often rows were read so far, where that is known.
    """
    from auxbit.evaluate import effective_bits, effective_bits_bound
    from auxbit.hashers.registry import find_method, make_hasher

    check_n_bits(bits)
    check_integer("seed", options["random_state"], 0, LARGEST_SEED)
    check_output(out, force=force)
    if show is not None:
        options = options | {"callback": lambda record: show(record, getattr(model, "n_passes_", None))}
    model: Any = make_hasher(method, bits, **options)
    X = _rows_by_slices(source) if by_passes else read(source)
    if len(X) < 2:
        raise InvalidInput(f"{source} has {len(X)} row; a model needs at least 2 to be fitted to.")
    start = time.perf_counter()
    try:
        _fit(model, X, source, dict(by_passes or {}))
    except InvalidParameter as error:
        if error.parameter == "n_bits":  # checked before: it is this data that cannot have so many
            raise InvalidInput(str(error)) from error
        raise
    seconds = time.perf_counter() - start
    if show is not None:
        model.set_params(callback=None)  # it showed the progress, and is no part of the model
    model.save(out, overwrite=force)
    history = [asdict(record) for record in getattr(model, "history_", [])]
    some = _some_rows(X) if by_passes else X
    return {
        "model": str(out),
        "method": find_method(method).label,
        "n_bits": model.n_bits,
        "n_rows": len(X),
        "n_features": int(X.shape[1]),
        "seconds": seconds,
        "iterations": len(history) or None,
        "passes": getattr(model, "n_passes_", None),
        "measured_rows": len(some),
        "reconstruction_error": _error(model, some),
        "coding": best_coding(model),
        "rows_normalized": bool(model.scaling_.normalize),
        "effective_bits": effective_bits(model.encode(some)),
        "effective_bits_bound": effective_bits_bound(model.n_bits, len(some)),
        "history": history,
    }


def _fit(model: Any, X: Any, source: str, given: dict[str, Any]) -> None:
    address = given.pop("dask", None)
    if address is None:
        model.fit(X, **given)
        return
    from auxbit.mac.cluster import client_at

    with client_at(address) as client:
        model.fit(X if source == DIGITS else source, client=client, **given)


def _rows_by_slices(source: str) -> Any:
    from auxbit.data.rows import open_rows

    return open_rows(source) if source != DIGITS or Path(source).exists() else read(source)


def _some_rows(X: Any) -> Array:
    """Rows that stand for those that are not to be in memory."""
    from auxbit.core.parallel import sample_rows
    from auxbit.data.rows import take_rows

    return take_rows(X, sample_rows(len(X), MEASURED_ROWS))


def best_coding(model: Hasher) -> str:
    """The codes that a model's decoder is for: tables are fitted to optimal ones."""
    from auxbit.core.decoders import TableDecoder

    return "optimal" if isinstance(model.decoder_, TableDecoder) else "hash"


def _error(model: Hasher, X: Array) -> float:
    """The mean squared error of the codes that the decoder is for; of optimal ones, on some of the rows."""
    coding = best_coding(model)
    rows = X if coding == "hash" else X[:: -(-len(X) // OPTIMAL_ROWS)]
    return model._error_of(rows, model.encode(rows, coding=coding))


def check_coding(coding: str, mu: float) -> None:
    """Refuse codings that there are not, before any work."""
    from auxbit.hashers.base import CODINGS
    from auxbit.quantiser.coder import check_mu

    if coding not in CODINGS:
        raise InvalidParameter("coding", coding, f"one of {', '.join(CODINGS)}")
    if check_mu(mu) and coding == "hash":
        raise InvalidParameter("mu", mu, "0 for hash codes, which have no μ", "Add --coding optimal.")


def blocks(X: Array) -> Iterator[slice]:
    """Blocks of rows of some 64 MB."""
    step = max(1, BLOCK_BYTES // max(1, X[:1].nbytes))
    for start in range(0, len(X), step):
        yield slice(start, min(start + step, len(X)))


def encode_blocks(
    model: Hasher, X: Array, source: str, *, coding: str = "hash", mu: float = 0.0
) -> Iterator[tuple[slice, Packed]]:
    """The packed codes of the rows, block by block."""
    check_columns(model, X, source)
    for rows in blocks(X) if coding == "hash" else block_slices(len(X)):
        try:
            yield rows, model.encode(X[rows], coding=coding, mu=mu)
        except InvalidInput:
            check_all_finite(X, source)  # names the row in the file, not in the block
            raise


def encode_file(
    model: Hasher, source: str, X: Array, out: str, *, unpacked: bool, coding: str, mu: float, force: bool,
    advance: Advance,
) -> dict[str, Any]:  # fmt: skip
    """Write the codes of the rows of a file as .npy."""
    check_output(out, force=force, suffix=".npy")
    check_coding(coding, mu)
    shape = (len(X), model.n_bits if unpacked else bytes_per_code(model.n_bits))
    with data.write_npy_rows(out, shape, np.uint8, overwrite=force) as codes:
        for rows, block in encode_blocks(model, X, source, coding=coding, mu=mu):
            codes[rows] = unpack(block, model.n_bits) if unpacked else block
            advance(rows.stop - rows.start)
    return {"codes": str(out), "n_rows": shape[0], "n_bits": model.n_bits, "bytes_per_row": shape[1]}


def decode_file(
    model: Hasher, source: str, codes: Array, out: str, *, force: bool, advance: Advance
) -> dict[str, Any]:
    """Write the reconstructions of the codes in a file as .npy of float32."""
    check_output(out, force=force, suffix=".npy")
    shape = (len(codes), int(model.n_features_in_))
    with data.write_npy_rows(out, shape, np.float32, overwrite=force) as vectors:
        for rows in blocks(codes):
            vectors[rows] = model.decode(as_packed(model, codes[rows], source))
            advance(rows.stop - rows.start)
    return {"vectors": str(out), "n_rows": shape[0], "n_features": shape[1]}


def as_packed(model: Hasher, codes: Array, source: str) -> Packed:
    """Codes of a file, packed or a column a bit, as packed codes."""
    try:
        if codes.shape[1] == model.n_bits != bytes_per_code(model.n_bits):
            return pack(codes)
        return check_packed(codes, model.n_bits)
    except InvalidInput as error:
        raise DataFileError(f"{source}: {error}") from error


def holds_codes(model: Hasher, X: Array) -> bool:
    """Whether rows can only be packed codes of this model, and not vectors."""
    width = bytes_per_code(model.n_bits)
    return X.dtype == np.uint8 and X.shape[1] == width != model.n_features_in_


def codes_of(
    model: Hasher, source: str, *, are_codes: bool = False, coding: str = "hash", mu: float = 0.0
) -> Packed:
    """The packed codes of a file of vectors or of codes, in memory."""
    X = read(source)
    if are_codes or holds_codes(model, X):
        if coding != "hash":
            raise InvalidInput(f"{source} holds codes already: --coding is for vectors. Leave it out.")
        return as_packed(model, X, source)
    out = np.empty((len(X), bytes_per_code(model.n_bits)), dtype=np.uint8)
    for rows, block in encode_blocks(model, X, source, coding=coding, mu=mu):
        out[rows] = block
    return out


def check_columns(model: Hasher, X: Array, source: str) -> None:
    """Refuse rows of another dimension than the model was fitted to."""
    if X.shape[1] != model.n_features_in_:
        raise InvalidInput(
            f"{source} has {X.shape[1]} columns, and the model was fitted to {model.n_features_in_}. "
            "Use the data it was made for, or fit another model."
        )


def check_all_finite(X: Array, source: str) -> None:
    """Refuse NaN and infinity, naming the file, row and column."""
    from auxbit.core.checks import check_finite
    from auxbit.core.parallel import Workers

    with Workers() as workers:
        check_finite(X, workers, source)
