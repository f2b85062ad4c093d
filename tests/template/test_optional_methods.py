"""What a baked file shows in comments is what the specification says, whole."""

from __future__ import annotations

import ast

import optional_methods
import pytest
from click.testing import CliRunner

from accelkit.cli import main


def test_the_comments_are_made_of_the_specifications():
    for path, text in optional_methods.files().items():
        assert path.read_text("utf-8") == text, f"{path.name} is old: python tests/template/optional_methods.py writes it anew"


@pytest.mark.parametrize("component", optional_methods.BY_HAND)
def test_every_method_is_written_out_or_shown(tmp_path, component):
    CliRunner().invoke(main, ["new", "--no-input", "--output-dir", str(tmp_path), f"components={component}"], catch_exceptions=False)
    lines = (tmp_path / "accelkit-acme" / "src" / "accelkit_acme" / f"{component}.py").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if "-- optional: uncomment" in line) + 2
    uncommented = [*lines[:begin], *("    " + line.removeprefix("    #").removeprefix(" ") for line in lines[begin:])]
    (cls,) = [node for node in ast.parse("\n".join(uncommented)).body if isinstance(node, ast.ClassDef)]
    shown = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    shown |= {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    shown |= {target.id for node in cls.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    wanted = set(optional_methods.public_names(*optional_methods.BY_HAND[component][0])) - {"torch_package"}
    assert wanted <= shown, wanted - shown
