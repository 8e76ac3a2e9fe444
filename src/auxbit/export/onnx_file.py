"""Hash functions as ONNX models: float32 rows in, packed codes out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from auxbit import __version__, files
from auxbit.codes import bytes_per_code
from auxbit.errors import InvalidInput
from auxbit.export.onnx_linear import linear_codes, scaled
from auxbit.export.onnx_nodes import Graph
from auxbit.export.onnx_scores import writer_of
from auxbit.hashers.base import Hasher
from auxbit.maps import LinearEncoder

INPUT, OUTPUT = "X", "codes"


def to_onnx(model: Hasher, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write the hash function of a fitted hasher as an ONNX model, atomically.

    Its input `X` is (n, D) float32, its output `codes` (n, ceil(n_bits/8)) uint8, the bytes of
    model.encode(X). It cannot refuse what `encode` refuses: rows with NaN or infinity get codes that mean
    nothing. Rows of other types are to be converted to float32 first.
    """
    files.refuse_existing(Path(path), overwrite=overwrite)
    files.write_bytes(path, onnx_bytes(model), overwrite=overwrite)


def onnx_bytes(model: Hasher) -> bytes:
    """The content of such a file."""
    method = type(model).__name__
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {method} is not fitted: call fit before its hash function is exported.")
    graph, n_bits = Graph(), model.decoder_.n_bits
    graph.add("Identity", _codes(graph, model, n_bits), name=OUTPUT)
    onnx_model = graph.model(
        [graph.declared(INPUT, "FLOAT", ["n", len(model.scaling_.mean)])],
        [graph.declared(OUTPUT, "UINT8", ["n", bytes_per_code(n_bits)])],
        producer_name="auxbit",
        producer_version=__version__,
        doc_string=f"{method}: rows to packed codes of {n_bits} bits, bit l in bit l % 8 of byte l // 8",
    )
    graph.onnx.helper.set_model_props(onnx_model, {"method": method, "n_bits": str(n_bits)})
    content: bytes = onnx_model.SerializeToString()
    return content


def _codes(graph: Graph, model: Hasher, n_bits: int) -> str:
    encoder, scaling = model.encoder_, model.scaling_
    if isinstance(encoder, LinearEncoder):
        return linear_codes(graph, INPUT, encoder, scaling)
    write = writer_of(encoder)
    if write is None:
        raise InvalidInput(f"{type(encoder).__name__} is no encoder of auxbit's own, so it has no ONNX form.")
    rows = graph.cast(scaled(graph, graph.cast(INPUT, "DOUBLE"), scaling), "FLOAT")  # as encoders take them
    scores = write(graph, graph.cast(rows, "DOUBLE"), encoder)
    return graph.packed(graph.add("GreaterOrEqual", scores, graph.constant(np.float64(0))), n_bits)
