"""auxbit: short binary codes for vectors and images, learned by binary autoencoders.

from auxbit import BinaryAutoencoder, HammingIndex

ba = BinaryAutoencoder(n_bits=32, random_state=0).fit(X)
index = HammingIndex(n_bits=32)
index.add(ba.encode(X))
distances, ids = index.search(ba.encode(queries), k=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from auxbit.hashers.registry import ESTIMATORS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from auxbit.collection.collection import Collection as Collection
    from auxbit.errors import AuxbitError as AuxbitError
    from auxbit.hashers.anchor_graph import AnchorGraphHashing as AnchorGraphHashing
    from auxbit.hashers.autoencoder import BinaryAutoencoder as BinaryAutoencoder
    from auxbit.hashers.autoencoder import BinaryFactorAnalysis as BinaryFactorAnalysis
    from auxbit.hashers.klsh import KernelizedLSH as KernelizedLSH
    from auxbit.hashers.linear import ITQ as ITQ
    from auxbit.hashers.linear import LSH as LSH
    from auxbit.hashers.linear import ThresholdedPCA as ThresholdedPCA
    from auxbit.hashers.registry import load as load
    from auxbit.hashers.registry import register as register
    from auxbit.hashers.spectral import SpectralHashing as SpectralHashing
    from auxbit.hashers.spherical import SphericalHashing as SphericalHashing
    from auxbit.index.hamming import HammingIndex as HammingIndex

# imported on first use: scikit-learn and numba take seconds, and `import auxbit` should not
_HOME = {
    "AuxbitError": "errors",
    "Collection": "collection.collection",
    "HammingIndex": "index.hamming",
    "load": "hashers.registry",
    "register": "hashers.registry",
} | {name: f"hashers.{method.home.partition(':')[0]}" for name, method in ESTIMATORS.items()}

__all__ = sorted(_HOME, key=lambda name: (not name.isupper(), name))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"auxbit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'auxbit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
