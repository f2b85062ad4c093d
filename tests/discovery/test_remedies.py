"""Hints by the cause of an error. The packages are real: their shared libraries are compiled here, and their servers do not run."""

from __future__ import annotations

import subprocess
import sysconfig

import pytest

from accelkit.discovery import probing
from accelkit.discovery.catalog import find
from accelkit.discovery.metadata import installed_version

pytestmark = pytest.mark.usefixtures("forked_interpreters")

PLUGIN = """
from accelkit import Accelerator, Availability

class Acme(Accelerator):
    "ACME NPUs."
    device_type = "acme"
    torch_package = "torch_acme"
"""


@pytest.fixture
def verdict(plugin_site):
    """Install the vendor's torch package with this source and a plugin for it, and return the verdict of its trial."""

    def ask(source, **options):
        plugin_site.install("torch-acme", source, entry_points="[none]", **options)
        plugin_site.install("vendor-acme", PLUGIN, accelerators={"acme": "Acme"})
        return probing.ask(find("accelerator", "acme"), is_trial=True)

    return ask


def compile_library(source, path, *options):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *options], input=source, text=True, check=True)


@pytest.mark.parametrize(
    ("requirement", "hint"),
    [
        ("torch==2.8.*", "(acme-c 1.0 requires torch==2.8.*; torch {installed} is installed)"),
        ("torch>=2.6", "although acme-c 1.0 requires only torch>=2.6: install a build for torch {installed}"),
    ],
)
def test_a_library_that_was_built_for_another_torch(plugin_site, verdict, requirement, hint):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compile_library(
        "void torch_of_2_9(void); void *PyInit__acme_C(void) { torch_of_2_9(); return 0; }", plugin_site.folder / f"_acme_C{suffix}"
    )
    info = plugin_site.install("acme-c", "", entry_points="[none]", requires=[requirement])
    (info / "top_level.txt").write_text(f"_acme_C{suffix}\n")
    found = verdict("import _acme_C")
    assert "undefined symbol: torch_of_2_9" in found.reason
    assert hint.format(installed=installed_version("torch")) in found.hint


def test_a_library_that_is_missing(plugin_site, verdict):
    compile_library("void acme_driver(void) {}", plugin_site.folder / "libacme_driver.so")
    libraries = (f"-L{plugin_site.folder}", "-lacme_driver")
    source = "void acme_driver(void); void acme(void) { acme_driver(); }"
    compile_library(source, plugin_site.folder / "libtorch_acme.so", *libraries)
    (plugin_site.folder / "libacme_driver.so").unlink()
    found = verdict(f"import ctypes\nctypes.CDLL({str(plugin_site.folder / 'libtorch_acme.so')!r})")
    assert "install the missing library libacme_driver.so" in found.hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", "a server that the device needs does not respond"),
        ("raise ConnectionResetError(104, 'Connection reset by peer')", "start its server again"),
        ("import subprocess\nsubprocess.run(['acme-clang', '-c', 'kernel.c'])", "install acme-clang, or add its folder to PATH"),
        ("import subprocess, sys\nsubprocess.check_output([sys.executable, '-c', 'exit(1)'])", "a command that the device needs"),
        ("import xml._C", "xml is not completely installed, or its extension was not compiled"),
        ("import vendor_acme_sdk.runtime", "install the package that provides the module vendor_acme_sdk"),
        ("def register_acme(): pass", "if the package registers it in a function, override load()"),
        ("import torch\ntorch.utils.rename_privateuse1_backend('acme')", "torch._register_device_module"),
        ("import torch\ntorch.linalg.inv(torch.ones(1, 1).half())", "lacks a dtype"),
        ("raise RuntimeError('acme only supports dtype=torch.bool')", "lacks a dtype"),
    ],
    ids=[
        "refused",
        "reset",
        "no program",
        "failing program",
        "no extension",
        "no package",
        "not registered",
        "no module",
        "dtype",
        "one dtype",
    ],
)
def test_a_hint_names_what_to_do_about_the_cause(verdict, source, hint):
    found = verdict(source)
    assert found.status == "broken"
    assert hint in found.hint, (found.reason, found.hint)


def test_an_error_of_a_package_that_a_builtin_plugin_imports_is_not_blamed_on_accelkit(plugin_site, monkeypatch):
    plugin_site.install("vendor-acme", "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", entry_points="[none]")
    monkeypatch.setenv("ACCELKIT_IMPORT", "vendor_acme")
    from accelkit.selection import resolve

    found = probing.ask(resolve("torch:acme"), is_trial=True)
    assert "Connection refused" in found.reason
    assert "a server that the device needs does not respond" in found.hint
