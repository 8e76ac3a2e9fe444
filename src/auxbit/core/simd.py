"""Table look-ups in vector registers: lower bounds of the distances of 64 codes at once.

A code is a row of small indices, each with a table of bytes; the sum of what is looked up is compared with
a limit, and the answer is a bit a cgutils. Indices have 6 bits where the machine permutes 64 bytes at once
(AVX-512 VBMI; there also whole bytes can be looked up, in tables of 256), or 4 bits (AVX2).

Narrow sums are bytes, which stay at 255 when they get there. Wide sums have 16 bits: each four look-ups are
added as bytes first, so a table's entries are at most 63.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

LANES = 64  # codes of a block, bytes of a vector
TILE = 4  # blocks whose sums are in registers together
WIDE_STEP = 4  # look-ups that are added as bytes before they are widened

cgutils: Any = untyped_cgutils  # has no types

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_BYTES = ir.VectorType(_I8, LANES)
_PAIRS = ir.VectorType(_I16, LANES // 2)
_ZEROS = ir.Constant(_BYTES, None)


@cache
def index_bits() -> int:
    """How many bits an index has on the machine that numba compiles for; 0: it has no such look-ups."""
    return _bits_of(cpu_target.target_context)


def _bits_of(context: Any) -> int:
    _, _, features = context.codegen().magic_tuple()
    named = set(features.split(","))
    has = {name[1:] for name in named if name[:1] == "+" and "-" + name[1:] not in named}
    if has >= {"avx512f", "avx512bw", "avx512vbmi"}:
        return 6
    return 4 if "avx2" in has else 0


# The four look-ups share their arguments. index : (4 · tiles, m + n, 64) bytes, from byte `at` on, m = 1 for
# narrow and 2 for wide sums; tables : bytes, from byte `of` on, m of 64 entries, then n of 64 or 256. They
# return the first tile in which a code's sum is at most `limit`, and `tiles` if there is none; the tile's
# codes are written into masks, (4,) uint64. Arrays begin at multiples of 64 bytes. A machine without the
# instructions finds that all codes pass.


def _narrow_groups(
    typing_context: Any,
    index: Any, at: Any, tiles: Any, n: Any, tables: Any, of: Any, limit: Any, masks: Any,
) -> tuple[Any, Any]:  # fmt: skip
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _LookUp(context, builder, signature, arguments).first_tile(whole_bytes=False, wide=False)

    return _signature(index, tables, masks), emit


def _wide_groups(
    typing_context: Any,
    index: Any, at: Any, tiles: Any, n: Any, tables: Any, of: Any, limit: Any, masks: Any,
) -> tuple[Any, Any]:  # fmt: skip
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _LookUp(context, builder, signature, arguments).first_tile(whole_bytes=False, wide=True)

    return _signature(index, tables, masks), emit


def _narrow_bytes(
    typing_context: Any,
    index: Any, at: Any, tiles: Any, n: Any, tables: Any, of: Any, limit: Any, masks: Any,
) -> tuple[Any, Any]:  # fmt: skip
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _LookUp(context, builder, signature, arguments).first_tile(whole_bytes=True, wide=False)

    return _signature(index, tables, masks), emit


def _wide_bytes(
    typing_context: Any,
    index: Any, at: Any, tiles: Any, n: Any, tables: Any, of: Any, limit: Any, masks: Any,
) -> tuple[Any, Any]:  # fmt: skip
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _LookUp(context, builder, signature, arguments).first_tile(whole_bytes=True, wide=True)

    return _signature(index, tables, masks), emit


def _shifted_lanes(
    typing_context: Any,
    source: Any, low: Any, high: Any, down: Any, kept: Any, rest: Any, target: Any, to: Any,
) -> tuple[Any, Any]:  # fmt: skip
    i64, u64 = types.int64, types.uint64

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words = ir.VectorType(_I64, LANES // 8)
        _, low, high, down, kept, rest, _, to = arguments

        def place(position: int, at: Any) -> Any:
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            start = builder.gep(builder.bitcast(array.data, _I8.as_pointer()), [at])
            return builder.bitcast(start, words.as_pointer())

        def splat(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(words, ir.Undefined), value, _I32(0))
            zeros = ir.Constant(ir.VectorType(_I32, words.count), None)
            return builder.shuffle_vector(first, first, zeros)

        lower = builder.lshr(builder.load(place(0, low), align=8), splat(down))
        upper = builder.shl(builder.load(place(0, high), align=8), splat(builder.sub(_I64(8), down)))
        both = builder.or_(builder.and_(lower, splat(kept)), builder.and_(upper, splat(rest)))
        builder.store(both, place(6, to), align=8)
        return context.get_dummy_value()

    return types.void(source, i64, i64, i64, u64, u64, target, i64), emit


# Bits of two vectors of 64 bytes, at bytes `low` and `high` of the source, as one at byte `to` of the target:
# (low >> down) & kept | (high << 8 − down) & rest in every byte.
shifted_lanes: Any = intrinsic(_shifted_lanes)


def _signature(index: Any, tables: Any, masks: Any) -> Any:
    i64 = types.int64
    return i64(index, i64, i64, i64, tables, i64, i64, masks)


narrow_groups: Any = intrinsic(_narrow_groups)  # tables of 64 entries, or of 16 four times over
wide_groups: Any = intrinsic(_wide_groups)  # the same; n is a multiple of four
narrow_bytes: Any = intrinsic(_narrow_bytes)  # n tables of 256 entries
wide_bytes: Any = intrinsic(_wide_bytes)  # the same; n is a multiple of four


class _LookUp:
    """The code of one of the look-ups, written instruction by instruction."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> None:
        self.builder, self.bits = builder, _bits_of(context)
        index, at, self.tiles, self.n, tables, of, self.limit, masks = arguments

        def data(position: int, array: Any) -> Any:
            pointer = context.make_array(signature.args[position])(context, builder, array).data
            return builder.bitcast(pointer, _I8.as_pointer())

        self.index = builder.gep(data(0, index), [at])
        self.tables = builder.gep(data(4, tables), [of])
        self.masks = builder.bitcast(data(7, masks), _I64.as_pointer())

    def first_tile(self, whole_bytes: bool, wide: bool) -> Any:
        """Find the first tile with codes within the limit, and write its masks."""
        builder = self.builder
        self.table_vectors = 4 if whole_bytes else 1
        self.first_tables = 2 if wide else 1
        self.block_bytes = builder.mul(builder.add(self.n, _I64(self.first_tables)), _I64(LANES))
        if not self.bits or (whole_bytes and self.bits < 6):
            self._store([_I64(2**64 - 1)] * TILE)
            return _I64(0)
        found = self._variable(self.tiles)
        with cgutils.for_range(builder, self.tiles) as loop:
            tile_bytes = builder.mul(self.block_bytes, _I64(TILE))
            self.tile = builder.gep(self.index, [builder.mul(loop.index, tile_bytes)])
            passed = self._wide() if wide else self._narrow()
            words = [builder.bitcast(mask, _I64) for mask in passed]
            some = builder.or_(builder.or_(words[0], words[1]), builder.or_(words[2], words[3]))
            with builder.if_then(builder.icmp_unsigned("!=", some, _I64(0)), likely=False):
                self._store(words)
                builder.store(loop.index, found)
                loop.do_break()
        return builder.load(found)

    def _narrow(self) -> list[Any]:
        builder = self.builder
        add = self._function("llvm.uadd.sat.v64i8", _BYTES)
        sums = [self._variable(first) for first in self._look_up_first(0)]
        with cgutils.for_range(builder, self.n) as loop:
            for total, found in zip(sums, self._look_up(loop.index)):
                builder.store(builder.call(add, [builder.load(total), found]), total)
        limits = self._splat(builder.trunc(self.limit, _I8), _BYTES)
        return [builder.icmp_unsigned("<=", builder.load(total), limits) for total in sums]

    def _wide(self) -> list[Any]:
        """Sums of the lower and of the upper byte of each pair; lanes are put in order at the end."""
        builder = self.builder
        eights, lower = (ir.Constant(_PAIRS, [value] * _PAIRS.count) for value in (8, 255))
        evens, odds = [], []
        for low, high in zip(self._look_up_first(0), self._look_up_first(1)):  # bytes of numbers of 16 bits
            low, high = builder.bitcast(low, _PAIRS), builder.bitcast(high, _PAIRS)
            even = builder.or_(builder.and_(low, lower), builder.shl(high, eights))
            odd = builder.or_(builder.lshr(low, eights), builder.and_(high, builder.not_(lower)))
            evens.append(self._variable(builder.add(even, builder.shl(odd, eights))))
            odds.append(self._variable(odd))
        with cgutils.for_range(builder, builder.udiv(self.n, _I64(WIDE_STEP))) as loop:
            start = builder.mul(loop.index, _I64(WIDE_STEP))
            found = self._look_up(start)
            for step in range(1, WIDE_STEP):
                more = self._look_up(builder.add(start, _I64(step)))
                found = [builder.add(a, b) for a, b in zip(found, more)]
            for even, odd, some in zip(evens, odds, found):
                pairs = builder.bitcast(some, _PAIRS)
                builder.store(builder.add(builder.load(even), pairs), even)
                builder.store(builder.add(builder.load(odd), builder.lshr(pairs, eights)), odd)
        limits = self._splat(builder.trunc(self.limit, _I16), _PAIRS)
        half = LANES // 2
        in_order = ir.Constant(ir.VectorType(_I32, LANES), [i // 2 + i % 2 * half for i in range(LANES)])
        passed = []
        for even, odd in zip(evens, odds):
            # the sum of whole pairs is that of lower bytes plus 256 times that of upper ones
            upper = builder.load(odd)
            below = builder.sub(builder.load(even), builder.shl(upper, eights))
            within = [builder.icmp_unsigned("<=", sums, limits) for sums in (below, upper)]
            passed.append(builder.shuffle_vector(within[0], within[1], in_order))
        return passed

    def _look_up_first(self, table: int) -> list[Any]:
        """What each block of the tile finds in one of the first tables."""
        at = _I64(table * LANES)
        return self._find_all([self._vector(self.tables, at)], at)

    def _look_up(self, table: Any) -> list[Any]:
        """What each block of the tile finds in one of the n tables."""
        builder, before = self.builder, _I64(self.first_tables * LANES)
        start = builder.add(builder.mul(table, _I64(self.table_vectors * LANES)), before)
        parts = [builder.add(start, _I64(part * LANES)) for part in range(self.table_vectors)]
        entries = [self._vector(self.tables, part) for part in parts]
        return self._find_all(entries, builder.add(builder.mul(table, _I64(LANES)), before))

    def _find_all(self, entries: list[Any], at: Any) -> list[Any]:
        builder = self.builder
        blocks = [builder.mul(_I64(u), self.block_bytes) for u in range(TILE)]
        return [self._find(entries, self._vector(self.tile, builder.add(at, block))) for block in blocks]

    def _find(self, entries: list[Any], index: Any) -> Any:
        builder = self.builder
        if len(entries) == 4:
            pick = self._function("llvm.x86.avx512.vpermi2var.qi.512", _BYTES, 3)
            low, high = (builder.call(pick, [entries[i], index, entries[i + 1]]) for i in (0, 2))
            return builder.select(builder.icmp_signed("<", index, _ZEROS), high, low)
        if self.bits == 6:
            permute = self._function("llvm.x86.avx512.permvar.qi.512", _BYTES)
            return builder.call(permute, [entries[0], index])
        half = ir.VectorType(_I8, LANES // 2)
        shuffle = self._function("llvm.x86.avx2.pshuf.b", half)
        low, high = (
            builder.call(shuffle, [self._lanes(entries[0], part), self._lanes(index, part)])
            for part in (range(LANES // 2), range(LANES // 2, LANES))
        )
        return self._lanes(low, range(LANES), high)

    def _lanes(self, vector: Any, lanes: range, other: Any = None) -> Any:
        numbers = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
        other = ir.Constant(vector.type, ir.Undefined) if other is None else other
        return self.builder.shuffle_vector(vector, other, numbers)

    def _vector(self, base: Any, at: Any) -> Any:
        pointer = self.builder.bitcast(self.builder.gep(base, [at]), _BYTES.as_pointer())
        return self.builder.load(pointer, align=LANES)

    def _variable(self, value: Any) -> Any:
        variable = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, variable)
        return variable

    def _splat(self, value: Any, vector: ir.VectorType) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, vector.count), None)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def _function(self, name: str, vector: ir.VectorType, n_arguments: int = 2) -> Any:
        kind = ir.FunctionType(vector, [vector] * n_arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def _store(self, words: list[Any]) -> None:
        for u, word in enumerate(words):
            self.builder.store(word, self.builder.gep(self.masks, [_I64(u)]))


# ---- Instructions that compiled searches of buckets are made of: comparing lanes, prefetching, lowest bits
#
# The vectors are LLVM's generic ones: any processor runs them, in pieces if its registers are shorter.

BUCKET_LANES = 16  # codes compared at once


def _near_lanes(typing_context: Any, codes: Any, start: Any, query: Any, limit: Any) -> Any:
    """Which of LANES codes, (n_words, n), from `start` on are within `limit` of the query: a bit a lane."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        planes = context.make_array(codes)(context, builder, arguments[0])
        words = context.make_array(query)(context, builder, arguments[2])
        word_type = context.get_data_type(codes.dtype)
        vector = ir.VectorType(word_type, BUCKET_LANES)
        n_words = cgutils.unpack_tuple(builder, planes.shape)[0]
        count_bits = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector]), f"llvm.ctpop.v{BUCKET_LANES}i{word_type.width}"
        )

        def splat(word: Any) -> Any:
            undefined, lane = ir.Constant(vector, ir.Undefined), ir.IntType(32)
            one = builder.insert_element(undefined, word, ir.Constant(lane, 0))
            return builder.shuffle_vector(
                one, undefined, ir.Constant(ir.VectorType(lane, BUCKET_LANES), None)
            )

        def distance(w: Any) -> Any:
            at = [w, arguments[1]]
            place = cgutils.get_item_pointer(context, builder, codes, planes, at, wraparound=False)
            lanes = builder.load(builder.bitcast(place, vector.as_pointer()), align=word_type.width // 8)
            word = cgutils.get_item_pointer(context, builder, query, words, [w], wraparound=False)
            differing = builder.xor(lanes, splat(builder.load(word)))
            return builder.call(count_bits, [differing])

        total = cgutils.alloca_once_value(builder, distance(ir.Constant(n_words.type, 0)))
        with cgutils.for_range(builder, n_words, start=ir.Constant(n_words.type, 1)) as loop:
            builder.store(builder.add(builder.load(total), distance(loop.index)), total)
        most = builder.trunc(arguments[3], word_type) if word_type.width < 64 else arguments[3]
        near = builder.icmp_unsigned("<=", builder.load(total), splat(most))
        return builder.zext(builder.bitcast(near, ir.IntType(BUCKET_LANES)), ir.IntType(64))

    return types.int64(codes, types.int64, query, types.int64), emit


def _ask_for(typing_context: Any, values: Any, place: Any) -> Any:
    """Prefetch values[place]: what is read next lies far apart."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        array = context.make_array(values)(context, builder, arguments[0])
        item = cgutils.get_item_pointer(context, builder, values, array, [arguments[1]], wraparound=False)
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
