"""Every package that is imported is declared in the right pyproject.toml, and what is declared is pinned."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FAKE_XPU = "builtin_plugins/accelkit-fake-xpu"
SOURCES = {"sdk": ".", "builtin_plugins/accelkit_builtin": ".", "conformance": ".", f"{FAKE_XPU}/src": FAKE_XPU}
"""Folders of code, and by folder the one with the pyproject.toml of its distribution."""

EXTRAS = {
    "sdk/accelkit/bridges/accelerate": "accelerate",
    "sdk/accelkit/bridges/deepspeed": "deepspeed",
    "sdk/accelkit/cli/new.py": "template",
    "sdk/accelkit/monitoring/prometheus.py": "prometheus",
    "builtin_plugins/accelkit_builtin/accelerators/cuda.py": "cuda",
    "builtin_plugins/accelkit_builtin/accelerators/xla.py": "xla",
    "builtin_plugins/accelkit_builtin/accelerators/xla_loader.py": "xla",
    "builtin_plugins/accelkit_builtin/strategies/xla.py": "xla",
    "builtin_plugins/accelkit_builtin/strategies/deepspeed_checkpoint.py": "deepspeed",
    "builtin_plugins/accelkit_builtin/strategies/deepspeed_package.py": "deepspeed",
    "builtin_plugins/accelkit_builtin/precisions/float8_linear.py": "fp8",
    "builtin_plugins/accelkit_builtin/precisions/bitsandbytes_weight.py": "bitsandbytes",
    "conformance": "conformance",
}
"""Which extra a file, or each file of a folder, may import besides the dependencies."""

OPTIONAL = {
    ("sdk/accelkit/bridges/accelerate/trainer_callback.py", "transformers"): "imported by who uses transformers.Trainer",
    ("sdk/accelkit/tracking/mlflow.py", "mlflow"): "the tracker says that it is needed",
    ("sdk/accelkit/tracking/wandb.py", "wandb"): "the tracker says that it is needed",
    ("conformance/accelkit_conformance/mutants/broken.py", "accelkit-fake-xpu"): "the self-test says that it is needed",
    ("conformance/accelkit_conformance/oracle/bridge_training.py", "lightning"): "tests of bridges are unsupported without it",
}
"""Files that import a package which only those have installed who use it otherwise, and why that is enough."""

DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
"""Modules whose distribution has another name."""

OWN = {".": {"accelkit", "accelkit-builtin", "accelkit-conformance"}, FAKE_XPU: {"accelkit-fake-xpu"}}


@functools.cache
def project(folder: str) -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """By canonical name of the distribution."""
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """What import statements and ``import_module("...")`` name, relative imports left out."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__"), args=[ast.Constant(value=str(module)), *_]):
                yield module


def third_party(path: Path) -> set[str]:
    """Canonical names of the distributions that a file imports, but the standard library."""
    top = {module.partition(".")[0] for module in imported_modules(ast.parse(path.read_text("utf-8")))}
    return {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in top - sys.stdlib_module_names}


FILES = [(source, str(path.relative_to(ROOT))) for source in SOURCES for path in sorted((ROOT / source).rglob("*.py"))]


@pytest.mark.parametrize(("source", "path"), FILES, ids=[path for _, path in FILES])
def test_what_is_imported_is_declared(source, path):
    declared = project(SOURCES[source])
    allowed = set(requirements(declared["dependencies"])) | OWN[SOURCES[source]]
    for folder, extra in EXTRAS.items():
        if Path(path).is_relative_to(folder):
            allowed |= set(requirements(declared["optional-dependencies"][extra]))
    allowed |= {name for file, name in OPTIONAL if file == path}
    undeclared = sorted(third_party(ROOT / path) - allowed)
    assert not undeclared, f"{path} imports {', '.join(undeclared)}: declare it in {SOURCES[source]}/pyproject.toml, or name it in OPTIONAL"


def test_the_tables_of_exceptions_are_needed():
    for path, name in OPTIONAL:
        assert name in third_party(ROOT / path), f"{path} does not import {name}"
    for path, extra in EXTRAS.items():
        files = (ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else [ROOT / path]
        named = set(requirements(project(".")["optional-dependencies"][extra]))
        assert any(named & third_party(file) for file in files), f"{path} imports nothing of the extra {extra}"


@pytest.mark.parametrize("folder", OWN)
def test_what_is_declared_is_pinned(folder):
    """In constraints.txt, at a version that is allowed. The Makefile pins torch itself."""
    lines = re.findall(r"^[^#\s].*", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    pins = requirements(lines)
    declared = project(folder)
    for line in [*declared["dependencies"], *(line for extra in declared.get("optional-dependencies", {}).values() for line in extra)]:
        wanted = Requirement(line)
        if (name := canonicalize_name(wanted.name)) not in {"torch", "accelkit"}:
            assert name in pins, f"constraints.txt does not pin {name}"
            (pin,) = pins[name].specifier
            assert pin.operator == "==", f"constraints.txt has {pins[name]}"
            assert wanted.specifier.contains(pin.version), f"constraints.txt has {pins[name]}, and {folder}/pyproject.toml {wanted}"
