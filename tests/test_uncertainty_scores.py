"""Error bars scored over a set: posteriors whose scores are known, kinds of pixels, figures, and the command that prints them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from torch import Tensor
from toys import MODELS, small_model, small_transform
from typer.testing import CliRunner

from bdgd.apps.cli import app
from bdgd.checks import InputError
from bdgd.data import GaussianNoise, Scans, named_generator, random_ellipses, simulate
from bdgd.evaluation import Method, remembering, save_figure, score_uncertainty, uncertainty_figure
from bdgd.evaluation.strata import strata
from bdgd.inference import reconstruct
from bdgd.metrics import auroc, ause, coverage, nll, student_t_nll
from bdgd.models import DeepGradientDescent

EPISTEMIC, ALEATORIC = 0.03, 0.02  # standard deviations
DRAWS = 12


@dataclass
class Known:
    """All that a posterior has to have, and no more: truth = mean + one common error of each image + noise of each pixel."""

    mean: Tensor
    seed: int

    @property
    def epistemic(self) -> Tensor:
        return torch.stack(list(self.draws())).var(0)

    @property
    def aleatoric(self) -> Tensor:
        return torch.full_like(self.mean, ALEATORIC**2)

    @property
    def std(self) -> Tensor:
        return torch.full_like(self.mean, math.hypot(EPISTEMIC, ALEATORIC))

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        half = NormalDist().inv_cdf(0.5 + level / 2) * self.std
        return self.mean - half, self.mean + half

    def draws(self) -> Iterator[Tensor]:
        shifts = torch.randn(DRAWS, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return (self.mean + EPISTEMIC * shift for shift in (shifts - shifts.mean()) / shifts.std())


def known_scans(count: int = 6, size: int = 40) -> tuple[Scans, Callable[[Tensor], Known]]:
    """Scans whose sinograms are the posterior's mean, so that a function of the sinogram can give it back."""
    generator = torch.Generator().manual_seed(0)
    truth = random_ellipses(count, size, generator=generator).double()
    shift = EPISTEMIC * torch.randn(count, 1, 1, 1, generator=generator, dtype=torch.float64)
    mean = truth - shift - ALEATORIC * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    return Scans(mean, None, truth), lambda y: Known(y, 5)


def model_scans(model: Any, count: int = 3) -> Scans:
    images = random_ellipses(count, 16, generator=torch.Generator().manual_seed(0))
    return simulate(model.A, images, GaussianNoise(0.01), generator=torch.Generator().manual_seed(1))


# Kinds of pixels ---------------------------------------------------------------------------------------------------------


def test_kinds_of_pixels() -> None:
    truth = torch.zeros(1, 1, 4, 5)
    truth[..., 1:3, 1:3] = 0.5
    truth[..., 0, 4] = 1e-7  # too little to be anything
    kinds = {name: mask[0, 0].int().tolist() for name, mask in strata(truth).items()}
    assert kinds["object"] == truth[0, 0].gt(0.1).int().tolist()
    assert kinds["background"] == truth[0, 0].lt(0.1).int().tolist()
    assert kinds["edges"] == [[0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 1, 0, 0]]
    assert sum(map(sum, kinds["all"])) == 20


def test_a_line_of_one_pixel_is_an_edge() -> None:
    truth = torch.zeros(1, 1, 5, 5)
    truth[..., 2, :] = 1.0
    assert strata(truth)["edges"][0, 0].int().tolist() == [[0] * 5, [1] * 5, [1] * 5, [1] * 5, [0] * 5]


# Scores ------------------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_each_metric() -> None:
    scans, posterior_of = known_scans()
    found = score_uncertainty(posterior_of, scans)
    assert scans.images is not None
    posterior, masks = posterior_of(scans.sinograms), strata(scans.images)
    assert set(found.strata) == set(masks) and found.images == 6
    for name, stratum in found.strata.items():
        mask = masks[name]
        pixels, errors = mask.sum((1, 2, 3)), (scans.images - posterior.mean)[mask]
        assert stratum.pixels == int(pixels.sum())
        assert stratum.rmse == pytest.approx(float(errors.square().mean().sqrt()))
        assert stratum.mae == pytest.approx(float(errors.abs().mean()))
        assert stratum.nll == pytest.approx(float((nll(posterior, scans.images, mask) * pixels).sum() / pixels.sum()))
        assert stratum.nll_constant == pytest.approx(float(-torch.distributions.Normal(0, stratum.rmse).log_prob(errors).mean()))
        assert stratum.squared_z == pytest.approx(float((errors / posterior.std[mask]).square().mean()))
        for interval in stratum.intervals:
            assert interval.coverage_per_image == pytest.approx(coverage(posterior, scans.images, interval.level, mask).tolist())
        assert stratum.epistemic_part == pytest.approx(EPISTEMIC**2 / (EPISTEMIC**2 + ALEATORIC**2))
        assert stratum.error_auroc == pytest.approx(0.5)  # a constant std finds nothing
    assert found.ause_per_image == pytest.approx(ause(posterior, scans.images).tolist())
    assert [interval.level for interval in found.strata["all"].intervals] == [0.5, 0.68, 0.9, 0.95]


