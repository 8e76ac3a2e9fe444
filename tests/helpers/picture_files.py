"""Small pictures as the bytes of files: of every kind, turned every way, and broken in many."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

with suppress(ModuleNotFoundError):  # `make test-min` has none: its Pillow is too old for it
    import pillow_heif

    pillow_heif.register_heif_opener()  # so that Pillow can write them

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "HEIF")
SUFFIX = {
    "JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "TIFF": ".tif", "BMP": ".bmp",
    "AVIF": ".avif", "HEIF": ".heic",
}  # fmt: skip
RED, GREEN, BLUE, GREY = (200, 30, 40), (30, 180, 60), (40, 50, 210), (128, 128, 128)
ORIENTATION, TAKEN = 0x0112, 0x9003

# how the pixels of an upright picture lie in a file of each EXIF orientation
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: upright.swapaxes(0, 1)[::-1],
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],
}


def corners(width: int = 48, height: int = 32) -> Any:
    """(height, width, 3) uint8: red, green, blue, grey in the corners, so that no turn looks like another."""
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    middle, half = height // 2, width // 2
    pixels[:middle, :half], pixels[:middle, half:] = RED, GREEN
    pixels[middle:, :half], pixels[middle:, half:] = BLUE, GREY
    return pixels


def noise(width: int = 48, height: int = 32, seed: int = 0) -> Any:
    """(height, width, 3) uint8: smooth blots, different for each seed."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def saved(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file that holds an image or an array; JPEG and WebP as exact as they can be."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.ascontiguousarray(image))
    exact = {
        "JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True},
        "AVIF": {"quality": 100, "subsampling": "4:4:4"}, "HEIF": {"quality": -1, "chroma": 444},
    }.get(kind, {})  # fmt: skip
    stream = io.BytesIO()
    image.save(stream, kind, **{**exact, **options})
    return stream.getvalue()


def exif_of(orientation: int | None = None, taken: str | None = None) -> Any:
    """EXIF that says which way is up, and when the picture was taken."""
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    if taken is not None:
        exif.get_ifd(0x8769)[TAKEN] = taken
    return exif


def turned(upright: Any, orientation: int, kind: str = "JPEG") -> bytes:
    """A file that shows `upright` if its orientation is heeded."""
    return saved(STORED[orientation](upright), kind, exif=exif_of(orientation).tobytes())


def colour_file(mode: str, colour: Any, kind: str = "TIFF", size: tuple[int, int] = (40, 40)) -> bytes:
    """A file of one colour in a mode of Pillow's."""
    return saved(Image.new(mode, size, colour), kind)


def palette_file(colour: tuple[int, int, int], transparent: bool = False) -> bytes:
    """A PNG with a palette; where it is transparent, the left half is."""
    image = Image.new("P", (40, 40), 1)
    image.putpalette([0, 0, 0, *colour])
    if not transparent:
        return saved(image)
    image.paste(0, (0, 0, 20, 40))
    return saved(image, transparency=0)


def frames(kind: str, *colours: tuple[int, int, int]) -> bytes:
    """A file with a frame or page of each colour: GIF, WEBP, PNG or TIFF."""
    first, *others = (Image.new("RGB", (40, 30), colour) for colour in colours)
    return saved(first, kind, save_all=True, append_images=others)


def png_chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG with its checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def huge(kind: str, width: int, height: int) -> bytes:
    """A small file whose header says that it is huge."""
    if kind == "PNG":
        header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        row = zlib.compress(bytes(100_000), 9)
        return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", row) + png_chunk(b"IEND", b"")
    if kind == "GIF":
        screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
        return b"GIF89a" + screen + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2\2\x44\1\0;"
    if kind == "WEBP":  # the canvas of the extended format
        content = bytearray(saved(corners(), "WEBP", exif=exif_of(1)))
        content[24:27], content[27:30] = (width - 1).to_bytes(3, "little"), (height - 1).to_bytes(3, "little")
        return bytes(content)
    if kind == "JPEG":
        content = bytearray(saved(corners(), "JPEG"))
        start = content.index(b"\xff\xc0") + 5
        content[start : start + 4] = struct.pack(">HH", height, width)
        return bytes(content)
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, width * height % 2**32)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)


def bad_files() -> dict[str, bytes]:
    """Files that are no pictures, or broken ones, by their name."""
    jpeg, png = saved(noise(64, 64), "JPEG"), saved(noise(64, 64), "PNG")
    heic = saved(noise(64, 64), "HEIF")
    return {
        "empty.jpg": b"",
        "text.jpg": b"Dear diary, today I was renamed.\n",
        "drawing.png": b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>',
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": png[: len(png) // 2],
        "no frames.gif": b"GIF89a" + struct.pack("<HHBBB", 10, 10, 0, 0, 0) + b";",
        "header only.png": png[:20],
        "bomb.png": huge("PNG", 60_000, 60_000),
        "film.heic": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom",
        "cut.heic": heic[: len(heic) // 2],
        "no boxes.avif": b"\0\0\0\x18ftypavif\0\0\0\0avifmif1",
        "header only.bmp": saved(corners(), "BMP")[:20],
    }


def fill(folder: Path, n: int = 12, size: tuple[int, int] = (48, 32)) -> list[str]:
    """Write n good pictures of all formats into a folder and one within it; return their names, in order."""
    names = []
    for number in range(n):
        kind = FORMATS[number % len(FORMATS)]
        name = f"{'more/' if number % 3 == 2 else ''}picture{number}{SUFFIX[kind]}"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(saved(noise(*size, seed=number), kind))
        names.append(name)
    return sorted(
        names, key=lambda name: (not name.startswith("more/"), int("".join(filter(str.isdigit, name))))
    )
