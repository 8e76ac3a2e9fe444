"""Recipes and what they make of pictures: GIST, colour, pixels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.data.gist import gist
from auxbit.errors import InvalidInput, InvalidParameter
from auxbit.images.features import VALUES, Describer, Recipe, histograms
from helpers.picture_files import BLUE, GREEN, RED, noise

SHA = "0123456789abcdef" * 4


def pictures(n: int, side: int = 32) -> Any:
    """(n, side, side, 3) uint8."""
    return np.stack([noise(side, side, seed) for seed in range(n)])


def plain(colour: tuple[int, int, int], side: int = 32) -> Any:
    return np.broadcast_to(np.array(colour, dtype=np.uint8), (1, side, side, 3)).copy()


def distance(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b))


channels = st.tuples(*[st.floats(-5, 5)] * 3)
recipes = st.one_of(
    st.builds(Recipe, st.just("gist"), st.integers(16, 256), colour=st.floats(0, 1000)),
    st.builds(Recipe, st.just("pixels"), st.integers(8, 128), grey=st.booleans()),
    st.builds(
        Recipe, st.just("onnx"), st.integers(8, 1024), mean=channels, std=st.just((0.2, 0.3, 0.4)),
        sha256=st.just(SHA), input=st.text(), output=st.text(), layout=st.sampled_from(["nchw", "nhwc"]),
    ),
)  # fmt: skip


@given(recipes)
def test_a_recipe_is_the_same_after_it_was_a_document(recipe: Recipe) -> None:
    assert Recipe.from_document(json.loads(json.dumps(recipe.document()))) == recipe


def test_a_document_holds_nothing_that_its_kind_does_not_use() -> None:
    assert Recipe("gist", 32, colour=0.5).document() == {"kind": "gist", "side": 32, "colour": 0.5}
    assert Recipe("pixels", 16).document() == {"kind": "pixels", "side": 16, "grey": False}


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"kind": "gost", "side": 32}, "features"),
        ({"kind": "gist", "side": 8}, "side"),
        ({"kind": "gist", "side": 1000}, "side"),
        ({"kind": "pixels", "side": 32.0}, "side"),
        ({"kind": "gist", "side": 32, "colour": -1}, "colour"),
        ({"kind": "gist", "side": 32, "colour": float("nan")}, "colour"),
        ({"kind": "gist", "side": 32, "colour": True}, "colour"),
        ({"kind": "pixels", "side": 32, "colour": 1.0}, "colour"),
        ({"kind": "gist", "side": 32, "grey": True}, "grey"),
        ({"kind": "onnx", "side": 32, "sha256": "short"}, "sha256"),
        ({"kind": "onnx", "side": 32, "sha256": SHA, "std": (1.0, 0.0, 1.0)}, "std"),
        ({"kind": "onnx", "side": 32, "sha256": SHA, "mean": (1.0, 2.0)}, "mean"),
        ({"kind": "onnx", "side": 32, "sha256": SHA, "layout": "hwcn"}, "layout"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(wrong: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidParameter, match=f"{parameter}=.* is invalid") as error:
        Recipe.from_document(wrong)
    assert error.value.parameter == parameter


@pytest.mark.parametrize(
    "document", [[], {}, {"kind": "gist"}, {"kind": "gist", "side": 32, "sides": 3}, None]
)
def test_what_is_no_recipe_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInput, match="not a recipe"):
        Recipe.from_document(document)


@pytest.mark.parametrize(
    ("recipe", "dimension"),
    [
        (Recipe("gist", 32), 320),
        (Recipe("gist", 40, colour=0.5), 320 + VALUES),
        (Recipe("pixels", 12), 12 * 12 * 3),
        (Recipe("pixels", 12, grey=True), 12 * 12),
    ],
    ids=["gist", "colour", "pixels", "grey"],
)
def test_a_row_depends_on_nothing_but_its_picture(recipe: Recipe, dimension: int) -> None:
    some = pictures(70, recipe.side)
    describer = Describer(recipe)
    together = describer(some)
    assert together.shape == (70, dimension)
    assert together.dtype == np.float32
    assert describer.dimension == dimension
    alone = np.vstack([Describer(recipe, n_jobs=1)(each[None]) for each in some])
    assert np.array_equal(together, alone)
    assert describer(some[:0]).shape == (0, dimension)


def test_gist_is_that_of_the_experiments() -> None:
    some = pictures(3)
    assert np.array_equal(Describer(Recipe("gist", 32))(some), gist(some))


def test_colour_stands_beside_gist_and_leaves_it_as_it_is() -> None:
    some = pictures(5)
    both = Describer(Recipe("gist", 32, colour=0.25))(some)
    assert np.array_equal(both[:, :320], gist(some))
    assert np.array_equal(both[:, 320:], histograms(some, 0.25))


def test_the_weight_of_colour_is_that_of_squared_distances() -> None:
    a, b = (histograms(pictures(2), weight) for weight in (1.0, 4.0))
    assert distance(*b) ** 2 == pytest.approx(4 * distance(*a) ** 2, rel=1e-5)


def test_colours_that_gist_cannot_tell_apart_are_told_apart_by_colour() -> None:
    red, green = plain(RED), plain(GREEN)
    gist_alone, with_colour = Describer(Recipe("gist", 32)), Describer(Recipe("gist", 32, colour=1.0))
    assert distance(gist_alone(red), gist_alone(green)) < 1e-3
    assert distance(with_colour(red), with_colour(green)) > 1
    nearly = (RED[0] - 6, RED[1] + 4, RED[2])
    assert (
        distance(with_colour(red), with_colour(plain(nearly)))
        < distance(with_colour(red), with_colour(green)) / 3
    )


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_the_shares_of_the_bins_sum_to_one(red: int, green: int, blue: int) -> None:
    values = histograms(plain((red, green, blue), 8), 1.0)
    of_mixture = histograms(np.concatenate([plain((red, green, blue), 8), plain(BLUE, 8)], axis=1), 1.0)
    assert (values**2).sum() == pytest.approx((of_mixture**2).sum(), rel=1e-4)
    assert (values >= 0).all()


def test_where_a_colour_lies_makes_no_difference() -> None:
    some = pictures(4)
    turned = np.ascontiguousarray(some[:, ::-1, ::-1])
    assert np.allclose(histograms(some, 1.0), histograms(turned, 1.0), atol=1e-5)


def test_pixels_can_be_turned_back_into_the_picture() -> None:
    some = pictures(3, 16)
    colour, grey = Describer(Recipe("pixels", 16)), Describer(Recipe("pixels", 16, grey=True))
    assert np.array_equal(colour.picture_of(colour(some)), some)
    assert np.array_equal(grey.picture_of(grey(some)), np.rint(some.mean(axis=3)).astype(np.uint8))


def test_what_a_decoder_makes_of_codes_is_clipped_to_a_picture() -> None:
    grey = Describer(Recipe("pixels", 8, grey=True))
    vectors = np.full((1, 64), 254.6)
    vectors[0, :3] = [-20.0, 300.0, 0.4]
    assert grey.picture_of(vectors)[0].ravel()[:4].tolist() == [0, 255, 0, 255]


def test_other_features_cannot_be_turned_back() -> None:
    with pytest.raises(InvalidInput, match="gist cannot be turned back"):
        Describer(Recipe("gist", 32)).picture_of(np.zeros((1, 320)))
    with pytest.raises(InvalidInput, match=r"shape \(n, 192\), got \(1, 64\)"):
        Describer(Recipe("pixels", 8)).picture_of(np.zeros((1, 64)))


@pytest.mark.parametrize("wrong", [np.zeros((1, 32, 31, 3), np.uint8), np.zeros((32, 32, 3), np.uint8),
                                   np.zeros((1, 32, 32, 3), np.float32)])  # fmt: skip
def test_pictures_of_another_shape_or_type_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"shape \(n, 32, 32, 3\) and type uint8"):
        Describer(Recipe("gist", 32))(wrong)
