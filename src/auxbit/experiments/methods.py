"""The methods by name, for the command line and for comparisons. A new method is one line here."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import auxbit
from auxbit.errors import InvalidParameter

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher


@dataclass(frozen=True)
class Method:
    """Its label in tables and figures; the estimator's name, "" for a quantiser of FAISS; is it random?

    `options` are parameters of the estimator that make it this method, `note` says so to users; a variant is
    compared only where it is asked for.
    """

    label: str
    estimator: str = ""
    seeded: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    variant: bool = False


METHODS = {
    "ba": Method("BA", "BinaryAutoencoder"),
    "ba-agh": Method(
        "BA-AGH", "BinaryAutoencoder", options={"init": "agh"}, note="started from agh", variant=True
    ),
    "bfa": Method("BFA", "BinaryFactorAnalysis"),
    "itq": Method("ITQ", "ITQ"),
    "agh": Method("AGH", "AnchorGraphHashing"),
    "agh2": Method("AGH2", "AnchorGraphHashing", options={"n_layers": 2}, note="two layers", variant=True),
    "sph": Method("SPH", "SphericalHashing"),
    "sh": Method("SH", "SpectralHashing", seeded=False),
    "klsh": Method("KLSH", "KernelizedLSH"),
    "tpca": Method("tPCA", "ThresholdedPCA", seeded=False),
    "lsh": Method("LSH", "LSH"),
    "pq": Method("PQ", note="of FAISS"),
    "opq": Method("OPQ", note="of FAISS, slow"),
}
HASHERS = tuple(name for name, method in METHODS.items() if method.estimator)
DEFAULT_METHODS = tuple(name for name, method in METHODS.items() if not method.variant)


def find_method(name: str, among: Iterable[str] = tuple(METHODS)) -> Method:
    """The method of that name, in either case."""
    allowed = list(among)
    if name.lower() not in allowed:
        near = difflib.get_close_matches(name.lower(), allowed, n=1)
        remedy = f"Did you mean {near[0]}?" if near else ""
        raise InvalidParameter("method", name, f"one of {', '.join(allowed)}", remedy)
    return METHODS[name.lower()]


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters that a hasher takes, with their defaults."""
    parameters = inspect.signature(_class_of(name)).parameters
    return {key: parameter.default for key, parameter in parameters.items()}


def make_hasher(name: str, n_bits: int, **parameters: Any) -> Hasher:
    """An estimator that is not fitted yet."""
    made: Hasher = _class_of(name)(n_bits=n_bits, **find_method(name).options | parameters)
    return made


def label_of(model: object) -> str:
    """The method of a model, as tables name it."""
    name = type(model).__name__
    return next((method.label for method in METHODS.values() if method.estimator == name), name)


def _class_of(name: str) -> Any:
    return getattr(auxbit, find_method(name, HASHERS).estimator)
