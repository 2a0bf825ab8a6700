"""The projector: forward and adjoint of every strategy beside the projectors of others, images per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from bdgd.evaluation.speed.measuring import Row, in_use, peak_memory, timed
from bdgd.evaluation.speed.peers import ASTRA_GPU, PEERS, Missing, make_peer
from bdgd.operators import LinearOperator, ParallelBeam, RayTransform, adjoint_mismatch

#: Pixels on a side with views; images of a batch.
CASES = ((128, 30), (256, 60), (512, 360))
BATCHES = (1, 16, 64, 1000)
#: Seconds beyond which a call on a larger batch is left out, and the part of a GPU's memory that it may take. From so many images on
#: time is linear in them; below, a large part of it is for what all images share, and a larger batch is tried.
LIMIT, SHARE, LINEAR_FROM = 2.0, 0.3, 16


def projector_rows(device: torch.device, size: int, views: int, batches: Sequence[int] = BATCHES, limit: float = LIMIT) -> Iterator[Row]:
    """One row for each strategy, peer and batch: rates in images per second, adjoint mismatch, bytes beyond input and output."""
    geometry = ParallelBeam.sparse(image_size=size, views=views)
    case = {"size": size, "views": views}
    A = RayTransform(geometry, device)
    chosen = A.strategy
    other = "matrix-free" if chosen == "matrix" else "matrix" if device.type == "cuda" else None  # chosen since the matrix does not fit
    yield from _strategy_rows(A, case | {"default": True}, batches, limit)
    del A
    if other:
        yield from _strategy_rows(RayTransform(geometry, device, strategy=other), case | {"default": False}, batches, limit)
    for name in PEERS:
        yield from _peer_rows(name, geometry, device, case, batches, limit)


def _strategy_rows(A: RayTransform, row: Row, batches: Sequence[int], limit: float) -> Iterator[Row]:
    mismatch = adjoint_mismatch(A, trials=1)  # also makes the stored transpose
    yield from _over_batches(A, row | {"by": f"bdgd, {A.strategy}", "mismatch": mismatch}, batches, limit)


def _peer_rows(name: str, geometry: ParallelBeam, device: torch.device, case: Row, batches: Sequence[int], limit: float) -> Iterator[Row]:
    """A peer on the CPU is timed on one image: it takes them one by one. A missing one gets one row that says why."""
    row = case | {"by": name, "default": False}
    try:
        peer = make_peer(name, geometry, device)
        mismatch = adjoint_mismatch(peer, trials=1)
        if peer.device.type == "cpu":
            yield _measure(peer, 1, row | {"mismatch": mismatch, "note": "per image"})
        elif name == ASTRA_GPU:  # must know the number of slices
            for batch in batches:
                if _fits(peer, batch):
                    yield _measure(make_peer(name, geometry, device, batch), batch, row | {"mismatch": mismatch})
        else:
            yield from _over_batches(peer, row | {"mismatch": mismatch}, batches, limit)
    except Missing as reason:
        yield row | {"images": 1, "forward": None, "adjoint": None, "note": f"missing: {reason}"}
    except Exception as error:  # a peer that breaks on the way
        yield row | {"images": 1, "forward": None, "adjoint": None, "note": f"failed: {type(error).__name__}: {str(error)[:120]}"}


def _over_batches(A: LinearOperator, row: Row, batches: Sequence[int], limit: float) -> Iterator[Row]:
    """The operator on ever larger batches, until a call would take too long or too much memory."""
    before, seconds = 1, 0.0  # the last batch and its slower call
    for batch in batches:
        expected = seconds if batch <= LINEAR_FROM else seconds * batch / before
        if expected > limit or not _fits(A, batch):
            return
        measured = _measure(A, batch, row)
        before, seconds = batch, batch / min(measured["forward"], measured["adjoint"])
        yield measured


def _measure(A: LinearOperator, batch: int, row: Row) -> Row:
    """Both directions on one batch. Nothing but the operator is on a GPU before it, so what is held there is the operator's."""
    device = A.device
    held = in_use(device)
    x = torch.rand(batch, *A.domain_shape, device=device)
    with torch.no_grad():
        y = A(x)
        rates = {name: batch / timed(job, device) for name, job in (("forward", partial(A, x)), ("adjoint", partial(A.T, y)))}
        extra = [_beyond_output(A, x), _beyond_output(A.T, y)]
    memory = max(extra) + held if device.type == "cuda" and row["by"] != ASTRA_GPU else None  # ASTRA's own memory is not PyTorch's
    return row | {"images": batch} | rates | {"memory": memory}


def _beyond_output(A: LinearOperator, x: torch.Tensor) -> int:
    """Bytes at the peak of one call beyond its result."""
    with peak_memory(A.device) as peak:
        result = A(x)
    return (peak.bytes or 0) - result.untyped_storage().nbytes()


def _fits(A: LinearOperator, batch: int) -> bool:
    """Whether a batch with its results and the copies in between takes no more than its share of the GPU's memory; on a CPU, 2 GB."""
    values = sum(torch.Size(shape).numel() for shape in (A.domain_shape, A.range_shape))
    room = SHARE * torch.cuda.mem_get_info(A.device)[0] if A.device.type == "cuda" else 2e9
    return 4 * values * batch * 4 <= room
