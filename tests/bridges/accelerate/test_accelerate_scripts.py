"""Accelerate's own test scripts pass on a plugin's device, but for what they assume about CUDA or about packages."""

from __future__ import annotations

from pathlib import Path

import accelerate.test_utils
import accelerate_scripts_program
import pytest
from packaging.version import Version
from programs import LAUNCHERS, run
from script_assumptions import BY_ANOTHER_LAUNCHER, SCRIPTS, Assumption, Script

from accelkit.bridges.accelerate.compat import NEWEST

IS_NEWEST = Version(accelerate.__version__).release[:2] == Version(NEWEST).release[:2]


@pytest.mark.parametrize("num_processes", [pytest.param(1, marks=pytest.mark.newest_peers), 2])
def test_they_pass_on_the_fake_xpu(num_processes, tmp_path):
    scripts = [name for name, script in SCRIPTS.items() if num_processes in script.processes]
    launcher = LAUNCHERS["accelkit launch"] if num_processes > 1 else ()
    environ = {"ACCELERATE_NUM_PROCESSES": "2", "CUDA_VISIBLE_DEVICES": ""}
    ranks = run("accelerate_scripts_program.py", "fake_xpu", *scripts, launcher=launcher, name="fake_xpu", cwd=tmp_path, **environ)
    assert len(ranks) == num_processes
    for name in scripts:
        reached = {index for found in ranks for index in found[name]}
        listed = {index for index, one in enumerate(SCRIPTS[name].assumptions) if num_processes in one.processes}
        assert reached == listed, f"{name} does not come to all that is listed for it on {num_processes} processes"


def test_every_script_is_run_or_has_a_reason():
    folder = Path(accelerate.test_utils.__file__).parent / "scripts"
    there = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("test_*.py")}
    listed = SCRIPTS.keys() | BY_ANOTHER_LAUNCHER.keys()
    assert there <= listed
    assert there == listed or not IS_NEWEST
    for name, script in SCRIPTS.items():
        assert script.processes == (1, 2) or script.why_not, name


@pytest.mark.parametrize(
    ("assumption", "problem"),
    [
        (Assumption("", "Error", "num_accelerators = 0"), "num_accelerators = 0 works"),
        (Assumption("", statement="num_accelerators = 0", gives="num_accelerators > 0"), "num_accelerators = 0 works"),
        (Assumption("", "Error", "num_accelerators = -1"), "has no such statement"),
        (Assumption("", "Error"), "the script works"),
    ],
)
def test_an_assumption_that_is_stale_is_an_error(assumption, problem, monkeypatch):
    monkeypatch.setitem(SCRIPTS, "test_cli", Script((assumption,)))
    with pytest.raises(accelerate_scripts_program.StaleAssumptionError, match=problem):
        accelerate_scripts_program.run("test_cli")
