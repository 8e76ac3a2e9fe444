"""From the bytes of a picture to pixels and a thumbnail, by Pillow, in whatever process calls it."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from auxbit.errors import BadPicture, InvalidParameter
from auxbit.extras import require
from auxbit.images.pixel_modes import over_white, scalable, to_srgb

SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff"})
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF")
MAX_PIXELS = 100_000_000
MAX_SIDE = 4096  # of the square: the largest that anything describes is far smaller
PNG_UP_TO = 64  # pixels: below, a PNG is as small as a JPEG and shows every pixel as it is
GAP = 2.0  # a JPEG is read at 1/2, 1/4 or 1/8 of its size where the square is this much smaller still

_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0")
_ORIENTATION, _EXIF_PART, _TAKEN = 0x0112, 0x8769, 0x9003  # EXIF tags


@dataclass(frozen=True)
class Decoded:
    """A picture, decoded.

    pixels : (side, side, 3) uint8, the square in its middle, scaled (by area when it shrinks)
    thumbnail : the whole picture as PNG or JPEG
    width, height : of the picture as it is seen, after EXIF orientation
    format : one of FORMATS
    taken : "YYYY-MM-DDTHH:MM:SS", or None where EXIF does not say
    """

    pixels: npt.NDArray[np.uint8]
    thumbnail: bytes
    width: int
    height: int
    format: str
    taken: str | None


def decode(content: bytes, side: int, *, longest: int = 256, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Pixels (side, side, 3), thumbnail of at most `longest` pixels, size and date of a picture.

    The same bytes, `side` and `longest` give the same pixels. Raises BadPicture, whose text goes on after
    the name of the picture: "is cut short".
    """
    check_sides(side, longest)
    with _reading():
        picture = _Picture(content, side, longest, max_pixels)
        return Decoded(
            np.array(picture.square(side), dtype=np.uint8),
            _thumbnail(picture.within(longest)),
            picture.width,
            picture.height,
            picture.format,
            picture.taken,
        )


def preview(content: bytes, *, longest: int = 1600, max_pixels: int = MAX_PIXELS) -> bytes:
    """A JPEG to look at: upright, at most `longest` pixels on the longer side, without metadata."""
    check_sides(1, longest)
    with _reading():
        picture = _Picture(content, 1, longest, max_pixels)
        return _saved(picture.within(longest), "JPEG", quality=87)


def check_sides(side: int, longest: int) -> None:
    """Refuse sizes that no picture can be scaled to."""
    for name, value in (("side", side), ("longest", longest)):
        if not 1 <= value <= MAX_SIDE:
            raise InvalidParameter(name, value, f"1 to {MAX_SIDE} pixels")


def format_of(content: bytes) -> str | None:
    """One of FORMATS by the first bytes, None for anything else."""
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    return "TIFF" if content.startswith(_TIFF_STARTS) else None


def load_plugins() -> dict[str, Any]:
    """What reads each of FORMATS. Not by Image.open, which may import every plugin and warns of sizes."""
    from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    return {
        "JPEG": JpegImagePlugin.JpegImageFile,
        "PNG": PngImagePlugin.PngImageFile,
        "WEBP": WebPImagePlugin.WebPImageFile,
        "GIF": GifImagePlugin.GifImageFile,
        "TIFF": TiffImagePlugin.TiffImageFile,
    }


class _Picture:
    """A picture that is loaded and in a mode that can be scaled."""

    def __init__(self, content: bytes, side: int, longest: int, max_pixels: int) -> None:
        image = _opened(content, max_pixels)
        self.format = str(image.format)
        size = image.size
        smaller = max(GAP * side / min(size), longest / max(size))
        # a JPEG that is reduced as it is read ends between two pixels: `drafted` says where
        drafted = image.draft(None, tuple(int(smaller * n) + 1 for n in size)) if smaller < 1 else None
        image.load()
        orientation, self.taken = _exif(image)
        self._profile = image.info.get("icc_profile")
        self._to_rgb: Callable[[Any], Any] | None = None
        if drafted:
            self._extent: tuple[float, float] = drafted[1][2:]
            self._turn_at_last = orientation
            self.width, self.height = size[::-1] if orientation >= 5 else size
        else:
            image = _turned(image, orientation)
            self._extent = self.width, self.height = image.size
            self._turn_at_last = 1
        self._image = scalable(image, self.format)

    def square(self, side: int) -> Any:
        """The square in the middle as RGB, side pixels wide."""
        from PIL import Image

        width, height = self._extent
        edge = min(width, height)
        left, top = (width - edge) / 2, (height - edge) / 2
        if edge == int(edge):
            left, top = int(left), int(top)  # half a pixel would blur what need not be scaled
        box = (left, top, left + edge, top + edge)
        ratio = edge / side
        # Pillow's box takes whole pixels: it is uneven where there are few and they do not come out even
        even = ratio == int(ratio) or ratio >= 8
        shrink = Image.Resampling.BOX if even else Image.Resampling.HAMMING
        how = Image.Resampling.BICUBIC if ratio < 1 else shrink
        return self._seen(self._image.resize((side, side), how, box))

    def within(self, longest: int) -> Any:
        """The whole as RGB, at most `longest` pixels on the longer side, never enlarged."""
        from PIL import Image

        image, longer = self._image, max(self.width, self.height)
        if longer > longest:
            longer_extent = max(self._extent)
            size = tuple(max(1, round(n * longest / longer_extent)) for n in self._extent)
            box = (0, 0, *self._extent)
            image = image.resize(size, Image.Resampling.LANCZOS, box, reducing_gap=3.0)
        return self._seen(image)

    def _seen(self, image: Any) -> Any:
        """A scaled copy, upright: transparency over white, colours by its profile where it has one."""
        image = over_white(image)
        if self._to_rgb is None:
            self._to_rgb = to_srgb(image.mode, self._profile)
        return _turned(self._to_rgb(image), self._turn_at_last)


