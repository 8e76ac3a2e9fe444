"""Hash functions as ONNX models: float32 rows in, packed codes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit import __version__
from auxbit.core import files
from auxbit.core.checks import LARGEST_FLOAT32, PathLike, require
from auxbit.core.features import TIE, RbfEncoder
from auxbit.core.maps import LinearEncoder, RawEncoder, Scaling, bytes_per_code
from auxbit.errors import InvalidInput
from auxbit.hashers.anchor_graph import ROUNDING, AnchorGraphEncoder
from auxbit.hashers.base import Hasher
from auxbit.hashers.klsh import KernelEncoder
from auxbit.hashers.spectral import SpectralEncoder
from auxbit.hashers.spherical import SphericalEncoder

# ---- Graphs, written operation by operation: each method returns the name of what it computes

Declared = tuple[str, str, int]  # name, type, number of axes

OPSET, IR_VERSION = 17, 8  # which onnxruntime has read since 1.12


class Graph:
    """Nodes and constants of one graph. A graph inside another shares its constants and numbers."""

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
        """A node. → the name of its output, or a list of names if there are several."""
        names = [name or self.new_name(operation) for _ in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def cast(self, value: str, kind: str) -> str:
        """The same numbers as of another type: "FLOAT", "DOUBLE", "INT32", "UINT8", …"""
        return str(self.add("Cast", value, to=getattr(self.onnx.TensorProto, kind)))

    def zero_where(self, condition: str, value: str) -> str:
        """float64 values, with 0 in the places to which the condition applies."""
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
        self, step: Callable[[Graph, list[str], list[str]], list[str]], states: Sequence[Declared],
        inputs: Sequence[Declared],
    ) -> Any:  # fmt: skip
        """Run `step` for each entry of the first axis of the inputs; → the last states.

        states, inputs : of inputs, the axes are those that a step sees.
        step : a graph of its own, names of the states, names of the inputs' entries → names of new states.
        """
        body = Graph(self)
        before = [body.new_name("state") for _ in states]
        entries = [body.new_name("entry") for _ in inputs]
        after = [body.add("Identity", name) for name in step(body, before, entries)]

        def declare(names: list[str], values: Sequence[Declared]) -> list[Any]:
            return [self.declared(name, kind, [None] * axes) for name, (_, kind, axes) in zip(names, values)]

        content = self.onnx.helper.make_graph(
            body.nodes, "step", declare(before, states) + declare(entries, inputs), declare(after, states)
        )
        names = [name for name, _, _ in (*states, *inputs)]
        return self.add("Scan", *names, outputs=len(states), body=content, num_scan_inputs=len(inputs))

    def amended(
        self, values: list[str], kinds: list[str], rows: str, amend: Callable[[Graph], list[str]]
    ) -> list[str]:
        """Values of some rows replaced, at no cost if there are none. rows : as of rows_where.

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


# ---- Linear encoders, in the two steps of core/maps.py
#
# Signs of a product in float32, with the same margins of doubt; then the rows that have a score in doubt
# again, in float64, and there in the order of kernels.dot, term by term: sums in another order would differ
# in the last digit, and rows that lie on a hyperplane would get another bit.

LANES = 4  # sums that kernels.dot adds up side by side


