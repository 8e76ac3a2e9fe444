"""Vector instructions for compiled kernels: the one file that uses private numba and llvmlite.

An intrinsic here is a function that returns a signature and a function that emits LLVM instructions. Except
for table look-ups the vectors are LLVM's generic ones: any processor runs them, in pieces if its registers
are shorter.

Numba's cache does not notice a changed intrinsic in another file. After a change here, touch the files of
the kernels that call it (index/scan, index/multi_index, index/asymmetric, index/lists,
hashers/spherical, quantiser/kernels, evaluate, mac/rows), or remove their __pycache__.

Intrinsics are made once, by name. Numba would compile one that a function returns again in every process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model
from numba.misc.special import literally as literally

from auxbit.core.checks import Array, Float32, Float64
from auxbit.core.parallel import kernel

LANES = 64  # codes of a block, bytes of a vector

cgutils: Any = untyped_cgutils  # has no types

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _SHORTS = ir.VectorType(_I8, LANES), ir.VectorType(_I16, LANES)
_PAIRS = ir.VectorType(_I16, LANES // 2)
_FLOAT = ir.FloatType()


def _splat(builder: ir.IRBuilder, value: Any, n: int) -> Any:
    """A vector of n equal numbers."""
    lanes = ir.VectorType(value.type, n)
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_I32, n), None))


def _call(builder: ir.IRBuilder, name: str, *vectors: Any) -> Any:
    """LLVM's function of this name, of vectors of one type."""
    kind = ir.FunctionType(vectors[0].type, [vectors[0].type] * len(vectors))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), vectors)


def _load(builder: ir.IRBuilder, kind: Any, address: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _bytes_of(context: Any, builder: ir.IRBuilder, kind: Any, array: Any) -> Any:
    """A pointer to the first byte of an array."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, _I8.as_pointer())


# ---- Single words


def _popcount(typing_context: Any, word: Any) -> tuple[Any, Any]:
    """The number of bits set in a word; LLVM turns it into the machine's instruction, or a vector's."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), emit


def _lowest_bit(typing_context: Any, word: Any) -> tuple[Any, Any]:
    """The number of the lowest bit set in a word of 64 bits that is not 0."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(word), emit


def _prefetch(typing_context: Any, values: Any, place: Any) -> tuple[Any, Any]:
    """Fetch values[place] into the cache ahead of its use: what is read next lies far apart."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        array = context.make_array(values)(context, builder, arguments[0])
        item = cgutils.get_item_pointer(context, builder, values, array, [arguments[1]], wraparound=False)
        pointer = _I8.as_pointer()
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        )
        options = [_I32(option) for option in (0, 3, 1)]  # to read, keep close, data
        builder.call(fetch, [builder.bitcast(item, pointer), *options])
        return context.get_dummy_value()

    return types.void(values, types.int64), emit


def _fetch_line(typing_context: Any, place: Any) -> tuple[Any, Any]:
    """Fetch the line at an address into the second-level cache, where it displaces nothing that is in use."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = _I8.as_pointer()
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        )
        options = [_I32(option) for option in (0, 2, 1)]  # to read, not as close, data
        builder.call(fetch, [builder.inttoptr(arguments[0], pointer), *options])
        return context.get_dummy_value()

    return types.void(types.intp), emit


def _address(typing_context: Any, array: Any) -> tuple[Any, Any] | None:
    """Where an array begins. Numba counts references at each call with an array, which takes longer than a
    block does; a number it passes as it is. What follows is read row after row: other orders are refused.
    """
    if array.layout != "C":
        return None

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, _I64)

    return types.intp(array), emit


def _word_at(typing_context: Any, start: Any, i: Any) -> tuple[Any, Any]:
    """The i-th of 64-bit words from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _load(builder, _I64, builder.add(arguments[0], builder.mul(arguments[1], _I64(8))), 8)

    return types.uint64(types.intp, types.intp), emit


def _half(typing_context: Any, word: Any) -> tuple[Any, Any]:
    """The number of 16 bits, as float32: numba has no such type, and numpy converts one at a time."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), _FLOAT)

    return types.float32(types.uint16), emit


def _byte_at(typing_context: Any, start: Any, i: Any) -> tuple[Any, Any]:
    """The i-th byte from an address on, as the numbers of loops are."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.zext(_load(builder, _I8, builder.add(*arguments), 1), _I64)

    return types.intp(types.intp, types.intp), emit


