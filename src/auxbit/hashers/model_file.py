"""Model files: safetensors with a JSON header. Nothing in them is ever executed."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

import numpy as np

from auxbit.codes import check_n_bits
from auxbit.decoders import LinearDecoder, TableDecoder, decoder_from
from auxbit.errors import InvalidInput, ModelFileError
from auxbit.hashers.base import Hasher
from auxbit.maps import Scaling
from auxbit.tensor_file import Format, Tensors
from auxbit.training_record import TrainingRecord

LINEAR_VERSION, TABLES_VERSION = 1, 2
MODEL = Format(
    "auxbit model",
    "model",
    TABLES_VERSION,
    "an auxbit model",
    "Models are made by `auxbit fit` or save().",
    ModelFileError,
)

HASHERS = {
    "LSH": "auxbit.hashers.lsh",
    "ThresholdedPCA": "auxbit.hashers.tpca",
    "ITQ": "auxbit.hashers.itq",
    "SpectralHashing": "auxbit.hashers.spectral",
    "KernelizedLSH": "auxbit.hashers.klsh",
    "AnchorGraphHashing": "auxbit.hashers.anchor_graph",
    "SphericalHashing": "auxbit.hashers.spherical",
    "BinaryAutoencoder": "auxbit.autoencoder",
    "BinaryFactorAnalysis": "auxbit.autoencoder",
}
ENCODERS = {
    "LinearEncoder": "auxbit.maps",
    "SpectralEncoder": "auxbit.hashers.spectral",
    "KernelEncoder": "auxbit.hashers.klsh",
    "AnchorGraphEncoder": "auxbit.hashers.anchor_graph",
    "SphericalEncoder": "auxbit.hashers.spherical",
}


def save(model: Hasher, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write a fitted model, atomically."""
    name = type(model).__name__
    if not hasattr(model, "encoder_"):
        raise InvalidInput(f"this {name} is not fitted: call fit before save.")
    if HASHERS.get(name) != type(model).__module__:
        raise InvalidInput(f"{name} is not one of auxbit's methods, so a model file could not be read back.")
    tensors = {f"encoder.{key}": value for key, value in model.encoder_.tensors().items()}
    tensors |= {f"decoder.{key}": value for key, value in model.decoder_.tensors().items()}
    tensors["scaling.mean"] = model.scaling_.mean
    parameters, left_out = _parameters(model)
    header = {
        "class": name,
        "encoder": type(model.encoder_).__name__,
        "parameters": parameters,
        "left_out": left_out,
        "scaling": {"scale": model.scaling_.scale, "normalize": model.scaling_.normalize},
        "n_features_in": model.n_features_in_,
        "feature_names_in": list(map(str, getattr(model, "feature_names_in_", []))),
        "attributes": model._saved_attributes() if hasattr(model, "_saved_attributes") else {},
    }
    training: TrainingRecord | None = getattr(model, "training_", None)
    if training is not None:  # versions of before it was recorded pass it over
        header["training"], arrays = training.parts()
        tensors |= {f"training.{key}": value for key, value in arrays.items()}
    with_tables = isinstance(model.decoder_, TableDecoder)
    if with_tables:  # a last byte's table does not tell how many of its values a code can have
        header["decoder_bits"] = model.decoder_.n_bits
    MODEL.write(
        path, header, tensors, version=TABLES_VERSION if with_tables else LINEAR_VERSION, overwrite=overwrite
    )


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON header of a model file that is whole, with format_version and auxbit_version."""
    return MODEL.read(path)[0]


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a model file back into the estimator that was saved."""
    header, tensors = MODEL.read(path)
    try:
        model_class = _named(header["class"], HASHERS)
        encoder_class = _named(header["encoder"], ENCODERS)
        model: Hasher = model_class(**header["parameters"])
        model.encoder_ = encoder_class(**_within("encoder.", tensors))
        model.scaling_ = Scaling(tensors["scaling.mean"], **header["scaling"])
        model.decoder_ = _decoder(tensors, header, model.scaling_.normalize)
        model.training_ = _training(tensors, header, model.decoder_.n_bits)
        model.n_features_in_ = header["n_features_in"]
        if header["feature_names_in"]:
            model.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
        if header["attributes"]:
            model._restore_attributes(header["attributes"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(f"{path} is not a complete auxbit model: {error!r}.") from error
    return model


def _decoder(tensors: Tensors, header: dict[str, Any], normalize: bool) -> LinearDecoder | TableDecoder:
    """The decoder of either kind; a file with tables names the bits of a code."""
    parts = _within("decoder.", tensors)
    if "tables" in parts:
        about: dict[str, Any] = {"class": "TableDecoder", "n_bits": check_n_bits(header["decoder_bits"])}
    else:
        about = {"class": "LinearDecoder", "n_bits": parts["A"].shape[1]}
    return decoder_from(about | {"normalize": normalize}, parts)


def _training(tensors: Tensors, header: dict[str, Any], n_bits: int) -> TrainingRecord | None:
    """What the model was trained on; files of before it was recorded have nothing of it."""
    if "training" not in header:
        return None
    return TrainingRecord.from_parts(header["training"], _within("training.", tensors), n_bits)


def _within(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names begin with the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _named(name: str, table: dict[str, str]) -> Any:
    """The class of that name in our table, a KeyError otherwise: a file can call on nothing else."""
    return getattr(importlib.import_module(table[name]), name)


def _parameters(model: Hasher) -> tuple[dict[str, object], dict[str, str]]:
    """The parameters that JSON can hold, and the types of those left out: loaded, they have the default.

    Left out are hashers, callbacks, generators and arrays of more than one dimension.
    """
    kept: dict[str, object] = {}
    left_out: dict[str, str] = {}
    for name, value in model.get_params(deep=False).items():
        try:
            kept[name] = json.loads(json.dumps(value, default=_as_json))
        except (TypeError, ValueError):
            left_out[name] = type(value).__name__
    return kept, left_out


def _as_json(value: object) -> object:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")
