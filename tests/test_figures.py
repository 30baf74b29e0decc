"""The pictures of a run: what they show, and that nothing in them overlaps or is misread."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.text import Text
from PIL import Image

from vit import calibration, figures, lettering, score_figures
from vit.metrics import Predictions
from vit.overlay import LEAST_TOP, colour_map, overlay, scale_top

ODD = ["10", "2", "a b", "猫", "O'Brien", "<b>x</b>", "$x$", "a_b", "back\\slash", "two\nlines"]
ODD += ["$\\frac{1}{0}$", "кот", "", "a class name that is much longer than any label may be"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, in order; a warning while drawing is an error."""
    saved, save = [], figures.save

    def keep(figure, *rest):
        saved.append(figure)
        return save(figure, *rest)

    for module in (figures, score_figures):
        monkeypatch.setattr(module, "save", keep)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield saved


def texts(figure) -> list[Text]:
    """All texts that are drawn."""
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return [text for text in found if text not in hidden]


def words(figure) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


def assert_readable(figure) -> None:
    """No text on another or beyond the edge of the picture, as laid out when it was saved."""
    figure.set_dpi(figures.DPI)  # in which it was laid out
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    assert len(boxes) >= 3
    width, height = figure.bbox.size
    for name, box in boxes:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{name!r} is cut off at the edge"
    for number, (name, box) in enumerate(boxes):
        for other, beside in boxes[number + 1 :]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            along = min(box.y1, beside.y1) - max(box.y0, beside.y0)
            assert min(across, along) <= 2, f"{name!r} lies on {other!r}"


def assert_png(path, least: int = 300, most: int = 2500) -> None:
    """A PNG file that opens, of a size that a screen shows, and not empty."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert all(least <= side <= most for side in image.size), image.size
        assert len(image.convert("RGB").getcolors(2**24)) > 5


def noise(count: int, height: int = 8, width: int = 8) -> np.ndarray:
    generator = np.random.default_rng(count)
    return generator.integers(0, 256, (count, 3, height, width), dtype=np.uint8)


def shown(figure) -> list[np.ndarray]:
    """The pictures in the figure's panels."""
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def captions(figure) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes if axes.images]


# --- curves ------------------------------------------------------------------------------------


def history(top1=(0.5, 0.75, 0.75, 0.7), nll=(1.0, 0.8, 0.6, 0.7)) -> list[dict]:
    return [
        {
            "epoch": n + 1,
            "lr": 0.01 / (n + 1),
            "train_loss": 2 / (n + 1),
            "train_top1": 0.2 * (n + 1),
        }
        | {"val_top1": right, "val_nll": loss}
        for n, (right, loss) in enumerate(zip(top1, nll, strict=True))
    ]


def data(axes, label: str) -> np.ndarray:
    """x and y of the line with this label: (2, n)."""
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return np.asarray(line.get_xydata()).T


def test_curves_show_the_numbers(drawn, tmp_path):
    path = figures.curves(history(), tmp_path / "curves.png", "digits, run 1")
    assert path == tmp_path / "curves.png"
    assert_png(path)
    loss, accuracy, rate = drawn[0].axes
    assert np.allclose(data(loss, "training"), [[1, 2, 3, 4], [2, 1, 2 / 3, 0.5]])
    name = "validation (negative log-likelihood)"
    assert np.allclose(data(loss, name), [[1, 2, 3, 4], [1.0, 0.8, 0.6, 0.7]])
    assert np.allclose(data(accuracy, "training")[1], [20, 40, 60, 80])
    assert np.allclose(data(accuracy, "validation")[1], [50, 75, 75, 70])
    assert np.allclose(rate.lines[0].get_ydata(), [0.01, 0.005, 0.01 / 3, 0.0025])
    labels = [axes.get_ylabel() for axes in drawn[0].axes]
    assert labels == ["loss (cross-entropy, nats)", "top-1 accuracy (%)", "learning rate"]
    assert rate.get_xlabel() == "epoch" and "digits, run 1" in words(drawn[0])
    assert_readable(drawn[0])


