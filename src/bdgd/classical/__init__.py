"""Reconstruction without learning: one function per method."""

from bdgd.classical.fbp import fbp

__all__ = ["fbp"]
