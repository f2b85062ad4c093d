"""The wheel: what is in it, and that it works without the source tree."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


def test_the_wheel_holds_three_packages_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "accelkit",
        "accelkit_builtin",
        "accelkit_conformance",
        "accelkit-0.1.0.dist-info",
    }
    for needed in (
        "accelkit/py.typed",
        "accelkit/cli/schema.json",
        "accelkit_builtin/known_devices.toml",
        "accelkit_builtin/other_names.toml",
        "accelkit_conformance/commands/schema.json",
        "accelkit_conformance/profiles/torch-2.13.txt",
        "accelkit-0.1.0.dist-info/licenses/LICENSE",
    ):
        assert needed in names
    entry_points = zipfile.ZipFile(wheel).read("accelkit-0.1.0.dist-info/entry_points.txt").decode()
    assert "[accelkit.accelerators]\ncpu = accelkit_builtin.accelerators.cpu:CPUAccelerator" in entry_points


def test_the_wheel_holds_the_whole_template(built):
    (wheel,) = built.glob("*.whl")
    source = "templates/accelerator_plugin/"
    tracked = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("accelkit/template/")}
    assert names == {name.replace(source, "accelkit/template/", 1) for name in tracked}


def test_the_sdist_holds_what_is_needed_to_build_and_test(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "tests/conftest.py", "docs/architecture.md"} <= names


class Clean:
    """A virtual environment that shares the dependencies, but not accelkit, with the one that runs the tests."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.folder, self.python = folder, folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))
        (self.site / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # an editable accelkit there is not followed

    def install(self, *arguments):
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, *arguments], check=True, capture_output=True)

    def run(self, *command):
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout


def test_it_works_from_the_wheel_outside_the_source_tree(built, tmp_path):
    clean = Clean(tmp_path / "venv")
    clean.install(*built.glob("*.whl"))
    where = clean.run(clean.python, "-c", "import accelkit, accelkit_builtin; print(accelkit.__file__, accelkit_builtin.__file__)")
    assert all(name.startswith(str(clean.site)) for name in where.split())
    listing = clean.run(clean.folder / "bin" / "accelkit", "list")
    assert ["cpu", "accelerator", "accelkit==0.1.0", "available"] in [line.split()[:4] for line in listing.splitlines()]
    assert clean.run(clean.python, "-c", "import accelkit; print(accelkit.Runtime(accelerator='cpu').device)") == "cpu\n"


def test_an_editable_installation_puts_nothing_else_on_the_path(tmp_path):
    clean = Clean(tmp_path / "venv")
    clean.install("--no-build-isolation", "--editable", ROOT)
    code = "import sys, pkgutil; print(sorted(m.name for p in sys.path if p.startswith(sys.argv[1]) for m in pkgutil.iter_modules([p])))"
    assert clean.run(clean.python, "-I", "-c", code, ROOT / "sdk") == "['accelkit']\n"
    assert clean.run(clean.python, "-I", "-c", code, ROOT / "builtin_plugins") == "['accelkit_builtin']\n"
    on_path = clean.run(clean.python, "-I", "-c", "import sys; print(*[p for p in sys.path if p.startswith(sys.argv[1])])", ROOT)
    ours = {Path(entry).name for entry in on_path.split() if "site-packages" not in entry}
    assert ours == {"sdk", "builtin_plugins", "conformance"}


def test_the_sample_plugin_is_one_short_file():
    (source,) = (ROOT / "examples" / "vendor-acme-plugin" / "src").rglob("*.py")
    assert len(source.read_text("utf-8").splitlines()) <= 15