def linear_codes(graph: Graph, X: str, encoder: LinearEncoder, scaling: Scaling) -> str:
    """The packed codes of rows as the user gives them. X : (n, D) float32 → (n, ceil(L/8)) uint8."""
    raw, n_bits = encoder.before(scaling), len(encoder.bias)
    products = graph.add("MatMul", _rows(graph, X, raw), graph.constant(raw.weights))
    scores = graph.add("Add", products, graph.constant(raw.bias))
    sizes = graph.add("Abs", scores)
    enough = graph.add("GreaterOrEqual", sizes, graph.constant(raw.margin))
    finite = graph.add("LessOrEqual", sizes, graph.constant(np.float32(LARGEST_FLOAT32)))
    doubtful = graph.rows_where(graph.add("Not", graph.add("And", enough, finite)))

    def settle(inner: Graph) -> list[str]:
        again = inner.cast(inner.add("GatherND", X, doubtful), "DOUBLE")
        weights = inner.cast(inner.constant(encoder.weights), "DOUBLE")
        exact = _dot(inner, scaled(inner, again, scaling, in_order=True), weights, len(encoder.weights))
        exact = inner.add("Add", exact, inner.constant(raw.exact_bias))
        return [inner.packed(inner.add("GreaterOrEqual", exact, inner.constant(np.float64(0))), n_bits)]

    quick = graph.packed(graph.add("GreaterOrEqual", scores, graph.constant(np.float32(0))), n_bits)
    return graph.amended([quick], ["UINT8"], doubtful, settle)[0]


def scaled(graph: Graph, X: str, scaling: Scaling, *, in_order: bool = False) -> str:
    """Scaling.exactly. X : (n, D) float64. in_order : norms are summed as there, to the last digit."""
    if scaling.normalize:
        X = _normalized(graph, X, len(scaling.mean), in_order)
    centred = graph.add("Sub", X, graph.constant(scaling.mean))
    return str(graph.add("Div", centred, graph.constant(np.float64(scaling.scale))))


def _rows(graph: Graph, X: str, raw: RawEncoder) -> str:
    """RawEncoder.rows."""
    if raw.folded and not raw.scaling.normalize:
        return X
    exact = graph.cast(X, "DOUBLE")
    if raw.folded:
        return graph.cast(_normalized(graph, exact, len(raw.scaling.mean), False), "FLOAT")
    return graph.cast(scaled(graph, exact, raw.scaling), "FLOAT")


def _normalized(graph: Graph, X: str, n_dims: int, in_order: bool) -> str:
    """Rows divided by their norms, if these are not 0."""
    squared = _dot(graph, X, None, n_dims) if in_order else graph.sum(graph.add("Mul", X, X), 1)
    norm = graph.add("Sqrt", squared)
    is_zero = graph.add("Equal", norm, graph.constant(np.float64(0)))
    return str(graph.add("Div", X, graph.add("Where", is_zero, graph.constant(np.float64(1)), norm)))


