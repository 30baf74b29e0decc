"""Pages of panels: every pixel where it belongs, every word in its place, one scale for all."""

import warnings

import numpy as np
import pytest
from PIL import Image

from vit import captions
from vit.architecture import Architecture
from vit.canvas import Style, canvas, drawn_size, heat_affine, patch_at
from vit.fitting import Fitted
from vit.images import Photo
from vit.layouts import Arrangement, Map, columns_for, common_top, compose, headed, panel_size
from vit.legend import Answer, Text, percent_of, ticks_of
from vit.marks import GRID, OUTLIER, gridded, outlined
from vit.overlay import LEAST_TOP, colour_map, overlay
from vit.page import Panel, page
from vit.sinks import MANY_TIMES
from vit.typeset import fitted, measured, shortened, wrapped

ODD = [
    "10",
    "2",
    "a b",
    "猫",
    "O'Brien",
    "<b>x</b>",
    "$x^2$ and $",
    "line\nend",
    "ü" * 90,
    "%s {0}",
]
HOT = colour_map()[255]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def photo(height: int, width: int) -> Photo:
    return Photo(Image.fromarray(noise(height, width)), height, width)


def over_all(heat: np.ndarray, height: int, width: int) -> np.ndarray:
    """The affine map of heat that covers a whole photo."""
    rows, cols = heat.shape
    return np.array([[width / cols, 0, 0], [0, height / rows, 0]])


def cut(made, number: int = 0) -> np.ndarray:
    x0, y0, x1, y1 = made.boxes[number]
    return made.pixels[y0:y1, x0:x1]


# --- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [
        ([(400, 600)], 1),
        ([(170, 512)], 1),
        ([(512, 170)], 1),
        ([(32, 32)], 1),
        ([(100, 150)] * 5, 3),
        ([(90, 300), (200, 100), (50, 50)], 2),
    ],
)
def test_panels_stand_on_the_page_as_they_are(sizes, columns):
    panels = [Panel(noise(*size), f"number {k} " * 9) for k, size in enumerate(sizes)]
    text = Text("a title " * 20, "a lead " * 30, (Answer("cat", 0.7),), ("a caption " * 40,))
    made = page(panels, columns, text, top=3.0)
    for number, panel in enumerate(panels):
        assert np.array_equal(cut(made, number), panel.pixels)
    for number, (x0, y0, x1, y1) in enumerate(made.boxes):
        for a0, b0, a1, b1 in made.boxes[number + 1 :]:
            assert x1 <= a0 or a1 <= x0 or y1 <= b0 or b1 <= y0


@pytest.mark.parametrize("size", [(400, 600), (170, 512), (512, 170), (32, 32), (1600, 500)])
def test_no_word_is_cut_at_the_edge_or_hidden_behind_a_panel(size):
    words = Text("W" * 300, "lead " * 60, tuple(Answer(n, 0.1) for n in ODD), ("tail " * 90,))
    blank = np.full((*size, 3), 255, np.uint8)
    made = page([Panel(blank, "heading " * 30)], 1, words, top=2.5).pixels
    ink = (made != 255).any(axis=2)
    assert ink.any()
    border = np.ones_like(ink)
    border[6:-6, 6:-6] = False
    assert not (ink & border).any()
    without = page([Panel(blank, "heading " * 30)], 1, words, top=2.5)
    x0, y0, x1, y1 = without.boxes[0]
    assert not ink[y0:y1, x0:x1].any()  # nothing is written where the panel is pasted


def test_narrow_panels_have_their_legend_beside_them():
    words = Text("t", "", (), ("tail " * 200,))
    narrow = page([Panel(noise(900, 120))], 1, words, top=3.0)
    assert narrow.pixels.shape[0] < 1100
    assert narrow.pixels.shape[1] > 120 + 300
    wide = page([Panel(noise(300, 900))], 1, words, top=3.0)
    assert (wide.pixels[: wide.boxes[0][3], wide.boxes[0][2] + 1 :] == 255).all()