def _place_at(typing_context: Any, start: Any, i: Any) -> tuple[Any, Any]:
    """The i-th int64 from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _load(builder, _I64, builder.add(arguments[0], builder.mul(arguments[1], _I64(8))), 8)

    return types.intp(types.intp, types.intp), emit


def _put_place(typing_context: Any, start: Any, i: Any, value: Any) -> tuple[Any, Any]:
    """Write the i-th int64 from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], _I64(8)))
        builder.store(arguments[2], builder.inttoptr(at, _I64.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), emit


def _float_at(typing_context: Any, start: Any, i: Any) -> tuple[Any, Any]:
    """The i-th float32 from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _load(builder, _FLOAT, builder.add(arguments[0], builder.mul(arguments[1], _I64(4))), 4)

    return types.float32(types.intp, types.intp), emit


def _put_float(typing_context: Any, start: Any, i: Any, value: Any) -> tuple[Any, Any]:
    """Write the i-th float32 from an address on."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], _I64(4)))
        builder.store(arguments[2], builder.inttoptr(at, _FLOAT.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32), emit


half: Any = intrinsic(_half)
popcount: Any = intrinsic(_popcount)
lowest_bit: Any = intrinsic(_lowest_bit)
prefetch: Any = intrinsic(_prefetch)
fetch_line: Any = intrinsic(_fetch_line)
address: Any = intrinsic(_address)
word_at: Any = intrinsic(_word_at)
byte_at: Any = intrinsic(_byte_at)
place_at: Any = intrinsic(_place_at)
put_place: Any = intrinsic(_put_place)
float_at: Any = intrinsic(_float_at)
put_float: Any = intrinsic(_put_float)


# ---- Hamming distances of the 64 codes of a block: a count per lane, in vector registers
#
# Counts are bytes, which stay at 255; from 256 bits on, where a byte may not hold them, 16 bits wide.

_PLANES_PER_BYTE = 16  # planes summed up without saturation: at most 128 of 255


class _Lanes(types.Type):
    """A count for each of 64 lanes."""

    def __init__(self, vector: ir.VectorType) -> None:
        self.vector = vector
        super().__init__(name=f"Lanes({vector})")


class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: _Lanes) -> None:
        initialise: Any = super().__init__
        initialise(manager, lanes, lanes.vector)


register_model(_Lanes)(_LanesModel)
_bytes, _shorts = _Lanes(_BYTES), _Lanes(_SHORTS)


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
        for first in range(0, n.literal_value, _PLANES_PER_BYTE):
            part = None
            for j in range(first, min(first + _PLANES_PER_BYTE, n.literal_value)):
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


zeros: Any = intrinsic(_zeros)
wide_zeros: Any = intrinsic(_wide_zeros)
add_planes: Any = intrinsic(prefer_literal=True)(_add_planes)  # n must be known when it is compiled
widen_add: Any = intrinsic(_widen_add)
lanes_within: Any = intrinsic(_lanes_within)
store: Any = intrinsic(_store)


# ---- Hamming distances of 16 codes of a bucket, word by word

BUCKET_LANES = 16  # codes compared at once


def _near_lanes(typing_context: Any, codes: Any, start: Any, query: Any, limit: Any) -> tuple[Any, Any]:
    """Which of 16 codes, (n_words, n), from `start` on are within `limit` of the query: one bit per lane."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        planes = context.make_array(codes)(context, builder, arguments[0])
        words = context.make_array(query)(context, builder, arguments[2])
        word_type = context.get_data_type(codes.dtype)
        vector = ir.VectorType(word_type, BUCKET_LANES)
        n_words = cgutils.unpack_tuple(builder, planes.shape)[0]

        def distance(w: Any) -> Any:
            at = [w, arguments[1]]
            place = cgutils.get_item_pointer(context, builder, codes, planes, at, wraparound=False)
            lanes = builder.load(builder.bitcast(place, vector.as_pointer()), align=word_type.width // 8)
            word = cgutils.get_item_pointer(context, builder, query, words, [w], wraparound=False)
            differing = builder.xor(lanes, _splat(builder, builder.load(word), BUCKET_LANES))
            return _call(builder, f"llvm.ctpop.v{BUCKET_LANES}i{word_type.width}", differing)

        total = cgutils.alloca_once_value(builder, distance(ir.Constant(n_words.type, 0)))
        with cgutils.for_range(builder, n_words, start=ir.Constant(n_words.type, 1)) as loop:
            builder.store(builder.add(builder.load(total), distance(loop.index)), total)
        most = builder.trunc(arguments[3], word_type) if word_type.width < 64 else arguments[3]
        near = builder.icmp_unsigned("<=", builder.load(total), _splat(builder, most, BUCKET_LANES))
        return builder.zext(builder.bitcast(near, ir.IntType(BUCKET_LANES)), _I64)

    return types.int64(codes, types.int64, query, types.int64), emit


near_lanes: Any = intrinsic(_near_lanes)


# ---- Table look-ups: lower bounds of the distances of 64 codes at once
#
# A code is a row of small indices, each with a table of bytes. The sum of what is looked up is compared with
# a limit, and the result is one bit per code. Indices have 6 bits if the machine permutes 64 bytes at once
# (AVX-512 VBMI; there also whole bytes can be looked up, in tables of 256), or 4 bits (AVX2).
#
# Narrow sums are bytes, which stay at 255 when they get there. Wide sums have 16 bits: each four look-ups are
# added as bytes first, so a table's entries are at most 63.

TILE = 4  # blocks whose sums are in registers together
WIDE_STEP = 4  # look-ups that are added as bytes before they are widened


@cache
def index_bits() -> int:
    """How many bits an index has on the machine that numba compiles for; 0: it has no such look-ups."""
    return _bits_of(cpu_target.target_context)


def _bits_of(context: Any) -> int:
    has = _features(context)
    if has >= {"avx512f", "avx512bw", "avx512vbmi"}:
        return 6
    return 4 if "avx2" in has else 0


def _features(context: Any) -> set[str]:
    """What the machine that is compiled for has."""
    _, _, features = context.codegen().magic_tuple()
    named = set(features.split(","))
    return {name[1:] for name in named if name[:1] == "+" and "-" + name[1:] not in named}


def _first_tile(
    typing_context: Any, whole_bytes: Any, wide: Any,
    levels: Any, levels_step: Any, index: Any, step: Any, tiles: Any, n: Any, tables: Any, limit: Any,
    masks: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The first tile in which a code's sum is at most `limit`, and `tiles` if there is none.

    whole_bytes, wide : known when it is compiled. Arrays are given as addresses: levels, 64 bytes for each of
    4 · tiles blocks, which follow each other in steps of bytes; index, (n, 64) bytes for each, likewise;
    tables, at a multiple of 64, of the levels 64 entries, if `wide` twice, then n of 256 for whole bytes,
    else of 64, or of 16 four times over. n is a multiple of four for wide sums. The tile's codes are written
    into masks, (4,) uint64. A machine without the instructions finds that all codes pass.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        look_up = _LookUp(context, builder, arguments)
        return look_up.first_tile(bool(whole_bytes.literal_value), bool(wide.literal_value))

    return types.int64(whole_bytes, wide, *[types.intp] * 9), emit


class _LookUp:
    """The code of one kind of look-up, written instruction by instruction."""

    def __init__(self, context: Any, builder: ir.IRBuilder, arguments: Any) -> None:
        self.builder, self.bits = builder, _bits_of(context)
        levels, self.level_bytes, index, self.block_bytes, self.tiles, self.n = arguments[2:8]
        tables, self.limit, masks = arguments[8:]
        byte = _I8.as_pointer()
        self.levels, self.index, self.tables = (builder.inttoptr(at, byte) for at in (levels, index, tables))
        self.masks = builder.inttoptr(masks, _I64.as_pointer())

    def first_tile(self, whole_bytes: bool, wide: bool) -> Any:
        """Find the first tile with codes within the limit, and write its masks."""
        builder = self.builder
        self.table_vectors = 4 if whole_bytes else 1
        self.first_tables = 2 if wide else 1
        if not self.bits or (whole_bytes and self.bits < 6):
            self._store([_I64(2**64 - 1)] * TILE)
            return _I64(0)
        found = cgutils.alloca_once_value(builder, self.tiles)
        with cgutils.for_range(builder, self.tiles) as loop:
            first = builder.mul(loop.index, _I64(TILE))
            self.tile = builder.gep(self.index, [builder.mul(first, self.block_bytes)])
            self.tile_levels = builder.gep(self.levels, [builder.mul(first, self.level_bytes)])
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
        sums = [cgutils.alloca_once_value(builder, first) for first in self._look_up_first(0)]
        with cgutils.for_range(builder, self.n) as loop:
            for total, found in zip(sums, self._look_up(loop.index)):
                builder.store(_call(builder, "llvm.uadd.sat.v64i8", builder.load(total), found), total)
        limits = _splat(builder, builder.trunc(self.limit, _I8), LANES)
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
            whole = builder.add(even, builder.shl(odd, eights))
            evens.append(cgutils.alloca_once_value(builder, whole))
            odds.append(cgutils.alloca_once_value(builder, odd))
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
        limits = _splat(builder, builder.trunc(self.limit, _I16), LANES // 2)
        in_order = [i // 2 + i % 2 * (LANES // 2) for i in range(LANES)]
        passed = []
        for even, odd in zip(evens, odds):
            # the sum of whole pairs is that of lower bytes plus 256 times that of upper ones
            upper = builder.load(odd)
            below = builder.sub(builder.load(even), builder.shl(upper, eights))
            within = [builder.icmp_unsigned("<=", sums, limits) for sums in (below, upper)]
            passed.append(self._lanes(within[0], in_order, within[1]))
        return passed

    def _look_up_first(self, table: int) -> list[Any]:
        """What each block of the tile finds in one of the first tables."""
        entries = [self._vector(self.tables, _I64(table * LANES), LANES)]
        places = [self.builder.mul(_I64(u), self.level_bytes) for u in range(TILE)]
        return [self._find(entries, self._vector(self.tile_levels, place, 1)) for place in places]

    def _look_up(self, table: Any) -> list[Any]:
        """What each block of the tile finds in one of the n tables."""
        builder, before = self.builder, _I64(self.first_tables * LANES)
        start = builder.add(builder.mul(table, _I64(self.table_vectors * LANES)), before)
        parts = [builder.add(start, _I64(part * LANES)) for part in range(self.table_vectors)]
        entries = [self._vector(self.tables, part, LANES) for part in parts]
        at = builder.mul(table, _I64(LANES))
        places = [builder.add(at, builder.mul(_I64(u), self.block_bytes)) for u in range(TILE)]
        return [self._find(entries, self._vector(self.tile, place, 1)) for place in places]

    def _find(self, entries: list[Any], index: Any) -> Any:
        builder = self.builder
        if len(entries) == 4:
            pick = "llvm.x86.avx512.vpermi2var.qi.512"
            low, high = (_call(builder, pick, entries[i], index, entries[i + 1]) for i in (0, 2))
            # an instruction sees 7 bits of an index; the eighth, its sign, says which half of 256 it means
            return builder.select(builder.icmp_signed("<", index, ir.Constant(_BYTES, None)), high, low)
        if self.bits == 6:
            return _call(builder, "llvm.x86.avx512.permvar.qi.512", entries[0], index)
        low, high = (
            _call(builder, "llvm.x86.avx2.pshuf.b", self._lanes(entries[0], part), self._lanes(index, part))
            for part in (range(LANES // 2), range(LANES // 2, LANES))
        )
        return self._lanes(low, range(LANES), high)

    def _lanes(self, vector: Any, lanes: list[int] | range, other: Any = None) -> Any:
        numbers = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
        other = ir.Constant(vector.type, ir.Undefined) if other is None else other
        return self.builder.shuffle_vector(vector, other, numbers)

    def _vector(self, base: Any, at: Any, align: int) -> Any:
        pointer = self.builder.bitcast(self.builder.gep(base, [at]), _BYTES.as_pointer())
        return self.builder.load(pointer, align=align)

    def _store(self, words: list[Any]) -> None:
        for u, word in enumerate(words):
            self.builder.store(word, self.builder.gep(self.masks, [_I64(u)]))


def _shifted_lanes(
    typing_context: Any,
    source: Any, low: Any, high: Any, down: Any, kept: Any, rest: Any, target: Any, to: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Bits of two vectors of 64 bytes, at bytes `low` and `high` of the source, as one at byte `to` of the
    target: (low >> down) & kept | (high << 8 − down) & rest in every byte.
    """
    i64, u64 = types.int64, types.uint64

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words = ir.VectorType(_I64, LANES // 8)
        _, low, high, down, kept, rest, _, to = arguments

        def place(position: int, at: Any) -> Any:
            start = _bytes_of(context, builder, signature.args[position], arguments[position])
            return builder.bitcast(builder.gep(start, [at]), words.as_pointer())

        def splat(value: Any) -> Any:
            return _splat(builder, value, words.count)

        lower = builder.lshr(builder.load(place(0, low), align=8), splat(down))
        upper = builder.shl(builder.load(place(0, high), align=8), splat(builder.sub(_I64(8), down)))
        both = builder.or_(builder.and_(lower, splat(kept)), builder.and_(upper, splat(rest)))
        builder.store(both, place(6, to), align=8)
        return context.get_dummy_value()

    return types.void(source, i64, i64, i64, u64, u64, target, i64), emit


first_tile: Any = intrinsic(prefer_literal=True)(_first_tile)
shifted_lanes: Any = intrinsic(_shifted_lanes)


# ---- Extremes


def _extremes(typing_context: Any, start: Any, n: Any) -> tuple[Any, Any]:
    """The least and the largest of n float32, n ≥ 16, from an address on; a row of 16 may be seen twice."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start, n = arguments
        vector = ir.VectorType(_FLOAT, 16)

        def row(place: Any) -> Any:
            return _load(builder, vector, builder.add(start, builder.mul(place, _I64(4))), 4)

        first = row(_I64(0))
        extremes = [("<", cgutils.alloca_once_value(builder, first)),
                    (">", cgutils.alloca_once_value(builder, first))]  # fmt: skip

        def take(more: Any) -> None:
            for order, extreme in extremes:
                before = builder.load(extreme)
                builder.store(
                    builder.select(builder.fcmp_ordered(order, more, before), more, before), extreme
                )

        with cgutils.for_range(builder, builder.lshr(n, _I64(4)), intp=_I64) as loop:
            take(row(builder.shl(loop.index, _I64(4))))
        take(row(builder.sub(n, _I64(16))))
        found = []
        for order, extreme in extremes:
            lanes = builder.load(extreme)
            for half in (8, 4, 2, 1):
                numbers = ir.VectorType(_I32, half)
                low, high = (
                    builder.shuffle_vector(lanes, lanes, ir.Constant(numbers, list(range(at, at + half))))
                    for at in (0, half)
                )
                lanes = builder.select(builder.fcmp_ordered(order, low, high), low, high)
            found.append(builder.extract_element(lanes, _I32(0)))
        return cgutils.pack_array(builder, found)

    pair: Any = types.Tuple
    return pair([types.float32, types.float32])(types.intp, types.intp), emit


def _smaller(typing_context: Any, start: Any, n: Any, value: Any) -> tuple[Any, Any]:
    """How many float32 from an address on are below a value; n and what follows up to a multiple of 16."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        start, n, value = arguments
        vector, total = ir.VectorType(_FLOAT, 16), cgutils.alloca_once_value(builder, _I64(0))
        everywhere = _splat(builder, value, 16)
        with cgutils.for_range(builder, builder.lshr(builder.add(n, _I64(15)), _I64(4)), intp=_I64) as loop:
            row = _load(builder, vector, builder.add(start, builder.shl(loop.index, _I64(6))), 4)
            below = builder.bitcast(builder.fcmp_ordered("<", row, everywhere), _I16)
            builder.store(builder.add(builder.load(total), builder.zext(builder.ctpop(below), _I64)), total)
        return builder.load(total)

    return types.intp(types.intp, types.intp, types.float32), emit


extremes: Any = intrinsic(_extremes)
smaller: Any = intrinsic(_smaller)


# ---- Distances: a row of float64 and one of float32, eight sums at a time


def _squared_apart(typing_context: Any, x: Any, y: Any, n: Any, scale: Any) -> tuple[Any, Any]:
    """‖x − scale·y‖² of n float64 and n float32, from addresses on, in float64 and in one fixed order.

    Sum i of 32 is of the dimensions i, i + 32, …; what is left of n goes to the first eight, then the first.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x_at, y_at, n, scale = arguments
        double, eight = ir.DoubleType(), ir.VectorType(ir.DoubleType(), 8)
        scales, singles = _splat(builder, scale, 8), ir.VectorType(_FLOAT, 8)

        def add_squares(total: Any, place: Any, kind: Any, floats: Any, by: Any) -> None:
            own = _load(builder, kind, builder.add(x_at, builder.mul(place, _I64(8))), 8)
            other = _load(builder, floats, builder.add(y_at, builder.mul(place, _I64(4))), 4)
            apart = builder.fsub(own, builder.fmul(by, builder.fpext(other, kind)))
            builder.store(builder.fadd(builder.load(total), builder.fmul(apart, apart)), total)

        sums = [cgutils.alloca_once_value(builder, ir.Constant(eight, None)) for _ in range(4)]
        with cgutils.for_range(builder, builder.lshr(n, _I64(5)), intp=_I64) as loop:
            for i, total in enumerate(sums):
                place = builder.add(builder.shl(loop.index, _I64(5)), _I64(8 * i))
                add_squares(total, place, eight, singles, scales)
        rest = builder.and_(n, _I64(-32))
        with cgutils.for_range(builder, builder.lshr(builder.sub(n, rest), _I64(3)), intp=_I64) as loop:
            add_squares(sums[0], builder.add(rest, builder.shl(loop.index, _I64(3))), eight, singles, scales)
        vectors = [builder.load(total) for total in sums]
        both = [builder.fadd(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
        total = builder.fadd(both[0], both[1])
        lanes = [builder.extract_element(total, _I32(i)) for i in range(8)]
        first = cgutils.alloca_once_value(builder, lanes[0])
        rest = builder.and_(n, _I64(-8))
        with cgutils.for_range(builder, builder.sub(n, rest), intp=_I64) as loop:
            add_squares(first, builder.add(rest, loop.index), double, _FLOAT, scale)
        lanes[0] = builder.load(first)
        while len(lanes) > 1:
            lanes = [builder.fadd(a, b) for a, b in zip(lanes[::2], lanes[1::2])]
        return lanes[0]

    return types.float64(types.intp, types.intp, types.intp, types.float64), emit


squared_apart: Any = intrinsic(_squared_apart)


# ---- Products: a tile of 4 rows by 64 columns of sums, in registers; of float32, and of int16 by pairs

ROWS, VECTORS, TILE_LANES = 4, 4, 16  # that many rows by that many vectors of that many columns
TILE_COLUMNS = VECTORS * TILE_LANES


def _multiply_tile(
    typing_context: Any, rows: Any, row_step: Any, panel: Any, depth: Any, out: Any, out_step: Any
) -> tuple[Any, Any]:
    """Four rows times a panel, (depth, 64) float32, from addresses on; rows and out in steps of bytes."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        rows_at, rows_by, panel_at, n, out_at, out_by = arguments
        vector = ir.VectorType(_FLOAT, TILE_LANES)

        def at(start: Any, *offsets: Any) -> Any:
            for offset in offsets:
                start = builder.add(start, offset)
            return start

        zero = ir.Constant(vector, None)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(ROWS)]
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            line = at(panel_at, builder.mul(loop.index, _I64(4 * TILE_COLUMNS)))
            vectors = [_load(builder, vector, at(line, _I64(4 * TILE_LANES * v)), 4) for v in range(VECTORS)]
            for r in range(ROWS):
                place = at(rows_at, builder.mul(_I64(r), rows_by), builder.mul(loop.index, _I64(4)))
                everywhere = _splat(builder, _load(builder, _FLOAT, place, 4), TILE_LANES)
                for v in range(VECTORS):
                    before = builder.load(sums[r][v])
                    total = _call(builder, "llvm.fmuladd.v16f32", everywhere, vectors[v], before)
                    builder.store(total, sums[r][v])
        for r in range(ROWS):
            for v in range(VECTORS):
                place = at(out_at, builder.mul(_I64(r), out_by), _I64(4 * TILE_LANES * v))
                builder.store(builder.load(sums[r][v]), builder.inttoptr(place, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), emit


multiply_tile: Any = intrinsic(_multiply_tile)


def _whole_tile(builder: ir.IRBuilder, arguments: Any, more: Any) -> None:
    """The sums of four rows of integers and a panel, (steps, 64) words, as float32, times two units.

    more(sums, word, words) : the sums with what the two or four numbers of a row's word, the same in all
    lanes, and those of the panel's words add.
    """
    rows_at, rows_by, panel_at, n, row_units_at, units_at, excess_at, out_at, out_by = arguments
    words, floats = ir.VectorType(_I32, TILE_LANES), ir.VectorType(_FLOAT, TILE_LANES)

    def at(start: Any, *offsets: Any) -> Any:
        for offset in offsets:
            start = builder.add(start, offset)
        return start

    zero = ir.Constant(words, None)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(ROWS)]
    with cgutils.for_range(builder, n, intp=_I64) as loop:
        line = at(panel_at, builder.mul(loop.index, _I64(4 * TILE_COLUMNS)))
        vectors = [_load(builder, words, at(line, _I64(4 * TILE_LANES * v)), 4) for v in range(VECTORS)]
        for r in range(ROWS):
            place = at(rows_at, builder.mul(_I64(r), rows_by), builder.mul(loop.index, _I64(4)))
            everywhere = _splat(builder, _load(builder, _I32, place, 4), TILE_LANES)
            for v in range(VECTORS):
                builder.store(more(builder.load(sums[r][v]), everywhere, vectors[v]), sums[r][v])
    for r in range(ROWS):
        unit = _splat(builder, _load(builder, _FLOAT, at(row_units_at, _I64(4 * r)), 4), TILE_LANES)
        for v in range(VECTORS):
            own = _load(builder, floats, at(units_at, _I64(4 * TILE_LANES * v)), 4)
            excess = _load(builder, words, at(excess_at, _I64(4 * TILE_LANES * v)), 4)
            total = builder.sitofp(builder.sub(builder.load(sums[r][v]), excess), floats)
            scaled = builder.fmul(builder.fmul(total, own), unit)
            place = at(out_at, builder.mul(_I64(r), out_by), _I64(4 * TILE_LANES * v))
            builder.store(scaled, builder.inttoptr(place, floats.as_pointer()), align=4)


def _multiply_pairs(
    typing_context: Any, rows: Any, row_step: Any, panel: Any, pairs: Any, row_units: Any, units: Any,
    excess: Any, out: Any, out_step: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Four rows of int16 times a panel, (pairs, 64, 2) int16, as float32, each sum times two units.

    From addresses on, rows and out in steps of bytes. row_units : (4,), units : (64,) float32; excess : (64,)
    int32, which sums are too large by. Sums have 32 bits, and are exact if these hold them.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        words = ir.VectorType(_I32, TILE_LANES)
        shorts, wide = ir.VectorType(_I16, 2 * TILE_LANES), ir.VectorType(_I32, 2 * TILE_LANES)
        evens, odds = (ir.Constant(words, list(range(first, 2 * TILE_LANES, 2))) for first in range(2))

        def more(sums: Any, word: Any, panel: Any) -> Any:
            own, other = (builder.sext(builder.bitcast(each, shorts), wide) for each in (word, panel))
            products = builder.mul(own, other)  # two and their sum: one instruction
            two = [builder.shuffle_vector(products, products, each) for each in (evens, odds)]
            return builder.add(sums, builder.add(two[0], two[1]))

        _whole_tile(builder, arguments, more)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 9), emit


def _multiply_quads(
    typing_context: Any, rows: Any, row_step: Any, panel: Any, quads: Any, row_units: Any, units: Any,
    excess: Any, out: Any, out_step: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The same of uint8 and a panel, (quads, 64, 4) int8; only if `multiplies_bytes`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        if not _multiplies_bytes(context):
            return context.get_dummy_value()
        words = ir.VectorType(_I32, TILE_LANES)
        operand = _BYTES if binding.llvm_version_info[0] >= 22 else words  # LLVM 22 changed it
        kind = ir.FunctionType(words, [words, operand, operand])
        name = "llvm.x86.avx512.vpdpbusd.512"
        multiply = cgutils.get_or_insert_function(builder.module, kind, name)

        def more(sums: Any, word: Any, panel: Any) -> Any:
            return builder.call(multiply, [sums, *(builder.bitcast(each, operand) for each in (word, panel))])

        _whole_tile(builder, arguments, more)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 9), emit


@cache
def multiplies_bytes() -> bool:
    """Whether the machine that numba compiles for multiplies bytes four at a time."""
    return _multiplies_bytes(cpu_target.target_context)


def _multiplies_bytes(context: Any) -> bool:
    return _features(context) >= {"avx512f", "avx512bw", "avx512vnni"}


multiply_quads: Any = intrinsic(_multiply_quads)
multiply_pairs: Any = intrinsic(_multiply_pairs)


# ---- The least of 256 numbers of 16 bits, and where it is

SHORTS = 512  # bytes that they take
_WORDS = 4  # of 64 bits, one for each of the numbers


def _least_short(typing_context: Any, start: Any) -> tuple[Any, Any]:
    """256 times the least of 256 int16 from an address on, plus the place of the first that is it."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        parts = [
            _load(builder, _SHORTS, builder.add(arguments[0], _I64(2 * LANES * part)), 2)
            for part in range(_WORDS)
        ]
        low = parts
        while len(low) > 1:
            low = [builder.select(builder.icmp_signed("<", a, b), a, b) for a, b in zip(low[::2], low[1::2])]
        reduce = ir.FunctionType(_I16, [_SHORTS])
        name = f"llvm.vector.reduce.smin.v{LANES}i16"
        least = builder.call(cgutils.get_or_insert_function(builder.module, reduce, name), low)
        everywhere, place = _splat(builder, least, LANES), _I64(0)
        for part in reversed(range(_WORDS)):
            here = builder.bitcast(builder.icmp_signed("==", parts[part], everywhere), _I64)
            first = builder.add(builder.cttz(here, ir.Constant(ir.IntType(1), 0)), _I64(LANES * part))
            place = builder.select(builder.icmp_signed("!=", here, _I64(0)), first, place)
        return builder.add(builder.shl(builder.sext(least, _I64), _I64(8)), place)

    return types.int64(types.intp), emit


least_short: Any = intrinsic(_least_short)


# ---- Lines of 16 floats, one for each value of each byte of a code

LINE = TILE_LANES  # floats of a line


def _pass_on(typing_context: Any, code: Any, n_bytes: Any, lines: Any, out: Any) -> tuple[Any, Any]:
    """Add up the lines of a code's bytes, and add the sum to the lines of `out` at the same places.

    All by addresses: of the code, and of (n_bytes, 256, 16) float32 each.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        code_at, n, lines_at, out_at = arguments
        vector = ir.VectorType(_FLOAT, LINE)

        def place(start: Any, j: Any) -> Any:
            value = builder.zext(_load(builder, _I8, builder.add(code_at, j), 1), _I64)
            line = builder.add(builder.shl(j, _I64(8)), value)
            return builder.add(start, builder.mul(line, _I64(4 * LINE)))

        total = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            line = _load(builder, vector, place(lines_at, loop.index), 4)
            builder.store(builder.fadd(builder.load(total), line), total)
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            here = place(out_at, loop.index)
            more = builder.fadd(_load(builder, vector, here, 4), builder.load(total))
            builder.store(more, builder.inttoptr(here, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), emit


pass_on: Any = intrinsic(_pass_on)


# ---- Hamming distances from one query to many codes, which are in planes


@kernel
def chunk_distances(planes: Array, start: int, stop: int, query: Array, out: npt.NDArray[np.uint16]) -> int:
    """Write the distances from `query`, (n_words,), to codes start..stop into `out`; return the smallest."""
    n = stop - start
    plane, word = planes[0, start:stop], query[0]
    for i in range(n):
        out[i] = np.uint16(popcount(plane[i] ^ word))
    for w in range(1, planes.shape[0]):
        plane, word = planes[w, start:stop], query[w]
        for i in range(n):
            out[i] += np.uint16(popcount(plane[i] ^ word))
    nearest = np.uint16(65535)
    for i in range(n):
        nearest = min(nearest, out[i])
    return int(nearest)


# ---- Products of rows of integers, a tile at a time

LEAST_UNIT = 1e-30
LONGEST = 46_000  # of two rows of integers: their product is below 2**31


@kernel
def round_rows(rows: Float64, most: int, whole: npt.NDArray[np.int16], units: Float32) -> None:
    """Rows, (n, D), as multiples of a unit each, up to `most`, into the first D columns of whole.

    units : (n,), get the units.
    """
    n_dims = rows.shape[1]
    for i in range(len(rows)):
        largest, squares = 0.0, 0.0
        for d in range(n_dims):
            largest, squares = max(largest, abs(rows[i, d])), squares + rows[i, d] * rows[i, d]
        unit = np.float32(max(largest / most, np.sqrt(squares) / LONGEST))
        units[i] = unit if unit >= LEAST_UNIT else np.float32(1.0)  # of zeros, or of what float32 cannot hold
        for d in range(n_dims):
            whole[i, d] = np.int16(np.rint(rows[i, d] / units[i]))


@kernel
def multiply_whole(
    rows: Any, row_units: Float32, panels: Any, units: Float32, excess: npt.NDArray[np.int32], out: Float32
) -> None:
    """The products of rows, (q, D), and of all columns of panels, (p, steps, 64, numbers), into (q, 64·p).

    Of int16 and int16, two numbers in a step, or of uint8 and int8, four in a step; the sums of a column are
    too large by its excess.
    """
    n, width, columns, steps = len(rows), rows.itemsize * rows.shape[1], out.shape[1], panels.shape[1]
    scratch = np.empty((ROWS, TILE_COLUMNS), dtype=np.float32)
    last, last_units = np.zeros((ROWS, rows.shape[1]), dtype=rows.dtype), np.zeros(ROWS, dtype=np.float32)
    whole = n - n % ROWS
    last[: n - whole], last_units[: n - whole] = rows[whole:], row_units[whole:]
    for p in range(len(panels)):
        first = 4 * p * TILE_COLUMNS
        panel, own, more = address(panels) + first * steps, address(units) + first, address(excess) + first
        for r in range(0, n, ROWS):
            place, by = address(rows) + r * width, address(row_units) + 4 * r
            to, step = address(out) + 4 * (r * columns + p * TILE_COLUMNS), 4 * columns
            if r == whole:
                place, by, to, step = address(last), address(last_units), address(scratch), 4 * TILE_COLUMNS
            if rows.itemsize == 2:
                multiply_pairs(place, width, panel, steps, by, own, more, to, step)
            else:
                multiply_quads(place, width, panel, steps, by, own, more, to, step)
        if whole < n:
            out[whole:, p * TILE_COLUMNS : (p + 1) * TILE_COLUMNS] = scratch[: n - whole]
