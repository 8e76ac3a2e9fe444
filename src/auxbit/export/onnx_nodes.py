"""ONNX graphs, written operation by operation: each method returns the name of what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.codes import bytes_per_code
from auxbit.extras import require

OPSET, IR_VERSION = 17, 8  # which onnxruntime has read since 1.12


class Graph:
    """Nodes and constants of one graph. A graph inside another has the other's constants, and counts on."""

    def __init__(self, outer: Graph | None = None) -> None:
        self.onnx: Any = require("onnx", extra="onnx", purpose="export to ONNX") if not outer else outer.onnx
        self.nodes: list[Any] = []
        self._root: Graph = outer._root if outer else self
        self._constants: dict[tuple[Any, ...], str] = {}
        self._values: list[Any] = []
        self._count = 0

    def new_name(self, stem: str) -> str:
        """A name that nothing has yet."""
        self._root._count += 1
        return f"{stem.lower()}_{self._root._count}"

    def constant(self, value: npt.ArrayLike) -> str:
        """An array that is part of the model; an equal one is stored once."""
        array, root = np.asarray(value), self._root
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in root._constants:
            name = root._constants[key] = self.new_name("constant")
            root._values.append(self.onnx.numpy_helper.from_array(array, name))
        return root._constants[key]

    def add(self, operation: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """A node. → the name of its output, or a list of names where there are several."""
        names = [name or self.new_name(operation) for _ in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def cast(self, value: str, kind: str) -> str:
        """The same numbers as of another type: "FLOAT", "DOUBLE", "INT32", "UINT8", …"""
        return str(self.add("Cast", value, to=getattr(self.onnx.TensorProto, kind)))

    def zero_where(self, condition: str, value: str) -> str:
        """float64 values, but for those to which the condition applies."""
        return str(self.add("Where", condition, self.constant(np.float64(0)), value))

    def rows_where(self, condition: str) -> str:
        """The numbers of the rows with a truth in them. condition : (n, m) → (some, 1), for GatherND."""
        count = self.add("ReduceSum", self.cast(condition, "INT32"), self.constant(np.array([1])), keepdims=0)
        return str(self.add("Transpose", self.add("NonZero", count), perm=[1, 0]))

    def sum(self, value: str, axis: int) -> str:
        """The sum along an axis, which stays, with length 1."""
        return str(self.add("ReduceSum", value, self.constant(np.array([axis])), keepdims=1))

    def unsqueeze(self, value: str, axis: int) -> str:
        """An axis of length 1 more."""
        return str(self.add("Unsqueeze", value, self.constant(np.array([axis]))))

    def scan(
        self,
        step: Callable[[Graph, list[str], list[str]], list[str]],
        states: Sequence[tuple[str, str, int]],
        inputs: Sequence[tuple[str, str, int]],
    ) -> Any:
        """Run `step` for each entry of the first axis of the inputs; → the last states.

        states, inputs : (name, type, number of axes); of inputs, those that a step sees.
        step : a graph of its own, names of the states, names of the inputs' entries → names of new states.
        """
        body = Graph(self)
        before = [body.new_name("state") for _ in states]
        entries = [body.new_name("entry") for _ in inputs]
        after = [body.add("Identity", name) for name in step(body, before, entries)]

        def declare(names: list[str], values: Sequence[tuple[str, str, int]]) -> list[Any]:
            return [self.declared(name, kind, [None] * axes) for name, (_, kind, axes) in zip(names, values)]

        content = self.onnx.helper.make_graph(
            body.nodes, "step", declare(before, states) + declare(entries, inputs), declare(after, states)
        )
        return self.add(
            "Scan",
            *(name for name, _, _ in (*states, *inputs)),
            outputs=len(states),
            body=content,
            num_scan_inputs=len(inputs),
        )

    def amended(
        self, values: list[str], kinds: list[str], rows: str, amend: Callable[[Graph], list[str]]
    ) -> list[str]:
        """Values of some rows replaced, at no cost where there are none. rows : as of rows_where.

        amend : adds to a graph of its own what computes the new values of these rows. kinds : their types.
        """
        anything = self.add("Greater", self.add("Size", rows), self.constant(np.int64(0)))
        new, same = Graph(self), Graph(self)
        changed = [new.add("ScatterND", old, rows, some) for old, some in zip(values, amend(new))]
        kept = [same.add("Identity", value) for value in values]

        def branch(graph: Graph, names: list[str]) -> Any:
            outputs = [self.declared(name, kind, [None, None]) for name, kind in zip(names, kinds)]
            return self.onnx.helper.make_graph(graph.nodes, "rows", [], outputs)

        branches = {"then_branch": branch(new, changed), "else_branch": branch(same, kept)}
        found = self.add("If", anything, outputs=len(values), **branches)
        return [found] if len(values) == 1 else list(found)

    def packed(self, bits: str, n_bits: int) -> str:
        """codes.pack_bools. bits : (n, n_bits) bool → (n, ceil(n_bits/8)) uint8."""
        width = bytes_per_code(n_bits)
        whole = self.cast(bits, "INT32")
        if 8 * width > n_bits:
            whole = self.add("Pad", whole, self.constant(np.array([0, 0, 0, 8 * width - n_bits])))
        by_byte = self.add("Reshape", whole, self.constant(np.array([0, width, 8])))
        values = self.add("Mul", by_byte, self.constant(1 << np.arange(8, dtype=np.int32)))
        return self.cast(self.add("ReduceSum", values, self.constant(np.array([2])), keepdims=0), "UINT8")

    def declared(self, name: str, kind: str, shape: Sequence[int | str | None]) -> Any:
        """What an input or output of a graph is."""
        return self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, kind), shape)

    def model(self, inputs: list[Any], outputs: list[Any], **about: str) -> Any:
        """The whole, as an ONNX model."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "hash_function", inputs, outputs, initializer=self._values)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, **about)
