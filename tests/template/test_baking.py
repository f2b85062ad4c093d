"""Packages of the template, as a vendor gets them: baked, built, installed from the wheel, tested, removed."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from baking import FAKE_XPU, build_wheel, check_sources, names, run

pytestmark = pytest.mark.timeout(900)

DEVICES = {"": "torch:cpu", "torch": "torch:cuda", "package": "torch_acme:acme", "xla": "torch_xla:xla"}
"""By kind: a package without an accelerator, and one on each kind of device, which need not be here."""
OTHERS = ("precision", "cluster", "strategy", "hooks")
SAMPLE = [
    ("", "cluster,strategy"),
    ("torch", "accelerator,precision,cluster,strategy,hooks"),
    ("package", "accelerator,precision"),
    ("xla", "accelerator,cluster"),
]
"""Every kind of device, and packages with and without each other component; `make soak` bakes every package."""


def every_package() -> list[tuple[str, str]]:
    subsets = [chosen for count in range(len(OTHERS) + 1) for chosen in itertools.combinations(OTHERS, count)]
    return [(kind, ",".join((["accelerator"] if kind else []) + list(chosen))) for kind in DEVICES for chosen in subsets if kind or chosen]


def test_the_sample_holds_every_kind_of_device_and_each_component_with_and_without():
    def values(packages):
        rows = [{"device": kind, **{component: component in components for component in OTHERS}} for kind, components in packages]
        return {value for row in rows for value in row.items()}

    assert values(SAMPLE) == values(every_package())


def test_forked_interpreters_have_the_packages_of_the_clean_environment(clean):
    code = "import accelkit, sys; print(sys.prefix, accelkit.__file__, sys.executable, sep='\\n')"
    prefix, file, executable = run(clean.python, "-c", code).stdout.splitlines()
    assert prefix == str(clean.folder / "venv")
    assert file.startswith(prefix)
    assert executable == str(clean.python)


def test_the_defaults_pass_smoke_within_five_minutes(clean, tmp_path):
    began = time.monotonic()
    package = clean.new(tmp_path)
    clean.install(build_wheel(package, package / "dist"))
    try:
        report_path = tmp_path / "report.json"
        command = clean.real_python.with_name("accelkit")  # what a user waits for includes the imports of torch
        run(command, "conformance", "run", "acme", "--profile", "smoke", "--json", report_path, cwd=clean.folder)
        seconds = time.monotonic() - began
        assert seconds < 300, f"from accelkit new to the end of conformance smoke: {seconds:.0f} s"
        report = json.loads(report_path.read_text())
        assert (report["subject"]["plugin"], report["suite"]["profile"]) == ("accelkit-acme==0.1.0", "smoke")
        assert report["summary"]["kinds"]["pass"] > 300

        assert clean.offered("accelkit-acme") == names("accelerator")
        without_most = "not test_acme or operators/forward or contract"  # the command has run them all
        tested = run(clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", without_most, cwd=package).stdout
        assert "tests on hardware of Acme, for which torch's CPU stood in" in tested
        assert "tests that need the device" not in tested
        check_sources(package, clean)

        clean.accelkit("conformance", "table", report_path, "--write", package / "README.md")
        assert re.search(r"\| operators \| (\d+) of \1 \|", (package / "README.md").read_text()), "not all operators passed"
    finally:
        clean.pip("uninstall", "--yes", "accelkit-acme")
    assert clean.offered("accelkit-acme") == []


def bake_and_test(clean, folder, kind, components, *, also_by_command):
    """Its own tests run the conformance suite; ``also_by_command``: and so does the command."""
    package = clean.new(folder, components=components, torch_device=DEVICES[kind])
    clean.install(build_wheel(package, package / "dist"))
    try:
        assert clean.offered("accelkit-acme") == names(components)
        tested = run(clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package).stdout
        assert "= not run =" in tested
        is_here = json.loads(clean.accelkit("probe", "acme", "--json", ok=False).stdout).get("status") == "usable" if kind else True
        assert is_here or "tests that need the device, which is absent" in tested
        if kind:
            assert "\nkind          accelerator\n" in clean.accelkit("info", "acme").stdout, "another component has the same name"
        for component, name, _ in names(components) if also_by_command else ():
            smoke = clean.accelkit("conformance", "run", name, "--kind", component, "--profile", "smoke", ok=False)
            assert smoke.returncode == (0 if is_here or component != "accelerator" else 4), smoke.stderr
        check_sources(package, clean)
    finally:
        clean.pip("uninstall", "--yes", "accelkit-acme")
    assert clean.offered("accelkit-acme") == []


@pytest.mark.parametrize(("kind", "components"), SAMPLE)
def test_a_sample_of_components_and_kinds_of_devices(clean, tmp_path, kind, components):
    bake_and_test(clean, tmp_path, kind, components, also_by_command=False)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "components"), [one for one in every_package() if one not in SAMPLE])
def test_every_package(clean, tmp_path, kind, components):
    bake_and_test(clean, tmp_path, kind, components, also_by_command=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_package_with_every_component_passes_the_whole_suite(clean, tmp_path):
    """Prints how long each component takes. Only the accelerator has failures to declare, such as those of torch's fused optimizers."""
    components = ",".join(("accelerator", "backend", *OTHERS))
    package = clean.new(tmp_path, components=components)
    clean.install(build_wheel(package, package / "dist"))
    try:
        assert clean.offered("accelkit-acme") == names(components)
        for component, name, _ in names(components):
            began = time.monotonic()
            certify = [] if component == "accelerator" else ["--certify"]
            clean.accelkit("conformance", "run", name, "--kind", component, "--profile", "full", "-n", "2", *certify)
            print(f"{component} {name}: {time.monotonic() - began:.0f} s")
    finally:
        clean.pip("uninstall", "--yes", "accelkit-acme")


def test_a_package_of_a_device_out_of_tree_runs_on_the_fake_one(clean, tmp_path):
    """The vendor's torch package is the fake XPU's, under a name of the vendor's own."""
    clean.install(build_wheel(FAKE_XPU, tmp_path / "fake_xpu"))
    package = clean.new(tmp_path, torch_device="accelkit_fake_xpu.torch_backend:fake_xpu")
    clean.install(build_wheel(package, package / "dist"))
    try:
        clean.accelkit("probe", "acme")
        tested = run(clean.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package).stdout
        assert "absent" not in tested
        assert "the other profiles" in tested
        check_sources(package, clean)
    finally:
        clean.pip("uninstall", "--yes", "accelkit-acme", "accelkit-fake-xpu")
