"""docs/reference/torch-private-names.md lists the private names of torch that the code uses, and their number only falls."""

from __future__ import annotations

import collections
import re
import subprocess
from pathlib import Path

import pytest
from torch_private_names import OTHERS, private_names

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk", "builtin_plugins/accelkit_builtin", "builtin_plugins/accelkit-fake-xpu/src")
PAGE = ROOT / "docs" / "reference" / "torch-private-names.md"
NUMBER = 27
"""How many names there are. Lower it when one goes; never raise it without an issue at PyTorch."""

AGENT = "torch.distributed.elastic.agent.server.api.SimpleElasticAgent"


@pytest.fixture(scope="module")
def rows():
    """The cells of each row of the table: name, where, why, upstream issue, what happens if it goes."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_every_private_name_of_torch_is_in_the_table(rows):
    used = collections.defaultdict(set)
    for path in subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        if path.endswith(".py"):
            for name in private_names(ROOT / path):
                used[name.replace(AGENT, "SimpleElasticAgent")].add(path)
    told = {row[0].strip("`"): set(re.findall(r"`(.+?)`", row[1])) for row in rows}
    assert dict(used) == told, f"the code on the left, {PAGE.name} on the right"
    assert len(used) == NUMBER, "if a name has gone, lower NUMBER; use public names otherwise"


def test_every_row_says_why_and_what_then(rows):
    for name, _, why, issue, then in rows:
        assert why, name
        assert then, name
        assert "https://github.com/pytorch/pytorch/" in issue or issue == "none known", name


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch._dynamo", {"torch._dynamo"}),
        ("from torch._C._distributed_c10d import HashStore", {"torch._C._distributed_c10d"}),
        ("from torch.nn.modules.module import _global_forward_hooks as hooks", {"torch.nn.modules.module._global_forward_hooks"}),
        ("import torch\ntorch._C._get_tracing_state()", {"torch._C._get_tracing_state"}),
        ("import torch.distributed as dist\ndist.distributed_c10d._world.pg_map", {"torch.distributed.distributed_c10d._world"}),
        ("import torch.distributed as dist\nc10d = dist.distributed_c10d\nc10d._world", {"torch.distributed.distributed_c10d._world"}),
        ("import torch\ntorch.Tensor.data.__set__  # type: ignore[attr-defined]", {"torch.Tensor.data.__set__"}),
        ("def f(module):\n    return module._parameters", {"._parameters"}),
        ("def f(module):\n    return getattr(module, '_orig_mod', module)", {"._orig_mod"}),
        ("import torch\nclass A(torch.nn.Module):\n    def f(self):\n        return self._buffers", {"torch.nn.Module._buffers"}),
        ("import torch\nclass A(torch.nn.Module):\n    def _apply(self, f): ...", {"torch.nn.Module._apply"}),
        ("import torch\nBase = torch.nn.Module\nclass A(Base):\n    _version = 2", {"torch.nn.Module._version"}),
        ("import os\nos._exit(0)", set()),
        ("import torch\nclass A(torch.nn.Module):\n    def _own(self):\n        return self._own()", set()),
        ("class A:\n    def __init__(self, other):\n        self._x = 0\n        other._x = 1", set()),
        ("import torch\ntorch.nn.Module.__init__", set()),
    ],
)
def test_private_names_are_found(code, expected, tmp_path):
    path = tmp_path / "code.py"
    path.write_text(code)
    assert private_names(path) == expected


def test_names_of_other_packages_are_in_use():
    code = "\n".join(path.read_text("utf-8") for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert [name for name in OTHERS if not re.search(rf"\b{name}\b", code)] == []
