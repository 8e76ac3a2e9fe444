"""Pixels as PNG files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.extras import require


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture, (h, w) or (h, w, 3), as PNG."""
    image: Any = require("PIL.Image", extra="web", purpose="drawing pictures").fromarray(pixels)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
