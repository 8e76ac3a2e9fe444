"""Models at work on files of rows: fit, encode, decode, and say what a model file holds.

Files are read in blocks, so that codes and reconstructions of files larger than memory can be written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auxbit.core.checks import Array, Packed, PathLike, check_finite, check_integer
from auxbit.core.decoders import kind_of
from auxbit.core.files import check_output, restoring, write_text
from auxbit.core.maps import (
    Scaling,
    bytes_per_code,
    check_n_bits,
    check_packed,
    only_for_decoder,
    pack,
    unpack,
)
from auxbit.core.parallel import block_slices, resolve_n_jobs, sample_rows
from auxbit.core.progress import Progress, Silent
from auxbit.data.records import Records, encode_metadata, read_ids, refuse_repeats, stored_ids
from auxbit.data.vectors import Budget, blocks, is_digits, open_rows, read_data, take_rows, write_npy_rows
from auxbit.errors import DataFileError, InvalidInput, InvalidParameter
from auxbit.evaluate import check_metric, effective_bits, effective_bits_bound
from auxbit.hashers.base import CODINGS, LEARNED_BITS, Hasher
from auxbit.hashers.registry import HASHER_NAMES, find_method, fit_reporting, load, make_hasher, read_header
from auxbit.mac.cluster import client_at
from auxbit.quantiser.coder import check_mu
from auxbit.quantiser.fit import rows_of_decoder
from auxbit.quantiser.lists import ROWS_PER_LIST, check_lists, number_of_lists

MEASURED_ROWS = 20_000  # that a model is measured on if its rows are not in memory
OPTIMAL_ROWS = 10_000  # that the error of optimal codes is measured on
LARGEST_SEED = 2**32 - 1  # of NumPy's RandomState
CHECKED_ROWS = 2**17  # that are read at a time to be checked
DEFAULT_METHOD = "ba"
MOST_FITTED = 1_000_000  # rows that a hash function is fitted to, of more a sample
LIKE = 1.1  # times the error of the rows trained on, up to which rows are like these
TRAINING_ROWS = 100_000  # of more, a sample is enough for a decoder, and to train a model again


def fit_file(
    source: str, out: PathLike, method: str = "ba", n_bits: int | None = None, *, seed: int = 0,
    coding: str | None = None, mu: float | None = None, decoder: str | None = None,
    lists: str | int | None = None, refine_bits: int = 0, overwrite: bool = False,
    scheduler: str | None = None, progress: Progress | None = None,
    out_of_core: dict[str, Any] | None = None, before: PathLike | None = None,
    labels: PathLike | None = None, **parameters: Any,
) -> dict[str, Any]:  # fmt: skip
    """Fit a method to the rows of a file, and write the model; returns a summary.

    n_bits : by default about half of the dimensions, 16 to 256. coding, mu, decoder, lists, refine_bits : the
    codes that the decoder is for, as in Collection.create; by default hash codes. parameters : of the
    estimator.
    out_of_core : memory, checkpoint and resume as in BinaryAutoencoder.fit; given, rows are not read into
    memory. scheduler : the address of a Dask scheduler whose workers read them. before : a model file to go
    on from, whose bits are the default then; labels : a file of a label for each row (.npy, or .txt with one
    per line), for codes that are alike where labels are (objective="affinity").
    """
    known = find_method(method, HASHER_NAMES)
    n_bits = None if n_bits is None else known.check_bits(n_bits)
    check_integer("seed", seed, 0, LARGEST_SEED)
    check_output(out, overwrite=overwrite)
    in_memory = not out_of_core and scheduler is None
    X = read_data(source, finite=True) if in_memory or is_digits(source) else open_rows(source)
    check_enough_rows(X, source)
    how, model_before = dict(out_of_core or {}), None if before is None else load(before)
    if model_before is not None:
        how["init"] = model_before
        n_bits = model_before.decoder_.hash_bits if n_bits is None else n_bits
    if labels is not None:
        how["y"], parameters["objective"] = np.asarray(read_ids(labels)), "affinity"
    n_bits = known.check_bits(default_bits(X.shape[1])) if n_bits is None else n_bits
    model: Any = make_hasher(method, n_bits, random_state=seed, **parameters)
    start = time.perf_counter()
    with nullcontext() if scheduler is None else client_at(scheduler) as client:
        how |= {} if scheduler is None else {"client": client}
        rows = X if scheduler is None or is_digits(source) else source
        fit_reporting(model, rows, progress, stage=f"fitting {method}", **how)
    if (coding, mu, decoder, lists, refine_bits) != (None, None, None, None, 0):
        memory = (out_of_core or {}).get("memory")
        suit_coding(model, X, coding, mu, decoder, lists, progress or Silent(), refine_bits, memory)
    seconds = time.perf_counter() - start
    model.save(out, overwrite=overwrite)
    history = [asdict(record) for record in getattr(model, "history_", [])]
    some = X if in_memory else take_rows(X, sample_rows(len(X), MEASURED_ROWS))
    return {
        "model": str(out),
        "method": find_method(method).label,
        "n_bits": n_bits,
        "n_rows": len(X),
        "n_features": int(X.shape[1]),
        "seconds": seconds,
        "iterations": len(history) or None,
        "passes": getattr(model, "n_passes_", None),
        "measured_rows": len(some),
        "reconstruction_error": _error(model, np.asarray(some)),
        "coding": model.decoder_.coding,
        "mu": model.decoder_.mu or 0.0,
        "metric": model.scaling_.metric,
        "effective_bits": effective_bits(model.encode(some, coding="hash")),
        "effective_bits_bound": effective_bits_bound(n_bits, len(some)),
        "history": history,
    }


def encode_file(
    model: Hasher, source: str, out: PathLike, *, unpacked: bool = False, coding: str | None = None,
    mu: float | None = None, queries: bool = False, overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the codes of the rows of a file as .npy, and beside it what they are as .npy.json.

    Returns a summary. unpacked : one column of 0 and 1 per bit. coding, mu, queries : as in `encode`; by
    default as the model's decoder is meant.
    """
    told = progress or Silent()
    check_output(out, overwrite=overwrite, endings=(".npy",))
    coding, mu = coding_of(model, coding, mu)
    X = read_data(source)
    told.stage("encoding", len(X))
    n_bits = model.code_bits(coding)
    shape = (len(X), n_bits if unpacked else bytes_per_code(n_bits))
    differ = queries if model.scaling_.lift else None
    made = CodesMade(coding, mu, model.fingerprint(coding), n_bits, differ)
    about = _about_codes(out)
    with restoring(about, out), write_npy_rows(out, shape, np.uint8, overwrite=overwrite) as codes:
        for rows, block in _encoded(model, X, source, coding, mu, queries):
            codes[rows] = unpack(block, n_bits) if unpacked else block
            told.advance(rows.stop - rows.start)
        write_text(about, json.dumps(asdict(made)) + "\n")  # first: codes without it may be taken for others
    told_of = {"n_rows": shape[0], "n_bits": n_bits, "bytes_per_row": shape[1], "coding": coding}
    return {"codes": str(out)} | told_of | {"mu": mu}


