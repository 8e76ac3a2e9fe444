"""From the bytes of a picture to pixels and a thumbnail, by Pillow: here, or in processes with limits."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import IO, Any, Self, cast

import numpy as np
import numpy.typing as npt

from auxbit.core.checks import require
from auxbit.core.parallel import resolve_n_jobs
from auxbit.errors import AuxbitError, BadPicture, InvalidInput, InvalidParameter, MissingExtra

SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".dib", ".avif",
    ".heic", ".heif", ".hif",
})  # fmt: skip
UNREAD = frozenset({
    ".arw", ".cr2", ".cr3", ".dng", ".eps", ".exr", ".hdr", ".ico", ".j2k", ".jp2", ".jxl", ".nef", ".orf",
    ".pbm", ".pgm", ".ppm", ".psd", ".raf", ".raw", ".rw2", ".svg", ".tga", ".xcf",
})  # fmt: skip
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "HEIF")
READ = "JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC"
MAX_PIXELS = 100_000_000
MAX_SIDE = 4096  # of the square; features use far smaller ones
PNG_UP_TO = 64  # pixels: up to here a PNG is as small as a JPEG, and exact
GAP = 2.0  # a JPEG is read at 1/2, 1/4 or 1/8 of its size if the square is this much smaller still

_STARTS = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0"),
    "BMP": (b"BM",),
}
_BRANDS = {  # of files in boxes: by the first kind of which one is named
    "AVIF": {b"avif", b"avis"},
    "HEIF": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"},
}
_ORIENTATION, _EXIF_PART, _TAKEN = 0x0112, 0x8769, 0x9003  # EXIF tags


@dataclass(frozen=True)
class Decoded:
    """A picture, decoded.

    pixels : (side, side, 3) uint8, the square in its middle, scaled (by area when it shrinks)
    thumbnail : the whole picture as PNG or JPEG
    width, height : of the picture as it is seen, after EXIF orientation
    format : one of FORMATS
    taken : "YYYY-MM-DDTHH:MM:SS", or None if EXIF does not say
    """

    pixels: npt.NDArray[np.uint8]
    thumbnail: bytes
    width: int
    height: int
    format: str
    taken: str | None


def decode(content: bytes, side: int, *, longest: int = 256, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Pixels (side, side, 3), thumbnail of at most `longest` pixels, size and date of a picture.

    The same bytes, `side` and `longest` give the same pixels. Raises BadPicture, whose text continues a
    sentence that begins with the name of the picture: "is cut short".
    """
    check_sides(side, longest)
    with _reading():
        picture = _Picture(content, side, longest, max_pixels)
        pixels, whole = np.array(picture.square(side), dtype=np.uint8), picture.within(longest)
        small = max(whole.size) <= PNG_UP_TO
        thumbnail = _saved(whole, "PNG") if small else _saved(whole, "JPEG", quality=82)
        return Decoded(pixels, thumbnail, picture.width, picture.height, picture.format, picture.taken)


def preview(content: bytes, *, longest: int = 1600, max_pixels: int = MAX_PIXELS) -> bytes:
    """A JPEG to look at: upright, at most `longest` pixels on the longer side, without metadata."""
    check_sides(1, longest)
    with _reading():
        return _saved(_Picture(content, 1, longest, max_pixels).within(longest), "JPEG", quality=87)


def check_sides(side: int, longest: int) -> None:
    """Refuse sizes that no picture can be scaled to."""
    for name, value in (("side", side), ("longest", longest)):
        if not 1 <= value <= MAX_SIDE:
            raise InvalidParameter(name, value, f"1 to {MAX_SIDE} pixels")


def load_plugins() -> dict[str, Any]:
    """What reads each of FORMATS but the last two, which are not everywhere.

    Not by Image.open, which may import every plugin and warns of sizes.
    """
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin
    from PIL import WebPImagePlugin as WebP

    return {
        "JPEG": JpegImagePlugin.JpegImageFile,
        "PNG": PngImagePlugin.PngImageFile,
        "WEBP": WebP.WebPImageFile,
        "GIF": GifImagePlugin.GifImageFile,
        "TIFF": TiffImagePlugin.TiffImageFile,
        "BMP": BmpImagePlugin.BmpImageFile,
    }


