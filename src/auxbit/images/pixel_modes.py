"""Every kind of pixel that files hold, as RGB."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def scalable(image: Any, kind: str) -> Any:
    """The picture as L, LA, RGB, RGBA, CMYK or LAB, which can be averaged over areas."""
    if image.mode.startswith(("I", "F")):
        return _grey_of_numbers(image, kind)
    palette = getattr(image, "palette", None)
    clear = "transparency" in image.info or (image.mode == "P" and palette and palette.mode.endswith("A"))
    if clear or image.mode in ("PA", "RGBa"):
        return image.convert("RGBA")
    if image.mode in ("L", "LA", "RGB", "RGBA", "CMYK", "LAB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def over_white(image: Any) -> Any:
    """The picture without its transparency, if it has any: what is behind it is white."""
    from PIL import Image

    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def to_srgb(mode: str, profile: bytes | None) -> Callable[[Any], Any]:
    """What makes RGB of a picture of this mode, by its profile; one that is broken is left alone."""
    transform = None
    if mode == "LAB":
        transform = _lab_transform()
    elif profile:
        try:
            transform = _profile_transform(mode, profile)
        except Exception:  # colours that are a little off are better than none
            transform = None
    if transform is None:
        return _plain_rgb
    from PIL import ImageCms

    return lambda image: ImageCms.applyTransform(image, transform)


def _plain_rgb(image: Any) -> Any:
    return image.convert("RGB")


def _lab_transform() -> Any:
    from PIL import ImageCms

    return ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )


def _profile_transform(mode: str, profile: bytes) -> Any:
    """From a profile to sRGB; None where it is sRGB, or of another kind of picture."""
    from PIL import ImageCms

    own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    space = {"RGB": "RGB ", "CMYK": "CMYK", "L": "GRAY"}.get(mode)
    if own.profile.xcolor_space != space or "srgb" in str(own.profile.profile_description).lower():
        return None
    return ImageCms.buildTransform(own, ImageCms.createProfile("sRGB"), mode, "RGB")


def _grey_of_numbers(image: Any, kind: str) -> Any:
    """Numbers of 16 and 32 bits as grey: by the range that is usual, else from the least to the most."""
    from PIL import Image

    values = np.asarray(image)
    if values.dtype.itemsize == 2:
        return Image.fromarray((values >> 8).astype(np.uint8))
    step = max(1, 2**22 // values.shape[1])  # by strips: a copy of all in float64 would be large
    strips = [slice(start, start + step) for start in range(0, len(values), step)]
    extremes = [_extremes(values[rows]) for rows in strips]
    low, high = min(pair[0] for pair in extremes), max(pair[1] for pair in extremes)
    usual = (65535.0,) if kind == "PNG" else (255.0, 65535.0) if values.dtype.kind == "i" else (1.0, 255.0)
    top = next((top for top in usual if low >= 0 and high <= top), None)
    if top is not None:
        low, high = 0.0, top
    scale = 255 / (high - low) if low < high < np.inf else 0.0
    grey = np.zeros(values.shape, dtype=np.uint8)
    for rows in strips:
        scaled = np.nan_to_num((values[rows].astype(np.float64) - low) * scale, nan=0.0)
        grey[rows] = np.clip(scaled + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(grey)


def _extremes(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Least and most of the finite values; infinite where there are none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)