@dataclass(frozen=True)
class CodesMade:
    """What codes of a file are: how they were made, by the model of which fingerprint; None: not known.

    queries : whether they are of queries; None if these have the same codes as rows.
    """

    coding: str
    mu: float
    model: str | None
    n_bits: int | None = None
    queries: bool | None = None

    @classmethod
    def of_file(cls, path: PathLike) -> CodesMade | None:
        """What encode_file has written beside the codes; None if there is nothing."""
        try:
            about = json.loads(_about_codes(path).read_text(encoding="utf-8"))
            made = about["coding"], check_mu(about["mu"]), about["model"], about["n_bits"]
            return cls(*made, about.get("queries"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataFileError(f"{_about_codes(path)} cannot be read: {error}.") from error

    @property
    def by_decoder(self) -> bool:
        """Whether they are for the decoder alone: Hamming distances between them mean nothing."""
        return only_for_decoder(self.coding, self.mu)


def _about_codes(path: PathLike) -> Path:
    return Path(f"{os.fspath(path)}.json")


def check_made_by(made: CodesMade | None, model: Hasher, source: str) -> None:
    """Refuse codes that another model has made."""
    if made is not None and made.model not in (None, model.fingerprint(made.coding)):
        raise InvalidInput(
            f"{source} was made by another model, according to {source}.json. Give that model, or encode the "
            "vectors again."
        )


def check_asked(made: CodesMade | None, source: str, *, queries: bool) -> None:
    """Refuse codes of rows as queries, and codes of queries as rows, if the two have different codes."""
    if made is not None and made.queries not in (None, queries):
        held, wanted = ("rows", "queries") if queries else ("queries", "rows")
        raise InvalidInput(
            f"{source} holds codes of {held}, according to {source}.json; by inner product {wanted} have "
            f"other codes. Encode the vectors again {'with' if queries else 'without'} --queries."
        )


def check_codes_suit(source: str, coding: str, mu: float, model: Hasher | None) -> None:
    """Refuse a file of codes that says it holds others than those of this coding, or of another model."""
    made = CodesMade.of_file(source)
    if made is None:
        return
    check_asked(made, source, queries=False)
    if model is not None:
        check_made_by(made, model, source)
    if (made.coding, made.mu) != (coding, mu):
        described = [f"{kind} codes" + (f" of mu={at:g}" if at else "")
                     for kind, at in ((made.coding, made.mu), (coding, mu))]  # fmt: skip
        raise InvalidInput(
            f"{source} holds {described[0]}, according to {source}.json, but the collection {described[1]}, "
            "which are searched in another way. Encode the vectors again, or create the collection with "
            "their --coding, --mu and --model."
        )


def decode_file(
    model: Hasher, source: str, out: PathLike, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Write the reconstructions of the codes in a file, packed or not, as .npy of float32."""
    told = progress or Silent()
    check_output(out, overwrite=overwrite, endings=(".npy",))
    codes = read_data(source)
    told.stage("decoding", len(codes))
    shape = (len(codes), int(model.n_features_in_))
    with write_npy_rows(out, shape, np.float32, overwrite=overwrite) as vectors:
        for rows in blocks(codes):
            vectors[rows] = model.decode(as_packed(codes[rows], model.n_bits, source))
            told.advance(rows.stop - rows.start)
    return {"vectors": str(out), "n_rows": shape[0], "n_features": shape[1]}


def codes_of(
    model: Hasher, source: str, *, are_codes: bool = False, coding: str | None = None,
    mu: float | None = None, queries: bool = False,
) -> tuple[Packed, CodesMade]:  # fmt: skip
    """The packed codes of a file of vectors, or of codes, in memory, and what they are.

    are_codes : the file holds codes, even if its shape is that of vectors. coding, mu, queries : of vectors,
    as in `encode`; by default as the model's decoder is meant.
    """
    X = read_data(source)
    meant, mu = coding_of(model, coding, mu)
    if are_codes or holds_codes(X, model.code_bits(meant), model.n_features_in_):
        made = CodesMade.of_file(source) or CodesMade(meant, mu, None)
        check_made_by(made, model, source)
        check_asked(made, source, queries=queries)
        if coding not in (None, made.coding):
            raise InvalidInput(f"{source} holds {made.coding} codes. --coding is for vectors: leave it out.")
        return as_packed(X, model.code_bits(made.coding), source), made
    out = np.empty((len(X), bytes_per_code(model.code_bits(meant))), dtype=np.uint8)
    for rows, block in _encoded(model, X, source, meant, mu, queries):
        out[rows] = block
    return out, CodesMade(meant, mu, model.fingerprint(meant))


def read_vectors_for(model: Hasher, source: str) -> Array:
    """The vectors of a file, which are those of a model: finite, and with as many columns."""
    X = read_data(source)
    _check_columns(model, X, source)
    check_finite(X, name=source)
    return X


def holds_codes(X: Array, n_bits: int, n_features: int | None = None) -> bool:
    """Whether rows can be packed codes of n_bits, and cannot be vectors of n_features numbers."""
    return bool(X.dtype == np.uint8 and X.shape[1] == bytes_per_code(n_bits) != n_features)


def rows_are_codes(X: Any, source: str, n_bits: int, n_features: int | None) -> bool:
    """Whether rows of a file are codes, by their shape; refuses rows that are neither.

    n_features : numbers of a vector; None: they must be codes.
    """
    if n_features is not None and not holds_codes(X, n_bits, n_features):
        if X.shape[1] != n_features:
            raise InvalidInput(
                f"{source} has {X.shape[1]} columns, but the collection is for vectors of {n_features} "
                "numbers. Use vectors of the same kind, or create another collection."
            )
        return False
    width = bytes_per_code(n_bits)
    if X.shape[1] not in (width, n_bits) or X.dtype.kind not in "bui":
        raise InvalidInput(
            f"{source} has {X.shape[1]} columns of {X.dtype}; codes of {n_bits} bits are {width} columns "
            f"of uint8, as `auxbit encode` packs them, or {n_bits} of 0 and 1."
        )
    return True


def check_rows(
    rows: Records, n_bits: int, n_features: int | None, kept: str | None, scaling: Scaling | None, *,
    are_codes: bool,
) -> None:  # fmt: skip
    """Refuse rows that an empty collection could not take, before another is replaced by it.

    n_bits, n_features : of codes and vectors. kept : the type that vectors are kept in. scaling : of the
    model.
    """
    if rows.ids is not None:
        refuse_repeats(stored_ids(rows.ids, len(rows))[0], "ids")
    are_codes = rows_are_codes(rows.X, rows.name, n_bits, None if are_codes else n_features)
    for some in block_slices(len(rows), CHECKED_ROWS):
        part = rows[some]
        X = np.asarray(part.X[:])
        if part.metadata is not None:
            encode_metadata(part.metadata, len(part))
        if are_codes:
            as_packed(X, n_bits, rows.name)
        else:
            check_finite(X, name=rows.name)
        if kept is not None:
            check_kept(None if are_codes else X, n_features, kept, scaling)


def check_kept(X: Array | None, n_features: int | None, dtype: str, scaling: Scaling | None) -> Array:
    """Vectors that are to be kept, of which their type can hold what matters. scaling : the model's."""
    if X is None:
        raise InvalidInput("the collection keeps vectors: give X with the codes.")
    if X.ndim != 2 or n_features not in (None, X.shape[1]) or X.dtype.kind not in "biuf":
        raise InvalidInput(f"X must be rows of numbers, (n, {n_features}), got shape {X.shape} of {X.dtype}.")
    kept = np.finfo(np.dtype(dtype))
    least, most = float(kept.tiny), float(kept.max)
    largest = max(float(X.max()), -float(X.min())) if X.size else 0.0
    if not largest <= most:
        raise InvalidInput(
            f"X has numbers above {most:.4g}, which {dtype} cannot hold, or numbers that are not finite. "
            "Scale the rows, or create the collection with vectors='float32'."
        )
    sizes = np.abs(X).max(axis=1, initial=0) if X.dtype.kind == "f" else np.ones(0)
    small = (sizes > 0) & (sizes < least)
    if small.any():
        if scaling is None or not scaling.normalize:  # beside larger rows, small ones may be lost
            small &= max(largest, 0.0 if scaling is None else scaling.scale) < least
        if (X[small].astype(kept.dtype) != X[small]).any():
            raise InvalidInput(
                f"X has rows that {dtype} would round to almost 0: the numbers of row {int(small.argmax())} "
                f"are below {least:.3g}. Multiply all rows by a constant before you fit the model, or create "
                "the collection with vectors='float32'."
            )
    return X


def as_packed(codes: Array, n_bits: int, source: str) -> Packed:
    """Codes of a file, packed or with one column per bit, as packed codes."""
    try:
        if codes.shape[1] == n_bits != bytes_per_code(n_bits):
            return pack(codes)
        return check_packed(np.asarray(codes), n_bits)
    except InvalidInput as error:
        raise DataFileError(f"{source}: {error}") from error


def check_enough_rows(X: Any, source: str) -> None:
    """Refuse a single row to fit a model to."""
    if len(X) < 2:
        raise InvalidInput(f"{source} has {len(X)} row; a model needs at least 2 to be fitted to.")


def describe_model(path: PathLike) -> dict[str, Any]:
    """What a model file holds: the method, its parameters, and how the training went."""
    header, model = read_header(path), load(path)
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "model",
        "class": header["class"],
        "bits": model.n_bits,
        "bytes_per_code": bytes_per_code(model.decoder_.n_bits),
        **({"lists": kind_of(model.decoder_)[1]} if kind_of(model.decoder_)[1] else {}),
        "dimensions": int(model.n_features_in_),
        "metric": model.scaling_.metric,
        "parameters": {key: value for key, value in header["parameters"].items() if key != "n_bits"},
        "format": header["format_version"],
        "made_by": f"auxbit {header['auxbit_version']}",
    }
    if header.get("left_out"):  # could not be saved: a loaded model has their defaults
        facts["left_out"] = header["left_out"]
    history = getattr(model, "history_", None)
    if history:
        kept = [record for record in history if record.kept][-1]
        facts["iterations"] = len(history)
        facts["kept"] = {"iteration": kept.iteration, "mu": round(kept.mu, 6)}
        facts["E_BA"] = {"first": history[0].E_BA, "kept": kept.E_BA, "last": history[-1].E_BA}
        if kept.precision is not None:
            facts["validation_precision"] = {"first": history[0].precision, "kept": kept.precision}
    return facts


def _encoded(
    model: Hasher, X: Array, source: str, coding: str, mu: float, queries: bool
) -> Iterator[tuple[slice, Packed]]:
    """The packed codes of the rows, block by block; optimal codes take long, so theirs are small."""
    _check_columns(model, X, source)
    for rows in blocks(X) if coding == "hash" else block_slices(len(X)):
        try:
            yield rows, model.encode(X[rows], coding=coding, mu=mu, queries=queries)
        except InvalidInput:
            check_finite(X, name=source)  # names the row in the file, not in the block
            raise


def _check_columns(model: Hasher, X: Array, source: str) -> None:
    if X.shape[1] != model.n_features_in_:
        raise InvalidInput(
            f"{source} has {X.shape[1]} columns, but the model was fitted to {model.n_features_in_}. "
            "Use vectors of the same kind, or fit another model."
        )


def _error(model: Hasher, X: Array) -> float:
    """The mean squared error of the codes that the decoder is for; of optimal ones, on some of the rows."""
    coding = model.decoder_.coding
    rows = X if coding == "hash" else X[:: -(-len(X) // OPTIMAL_ROWS)]
    return model._error_of(rows, model.encode(rows, coding=coding))


# ---- Models for the codes that rows are to have


def as_model(source: Any) -> Hasher | None:
    """A fitted model, given as such or by its file; None if it is something else."""
    if isinstance(source, str | os.PathLike) and str(source).endswith(".safetensors"):
        return load(source)
    if not isinstance(source, Hasher):
        return None
    if not hasattr(source, "encoder_"):
        raise InvalidInput(f"this {type(source).__name__} is not fitted: call fit first.")
    return source


def fitted_model(
    X: Any, name: str, method: str | None, bits: int | None, *, metric: str | None = None,
    random_state: int = 0, n_jobs: int | None = None, progress: Progress | None = None,
) -> Hasher:  # fmt: skip
    """A model fitted to rows. name : of them, in errors. bits : by default about half of the dimensions."""
    check_integer("random_state", random_state, 0, LARGEST_SEED)
    check_enough_rows(X, name)
    method = method or DEFAULT_METHOD
    bits = find_method(method).check_bits(default_bits(X.shape[1]) if bits is None else bits)
    model = make_hasher(method, bits, n_jobs=n_jobs, random_state=random_state, **parameters_for(metric))
    return fit_reporting(model, X, progress, stage=f"fitting {method}")


def rows_within(memory: str | int | None, D: int, most: int) -> int:
    """How many rows of D numbers are read at once: `most`, or fewer if memory is limited."""
    return most if memory is None else min(most, rows_of_decoder(Budget.parse(memory).total, D))


def codes_by(model: Hasher, coding: str, mu: float) -> dict[str, Any]:
    """What codes of a model are: bits, of which list_bits number their lists, dimensions, coding and mu."""
    n_bits, n_features = model.code_bits(coding), int(model.n_features_in_)
    list_bits = n_bits - model.decoder_.hash_bits
    return {"n_bits": n_bits, "list_bits": list_bits, "n_features": n_features, "coding": coding, "mu": mu}


def model_for(
    model: Hasher | None, X: Any, name: str, *, are_codes: bool, progress: Progress, metric: str | None,
    coding: str | None, mu: float | None, decoder: str | None, lists: str | int | None, refine_bits: int,
    method: str | None, bits: int | None, n_features: int | None, random_state: int, n_jobs: int | None,
    memory: str | int | None = None,
) -> tuple[Hasher | None, dict[str, Any]]:  # fmt: skip
    """The model that encodes rows, by default one fitted to them, with a decoder for that; and its codes.

    X : rows, codes of them, or None; without a model none is made of codes. All others as in
    Collection.create. Lists that are "auto" are made for a model that is fitted here alone. Returns what
    `codes_by` says, also of codes that are made elsewhere.
    """
    check_lists(lists)
    resolve_n_jobs(n_jobs)
    if memory is not None:
        Budget.parse(memory)  # before anything is replaced
    fits = X is not None and model is None and not are_codes
    if metric is not None and not fits and metric != (model.scaling_.metric if model else "euclidean"):
        raise InvalidParameter("metric", metric, "that of the model", "Leave it out, or the model.")
    if method is not None and not fits:
        remedy = "Leave it out; or give rows of vectors, and no model."
        raise InvalidParameter("method", method, "one to fit to rows", remedy)
    if model is not None:
        fitted, dims = model.decoder_.hash_bits, int(model.n_features_in_)
        if bits not in (None, fitted) or n_features not in (None, dims):
            raise InvalidInput(
                f"the model has {fitted} bits and {dims} features: leave out bits and n_features."
            )
    if fits:
        most = rows_within(memory, X.shape[1], MOST_FITTED if coding == "hash" or mu else TRAINING_ROWS)
        model = fitted_model(
            take_rows(X, sample_rows(len(X), most)), name, method, bits, metric=metric,
            random_state=random_state, n_jobs=n_jobs, progress=progress,
        )  # fmt: skip
        if mu is None and decoder is None:
            coding = coding or default_coding(model.n_bits)
    if model is None:
        if coding not in (None, "hash") or (mu, decoder, refine_bits) != (None, None, 0):
            raise InvalidInput(
                "coding, mu, decoder and refine_bits are for rows that are encoded here: leave them out with "
                "codes."
            )
        if bits is None:
            raise InvalidInput("give rows, a fitted model, or bits (the length of codes made elsewhere).")
        if n_features is not None:
            n_features = check_integer("n_features", n_features, 1)
        return None, {"n_bits": check_n_bits(bits), "n_features": n_features}
    if X is not None and not are_codes:
        are_codes = rows_are_codes(X, name, model.decoder_.n_bits, int(model.n_features_in_))
    if mu or coding == "hash" or not (fits or isinstance(lists, int)):
        lists = None
    rows = None if are_codes else X
    coding, mu = suit_coding(model, rows, coding, mu, decoder, lists, progress, refine_bits, memory)
    return model, codes_by(model, coding, mu)


def check_retraining(place: str, X: Array | None, n: int, *, kept: bool) -> None:
    """Refuse to retrain a collection of n items without rows to make codes from. kept : it has vectors."""
    if not n:
        raise InvalidInput(f"{place} is empty: there is nothing to train on. Add rows first.")
    if X is not None and (X.ndim != 2 or len(X) != n):
        raise InvalidInput(
            f"X must have a row for each of the {n:,} items, in the order of ids; got {len(X):,}."
        )
    if X is None and not kept:
        raise InvalidInput(
            f"{place} keeps no vectors to make new codes from. Give X (--data FILE), with a row for each of "
            f'its {n:,} items, in the order they were added; or create it with vectors="float16".'
        )
    if X is not None and kept:
        raise InvalidInput(f"{place} keeps its vectors: leave out X (--data).")


def model_again(
    present: Hasher | None, model: Hasher | None, X: Array, name: str, *, method: str | None, bits: int,
    coding: str | None, mu: float, metric: str, random_state: int | None, n_jobs: int | None,
    progress: Progress,
) -> tuple[Hasher, dict[str, Any]]:  # fmt: skip
    """The model that encodes rows from now on, with a decoder for that; and what `codes_by` says.

    model : a fitted one; None: one that is fitted to X, by another method, or like the present one with these
    bits. coding, mu : of the codes so far; None if they were made elsewhere.
    """
    if model is None:
        model = _fitted_again(present, X, name, method, bits, metric, random_state, n_jobs, progress)
    if model.n_features_in_ != X.shape[1]:
        raise InvalidInput(
            f"the model is for rows of {model.n_features_in_} numbers, but the collection for {X.shape[1]}."
        )
    if coding == "optimal":
        kind, lists, finer = (None, 0, 0) if present is None else kind_of(present.decoder_)
        suit_decoder(model, X, mu, kind, lists or None, progress, finer)
    return model, codes_by(model, *(coding_of(model, None, None) if coding is None else (coding, mu)))


def _fitted_again(
    present: Hasher | None, X: Array, name: str, method: str | None, bits: int, metric: str,
    random_state: int | None, n_jobs: int | None, progress: Progress,
) -> Hasher:  # fmt: skip
    if method is not None:
        return fitted_model(
            X, name, method, bits, metric=metric, random_state=random_state or 0, n_jobs=n_jobs,
            progress=progress,
        )  # fmt: skip
    if present is None:
        raise InvalidInput(
            f"{name} has no model to retrain. Give a model (--model), or method and bits (--method, --bits)."
        )
    from sklearn.base import clone

    check_enough_rows(X, name)
    made = clone(present).set_params(n_bits=check_n_bits(bits))
    how: dict[str, Any] = {}
    if random_state is not None:
        made.set_params(random_state=random_state)
    elif _suits(present, X, bits):
        how["init"] = present
    return fit_reporting(made, X, progress, stage=f"training on {len(X):,} rows", **how)


def _suits(model: Hasher, X: Array, bits: int) -> bool:
    """Whether to continue from a model: it was trained by MAC, for as many bits, to rows not unlike these."""
    if not hasattr(model, "history_") or model.training_ is None or bits != model.decoder_.hash_bits:
        return False
    return X.shape[1] == model.n_features_in_ and _error(model, X) <= LIKE * model.training_.error


def parameters_for(metric: str | None) -> dict[str, bool]:
    """The parameters of a hasher whose codes are for neighbours by a metric; None: Euclidean ones."""
    of_metric = {"euclidean": {}, "cosine": {"normalize": True}, "inner_product": {"lift": True}}
    return of_metric[check_metric(metric or "euclidean")]


def default_bits(n_features: int) -> int:
    """Bits per code for vectors of that many numbers: about half of them, 16 to 256, a power of two."""
    return int(2 ** np.clip(np.round(np.log2(max(n_features, 1) / 2)), 4, 8))


def default_coding(n_bits: int) -> str:
    """The codes that find most, if nothing else is wanted of them; very long ones would take too long."""
    return "optimal" if n_bits <= LEARNED_BITS else "hash"


def coding_of(model: Hasher, coding: str | None, mu: float | None) -> tuple[str, float]:
    """How rows are encoded: as given, else as the model's decoder is meant."""
    if coding is None:
        coding = model.decoder_.coding
    if coding not in CODINGS:
        raise InvalidParameter("coding", coding, f"one of {', '.join(CODINGS)}")
    if mu is None:
        mu = 0.0 if coding == "hash" else model.decoder_.mu or 0.0
    if check_mu(mu) and coding == "hash":
        raise InvalidParameter("mu", mu, "0 for hash codes, which have no μ", "Add --coding optimal.")
    return coding, float(mu)


def suit_coding(
    model: Hasher, X: Any, coding: str | None, mu: float | None, decoder: str | None,
    lists: str | int | None, progress: Progress, refine_bits: int = 0, memory: str | int | None = None,
) -> tuple[str, float]:  # fmt: skip
    """How rows will be encoded, once the model has a decoder for that. X : rows to fit it to, if any."""
    asked = decoder is not None or mu is not None or lists is not None or refine_bits
    coding, mu = coding_of(model, coding or ("optimal" if asked else None), mu)
    if coding == "hash" and decoder is not None:
        raise InvalidParameter("decoder", decoder, "one for optimal codes", "Drop --coding hash.")
    if coding == "hash" and (lists is not None or refine_bits):
        name, given = ("lists", lists) if lists is not None else ("refine_bits", refine_bits)
        remedy = "Drop --coding hash; an index divides hash codes by itself."
        raise InvalidParameter(name, given, "an option for optimal codes", remedy)
    if coding == "optimal":
        suit_decoder(model, X, mu, decoder, lists, progress, refine_bits, memory)
    return coding, mu


def suit_decoder(
    model: Hasher, X: Any, mu: float, kind: str | None, lists: str | int | None, progress: Progress,
    refine_bits: int = 0, memory: str | int | None = None,
) -> None:  # fmt: skip
    """Give a model a decoder for optimal codes, unless it has one. X : rows to fit it to, None for none.

    lists : as in fit_decoder, by the number of all rows of X; None: as the decoder has them, else none.
    memory : what the decoder is fitted to, a sample of X, must fit into.
    """
    n_lists = 0 if X is None else number_of_lists(lists, len(X))
    present, known, finer = kind_of(model.decoder_)
    as_wanted = kind in (None, "auto", present) and lists in (None, known) and refine_bits in (0, finer)
    if model.decoder_.mu == mu and as_wanted:
        return
    if X is None:
        raise InvalidInput(
            "the model's decoder is not fitted to optimal codes of that kind. Add --data FILE of vectors to "
            "fit one to, or drop --coding, --mu and --decoder."
        )
    progress.stage("fitting the decoder", None)
    most = rows_within(memory, X.shape[1], max(TRAINING_ROWS, ROWS_PER_LIST * n_lists))
    X = take_rows(X, sample_rows(len(X), most))
    model.fit_decoder(X, kind or "auto", mu=mu, lists=n_lists or None, refine_bits=refine_bits)
