"""Fixtures of the Lightning bridge's tests. They run with every version that is supported, and with both of its packages."""

from __future__ import annotations

import importlib
import os

import accelkit_fake_xpu.torch_backend  # noqa: F401 # before this process's first backward pass, at which torch counts the devices
import pytest
from device_checking_model import QUIET

THEIR_WARNINGS = (
    r"ignore:::(lightning|pytorch_lightning|lightning_fabric|torchmetrics|lightning_utilities|jsonargparse)(\.|$)",
    r"ignore:.*(LeafSpec|treespec|srun|pkg_resources|weights_only|_set_worker_loop|does not have many workers).*",
)


TRAINING = ("test_lightning_trainer.py", "test_lightning_fabric.py", "test_vendor_precisions.py")
SECOND_PACKAGES = ("pytorch_lightning", "lightning_fabric")


def pytest_collection_modifyitems(items):
    """Lightning's own warnings are not ours to mend; ours stay errors.

    Lightning's two packages are the same code under two names. What differs for us is where its classes are, which the tests of
    installation and errors and the smoke tests of training try with both; the rest of training with the second one is soak.
    """
    for item in items:
        if "bridges/lightning" not in item.path.as_posix():
            continue
        for line in THEIR_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(line))
        is_second = hasattr(item, "callspec") and any(name in item.callspec.params.values() for name in SECOND_PACKAGES)
        if is_second and item.path.name in TRAINING and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(shared_cache, monkeypatch):
    """Shared by these tests: each would try the fake XPU in a child process otherwise."""
    for name in [name for name in os.environ if name.startswith(("ACCELKIT_", "PL_", "LT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(shared_cache))
    yield
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def package(request):
    """The name of a package with a Trainer."""
    return request.param


@pytest.fixture
def pl(package):
    """The module that has the Trainer."""
    return importlib.import_module("lightning.pytorch" if package == "lightning" else package)


@pytest.fixture(params=["lightning", "lightning_fabric"])
def fabric_package(request):
    """The name of a package with a Fabric."""
    return request.param


@pytest.fixture
def fabric_class(fabric_package):
    """A Fabric."""
    return importlib.import_module("lightning.fabric" if fabric_package == "lightning" else fabric_package).Fabric


@pytest.fixture
def make_trainer(pl, package, tmp_path):
    """A Trainer of accelkit's arguments, that says little and writes to a folder of its own."""
    from accelkit.bridges.lightning import trainer_kwargs

    def make(accelerator, *, given=None, **kwargs):
        ours = trainer_kwargs(accelerator, package=package, **({"devices": 1} | (given or {})))
        return pl.Trainer(**ours, **({"default_root_dir": tmp_path, "logger": False, "max_epochs": 2} | QUIET | kwargs))

    return make
