"""The overlay pixel by pixel: colours, places, scale, and what is left of the photo."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from vit.overlay import LEAST_TOP, STRIPES, colour_map, overlay, scale_top, times_the_mean

COLD, HOT = colour_map()[0], colour_map()[255]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def one_hot(rows: int, cols: int, row: int, col: int) -> np.ndarray:
    heat = np.zeros((rows, cols))
    heat[row, col] = 1
    return heat


def lit(picture: Image.Image) -> np.ndarray:
    """Pixels in the colour map's top colour: (height, width), true or false."""
    return (np.asarray(picture) == HOT).all(axis=-1)


def test_colour_map_rises_in_lightness():
    table = colour_map().astype(float)
    assert table.shape == (256, 3) and colour_map().dtype == np.uint8
    lightness = table @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(np.convolve(lightness, np.ones(8), "valid")) > 0).all()
    assert lightness[0] < 10 and lightness[-1] > 230
    with pytest.raises(ValueError, match="read-only"):
        colour_map()[0] = 0


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("size", [(8, 8), (33, 57)])
def test_alpha_zero_is_the_photo(size, smooth):
    photo = noise(*size)
    affine = [[2.0, 0, 3], [0, 2.0, 1]]  # some of the photo has no heat: that part too
    picture = overlay(photo, np.eye(2), alpha=0, affine=affine, smooth=smooth)
    assert picture.mode == "RGB" and np.array_equal(picture, photo)
    assert np.array_equal(overlay(Image.fromarray(photo), np.eye(2), alpha=0), photo)


def test_alpha_one_has_the_colours_of_the_map():
    """Golden pixels: 0, a quarter, half of the top, the top, and above it."""
    heat = np.array([[0.0, 1, 2, 4, 8]])  # mean 3
    picture = overlay(noise(1, 5), heat, alpha=1, top=4 / 3, smooth=False)
    expected = colour_map()[[0, 64, 128, 255, 255]]
    assert np.array_equal(np.asarray(picture)[0], expected)


def test_top_of_the_map_has_the_top_colour():
    heat = torch.rand(5, 7, generator=torch.manual_seed(0))
    heat[3, 2] = 9
    picture = np.asarray(overlay(noise(45, 63), heat, alpha=1))  # 9 x 9 pixels a patch
    assert np.array_equal(picture[31, 22], HOT)
    half = np.asarray(overlay(np.zeros((45, 63, 3), np.uint8), heat, alpha=0.5))
    assert np.array_equal(half[31, 22], np.rint(HOT * 0.5))


def test_alpha_is_the_same_everywhere():
    photo, heat = noise(12, 12), np.arange(9.0).reshape(3, 3)
    colours = np.asarray(overlay(photo, heat, alpha=1)).astype(float)
    mixed = np.asarray(overlay(photo, heat, alpha=0.3))
    assert np.array_equal(mixed, np.rint((1 - 0.3) * photo + 0.3 * colours))


def test_red_stays_red():
    red = np.zeros((20, 30, 3), np.uint8)
    red[..., 0] = 255
    picture = np.asarray(overlay(red, np.zeros((2, 3)), alpha=0.5)).astype(int)
    assert (picture[..., 0] >= 127).all() and (picture[..., 1:] < 10).all()
    image = Image.new("RGB", (30, 20), "red")
    assert np.array_equal(overlay(image, np.zeros((2, 3)), alpha=0.5), picture)


@pytest.mark.parametrize("patch", [(0, 0), (1, 2), (3, 6), (2, 0)])
def test_a_hot_patch_lights_exactly_its_pixels(patch):
    """4 x 7 patches of 10 x 5 pixels on a photo 40 high and 35 wide."""
    picture = overlay(noise(40, 35), one_hot(4, 7, *patch), alpha=1, smooth=False)
    assert picture.size == (35, 40)
    expected = np.zeros((40, 35), bool)
    expected[patch[0] * 10 : patch[0] * 10 + 10, patch[1] * 5 : patch[1] * 5 + 5] = True
    assert np.array_equal(lit(picture), expected)


