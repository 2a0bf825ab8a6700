"""`report.html`: nothing from elsewhere, every picture whole, every text from a file harmless, every number the posterior's."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refusal
from toys import small_model, small_transform, some_sinograms

from bdgd.apps.outputs import Grid
from bdgd.apps.pictures import Colours, escaped, marks, png, profile, spread_colours
from bdgd.apps.places import Disc, Line, Places, default_places, read_places
from bdgd.apps.report import report, rounded
from bdgd.apps.subject import Subject, Thumbnail
from bdgd.classical import fbp
from bdgd.inference import Alarm, Posterior, reconstruct
from bdgd.inference.residual import residual
from bdgd.inference.witnesses import IN_WORDS, SHARES

A = small_transform(size=(16, 12), pixel_size=0.5)
EVIL = '<script>alert(1)</script><img src="http://x.org/a.png" onerror=alert(2)> & "quotes" \udcff'
PNG = "data:image/png;base64,"
VOID = {"meta", "img", "br", "line", "circle", "rect", "polyline", "polygon"}


class Page(HTMLParser):
    """What a browser would find: tags with attributes, the text, and whether every tag is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.open = "", list[str]()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def subject() -> Subject:
    y = some_sinograms(A, 1)
    posterior = reconstruct(small_model(A=A), y, 6, generator=torch.Generator().manual_seed(0))
    return Subject(
        name="scan.h5",
        geometry=A.geometry,
        grid=Grid(1, (16, 12), 0.5, unit="mm"),
        posterior=posterior,
        fbp=fbp(A, y),
        residual=residual(A, posterior.mean, y, None),
        places=default_places(A.geometry),
        level=0.9,
        origin={"model": "m", "seed": 0, "draws": 6, "scan_sha256": "ab" * 32, "model_provenance": {"preset": "p", "seconds": 3}},
        command="bdgd reconstruct scan.h5",
        truth=torch.rand(1, *A.domain_shape, generator=torch.Generator().manual_seed(1)),
    )


def test_the_page_needs_nothing_from_elsewhere(subject: Subject) -> None:
    text = report(subject)
    page = Page(text)
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert name == "src" or not re.search(r"https?:|//", value or ""), (name, value)
            assert not name.startswith("on")
        assert attributes.get("href") is None and (attributes.get("src") or PNG).startswith(PNG)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "@import" not in text and re.findall(r"url\((.*?)\)", text) == ["#inside", "#inside"] and "$" not in text
    metas = {
        attributes.get("name") or attributes.get("http-equiv"): attributes.get("content") for tag, attributes in page.tags if tag == "meta"
    }
    assert str(metas["viewport"]).startswith("width=device-width") and "default-src 'none'" in str(metas["Content-Security-Policy"])


def pictures(text: str) -> list[Image.Image]:
    found = [Image.open(io.BytesIO(base64.b64decode(part))) for part in re.findall(r"data:image/png;base64,([^\"]+)", text)]
    for image in found:
        image.load()
    return found


@pytest.mark.parametrize(("known", "count"), [(True, 7), (False, 5)])
def test_every_picture_decodes_and_shows_the_image(known: bool, count: int, subject: Subject) -> None:
    subject = subject if known else replace(subject, truth=None)
    text = report(subject)
    shown = pictures(text)
    assert [image.size for image in shown] == [(16, 12), (256, 1)] * count  # each with its colour bar
    mean = subject.posterior.mean[0, 0].numpy()
    grey = np.asarray(shown[2].convert("RGB"))[..., 0] / 255
    assert np.allclose(grey, mean.T[::-1] / mean.max(), atol=0.5 / 255 + 1e-3), "x to the right, y upward"
    titles = re.findall(r"<figcaption><b>(.*?)</b>", text)
    assert len(titles) == count and ("Truth" in titles) == ("Error" in titles) == known


def test_a_turned_image_is_said_where_it_is_seen(subject: Subject) -> None:
    assert "counter-clockwise" not in report(subject)
    turned = report(replace(subject, origin={**subject.origin, "rotation_degrees": 45.0}))
    lead = re.findall(r'<p class="lead">(.*?)</p>', turned)
    assert lead and lead[0].endswith("Turn the image by 45 degrees counter-clockwise to see it as the object lay.")


def test_a_standard_deviation_of_one_colour_is_explained(subject: Subject) -> None:
    shape = subject.posterior.mean.shape
    constant = replace(subject.posterior, aleatoric=torch.full(shape, 4e-4))
    assert "this model&#x27;s aleatoric part is 0.02 1/mm in every pixel" in report(replace(subject, posterior=constant))
    local = replace(subject.posterior, aleatoric=torch.linspace(1e-4, 4e-4, shape.numel()).reshape(shape))
    assert "in every pixel" not in report(replace(subject, posterior=local))


