"""Scores of the encoders that are not linear, as ONNX operations, in float64 as the encoders compute them.

Sums of BLAS and of onnxruntime differ in their last digits: a bit can differ only where a score is 0 but for
that, and there `encode` itself may depend on the library that multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.encoding import Encoder
from auxbit.export.onnx_nodes import Graph
from auxbit.hashers.anchor_graph import ROUNDING, AnchorGraphEncoder
from auxbit.hashers.klsh import KernelEncoder
from auxbit.hashers.spectral import SpectralEncoder
from auxbit.hashers.spherical import SphericalEncoder
from auxbit.kernels import TIE

KERNEL_ROUNDING = 1e-12  # of the sum of sizes of a kernel encoder's weights: smaller scores it calls 0
PI_PARTS = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)  # their sum is π

Writer = Callable[[Graph, str, Any], str]


def writer_of(encoder: Encoder) -> Writer | None:
    """A function that adds the operations to a graph, if there is one for this kind of encoder.

    graph, X : (n, D) scaled rows, float64 but rounded to float32, encoder → (n, L) float64.
    """
    return WRITERS.get(type(encoder))


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


def _spherical(graph: Graph, X: str, encoder: SphericalEncoder) -> str:
    squared = _squared_distances(graph, X, encoder.pivots)
    return str(graph.add("Sub", graph.constant(encoder.radii**2), squared))


# ---- anchor graphs


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
    """kernels.nearest_anchors, in any order. distances : (n, m) → (n, s) float64, (n, s) int64.

    Which of nearly equal ones are taken depends on the order in which anchors come. An anchor that is
    (1 + TIE)^(s + 1) times as far as the s-th never is; so where the next is that far, sorting does. In the
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
    """The same by kernels._smallest's own steps."""
    places = graph.constant(np.arange(s))
    pushed = graph.constant(np.maximum(np.arange(s) - 1, 0))  # where an entry comes from that is moved on
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


# ---- kernels


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


WRITERS: dict[type, Writer] = {
    SpectralEncoder: _spectral,
    KernelEncoder: _kernel,
    AnchorGraphEncoder: _anchor_graph,
    SphericalEncoder: _spherical,
}
