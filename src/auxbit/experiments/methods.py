"""The methods by name, for the command line and for comparisons. A new method is one line here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import auxbit
from auxbit.errors import InvalidParameter

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher


@dataclass(frozen=True)
class Method:
    """Its label in tables and figures; the estimator's name, "" for a quantiser of FAISS; is it random?"""

    label: str
    estimator: str = ""
    seeded: bool = True


METHODS = {
    "ba": Method("BA", "BinaryAutoencoder"),
    "bfa": Method("BFA", "BinaryFactorAnalysis"),
    "itq": Method("ITQ", "ITQ"),
    "tpca": Method("tPCA", "ThresholdedPCA", seeded=False),
    "lsh": Method("LSH", "LSH"),
    "pq": Method("PQ"),
    "opq": Method("OPQ"),
}
HASHERS = tuple(name for name, method in METHODS.items() if method.estimator)


def find_method(name: str, among: Iterable[str] = tuple(METHODS)) -> Method:
    """The method of that name, in either case."""
    allowed = list(among)
    if name.lower() not in allowed:
        near = difflib.get_close_matches(name.lower(), allowed, n=1)
        remedy = f"Did you mean {near[0]}?" if near else ""
        raise InvalidParameter("method", name, f"one of {', '.join(allowed)}", remedy)
    return METHODS[name.lower()]


def parameters_of(name: str) -> set[str]:
    """The parameters that a hasher takes."""
    return set(inspect.signature(_class_of(name)).parameters)


def make_hasher(name: str, n_bits: int, **parameters: Any) -> Hasher:
    """An estimator that is not fitted yet."""
    made: Hasher = _class_of(name)(n_bits=n_bits, **parameters)
    return made


def _class_of(name: str) -> Any:
    return getattr(auxbit, find_method(name, HASHERS).estimator)
