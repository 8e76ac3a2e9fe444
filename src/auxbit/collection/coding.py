"""How a collection encodes what is added: h(x), or the codes that the decoder reconstructs best."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # scikit-learn takes longer to import than a collection to open
    from auxbit.hashers.base import Hasher


def coding_of(model: Hasher, coding: str | None, mu: float | None) -> tuple[str, float]:
    """How a collection encodes: as asked for, else as the model's decoder is meant."""
    from auxbit.mac.coding import check_mu

    record = model.training_
    if coding is None and record is not None:
        coding = record.coding
    elif coding is None:  # a model that was saved by an older version: tables are fitted to optimal codes
        coding = "optimal" if hasattr(model.decoder_, "tables") else "hash"
    if coding == "hash":
        return coding, 0.0
    meant = record.mu if record is not None and record.coding == "optimal" else 0.0
    return coding, check_mu(meant if mu is None else mu)