def test_any_name_is_drawn_and_each_differently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = [page([Panel(noise(60, 90))], 1, Text(name)).pixels.tobytes() for name in ODD]
        drawn += [
            page([Panel(noise(60, 90), name)], 1, Text("t", "", (Answer(name, 0.5, True),))).pixels
            for name in ODD
        ]
    assert len(set(drawn[: len(ODD)])) == len(ODD)
    assert all(isinstance(one, bytes) or one.size for one in drawn)


def test_dollars_make_no_formula():
    assert measured("$x$", 20) > measured("x", 20) + measured("$", 20)


def test_lines_keep_to_their_width_and_lose_no_word():
    text = "attention rollout over the last two of twelve layers, the paper takes all"
    lines = wrapped(text, 200, 13)
    assert len(lines) > 2 and all(measured(line, 13) <= 200 for line in lines)
    assert " ".join(lines) == text
    [long] = wrapped("x" * 300, 200, 13)
    assert measured(long, 13) <= 200 and "…" in long
    assert fitted("a b", 200, 13) == "a b" and fitted("anything", 1, 13) == "…"


def test_lines_that_are_left_out_are_missed():
    lines = ["one", "two", "three"]
    assert shortened(lines, 3) == lines
    assert shortened(lines, 2) == ["one", "two …"]


def test_a_number_keeps_its_sign():
    width = measured("the heat: 10", 12)
    assert wrapped("the heat: 10 % of it", width, 12) == ["the heat:", "10\u00a0% of it"]


