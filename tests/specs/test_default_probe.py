"""The default ``probe()`` of an accelerator looks for its package of torch, and does not import it."""

from __future__ import annotations

import sys

import pytest

from accelkit import Accelerator, Availability


@pytest.mark.parametrize(
    ("package", "hint"),
    [
        ("torch_of_nobody", "pip install torch-of-nobody"),
        ("of_nobody.torch_backend", "install what provides the module of_nobody.torch_backend"),
    ],
)
def test_a_package_that_is_missing(package, hint):
    class Missing(Accelerator):
        device_type = "acme"
        torch_package = package

    assert Missing.probe() == Availability.absent(f"the package {package} is not installed", hint)


def test_a_package_that_is_installed_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "torch_acme").mkdir()
    (tmp_path / "torch_acme" / "__init__.py").write_text("raise OSError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Installed(Accelerator):
        device_type = "acme"
        torch_package = "torch_acme.backend"

    assert Installed.probe() == Availability.usable("torch_acme.backend is installed")
    assert "torch_acme" not in sys.modules
