"""Moments of a stream of tensors in one pass; memory does not grow with its length."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Moments:
    """Mean and variance by Welford's update, in float64; with `fourth` also the fourth moment, which says how sure the variance is."""

    def __init__(self, fourth: bool = False) -> None:
        self.count, self.fourth = 0, fourth

    def add(self, value: Tensor) -> None:
        self.count, self.dtype, value = self.count + 1, value.dtype, value.double()
        if self.count == 1:
            self._mean, self._squares = value, torch.zeros_like(value)
            self._cubes = self._fourths = torch.zeros_like(value) if self.fourth else value
            return
        n, step = self.count, value - self._mean
        part = step / n
        grown = step * part * (n - 1)
        if self.fourth:  # Pebay's update of the higher sums, from those before this value
            self._fourths = self._fourths + grown * part**2 * (n**2 - 3 * n + 3) + 6 * part**2 * self._squares - 4 * part * self._cubes
            self._cubes = self._cubes + grown * part * (n - 2) - 3 * part * self._squares
        self._mean = self._mean + part
        self._squares = self._squares + grown

    def mean(self) -> Tensor:
        return self._mean.to(self.dtype)

    def variance(self) -> Tensor:
        """S - 1 in the denominator; 0 for one draw."""
        return (self._squares / max(self.count - 1, 1)).to(self.dtype)

    def error_of_std(self) -> float:
        """The relative Monte-Carlo error of the standard deviation of the values seen so far, weighted by variance over all pixels.

        The variance of a sample variance is (kappa - 1) / S of its square, kappa the kurtosis, and the standard deviation's
        relative error is half the variance's: for Gaussian values sqrt(1 / (2 S)).
        """
        assert self.fourth, "the error of the standard deviation needs the fourth moment"
        variance = self._squares / self.count
        if self.count < 2 or float(variance.sum()) == 0:
            return math.inf
        excess = (self._fourths / self.count - variance**2).clamp(min=0).sum() / (variance**2).sum()
        return 0.5 * math.sqrt(float(excess) / self.count)