def _dot(graph: Graph, X: str, weights: str | None, n_dims: int) -> str:
    """X : (m, D), weights : (D, L) → (m, L), or without weights the products of rows with themselves, (m, 1).

    As kernels.dot does it: four sums side by side, and what is left over in the first.
    """
    whole = n_dims - n_dims % LANES
    steps = np.full((n_dims // LANES + n_dims % LANES, LANES), n_dims)  # column D is of zeros
    steps[: n_dims // LANES] = np.arange(whole).reshape(-1, LANES)
    steps[n_dims // LANES :, 0] = np.arange(whole, n_dims)
    order = graph.constant(steps)

    columns = graph.add("Pad", X, graph.constant(np.array([0, 0, 0, 1])))
    terms = graph.add("Transpose", graph.add("Gather", columns, order, axis=1), perm=[1, 2, 0])
    x = graph.unsqueeze(terms, 3)  # (steps, 4, m, 1)
    w = x
    if weights is not None:
        padded = graph.add("Pad", weights, graph.constant(np.array([0, 0, 1, 0])))
        w = graph.unsqueeze(graph.add("Gather", padded, order, axis=0), 2)  # (steps, 4, 1, L)

    def step(body: Graph, states: list[str], entries: list[str]) -> list[str]:
        return [body.add("Add", states[0], body.add("Mul", *entries))]

    first = graph.constant(np.int64(0))
    product = graph.add("Mul", graph.add("Gather", x, first, axis=0), graph.add("Gather", w, first, axis=0))
    start = graph.add("Mul", product, graph.constant(np.float64(0)))
    sums = graph.scan(step, [(start, "DOUBLE", 3)], [(x, "DOUBLE", 3), (w, "DOUBLE", 3)])
    a, b, c, d = (graph.add("Gather", sums, graph.constant(np.int64(i)), axis=0) for i in range(LANES))
    return str(graph.add("Add", graph.add("Add", a, b), graph.add("Add", c, d)))


# ---- Scores of the encoders that are not linear, in float64 as the encoders compute them
#
# A function takes a graph, the name of scaled rows, (n, D) float64 but rounded to float32, and an encoder,
# and returns the name of scores, (n, L) float64. Sums of BLAS and of onnxruntime differ in their last
# digits: a bit can differ only if a score is 0 but for that, and there `encode` itself may depend on the
# library that multiplies.

KERNEL_ROUNDING = 1e-12  # of the sum of sizes of a kernel encoder's weights: smaller scores it calls 0
PI_PARTS = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)  # their sum is π


def _spectral(graph: Graph, X: str, encoder: SpectralEncoder) -> str:
    along = graph.add("MatMul", X, graph.constant(encoder.axes))
    along = graph.add("Sub", along, graph.constant(encoder.low))
    chosen = graph.add("Gather", along, graph.constant(encoder.axis), axis=1)
    return _like_cosine(graph, graph.add("Mul", chosen, graph.constant(encoder.frequency)))


def _like_cosine(graph: Graph, angle: str) -> str:
    """A function with the sign of the cosine, to the last digit: onnxruntime's own is too coarse next to 0.

    For m = ⌊a/π⌋ it is −(−1)^m d, with d the distance of a from (m + ½)π, where the cosine is 0. π comes in
    parts of 33 bits, so that their products with m + ½ are exact.
    """
    turns = graph.add("Floor", graph.add("Div", angle, graph.constant(np.float64(np.pi))))
    middle = graph.add("Add", turns, graph.constant(np.float64(0.5)))
    distance = angle
    for part in PI_PARTS:
        distance = graph.add("Sub", distance, graph.add("Mul", middle, graph.constant(np.float64(part))))
    two = graph.constant(np.float64(2))
    even = graph.add("Mul", graph.add("Floor", graph.add("Div", turns, two)), two)
    odd = graph.add("Sub", turns, even)  # 1 where m is odd, else 0
    sign = graph.add("Sub", graph.add("Mul", odd, two), graph.constant(np.float64(1)))
    return str(graph.add("Mul", sign, distance))


def _kernel(graph: Graph, X: str, encoder: KernelEncoder) -> str:
    near = _gaussian(graph, _squared_distances(graph, X, encoder.anchors), encoder.bandwidth.item())
    near = graph.add("Sub", near, graph.constant(encoder.means))
    scores = graph.add("MatMul", near, graph.constant(encoder.weights))
    rounding = graph.constant(KERNEL_ROUNDING * np.abs(encoder.weights).sum(axis=0))
    return graph.zero_where(graph.add("LessOrEqual", graph.add("Abs", scores), rounding), scores)


def _rbf(graph: Graph, X: str, encoder: RbfEncoder) -> str:
    near = _gaussian(graph, _squared_distances(graph, X, encoder.centres), encoder.bandwidth.item())
    near = graph.add("Sub", near, graph.constant(encoder.means.astype(np.float64)))
    weights = graph.cast(graph.constant(encoder.weights), "DOUBLE")
    scores = graph.add("MatMul", graph.add("Concat", X, near, axis=1), weights)
    scores = graph.add("Add", scores, graph.constant(encoder.bias.astype(np.float64)))
    rounding = graph.constant(encoder.rounding)
    return graph.zero_where(graph.add("LessOrEqual", graph.add("Abs", scores), rounding), scores)


def _spherical(graph: Graph, X: str, encoder: SphericalEncoder) -> str:
    squared = _squared_distances(graph, X, encoder.pivots)
    return str(graph.add("Sub", graph.constant(encoder.radii**2), squared))


def _anchor_graph(graph: Graph, X: str, encoder: AnchorGraphEncoder) -> str:
    m, s = len(encoder.anchors), encoder.n_neighbors.item()
    near, ids = _nearest(graph, _squared_distances(graph, X, encoder.anchors), m, s)
    nearest = graph.add("ReduceMin", near, axes=[1], keepdims=1)
    share = _gaussian(graph, graph.add("Sub", near, nearest), encoder.bandwidth.item())
    share = graph.add("Div", share, graph.sum(share, 1))
    weights = graph.add("Gather", graph.constant(encoder.weights), ids, axis=0)  # (n, s, r)
    y = graph.add("MatMul", graph.unsqueeze(share, 1), weights)
    y = graph.add("Squeeze", y, graph.constant(np.array([1])))
    y = graph.zero_where(graph.add("Less", graph.add("Abs", y), graph.constant(np.float64(ROUNDING))), y)
    above, below = encoder.thresholds
    if not len(above):
        return y
    halved = graph.add("Gather", y, graph.constant(np.arange(len(above))), axis=1)
    sides = (
        graph.add("GreaterOrEqual", halved, graph.constant(np.float64(0))),
        graph.add("Sub", halved, graph.constant(above)),
        graph.add("Sub", graph.constant(below), halved),
    )
    return str(graph.add("Concat", y, graph.add("Where", *sides), axis=1))


def _nearest(graph: Graph, distances: str, m: int, s: int) -> tuple[str, str]:
    """anchors.nearest_anchors, in any order. distances : (n, m) → (n, s) float64, (n, s) int64.

    Which of nearly equal ones are taken depends on the order in which anchors come. An anchor that is
    (1 + TIE)^(s + 1) times as far as the s-th never is; so if the next is that far, sorting does. In the
    other rows anchors are inserted one by one.
    """
    k = graph.constant(np.array([min(s + 1, m)]))
    near, ids = graph.add("TopK", distances, k, outputs=2, axis=1, largest=0, sorted=1)
    if s == m:
        return near, ids
    chosen = graph.constant(np.arange(s))
    last = graph.add("Gather", near, graph.constant(np.array([s - 1])), axis=1)
    after = graph.add("Gather", near, graph.constant(np.array([s])), axis=1)
    limit = graph.add("Mul", last, graph.constant(np.float64((1 + TIE) ** (s + 2))))
    doubtful = graph.rows_where(graph.add("LessOrEqual", after, limit))
    near, ids = (graph.add("Gather", found, chosen, axis=1) for found in (near, ids))

    def insert(inner: Graph) -> list[str]:
        return _inserted(inner, inner.add("GatherND", distances, doubtful), m, s)

    near, ids = graph.amended([near, ids], ["DOUBLE", "INT64"], doubtful, insert)
    return near, ids


def _inserted(graph: Graph, distances: str, m: int, s: int) -> list[str]:
    """The same by the steps of anchors._smallest."""
    places = graph.constant(np.arange(s))
    pushed = graph.constant(np.maximum(np.arange(s) - 1, 0))  # where an entry comes from that is moved back
    zero, one = graph.constant(np.int64(0)), graph.constant(np.int64(1))
    first = graph.add("Gather", distances, graph.constant(np.array([0])), axis=1)
    nothing = graph.add("Mul", first, graph.constant(np.zeros(s)))
    far = graph.add("Add", nothing, graph.constant(np.float64(np.inf)))
    columns = graph.unsqueeze(graph.add("Transpose", distances, perm=[1, 0]), 2)  # (m, n, 1)

    def insert(body: Graph, states: list[str], entries: list[str]) -> list[str]:
        (near, ids), (distance, number) = states, entries
        nearer = body.add("Mul", distance, body.constant(np.float64(1.0 + TIE)))
        stays = body.add("LessOrEqual", near, nearer)
        behind = body.add("Where", stays, body.add("Add", places, one), zero)
        place = body.add("ReduceMax", behind, axes=[1], keepdims=1)
        before, here = body.add("Less", places, place), body.add("Equal", places, place)

        def changed(old: str, new: str) -> str:
            moved = body.add("Gather", old, pushed, axis=1)
            return str(body.add("Where", before, old, body.add("Where", here, new, moved)))

        return [changed(near, distance), changed(ids, number)]

    states = [(far, "DOUBLE", 2), (graph.cast(nothing, "INT64"), "INT64", 2)]
    inputs = [(columns, "DOUBLE", 2), (graph.constant(np.arange(m)), "INT64", 0)]
    found: list[str] = graph.scan(insert, states, inputs)
    return found


def _squared_distances(graph: Graph, X: str, centres: npt.NDArray[np.floating[Any]]) -> str:
    """‖x − c‖². X : (n, D), centres : (m, D) → (n, m)."""
    points = centres.astype(np.float64)
    products = graph.add("MatMul", X, graph.constant(np.ascontiguousarray(-2.0 * points.T)))
    squared = graph.add("Add", products, graph.sum(graph.add("Mul", X, X), 1))
    squared = graph.add("Add", squared, graph.constant(np.einsum("md,md->m", points, points)))
    return str(graph.add("Max", squared, graph.constant(np.float64(0))))


def _gaussian(graph: Graph, squared: str, bandwidth: float) -> str:
    """exp(−d²/2σ²) of squared distances."""
    return str(graph.add("Exp", graph.add("Mul", squared, graph.constant(np.float64(-0.5 / bandwidth**2)))))


# ---- Whole hash functions

INPUT, OUTPUT = "X", "codes"
SCORES: dict[type, Callable[[Graph, str, Any], str]] = {
    SpectralEncoder: _spectral,
    KernelEncoder: _kernel,
    AnchorGraphEncoder: _anchor_graph,
    SphericalEncoder: _spherical,
    RbfEncoder: _rbf,
}


def to_onnx(model: Hasher, path: PathLike, *, overwrite: bool = True) -> None:
    """Write the hash function of a fitted hasher as an ONNX model, atomically.

    >>> import numpy as np
    >>> import onnxruntime
    >>> from auxbit import LSH
    >>> from auxbit.export import to_onnx
    >>> X = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    >>> model = LSH(n_bits=32, random_state=0).fit(X)
    >>> to_onnx(model, "hash.onnx")
    >>> (codes,) = onnxruntime.InferenceSession("hash.onnx").run(None, {"X": X})
    >>> np.array_equal(codes, model.encode(X))
    True

    Its input `X` is (n, D) float32, its output `codes` (n, ceil(n_bits/8)) uint8, the same bytes as
    model.encode(X). It does not check its input as `encode` does: rows with NaN or infinity get meaningless
    codes. Convert rows of other types to float32 first.
    """
    files.refuse_existing(Path(path), overwrite=overwrite)
    files.write_bytes(path, onnx_bytes(model), overwrite=overwrite)


def onnx_bytes(model: Hasher) -> bytes:
    """The content of such a file."""
    method = type(model).__name__
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {method} is not fitted: call fit before its hash function is exported.")
    if model.scaling_.lift:
        raise InvalidInput(
            "an ONNX model treats rows and queries alike, but lift=True gives them different codes. Fit a "
            "model to evaluate.lift_rows(X, M), and encode queries by evaluate.lift_queries(X, M)."
        )
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
    scores_of = SCORES.get(type(encoder))
    if scores_of is None:
        raise InvalidInput(f"{type(encoder).__name__} is not an encoder of auxbit, so it has no ONNX form.")
    rows = graph.cast(scaled(graph, graph.cast(INPUT, "DOUBLE"), scaling), "FLOAT")  # as encoders take them
    scores = scores_of(graph, graph.cast(rows, "DOUBLE"), encoder)
    return graph.packed(graph.add("GreaterOrEqual", scores, graph.constant(np.float64(0))), n_bits)