def test_the_best_epoch_is_the_most_accurate_and_at_a_tie_the_likeliest(drawn, tmp_path):
    figures.curves(history(), tmp_path / "a.png", "")
    for axes in drawn[0].axes:
        assert (data(axes, "best epoch: 3 (75.0 %)")[0] == 3).all()
    figures.curves(history(nll=(1.0, 0.6, 0.6, 0.1)), tmp_path / "b.png", "")
    assert "best epoch: 2 (75.0 %)" in words(drawn[1])  # and of equal ones the first


def test_validation_loss_is_preferred_to_the_likelihood(drawn, tmp_path):
    rows = [row | {"val_loss": 9.0 + row["epoch"]} for row in history()]
    figures.curves(rows, tmp_path / "a.png", "")
    assert np.allclose(data(drawn[0].axes[0], "validation")[1], [10, 11, 12, 13])


@pytest.mark.parametrize("missing", [None, ""])
def test_without_validation_the_last_epoch_is_marked(drawn, tmp_path, missing):
    rows = [row | {"val_top1": missing, "val_nll": missing} for row in history()]
    figures.curves(rows, tmp_path / "a.png", "")
    loss, accuracy, _ = drawn[0].axes
    assert (data(accuracy, "last epoch: 4 (no validation)")[0] == 4).all()
    assert not [line for line in loss.lines if "validation (" in line.get_label()[:12]]
    assert_readable(drawn[0])


def test_values_as_text_and_gaps(drawn, tmp_path):
    """As csv.DictReader gives them; an epoch without validation leaves a gap, not a zero."""
    rows = [{key: str(value) for key, value in row.items()} for row in history()]
    rows[1]["val_top1"] = rows[1]["val_nll"] = ""
    figures.curves(rows, tmp_path / "a.png", "")
    values = data(drawn[0].axes[1], "validation")[1]
    assert np.isnan(values[1]) and np.allclose(values[[0, 2, 3]], [50, 75, 70])
    assert "best epoch: 3" in words(drawn[0])


def test_a_single_epoch_is_visible(drawn, tmp_path):
    figures.curves(history()[:1], tmp_path / "a.png", "")
    assert_readable(drawn[0])
    loss = drawn[0].axes[0]
    low, high = loss.get_xlim()
    assert low < 1 < high
    assert [line.get_marker() for line in loss.lines][:2] == ["o", "o"]  # a line has no length
    ticks = [tick for tick in drawn[0].axes[2].get_xticks() if low <= tick <= high]
    assert ticks == [1]


def test_many_epochs_have_readable_ticks(drawn, tmp_path):
    rows = history(np.linspace(0, 1, 1000), np.linspace(2, 1, 1000))
    figures.curves(rows, tmp_path / "a.png", "")
    assert_readable(drawn[0])


def test_no_epochs_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="rows must hold at least one epoch"):
        figures.curves([], tmp_path / "a.png", "")


def test_throughput_has_a_panel_with_its_median(drawn, tmp_path):
    speeds = (5000, 12000.5, 12345.4, 12999)
    timing = [
        {"epoch": str(n + 1), "seconds": "9", "images_per_second": str(speed)}
        for n, speed in enumerate(speeds)
    ]
    assert_png(figures.curves(history(), tmp_path / "a.png", "digits", timing))
    *_, rate, speed = drawn[0].axes
    assert rate.get_ylabel() == "learning rate" and rate.get_xlabel() == ""
    assert speed.get_ylabel() == "images/s" and speed.get_xlabel() == "epoch"
    assert np.allclose(speed.lines[0].get_xydata().T, [[1, 2, 3, 4], speeds])
    assert np.allclose(data(speed, "median: 12,173 images/s")[1], 12172.95)
    assert (data(speed, "best epoch: 3 (75.0 %)")[0] == 3).all()
    assert speed.get_ylim()[0] == 0 and speed.get_ylim()[1] > max(speeds)
    assert rate.get_ylim()[1] > 0.01  # the highest dot is whole
    assert "10,000" in words(drawn[0])
    assert_readable(drawn[0])


@pytest.mark.parametrize("timing", [None, [], [{"epoch": 1, "images_per_second": ""}]])
def test_without_timing_there_is_no_panel_for_it(drawn, tmp_path, timing):
    figures.curves(history(), tmp_path / "a.png", "", timing)
    assert len(drawn[0].axes) == 3 and drawn[0].axes[2].get_xlabel() == "epoch"