def _plugin(kind: str) -> Any:
    """What reads a format; BadPicture, with the remedy, if that is not installed."""
    if kind == "HEIF":
        try:
            return require("pillow_heif", extra="heic", purpose="a HEIC picture").HeifImageFile
        except MissingExtra:
            raise BadPicture(
                "is a HEIC picture, which needs pillow-heif: pip install 'auxbit[heic]'"
            ) from None
    if kind == "AVIF":
        with suppress(ImportError):
            from PIL import AvifImagePlugin

            if AvifImagePlugin.SUPPORTED:
                return AvifImagePlugin.AvifImageFile
        raise BadPicture("is an AVIF picture, which needs Pillow 11.3: pip install -U Pillow")
    return load_plugins()[kind]


# ---- A picture, opened, scaled and turned


class _Picture:
    """A picture that is loaded and in a mode that can be scaled.

    ImageOps has `fit` and `contain`, but not for a JPEG that was reduced as it was read, which ends between
    two pixels; and `fit` cuts through the middle of pixels if width and height differ by an odd number.
    """

    def __init__(self, content: bytes, side: int, longest: int, max_pixels: int) -> None:
        image = _opened(content, max_pixels)
        self.format = str(image.format)
        size = image.size
        smaller = max(GAP * side / min(size), longest / max(size)) if self.format == "JPEG" else 1.0
        # `drafted` says where a JPEG that is reduced as it is read ends; of HEIC it would be another picture
        drafted = image.draft(None, tuple(int(smaller * n) + 1 for n in size)) if smaller < 1 else None
        image.load()
        orientation, self.taken = _exif(image)
        self._profile = image.info.get("icc_profile")
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
        ratio = edge / side
        # Pillow's BOX takes whole pixels: uneven if they are few and their number is no multiple of the side
        even = ratio == int(ratio) or ratio >= 8
        shrink = Image.Resampling.BOX if even else Image.Resampling.HAMMING
        how = Image.Resampling.BICUBIC if ratio < 1 else shrink
        return self._seen(self._image.resize((side, side), how, (left, top, left + edge, top + edge)))

    def within(self, longest: int) -> Any:
        """The whole as RGB, at most `longest` pixels on the longer side, never enlarged."""
        from PIL import Image

        image = self._image
        if max(self.width, self.height) > longest:
            size = tuple(max(1, round(n * longest / max(self._extent))) for n in self._extent)
            image = image.resize(size, Image.Resampling.LANCZOS, (0, 0, *self._extent), reducing_gap=3.0)
        return self._seen(image)

    def _seen(self, image: Any) -> Any:
        """A scaled copy, upright: transparency over white, colours by its profile if it has one."""
        from PIL import Image, ImageCms

        if image.mode in ("LA", "RGBA"):
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
        to_srgb = self._to_srgb
        image = image.convert("RGB") if to_srgb is None else ImageCms.applyTransform(image, to_srgb)
        return _turned(image, self._turn_at_last)

    @cached_property
    def _to_srgb(self) -> Any:
        """The transform of colours to sRGB; None if they are so already, or the profile is broken."""
        mode = {"LA": "RGB", "RGBA": "RGB"}.get(self._image.mode, self._image.mode)
        if mode != "LAB" and not self._profile:
            return None
        from PIL import ImageCms

        with suppress(Exception):  # colours that are a little off are better than none
            srgb = ImageCms.createProfile("sRGB")
            if mode == "LAB":
                return ImageCms.buildTransform(ImageCms.createProfile("LAB"), srgb, mode, "RGB")
            own = ImageCms.ImageCmsProfile(io.BytesIO(self._profile))
            space = {"RGB": "RGB ", "CMYK": "CMYK", "L": "GRAY"}.get(mode)
            if (
                own.profile.xcolor_space == space
                and "srgb" not in str(own.profile.profile_description).lower()
            ):
                return ImageCms.buildTransform(own, srgb, mode, "RGB")
        return None


def _opened(content: bytes, max_pixels: int) -> Any:
    """The picture's header, read by the plugin for its first bytes."""
    kind = _format_of(content)
    if kind is None:
        raise BadPicture("is empty" if not content else f"is not a {READ} picture")
    if kind == "WEBP":  # Pillow allocates all pixels when it opens one
        _check_size(_size_of_webp(content), max_pixels)
    image = _plugin(kind)(io.BytesIO(content))
    _check_size(image.size, max_pixels)
    return image


