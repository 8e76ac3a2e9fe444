"""Vectors by a network of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from auxbit.core import files
from auxbit.errors import CollectionError, InvalidInput, InvalidParameter
from auxbit.images.features import FILE, Channels, Describer, network_recipe
from helpers.picture_files import noise
from helpers.picture_network import network

ZERO: Channels = (0.0, 0.0, 0.0)
ONE: Channels = (1.0, 1.0, 1.0)
MEAN: Channels = (0.485, 0.456, 0.406)
STD: Channels = (0.229, 0.224, 0.225)


def pictures(n: int, side: int) -> Any:
    return np.stack([noise(side, side, seed) for seed in range(n)])


def describer(
    content: bytes, side: int | None = None, mean: Channels = ZERO, std: Channels = ONE
) -> Describer:
    return Describer(network_recipe(content, "net.onnx", side, mean, std), network=content)


def expected(some: Any, mean: Channels, std: Channels) -> Any:
    return ((some / 255 - np.array(mean)) / np.array(std)).mean(axis=(1, 2))


@pytest.mark.parametrize(
    "shape", [[None, 3, 24, 24], ["n", 3, "h", "w"], [1, 3, 24, 24], [4, 3, 24, 24], [None] * 4]
)
def test_a_network_gets_channels_first_scaled_and_normalised(shape: list[Any]) -> None:
    some = pictures(5, 24)
    made = describer(network(shape), 24, MEAN, STD)
    assert made.recipe.layout == "nchw"
    assert made.dimension == 3
    assert np.allclose(made(some), expected(some, MEAN, STD), atol=1e-5)


@pytest.mark.parametrize("shape", [[None, 24, 24, 3], [1, "h", "w", 3]])
def test_a_network_that_wants_channels_last_gets_them(shape: list[Any]) -> None:
    some = pictures(2, 24)
    made = describer(network(shape, axes=[1, 2]), 24)
    assert made.recipe.layout == "nhwc"
    assert np.allclose(made(some), expected(some, ZERO, ONE), atol=1e-6)


def test_a_row_depends_on_nothing_but_its_picture() -> None:
    some = pictures(9, 24)
    made = describer(network([None, 3, "h", "w"]), 24)
    assert np.array_equal(made(some), np.vstack([made(each[None]) for each in some]))


def test_the_side_is_the_networks_and_224_where_it_takes_any() -> None:
    assert network_recipe(network([1, 3, 40, 40]), "net.onnx", None, ZERO, ONE).side == 40
    assert network_recipe(network([1, 3, "h", 40]), "net.onnx", None, ZERO, ONE).side == 40
    assert network_recipe(network([1, 3, "h", "w"]), "net.onnx", None, ZERO, ONE).side == 224
    with pytest.raises(InvalidParameter, match=r"side=32 is invalid: expected 40.*net\.onnx"):
        network_recipe(network([1, 3, 40, 40]), "net.onnx", 32, ZERO, ONE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a network", r"net\.onnx is not an ONNX network"),
        (b"", r"net\.onnx is not an ONNX network"),
        (network([None, 10], axes=[1]), "one input of shape .* and has pixels of shape \\(any, 10\\)"),
        (network([1, 3, 24, 24], inputs=2), "has pixels .* pixels1"),
        (network([1, 1, 24, 24]), "colour pictures have 3 channels"),
        (network([1, 3, 24, 30]), "24 × 30 pixels; only squares"),
        (network([1, 3, 24, 24], kind=TensorProto.DOUBLE), r"takes tensor\(double\); float32"),
        (network([None, 3, "h", "w"], axes=[7]), "is not an ONNX network|could not be run"),
    ],
    ids=["text", "empty", "rows", "two inputs", "grey", "oblong", "double", "broken"],
)
def test_what_does_not_take_pictures_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        network_recipe(content, "net.onnx", None, ZERO, ONE)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e6])
def test_vectors_that_cannot_be_kept_are_refused(scale: float) -> None:
    made = describer(network([None, 3, 24, 24], scale=scale))
    with pytest.raises(InvalidInput, match="of picture 0: numbers must be finite"):
        made(pictures(2, 24))


def test_the_network_in_the_folder_must_be_the_one_of_the_recipe(tmp_path: Path) -> None:
    content = network([None, 3, 24, 24])
    recipe = network_recipe(content, "net.onnx", None, ZERO, ONE)
    assert recipe.sha256 == files.checksum([content])
    with pytest.raises(CollectionError, match=r"features\.onnx.* cannot be read: No such file"):
        Describer(recipe, tmp_path)
    with pytest.raises(InvalidInput, match="needs the folder"):
        Describer(recipe)
    (tmp_path / FILE).write_bytes(network([None, 3, 24, 24], scale=2.0))
    with pytest.raises(CollectionError, match="is not the network that the collection was made with"):
        Describer(recipe, tmp_path)
    (tmp_path / FILE).write_bytes(content)
    assert Describer(recipe, tmp_path).dimension == 3


def test_a_network_with_weights_beside_it_is_refused(tmp_path: Path) -> None:
    model = onnx.load_from_string(network([None, 3, 24, 24]))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "factor"))
    path = tmp_path / "net.onnx"
    onnx.save_model(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    with pytest.raises(InvalidInput, match="a single file, without weights beside it"):
        network_recipe(path.read_bytes(), "net.onnx", None, ZERO, ONE)