def test_slow_training_has_a_median_too(drawn, tmp_path):
    timing = [{"epoch": 1, "images_per_second": 3.456}, {"epoch": 2, "images_per_second": None}]
    figures.curves(history()[:2], tmp_path / "a.png", "", timing)
    assert "median: 3.46 images/s" in words(drawn[0])
    assert_readable(drawn[0])


# --- confusion ---------------------------------------------------------------------------------


def test_confusion_shows_counts_shares_and_accuracy(drawn, tmp_path):
    matrix = torch.tensor([[8, 2, 0], [1, 3, 0], [0, 0, 0]])
    path = score_figures.confusion(matrix, ["ant", "bee", "cow"], tmp_path / "c.png", "title")
    assert_png(path)
    cells, bars, _ = drawn[0].axes
    written = {text.get_position(): text.get_text() for text in cells.texts}
    # (column, row): the true class goes down, the predicted one across
    assert written == {(0, 0): "8", (1, 0): "2", (0, 1): "1", (1, 1): "3", (1, 2): "no images"}
    shares = cells.images[0].get_array()
    assert np.allclose(shares[:2], [[0.8, 0.2, 0], [0.25, 0.75, 0]]) and shares.mask[2].all()
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([80, 75, 0])
    assert [text.get_text() for text in bars.texts] == ["80", "75"]
    assert cells.get_xlabel() == "predicted class" and cells.get_ylabel() == "true class"
    assert "11 of 14 right. Most often: ant taken for bee (2), bee taken for ant (1)." in words(
        drawn[0]
    )


def test_confusion_without_errors(drawn, tmp_path):
    score_figures.confusion(np.diag([3, 4]), ["a", "b"], tmp_path / "c.png", "title")
    assert "7 of 7 right." in words(drawn[0]) and "Most often" not in words(drawn[0])


@pytest.mark.parametrize("count", [1, 2, 20, 21, 230])
def test_confusion_is_readable_at_any_number_of_classes(drawn, tmp_path, count):
    generator = np.random.default_rng(0)
    matrix = generator.integers(0, 900, (count, count)) + np.diag(np.full(count, 5000))
    names = [f"species of bird number {number}" for number in range(count)]
    path = score_figures.confusion(matrix, names, tmp_path / "c.png", "birds")
    assert_png(path, most=2700)
    cells, bars, _ = drawn[0].axes
    assert len(cells.texts) == (count**2 if count <= 20 else 0)
    ticks = len(cells.get_yticks())
    assert ticks == count if count <= 100 else 70 < ticks < count  # as many names as have room
    assert_readable(drawn[0])
    if count > 20:  # one step per class, from 0 to its share
        stairs = bars.patches[0].get_data().values
        assert np.allclose(stairs, 100 * matrix.diagonal() / matrix.sum(axis=1))


def test_a_matrix_of_other_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be \(C, C\) for 3 classes, got \(2, 2\)"):
        score_figures.confusion(np.eye(2), ["a", "b", "c"], tmp_path / "c.png", "")


# --- reliability -------------------------------------------------------------------------------