def test_patches_know_that_errors_are_common() -> None:
    """In closed form: the covariance of a patch of n pixels is EPISTEMIC^2 everywhere plus ALEATORIC^2 on the diagonal."""
    scans, posterior_of = known_scans()
    found = score_uncertainty(posterior_of, scans).strata["all"]
    assert scans.images is not None and list(found.patch_nll) == [2, 4, 8]
    n = 64
    covariance = EPISTEMIC**2 * torch.ones(n, n).double() + ALEATORIC**2 * torch.eye(n).double()
    normal = torch.distributions.MultivariateNormal(torch.zeros(n).double(), covariance)
    errors = (scans.images - scans.sinograms).unfold(2, 8, 8).unfold(3, 8, 8).reshape(-1, n)
    assert found.patch_nll[8] == pytest.approx(-float(normal.log_prob(errors).mean()) / n, rel=1e-6)
    assert found.patch_nll[8] < found.patch_nll[2] - 0.1 < found.nll


def test_the_result_does_not_depend_on_the_batch() -> None:
    scans, posterior_of = known_scans()
    shown: list[int] = []
    one, all_ = (
        score_uncertainty(posterior_of, scans, batch=batch, report=lambda done, _: shown.append(done)).to_dict() for batch in (1, 6)
    )
    assert shown == [1] * 6 + [6]
    assert json.dumps(one["strata"]["edges"]["intervals"]) == json.dumps(all_["strata"]["edges"]["intervals"])
    for name in ("nll", "crps", "draws_crps", "ause", "ence", "uce", "error_auroc", "patch_nll"):
        assert one["strata"]["object"][name] == pytest.approx(all_["strata"]["object"][name], rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_scored(name: str) -> None:
    model = small_model(name)
    found = score_uncertainty(model, model_scans(model), draws=4, patches=(2,))
    values = found.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False))["strata"]["all"]["pixels"] == 3 * 16 * 16
    assert values["strata"]["all"]["patch_nll"].keys() == {2}


def test_scores_do_not_depend_on_the_unit_of_the_images() -> None:
    found = []
    for unit in (1.0, 2.0**-30):
        model = DeepGradientDescent(small_transform(), blocks=2, value_scale=unit)
        model.load_state_dict(small_model().state_dict())
        scans = model_scans(small_model())
        assert scans.images is not None
        scans = replace(scans, sinograms=unit * scans.sinograms, images=unit * scans.images)
        kinds = score_uncertainty(model, scans, draws=4, patches=(2,)).strata
        found.append(
            {name: (s.pixels, s.rmse / unit, s.squared_z, s.error_auroc, s.ause, s.constant_widths[0] / unit) for name, s in kinds.items()}
        )
    assert found[0].keys() == found[1].keys() == {"all", "object", "background", "edges"}
    for name, values in found[0].items():
        assert found[1][name] == pytest.approx(values, rel=1e-4)


def test_without_patches_no_draw_is_made_again() -> None:
    scans, posterior_of = known_scans(2)

    class Once(Known):
        epistemic = Known.aleatoric

        def draws(self) -> Iterator[Tensor]:
            raise AssertionError("a draw was made")

    found = score_uncertainty(lambda y: Once(y, 5), scans, patches=()).strata["all"]
    assert found.patch_nll == {} and found.draws_crps is None
    assert found.nll == score_uncertainty(posterior_of, scans).strata["all"].nll


def test_another_density_can_be_scored() -> None:
    scans, posterior_of = known_scans(2)
    found = score_uncertainty(posterior_of, scans, nll=student_t_nll(4.0)).strata["all"]
    assert scans.images is not None
    posterior = posterior_of(scans.sinograms)
    assert found.nll == pytest.approx(float(student_t_nll(4.0)(posterior.mean, posterior.std, scans.images).mean()))


def test_an_abnormality_is_looked_for_in_the_std() -> None:
    model = small_model()
    scans = model_scans(model)
    abnormal = torch.zeros(3, 1, 16, 16, dtype=torch.bool)
    abnormal[:, :, 4:9, 5:8] = True
    found = score_uncertainty(model, scans, draws=6, patches=(), abnormal=abnormal)
    std = reconstruct(model, scans.sinograms, 6, generator=named_generator("draws", 0)).std
    assert found.abnormality_auroc_per_image == pytest.approx(auroc(std, abnormal).tolist())
    together = [tensor.transpose(0, 2).reshape(1, 1, 16, -1) for tensor in (std, abnormal)]
    assert found.abnormality_auroc == pytest.approx(float(auroc(*together)))
    with pytest.raises(InputError, match="mask is empty"):
        score_uncertainty(model, scans, draws=2, abnormal=torch.zeros_like(abnormal))


