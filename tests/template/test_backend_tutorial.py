"""The tutorial "A PyTorch device from a driver": its code, in a package as ``accelkit new`` generates it, is a device that trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from baking import ROOT, build_wheel, run

from accelkit_conformance import stages

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("backend")]  # most files are those that test_backend.py has compiled

PAGE = (ROOT / "docs" / "tutorials" / "device-from-a-driver.md").read_text("utf-8")
FUNCTION = re.compile(r"^driver_status (driver_\w+)\([^\n]*\}$|^driver_status (driver_\w+)\([^\n]*\{$.*?^\}$", re.MULTILINE | re.DOTALL)


def sections():
    """The number of each section of the page, and its blocks of C++."""
    _, *parts = re.split(r"^## (\d)\. ", PAGE, flags=re.MULTILINE)
    blocks = [re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for text in parts[1::2]]
    return dict(zip(map(int, parts[::2]), blocks, strict=True))


class Tutorial:
    """A package that is installed in a clean environment, in which a reader of the tutorial writes.

    Args:
        clean: The environment.
        folder: An empty folder.
    """

    def __init__(self, clean, folder: Path) -> None:
        self.clean, self.folder = clean, folder
        package = clean.new(folder, components="accelerator,backend")
        clean.install(build_wheel(package, package / "dist"))
        self.source = next(clean.folder.glob("venv/lib/python*/site-packages/accelkit_acme"))
        build = self.source / "build.py"
        build.write_text(build.read_text().replace('"ACME_DRIVER", "simulated"', '"ACME_DRIVER", "acme"'))
        (folder / "digits.py").write_text(self._program("digits.py"))
        (folder / "lightning_example.py").write_text(self._program("lightning_example.py"))

    def write(self, block: str) -> None:
        """Do with a block of C++ what the text says: functions replace those of the same names, and the rest goes above the first one."""
        path = self.source / "csrc" / "driver_acme.cpp"
        text = path.read_text()
        written = list(FUNCTION.finditer(block))
        for match in written:
            name = match[1] or match[2]
            text, count = re.subn(rf"^driver_status {name}\([^\n]*\}}$", lambda _, new=match[0]: new, text, flags=re.MULTILINE)
            assert count == 1, f"driver_acme.cpp has {count} functions {name} to replace"
        above = block[: written[0].start()]
        first = text.index("// Count the devices")
        path.write_text(text[:first] + above + text[first:])

    def write_kernel(self, kernel: str, registration: str) -> None:
        """Add a function and its registration to kernels.cpp."""
        path = self.source / "csrc" / "kernels.cpp"
        text = path.read_text().replace("TORCH_LIBRARY_IMPL", f"{kernel}\nTORCH_LIBRARY_IMPL")
        path.write_text(text.replace('  library.impl("mm"', f'  {registration}  library.impl("mm"'))

    def next(self):
        """The names of the stages that have passed, and the one that has failed, if one has."""
        printed = json.loads(self.clean.accelkit("conformance", "next", "acme", "-n", "2", "--json", ok=False).stdout)
        if "stages" not in printed:
            return [], printed["why"]
        passed = [stage["stage"] for stage in printed["stages"] if not stage["failed"]]
        return passed, [stage["stage"] for stage in printed["stages"] if stage["failed"]]

    def digits(self, *launch: str) -> float:
        """Train as in section 7, and return the percentage of digits that it gets right."""
        words = ["launch", "--accelerator", "acme", *launch, str(self.folder / "digits.py")]
        printed = self.clean.accelkit(*words) if launch else run(self.clean.python, self.folder / "digits.py")
        return float(re.search(r"([\d.]+)% of the held-out digits", printed.stdout)[1])

    @staticmethod
    def _program(name: str) -> str:
        return re.search(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def tutorial(clean, tmp_path_factory):
    """The package of a reader, before the first change."""
    folder = tmp_path_factory.mktemp("tutorial")
    yield Tutorial(clean, folder)
    clean.pip("uninstall", "--yes", "accelkit-acme")


def test_each_function_of_the_driver_is_written_once():
    skeleton = next((ROOT / "templates").rglob("driver_{{cookiecutter.accelerator}}.cpp")).read_text()
    wanted = re.findall(r"^driver_status (driver_\w+)\(", skeleton, re.MULTILINE)
    written = [match[1] or match[2] for blocks in sections().values() for block in blocks for match in FUNCTION.finditer(block)]
    assert sorted(written) == sorted(wanted)


@pytest.mark.soak
def test_each_step_takes_the_device_to_the_stages_that_the_tutorial_says(tutorial):
    assert "driver_device_count is not implemented yet in the driver of acme" in tutorial.next()[1]
    steps = sections()
    for number, function in ((3, "driver_allocate"), (4, "driver_stream_create")):
        tutorial.write(steps[number][0])
        assert f"{function} is not implemented yet in the driver of acme" in tutorial.next()[1]
    tutorial.write(steps[5][0])
    assert tutorial.next() == (["is a plugin", "copies", "computes", "manages its memory"], ["has streams and events"])
    tutorial.write(steps[5][1])
    passed, failed = tutorial.next()
    assert (passed[-1], failed) == (stages.read()[-1].name, [])


def test_the_driver_of_the_tutorial_passes_smoke_and_trains(tutorial):
    steps = sections()
    if "aligned_alloc" not in (tutorial.source / "csrc" / "driver_acme.cpp").read_text():
        for block in (*steps[3], *steps[4], *steps[5]):
            tutorial.write(block)
    tutorial.write(steps[6][0])
    tutorial.write_kernel(*steps[6][1:])
    tutorial.clean.accelkit("probe", "acme")
    selected = [word for area in ("device", "memory", "modules", "random", "streams", "transfer", "*relu*") for word in ("--select", area)]
    tutorial.clean.accelkit("conformance", "run", "acme", "--profile", "smoke", "-n", "2", *selected)
    found = json.loads(tutorial.clean.accelkit("conformance", "coverage", "acme", "--model", "cnn", "--json").stdout)
    native = {one["name"] for one in found["operators"] if not one["is_on_cpu"]}
    assert native == {"aten::relu"}
    assert {"aten::mm", "aten::convolution_overrideable", "aten::threshold_backward"} <= {
        one["name"] for one in found["operators"]
    } - native
    assert tutorial.digits() >= 97


@pytest.mark.soak
def test_the_whole_device_trains_everywhere(tutorial):
    for strategy in ("ddp", "fsdp"):
        assert tutorial.digits("--devices", "2", "--strategy", strategy) >= 97
    printed = run(tutorial.clean.python, tutorial.folder / "lightning_example.py").stdout
    assert "acme:0" in printed
