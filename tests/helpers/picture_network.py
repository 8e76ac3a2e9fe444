"""Small networks as ONNX files, for vectors of pictures and of words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}


def network(
    shape: list[Any],
    *,
    axes: list[int] | None = None,
    scale: float = 1.0,
    inputs: int = 1,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    """An ONNX file whose output is the mean of its input over `axes`, times `scale`."""
    given = [helper.make_tensor_value_info(f"pixels{place or ''}", kind, shape) for place in range(inputs)]
    made = helper.make_tensor_value_info("vector", kind, None)
    factor = helper.make_tensor("factor", kind, [1], [scale])
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=axes or [2, 3], keepdims=1),
        helper.make_node("Mul", ["mean", "factor"], ["vector"]),
    ]
    graph = helper.make_graph(nodes, "test", given, [made], [factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def text_network(
    length: int | None = None, *, mask: bool = True, numbers: int = 3, kind: int = TensorProto.INT64
) -> bytes:
    """An ONNX file whose output is the mean of the colours that words name, as `tokenizer` numbers them.

    length : of its input, None for any; mask : whether it takes one, without which padding is black
    """
    rows = np.array([(0, 0, 0), *COLOURS.values()], dtype=np.float32)
    table = numpy_helper.from_array(np.tile(rows, (1, numbers))[:, :numbers], "table")
    given = [helper.make_tensor_value_info("input_ids", kind, ["n", length or "length"])]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["colours"])]
    if mask:
        given.append(helper.make_tensor_value_info("attention_mask", kind, ["n", length or "length"]))
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["shares"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["shares", "last"], ["column"]),
            helper.make_node("Mul", ["colours", "column"], ["counted"]),
            helper.make_node("ReduceSum", ["counted", "middle"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["column", "middle"], ["words"], keepdims=0),
            helper.make_node("Div", ["sum", "words"], ["vector"]),
        ]
    else:
        nodes.append(helper.make_node("ReduceMean", ["colours"], ["vector"], axes=[1], keepdims=0))
    places = [
        helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in (("last", 2), ("middle", 1))
    ]
    made = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["n", numbers])
    graph = helper.make_graph(nodes, "test", given, [made], [table, *places])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def tokenizer() -> bytes:
    """A tokenizer.json that numbers the names of COLOURS from 1, and any other word as 0."""
    vocabulary = {"?": 0} | {name: place for place, name in enumerate(COLOURS, 1)}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }  # fmt: skip
    return json.dumps(document).encode()
