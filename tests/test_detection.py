"""AUROC: against a count over all pairs, its symmetries, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bdgd.checks import InputError
from bdgd.metrics import auroc


def by_pairs(score: Tensor, inside: Tensor) -> float:
    """The definition: over all pairs of a pixel inside and one outside, the part in which the one inside scores higher; ties half."""
    difference = score[inside][:, None] - score[~inside][None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([2, 5, 1000]))
def test_it_is_the_count_over_all_pairs(seed: int, batch: int, levels: int) -> None:
    """Few levels: many ties."""
    g = torch.Generator().manual_seed(seed)
    score = torch.randint(0, levels, (batch, 1, 5, 7), generator=g).float()
    mask = torch.rand(batch, 1, 5, 7, generator=g) < 0.4
    mask[:, :, 0, 0], mask[:, :, 0, 1] = True, False
    expected = [by_pairs(score[i], mask[i]) for i in range(batch)]
    assert auroc(score, mask).tolist() == pytest.approx(expected, abs=1e-12)


def test_it_knows_perfect_reversed_and_blind_detectors() -> None:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1:3, 1:3] = True
    found = mask.float()[None, None]
    score = torch.cat((found, -found, torch.ones(1, 1, 4, 4)))
    assert auroc(score, mask).tolist() == [1.0, 0.0, 0.5]
    assert torch.equal(auroc(torch.exp(3 * score) - 7, mask), auroc(score, mask)), "only the order counts"


def test_pixels_that_do_not_count_change_nothing(generator: torch.Generator) -> None:
    score, mask = torch.rand(2, 1, 6, 6, generator=generator), torch.rand(6, 6, generator=generator) < 0.5
    among = torch.rand(6, 6, generator=generator) < 0.6
    expected = [by_pairs(score[i, 0][among], mask[among]) for i in range(2)]
    assert auroc(score, mask, among).tolist() == pytest.approx(expected, abs=1e-12)


def test_what_cannot_be_asked() -> None:
    score, everywhere = torch.rand(1, 1, 3, 3), torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(InputError, match="9 pixels that count lie in the mask and 0 outside"):
        auroc(score, everywhere)
    with pytest.raises(InputError, match="boolean"):
        auroc(score, everywhere.float())
    with pytest.raises(InputError, match="finite"):
        auroc(score * float("nan"), everywhere)
    with pytest.raises(InputError, match="shape"):
        auroc(score[0, 0], everywhere)
