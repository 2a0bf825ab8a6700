"""Figures: the orientation of the convention, one colour bar per scale, and files that are there completely or not at all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from bdgd.checks import InputError
from bdgd.evaluation import Panel, Scale, panels, save_figure
from bdgd.evaluation.figures import save_small

DIFFERENCE = Scale("difference", -1, 1, "RdBu_r")


def test_the_first_index_runs_to_the_right_and_the_second_upward(tmp_path: Path) -> None:
    image = torch.zeros(8, 8)
    image[7, 0] = 1.0  # x at its largest, y at its smallest: bottom right
    save_figure(panels([[Panel(image, scale=Scale("value", 0, 1, "Reds_r"))]]), tmp_path / "f.png")
    picture = imread(tmp_path / "f.png")[..., :3]  # rows from top to bottom
    drawn = np.argwhere(np.abs(picture - picture[5, 5]).max(-1) > 0.2)  # all but the white margin
    (top, left), (bottom, right) = drawn.min(0), drawn.max(0)
    bottom = top + (right - left)  # the colour bar lies below the square panel
    size = (right - left) // 8

    def block(row: int, column: int) -> np.ndarray:
        values: np.ndarray = picture[top + row * size + size // 2, left + column * size + size // 2]
        return values

    assert bottom < len(picture)
    assert not np.allclose(block(7, 7), block(0, 0), atol=0.2)
    assert np.allclose(block(0, 0), block(0, 7), atol=0.05) and np.allclose(block(0, 0), block(7, 0), atol=0.05)


def test_panels_of_one_scale_share_a_colour_bar() -> None:
    image = torch.rand(6, 9)
    rows = [[Panel(image, "a"), Panel(image, "b"), Panel(image, "c", DIFFERENCE)]] * 2
    figure = panels(rows, ["first", "second"])
    titles = [axes.get_title() for axes in figure.axes]
    labels = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
    assert titles[:6] == ["a", "b", "c"] * 2
    assert labels == ["value", "difference"]
    assert [axes.get_ylabel() for axes in figure.axes[:6]] == ["first", "", "", "second", "", ""]


@pytest.mark.parametrize("high", [2.7e-6, 1.2e-4, 2.0e-4, 9.9e-4, 0.0013, 1.0])
def test_the_numbers_of_a_colour_bar_do_not_run_into_each_other(high: float) -> None:
    figure = panels([[Panel(torch.rand(8, 8) * high, scale=Scale("value", 0, high))] * 2])
    figure.canvas.draw()
    (bar,) = (axes for axes in figure.axes if axes.get_xlabel())
    boxes = [label.get_window_extent() for label in bar.get_xticklabels() if label.get_text()]
    assert len(boxes) > 2 and all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_what_lies_outside_the_scale_is_shown_by_its_arrows() -> None:
    def ends(image: torch.Tensor) -> str:
        bar = panels([[Panel(image)]]).axes[0].images[0].colorbar
        return str(bar.extend)

    assert ends(torch.tensor([[0.0, 1.0]])) == "neither"
    assert ends(torch.tensor([[-0.1, 1.0]])) == "min"
    assert ends(torch.tensor([[-0.1, 1.1]])) == "both"


@pytest.mark.parametrize(
    ("rows", "names", "expected"),
    [
        ([], (), "at least one panel"),
        ([[]], (), "at least one panel"),
        ([[1, 1], [1]], (), r"lengths \[2, 1\]"),
        ([[1]], ("a", "b"), "one name for each of the 1 rows"),
    ],
)
def test_rows_that_do_not_fit_are_an_error(rows: list[list[int]], names: tuple[str, ...], expected: str) -> None:
    panel = Panel(torch.zeros(2, 2))
    with pytest.raises(InputError, match=expected):
        panels([[panel] * sum(row[:1]) * len(row) for row in rows], names)


@pytest.mark.parametrize("image", [torch.zeros(1, 1, 4, 4), torch.full((4, 4), torch.nan), np.zeros((4, 4))])
def test_a_panel_shows_one_finite_image(image: torch.Tensor) -> None:
    with pytest.raises(InputError):
        Panel(image)


def test_a_figure_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = panels([[Panel(torch.zeros(4, 4))]])
    with pytest.raises(InputError, match="must end in one of"):
        save_figure(figure, tmp_path / "figure.doc")
    save_figure(figure, tmp_path / "figure.png")
    before = (tmp_path / "figure.png").read_bytes()

    def fail(path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half a figure")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(InputError, match="No space left on device"):
        save_figure(figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_a_place_may_stay_empty_and_a_title_stand_above() -> None:
    figure = panels([[Panel(torch.rand(6, 6), "a"), None], [None, Panel(torch.rand(6, 6), "b")]], ["first", "second"], "what it shows")
    assert [len(axes.images) for axes in figure.axes[:4]] == [1, 0, 0, 1] and figure.get_suptitle() == "what it shows"
    with pytest.raises(InputError, match="at least one panel"):
        panels([[None, None]])


def test_colour_bars_of_scales_that_share_a_column_do_not_overlap() -> None:
    image = torch.rand(6, 6)
    figure = panels([[Panel(image, "a"), Panel(image, "b", DIFFERENCE)], [Panel(image, "c", DIFFERENCE), Panel(image, "d")]])
    figure.canvas.draw()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert len(boxes) == 6  # four panels, two bars
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_small_picture_has_as_many_dots_as_fit(tmp_path: Path) -> None:
    figure = panels([[Panel(torch.rand(128, 128)) for _ in range(3)]])
    sizes = []
    for most in (300_000, 60_000):
        save_small(figure, tmp_path / "f.png", most)
        sizes.append((tmp_path / "f.png").stat().st_size)
    assert sizes[0] <= 300_000 and sizes[1] < sizes[0]
    drawn, dots = np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255, imread(tmp_path / "f.png")[..., :3]
    assert np.abs(drawn - dots).max() < 0.02, "256 colours are enough for greys"
    assert dots[0, 0].tolist() == [1, 1, 1], "white stays white"
