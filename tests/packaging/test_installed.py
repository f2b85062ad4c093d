"""The wheels alone, outside the source tree: what a user does first."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata

import pytest
from installing import Clean, wheel_in
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEVICES = ("cpu", "fake_xpu")
STEP = """
import sys
import torch
import accelkit

rt = accelkit.Runtime(accelerator=sys.argv[1])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # each step takes a tenth off the output
model, optimizer = rt.prepare(model, optimizer)
inputs = rt.to_device(torch.ones(8, 4))
losses = []
for _ in range(3):
    loss = model(inputs).pow(2).mean()
    rt.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[2] < losses[1] < losses[0], losses
print(next(model.parameters()).device.type)
"""

JOB = """
import torch
import accelkit

rt = accelkit.Runtime(accelerator="fake_xpu", seed=0)
model = torch.nn.Linear(4, 1)
model, optimizer = rt.prepare(model, torch.optim.Adam(model.parameters()))
rt.backward(model(rt.to_device(torch.ones(8, 4))).mean())
optimizer.step()
assert rt.gather(rt.to_device(torch.ones(1))).shape[0] == 2
rt.save_state("checkpoints")
assert rt.resume("checkpoints")
rt.save_model(model, "model")
print("finished")
"""
ONLY_DECLARED = """
import sys

class Declared:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)

HIDDEN = frozenset(HIDDEN_MODULES)
sys.meta_path[:] = map(Declared, sys.meta_path)
"""


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory):
    """Wheels that were built from sdists."""
    environment = Clean(tmp_path_factory.mktemp("clean") / "venv")
    environment.install(*(wheel_in(folder) for folder in built.values()))
    return environment


def test_nothing_is_imported_from_elsewhere(clean):
    packages = "accelkit, accelkit_builtin, accelkit_conformance, accelkit_fake_xpu"
    where = clean.run(clean.python, "-c", f"import {packages}; print(*(module.__file__ for module in ({packages})), sep='\\n')")
    assert len(where.splitlines()) == 4
    assert all(name.startswith(str(clean.site)) for name in where.splitlines())


def test_what_is_installed_is_listed(clean):
    rows = {row["name"]: row for row in json.loads(clean.accelkit("list", "--kind", "accelerator", "--json"))["plugins"]}
    assert [(rows[name]["plugin"], rows[name]["status"]) for name in DEVICES] == [
        ("accelkit==0.1.0", "available"),
        ("accelkit-fake-xpu==0.1.0", "available"),
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_it_trains(clean, device):
    program = clean.folder / "step.py"
    program.write_text(STEP)
    assert clean.run(clean.python, program, device) == f"{device}\n"


def dependencies_of(*names: str) -> set[str]:
    """The canonical names of distributions, and of all distributions that they require without any extra."""
    found, left = set(), [canonicalize_name(name) for name in names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            required = [Requirement(line) for line in metadata.requires(name) or ()]
            left += [canonicalize_name(one.name) for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_a_job_of_two_processes_needs_nothing_but_the_declared_dependencies(built, tmp_path):
    """Packages that the environment of the tests has for other reasons are hidden. One of them may be one that torch or safetensors uses
    without requiring it."""
    environment = Clean(tmp_path / "venv")
    environment.install(*(wheel_in(folder) for folder in built.values()))
    declared = dependencies_of("accelkit", "accelkit-fake-xpu")
    hidden = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if module not in sys.stdlib_module_names
        and re.fullmatch(r"\w+", module)
        and declared.isdisjoint(map(canonicalize_name, distributions))
    }
    assert {"lightning", "accelerate", "pytest"} <= hidden
    (environment.site / "only_declared.py").write_text(ONLY_DECLARED.replace("HIDDEN_MODULES", repr(sorted(hidden))))
    (environment.site / "zzz_only_declared.pth").write_text("import only_declared\n")
    program = environment.folder / "job.py"
    program.write_text(JOB)
    assert environment.accelkit("launch", "--accelerator", "fake_xpu", "--devices", "2", program).count("finished") == 2


def test_it_meets_its_contract(clean):
    report = json.loads(clean.accelkit("conformance", "run", "fake_xpu", "--profile", "contract", "--json", "-"))
    assert set(report["summary"]["kinds"]) <= {"pass", "unsupported"}
    assert report["summary"]["kinds"]["pass"] >= 15


def test_it_makes_a_package(clean):
    package = clean.accelkit("new", "--no-input", "--output-dir", clean.folder).strip()
    assert package.startswith(str(clean.folder))
    assert "[project.entry-points" in (clean.folder / package / "pyproject.toml").read_text("utf-8")


def test_it_knows_what_it_was(clean):
    assert json.loads(clean.accelkit("info", "--spec-diff", "0.1.0", "--json"))["changes"] == []
