"""y = A x: scanner geometries, the ray transform with its exact transpose, and the algebra of linear operators."""

from bdgd.operators.geometry import FanBeam, Geometry, ParallelBeam
from bdgd.operators.geometry_files import geometry_from_dict, read_geometry
from bdgd.operators.linear import LinearOperator, adjoint_mismatch, operator_norm
from bdgd.operators.ray_transform import RayTransform
from bdgd.operators.symmetry import Symmetry, symmetries

__all__ = [
    "FanBeam",
    "Geometry",
    "LinearOperator",
    "ParallelBeam",
    "RayTransform",
    "Symmetry",
    "adjoint_mismatch",
    "geometry_from_dict",
    "operator_norm",
    "read_geometry",
    "symmetries",
]
