"""Instructions that compiled searches of buckets are made of: comparing lanes, prefetching, lowest bits.

The vectors are LLVM's generic ones: any processor runs them, in pieces if its registers are shorter.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # codes compared at once

code: Any = cgutils  # has no types


def _near_lanes(typing_context: Any, codes: Any, start: Any, query: Any, limit: Any) -> Any:
    """Which of LANES codes, (n_words, n), from `start` on are within `limit` of the query: a bit a lane."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        planes = context.make_array(codes)(context, builder, arguments[0])
        words = context.make_array(query)(context, builder, arguments[2])
        word_type = context.get_data_type(codes.dtype)
        vector = ir.VectorType(word_type, LANES)
        n_words = code.unpack_tuple(builder, planes.shape)[0]
        count_bits = code.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector]), f"llvm.ctpop.v{LANES}i{word_type.width}"
        )

        def splat(word: Any) -> Any:
            undefined, lane = ir.Constant(vector, ir.Undefined), ir.IntType(32)
            one = builder.insert_element(undefined, word, ir.Constant(lane, 0))
            return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(lane, LANES), None))

        def distance(w: Any) -> Any:
            at = [w, arguments[1]]
            place = code.get_item_pointer(context, builder, codes, planes, at, wraparound=False)
            lanes = builder.load(builder.bitcast(place, vector.as_pointer()), align=word_type.width // 8)
            word = code.get_item_pointer(context, builder, query, words, [w], wraparound=False)
            differing = builder.xor(lanes, splat(builder.load(word)))
            return builder.call(count_bits, [differing])

        total = code.alloca_once_value(builder, distance(ir.Constant(n_words.type, 0)))
        with code.for_range(builder, n_words, start=ir.Constant(n_words.type, 1)) as loop:
            builder.store(builder.add(builder.load(total), distance(loop.index)), total)
        most = builder.trunc(arguments[3], word_type) if word_type.width < 64 else arguments[3]
        near = builder.icmp_unsigned("<=", builder.load(total), splat(most))
        return builder.zext(builder.bitcast(near, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(codes, types.int64, query, types.int64), emit


def _ask_for(typing_context: Any, values: Any, place: Any) -> Any:
    """Prefetch values[place]: what is read next lies far apart."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        array = context.make_array(values)(context, builder, arguments[0])
        item = code.get_item_pointer(context, builder, values, array, [arguments[1]], wraparound=False)
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        )
        options = [ir.Constant(flag, option) for option in (0, 3, 1)]  # to read, keep close, data
        builder.call(prefetch, [builder.bitcast(item, pointer), *options])
        return context.get_dummy_value()

    return types.void(values, types.int64), emit


def _lowest_bit(typing_context: Any, word: Any) -> Any:
    """The number of the lowest bit set in a word that is not 0."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), emit


near_lanes: Any = intrinsic(_near_lanes)
ask_for: Any = intrinsic(_ask_for)
lowest_bit: Any = intrinsic(_lowest_bit)
