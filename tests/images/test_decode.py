"""From bytes to pixels and thumbnails: every kind of picture, turned every way, and none that is broken."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest
from PIL import AvifImagePlugin, Image, ImageCms, PngImagePlugin

import helpers.picture_files as files
from auxbit.errors import BadPicture, InvalidParameter
from auxbit.images.decode import decode, preview

WHITE = (255, 255, 255)


def opened(content):
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


def close(pixels, expected, most=6):
    """Whether the pixels differ by little, as those of lossy formats do."""
    return np.abs(np.asarray(pixels, dtype=int) - np.asarray(expected, dtype=int)).max() <= most


def middle(upright):
    height, width, _ = upright.shape
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    return upright[top : top + edge, left : left + edge]


# ---- pixels, thumbnail and size


@pytest.mark.parametrize("kind", files.FORMATS)
def test_the_pixels_are_the_square_in_the_middle(kind):
    decoded = decode(files.saved(files.corners(48, 32), kind), 32)
    assert decoded.format == kind
    assert (decoded.width, decoded.height, decoded.taken) == (48, 32, None)
    assert decoded.pixels.shape == (32, 32, 3)
    assert decoded.pixels.dtype == np.uint8
    assert close(decoded.pixels, middle(files.corners(48, 32)))
    assert decoded.pixels.flags.writeable


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_pixels_that_are_not_scaled_are_exactly_those_of_a_lossless_file(kind):
    upright = files.noise(41, 40)
    assert np.array_equal(decode(files.saved(upright, kind), 40).pixels, middle(upright))


def test_shrinking_averages_over_areas():
    fine = np.zeros((64, 64, 3), dtype=np.uint8)
    fine[::2] = 200  # lines that a filter of points would see or miss
    assert np.array_equal(decode(files.saved(fine), 16).pixels, np.full((16, 16, 3), 100))
    blocks = files.noise(60, 60).astype(float).reshape(20, 3, 20, 3, 3).mean(axis=(1, 3))
    assert close(decode(files.saved(files.noise(60, 60)), 20).pixels, blocks, most=1)


@pytest.mark.parametrize("edge", [33, 36, 50, 90, 300])
def test_shrinking_by_a_fraction_is_even(edge):
    ramp = np.linspace(0, 255, edge).round().astype(np.uint8)
    pixels = decode(files.saved(np.repeat(ramp[None, :, None], edge, axis=0).repeat(3, axis=2)), 32).pixels
    fine = (
        np.repeat(ramp.astype(float), 32).reshape(32, edge).mean(axis=1)
    )  # exact means over parts of pixels
    assert close(pixels[16, 1:-1, 0], fine[1:-1], most=2)


def test_a_picture_smaller_than_the_square_is_enlarged_and_its_thumbnail_is_not():
    decoded = decode(files.saved(files.corners(8, 6)), 32)
    assert decoded.pixels.shape == (32, 32, 3)
    assert close(decoded.pixels[0, 0], files.RED)
    thumbnail = opened(decoded.thumbnail)
    assert thumbnail.format == "PNG"
    assert np.array_equal(np.asarray(thumbnail), files.corners(8, 6))


def test_a_thumbnail_is_a_jpeg_with_the_shape_of_the_picture_at_most_as_long_as_asked_for():
    decoded = decode(files.saved(files.corners(600, 300)), 32, longest=200)
    thumbnail = opened(decoded.thumbnail)
    assert (thumbnail.format, thumbnail.size) == ("JPEG", (200, 100))
    assert close(np.asarray(thumbnail)[10, 10], files.RED)
    assert close(np.asarray(thumbnail)[90, 190], files.GREY)


@pytest.mark.parametrize(
    ("size", "thumbnail"), [((1, 1), (1, 1)), ((1, 100_000), (1, 256)), ((9000, 2), (256, 1))]
)
def test_shapes_at_the_limits_have_pixels_and_thumbnails(size, thumbnail):
    decoded = decode(files.saved(Image.new("RGB", size, files.BLUE)), 24)
    assert (decoded.width, decoded.height) == size
    assert opened(decoded.thumbnail).size == thumbnail
    assert np.array_equal(decoded.pixels, np.broadcast_to(files.BLUE, (24, 24, 3)))


def test_a_large_jpeg_is_read_at_a_fraction_of_its_size_and_looks_the_same():
    upright = files.noise(1603, 1201)
    exact, fast = (decode(files.saved(upright, kind), 32, longest=100) for kind in ("PNG", "JPEG"))
    assert (fast.width, fast.height) == (1603, 1201)
    assert close(fast.pixels, exact.pixels)
    assert opened(fast.thumbnail).size == opened(exact.thumbnail).size == (100, 75)


@pytest.mark.parametrize("side", [0, -1, 5000])
def test_a_square_of_no_or_too_many_pixels_is_refused(side):
    with pytest.raises(InvalidParameter, match=f"side={side} is invalid: expected 1 to 4096"):
        decode(files.saved(files.corners()), side)


# ---- EXIF


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_seen_upright(kind, orientation):
    upright = files.corners(48, 33)
    decoded = decode(files.turned(upright, orientation, kind), 33)
    assert (decoded.width, decoded.height) == (48, 33)
    assert close(decoded.pixels, middle(upright))
    assert close(opened(decoded.thumbnail), upright)
    assert opened(decoded.thumbnail).getexif() == {}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_jpeg_is_seen_upright_too(orientation):
    content = files.turned(files.corners(1600, 800), orientation)
    decoded = decode(content, 16, longest=64)
    assert (decoded.width, decoded.height) == (1600, 800)
    inside = np.ix_([*range(7), *range(9, 16)], [*range(7), *range(9, 16)])  # where no colours meet
    assert close(decoded.pixels[inside], files.corners(16, 16)[inside])
    for shown in (opened(decoded.thumbnail), opened(preview(content, longest=64))):
        assert shown.size == (64, 32)
        assert close(
            np.asarray(shown)[[2, 2, -2, -2], [2, -2, 2, -2]],
            [files.RED, files.GREEN, files.BLUE, files.GREY],
        )


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation):
    content = files.saved(files.corners(), "JPEG", exif=files.exif_of(orientation))
    assert close(decode(content, 32).pixels, middle(files.corners()))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("2021:07:04 09:05:01", "2021-07-04T09:05:01"),
        ("0000:00:00 00:00:00", None),
        ("2021:13:04 09:05:01", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_date_is_that_of_exif_where_it_is_one(text, taken):
    content = files.saved(files.corners(), "JPEG", exif=files.exif_of(6, text))
    decoded = decode(content, 8)
    assert decoded.taken == taken
    assert (decoded.width, decoded.height) == (32, 48)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_broken_exif_leaves_the_pixels_good(kind, exif):
    decoded = decode(files.saved(files.corners(), kind, exif=exif), 32)
    assert close(decoded.pixels, middle(files.corners()))
    assert decoded.taken is None


# ---- modes


@pytest.mark.parametrize(
    ("content", "colour"),
    [
        pytest.param(files.colour_file("1", 1, "PNG"), WHITE, id="1"),
        pytest.param(files.colour_file("L", 77, "PNG"), (77, 77, 77), id="L"),
        pytest.param(files.colour_file("LA", (77, 255), "PNG"), (77, 77, 77), id="LA"),
        pytest.param(files.colour_file("LA", (0, 51), "PNG"), (204, 204, 204), id="LA, a fifth opaque"),
        pytest.param(files.palette_file(files.RED), files.RED, id="P"),
        pytest.param(files.colour_file("RGB", files.BLUE), files.BLUE, id="RGB"),
        pytest.param(files.colour_file("RGBA", (*files.BLUE, 255)), files.BLUE, id="RGBA"),
        pytest.param(files.colour_file("RGBA", (10, 20, 30, 0), "PNG"), WHITE, id="RGBA, clear"),
        pytest.param(
            files.colour_file("RGBA", (0, 0, 0, 51), "WEBP"), (204, 204, 204), id="RGBA, a fifth opaque"
        ),
        pytest.param(files.colour_file("CMYK", (0, 255, 255, 0)), (255, 0, 0), id="CMYK"),
        pytest.param(files.colour_file("CMYK", (0, 255, 255, 0), "JPEG"), (255, 0, 0), id="CMYK as JPEG"),
        pytest.param(files.colour_file("YCbCr", (128, 128, 128)), (128, 128, 128), id="YCbCr"),
        pytest.param(files.colour_file("LAB", (137, 128, 128)), (128, 128, 128), id="LAB"),
        pytest.param(files.colour_file("I;16", 77 * 257), (77, 77, 77), id="I;16"),
        pytest.param(files.colour_file("I;16B", 77 * 257), (77, 77, 77), id="I;16B"),
        pytest.param(files.colour_file("I;16", 77 * 257, "PNG"), (77, 77, 77), id="I;16 as PNG"),
        pytest.param(files.colour_file("I;16", 257, "PNG"), (1, 1, 1), id="I;16 as PNG, dark"),
        pytest.param(files.colour_file("I", 77), (77, 77, 77), id="I up to 255"),
        pytest.param(files.colour_file("I", 77 * 257), (77, 77, 77), id="I up to 65535"),
        pytest.param(files.colour_file("F", 0.5), (128, 128, 128), id="F up to 1"),
        pytest.param(files.colour_file("F", 77.0), (77, 77, 77), id="F up to 255"),
        pytest.param(files.colour_file("F", float("nan")), (0, 0, 0), id="F, no number"),
    ],
)
def test_every_mode_becomes_rgb(content, colour):
    decoded = decode(content, 16)
    assert close(decoded.pixels, np.broadcast_to(colour, (16, 16, 3)), most=2)
    assert close(opened(decoded.thumbnail), np.broadcast_to(colour, (40, 40, 3)), most=2)


def test_a_transparent_part_of_a_palette_is_white_and_its_edge_has_no_other_colour():
    pixels = decode(files.palette_file(files.RED, transparent=True), 5).pixels
    assert close(pixels[:, [0, 4]], [[WHITE, files.RED]] * 5, most=1)
    assert close(pixels[:, 2], (np.array(WHITE) + files.RED) / 2, most=2)


def test_a_palette_with_alpha_is_over_white():
    stream = Image.new("P", (20, 20), 0)
    stream.putpalette([*files.RED, *files.GREEN])
    content = files.saved(stream, "PNG", transparency=bytes([51, 255]))
    assert close(decode(content, 4).pixels[0, 0], 255 - (255 - np.array(files.RED)) / 5, most=2)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_colour_that_stands_for_transparency_is_white(mode):
    colour = 9 if mode == "L" else (9, 9, 9)
    content = files.saved(Image.new(mode, (20, 20), colour), "PNG", transparency=colour)
    assert np.array_equal(decode(content, 4).pixels, np.full((4, 4, 3), 255))


def test_numbers_beyond_the_usual_ranges_are_stretched_from_least_to_most():
    values = np.linspace(-1000, 3000, 16 * 16, dtype=np.float32).reshape(16, 16)
    values[3, 4] = np.inf
    values[5, 6] = np.nan
    pixels = decode(files.saved(Image.fromarray(values), "TIFF"), 16).pixels[..., 0]
    assert (pixels[0, 0], pixels[-1, -1], pixels[3, 4], pixels[5, 6]) == (0, 255, 255, 0)
    assert close(pixels[8], np.linspace(0, 255, 256).reshape(16, 16)[8], most=1)
    whole = np.array([[-70_000, 0], [0, 70_000]], dtype=np.int32)
    assert decode(files.saved(Image.fromarray(whole), "TIFF"), 2).pixels[..., 1].tolist() == [
        [0, 128],
        [128, 255],
    ]


# ---- profiles


def exchanged_profile():
    """A profile like that of sRGB, with red and green exchanged."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    (tags,) = struct.unpack_from(">I", profile, 128)
    entries = (struct.unpack_from(">4sII", profile, 132 + 12 * number) for number in range(tags))
    place = {name: (offset, length) for name, offset, length in entries}
    offset, length = place[b"desc"]
    name = profile[offset : offset + length]
    profile[offset : offset + length] = name.replace(b"s\0R", b"x\0R")  # else it is taken for sRGB itself
    red, green = place[b"rXYZ"][0], place[b"gXYZ"][0]
    profile[red : red + 20], profile[green : green + 20] = (
        profile[green : green + 20],
        profile[red : red + 20],
    )
    return bytes(profile)


