"""GIST against ten lines of NumPy's Fourier transforms, and what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.data import gist as features
from auxbit.data.gist import add_block_means, bands, cached_gist, gist
from auxbit.errors import InvalidInput, InvalidParameter


def some_images(n=3, height=32, width=32, seed=0, **more):
    """Smooth noise of 0..255, as photographs have it."""
    random = np.random.default_rng(seed).normal(size=(n, height, width, *more.get("channels", ())))
    smooth = random + np.roll(random, 1, 1) + np.roll(random, 1, 2) + np.roll(random, 2, 1)
    return np.clip(128 + 30 * smooth, 0, 255).astype(np.uint8)


# ---- the slow truth, as in the published programs


def slow_prefilter(image):
    """(h, w, channels) → the same, local contrast normalised."""
    h, w, _ = image.shape
    x = np.pad(np.log(1.0 + image), ((5, 5), (5, 5), (0, 0)), mode="symmetric")
    n = max(h, w) + 10
    n += n % 2
    x = np.pad(x, ((0, n - h - 10), (0, n - w - 10), (0, 0)), mode="symmetric")
    f = np.fft.fftfreq(n, 1 / n)
    low = np.exp(-(f[:, None] ** 2 + f**2) / (4 / np.sqrt(np.log(2))) ** 2)
    for channel in range(x.shape[2]):
        x[:, :, channel] -= np.fft.ifft2(np.fft.fft2(x[:, :, channel]) * low).real
    deviation = np.sqrt(np.abs(np.fft.ifft2(np.fft.fft2(x.mean(axis=2) ** 2) * low)))
    return (x / (0.2 + deviation)[:, :, None])[5 : 5 + h, 5 : 5 + w]


def slow_gist(image, blocks=4, orientations=(8, 8, 4), prefilter=True, colour=False):
    """(h, w) or (h, w, 3) → a vector, one filter, channel and block at a time."""
    planes = np.atleast_3d(image).astype(float)
    planes = planes if colour else planes.mean(axis=2, keepdims=True)
    planes = slow_prefilter(planes) if prefilter else planes
    h, w, channels = planes.shape
    fy, fx = np.fft.fftfreq(h + 64)[:, None], np.fft.fftfreq(w + 64)
    values = []
    for channel in range(channels):
        spectrum = np.fft.fft2(np.pad(planes[:, :, channel], 32, mode="symmetric"))
        for scale, count in enumerate(orientations):
            for orientation in range(count):
                radius = np.sqrt(fx**2 + fy**2) / (0.3 / 1.85**scale)
                angle = np.angle(np.exp(1j * (np.arctan2(fy, fx) + np.pi * orientation / count)))
                G = np.exp(-10 * 0.35 * (radius - 1) ** 2 - 2 * (16 * count**2 / 32**2) * np.pi * angle**2)
                magnitude = np.abs(np.fft.ifft2(spectrum * G))[32 : 32 + h, 32 : 32 + w]
                for i in range(blocks):
                    for j in range(blocks):
                        block = magnitude[i * h // blocks : (i + 1) * h // blocks]
                        values.append(block[:, j * w // blocks : (j + 1) * w // blocks].mean())
    return np.array(values)


@settings(max_examples=12)
@given(
    height=st.integers(16, 50),
    width=st.integers(16, 50),
    blocks=st.integers(1, 5),
    orientations=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    prefilter=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gist_equals_filtering_one_image_at_a_time(height, width, blocks, orientations, prefilter, seed):
    images = some_images(2, height, width, seed)
    options = {"blocks": blocks, "orientations": orientations, "prefilter": prefilter}
    made = gist(images, **options)
    assert made.shape == (2, blocks**2 * sum(orientations))
    assert made.dtype == np.float32
    truth = np.array([slow_gist(image, **options) for image in images])
    np.testing.assert_allclose(made, truth, rtol=2e-5, atol=1e-6 * truth.max())


@pytest.mark.parametrize("colour", [False, True])
def test_gist_of_colour_images_equals_filtering_one_at_a_time(colour):
    images = some_images(2, channels=(3,))
    made = gist(images, colour=colour)
    assert made.shape == (2, 960 if colour else 320)
    truth = np.array([slow_gist(image, colour=colour) for image in images])
    np.testing.assert_allclose(made, truth, rtol=2e-5, atol=1e-6)


# ---- what does not change it


def test_the_descriptor_of_an_image_depends_on_nothing_but_the_image():
    images = some_images(150)
    all_at_once = gist(images, n_jobs=1)
    assert np.array_equal(gist(images, n_jobs=3), all_at_once)
    by_seven = [gist(images[start : start + 7], n_jobs=1) for start in range(0, 150, 7)]
    assert np.array_equal(np.concatenate(by_seven), all_at_once)
    assert np.array_equal(gist(images[::-1])[::-1], all_at_once)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint16])
def test_the_type_of_the_pixels_does_not_matter(dtype):
    images = some_images()
    assert np.array_equal(gist(images.astype(dtype)), gist(images))
    for prefilter in (True, False):
        turned = gist(np.asfortranarray(images), prefilter=prefilter)
        assert np.array_equal(turned, gist(images, prefilter=prefilter))


def test_three_equal_channels_are_the_grey_image():
    grey = some_images()
    equal = np.repeat(grey[..., None], 3, axis=3)
    assert np.array_equal(gist(equal), gist(grey))
    np.testing.assert_allclose(gist(equal, colour=True), np.tile(gist(grey), 3), rtol=1e-5, atol=1e-6)


def test_a_constant_image_has_no_contrast():
    for brightness in (0, 1, 100, 255):
        assert gist(np.full((1, 32, 32), brightness, np.uint8)).max() < 1e-5


def test_brightness_nearly_cancels_after_the_prefilter_and_not_without():
    images = some_images().astype(np.float32) + 20
    half = images / 2
    with_prefilter = np.abs(gist(half) - gist(images)).max() / gist(images).max()
    without = np.abs(gist(half, prefilter=False) - gist(images, prefilter=False)).max()
    assert with_prefilter < 0.01
    assert without > 0.4 * gist(images, prefilter=False).max()


def test_a_mirrored_image_permutes_columns_of_blocks_and_orientations():
    images = some_images(4, 33, 33).astype(np.float32)  # odd: no highest frequency, which has but one sign
    for image in images:
        image -= np.pad(image, 32, mode="symmetric").mean()  # a constant has no direction to mirror
    straight, mirrored = filtered(images), filtered(np.ascontiguousarray(images[:, :, ::-1]))
    first = 0
    for count in (8, 8, 4):
        for orientation in range(count):  # φ becomes π − φ, so filter o at −πo/O becomes the one at −π(O−o)/O
            expected = straight[:, first + (count - orientation) % count, :, ::-1]
            found = mirrored[:, first + orientation]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * straight.max())
        first += count
    assert np.abs(mirrored - straight[..., ::-1]).max() > 0.1 * straight.max()


def filtered(planes):
    """(n, h, w) of any values → (n, 20, 3, 3)."""
    out = np.empty((len(planes), 20, 3, 3), np.float32)
    for band in bands(*planes.shape[1:], (8, 8, 4)):
        add_block_means(planes, band, 3, out)
    return out


def test_resizing_takes_the_middle_square_and_keeps_what_has_the_size_already():
    wide = some_images(2, 32, 80)
    assert np.array_equal(gist(wide, size=32), gist(wide[:, :, 24:56]))
    assert np.array_equal(gist(some_images(), size=32), gist(some_images()))


def test_halving_an_image_averages_its_pixels():
    ramp = np.tile(np.arange(64, dtype=np.float32), (64, 1))[None, None]
    halved = features._resized(ramp, 32)[0, 0]
    np.testing.assert_allclose(halved[:, 1:-1], np.tile(np.arange(0.5, 64, 2), (32, 1))[:, 1:-1], rtol=1e-5)
    constant = features._resized(np.full((1, 1, 50, 70), 7, np.float32), 16)
    np.testing.assert_allclose(constant, 7, rtol=1e-6)


def test_progress_tells_how_many_images_are_done():
    calls = []
    gist(some_images(150), n_jobs=2, progress=calls.append)
    assert sum(calls) == 150
    assert len(calls) > 1


def test_no_images_have_no_descriptors():
    assert gist(np.empty((0, 32, 32), np.uint8)).shape == (0, 320)


# ---- what cannot be used


@pytest.mark.parametrize("shape", [(32, 32), (2, 32, 32, 4), (2, 32, 32, 1), (1, 1, 32, 32, 3)])
def test_what_is_not_an_array_of_images_is_refused(shape):
    with pytest.raises(InvalidInput, match="must have shape"):
        gist(np.zeros(shape, np.uint8))


def test_small_images_and_single_ones_are_refused():
    with pytest.raises(InvalidInput, match="at least 16 × 16"):
        gist(np.zeros((2, 32, 15), np.uint8))
    with pytest.raises(InvalidInput, match=r"A single image is image\[None\]"):
        gist(np.zeros((32, 32, 3), np.uint8))


@pytest.mark.parametrize("dtype", [bool, complex, "datetime64[s]", object, "U3"])
def test_pixels_that_are_no_numbers_are_refused(dtype):
    with pytest.raises(InvalidInput, match="integers or floats"):
        gist(np.zeros((1, 32, 32), dtype))


@pytest.mark.parametrize("value", [-1, np.nan, np.inf, 1e60])
def test_impossible_brightness_names_the_image(value):
    images = some_images(100).astype(np.float64)
    images[71, 3, 4] = value
    with pytest.raises(InvalidInput, match="image 71 has"):
        gist(images, n_jobs=2)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"blocks": 0}, "blocks"),
        ({"blocks": 33}, "blocks"),
        ({"size": 8}, "size"),
        ({"orientations": ()}, "orientations"),
        ({"orientations": 8}, "orientations"),
        ({"orientations": (8, 0)}, "orientations"),
        ({"colour": True}, "colour"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_a_parameter_that_is_not_allowed_is_named(options, name):
    with pytest.raises(InvalidParameter, match=f"{name}=") as raised:
        gist(some_images(), **options)
    assert raised.value.parameter == name


# ---- the cache


def test_cached_descriptors_are_made_once_and_read_back(tmp_path, monkeypatch):
    images = some_images()
    made = cached_gist(images, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(features, "gist", None)  # a call would fail
    assert np.array_equal(cached_gist(images, tmp_path, n_jobs=1), made)


def test_other_images_or_options_are_cached_by_themselves(tmp_path):
    images = some_images()
    cached_gist(images, tmp_path)
    changed = images.copy()
    changed[0, 0, 0] ^= 1
    assert not np.array_equal(cached_gist(changed, tmp_path), gist(images))
    assert cached_gist(images, tmp_path, blocks=2).shape == (3, 80)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_cache_is_made_anew(tmp_path):
    images = some_images()
    made = cached_gist(images, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(cached_gist(images, tmp_path), made)
    path.write_bytes(b"")
    assert np.array_equal(cached_gist(images, tmp_path), made)
    assert np.array_equal(np.load(path), made)
