"""Models in files: safetensors, weights plus one JSON header with everything that builds the model again. Never pickle.

Header, under the metadata key "bdgd": format, model (class), arguments, initial, domain_shape, range_shape, geometry, provenance;
and, in files of format 2, scale_head (its arguments) and calibration, each where the model has one; in files of format 3 also correction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdgd.checks import InputError, require_device
from bdgd.classical import fbp
from bdgd.data.correction import correction_from_dict
from bdgd.models.calibration import calibration_from_dict
from bdgd.models.cascade import DeepGradientDescent, Initial
from bdgd.models.primal_dual import LearnedPrimalDual
from bdgd.models.reconstructor import Reconstructor
from bdgd.models.scale_head import ScaleHead
from bdgd.operators import Geometry, LinearOperator, RayTransform, geometry_from_dict
from bdgd.storage import replacing

#: A file has the earliest format that holds all of its model, so that older versions read what they can and refuse the rest: without
#: its error bars they would show other intervals, without its correction another image.
PLAIN, WITH_ERROR_BARS, WITH_CORRECTION = FORMATS = (1, 2, 3)
MODELS: dict[str, Callable[..., Reconstructor]] = {"DeepGradientDescent": DeepGradientDescent, "LearnedPrimalDual": LearnedPrimalDual}


def save(model: Reconstructor, path: str | Path) -> None:
    """Write the model to a safetensors file, replacing one that is there only when all is written."""
    if type(model).__name__ not in MODELS:
        raise InputError(f"save knows the models {', '.join(MODELS)}, got {type(model).__name__}")
    model.require_usable()
    geometry = model.geometry
    bars = _error_bars(model)
    correction = {} if model.correction is None else {"correction": model.correction.to_dict()}
    header = {
        "format": WITH_CORRECTION if correction else WITH_ERROR_BARS if bars else PLAIN,
        "model": type(model).__name__,
        "arguments": model.arguments(),
        "initial": "fbp" if getattr(model, "initial", fbp) is fbp else "custom",
        "domain_shape": list(model.A.domain_shape),
        "range_shape": list(model.A.range_shape),
        "geometry": geometry.to_dict() if geometry is not None else None,
        "provenance": model.provenance,
        "weights": model.fingerprint(),
        **bars,
        **correction,
    }
    write_tensors(path, model.state_dict(), header)


def load(
    source: str | Path, *, operator: LinearOperator | None = None, initial: Initial = fbp, device: torch.device | str | None = None
) -> Reconstructor:
    """The model in a file, or a shipped one by name (`bdgd.pretrained()` lists them).

    operator: an operator of one's own, which must have the shapes of the model's; needed where the model's had no geometry.
    A calibration holds for the model's own geometry and start, and is left out with another.
    device: where the operator is unless said otherwise; the CPU without an operator.
    """
    path = _find(source)
    if device is not None:
        require_device(device)
    tensors, header = read_tensors(path)
    kind, form = str(header.get("model")), header.get("format")
    if form not in FORMATS or kind not in MODELS:
        known = ", ".join(map(str, FORMATS))
        raise InputError(f"{path} is a bdgd file of format {form!r} with {kind!r}, this version reads models of format {known}")
    if operator is None and header.get("geometry") is None:
        raise InputError(f"{path} was trained on an operator without a geometry; pass it with load(path, operator=A)")
    if header.get("initial") == "custom" and initial is fbp:
        raise InputError(f"{path} was trained from a start of its own; pass the same function with load(path, initial=...)")
    try:
        if operator is None:
            operator = RayTransform(geometry_from_dict(header["geometry"]), device=device or "cpu")
        _require_shapes(path, header, operator)
        extra = {"initial": initial} if kind == "DeepGradientDescent" else {}
        model = MODELS[kind](operator, **header["arguments"], **extra)
        if header.get("scale_head") is not None:
            model.scale_head = ScaleHead(**header["scale_head"]).to(model.device)
        if header.get("correction") is not None:
            model.correction = correction_from_dict(header["correction"])
        model.load_state_dict(tensors)
        _require_whole(path, model, header)
        if header.get("calibration") is not None:
            calibration = calibration_from_dict(header["calibration"])
            same_start = header.get("initial") == "custom" or initial is fbp
            model = model.with_calibration(calibration) if same_start and calibration.fits(operator) else model
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise InputError(f"{path} does not fit this version of bdgd: {' '.join(str(error).split())[:200]}") from None
    model.provenance = header.get("provenance", {})
    return model.to(device).eval()


def _error_bars(model: Reconstructor) -> dict[str, Any]:
    """The header's entries for scale head and calibration; none for a model without."""
    bars: dict[str, Any] = {}
    if model.scale_head is not None:
        bars["scale_head"] = model.scale_head.arguments()
    if model.calibration is not None:
        bars["calibration"] = model.calibration.to_dict()
    return bars


def _require_whole(path: Path, model: Reconstructor, header: dict[str, Any]) -> None:
    """Raise where weights are not those that were saved, as far as the file says which these were, or are no numbers."""
    if header.get("weights") not in (None, model.fingerprint()):
        raise InputError(f"{path} is damaged: its weights are not those that were saved; copy it again")
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise InputError(f"{path} has weights that are NaN or infinite; its training failed, take an earlier one")


def _require_shapes(path: Path, header: dict[str, Any], operator: LinearOperator) -> None:
    for name in ("domain_shape", "range_shape"):
        trained, given = tuple(header.get(name, getattr(operator, name))), tuple(getattr(operator, name))
        if trained != given:
            raise InputError(f"{path} was trained with {name} {trained}, but {operator} has {given}; pass an operator of the same shapes")


def pretrained() -> list[str]:
    """Names of the shipped models."""
    folder = _weights()  # not there in a checkout without weights
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry.name.removesuffix(".safetensors") for entry in entries if entry.name.endswith(".safetensors"))


def geometry_of(source: str | Path) -> Geometry | None:
    """The geometry that a model was trained for, from the header of its file alone; None for an operator without."""
    values = read_tensors(_find(source), tensors=False)[1].get("geometry")
    return None if values is None else geometry_from_dict(values)


def provenance_of(source: str | Path) -> dict[str, Any]:
    """Where a model comes from, from the header of its file alone."""
    provenance: dict[str, Any] = read_tensors(_find(source), tensors=False)[1].get("provenance") or {}
    return provenance


def _weights() -> Any:
    return resources.files("bdgd.models") / "weights"


def _find(source: str | Path) -> Path:
    if not isinstance(source, str | Path):
        raise InputError(f"a model is given by its name or the path of its file, got {source!r}; bdgd.pretrained() lists the names")
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the .safetensors file of a model, such as {path / 'model.safetensors'}")
    if path.exists():
        return path
    shipped = Path(str(_weights() / f"{source}.safetensors"))
    if "/" not in str(source) and shipped.exists():
        return shipped
    names = ", ".join(pretrained()) or "none yet"
    raise InputError(f"there is no model {source}; give a .safetensors file or one of the shipped names: {names}")


def write_tensors(path: str | Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Named tensors and a JSON header in one safetensors file."""
    from safetensors.torch import save as to_bytes

    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(contiguous, metadata={"bdgd": json.dumps(header, separators=(",", ":"))}))


def read_tensors(path: str | Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote: the tensors, unless they are not wanted, and the header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("bdgd", "null"))
            found = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118 (safe_open is not iterable)
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a safetensors file ({reason}); check that it was copied completely") from None
    if not isinstance(header, dict):
        raise InputError(f"{path} is a safetensors file, but not one of bdgd: its header has no 'bdgd' entry")
    return found, header