def test_colours_follow_the_profile_of_the_picture():
    content = files.saved(Image.new("RGB", (20, 20), (255, 0, 0)), "PNG", icc_profile=exchanged_profile())
    assert close(decode(content, 4).pixels, np.broadcast_to((0, 255, 0), (4, 4, 3)), most=4)


@pytest.mark.parametrize("profile", [b"nonsense", bytes(500), exchanged_profile()[:200]])
def test_a_broken_profile_is_left_alone(profile):
    content = files.saved(Image.new("RGB", (20, 20), files.RED), "JPEG", icc_profile=profile)
    assert close(decode(content, 4).pixels, np.broadcast_to(files.RED, (4, 4, 3)), most=4)


def test_nothing_of_the_file_but_its_pixels_reaches_thumbnail_and_preview():
    notes = PngImagePlugin.PngInfo()
    notes.add_text("secret", "my address")
    exif = files.exif_of(1, "2021:07:04 09:05:01")
    for size in ((50, 50), (300, 300)):
        image = Image.new("RGB", size, files.RED)
        content = files.saved(image, "PNG", exif=exif, icc_profile=exchanged_profile(), pnginfo=notes)
        for shown in (decode(content, 4).thumbnail, preview(content)):
            assert not {"exif", "icc_profile", "secret"} & set(opened(shown).info)
            assert b"my address" not in shown


