"""`export`: codes and hash functions for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auxbit.cli import output
from auxbit.cli.models import Coding, Force, Json, Mu

if TYPE_CHECKING:
    from auxbit.core.types import Packed
    from auxbit.hashers.base import Hasher

TARGETS, FORMS = ("faiss", "onnx"), ("auto", "lsh", "binary", "additive")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(export)


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A model file, a saved index or the folder of a collection.",
            show_default=False,
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            metavar="|".join(TARGETS),
            help="faiss: codes as an index; onnx: the hash function, from float32 rows to packed codes.",
            show_default=False,
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            metavar="|".join(FORMS),
            help="faiss: lsh hashes float queries itself, if the hash function is linear; binary takes codes "
            "as queries; additive ranks by the decoder, like --asymmetric. auto is lsh where it can be.",
        ),
    ] = "auto",
    codes: Annotated[
        str | None,
        typer.Option(
            help="faiss, of a model: packed codes as written by encode, or vectors, which are encoded.",
            show_default=False,
        ),
    ] = None,
    coding: Coding = "hash",
    mu: Mu = 0.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write codes as a FAISS index, or a hash function as an ONNX model."""
    _check_choice("--to", to, TARGETS)
    _check_choice("--form", form, FORMS)
    if to == "onnx" and (codes is not None or form != "auto"):
        hint = "--codes" if codes is not None else "--form"
        raise typer.BadParameter("it is for --to faiss: an ONNX model holds no codes.", param_hint=hint)
    with output.progress("exporting"):
        if to == "onnx":
            done = _onnx_file(source, out, force=force)
        else:
            done = _faiss_file(source, out, form, codes, coding, mu, force=force)
    if json:
        output.print_json(done)
    elif to == "onnx":
        output.say(
            f"{out}: {done['method']}, {done['n_bits']} bits; X (n, {done['n_features']}) float32 to codes"
        )
    else:
        reader = "read_index_binary" if done["form"] == "binary" else "read_index"
        output.say(f"{out}: {done['n_codes']:,} codes of {done['n_bits']} bits, form {done['form']}")
        output.say(f"In Python: faiss.{reader}({out!r})")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"expected one of {', '.join(allowed)}, got {value}.", param_hint=option)


def _onnx_file(source: str, out: str, *, force: bool) -> dict[str, Any]:
    from auxbit.cli import describe, tasks
    from auxbit.errors import InvalidInput
    from auxbit.export import to_onnx

    tasks.check_output(out, force=force)
    if Path(source).is_dir():
        from auxbit import Collection

        with Collection.open(source, read_only=True) as collection:
            model = collection.model
    elif describe._is_index(source):
        raise InvalidInput(f"{source} is an index, which has no hash function. Export the model instead.")
    else:
        model = tasks.load_model(source)
    to_onnx(model, out, overwrite=force)
    return {
        "out": out,
        "to": "onnx",
        "method": type(model).__name__,
        "n_bits": model.decoder_.n_bits,
        "n_features": int(model.n_features_in_),
    }


def _faiss_file(
    source: str, out: str, form: str, codes: str | None, coding: str, mu: float, *, force: bool
) -> dict[str, Any]:
    from auxbit import Collection
    from auxbit.cli import describe, tasks
    from auxbit.export import index_to_faiss, to_faiss
    from auxbit.export.faiss import check_model
    from auxbit.index import HammingIndex

    tasks.check_output(out, force=force)
    tasks.check_coding(coding, mu)
    is_index = describe._is_index(source)
    if codes is not None and (is_index or Path(source).is_dir()):
        raise typer.BadParameter(f"{source} has its codes: leave it out.", param_hint="--codes")
    if is_index:
        index = HammingIndex.load(source)
        form = index_to_faiss(out, index, form=form, overwrite=force)
        return _facts(out, form, len(index), index.n_bits)
    if Path(source).is_dir():
        with Collection.open(source, read_only=True) as collection:
            form = collection.export(out, form=form, overwrite=force)
            return _facts(out, form, len(collection), collection.n_bits)
    model = tasks.load_model(source)
    if codes is None:
        raise typer.BadParameter("a model has no codes: give those to export.", param_hint="--codes")
    if form == "auto" and coding == "optimal":
        form = "additive"  # the ranking that such codes are for
    check_model(model, form)  # before rows are encoded
    packed = _codes_in(model, codes, coding, mu)
    form = to_faiss(out, model, packed, form=form, overwrite=force)
    return _facts(out, form, len(packed), model.decoder_.n_bits)


def _facts(out: str, form: str, n_codes: int, n_bits: int) -> dict[str, Any]:
    return {"out": out, "to": "faiss", "form": form, "n_codes": n_codes, "n_bits": n_bits}


def _codes_in(model: Hasher, source: str, coding: str, mu: float) -> Packed:
    """The codes of a file; bytes that can be codes or vectors are codes, by the name of the option."""
    import numpy as np

    from auxbit.cli import tasks
    from auxbit.core.codes import bytes_per_code

    X = tasks.read(source)
    are_codes = X.dtype == np.uint8 and X.shape[1] == bytes_per_code(model.decoder_.n_bits)
    return tasks.codes_of(model, source, are_codes=are_codes, coding=coding, mu=mu)