def answered(count: int, sharpness: float = 2.5) -> Predictions:
    """Answers among ten classes, surer than they are right."""
    generator = torch.Generator().manual_seed(count)
    logits = torch.randn(count, 10, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    logits[torch.arange(count), labels] += 1.5
    return Predictions(sharpness * logits, labels)


def draw_reliability(predictions: Predictions, path, temperature: float = 2.0, **rest):
    confidences = (predictions.probabilities(t).amax(dim=1) for t in (1.0, temperature))
    before, after = confidences
    return score_figures.reliability(before, predictions.correct(), after, path, "digits", **rest)


def points(axes) -> list[np.ndarray]:
    """Mean confidence, accuracy and the interval's two ends, per series: (points, 4), percent."""
    found = []
    for container in axes.containers:
        line, _, (bars,) = container.lines
        ends = np.array([segment[:, 1] for segment in bars.get_segments()]).reshape(-1, 2)
        found.append(np.hstack([line.get_xydata(), ends]))
    return found


@pytest.mark.parametrize("count", [1, 50, 2000])
def test_reliability_shows_the_bins(drawn, tmp_path, count):
    """Against a loop over bins that follows the definition, and Wilson's equation solved."""
    predictions = answered(count)
    assert_png(draw_reliability(predictions, tmp_path / "r.png"))
    diagram, *histograms = drawn[0].axes
    correct = predictions.correct().numpy()
    shown = points(diagram)
    for number, (temperature, name) in enumerate([(1.0, "before"), (2.0, "after")]):
        sure = predictions.probabilities(temperature).amax(dim=1).numpy()
        many, few, counts = [], [], []
        for place in range(15):
            inside = (sure > place / 15) & (sure <= (place + 1) / 15)
            counts.append(inside.sum())
            if inside.any():
                share = correct[inside].mean()
                # the two p at which |share - p| is 1.96 standard errors of p
                n, z2 = inside.sum(), 1.959964**2
                ends = sorted(np.roots([1 + z2 / n, -2 * share - z2 / n, share**2]).real)
                row = 100 * np.array([sure[inside].mean(), share, *ends])
                (many if n >= 10 else few).append(row)
        for drawn_rows, expected in zip(shown[2 * number :], (many, few), strict=False):
            assert np.allclose(drawn_rows, np.reshape(expected, (-1, 4)), atol=1e-6)
        bars = histograms[number].patches
        assert [bar.get_height() for bar in bars] == counts and sum(counts) == count
        edges = [bar.get_x() for bar in bars]
        assert np.allclose(edges, np.arange(15) * 100 / 15)
        written = [text.get_text() for text in histograms[number].texts]
        assert written == [str(n) for n in counts if n]
        assert f"{name} temperature: ECE {100 * predictions.ece(temperature):.1f} %" in words(
            drawn[0]
        )
    assert f"{correct.sum():,} of {count:,} right" in words(drawn[0])
    ideal = data(diagram, "ideal: right as often as it says")
    assert np.array_equal(ideal, [[0, 100], [0, 100]])
    assert_readable(drawn[0])


def test_bins_of_fewer_than_ten_images_are_hollow(drawn, tmp_path):
    sure = np.array([0.5] * 9 + [0.9] * 10)
    score_figures.reliability(sure, sure > 0.4, sure, tmp_path / "r.png", "")
    filled, hollow = (container.lines[0] for container in drawn[0].axes[0].containers)
    assert np.allclose(filled.get_xydata(), [[90, 100]]) and filled.get_mfc() == figures.BLUE
    assert np.allclose(hollow.get_xydata(), [[50, 100]]) and hollow.get_mfc() == "white"


def test_the_error_in_the_picture_is_that_of_the_summary():
    for count in (1, 7, 500):
        predictions = answered(count)
        confidence = predictions.probabilities().amax(dim=1).numpy()
        bins = calibration.binned(confidence, predictions.correct().numpy())
        assert calibration.calibration_error(*bins) == pytest.approx(predictions.ece(), abs=1e-12)


def test_the_edges_of_bins_belong_to_the_lower_one():
    count, sure, right = calibration.binned(
        np.array([0, 1 / 15, 0.2, 1, 1 + 1e-7]), np.array([True, False, True, True, False])
    )
    assert np.flatnonzero(count).tolist() == [0, 2, 14] and count[[0, 2, 14]].tolist() == [2, 1, 2]
    assert right[[0, 2, 14]].tolist() == [0.5, 1, 0.5]
    assert np.isnan(sure[1]) and np.isnan(right[1])


def test_reliability_of_many_images_is_readable(drawn, tmp_path):
    draw_reliability(answered(50_000), tmp_path / "r.png", note="Temperature 2.00, fitted.")
    assert "Temperature 2.00, fitted. " in words(drawn[0]).replace("\n", " ")
    assert "of 50,000 right" in words(drawn[0]).replace("\n", " ")
    assert_readable(drawn[0])


def test_a_temperature_of_one_is_drawn_once(drawn, tmp_path):
    predictions = answered(80)
    assert_png(draw_reliability(predictions, tmp_path / "r.png", temperature=1.0))
    assert len(drawn[0].axes) == 2
    expected = f"temperature changes nothing: ECE {100 * predictions.ece():.1f} %"
    assert expected in words(drawn[0]) and "before" not in words(drawn[0])
    assert_readable(drawn[0])


@pytest.mark.parametrize(
    ("confidence", "correct", "calibrated", "message"),
    [
        ([0.5], [True, False], [0.5], r"must all be \(n,\), n > 0, got \(1,\), \(2,\) and \(1,\)"),
        ([], [], [], "n > 0"),
        ([[0.5]], [[True]], [[0.5]], r"\(1, 1\)"),
        ([0.5, 1.5], [True, False], [0.5, 0.5], "confidence must be fractions, got 0.5 to 1.5"),
        ([0.5], [True], [-0.5], "calibrated must be fractions, got -0.5 to -0.5"),
        ([0.5], [True], [np.nan], "calibrated must be fractions, got nan"),
    ],
)
def test_what_is_no_confidence_is_refused(tmp_path, confidence, correct, calibrated, message):
    with pytest.raises(ValueError, match=message):
        score_figures.reliability(confidence, correct, calibrated, tmp_path / "r.png", "")


# --- per class -----------------------------------------------------------------------------------


def score(f1: float, count: int = 7) -> dict[str, float]:
    return {"precision": f1 / 2, "recall": f1 / 4, "f1": f1, "count": count}


def lengths(axes) -> dict[str, list[float]]:
    """Bars from top to bottom, by the measure in the legend."""
    return {
        bars.get_label(): [bar.get_width() for bar in bars]
        for bars in axes.containers  # in the order of the rows, which go down
    }


def rows_of(axes) -> list[str]:
    return [tick.get_text() for tick in axes.get_yticklabels()]


def test_classes_stand_by_f1_with_their_three_measures(drawn, tmp_path):
    scores = {"ant": score(0.9), "bee": score(0.5, 1234), "cow": score(0.7, 1)}
    path = score_figures.per_class(scores, list(scores), tmp_path / "p.png", "insects")
    assert_png(path)
    (axes,) = drawn[0].axes
    assert rows_of(axes) == ["bee", "cow", "ant"]
    assert axes.yaxis_inverted()  # the first stands at the top
    for label, factor in {"F1": 100, "precision": 50, "recall": 25}.items():
        assert lengths(axes)[label] == pytest.approx([factor * f1 for f1 in (0.5, 0.7, 0.9)])
    written = {(x, y): text.get_text() for text in axes.texts for x, y in [text.get_position()]}
    assert [written[112, row] for row in range(3)] == ["50.0", "70.0", "90.0"]
    assert [written[128, row] for row in range(3)] == ["1,234", "1", "7"]
    assert np.allclose(data(axes, "macro F1 70.0 %")[0], 70)
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {
        *("F1", "precision", "recall", "macro F1 70.0 %")
    }
    assert_readable(drawn[0])


def test_equal_classes_keep_their_order(drawn, tmp_path):
    scores = {name: score(0.5) for name in "zay"}
    score_figures.per_class(scores, "zay", tmp_path / "p.png", "")
    assert rows_of(drawn[0].axes[0]) == ["z", "a", "y"]


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (30, 0), (31, 1), (1000, 970)])
def test_of_many_classes_the_worst_and_the_best_are_drawn(drawn, tmp_path, count, left_out):
    scores = {f"species {n}": score((n + 1) / count, n + 1) for n in range(count)}
    path = score_figures.per_class(scores, list(scores), tmp_path / "p.png", "birds")
    assert_png(path)
    (axes,) = drawn[0].axes
    names = list(scores)
    assert rows_of(axes) == (names[:15] + names[-15:] if left_out else names)
    places = axes.get_yticks()
    assert places[-1] == len(places) - 1 + bool(left_out)  # a row without bars
    gap = [text.get_text() for text in axes.texts if "left out" in text.get_text()]
    if left_out:
        low, high = 1600 / count, 100 * (count - 15) / count
        assert gap == [f"… {left_out} classes left out, F1 {low:.1f} to {high:.1f} % …"]
        assert 15 not in places
    else:
        assert not gap
    assert np.allclose(data(axes, axes.lines[0].get_label())[0], 50 * (count + 1) / count)
    assert_readable(drawn[0])