def test_the_colour_bar_has_all_colours_in_order():
    made = page([Panel(np.full((40, 700, 3), 255, np.uint8))], 1, Text("t"), top=4.0).pixels
    table = colour_map()
    rows = [row for row in made if (row == table[128]).all(axis=1).any()]
    found = [color for color in rows[len(rows) // 2] if (color != 255).any()]
    place = [int(np.argmin(np.abs(table.astype(int) - color).sum(axis=1))) for color in found]
    assert place == sorted(place) and set(range(1, 255)) <= set(place) | {0}
    assert page([Panel(noise(9, 9))], 1, Text("t")).pixels.shape[0] < made.shape[0]


@pytest.mark.parametrize("top", [2.0, 2.85, 4.0, 6.2, 17.0, 333.0, 4097.0])
def test_ticks_are_few_round_and_below_the_top(top):
    ticks = ticks_of(top)
    assert ticks[:2] == [0, 1] and len(ticks) <= 8 and ticks[-1] < top
    assert all(tick == int(tick) for tick in ticks) and ticks == sorted(set(ticks))


def test_percents():
    shares = [0, 0.0004, 0.0012, 0.0994, 0.0996, 0.5, 0.973, 0.9961, 0.9991, 1]
    assert list(map(percent_of, shares)) == [
        "0 %", "< 0.1 %", "0.1 %", "9.9 %", "10 %", "50 %", "97 %", "99.6 %", "> 99.9 %", "100 %",
    ]  # fmt: skip


def test_a_page_without_panels_is_refused():
    with pytest.raises(ValueError, match="panels must hold at least one panel, got none"):
        page([], 1, Text("t"))


# --- marks ---------------------------------------------------------------------------------------


def test_an_outline_runs_around_a_group_and_not_through_it():
    blank = np.full((120, 120, 3), 90, np.uint8)
    affine = np.array([[20.0, 0, 0], [0, 20.0, 0]])
    made = outlined(blank, [(2, 2), (2, 3)], affine)
    line = (made == OUTLIER).all(axis=2)
    rows, cols = np.nonzero(line)
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (40, 60, 40, 80)
    assert not line[44:57, 44:77].any()  # neither inside nor between the two
    assert (made[46:55, 46:75] == 90).all() and (made[:36] == 90).all()
    assert np.array_equal(outlined(blank, [], affine), blank)
    assert (blank == 90).all()


def test_an_outline_at_the_edge_is_inside_the_picture():
    made = outlined(np.zeros((40, 60, 3), np.uint8), [(3, 5)], np.array([[10.0, 0, 0], [0, 10, 0]]))
    line = (made == OUTLIER).all(axis=2)
    assert line[39, 50:].all() and line[30:, 59].all() and line[30, 50:].all()


@pytest.mark.parametrize("patch", [(1, -1), (1, 6), (1, 9), (-2, 3), (4, 3), (8, 3)])
def test_a_patch_beside_the_picture_is_not_outlined(patch):
    blank, affine = np.zeros((40, 60, 3), np.uint8), np.array([[10.0, 0, 0], [0, 10, 0]])
    assert not outlined(blank, [patch], affine).any()
    both = outlined(blank, [patch, (2, 2)], affine)
    assert np.array_equal(both, outlined(blank, [(2, 2)], affine))


def test_lines_beside_the_picture_are_not_at_its_edge():
    affine = np.array([[20.0, 0, -10], [0, 10, -5]])
    line = (gridded(np.zeros((40, 60, 3), np.uint8), (6, 5), affine) == GRID).all(axis=2)
    assert np.flatnonzero(line.all(axis=1)).tolist() == [5, 15, 25, 35]
    assert np.flatnonzero(line.all(axis=0)).tolist() == [10, 30, 50]


def test_a_grid_runs_between_all_patches():
    made = gridded(np.zeros((40, 60, 3), np.uint8), (4, 3), np.array([[20.0, 0, 0], [0, 10, 0]]))
    line = (made == GRID).all(axis=2)
    assert np.flatnonzero(line.all(axis=1)).tolist() == [0, 10, 20, 30, 39]
    assert np.flatnonzero(line.all(axis=0)).tolist() == [0, 20, 40, 59]


def test_a_turned_map_is_outlined_where_it_lies():
    affine = np.array([[0.0, -20, 100], [20, 0, 0]])  # row 1, column 2: x 60..80, y 40..60
    line = (outlined(np.zeros((100, 100, 3), np.uint8), [(1, 2)], affine) == OUTLIER).all(axis=2)
    rows, cols = np.nonzero(line)
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (40, 60, 60, 80)


# --- canvas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("photo_size", "size", "drawn"),
    [
        ((3000, 4000), None, (1200, 1600)),
        ((600, 800), None, (600, 800)),
        ((1600, 400), None, (1600, 400)),
        ((384, 256), None, (512, 341)),
        ((32, 32), None, (512, 512)),
        ((30, 20), None, (540, 360)),  # whole squares: 18 times
        ((3000, 4000), "original", (3000, 4000)),
        ((3000, 4000), 800, (600, 800)),
        ((2, 1000), 100, (1, 100)),
    ],
)
def test_the_size_in_which_photos_are_drawn(photo_size, size, drawn):
    assert drawn_size(*photo_size, size) == drawn


@pytest.mark.parametrize("size", [0, -3, 1.5, "large"])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=r'size \(.*\) must be a number of pixels, .*"original"'):
        drawn_size(10, 10, size)


def test_a_photo_at_its_own_size_is_itself_and_a_tiny_one_whole_squares():
    whole = canvas(photo(600, 700), np.eye(2, 3))
    assert np.array_equal(whole.pixels, noise(600, 700)) and np.array_equal(
        whole.affine, np.eye(2, 3)
    )
    tiny = canvas(photo(32, 16), np.array([[4.0, 0, 1], [0, 4, 2]]))
    assert np.array_equal(tiny.pixels, noise(32, 16).repeat(16, 0).repeat(16, 1))
    assert np.array_equal(tiny.affine, [[64, 0, 16], [0, 64, 32]])


def test_a_photo_decoded_smaller_is_drawn_like_the_whole_one():
    """The map refers to full resolution: a half-size decode changes neither size nor places."""
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp[None, :, None], (600, 800, 3)).copy())
    full = canvas(Photo(image, 600, 800), np.eye(2, 3), 400)
    half = canvas(Photo(image.resize((400, 300)), 600, 800), np.eye(2, 3), 400)
    assert full.pixels.shape == half.pixels.shape == (300, 400, 3)
    assert np.array_equal(full.affine, half.affine)
    assert np.abs(full.pixels.astype(int) - half.pixels).max() <= 2


