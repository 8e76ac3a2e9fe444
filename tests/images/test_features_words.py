"""Vectors of words, by a network for texts and its tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from auxbit.errors import CollectionError, InvalidInput, InvalidParameter, MissingExtra
from auxbit.images.features import Words
from auxbit.images.pictures import Pictures
from helpers.picture_collections import again, create
from helpers.picture_files import BLUE, GREEN, RED, saved
from helpers.picture_network import network, text_network, tokenizer

ONNX: dict[str, Any] = {"features": None, "side": None, "bits": 2}


@pytest.fixture
def towers(tmp_path: Path) -> dict[str, Any]:
    """The files of a network for pictures, of one for texts, and of its tokenizer."""
    contents = {"model": network([None, 3, 8, 8]), "text_model": text_network(), "tokenizer": tokenizer()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in contents}


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A folder of pictures in one colour each."""
    (tmp_path / "in").mkdir()
    for name, colour in (("red", RED), ("green", GREEN), ("blue", BLUE), ("grey", (90, 90, 90))):
        (tmp_path / "in" / f"{name}.png").write_bytes(saved(np.full((9, 9, 3), colour, dtype=np.uint8)))
    return tmp_path / "in"


# ---- texts to vectors


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_a_text_has_the_vector_that_the_network_makes_of_its_tokens(length: int | None, kind: int) -> None:
    words = Words(text_network(length, kind=kind), tokenizer())
    assert words.dimension == 3
    assert words("Red").tolist() == [1, 0, 0]
    assert words("green BLUE").tolist() == [0, 0.5, 0.5]  # padding does not count


def test_a_text_that_is_too_long_is_cut_and_one_that_is_short_is_padded() -> None:
    words = Words(text_network(2, mask=False), tokenizer())
    assert words("red green blue").tolist() == [0.5, 0.5, 0]
    assert words("red").tolist() == [0.5, 0, 0]


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"text=' ' is invalid: expected words"):
        Words(text_network(), tokenizer())(" ")


def test_what_is_no_network_for_texts_or_no_tokenizer_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"does not take texts: .* and has pixels \(tensor\(float\), 4-D\)"
    ):
        Words(network([None, 3, 8, 8]), tokenizer())
    with pytest.raises(InvalidInput, match=r"the tokenizer of the network for texts is no tokenizer.json"):
        Words(text_network(), b"{}")
    with pytest.raises(InvalidInput, match="is not an ONNX network"):
        Words(b"no network", tokenizer())


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"search by words needs tokenizers: pip install 'auxbit\[text\]'"):
        Words(text_network(), tokenizer())


# ---- in a collection


def test_pictures_are_found_by_words_and_the_networks_are_kept(
    tmp_path: Path, colours: Path, towers: dict[str, Any]
) -> None:
    create(colours, tmp_path / "out", **ONNX | towers)
    for file in towers.values():
        file.unlink()
    assert again(colours, tmp_path / "out").unchanged == 4
    with Pictures.open(tmp_path / "out") as pictures:
        for name in ("red", "green", "blue"):
            assert pictures.search_text(f"{name}", 1)[0].file == f"{name}.png"
        assert len(pictures.search_text("red blue", 3, mode="hamming")) == 3
        with pytest.raises(InvalidParameter, match="k=0 is invalid"):
            pictures.search_text("red", 0)


def test_a_network_for_texts_may_come_later_and_be_replaced(
    tmp_path: Path, colours: Path, towers: dict[str, Any]
) -> None:
    create(colours, tmp_path / "out", **ONNX | {"model": towers["model"]})
    with Pictures.open(tmp_path / "out") as pictures:
        with pytest.raises(InvalidInput, match=r"cannot be searched by words.* --text-model and --tokenizer"):
            pictures.search_text("red")
        text = {name: towers[name] for name in ("text_model", "tokenizer")}
        again(colours, tmp_path / "out", **text)
        assert pictures.search_text("red", 1)[0].file == "red.png"
        towers["tokenizer"].write_bytes(tokenizer().replace(b'"red": 1', b'"rot": 1'))
        again(colours, tmp_path / "out", **text)
        assert pictures.search_text("rot", 1)[0].file == "red.png"
    (tmp_path / "out" / "text.onnx").write_bytes(text_network(mask=False))
    with (
        Pictures.open(tmp_path / "out") as pictures,
        pytest.raises(CollectionError, match="has changed"),
    ):
        pictures.search_text("red")


def test_what_does_not_suit_the_pictures_is_refused_before_they_are_read(
    tmp_path: Path, colours: Path, towers: dict[str, Any]
) -> None:
    towers["text_model"].write_bytes(text_network(numbers=5))
    with pytest.raises(InvalidInput, match="makes 5 numbers, and vectors of pictures have 3"):
        create(colours, tmp_path / "out", **ONNX | towers)
    with pytest.raises(
        InvalidInput, match=r"and its tokenizer.*give both --text-model FILE.onnx and --tokenizer"
    ):
        create(colours, tmp_path / "out", **ONNX | towers | {"tokenizer": None})
    assert not (tmp_path / "out").exists()