def test_classes_without_images_are_named_in_the_note_alone(drawn, tmp_path):
    scores = {"ant": score(0.8), "none": score(0.0, 0)}
    score_figures.per_class(scores, ["ant", "none"], tmp_path / "p.png", "")
    assert rows_of(drawn[0].axes[0]) == ["ant"]
    text = words(drawn[0]).replace("\n", " ")
    assert "Not drawn: classes without images (1)" in text and "macro F1 40.0 %" in text
    with pytest.raises(ValueError, match="at least one class with images"):
        score_figures.per_class({"none": score(0, 0)}, ["none"], tmp_path / "p.png", "")


def test_scores_of_other_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"same classes, not so: \['ant', 'bee'\]"):
        score_figures.per_class({"ant": score(1)}, ["bee"], tmp_path / "p.png", "")


def test_the_macro_f1_in_the_picture_is_that_of_the_summary(drawn, tmp_path):
    report = answered(300).report(list("abcdefghij"))
    score_figures.per_class(report["per_class"], list("abcdefghij"), tmp_path / "p.png", "")
    assert f"macro F1 {100 * report['macro_f1']:.1f} %" in words(drawn[0])


# --- batch, mistakes, attention ------------------------------------------------------------------


def test_batch_shows_the_images_with_their_classes(drawn, tmp_path):
    images, labels = torch.tensor(noise(40)), torch.arange(40) % 3
    path = figures.batch(images, labels, ["ant", "bee", "cow"], tmp_path / "b.png", "a batch")
    assert_png(path)
    pictures = shown(drawn[0])
    assert len(pictures) == 32
    for picture, image in zip(pictures, images, strict=False):
        assert np.array_equal(picture, image.permute(1, 2, 0))
    assert captions(drawn[0])[:4] == ["ant", "bee", "cow", "ant"]
    assert "32 of 40 images of 8 x 8 pixels" in words(drawn[0])
    assert_readable(drawn[0])