def test_patches_and_pixels():
    fitted_photo = Fitted(np.zeros((8, 12, 3), np.uint8), np.array([[5.0, 0, 10], [0, 5, 20]]), ())
    affine = heat_affine(fitted_photo, (2, 4))  # patches 2 high and 4 wide: 10 x 20 photo pixels
    assert np.array_equal(affine, [[20, 0, 10], [0, 10, 20]])
    assert patch_at(affine, (4, 3), (10, 20)) == (0, 0)
    assert patch_at(affine, (4, 3), (69.9, 59.9)) == (3, 2)
    message = r"saw nothing at pixel 70,30: .* from 10,20 to 70,60 \(x,y from the top left"
    with pytest.raises(ValueError, match=message):
        patch_at(affine, (4, 3), (70, 30))


# --- layouts -------------------------------------------------------------------------------------


def test_one_map_is_the_overlay_pixel_by_pixel():
    heat = np.random.default_rng(1).random((6, 8))
    made = compose(photo(540, 720), over_all(heat, 540, 720), [Map(heat)], Text("t"))
    assert np.array_equal(cut(made), overlay(noise(540, 720), heat, top=common_top([Map(heat)])))


def test_parts_are_photo_heat_and_both():
    heat = np.random.default_rng(1).random((6, 8))
    affine, parts = over_all(heat, 540, 720), Arrangement(parts=True)
    made = compose(photo(540, 720), affine, [Map(heat)], Text("t"), parts, Style(smooth=False), 720)
    top = common_top([Map(heat)])
    assert np.array_equal(cut(made, 0), noise(540, 720))
    heat_alone = overlay(noise(540, 720), heat, top=top, alpha=1, smooth=False)
    assert np.array_equal(cut(made, 1), heat_alone)
    assert np.array_equal(cut(made, 2), overlay(noise(540, 720), heat, top=top, smooth=False))
    assert made.boxes[0][1] == made.boxes[1][1] == made.boxes[2][1]  # beside each other
    wide = compose(photo(100, 300), over_all(heat, 100, 300), [Map(heat)], Text("t"), parts)
    assert wide.boxes[0][0] == wide.boxes[1][0] == wide.boxes[2][0]  # below each other


def test_all_panels_share_one_scale():
    sharp = np.ones((4, 4))
    sharp[:2, :2] = 9
    flat = np.ones((4, 4))
    maps = [Map(sharp, "sharp"), Map(flat, "flat")]
    made = compose(
        photo(512, 512),
        over_all(flat, 512, 512),
        maps,
        Text("t"),
        style=Style(1.0, False),
        size=512,
    )
    top = common_top(maps)
    assert top == pytest.approx(9 / sharp.mean()) and top > LEAST_TOP
    assert (cut(made, 0)[:200, :200] == HOT).all()
    assert (
        cut(made, 1) == colour_map()[round(255 / top)]
    ).all()  # not stretched to its own maximum


def test_marked_patches_have_no_say_in_the_scale():
    heat = np.random.default_rng(3).random((8, 8)) + 1
    spiked, outliers = heat.copy(), np.zeros((8, 8), dtype=bool)
    spiked[2, 3], outliers[2, 3] = 500, True
    stretched = common_top([Map(spiked)])
    assert stretched > 50
    factor = heat.mean() / spiked.mean()
    assert common_top([Map(spiked, outliers=outliers)]) == LEAST_TOP  # nearly even without it
    assert common_top([Map(spiked, chosen=(2, 3))]) == LEAST_TOP
    assert factor < 0.5
    assert common_top([Map(np.ones((2, 2)), outliers=np.ones((2, 2), dtype=bool))]) == LEAST_TOP