def test_what_cannot_be_scored_is_said() -> None:
    scans, posterior_of = known_scans(2)
    with pytest.raises(InputError, match="these scans have none"):
        score_uncertainty(posterior_of, Scans(scans.sinograms, None))
    with pytest.raises(InputError, match="level must lie between 0 and 1"):
        score_uncertainty(posterior_of, scans, levels=(95,))
    with pytest.raises(InputError, match="the std of the posterior must be finite"):
        untrained = small_model("primal_dual")
        untrained.log_noise.fill_(math.nan)
        score_uncertainty(untrained, model_scans(untrained), draws=1)


def test_remembered_posteriors_are_made_once() -> None:
    scans, posterior_of = known_scans(4)
    made: list[int] = []

    def posterior(y: Tensor) -> Known:
        made.append(len(y))
        return posterior_of(y)

    method = remembering(Method(lambda y: posterior(y).mean, posterior=posterior))
    assert method.posterior is not None
    for _ in range(2):
        assert torch.equal(method.reconstruct(scans.sinograms[:3]), scans.sinograms[:3])
        assert torch.equal(method.posterior(scans[:3].sinograms).mean, scans.sinograms[:3])
        assert torch.equal(method.reconstruct(scans.sinograms[1:4]), scans.sinograms[1:4])
    assert made == [3, 3]


# Figures -----------------------------------------------------------------------------------------------------------------


def test_figures_show_the_scores(tmp_path: Path) -> None:
    scans, posterior_of = known_scans()
    kinds = score_uncertainty(posterior_of, scans, patches=()).strata
    figure = uncertainty_figure(kinds, "known")
    reliability, calibration, sparsification = figure.axes
    curves = {str(line.get_label()): line for line in reliability.get_lines()}
    for name, stratum in kinds.items():
        assert list(curves[name].get_ydata()) == pytest.approx([100 * interval.coverage for interval in stratum.intervals])  # type: ignore[arg-type]
    groups = {str(line.get_label()): line for line in calibration.get_lines()}
    assert list(groups["all"].get_xdata()) == list(kinds["all"].reliability.predicted)  # type: ignore[arg-type]
    lines = sparsification.get_lines()
    assert len(lines) == 2 * len(kinds) and all(line.get_ydata()[0] == pytest.approx(1) for line in lines)  # type: ignore[index]
    save_figure(figure, tmp_path / "u.png")
    assert imread(tmp_path / "u.png")[..., :3].std() > 0.01
    with pytest.raises(InputError, match="nothing to draw"):
        uncertainty_figure({})


# The page ----------------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "uncertainty.md").read_text()
    model = small_model()
    scans = model_scans(model)
    posterior = reconstruct(model, scans.sinograms, 3)
    assert scans.images is not None
    names: dict[str, Any] = {"model": model, "scans": scans, "posterior": posterior, "truth": scans.images, "mask": scans.images > 0}
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(first.replace("(model, scans)", "(model, scans, draws=3)"), names)
    exec(second, names)
    assert names["metric"].result().pooled == pytest.approx(names["scores"].strata["object"].nll, rel=0.2)


# The command -------------------------------------------------------------------------------------------------------------


def test_evaluate_prints_and_writes_how_honest_error_bars_are(tmp_path: Path) -> None:
    files = ("-o", str(tmp_path / "e.json"), "--figure", str(tmp_path / "u.png"))
    options = ("--images", "2", "--draws", "2", "--uncertainty", "--device", "cpu", *files)
    result = CliRunner().invoke(app, ["evaluate", "fbp", "sparse30-mfvi", *options])
    assert result.exit_code == 0, result.output
    assert "fbp has no error bars" in result.output and "draws 2" in result.output
    written = json.loads((tmp_path / "e.json").read_text())["methods"]
    assert "uncertainty" not in written["fbp"] and (tmp_path / "u.png").stat().st_size > 10_000
    found = written["sparse30-mfvi"]["uncertainty"]
    assert set(found) == {"ellipses", "shepp_logan"}
    for scores in found.values():  # the images of both tables are the same
        mean_square = scores["strata"]["all"]["rmse"] ** 2
        psnr = "ellipses_psnr" if scores is found["ellipses"] else "shepp_logan_psnr"
        assert -10 * math.log10(mean_square) == pytest.approx(written["sparse30-mfvi"][psnr], abs=1e-4)
    edges = found["ellipses"]["strata"]["edges"]
    assert f"{100 * edges['intervals'][2]['coverage']:.1f}" in result.output and f"{edges['nll']:.2f}" in result.output


def test_a_figure_needs_error_bars(tmp_path: Path) -> None:
    for options, expected in (((), "add --uncertainty"), (("--uncertainty",), "none of the methods has error bars")):
        arguments = ["evaluate", "fbp", "--images", "2", "--device", "cpu", "--figure", str(tmp_path / "u.png"), *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and expected in result.output
