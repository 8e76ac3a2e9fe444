"""The model of a collection of pictures: fitted to its vectors, and its codes made by it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from auxbit.collection.collection import Collection
from auxbit.collection.upkeep import TRAINING_ROWS
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.images.progress import Progress
from auxbit.mac.decoder_fit import TURNS
from auxbit.training_record import sample_rows

if TYPE_CHECKING:
    from auxbit.hashers.base import Hasher

MU = 0.01  # on CIFAR-10 at 64 bits this serves Hamming search as well as asymmetric search
ROWS_FOR_TABLES = 5_000  # 256 vectors a byte want many rows
LEAST_PICTURES = 2


def train(collection: Collection, model: Hasher, progress: Progress) -> None:
    """Fit a model to the vectors of a collection, make its codes, and switch to both in one step.

    Three stages: training, decoder, encoding. Where it is stopped, the collection is as it was.
    """
    ids, state = collection.ids, collection.manifest
    some = ids[sample_rows(len(ids), TRAINING_ROWS)]
    X = np.asarray(collection.vectors(some), dtype=np.float32)
    _fit(model, X, progress)
    if state.model is None or state.coding == "optimal":  # else codes are h(x), as somebody wanted them
        kind = "tables" if len(X) >= ROWS_FOR_TABLES else "linear"
        progress.stage("decoder", TURNS)
        model.fit_decoder(
            X, kind, mu=MU if state.model is None else state.mu, n_iter=TURNS,
            callback=lambda turn, turns: progress.advance(1),
        )  # fmt: skip
    progress.stage("encoding", len(ids))
    collection.retrain(model, advance=progress.advance)


def _fit(model: Hasher, X: npt.NDArray[np.float32], progress: Progress) -> None:
    def told(record: Any) -> None:
        progress.advance(1)
        precision = "" if record.precision is None else f"  precision {record.precision:.3f}"
        progress.say(f"μ {record.mu:.3g}  E_BA {record.E_BA:.4g}{precision}")

    parameters = model.get_params(deep=False)
    tells = "callback" in parameters
    progress.stage("training", int(parameters["max_iter"]) if tells else None)
    if tells:
        model.set_params(callback=told)
    try:
        with warnings.catch_warnings():
            # of fewer pictures than bits: nothing that whoever has few pictures could change
            warnings.filterwarnings("ignore", message=".*has axes for", category=UserWarning)
            model.fit(X)
    except InvalidParameter as error:
        if error.parameter == "n_bits":  # checked before: it is so few pictures that cannot have so many
            raise InvalidInput(f"{error} For {len(X):,} pictures, lower --bits or take ba.") from error
        raise
    finally:
        if tells:
            model.set_params(callback=None)  # it shows the progress, and is no part of the model