def test_outliers_and_the_chosen_patch_are_outlined():
    heat, outliers = np.ones((8, 8)), np.zeros((8, 8), dtype=bool)
    outliers[1, 6] = True
    made = cut(
        compose(
            photo(640, 640),
            over_all(heat, 640, 640),
            [Map(heat, outliers=outliers, chosen=(5, 2))],
            Text("t"),
            style=Style(alpha=1.0),
        )
    )
    cyan = np.argwhere((made == OUTLIER).all(axis=2))
    white = np.argwhere((made == 255).all(axis=2))
    assert (np.abs(cyan.mean(axis=0) - [120, 520]) < 2).all()
    assert (np.abs(white.mean(axis=0) - [440, 200]) < 2).all()


def test_outlines_are_on_the_heat_alone_and_on_the_overlay():
    heat, outliers = np.ones((8, 8)), np.zeros((8, 8), dtype=bool)
    outliers[1, 6] = True
    maps, parts = [Map(heat, outliers=outliers)], Arrangement(parts=True)
    made = compose(photo(640, 640), over_all(heat, 640, 640), maps, Text("t"), parts, size=640)
    lines = [(cut(made, number) == OUTLIER).all(axis=2) for number in range(3)]
    assert not lines[0].any() and lines[1].any() and np.array_equal(lines[1], lines[2])


@pytest.mark.parametrize("own", [3.0, 40.0, 4000.0])
def test_what_a_patch_reads_of_itself_does_not_cover_its_neighbours(own):
    """It is drawn as the top of the scale at most, and colours run from there to the next patch."""
    heat = np.full((8, 8), 2.5)
    heat[3, 3] = own
    mean, affine = heat.mean(), over_all(heat, 640, 640)
    style = Style(alpha=1.0)
    [one] = [Map(heat, chosen=(3, 3))]
    made = cut(compose(photo(640, 640), affine, [one], Text("t"), style=style, top=2.0))
    away = 19.5 / 80  # from the centre of the patch to its right, at 360, on to the chosen one
    value = (1 - away) * 2.5 / mean + away * min(own / mean, 2.0)
    expected = colour_map()[round(255 * min(value / 2, 1))].astype(int)
    assert np.abs(made[280, 340] - expected).max() <= 4
    even = colour_map()[round(255 * 2.5 / mean / 2)].astype(int)
    assert np.abs(made[40, 600] - even).max() <= 1  # all others as without the limit


@pytest.mark.parametrize(
    ("count", "size", "columns"),
    [
        (6, (400, 600), 3),
        (6, (400, 1200), 2),
        (6, (1200, 400), 6),
        (3, (500, 500), 3),
        (1, (9, 9), 1),
    ],
)
def test_panels_stand_in_a_block_that_fits_a_screen(count, size, columns):
    assert columns_for(count, *size) == columns
    side = panel_size(count, columns, *size) or max(drawn_size(*size))
    assert columns * side * size[1] / max(size) <= 1700


def test_many_panels_stay_large_enough_to_be_seen():
    assert panel_size(24 * 16, 16, 400, 600) >= 96


# --- captions ------------------------------------------------------------------------------------


def test_maps_that_show_nothing_are_called_so():
    assert headed(Map(np.zeros((3, 3)), 'for "cat"'), 2) == 'for "cat": zero on every patch'
    assert headed(Map(np.zeros((3, 3))), 1) == "zero on every patch"
    assert headed(Map(np.eye(3), "one"), 2) == "one" and headed(Map(np.eye(3), "one"), 1) == ""
    assert captions.remark(np.zeros((3, 3))) == "zero on every patch"
    flat = np.array([[1.0, 1.02], [0.98, 1.0]])
    assert captions.remark(flat) == "flat, every patch between 0.98 and 1.02 times the mean"
    even = np.array([[1.0, 1.3], [0.9, 0.8]])
    assert captions.remark(even) == "nearly even, at most 1.30 times the mean"
    assert captions.remark(np.array([[3.0, 1], [1, 1]])) == ""  # its top is exactly 2


def test_the_scale_is_explained():
    words = captions.of_scale(3.456, "attention", aside=True)
    assert "1 is what each patch would get if the attention were spread evenly" in words
    assert (
        "end at 3.46: outlined patches aside, the patches above it hold 20 % of the map." in words
    )
    assert "outlined" not in captions.of_scale(3.4, "relevance", aside=False)
    many = captions.of_scale(3.4, "heat", False, "all maps together")
    assert many.endswith("hold 20 % of all maps together.")
    assert "reach to 2 at least" in captions.of_scale(LEAST_TOP, "attention", aside=False)


