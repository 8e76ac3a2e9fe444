"""`export`: codes and hash functions for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from auxbit.cli import output
from auxbit.cli.options import Coding, Force, Json, Mu, choice, refuse


def export(
    source: Annotated[str, Argument(
        metavar="SOURCE", help="A model file, a saved index or the folder of a collection."
    )],
    out: Annotated[str, Argument(metavar="OUT", help="The file, or folder of documents, to write.")],
    to: Annotated[str, choice(
        "faiss", "onnx", "elasticsearch", "opensearch", "vespa",
        help="faiss: codes as an index; onnx: the hash function, from float32 rows to packed codes; the "
        "others: codes as documents for these servers, with mapping and queries, in a new folder."
    )],
    form: Annotated[str, choice(
        "auto", "lsh", "binary", "additive", help="faiss: lsh hashes float queries itself, if the hash "
        "function is linear; binary takes codes as queries; additive ranks by the decoder, like "
        "--mode asymmetric; auto is lsh if possible."
    )] = "auto",
    codes: Annotated[str | None, Option(
        help="If SOURCE is a model: packed codes as written by encode; for faiss also vectors, which are "
        "encoded."
    )] = None,
    coding: Coding = None,
    mu: Mu = None,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Write codes for FAISS or search servers, or a model as ONNX."""
    hint = "--codes" if codes is not None else "--form"
    for_faiss = to == "onnx" and (codes is not None or form != "auto")
    refuse(for_faiss, hint, "it is for --to faiss: an ONNX model holds no codes.")
    documents = to not in ("faiss", "onnx")
    refuse(documents and form != "auto", "--form", "it is for --to faiss.")
    refuse(documents and (coding or mu) is not None, "--coding", "documents hold hash codes: leave it out.")
    refuse(documents and force, "--force", "documents are written into a new folder: choose another name.")
    with output.Stages("exporting"):
        if to == "onnx":
            done = _onnx_file(source, out, force)
        elif documents:
            done = _documents(source, out, to, codes)
        else:
            done = _faiss_file(source, out, form, codes, coding, mu, force)
    if json:
        output.print_json({"out": out, "to": to} | done)
    elif to == "onnx":
        rows = f"X (n, {done['n_features']}) float32"
        output.say(f"{out}: {done['method']}, {done['n_bits']} bits; {rows} to hash codes")
        if done["coding"] == "optimal":
            output.say(
                "They are compared with hash codes by Hamming distance, not with the optimal codes that this "
                "model is for:\nmake those of the rows by the same function, or by encode --coding hash."
            )
    elif documents:
        output.say(f"{out}: {done['n_codes']:,} codes of {done['n_bits']} bits in {', '.join(done['files'])}")
    else:
        reader = "read_index_binary" if done["form"] == "binary" else "read_index"
        output.say(f"{out}: {done['n_codes']:,} codes of {done['n_bits']} bits, form {done['form']}")
        output.say(f"In Python: faiss.{reader}({out!r})")


def _onnx_file(source: str, out: str, force: bool) -> dict[str, Any]:
    from auxbit.collection.collection import load_model
    from auxbit.core.files import check_output, format_of
    from auxbit.errors import InvalidInput
    from auxbit.export import to_onnx

    check_output(out, overwrite=force)
    if format_of(source) == "auxbit index":
        raise InvalidInput(f"{source} is an index, which has no hash function. Export the model instead.")
    model = load_model(source)
    to_onnx(model, out, overwrite=force)
    n_bits, coding = model.decoder_.n_bits, model.decoder_.coding
    made = {"method": type(model).__name__, "n_bits": n_bits, "n_features": int(model.n_features_in_)}
    return made | {"coding": coding}


def _documents(source: str, out: str, to: str, codes: str | None) -> dict[str, Any]:
    from auxbit import Collection
    from auxbit.core.files import format_of
    from auxbit.hashers.registry import load
    from auxbit.index import HammingIndex
    from auxbit.stores.base import refuse_for_decoder
    from auxbit.stores.documents import write_documents
    from auxbit.stores.push import of_arrays, of_collection, of_files

    if Path(source).is_dir():
        refuse(codes is not None, "--codes", f"{source} has its codes: leave it out.")
        with Collection.open(source, read_only=True) as collection:
            return write_documents(of_collection(collection), out, to)
    if format_of(source) == "auxbit index":
        refuse(codes is not None, "--codes", f"{source} has its codes: leave it out.")
        index = HammingIndex.load(source)
        refuse_for_decoder(index.coding, index.mu)
        return write_documents(of_arrays(index.codes, index.n_bits, ids=index.ids), out, to)
    if codes is None:
        raise typer.BadParameter("a model has no codes: give the codes to export.", param_hint="--codes")
    return write_documents(of_files(codes, model=load(source)), out, to)


def _faiss_file(
    source: str,
    out: str,
    form: str,
    codes: str | None,
    coding: str | None,
    mu: float | None,
    force: bool,
) -> dict[str, Any]:
    from auxbit import Collection
    from auxbit.core.files import check_output, format_of
    from auxbit.data.vectors import read_data
    from auxbit.export import index_to_faiss, to_faiss
    from auxbit.export.faiss import check_model
    from auxbit.hashers.files import codes_of, holds_codes
    from auxbit.hashers.registry import load
    from auxbit.index import HammingIndex

    check_output(out, overwrite=force)
    is_index, is_collection = format_of(source) == "auxbit index", Path(source).is_dir()
    has_codes = codes is not None and (is_index or is_collection)
    refuse(has_codes, "--codes", f"{source} has its codes: leave it out.")
    if is_index:
        index = HammingIndex.load(source)
        form = index_to_faiss(out, index, form=form, overwrite=force)
        return {"form": form, "n_codes": len(index), "n_bits": index.n_bits}
    if is_collection:
        with Collection.open(source, read_only=True) as collection:
            form = collection.export(out, form=form, overwrite=force)
            return {"form": form, "n_codes": len(collection), "n_bits": collection.n_bits}
    model = load(source)
    if codes is None:
        raise typer.BadParameter("a model has no codes: give the codes to export.", param_hint="--codes")
    check_model(model, form)  # before rows are encoded
    # by the name of the option, bytes that may be codes or vectors are codes
    are_codes = holds_codes(read_data(codes), model.decoder_.n_bits)
    packed, made = codes_of(model, codes, are_codes=are_codes, coding=coding, mu=mu)
    form = to_faiss(out, model, packed, form=form, coding=made.coding, mu=made.mu, overwrite=force)
    return {"form": form, "n_codes": len(packed), "n_bits": model.decoder_.n_bits}