def _opened(content: bytes, max_pixels: int) -> Any:
    """The picture's header, read by the one plugin that its first bytes ask for."""
    kind = format_of(content)
    if kind is None:
        raise BadPicture("is empty" if not content else "is no JPEG, PNG, WebP, GIF or TIFF picture")
    if kind == "WEBP":  # Pillow makes room for all pixels when it opens one
        _check_size(_size_of_webp(content), max_pixels)
    image = load_plugins()[kind](io.BytesIO(content))
    _check_size(image.size, max_pixels)
    return image


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise BadPicture("has no pixels")
    if width * height > max_pixels:
        raise BadPicture(f"has {width * height:,} pixels; at most {max_pixels:,} are read")


def _size_of_webp(content: bytes) -> tuple[int, int]:
    """Width and height of the canvas as the first chunk states them."""
    start = content[:30].ljust(30, b"\0")
    number = int.from_bytes
    if start[12:16] == b"VP8X":
        return number(start[24:27], "little") + 1, number(start[27:30], "little") + 1
    if start[12:16] == b"VP8L":
        bits = number(start[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return number(start[26:28], "little") & 0x3FFF or 1, number(start[28:30], "little") & 0x3FFF or 1


def _exif(image: Any) -> tuple[int, str | None]:
    """Orientation (1 to 8) and date; where EXIF is broken, the pixels are still good."""
    try:
        exif = image.getexif()
        orientation = exif.get(_ORIENTATION)
    except Exception:
        return 1, None
    if not isinstance(orientation, int) or not 1 <= orientation <= 8:
        orientation = 1
    try:
        text = exif.get_ifd(_EXIF_PART).get(_TAKEN)
        if text is None:
            return orientation, None
        taken = datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except Exception:
        return orientation, None
    return orientation, taken.isoformat()


def _turned(image: Any, orientation: int) -> Any:
    """Upright, whatever way the camera was held."""
    from PIL import Image

    ways = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    return image.transpose(ways[orientation]) if orientation in ways else image


def _thumbnail(image: Any) -> bytes:
    small = max(image.size) <= PNG_UP_TO
    return _saved(image, "PNG") if small else _saved(image, "JPEG", quality=82)


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    """The bytes of an RGB picture as a file, with nothing but its pixels in it."""
    clean = image.copy()
    clean.info = {}
    stream = io.BytesIO()
    clean.save(stream, kind, **options)
    return stream.getvalue()


@contextmanager
def _reading() -> Iterator[None]:
    """Make a BadPicture of whatever goes wrong within."""
    require("PIL.Image", extra="images", purpose="reading pictures")
    try:
        with _quiet:
            yield
    except BadPicture:
        raise
    except MemoryError:
        raise BadPicture("needs more memory than is allowed") from None
    except Exception as error:
        cause = error.__cause__ or error  # plugins make a SyntaxError of whatever a header leads them to
        text = " ".join(str(error).split())[:200]
        if "truncated" in text.lower():
            raise BadPicture("is cut short") from error
        if not text or not isinstance(cause, (OSError, SyntaxError, ValueError, EOFError)):
            text = "it is damaged"
        raise BadPicture(f"is not a picture that can be read: {text}") from error


class _Quiet:
    """While anybody is inside, Pillow's warnings are not shown: what matters is raised.

    Not a catch_warnings for each, whose ends would cross where threads are at work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._kept: warnings.catch_warnings[None]

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._kept = warnings.catch_warnings()
                self._kept.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._kept.__exit__(None, None, None)


_quiet = _Quiet()
