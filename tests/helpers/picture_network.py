"""Small networks as ONNX files, for vectors of pictures."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper


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