def test_the_truth_is_held_against_the_image_alike_with_and_without_a_unit(subject: Subject) -> None:
    assert subject.truth is not None
    subject = replace(subject, truth=0.05 * subject.truth)

    def told(unit: str | None) -> list[str]:
        text = Page(report(replace(subject, grid=replace(subject.grid, unit=unit)))).text
        return re.findall(r"-?[\d.]+ \(-?[\d.]+\) dB|[\d.]+% of the object's pixels", text)

    assert len(told(None)) == 2 and told(None) == told("mm")


def test_values_have_their_unit(subject: Subject) -> None:
    assert ">1/mm<" in report(subject) and "Values are in 1/mm" in report(subject)
    plain = report(replace(subject, grid=Grid(1, (16, 12), 0.5)))
    assert "/mm" not in plain and ">value<" in plain


def test_text_from_files_stays_text(subject: Subject) -> None:
    evil = replace(
        subject,
        name=EVIL,
        command=EVIL,
        grid=replace(subject.grid, unit=EVIL),
        origin={"model": EVIL, "scan": EVIL, "hardware": EVIL, "model_provenance": {"preset": EVIL}},
        places=Places((Disc(EVIL, (0.0, 0.0), 1.0),), subject.places.profile),
    )
    text = report(evil)
    page = Page(text)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in Page(report(subject)).tags}
    assert "<script>" not in text and '<img src="http' not in text and page.text.count("<script>") >= 8
    assert text.encode("utf-8")
    assert escaped(EVIL).count("&lt;") == 3


def test_the_regions_are_the_posteriors(subject: Subject) -> None:
    text = report(subject)
    rows = re.findall(r"<tr><td>(.*?)</tr>", text)
    assert len(rows) == 9
    for row, disc in zip(rows, subject.places.discs, strict=True):
        mask = disc.mask(A.geometry)
        wanted = subject.posterior.region(mask, 0.9)
        mean, std, lower, upper = (float(getattr(wanted, name)) for name in ("mean", "std", "lower", "upper"))
        assert subject.truth is not None
        truth = float(subject.truth[0, 0][mask].mean())
        cells = [disc.name, int(mask.sum()), rounded(mean, std), rounded(std, std), f"{rounded(lower, std)} to\u00a0{rounded(upper, std)}"]
        cells += [rounded(truth, std), "yes" if lower <= truth <= upper else "no"]
        assert [cell for cell in re.split(r"</?td.*?>", row) if cell][1:] == [str(cell) for cell in cells]


def test_what_was_done_to_the_scan_is_said(subject: Subject) -> None:
    assert "What was done" not in report(subject)
    assert "<li>2 dead &lt;pixels&gt;</li>" in report(replace(subject, notes=("2 dead <pixels>",)))


def test_a_stack_shows_some_of_its_slices(subject: Subject) -> None:
    assert "The stack" not in report(subject)
    few = [Thumbnail(3, torch.rand(8, 6), 0.01, 1.0), Thumbnail(9, torch.rand(8, 6), 0.02, 1.3)]
    text = report(replace(subject, grid=replace(subject.grid, slices=20), slice=9, thumbnails=few))
    assert "scan.h5, slice 9" in text and "2 of 20 slices" in text and [i.size for i in pictures(text)].count((8, 6)) == 2


def test_a_level_is_not_rounded_away(subject: Subject) -> None:
    assert "Width of the 99.5% interval" in report(replace(subject, level=0.995)) and "90% interval" in report(subject)


