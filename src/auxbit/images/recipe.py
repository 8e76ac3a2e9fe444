"""How pictures become vectors, as a JSON document that is kept with them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Self

from auxbit.checks import check_integer
from auxbit.errors import InvalidInput, InvalidParameter

KINDS = ("gist", "pixels", "onnx")
SIDES = {"gist": (16, 256), "pixels": (8, 128), "onnx": (8, 1024)}  # least and most: filters, and memory
MOST_COLOUR = 1000.0
LAYOUTS = ("nchw", "nhwc")

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Recipe:
    """What a picture's vector is made of: the square in its middle, of side × side pixels.

    kind : "gist", the picture's structure; "pixels", their values; "onnx", a network's output
    colour : weight of a colour histogram beside GIST, of which 1 counts as much as GIST; 0: none
    grey : of "pixels": the mean of the channels, a third as many values
    mean, std : of "onnx": what is taken from the channels, scaled to 0..1, and what they are divided by
    sha256, input, output, layout : of "onnx": the network's file, and how it is called
    """

    kind: str
    side: int
    colour: float = 0.0
    grey: bool = False
    mean: Channels = (0.0, 0.0, 0.0)
    std: Channels = (1.0, 1.0, 1.0)
    sha256: str = ""
    input: str = ""
    output: str = ""
    layout: str = "nchw"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidParameter("features", self.kind, f"one of {', '.join(KINDS)}")
        check_integer("side", self.side, *SIDES[self.kind], f"It is in pixels, of features {self.kind}.")
        _check_number("colour", self.colour, 0.0, MOST_COLOUR, "1 counts as much as GIST.")
        if self.colour and self.kind != "gist":
            raise InvalidParameter("colour", self.colour, f"0 for features {self.kind}", "It is beside GIST.")
        if not isinstance(self.grey, bool) or (self.grey and self.kind != "pixels"):
            raise InvalidParameter("grey", self.grey, "False, or features 'pixels'")
        self._check_network()

    def _check_network(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or len(value) != 3:
                raise InvalidParameter(name, value, "three numbers, one a channel: red, green, blue")
            for number in value:
                _check_number(name, number, -1e6, 1e6, "Channels are scaled to 0..1 first.")
            if name == "std" and not all(value):
                raise InvalidParameter(name, value, "numbers other than 0, which channels are divided by")
        if self.kind == "onnx" and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise InvalidParameter("sha256", self.sha256, "the SHA-256 of the network's file")
        if self.layout not in LAYOUTS:
            raise InvalidParameter("layout", self.layout, " or ".join(LAYOUTS))

    def document(self) -> dict[str, Any]:
        """The recipe for JSON, without what its kind does not use."""
        kept = {"gist": ("colour",), "pixels": ("grey",), "onnx": _OF_NETWORKS}[self.kind]
        return {name: value for name, value in asdict(self).items() if name in ("kind", "side", *kept)}

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The recipe of `document`; InvalidInput where that is not what it is."""
        known = {field.name for field in fields(cls)}
        if not isinstance(document, dict) or not {"kind", "side"} <= set(document) <= known:
            raise InvalidInput(f"this is not a recipe for vectors of pictures: {document!r:.200}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
        }
        return cls(**values)


_OF_NETWORKS = ("mean", "std", "sha256", "input", "output", "layout")


def _check_number(name: str, value: object, least: float, most: float, remedy: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or not least <= value <= most:  # type: ignore[arg-type, operator]
        raise InvalidParameter(name, value, f"a number of {least:g} to {most:g}", remedy)
