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

__version__ = "0.1.0"

if TYPE_CHECKING:
    from auxbit.autoencoder import BinaryAutoencoder, BinaryFactorAnalysis
    from auxbit.collection.collection import Collection
    from auxbit.errors import AuxbitError
    from auxbit.hashers.anchor_graph import AnchorGraphHashing
    from auxbit.hashers.itq import ITQ
    from auxbit.hashers.klsh import KernelizedLSH
    from auxbit.hashers.lsh import LSH
    from auxbit.hashers.model_file import load
    from auxbit.hashers.spectral import SpectralHashing
    from auxbit.hashers.spherical import SphericalHashing
    from auxbit.hashers.tpca import ThresholdedPCA
    from auxbit.index import HammingIndex

__all__ = [
    "ITQ",
    "LSH",
    "AnchorGraphHashing",
    "AuxbitError",
    "BinaryAutoencoder",
    "BinaryFactorAnalysis",
    "Collection",
    "HammingIndex",
    "KernelizedLSH",
    "SpectralHashing",
    "SphericalHashing",
    "ThresholdedPCA",
    "load",
]

# imported on first use: scikit-learn and numba take seconds, and `import auxbit` should not
_HOME = {
    "AnchorGraphHashing": "auxbit.hashers.anchor_graph",
    "AuxbitError": "auxbit.errors",
    "BinaryAutoencoder": "auxbit.autoencoder",
    "BinaryFactorAnalysis": "auxbit.autoencoder",
    "Collection": "auxbit.collection.collection",
    "HammingIndex": "auxbit.index",
    "ITQ": "auxbit.hashers.itq",
    "KernelizedLSH": "auxbit.hashers.klsh",
    "LSH": "auxbit.hashers.lsh",
    "SpectralHashing": "auxbit.hashers.spectral",
    "SphericalHashing": "auxbit.hashers.spherical",
    "ThresholdedPCA": "auxbit.hashers.tpca",
    "load": "auxbit.hashers.model_file",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'auxbit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