@pytest.mark.parametrize(
    ("width", "height", "left", "upper", "side"), [(90, 60, 15, 0, 60), (60, 100, 0, 20, 60)]
)
def test_a_centre_crop_lands_on_its_own_pixels(width, height, left, upper, side):
    """The network saw a square out of the middle: 6 x 6 patches, 10 pixels each."""
    affine = [[side / 6, 0, left], [0, side / 6, upper]]
    picture = overlay(
        noise(height, width), one_hot(6, 6, 1, 4), affine=affine, alpha=1, smooth=False
    )
    expected = np.zeros((height, width), bool)
    expected[upper + 10 : upper + 20, left + 40 : left + 50] = True
    assert np.array_equal(lit(picture), expected)
    covered = np.zeros((height, width), bool)
    covered[upper : upper + side, left : left + side] = True
    pixels = np.asarray(picture)
    assert (pixels[covered & ~expected] == COLD).all()
    greys = pixels[~covered]
    assert (greys == greys[:, :1]).all() and set(greys[:, 0]) == set(STRIPES)


def test_uncovered_photo_is_dimmed_but_there():
    white = np.full((20, 40, 3), 255, np.uint8)
    picture = np.asarray(
        overlay(white, np.ones((2, 2)), affine=[[10, 0, 0], [0, 10, 0]], alpha=0.5)
    )
    right = picture[:, 20:]
    assert (right < 170).all() and (right > 127).all()
    black = np.asarray(overlay(white * 0, np.ones((2, 2)), affine=[[10, 0, 0], [0, 10, 0]]))
    assert (right.astype(int) - black[:, 20:] >= 127).all()  # the photo's own contrast, halved


def test_a_turned_map():
    """A quarter turn: heat x runs down the photo, heat y from right to left."""
    affine = [[0, -10, 20], [10, 0, 0]]  # 2 rows, 3 cols -> photo 20 wide, 30 high
    picture = overlay(noise(30, 20), one_hot(2, 3, 0, 2), affine=affine, alpha=1, smooth=False)
    expected = np.zeros((30, 20), bool)
    expected[20:30, 10:20] = True
    assert np.array_equal(lit(picture), expected)


def test_smooth_view_has_no_half_pixel_shift():
    """One patch's hill is symmetric about its centre, and the map is met exactly at the centres."""
    picture = np.asarray(overlay(noise(70, 50), one_hot(7, 5, 3, 2), alpha=1, top=40))
    assert np.array_equal(picture, picture[::-1]) and np.array_equal(picture, picture[:, ::-1])
    assert picture.std() > 0
    heat = np.random.default_rng(1).random((5, 3))
    at_centres = np.asarray(overlay(noise(45, 27), heat, alpha=1))[4::9, 4::9]
    flat = np.asarray(overlay(noise(5, 3), heat, alpha=1, smooth=False))
    assert np.array_equal(at_centres, flat)


def test_smooth_view_is_linear_between_centres():
    heat = np.array([[0.0, 1]])  # mean 0.5, so times the mean: 0, 2
    table = colour_map().astype(int)
    pixels = np.asarray(overlay(noise(1, 8), heat, alpha=1, top=2)).astype(int)[0]
    shares = np.clip((np.arange(8) + 0.5) / 4 - 0.5, 0, 1)  # of the way between the two centres
    assert np.array_equal(pixels, table[np.rint(shares * 255).astype(int)])


@pytest.mark.parametrize("level", [1.0, 1e-6, 300.0])
def test_a_flat_map_has_one_colour_from_the_middle_of_the_scale(level):
    picture = np.asarray(overlay(noise(30, 20), np.full((3, 2), level), alpha=1))
    assert (picture == colour_map()[round(255 / LEAST_TOP)]).all()


def test_a_zero_map_is_drawn_cold():
    assert (np.asarray(overlay(noise(30, 20), np.zeros((3, 2)), alpha=1)) == COLD).all()


def test_only_ratios_matter():
    heat = np.random.default_rng(2).random((4, 4))
    assert np.array_equal(overlay(noise(8, 8), heat), overlay(noise(8, 8), heat * 1e-7))


def test_size_is_the_long_side():
    heat = np.ones((2, 2))
    assert overlay(noise(30, 60), heat, size=120).size == (120, 60)
    assert overlay(noise(60, 30), heat, size=20).size == (10, 20)
    assert overlay(noise(1000, 2), heat, size=10).size == (1, 10)


