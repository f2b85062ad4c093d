"""The default ``probe()`` of an accelerator looks for its package of torch, and does not import it."""

from __future__ import annotations

import sys

import pytest
from torch.overrides import TorchFunctionMode

from accelkit import Accelerator, Availability, ClusterEnvironment


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


def test_a_device_that_computes_wrongly_fails_the_default_check():
    class Wrong(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            result = function(*arguments, **(named or {}))
            return result + 1 if function.__name__ == "add" else result

    class Host(Accelerator):
        device_type = "cpu"

    assert Host().check().is_usable
    with Wrong():
        assert Host().check() == Availability.broken("[0, 1, 2, 3] + 1 gave [2.0, 3.0, 4.0, 5.0] on cpu:0")


def test_a_cluster_environment_is_shown_with_its_name():
    class Acme(ClusterEnvironment):
        pass

    environment = Acme()
    assert repr(environment) == "<cluster environment Acme>"
    environment.name = "acme"
    assert repr(environment) == "<cluster environment acme>"


def test_batches_are_copied_by_the_runtime_unless_the_accelerator_does():
    class Host(Accelerator):
        device_type = "cpu"

    assert Host().upload(iter(()), Host().device(0)) is None
