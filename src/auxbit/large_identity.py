"""What tells one fit from another: a fit that goes on from a checkpoint must be the one that began it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from auxbit.files import checksum
from auxbit.memory_budget import Budget

if TYPE_CHECKING:
    from auxbit.autoencoder import BinaryAutoencoder

# threads and messages change nothing
FREE = frozenset({"n_jobs", "verbose", "callback"})


def identity(model: BinaryAutoencoder, budget: Budget) -> dict[str, Any]:
    """The parameters that the result depends on, as JSON; the budget decides on the sizes of samples."""
    parameters = model.get_params(deep=False)
    kept = {name: _plain(value) for name, value in sorted(parameters.items()) if name not in FREE}
    return kept | {"memory": budget.total}


def _plain(value: Any) -> Any:
    """A parameter as JSON: of arrays shape and checksum, of other objects no more than what they are."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.size <= 64:
            return value.tolist()
        return (
            f"array {value.shape} of {value.dtype}, {checksum([np.ascontiguousarray(value).tobytes()])[:16]}"
        )
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__