# ---- frames


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_or_page_is_what_is_seen(kind):
    content = files.frames(kind, files.RED, files.GREEN, files.BLUE)
    assert opened(content).n_frames == 3
    decoded = decode(content, 8)
    assert close(decoded.pixels, np.broadcast_to(files.RED, (8, 8, 3)))
    assert close(opened(decoded.thumbnail), np.broadcast_to(files.RED, (30, 40, 3)))


# ---- formats that are not everywhere


def test_a_heic_picture_without_its_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadPicture, match=r"is a HEIC .* needs pillow-heif: pip install 'auxbit\[heic\]'"):
        decode(files.saved(files.corners(), "HEIF"), 8)


def test_an_avif_picture_that_pillow_cannot_read_is_named_with_what_it_needs(monkeypatch):
    content = files.saved(files.corners(), "AVIF")
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    with pytest.raises(BadPicture, match=r"is an AVIF picture, which needs Pillow 11\.3: pip install -U"):
        decode(content, 8)


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1"])
def test_a_heic_picture_is_known_by_any_of_its_brands_whatever_its_name(brand):
    content = bytearray(files.saved(files.corners(), "HEIF"))
    content[8:12] = brand
    assert decode(bytes(content), 8).format == "HEIF"


def test_the_thumbnail_within_a_heic_picture_is_not_taken_for_it():
    image = Image.fromarray(files.corners(640, 480))
    stream = io.BytesIO()
    image.save(stream, "HEIF", thumbnails=[128], quality=-1, chroma=444)
    decoded = decode(stream.getvalue(), 16, longest=64)
    assert (decoded.width, decoded.height) == (640, 480)
    assert close(decoded.pixels, decode(files.saved(files.corners(640, 480)), 16).pixels)