def _format_of(content: bytes) -> str | None:
    """One of FORMATS by the first bytes, None for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content[4:8] == b"ftyp":
        named = content[8 : min(int.from_bytes(content[:4]), 256)]
        brands = {named[start : start + 4] for start in range(0, len(named), 4)}
        return next((kind for kind, known in _BRANDS.items() if brands & known), None)
    return next((kind for kind, starts in _STARTS.items() if content.startswith(starts)), None)


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
    """Orientation (1 to 8) and date; if EXIF is broken, the pixels are still good."""
    orientation, taken = 1, None
    with suppress(Exception):
        exif = image.getexif()
        found = exif.get(_ORIENTATION)
        orientation = found if isinstance(found, int) and 1 <= found <= 8 else 1
        text = str(exif.get_ifd(_EXIF_PART).get(_TAKEN)).strip("\0 ")
        taken = datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat()
    return orientation, taken


def _turned(image: Any, orientation: int) -> Any:
    """Upright, whatever way the camera was held.

    Not by ImageOps.exif_transpose, which writes the metadata again, broken or not, and copies all pixels of a
    picture that stands upright.
    """
    from PIL.Image import Transpose as To

    ways = (
        To.FLIP_LEFT_RIGHT, To.ROTATE_180, To.FLIP_TOP_BOTTOM, To.TRANSPOSE, To.ROTATE_270, To.TRANSVERSE,
        To.ROTATE_90,
    )  # fmt: skip
    return image if orientation == 1 else image.transpose(ways[orientation - 2])


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


def _grey_of_numbers(image: Any, kind: str) -> Any:
    """Numbers of 16 and 32 bits as grey: by the usual range, else from the least to the most.

    Not by Pillow's convert, which takes them as 0..255 and clips what is larger.
    """
    from PIL import Image

    values = np.asarray(image)
    if values.dtype.itemsize == 2:
        return Image.fromarray((values >> 8).astype(np.uint8))
    step = max(1, 2**22 // values.shape[1])  # by strips: a copy of all in float64 would be large
    strips = [slice(start, start + step) for start in range(0, len(values), step)]
    finite = (values[rows][np.isfinite(values[rows])] for rows in strips)
    extremes = [(float(some.min()), float(some.max())) for some in finite if some.size]
    low = min((pair[0] for pair in extremes), default=np.inf)
    high = max((pair[1] for pair in extremes), default=-np.inf)
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


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    """The bytes of an RGB picture as a file, with nothing but its pixels in it."""
    clean = image.copy()
    clean.info = {}
    stream = io.BytesIO()
    clean.save(stream, kind, **options)
    return stream.getvalue()


# ---- What goes wrong


@contextmanager
def _reading() -> Iterator[None]:
    """Make a BadPicture of whatever goes wrong inside."""
    require("PIL.Image", extra="images", purpose="reading pictures")
    try:
        with _quiet:
            yield
    except BadPicture:
        raise
    except MemoryError:
        raise BadPicture("needs more memory than is allowed") from None
    except Exception as error:
        cause = error.__cause__ or error  # plugins turn any error in a header into a SyntaxError
        text = " ".join(str(error).split())[:200]
        if "truncated" in text.lower():
            raise BadPicture("is cut short") from error
        if not text or not isinstance(cause, (OSError, SyntaxError, ValueError, EOFError)):
            text = "it is damaged"
        raise BadPicture(f"is not a picture that can be read: {text}") from error


class _Quiet:
    """While any thread is inside, Pillow's warnings are not shown: what matters is raised.

    Not one catch_warnings per thread: the filters are of the whole process, and the ends would cross.
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


# ---- Processes that decode: a picture that kills or stalls its decoder harms no other
#
# Pools of pebble and concurrent.futures were tried first. Both give up all processes when one is killed while
# it is idle, and pebble also when a file does not fit into memory; and both import the caller's script again,
# so that one without `if __name__ == "__main__"` cannot use them.

START_SECONDS = 60.0  # a process may take this long to start, on a machine that is busy
LARGEST_FILE = 2**26  # bytes of a thumbnail or preview: more is no answer
LONGEST_HEADER = 2**16
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Message = tuple[dict[str, Any], bytes]