def test_enlarged_pixels_stay_sharp_and_the_heat_stays_in_place():
    photo = noise(8, 8)
    picture = np.asarray(overlay(photo, np.ones((4, 4)), alpha=0, size=80))
    assert np.array_equal(picture, photo.repeat(10, 0).repeat(10, 1))
    affine = [[2, 0, 0], [0, 1, 4]]  # 4 x 4 patches on the lower half of the photo
    large = lit(overlay(photo, one_hot(4, 4, 1, 2), affine=affine, alpha=1, size=80, smooth=False))
    small = lit(overlay(photo, one_hot(4, 4, 1, 2), affine=affine, alpha=1, smooth=False))
    assert small.sum() == 2 and np.array_equal(large, small.repeat(10, 0).repeat(10, 1))


def test_top_holds_a_share_of_the_mass_not_the_maximum():
    even = np.full((10, 10), 1.0)
    even[0] = 4
    assert scale_top([even]) == pytest.approx(4 / 1.3)  # 31 % of the mass is a part of the map
    sink = np.full((10, 10), 1.0)
    sink[0, 0], sink[5, :5] = 20, 3.5  # a single patch with 15 % of the mass is not
    assert scale_top([sink]) == pytest.approx(3.5 / sink.mean())


def test_one_top_for_several_maps():
    sharp, flat = one_hot(10, 10, 4, 4) + 0.1, np.ones((3, 3))
    assert scale_top([flat]) == LEAST_TOP == scale_top([np.zeros((2, 2))])
    wide = np.zeros((10, 10))
    wide[:2] = 1
    assert scale_top([wide]) == scale_top([wide, flat * 1e-9]) == 5
    assert scale_top([sharp, flat]) == scale_top(iter([flat, sharp]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_are_taken_whatever_their_precision(dtype):
    heat = torch.tensor([[1.0, 3]], dtype=dtype, requires_grad=True)
    assert np.array_equal(times_the_mean(heat), [[0.5, 1.5]])


def test_photos_of_other_modes_become_rgb():
    grey = Image.fromarray(noise(8, 8)[..., 0])
    assert np.array_equal(overlay(grey, np.ones((2, 2)), alpha=0), grey.convert("RGB"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heat": np.ones((1, 2, 2))}, r"heat must be \(rows, cols\), got \(1, 2, 2\); draw one"),
        ({"heat": np.ones((0, 2))}, r"heat must be \(rows, cols\), got \(0, 2\)"),
        ({"heat": np.array([[1.0, -0.5]])}, r"finite and at least 0, got -0\.5 to 1"),
        ({"heat": np.array([[1.0, np.nan]])}, "finite and at least 0, got nan"),
        ({"photo": np.zeros((3, 8, 8), np.uint8)}, r"photo must be .*got uint8 \(3, 8, 8\)"),
        ({"photo": np.zeros((8, 8, 3))}, "photo must be a PIL image .*got float64"),
        ({"alpha": 1.5}, r"alpha \(1\.5\) must be a fraction in \[0, 1\]"),
        ({"top": 0}, r"top \(0\) must be above 0"),
        ({"top": float("nan")}, r"top \(nan\) must be above 0"),
        ({"size": 0}, r"size \(0\) must be at least 1 pixel"),
        ({"affine": np.eye(3)}, "affine must be 2 x 3 finite numbers"),
        ({"affine": [[1, 0, 0], [2, 0, 0]]}, "maps the heat onto a line"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    arguments = {"photo": noise(8, 8), "heat": np.ones((2, 2)), **arguments}
    with pytest.raises(ValueError, match=message):
        overlay(**arguments)


def test_importing_needs_neither_torch_nor_matplotlib():
    code = "import sys, vit.overlay; print({'torch', 'matplotlib'} & set(sys.modules) or 'neither')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "neither"


def test_the_function_stays_callable_after_its_module_is_imported():
    import vit
    import vit.overlay as module

    photo = np.full((8, 8, 3), 90, dtype=np.uint8)
    heat = np.eye(2)
    assert vit.overlay(photo, heat).tobytes() == module.overlay(photo, heat).tobytes()
