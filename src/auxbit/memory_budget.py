"""How much memory a fit may use: "1GB" as a number of bytes, and what parts of it are for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Real

from auxbit.blocks import BLOCK_ROWS
from auxbit.errors import InvalidParameter

UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20,
         "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}  # fmt: skip
LEAST = 128 * 10**6
DEFAULT = "1GB"
THREAD_BYTES = 20 * 10**6  # of a thread, whatever the rows: pairs of neighbours, mostly


@dataclass(frozen=True)
class Budget:
    """Bytes for all arrays at once; the interpreter and its libraries come on top."""

    total: int

    @classmethod
    def parse(cls, memory: object) -> Budget:
        """Of "1GB", "512MB", "1.5GiB", or a number of bytes."""
        allowed = f"bytes, as '1GB', '512MB' or a number, at least {LEAST // 10**6}MB"
        if isinstance(memory, bool) or not isinstance(memory, Real | str):
            raise InvalidParameter("memory", memory, allowed)
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(memory).lower())
        if found is None or found[2] not in UNITS:
            raise InvalidParameter("memory", memory, allowed)
        total = int(float(found[1]) * UNITS[found[2]])
        if total < LEAST:
            raise InvalidParameter("memory", memory, allowed)
        return cls(total)

    def threads(self, n_columns: int, n_bits: int, most: int) -> int:
        """How many threads have room for their blocks of such rows, at most so many."""
        # a block as it came, scaled, its scores and codes; XᵀX, and for all of them what is made of it
        block = BLOCK_ROWS * (16 * n_columns + 40 * n_bits)
        each, shared = THREAD_BYTES + block + 16 * n_columns**2, 40 * n_columns**2
        if self.total < shared + each:
            least = -(-(shared + each) // 10**6)
            raise InvalidParameter(
                "memory", self.total, f"at least {least}MB for rows of {n_columns} numbers"
            )
        return min(most, (self.total - shared) // each)

    def rows_of(self, row_bytes: int, share: float, most: int, least: int = 1000) -> int:
        """How many rows of so many bytes fit into a share of it, within limits."""
        return max(min(int(self.total * share) // max(row_bytes, 1), most), least)
