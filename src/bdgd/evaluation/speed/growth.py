"""How time and memory grow: a few points for each quantity, and the exponent of the power law through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bdgd.data import GaussianNoise, Scans, random_ellipses, simulate
from bdgd.evaluation.speed.measuring import KeptForBackward, Row, peak_memory, slope
from bdgd.evaluation.speed.sampling import cascade
from bdgd.evaluation.timing import Job, seconds_of
from bdgd.inference import reconstruct
from bdgd.keyed import keyed_generator
from bdgd.models import DeepGradientDescent, LearnedPrimalDual
from bdgd.operators import ParallelBeam, RayTransform
from bdgd.training import finetune_jointly, train_directly, train_greedily

#: Calls at every point, after one that does not count: at least and at most so many, as long as all points together take so many seconds.
LEAST, MOST, SECONDS = 2, 10, 6.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The points of every curve, and what is held fixed: large enough that the time to start a call does not count."""

    size: int  # pixels on a side
    images: Sequence[int]
    draws: Sequence[int]
    blocks: Sequence[int]  # of sampling; many, since the first one's features are computed once for all draws
    trained_blocks: Sequence[int]
    trained_images: int
    trained_epochs: int
    sides: Sequence[int]
    views: Sequence[int]
    projected: int  # images that are projected together
    together: int  # images where draws or blocks vary
    fixed: int  # draws and blocks where they do not vary


GPU = Sizes(
    size=128,
    images=(512, 1024, 2048, 4096),  # 64 to 512 take 55 to 275 ms, of which 22 do not depend on the number
    draws=(200, 400, 800, 1600),
    blocks=(10, 20, 40),
    trained_blocks=(2, 4, 8),
    trained_images=4096,
    trained_epochs=1,
    sides=(256, 362, 512),
    views=(60, 120, 240),
    projected=64,
    together=32,
    fixed=8,
)
CPU = Sizes(
    size=64,
    images=(8, 16, 32),
    draws=(32, 64, 128),  # whole groups, see sampling.CPU_DRAWS
    blocks=(20, 40, 80),
    trained_blocks=(2, 4, 8),
    trained_images=64,
    trained_epochs=1,
    sides=(128, 181, 256),
    views=(30, 60, 120),
    projected=8,
    together=2,
    fixed=2,
)


def growth_rows(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Time against images, draws and blocks of sampling, blocks of training, pixels and views of the projector; memory against K."""

    def sampling(images: int, draws: int, blocks: int) -> Job:
        model, y = cascade(device, images, blocks, sizes.size)
        return partial(reconstruct, model, y, draws)

    many, few = sizes.fixed * 4, sizes.fixed
    time_of = partial(_times, device)
    yield time_of("sampling", "images", sizes.images, lambda n: sampling(n, few, few))
    yield time_of("sampling", "draws", sizes.draws, lambda n: sampling(sizes.together, n, few))
    yield time_of("sampling", "blocks", sizes.blocks, lambda n: sampling(sizes.together, many, n))
    scans = _scans(device, sizes.trained_images, sizes.size)
    yield time_of("greedy training", "blocks", sizes.trained_blocks, lambda k: _greedy(scans, k, sizes.trained_epochs))
    yield time_of("projector", "pixels", [n * n for n in sizes.sides], lambda p: _projector(device, sizes, round(p**0.5)))
    yield time_of("projector", "views", sizes.views, lambda n: _projector(device, sizes, sizes.sides[-1], n))
    for name, training in (("greedy training", _greedy), ("joint fine-tuning", _joint), ("learned primal-dual", _direct)):
        points = [(blocks, _memory(training(scans, blocks), device)) for blocks in sizes.trained_blocks]
        yield _curve(name, "blocks", "bytes", points)


def _times(device: torch.device, what: str, against: str, values: Sequence[int], prepare: Callable[[int], Job]) -> Row:
    """The shortest of some calls at every point, taken in turn so that a disturbance does not hit one point alone."""
    jobs = [prepare(value) for value in values]
    for job in jobs:
        job()
    rounds: list[list[float]] = []
    while len(rounds) < LEAST or (len(rounds) < MOST and sum(map(sum, rounds)) < SECONDS):
        rounds.append([seconds_of(job, device) for job in jobs])
    return _curve(what, against, "seconds", list(zip(values, map(min, zip(*rounds, strict=True)), strict=True)))


def _curve(what: str, against: str, measured: str, points: Sequence[tuple[int, float]]) -> Row:
    return {"what": what, "against": against, "measured": measured, "points": points, "slope": slope(points)}


def _projector(device: torch.device, sizes: Sizes, side: int, views: int | None = None) -> Job:
    """A forward and an adjoint, by the strategy that large images get on the device."""
    strategy = "matrix-free" if device.type == "cuda" else "matrix"
    A = RayTransform(ParallelBeam.sparse(image_size=side, views=views or sizes.views[-1]), device, strategy=strategy)
    x = torch.rand(sizes.projected, *A.domain_shape, device=device)
    return lambda: A.T(A(x))


def _scans(device: torch.device, images: int, size: int) -> Scans:
    A = RayTransform(ParallelBeam.sparse(image_size=size), device)
    x = random_ellipses(images, size, generator=keyed_generator(0, "bench images"), device=device)
    return simulate(A, x, GaussianNoise(0.01), generator=keyed_generator(0, "bench noise")).to(device)


def _operator(scans: Scans) -> RayTransform:
    assert scans.geometry is not None
    return RayTransform(scans.geometry, scans.sinograms.device)


def _greedy(scans: Scans, blocks: int, epochs: int = 1) -> Job:
    """Some epochs for each block; fresh ones, since a block that starts from another may be trained twice."""
    model = DeepGradientDescent(_operator(scans), blocks)

    def job() -> None:
        train_greedily(model, scans, epochs=epochs, initialise="fresh")

    return job


def _joint(scans: Scans, blocks: int) -> Job:
    model = DeepGradientDescent(_operator(scans), blocks)

    def job() -> None:
        finetune_jointly(model, scans[:16], epochs=1)

    return job


def _direct(scans: Scans, blocks: int) -> Job:
    model = LearnedPrimalDual(_operator(scans), blocks)

    def job() -> None:
        train_directly(model, scans[:16], epochs=1)

    return job


def _memory(job: Job, device: torch.device) -> float:
    """The most bytes of a training: of all tensors on a GPU, of what is kept for the gradient elsewhere."""
    if device.type == "cuda":
        with peak_memory(device) as peak:
            job()
        return float(peak.bytes or 0)
    with KeptForBackward() as kept:
        job()
    return float(kept.bytes)