def test_small_images_keep_their_pixels(tmp_path):
    """Enlarged without blur: on the paper there are only the image's two colours and their text."""
    board = np.indices((8, 8)).sum(axis=0) % 2 * 255
    images = np.repeat(board[None, None], 3, axis=1).astype(np.uint8)
    path = figures.batch(images, [0], ["board"], tmp_path / "b.png", "one")
    pixels = np.asarray(Image.open(path).convert("L"))
    inside = pixels[pixels.shape[0] // 4 : -pixels.shape[0] // 3]
    inside = inside[:, pixels.shape[1] // 3 : -pixels.shape[1] // 3]
    assert np.isin(inside, (0, 255)).all() and 0.3 < (inside == 0).mean() < 0.7


def answers(said: list[int], sure: list[float], classes: int = 3) -> np.ndarray:
    """Probabilities (n, C) with the given one at the given class."""
    rest = (1 - np.asarray(sure)[:, None]) / (classes - 1)
    probabilities = np.repeat(rest, classes, axis=1)
    probabilities[np.arange(len(said)), said] = sure
    return probabilities


def test_mistakes_are_the_surest_wrong_answers_first(drawn, tmp_path):
    images = noise(5)
    probabilities = torch.tensor(answers([0, 1, 2, 1, 0], [0.9, 0.6, 0.8, 0.7, 0.5]))
    path = figures.mistakes(
        torch.tensor(images),
        torch.tensor([0, 2, 0, 1, 1]),
        probabilities,
        ["ant", "bee", "cow"],
        tmp_path / "m.png",
        "mistakes",
        names=[f"{number}.jpg" for number in range(5)],
    )
    assert_png(path)
    expected = [
        "said cow (80 %)\nis ant (10 %)\n2.jpg",
        "said bee (60 %)\nis cow (20 %)\n1.jpg",
        "said ant (50 %)\nis bee (25 %)\n4.jpg",
    ]
    assert captions(drawn[0]) == expected
    for picture, index in zip(shown(drawn[0]), (2, 1, 4), strict=True):
        assert np.array_equal(picture, images[index].transpose(1, 2, 0))
    assert "3 of 5 wrong, the surest first" in words(drawn[0])
    assert_readable(drawn[0])


def test_more_mistakes_than_have_room(drawn, tmp_path):
    sure = np.linspace(0.5, 0.99, 60)
    figures.mistakes(
        noise(60), [1] * 60, answers([0] * 60, sure), "abc", tmp_path / "m.png", "title"
    )
    assert len(shown(drawn[0])) == 24
    assert captions(drawn[0])[0].startswith("said a (99 %)")
    assert "60 of 60 wrong, the surest first; the first 24" in words(drawn[0])


def test_without_mistakes_the_least_sure_answers_and_a_word_about_it(drawn, tmp_path):
    path = figures.mistakes(
        noise(3), [0, 1, 2], answers([0, 1, 2], [0.9, 0.5, 0.7]), "abc", tmp_path / "m.png", "title"
    )
    assert_png(path)
    assert captions(drawn[0]) == ["said b (50 %)", "said c (70 %)", "said a (90 %)"]
    assert "No mistakes among 3" in words(drawn[0])


def test_attention_pairs_share_one_scale(drawn, tmp_path):
    images, heats = noise(14), torch.rand(14, 4, 4, generator=torch.manual_seed(0))
    heats[3, 1, 1] = 30  # its neighbours would be dark on a scale of their own
    labels, predicted = [0] * 14, torch.tensor([0, 1] * 7)
    path = figures.attention(
        images, heats, labels, predicted, ["ant", "bee"], tmp_path / "a.png", "rollout"
    )
    assert_png(path)
    pictures = shown(drawn[0])
    assert len(pictures) == 12
    top = scale_top(heats[:12])
    for picture, image, heat in zip(pictures, images, heats, strict=False):
        photo = image.transpose(1, 2, 0).repeat(30, 0).repeat(30, 1)
        assert picture.shape == (240, 486, 3)
        assert np.array_equal(picture[:, :240], photo)
        assert np.array_equal(picture[:, 246:], overlay(photo, heat, top=top))
    assert captions(drawn[0])[:2] == ["ant (right)", "said bee, is ant"]
    bar = drawn[0].axes[-1]
    assert bar.get_ylabel() == "attention, times the mean"
    assert bar.get_ylim() == pytest.approx((0, top))
    assert_readable(drawn[0])


def test_the_colour_bar_has_the_overlay_s_colours(drawn, tmp_path):
    figures.attention(noise(1), np.ones((1, 2, 2)), [0], [0], ["ant"], tmp_path / "a.png", "flat")
    (mesh,) = drawn[0].axes[-1].findobj(QuadMesh)
    assert np.array_equal(np.rint(mesh.cmap.colors * 255), colour_map())
    assert mesh.norm.vmax == LEAST_TOP  # a flat map is not stretched
    assert_readable(drawn[0])


@pytest.mark.parametrize(
    ("count", "height", "width"), [(1, 8, 8), (5, 8, 56), (1, 56, 8), (5, 224, 160), (2, 300, 500)]
)
def test_pictures_of_any_form_are_readable(drawn, tmp_path, count, height, width):
    images, labels = noise(count, height, width), [0] * count
    names = ["a class with a rather long name"]
    figures.attention(
        images, np.ones((count, 2, 3)), labels, labels, names, tmp_path / "a.png", "rollout"
    )
    figures.batch(images, labels, names, tmp_path / "b.png", "a title, " * 20)
    figures.mistakes(images, labels, np.ones((count, 1)), names, tmp_path / "m.png", "mistakes")
    for figure, name in zip(drawn, "abm", strict=True):
        assert_readable(figure)
        assert_png(tmp_path / f"{name}.png", least=250)


def test_no_images_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="at least one image"):
        figures.batch(noise(1)[:0], [], ["a"], tmp_path / "b.png", "")


# --- names ---------------------------------------------------------------------------------------


def test_odd_class_names_are_drawn_as_they_are(drawn, tmp_path):
    count = len(ODD)
    labels, said = np.arange(count), np.roll(np.arange(count), 1)
    images, title = noise(count), "run $1$ of a_b {x} 猫"
    score_figures.confusion(np.eye(count) * 3 + 1, ODD, tmp_path / "c.png", title)
    figures.batch(images, labels, ODD, tmp_path / "b.png", title)
    figures.mistakes(
        images, labels, answers(said, [0.9] * count, count), ODD, tmp_path / "m.png", title, ODD
    )
    figures.attention(images, np.ones((count, 2, 2)), labels, said, ODD, tmp_path / "a.png", title)
    scores = {name: score((n + 1) / count) for n, name in enumerate(ODD)}
    score_figures.per_class(scores, ODD, tmp_path / "p.png", title)
    note = "Temperature $2$ of a_b."
    draw_reliability(answered(20), tmp_path / "r.png", note=note)
    assert r"Temperature \$2\$ of a_b." in words(drawn[-1])
    for figure, name in zip(drawn, "cbmapr", strict=True):
        assert_readable(figure)
        assert_png(tmp_path / f"{name}.png")
        for text in texts(figure):
            assert not text._preprocess_math(text.get_text())[1], f"{text} is read as a formula"
    names = [tick.get_text() for tick in drawn[0].axes[0].get_yticklabels()]
    assert names[:8] == [
        *("10", "2", "a b", lettering.short("猫", 18), "O'Brien", "<b>x</b>", r"\$x\$", "a_b")
    ]
    assert r"two\nlines" in names and "a class n…abel may be" not in names
    assert names[-1] == "a class n…l may be"
    assert rows_of(drawn[4].axes[0])[:2] == ["10", "2"]
    assert r"\$x\$" in rows_of(drawn[4].axes[0])


@pytest.mark.parametrize(
    ("name", "most", "expected"),
    [
        ("cat", 3, "cat"),
        ("catfish", 5, "ca…sh"),
        ("IMG_2024_0001.jpeg", 12, "IMG_20….jpeg"),
        ("$5", 9, r"\$5"),
        (7, 9, "7"),
        ("a\tb", 9, r"a\tb"),
    ],
)
def test_short_names(name, most, expected):
    assert lettering.short(name, most) == expected


def test_letters_without_a_glyph_are_told_apart(monkeypatch, caplog):
    known = frozenset(range(32, 127))
    lettering.warn_of_missing.cache_clear()
    monkeypatch.setattr(lettering, "fonts", lambda: (known, ["DejaVu Sans"]))
    assert lettering.short("猫", 9) == r"\u732b" != lettering.short("犬", 9)
    assert lettering.short("猫\n", 9) == r"\u732b\n"
    assert caplog.text.count("no installed font has are drawn as their codes") == 1
    assert caplog.text.count("a font such as Noto Sans CJK helps") == 1
    monkeypatch.setattr(lettering, "fonts", lambda: (known | {0x732B}, ["DejaVu Sans"]))
    assert lettering.short("猫", 9) == "猫"
    assert lettering.short("猫" * 5, 6) == "猫…猫"  # they are as wide as two letters each


def test_installed_fonts_are_fallen_back_on(monkeypatch, drawn, tmp_path):
    """A letter that only the second family has is drawn from it, without a warning."""
    monkeypatch.setattr(lettering, "FAMILIES", ("cmr10", "Not Installed", "DejaVu Sans"))
    lettering.fonts.cache_clear()
    try:
        known, installed = lettering.fonts()
        assert installed == ["cmr10", "DejaVu Sans"] and ord("к") in known
        figures.batch(noise(1), [0], ["кот"], tmp_path / "b.png", "title")
        assert captions(drawn[0]) == ["кот"]
    finally:
        lettering.fonts.cache_clear()


def test_equal_input_gives_equal_files(tmp_path):
    for name in "ab":
        figures.curves(history(), tmp_path / f"{name}.png", "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_drawing_opens_no_window(tmp_path):
    """pyplot, which picks a window system and keeps every figure, is never loaded."""
    code = (
        "import sys; from vit import figures, score_figures;"
        f"score_figures.confusion([[1]], ['a'], {str(tmp_path / 'c.png')!r}, 'title');"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] and (tmp_path / "c.png").exists()
