"""sdists and wheels: what is in them, and what they say of themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from installing import PROJECTS, ROOT, Clean, build, member, metadata, wheel_in

import accelkit

REPOSITORY = "https://github.com/accelkit/accelkit"
pytestmark = pytest.mark.xdist_group("test_installed.py")
"""In the process of the tests that install the same wheels: they are built once."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_an_index_would_take_them(built):
    files = [path for folder in built.values() for path in sorted(folder.iterdir())]
    assert [path.suffix for path in files] == [".whl", ".gz"] * 2
    result = subprocess.run(
        [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout.count("PASSED")) == (0, 4), result.stdout + result.stderr


@pytest.mark.parametrize("project", PROJECTS)
def test_the_wheel_of_the_sdist_is_that_of_the_source_tree(built, project, tmp_path):
    of_tree = wheel_in(build(PROJECTS[project], tmp_path, "--wheel"))
    assert member(wheel_in(built[project]), "RECORD") == member(of_tree, "RECORD"), "names, sizes and hashes of all files"


@pytest.mark.parametrize("project", PROJECTS)
def test_what_it_says_of_itself(built, project):
    said = metadata(wheel_in(built[project]))
    assert said["Version"] == accelkit.__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.11"
    assert len(said["Summary"]) < 160
    urls = dict(line.split(", ", 1) for line in said.get_all("Project-URL"))
    assert {"Homepage", "Source", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    paths = [url.partition("/main/")[2] for url in urls.values() if "/main/" in url]
    assert paths
    assert all((ROOT / path).exists() for path in paths)
    classifiers = set(said.get_all("Classifier"))
    assert {f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13")} <= classifiers
    assert "Typing :: Typed" in classifiers
    assert not any(one.startswith("License ::") for one in classifiers), "the expression says it"


@pytest.mark.parametrize("project", PROJECTS)
def test_the_readme_leads_somewhere_where_an_index_shows_it(built, project):
    """A relative link is dead there: those into the repository name the version's own files."""
    said = metadata(wheel_in(built[project]))
    assert said["Description-Content-Type"] == "text/markdown"
    links = LINK.findall(said.get_payload())
    assert links
    assert all(link.startswith("https://") for link in links)
    files = [link for link in links if link.startswith(REPOSITORY)]
    assert all((ROOT / link.removeprefix(f"{REPOSITORY}/blob/v{said['Version']}/")).exists() for link in files)
    if project == "accelkit":
        assert len(files) == len(LINK.findall((ROOT / "README.md").read_text("utf-8")))


def test_the_wheel_holds_three_packages_and_nothing_else(built):
    wheel = wheel_in(built["accelkit"])
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
        "accelkit_builtin/known_devices.py",
        "accelkit_builtin/other_names.toml",
        "accelkit/specs/api_snapshot/0.1.0.json",
        "accelkit_conformance/commands/schema.json",
        "accelkit_conformance/profiles/torch-2.13.txt",
        "accelkit_conformance/reports/matrix.html.j2",
        "accelkit-0.1.0.dist-info/licenses/LICENSE",
    ):
        assert needed in names
    entry_points = member(wheel, "entry_points.txt")
    assert "[accelkit.accelerators]\ncpu = accelkit_builtin.accelerators.cpu:CPUAccelerator" in entry_points


def test_the_wheel_holds_the_whole_template(built):
    wheel = wheel_in(built["accelkit"])
    source = "templates/accelerator_plugin/"
    tracked = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("accelkit/template/")}
    assert names == {name.replace(source, "accelkit/template/", 1) for name in tracked}


def in_sdist(folder: Path) -> set[str]:
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_sdist_holds_what_is_needed_to_build_and_test(built):
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "hatch_build.py"} <= in_sdist(built["accelkit"])
    assert {"tests/conftest.py", "docs/architecture.md", "docs/reference/versioning.md"} <= in_sdist(built["accelkit"])
    assert {"README.md", "LICENSE", "tests/test_building.py"} <= in_sdist(built["accelkit_fake_xpu"])
    sources = {path.relative_to(PROJECTS["accelkit_fake_xpu"]).as_posix() for path in PROJECTS["accelkit_fake_xpu"].rglob("src/**/*.cpp")}
    assert sources
    assert sources <= in_sdist(built["accelkit_fake_xpu"])


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
