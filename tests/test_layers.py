"""The layers hold: imports go down only, and nothing below `apps` prints, reads the environment or touches global state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

#: lowest first; "bdgd" is the package's own __init__.py, which gathers the public names
LAYERS = [
    *("backends", "checks", "keyed", "storage"),  # the ground, single modules
    *("operators", "metrics", "data", "classical", "models", "training", "inference", "evaluation", "bdgd", "apps"),
]
STRANGERS = {"training", "inference"}  # neither imports the other
FORBIDDEN = {
    "print",
    "rich.print",
    "sys.stdout",
    "sys.stderr",
    "os.environ",
    "os.getenv",
    "random.seed",
    "numpy.random.seed",
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
}
FORBIDDEN_PREFIX = "torch.set_"

MODULES = sorted((SOURCE / "bdgd").rglob("*.py"))


def module_parts(path: Path) -> list[str]:
    """The dotted name of a file, in parts: src/bdgd/operators/__init__.py is [bdgd, operators, __init__]."""
    return list(path.relative_to(SOURCE).with_suffix("").parts)


def layer_of(parts: list[str]) -> str:
    """The layer of a module: the part after `bdgd`, or "bdgd" for the package itself and "apps" for `python -m bdgd`."""
    name = parts[1] if len(parts) > 1 else "__init__"
    return {"__init__": "bdgd", "__main__": "apps"}.get(name, name)


def imported_layers(tree: ast.AST, parts: list[str]) -> Iterator[tuple[int, str]]:
    """(line, layer) of every import of the package's own modules, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "bdgd":
                known = layer_of(target) in LAYERS
                yield node.lineno, layer_of(target) if known or len(target) > 2 else "bdgd"  # `from bdgd import psnr` is the package


def wrong_imports(tree: ast.AST, parts: list[str]) -> list[str]:
    own = layer_of(parts)
    wrong = []
    for line, other in imported_layers(tree, parts):
        upward = other not in LAYERS or LAYERS.index(other) > LAYERS.index(own)
        if upward or {own, other} == STRANGERS:
            wrong.append(f"line {line}: {own} imports {other}")
    return wrong


def full_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every name that the file uses, with import aliases written out: np.random.seed is numpy.random.seed."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            inner: ast.expr = node
            attributes: list[str] = []
            while isinstance(inner, ast.Attribute):
                attributes.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield node.lineno, ".".join([aliases.get(inner.id, inner.id), *reversed(attributes)])


def forbidden_uses(tree: ast.AST) -> list[str]:
    return [f"line {line}: {name}" for line, name in full_names(tree) if name in FORBIDDEN or name.startswith(FORBIDDEN_PREFIX)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(module_parts(path)))
def test_module_keeps_to_its_layer(path: Path) -> None:
    parts = module_parts(path)
    assert layer_of(parts) in LAYERS, f"{path.relative_to(SOURCE)} is in no layer; move it into one of {', '.join(LAYERS)}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not wrong_imports(tree, parts), "imports go down only"
    if layer_of(parts) != "apps":
        assert not forbidden_uses(tree), "below apps nothing prints, reads the environment or touches global state"


def test_every_layer_has_modules_to_check() -> None:
    assert {layer_of(module_parts(path)) for path in MODULES} == set(LAYERS)


IMPORT_CASES = [
    ("operators/x.py", "from bdgd.checks import InputError", True),
    ("operators/x.py", "from bdgd.operators.linear import LinearOperator", True),
    ("operators/x.py", "import bdgd.data.noise", False),
    ("operators/x.py", "from bdgd import data", False),
    ("operators/x.py", "from bdgd import psnr", False),
    ("operators/x.py", "import bdgd", False),
    ("operators/x.py", "from ..data import noise", False),
    ("operators/x.py", "from .linear import LinearOperator", True),
    ("operators/__init__.py", "from .linear import LinearOperator", True),
    ("operators/__init__.py", "from .. import checks", True),
    ("operators/x.py", "def f():\n    from bdgd.apps import cli", False),
    ("operators/x.py", "from bdgd.nowhere.module import name", False),
    ("training/x.py", "from bdgd.models.cascade import Cascade", True),
    ("training/x.py", "from bdgd.inference import posterior", False),
    ("inference/x.py", "from bdgd.training import loop", False),
    ("__init__.py", "from bdgd.evaluation.tables import table", True),
    ("__init__.py", "from bdgd.apps.cli import main", False),
    ("apps/x.py", "from bdgd import __version__", True),
    ("__main__.py", "from bdgd.apps.cli import main", True),
    ("checks.py", "import torch\nfrom torch import Tensor", True),
]


@pytest.mark.parametrize(("where", "code", "allowed"), IMPORT_CASES)
def test_the_import_rule_sees(where: str, code: str, allowed: bool) -> None:
    assert (not wrong_imports(ast.parse(code), module_parts(SOURCE / "bdgd" / where))) is allowed


USE_CASES = [
    ("print('x')", False),
    ("import sys\nsys.stdout.write('x')", False),
    ("import os\nos.environ['A']", False),
    ("from os import environ\nenviron.get('A')", False),
    ("import os as system\nsystem.getenv('A')", False),
    ("import torch\ntorch.manual_seed(0)", False),
    ("import torch\ntorch.set_default_dtype(torch.float64)", False),
    ("from torch import set_num_threads as limit\nlimit(1)", False),
    ("import numpy as np\nnp.random.seed(0)", False),
    ("import random\nrandom.seed(0)", False),
    ("import torch\ntorch.Generator().manual_seed(0)", True),
    ("import torch\ngenerator = torch.Generator()\ngenerator.manual_seed(0)", True),
    ("import numpy as np\nnp.random.default_rng(0)", True),
    ("import os\nos.path.join('a', 'b')", True),
]


@pytest.mark.parametrize(("code", "allowed"), USE_CASES)
def test_the_global_state_rule_sees(code: str, allowed: bool) -> None:
    assert (not forbidden_uses(ast.parse(code))) is allowed