def test_shares_are_said_where_there_are_any():
    deit = Architecture(global_pool="distilled", class_token=True)
    assert "25 % of the attention is on the class token and one register" in captions.of_prefix(
        [0.25], deit, "attention"
    )
    several = captions.of_prefix([0.25, 0.034, 0.1], deit, "heat")
    assert several.startswith("3.4 % to 25 % of the heat, by map, is on the class token")
    plain = Architecture(class_token=False, global_pool="avg")
    assert captions.of_prefix([0.0], plain, "attention") == ""
    assert "four register" in captions.prefix_words(Architecture(reg_tokens=4))


def test_outliers_are_called_what_they_are():
    """By the attention that they receive in some layer, not by what this map shows of them."""
    times = captions.counted(MANY_TIMES)
    assert captions.of_outliers([0.083], [3], "mark") == (
        f"Outlined in cyan: three outlier patches, which in some layer receive more than {times} "
        "times an even share of attention; they hold 8.3 % of this map."
    )
    several = captions.of_outliers([0.083, 0.002, 0.04], [1, 1, 1], "mark")
    assert "one outlier patch, which in some layer receives more" in several
    assert several.endswith("it holds 0.2 % to 8.3 % of each map.")
    assert "up to 12 outlier patches" in captions.of_outliers([0, 0.3], [0, 12], "mark")
    assert "taken as 0 throughout" in captions.of_outliers([0.0], [1], "exclude")
    assert captions.of_outliers([0.1], [3], "show") == captions.of_outliers([0], [0], "mark") == ""


def test_the_patch_that_looks_is_counted_as_its_option_takes_it():
    words = captions.of_chosen((14, 36), [0.27])
    assert "(row 14, column 36, counted from 0 at the top left)" in words
    assert "What it reads of itself (27 % of this map) lies within the outline" in words
    assert "(0.1 % to 20 % of each map)" in captions.of_chosen((1, 2), [0.2, 0.001])
    assert captions.of_chosen(None) == ""


def test_what_belongs_to_no_class_is_said():
    assert captions.of_no_class(1).startswith("This map belongs to no class")
    assert captions.of_no_class(3).startswith("These maps belong to no class")
    assert captions.of_no_class(3, ["a"]).startswith("Maps of a belong")
    assert captions.of_no_class(3, ["a", "b", "c"]).startswith(
        "Maps of a, b and c belong to no class"
    )


def test_lines_and_squares_are_explained():
    assert "one cell is one patch" in captions.of_drawing(grid=True, smooth=True)
    assert "one patch" in captions.of_drawing(grid=False, smooth=False)
    assert captions.of_drawing(grid=False, smooth=True) == ""


def test_the_network_is_described():
    words = captions.of_network("x", "", Architecture(), 5)
    assert "12 layers (counted from 1 at the image)" in words and "knows 5 classes." in words
    assert "knows" not in captions.of_network("x", "", Architecture())


def test_what_the_network_did_not_see_is_said():
    whole = photo(100, 200)
    assert captions.of_seen(whole, (0, 0, 200, 100)) == ""
    assert "given 50 % of the photo" in captions.of_seen(whole, (50, 0, 150, 100))
    thin = captions.of_seen(whole, (1.5, 0, 198.5, 100))  # 1.5 of 200 pixels: hardly drawn
    assert "Hatched" not in thin and "the outermost two pixels of the photo" in thin
    assert "the outermost pixel of" in captions.of_seen(whole, (1, 0, 200, 100))
    assert captions.of_seen(whole, (2.1, 0, 200, 100)).startswith("Hatched")


def test_titles_name_the_photo_and_the_answer():
    assert captions.of_photo("/home/me/$a.jpg", None) == "$a.jpg"
    assert captions.of_photo("b.jpg", Answer("猫", 0.973)) == "b.jpg: 猫 (97 %)"