def test_calibrated_and_not_are_said(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not calibrated" in report(subject)
    monkeypatch.setattr(Posterior, "calibrated", property(lambda posterior: True))
    assert "not calibrated" not in report(subject)


@pytest.mark.parametrize(
    ("light", "told"), [("green", "green: 40% of ordinary images look as unusual"), ("red", f"; by its structure: {IN_WORDS['structure']}")]
)
def test_the_alarm_is_shown_where_there_is_one(subject: Subject, light: str, told: str) -> None:
    surprises = {name: torch.tensor([9.0 if name == "structure" else 0.0]) for name in SHARES}
    ringing = Alarm((light,), torch.tensor([0.4]), surprises, surprises, 0.05, SHARES)
    assert told in report(replace(subject, alarm=ringing)) and told not in report(subject)


def test_the_first_words_say_where_error_bars_need_not_hold(subject: Subject) -> None:
    """By a red light, or by a residual that no noise explains; the sentence is that of the command line."""
    silent = {name: torch.tensor([0.0]) for name in SHARES}
    green, red = (Alarm((light,), torch.tensor([0.004]), silent, silent, 0.05, SHARES) for light in ("green", "red"))
    fine, bad = (replace(subject.residual, noise=subject.residual.rms / ratio) for ratio in (1.9, 82.0))
    ordinary = replace(subject, alarm=green, residual=fine)
    assert ordinary.doubt() == "" and "need not hold" not in report(ordinary) and "under 1% of ordinary" in report(ordinary)
    for other, told in ((replace(ordinary, alarm=red), "the alarm is red"), (replace(ordinary, residual=bad), "82 times the noise")):
        assert told in other.doubt() and escaped(other.doubt()) in report(other).split('<dl class="facts"')[0]


def test_every_witness_has_its_words() -> None:
    assert set(IN_WORDS) == set(SHARES)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_image_of_one_value_is_shown(value: float, subject: Subject) -> None:
    mean = torch.full((1, *A.domain_shape), value)
    posterior = Posterior(mean, 0 * mean, 0 * mean, 1, 0, lambda: iter([mean]))
    assert len(pictures(report(replace(subject, posterior=posterior, truth=mean)))) == 14


# Parts


@pytest.mark.parametrize(
    ("value", "std", "text"), [(0.123456, 0.0034, "0.1235"), (12.3456, 0.34, "12.35"), (1234.5, 34, "1234"), (0.5, 0.0, "0.5")]
)
def test_a_value_has_the_digits_of_its_error(value: float, std: float, text: str) -> None:
    assert rounded(value, std) == text


def test_a_picture_has_the_colours_of_its_scale() -> None:
    from matplotlib import colormaps

    image = torch.tensor([[0.0, 2.0], [1.0, -5.0]])
    rgb = np.asarray(pictures(f'"{png(image, Colours(0.0, 1.0, "magma"))}"')[0].convert("RGB"))
    low, high = ((np.array(colormaps["magma"](end)[:3]) * 255).round() for end in (0.0, 1.0))
    assert (rgb[1, 0] == low).all() and (rgb[0, 0] == high).all() and (rgb[1, 1] == high).all() and (rgb[0, 1] == low).all()
    assert spread_colours(torch.zeros(3, 3)).high == 1.0


def test_marks_lie_where_the_discs_are() -> None:
    """A disc on the centre of pixel [0, 0], the lower left one, half a pixel from both edges."""
    x, y = A.geometry.pixel_centres()
    corner = Places((Disc("a", (float(x[0]), float(y[0])), 1.0),), Line((float(x[0]), float(y[-1])), (float(x[-1]), float(y[-1]))))
    drawn = marks(corner, A.geometry)
    assert 'viewBox="0 0 16 12"' in drawn and '<circle cx="0.50" cy="11.50" r="2.00"/>' in drawn
    assert '<line x1="0.50" y1="0.50" x2="15.50" y2="0.50"/>' in drawn


def test_the_profile_is_drawn_to_scale() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    drawn = profile(x, (x - 1, x + 1), [], ("a < b", "c"))
    (points,) = re.findall(r'<polygon class="band" points="(.*?)"', drawn)
    upper = [tuple(map(float, point.split(","))) for point in points.split()][:3]
    assert upper[1][0] == pytest.approx((upper[0][0] + upper[2][0]) / 2, abs=0.1) and upper[0][1] > upper[1][1] > upper[2][1]
    assert "a &lt; b" in drawn


def test_a_line_passes_the_pixels_it_should() -> None:
    distance, i, j = default_places(A.geometry).profile.pixels(A.geometry)
    assert i.tolist() == list(range(16)) and set(j.tolist()) == {6}
    assert torch.allclose(distance, torch.arange(16, dtype=torch.float64) * 0.5)


def test_a_file_of_regions(tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_text('[[disc]]\nname = "hole"\ncentre = [1, 0.5]\nradius = 1.1\n[[disc]]\ncentre = [0, 0]\nradius = 2\n')
    places = read_places(path, A.geometry)
    assert places.discs == (Disc("hole", (1.0, 0.5), 1.1), Disc("disc 2", (0.0, 0.0), 2.0))
    assert places.profile == default_places(A.geometry).profile
    x, y = A.geometry.pixel_centres()
    wanted = [[(float(a) - 1) ** 2 + (float(b) - 0.5) ** 2 <= 1.21 for b in y] for a in x]
    assert places.discs[0].mask(A.geometry).tolist() == wanted
    path.write_text("[profile]\nstart = [0, 0]\nend = [0, 2]\n")
    assert read_places(path, A.geometry).profile == Line((0.0, 0.0), (0.0, 2.0)) and len(read_places(path, A.geometry).discs) == 9


@pytest.mark.parametrize("far", ["1e9", "1e300"])
def test_a_profile_far_outside_is_refused_before_room_is_made_for_it(far: str, tmp_path: Path) -> None:
    (tmp_path / "regions.toml").write_text(f"[profile]\nstart = [-{far}, 0.0]\nend = [{far}, 0.0]\n")
    with refusal("leaves the image; shorten it"):
        read_places(tmp_path / "regions.toml", A.geometry)


def test_regions_that_are_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "regions.toml"
    path.write_text("[[disc]]\ncentre = [0, 0]\nradius = 1e300\n")
    assert bool(read_places(path, A.geometry).discs[0].mask(A.geometry).all())
    path.write_text("x = " + "[" * 10**5)
    with refusal("is not valid TOML"):
        read_places(path, A.geometry)
