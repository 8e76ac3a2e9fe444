"""Compiled scans of byte planes: which of 64 codes lie within a distance, 64 bytes an instruction.

Distances are counted with a byte a lane; from 256 bits on, where a byte may not hold them, with two. The
vectors are LLVM's generic ones: any processor runs them, in pieces if its registers are shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.misc.special import literally

from auxbit.compiled import kernel
from auxbit.index.code_blocks import LANES

Codes = npt.NDArray[np.uint8]  # the planes of all blocks, flat
QueryWords = npt.NDArray[np.uint32]  # (q, width), each byte of a query four times

TILE_BYTES = 2**15  # codes that stay in the first-level cache while a group of queries is compared to them
TILE_BLOCKS = 2**7  # at most

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _SHORTS = ir.VectorType(_I8, LANES), ir.VectorType(_I16, LANES)
_PLANES_A_BYTE = 16  # planes summed up without saturation: at most 128 of 255


class _Lanes(types.Type):
    """A count for each of 64 lanes, in vector registers."""

    def __init__(self, vector: ir.VectorType) -> None:
        self.vector = vector
        super().__init__(name=f"Lanes({vector})")


class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: _Lanes) -> None:
        initialise: Any = super().__init__
        initialise(manager, lanes, lanes.vector)


register_model(_Lanes)(_LanesModel)
_bytes, _shorts = _Lanes(_BYTES), _Lanes(_SHORTS)


def _splat(builder: ir.IRBuilder, value: Any, n: int) -> Any:
    lanes = ir.VectorType(value.type, n)
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_I32, n), [0] * n))


def _call(builder: ir.IRBuilder, name: str, *vectors: Any) -> Any:
    signature = ir.FunctionType(_BYTES, [_BYTES] * len(vectors))
    declare: Any = cgutils.get_or_insert_function
    return builder.call(declare(builder.module, signature, name), vectors)


def _load(builder: ir.IRBuilder, kind: Any, address: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _zeros(typing_context: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_BYTES, None)

    return _bytes(), emit


def _wide_zeros(typing_context: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_SHORTS, None)

    return _shorts(), emit


def _add_planes(typing_context: Any, n: Any, counts: Any, planes: Any, query: Any) -> tuple[Any, Any]:
    """Add to `counts` in how many bits n planes and n words of a query differ, both from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        total, planes_start, query_start = arguments[1:]
        for first in range(0, n.literal_value, _PLANES_A_BYTE):
            part = None
            for j in range(first, min(first + _PLANES_A_BYTE, n.literal_value)):
                plane = _load(builder, _BYTES, builder.add(planes_start, _I64(LANES * j)), 1)
                # Four equal bytes: spreading 32 bits comes with the load, spreading 8 takes an instruction.
                word = _load(builder, _I32, builder.add(query_start, _I64(4 * j)), 4)
                differing = builder.xor(plane, builder.bitcast(_splat(builder, word, LANES // 4), _BYTES))
                ones = _call(builder, "llvm.ctpop.v64i8", differing)
                part = ones if part is None else builder.add(part, ones)
            total = _call(builder, "llvm.uadd.sat.v64i8", total, part)
        return total

    return _bytes(n, _bytes, types.intp, types.intp), emit


def _widen_add(typing_context: Any, wide: Any, counts: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.add(arguments[0], builder.zext(arguments[1], _SHORTS))

    return _shorts(_shorts, _bytes), emit


def _lanes_within(typing_context: Any, counts: Any, most: Any) -> tuple[Any, Any]:
    """The lanes whose count is at most `most`, which must fit into a lane: bit l for lane l."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        bound = builder.trunc(arguments[1], counts.vector.element)
        within = builder.icmp_unsigned("<=", arguments[0], _splat(builder, bound, LANES))
        return builder.bitcast(within, _I64)

    return types.uint64(counts, types.intp), emit


def _store(typing_context: Any, wide: Any, out: Any) -> tuple[Any, Any]:
    """Write 64 counts, uint16, to an address."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[0], builder.inttoptr(arguments[1], _SHORTS.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(_shorts, types.intp), emit


def _address(typing_context: Any, array: Any) -> tuple[Any, Any]:
    """Where an array begins. Arrays themselves are counted at each call, which takes longer than a block."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, _I64)

    return types.intp(array), emit


def _word_at(typing_context: Any, start: Any, i: Any) -> tuple[Any, Any]:
    """The i-th of 64-bit words from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _load(builder, _I64, builder.add(arguments[0], builder.mul(arguments[1], _I64(8))), 8)

    return types.uint64(types.intp, types.intp), emit


def _trailing_zeros(typing_context: Any, word: Any) -> tuple[Any, Any]:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.intp(types.uint64), emit


# Made once, by name: what a function makes on the way numba compiles anew in every process.
zeros: Any = intrinsic(_zeros)
wide_zeros: Any = intrinsic(_wide_zeros)
add_planes: Any = intrinsic(prefer_literal=True)(_add_planes)
widen_add: Any = intrinsic(_widen_add)
lanes_within: Any = intrinsic(_lanes_within)
store: Any = intrinsic(_store)
address: Any = intrinsic(_address)
word_at: Any = intrinsic(_word_at)
trailing_zeros: Any = intrinsic(_trailing_zeros)


@kernel
def _next_of_width(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` with all planes of a block unrolled and the query in registers; `most` is below 255."""
    literally(width)
    while i < stop:
        allowed = word_at(masks, i)
        if allowed:
            counts = add_planes(width, zeros(), codes + i * (width * LANES), query)
            hits = lanes_within(counts, most) & allowed
            if hits:
                store(widen_add(wide_zeros(), counts), out)
                return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def _next_of_few(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` for fewer than 32 bytes: a distance fits into a byte."""
    while i < stop:
        allowed = word_at(masks, i)
        if allowed:
            at, word, counts = codes + i * (width * LANES), query, zeros()
            for _ in range(width // 4):
                counts = add_planes(4, counts, at, word)
                at, word = at + 4 * LANES, word + 4 * 4
            for _ in range(width % 4):
                counts = add_planes(1, counts, at, word)
                at, word = at + LANES, word + 4
            hits = lanes_within(counts, most) & allowed
            if hits:
                store(widen_add(wide_zeros(), counts), out)
                return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def _next_of_many(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """`next_hit` for any number of bytes: after each 32, a block that is too far already is left."""
    while i < stop:
        at, word = codes + i * (width * LANES), query
        wide, left, hits = wide_zeros(), width, word_at(masks, i)
        while left >= 32 and hits:
            wide = widen_add(wide, add_planes(16, zeros(), at, word))
            wide = widen_add(wide, add_planes(16, zeros(), at + 16 * LANES, word + 16 * 4))
            at, word, left = at + 32 * LANES, word + 32 * 4, left - 32
            hits &= lanes_within(wide, most)
        if left and hits:
            counts = zeros()
            for _ in range(left):
                counts = add_planes(1, counts, at, word)
                at, word = at + LANES, word + 4
            wide = widen_add(wide, counts)
            hits &= lanes_within(wide, most)
        if hits:
            store(wide, out)
            return i, hits
        i += 1
    return stop, np.uint64(0)


@kernel
def next_hit(
    width: int, codes: int, masks: int, i: int, stop: int, query: int, most: int, out: int
) -> tuple[int, np.uint64]:
    """The first of blocks i..stop with allowed lanes within `most`, and these lanes; or `stop` and none.

    The others are addresses: of the planes, of the masks of allowed lanes, of the query's words, and of 64
    uint16, which get the distances of the block that is found.
    """
    if width == 4:
        return _next_of_width(4, codes, masks, i, stop, query, most, out)
    if width == 8:
        return _next_of_width(8, codes, masks, i, stop, query, most, out)
    if width == 16:
        return _next_of_width(16, codes, masks, i, stop, query, most, out)
    if width == 32 and most < 255:
        return _next_of_width(32, codes, masks, i, stop, query, most, out)
    if width < 32:
        return _next_of_few(width, codes, masks, i, stop, query, most, out)
    return _next_of_many(width, codes, masks, i, stop, query, most, out)


@kernel
def tile_blocks(width: int) -> int:
    """How many blocks a group of queries is compared to at a time."""
    return max(1, min(TILE_BLOCKS, TILE_BYTES // (width * LANES)))
