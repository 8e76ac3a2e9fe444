"""Pictures that are refused: no pictures, broken ones, and those that would fill the memory."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import helpers.picture_files as files
from auxbit.errors import BadPicture, MissingExtra
from auxbit.images import decode as decoding
from auxbit.images.decode import Decoded, decode, preview

GOOD = {
    "JPEG": files.saved(files.noise(40, 30), "JPEG", exif=files.exif_of(6, "2021:07:04 09:05:01")),
    "progressive": files.saved(files.noise(40, 30), "JPEG", progressive=True),
    "PNG": files.saved(files.noise(40, 30), "PNG", exif=files.exif_of(6)),
    "palette": files.palette_file(files.RED, transparent=True),
    "lossy WEBP": files.saved(files.noise(40, 30), "WEBP", lossless=False),
    "WEBP": files.saved(files.noise(40, 30), "WEBP", exif=files.exif_of(6)),
    "animated WEBP": files.frames("WEBP", files.RED, files.GREEN),
    "animated PNG": files.frames("PNG", files.RED, files.GREEN),
    "GIF": files.frames("GIF", files.RED, files.GREEN),
    "TIFF": files.saved(files.noise(40, 30), "TIFF"),
    "deflated TIFF": files.saved(files.noise(40, 30), "TIFF", compression="tiff_deflate"),
    "LZW TIFF": files.saved(files.noise(40, 30), "TIFF", compression="tiff_lzw"),
    "float TIFF": files.colour_file("F", 0.5),
}


def outcome(content):
    """What decoding comes to: the picture, or the text of its BadPicture. Anything else is raised."""
    try:
        return decode(content, 16)
    except BadPicture as error:
        return str(error)


@pytest.mark.parametrize("name", GOOD)
def test_the_whole_file_is_good(name):
    assert isinstance(outcome(GOOD[name]), Decoded)


@pytest.mark.parametrize("name", GOOD)
def test_every_file_that_is_cut_short_is_a_picture_or_a_bad_one(name):
    content = GOOD[name]
    for end in range(0, len(content), max(1, len(content) // 150)):
        result = outcome(content[:end])
        assert isinstance(result, Decoded) or result


@pytest.mark.parametrize(
    "kind", ["JPEG", "progressive", "PNG", "lossy WEBP", "WEBP", "GIF", "TIFF", "LZW TIFF"]
)
def test_half_a_file_is_never_a_picture(kind):
    content = GOOD[kind] if kind != "GIF" else files.saved(files.noise(40, 30), "GIF")
    with pytest.raises(BadPicture, match=r"^is (cut short|not a picture that can be read)"):
        decode(content[: len(content) // 2], 16)


@given(st.data())
def test_flipped_bytes_give_a_picture_or_a_bad_one(data):
    content = bytearray(GOOD[data.draw(st.sampled_from(sorted(GOOD)))])
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(content))


@given(
    st.sampled_from(
        [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"MM\0*", b"RIFF\0\0\0\0WEBP", b""]
    ),
    st.binary(max_size=200),
)
def test_any_bytes_at_all_give_a_picture_or_a_bad_one(start, rest):
    outcome(start + rest)


@pytest.mark.parametrize("name", files.bad_files())
def test_what_is_no_picture_is_refused_with_a_reason(name):
    with pytest.raises(BadPicture, match=r"^(is|has) "):
        decode(files.bad_files()[name], 16)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty.jpg", "is empty"),
        ("text.jpg", "is not a JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC picture"),
        ("drawing.png", "is not a JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC picture"),
        ("film.heic", "is not a JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC picture"),
        ("cut.jpg", "is cut short"),
        ("cut.png", "is cut short"),
        ("bomb.png", "has 3,600,000,000 pixels; at most 100,000,000 are read"),
    ],
)
def test_the_reason_is_told(name, reason):
    assert outcome(files.bad_files()[name]) == reason


# ---- bombs


@pytest.mark.parametrize(
    ("kind", "side"), [("PNG", 60_000), ("GIF", 60_000), ("JPEG", 60_000), ("TIFF", 60_000), ("WEBP", 16_000)]
)
def test_a_bomb_is_refused_by_its_header(kind, side):
    content = files.huge(kind, side, side)
    for look in (lambda: decode(content, 16), lambda: preview(content)):
        with pytest.raises(BadPicture, match=f"has {side**2:,} pixels; at most 100,000,000 are read"):
            look()


def test_a_bomb_takes_no_memory():
    code = (
        "import resource, sys; from auxbit.images.decode import decode\n"
        "from auxbit.errors import BadPicture\n"
        "content = sys.stdin.buffer.read(); decode(bytes.fromhex(sys.argv[1]), 8)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    decode(content, 16)\nexcept BadPicture:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    small = files.saved(files.corners(4, 4)).hex()
    for kind, side in (("PNG", 60_000), ("WEBP", 16_000), ("TIFF", 60_000)):
        ran = subprocess.run(
            [sys.executable, "-c", code, small],
            input=files.huge(kind, side, side),
            capture_output=True,
            check=True,
        )
        assert int(ran.stdout) < 20_000  # kilobytes


def test_the_limit_of_pixels_can_be_lowered():
    content = files.saved(files.corners(48, 32))
    assert decode(content, 8, max_pixels=48 * 32).width == 48
    with pytest.raises(BadPicture, match=r"has 1,536 pixels; at most 1,535 are read"):
        decode(content, 8, max_pixels=48 * 32 - 1)


def test_a_picture_that_pillow_would_warn_of_is_read_without_a_warning(monkeypatch):
    content = {kind: files.saved(files.corners(), kind) for kind in files.FORMATS}
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # of 1536: Pillow warns of these by default
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in content.values():
            assert decode(each, 32).pixels.shape == (32, 32, 3)
    assert caught == []


def test_warnings_of_others_are_shown_as_before():
    before = list(warnings.filters)
    decode(files.saved(files.corners()), 8)
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", stacklevel=1)


# ---- surroundings


def test_running_out_of_memory_is_the_fault_of_the_picture(monkeypatch):
    def none_left(*_):
        raise MemoryError

    monkeypatch.setattr(decoding, "scalable", none_left)
    with pytest.raises(BadPicture, match=r"^needs more memory than is allowed$"):
        decode(files.saved(files.corners()), 8)


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"reading pictures needs PIL: pip install 'auxbit\[images\]'"):
        decode(b"", 8)


def test_only_the_plugins_that_are_needed_are_imported():
    code = (
        "import sys; from auxbit.images.decode import decode, load_plugins; load_plugins()\n"
        "decode(sys.stdin.buffer.read(), 8)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('PIL.') and name.endswith('Plugin')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], input=files.saved(files.corners()), capture_output=True, check=True
    )
    plugins = set(ran.stdout.decode().split())
    assert "PIL.WebPImagePlugin" in plugins
    assert len(plugins) <= 8


# ---- preview


def test_a_preview_is_a_jpeg_no_larger_than_asked_for_and_never_enlarged():
    for longest, size in ((1600, (900, 600)), (300, (300, 200))):
        shown = Image.open(io.BytesIO(preview(files.saved(files.corners(900, 600)), longest=longest)))
        assert (shown.format, shown.mode, shown.size) == ("JPEG", "RGB", size)
        assert np.abs(np.asarray(shown)[5, 5].astype(int) - files.RED).max() <= 6
