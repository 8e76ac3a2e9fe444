"""Products of rows with many columns, as fast as BLAS's, and the same for a row whatever rows are beside it.

BLAS rounds by how many rows there are, so that the code of a row would depend on its neighbours. Here every
sum runs over the dimensions in their order; a tile of 4 rows × 64 columns of sums stays in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from auxbit.compiled import kernel
from auxbit.maps import Float32

Panels = npt.NDArray[np.float32]  # (K / 64, D, 64)

ROWS, VECTORS, LANES = 4, 4, 16  # a tile: so many rows by so many vectors of so many columns
COLUMNS = VECTORS * LANES
GROUP = 128  # rows that go through all panels before the next ones

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_cgutils: Any = untyped_cgutils


def _tile(
    typing_context: Any, rows: Any, row_step: Any, panel: Any, depth: Any, out: Any, out_step: Any
) -> tuple[Any, Any]:
    """Four rows times a panel, from addresses on, rows and out in steps of bytes."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        rows_at, rows_by, panel_at, n, out_at, out_by = arguments

        def at(start: Any, *offsets: Any) -> Any:
            for offset in offsets:
                start = builder.add(start, offset)
            return start

        def pointer(address: Any, kind: Any) -> Any:
            return builder.inttoptr(address, kind.as_pointer())

        zero = ir.Constant(_VECTOR, None)
        sums = [[_cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(ROWS)]
        signature_ = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        multiply_add = _cgutils.get_or_insert_function(builder.module, signature_, "llvm.fmuladd.v16f32")
        spread = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        with _cgutils.for_range(builder, n, intp=_I64) as loop:
            line = at(panel_at, builder.mul(loop.index, _I64(4 * COLUMNS)))
            vectors = [
                builder.load(pointer(at(line, _I64(4 * LANES * v)), _VECTOR), align=4) for v in range(VECTORS)
            ]
            for r in range(ROWS):
                place = at(rows_at, builder.mul(_I64(r), rows_by), builder.mul(loop.index, _I64(4)))
                x = builder.load(pointer(place, _FLOAT), align=4)
                first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), x, _I32(0))
                everywhere = builder.shuffle_vector(first, first, spread)
                for v in range(VECTORS):
                    total = builder.call(multiply_add, [everywhere, vectors[v], builder.load(sums[r][v])])
                    builder.store(total, sums[r][v])
        for r in range(ROWS):
            for v in range(VECTORS):
                place = at(out_at, builder.mul(_I64(r), out_by), _I64(4 * LANES * v))
                builder.store(builder.load(sums[r][v]), pointer(place, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), emit


_multiply_tile: Any = intrinsic(_tile)


def to_panels(columns: npt.NDArray[np.floating[Any]]) -> Panels:
    """Columns, (D, K) with K a multiple of 64, in panels of 64 that are read from front to end."""
    D, K = columns.shape
    panels = columns.astype(np.float32).reshape(D, K // COLUMNS, COLUMNS).transpose(1, 0, 2)
    return np.ascontiguousarray(panels)


def tile_products(X: Float32, panels: Panels) -> Float32:
    """X times the columns of the panels, (n, D) → (n, K) float32."""
    n, D = X.shape
    rows = np.zeros((-(-n // ROWS) * ROWS, D), dtype=np.float32)
    rows[:n] = X
    out = np.empty((len(rows), panels.shape[0] * COLUMNS), dtype=np.float32)
    _multiply(rows, panels, out)
    return out[:n]


@kernel
def _multiply(X: Any, panels: Any, out: Any) -> None:
    n, D = X.shape
    K = out.shape[1]
    X_at, panels_at, out_at = X.ctypes.data, panels.ctypes.data, out.ctypes.data
    for group in range(0, n, GROUP):
        for p in range(len(panels)):
            for r in range(group, min(n, group + GROUP), ROWS):
                here = out_at + 4 * (r * K + p * COLUMNS)
                _multiply_tile(X_at + 4 * r * D, 4 * D, panels_at + 4 * p * D * COLUMNS, D, here, 4 * K)
