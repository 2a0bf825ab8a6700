"""Units of length by name, so that an image can say what its values are per."""

from __future__ import annotations

import math

from bdgd.checks import InputError, require_positive

_MILLIMETRES = {"nm": 1e-6, "um": 1e-3, "µm": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1000.0, "in": 25.4}


def millimetres(unit: str) -> float:
    """The length of a unit such as "mm", or of a multiple such as "0.3 mm", in millimetres."""
    number, _, name = unit.strip().rpartition(" ") if isinstance(unit, str) else ("", "", "")
    name = name.replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")  # both look alike
    if name not in _MILLIMETRES:
        raise InputError(f"unit must be one of {', '.join(_MILLIMETRES)}, got {unit!r}; leave it out where the length has no unit")
    try:
        factor = float(number or 1)
    except ValueError:
        raise InputError(f"the number in a unit must be one such as 0.3, got {number!r}") from None
    return _MILLIMETRES[name] * require_positive(factor, "the number in a unit")


def shorter_unit(unit: str | None, factor: float) -> str | None:
    """The unit in which lengths are `factor` times as many: shorter_unit("cm", 10) is "mm", shorter_unit("mm", 2) is "0.5 mm"."""
    if unit is None or factor == 1.0:
        return unit
    length = millimetres(unit) / factor
    for name, known in _MILLIMETRES.items():
        if math.isclose(length, known, rel_tol=1e-6):
            return name
    return f"{length:.9g} mm"
