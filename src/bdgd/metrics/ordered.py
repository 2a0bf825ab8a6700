"""Sums over pixels in the order of a key such as the std, over a whole set, in memory that does not grow with it.

Fixed bins will not do: where a constant aleatoric variance outweighs the rest, all that tells one pixel's std from
another's lies in its fourth digit. So bins follow the data: pixels are kept until there are too many, then neighbours in
the order of the key are joined to groups of about equally many pixels. Equal keys always stay together.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROOM = 250_000  # pixels kept before they are joined: exact up to here
_GROUPS = 20_000  # what they are joined to


class OrderedSums:
    """Counts and sums of C values per pixel, by growing key."""

    def __init__(self, values: int, *, room: int = _ROOM, groups: int = _GROUPS):
        self.values, self.room, self.most = values, room, groups
        self._keys: list[Tensor] = []
        self._sums: list[Tensor] = []  # each (N, 1 + C), the pixels first

    def add(self, key: Tensor, *values: Tensor) -> None:
        """key and C values, each (N,), float64 on the CPU."""
        self._append(key, torch.stack([torch.ones_like(key), *values], dim=1))

    def merge(self, other: OrderedSums) -> None:
        for key, sums in zip(other._keys, other._sums, strict=True):
            self._append(key, sums)

    def result(self) -> Tensor:
        """(1 + C, G) pixels and sums of the groups, by growing key."""
        if not self._keys:
            return torch.zeros(1 + self.values, 0, dtype=torch.float64)
        return self._joined(torch.cat(self._keys), torch.cat(self._sums), self.room)[1].T

    def _append(self, key: Tensor, sums: Tensor) -> None:
        self._keys.append(key)
        self._sums.append(sums)
        if sum(map(len, self._keys)) > self.room:
            keys, joined = self._joined(torch.cat(self._keys), torch.cat(self._sums), self.most)
            self._keys, self._sums = [keys], [joined]

    def _joined(self, key: Tensor, sums: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """At most `most` groups: the mean key of each, and its sums."""
        number = group_numbers(key, sums[:, 0], most)
        groups = int(number.max()) + 1 if len(number) else 0
        weighted = torch.cat([(key * sums[:, 0])[:, None], sums], dim=1)
        total = torch.zeros(groups, weighted.shape[1], dtype=torch.float64).index_add_(0, number, weighted)
        return total[:, 0] / total[:, 1], total[:, 1:]


def group_numbers(key: Tensor, pixels: Tensor, most: int) -> Tensor:
    """The group of each entry, numbered by growing key without gaps: one for each distinct key, or `most` of about equally many pixels."""
    distinct, number = key.unique(return_inverse=True)
    if len(distinct) <= most:
        return number
    counts = torch.zeros(len(distinct), dtype=torch.float64).index_add_(0, number, pixels)
    middle = (counts.cumsum(0) - counts / 2) / counts.sum()  # of each key, in parts of all pixels
    _, group = (middle * most).long().clamp(0, most - 1).unique(return_inverse=True)
    return group[number]