class Decoders:
    """Up to n processes that decode pictures, for any number of threads; started as they are needed.

    n : processes; None: as many as there are cores
    seconds : for one picture; a process that takes longer is killed
    memory : bytes of address space per process

    with Decoders() as decoders:
        decoded = decoders.decode(content, side=32)
    """

    def __init__(self, n: int | None = None, *, seconds: float = 20.0, memory: int = 2 * 2**30) -> None:
        if n is not None and n < 1:
            raise InvalidParameter("n", n, "at least one process, or None")
        if not 0 < seconds < 1e6:
            raise InvalidParameter("seconds", seconds, "a positive number of seconds")
        if memory < 2**28:
            raise InvalidParameter("memory", memory, "at least 256 MiB, which Python and Pillow need")
        self._n, self._seconds, self._memory = n or resolve_n_jobs(None), seconds, memory
        self._changed = threading.Condition()
        self._idle: list[_Child] = []
        self._busy = 0  # processes that decode, or are about to start
        self._closed = False
        self._threads = ThreadPoolExecutor(self._n, "auxbit-decoders")
        self._children: set[_Child] = set()
        # if they are forgotten, or Python ends, before they are closed
        self._kill_all = weakref.finalize(self, _kill, self._children)

    def decode(
        self, content: bytes, side: int, *, longest: int = 256, max_pixels: int = MAX_PIXELS
    ) -> Decoded:
        """As the function `decode`, in another process; waits until one is free."""
        check_sides(side, longest)
        options, size = {"side": side, "longest": longest, "max_pixels": max_pixels}, 3 * side**2
        with self._answer("decode", options, content, size + LARGEST_FILE) as (header, body):
            pixels = np.frombuffer(body, dtype=np.uint8, count=size).reshape(side, side, 3).copy()
            kind = FORMATS[FORMATS.index(header["format"])]
            taken = None if header["taken"] is None else str(header["taken"])
            return Decoded(pixels, body[size:], int(header["width"]), int(header["height"]), kind, taken)

    def preview(self, content: bytes, *, longest: int = 1600, max_pixels: int = MAX_PIXELS) -> bytes:
        """As the function `preview`, in another process."""
        check_sides(1, longest)
        options = {"longest": longest, "max_pixels": max_pixels}
        with self._answer("preview", options, content, LARGEST_FILE) as (_, body):
            return body

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run now."""
        return sorted(child.process.pid for child in list(self._children) if child.process.poll() is None)

    def close(self) -> None:
        """End the processes once their pictures are done; whoever waits for a process gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # all come back in time, unless an interrupt struck between two steps of a thread
            self._changed.wait_for(lambda: not self._busy, timeout=START_SECONDS + self._seconds)
        self._kill_all()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _answer(self, task: str, options: dict[str, int], content: bytes, most: int) -> Iterator[Message]:
        """What a process makes of a picture; an answer that its reader cannot understand is no answer."""
        with self._child() as child:
            try:
                header, body = child.ask({"task": task, "options": options}, content, most, self._seconds)
                if "bad" not in header:
                    yield header, body
                    return
            except BadPicture:
                raise
            except (KeyError, TypeError, ValueError, RecursionError):
                child.kill()
                raise BadPicture("made the decoder return an invalid result") from None
            except BaseException:  # an interrupt: its answer would be taken for that to the next picture
                child.kill()
                raise
        raise BadPicture(str(header["bad"]))

    @contextmanager
    def _child(self) -> Iterator[_Child]:
        """A process that nobody else uses: an idle one, or a new one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._busy < self._n)
            if self._closed:
                raise InvalidInput("the decoders are closed, so no picture can be decoded. Make new ones.")
            self._busy += 1
            child = self._idle.pop() if self._idle else None
        try:
            if child is not None and child.process.poll() is not None:  # killed while it was idle
                child.kill()
                child = None
            child = child or _Child(self._threads, self._children, self._seconds, self._memory)
            yield child
        finally:
            with self._changed:
                if child is not None and child.process.returncode is None:  # it was not killed
                    self._idle.append(child)
                self._busy -= 1
                self._changed.notify_all()


class _Child:
    """A process that decodes one picture at a time. siblings : all that run, to which it adds itself."""

    def __init__(
        self, threads: ThreadPoolExecutor, siblings: set[_Child], seconds: float, memory: int
    ) -> None:
        require("PIL.Image", extra="images", purpose="reading pictures")
        command = ["-P", "-c", f"from auxbit.images.decode import work; work({seconds}, {memory})"]
        # it finds the same packages as we do, wherever we found them
        places = os.pathsep.join(map(os.path.abspath, sys.path))
        try:
            self.process = subprocess.Popen(
                [sys.executable, *command], bufsize=2**16, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={**os.environ, **ONE_THREAD, "PYTHONPATH": places},
                process_group=0,  # Ctrl-C is for us alone, also while it starts
            )  # fmt: skip
        except OSError as error:
            raise AuxbitError(f"the process that decodes pictures cannot start: {error}.") from error
        self._requests = cast(IO[bytes], self.process.stdin)
        self._answers = cast(IO[bytes], self.process.stdout)
        self._threads, self._siblings = threads, siblings
        siblings.add(self)
        try:
            self.ask(None, b"", 0, START_SECONDS)
        except (KeyError, TypeError, ValueError):
            self.kill()
            raise AuxbitError(
                f"the process that decodes pictures does not start ({self._how_it_ended()}). "
                f"See what `{shlex.join([sys.executable, *command])}` says."
            ) from None
        except BaseException:  # an interrupt
            self.kill()
            raise

    def ask(self, header: dict[str, Any] | None, content: bytes, most: int, seconds: float) -> Message:
        """The answer to a request (None: to being started); BadPicture if the process dies, or is late."""
        # in another thread: writing to a pipe and reading from one have no timeout of their own
        answer = self._threads.submit(self._exchange, header, content, most)
        try:
            found = answer.result(seconds)
        except TimeoutError:
            self.kill()
            raise BadPicture(f"took longer than {seconds:g} s to decode") from None
        if found is None:
            self.kill()
            raise BadPicture(f"made the decoder crash ({self._how_it_ended()})")
        return found

    def kill(self) -> None:
        """Kill the process, if it still runs, and let go of it."""
        self.process.kill()
        self.process.wait()
        self._siblings.discard(self)
        for stream in (self._requests, self._answers):
            with suppress(OSError):  # what was not sent yet cannot be
                stream.close()

    def _exchange(self, header: dict[str, Any] | None, content: bytes, most: int) -> Message | None:
        with suppress(OSError):  # the pipe is broken
            if header is not None:
                send(self._requests, header, content)
            return receive(self._answers, most)
        return None

    def _how_it_ended(self) -> str:
        code = self.process.returncode
        if code >= 0:
            return f"exit code {code}"
        return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def _kill(children: set[_Child]) -> None:
    for child in list(children):
        child.kill()


def work(seconds: float, memory: int) -> None:
    """Answer requests on standard input until there are no more: the parent closed the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows sends Ctrl-C to all processes
    # the pipes get descriptors of their own: what a library prints must not get between the messages
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    alarm = getattr(signal, "alarm", lambda seconds: None)  # Windows has none
    load_plugins()
    _limit(memory)
    send(answers, {})
    while (request := receive(requests, sys.maxsize)) is not None:
        alarm(int(seconds) + 5)  # ends this process if the parent, which is quicker, is gone
        answer = _answer(*request)
        alarm(0)
        del request  # frees the memory for the next one
        send(answers, *answer)


