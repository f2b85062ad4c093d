"""Names that the conformance suite imports from its own modules exist. mypy does not check this there, as ``attr-defined`` is off."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "conformance"
SOURCES = sorted((ROOT / "accelkit_conformance").rglob("*.py"))


def defined_in(path: Path) -> set[str]:
    """Return the names that a module assigns, defines or imports at any level, and the modules in it if it is a package."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    siblings = {one.stem for one in path.parent.iterdir()} if path.name == "__init__.py" else set()
    return names | siblings


def missing_in(path: Path) -> list[str]:
    missing = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "accelkit_conformance":
            place = ROOT.joinpath(*node.module.split("."))
            module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            names = defined_in(module) if module.exists() else set()
            missing += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names]
    return missing


def test_a_name_that_is_missing_is_found(tmp_path):
    source = "from accelkit_conformance.subject import Subject, Ranks\nfrom accelkit_conformance.gone import thing\n"
    (tmp_path / "user.py").write_text(source)
    assert missing_in(tmp_path / "user.py") == ["accelkit_conformance.subject.Ranks", "accelkit_conformance.gone.thing"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imported_names_exist(path):
    assert missing_in(path) == []
