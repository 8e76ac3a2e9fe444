"""Linear encoders as ONNX operations, in the two steps of encoding.py.

Signs of a product in float32, with the same margins of doubt; then the rows that have a score in doubt again,
in float64, and there in the order of maps.dot, term by term: sums in another order would differ in the last
digit, and rows that lie on a hyperplane would get another bit.
"""

from __future__ import annotations

import numpy as np

from auxbit.encoding import LARGEST_FLOAT32
from auxbit.export.onnx_nodes import Graph
from auxbit.maps import LinearEncoder, RawEncoder, Scaling

LANES = 4  # sums that maps.dot adds up side by side


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
    """Rows divided by their norms, unless these are 0."""
    squared = _dot(graph, X, None, n_dims) if in_order else graph.sum(graph.add("Mul", X, X), 1)
    norm = graph.add("Sqrt", squared)
    is_zero = graph.add("Equal", norm, graph.constant(np.float64(0)))
    return str(graph.add("Div", X, graph.add("Where", is_zero, graph.constant(np.float64(1)), norm)))


def _dot(graph: Graph, X: str, weights: str | None, n_dims: int) -> str:
    """X : (m, D), weights : (D, L) → (m, L), or without weights the products of rows with themselves, (m, 1).

    As maps.dot does it: four sums side by side, and what is left over in the first.
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