def _answer(header: dict[str, Any], content: bytes) -> tuple[Any, ...]:
    """Header and parts of the body of the answer to a request."""
    try:
        if header["task"] == "preview":
            return {}, preview(content, **header["options"])
        decoded = decode(content, **header["options"])
        about = {name: getattr(decoded, name) for name in ("width", "height", "format", "taken")}
        return about, decoded.pixels.tobytes(), decoded.thumbnail
    except BadPicture as error:
        return ({"bad": str(error)},)
    except MemoryError:
        return ({"bad": "needs more memory than is allowed"},)


def _limit(memory: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        with suppress(ValueError, OSError):  # not every system allows it
            resource.setrlimit(what, (most, most))


def send(stream: IO[bytes], header: dict[str, Any], *body: bytes) -> None:
    """Write a message: a line of JSON with the number of bytes of the body, then the body."""
    line = json.dumps({**header, "bytes": sum(map(len, body))}).encode()
    stream.write(b"".join([line, b"\n", *body]))
    stream.flush()


def receive(stream: IO[bytes], most: int) -> Message | None:
    """Header and body of the next message; None if the stream ends, ValueError if it is no message."""
    line = stream.readline(LONGEST_HEADER)
    if not line.endswith(b"\n") and len(line) < LONGEST_HEADER:
        return None
    header = json.loads(line)
    size = int(header["bytes"])
    if not 0 <= size <= most:
        raise ValueError(f"a body of {size} bytes")
    body = stream.read(size)
    return (header, body) if len(body) == size else None
