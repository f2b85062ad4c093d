"""The static checks report mistakes only: what a plugin may do is no finding. The mistakes are in tests/discovery/vendor_mistakes.py."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

import accelkit
from accelkit import Accelerator, Availability, Capabilities, ClusterEnvironment, EngineStrategy, Precision, Strategy, hookimpl
from accelkit.discovery.loading import load_class
from accelkit.specs.static_checks.rules import find_mistakes

BUILT_IN = [record for record in accelkit.plugins() if record.is_builtin and not record.is_fallback and record.name != "torch"]


@pytest.mark.parametrize("record", BUILT_IN, ids=lambda record: f"{record.kind}-{record.name}")
def test_built_in_plugins_have_no_mistakes(record):
    assert find_mistakes(record.kind, load_class(record)) == []


class SmallestAccelerator(Accelerator):
    """As in the README."""

    device_type = "acme"
    torch_package = "torch_acme"

    @classmethod
    def probe(cls):
        return Availability.from_library("libacme.so", hint="install the ACME driver")


class UnusualAccelerator(Accelerator):
    """Everything that is allowed, though unusual."""

    device_type = "acme"
    process_group_backend = None
    declared_capabilities = Capabilities.declare(native=["dtype.float32", "dtype.float8_e8m0fnu", "acme.sparse_cores"])
    clock_rate = 2.5  # an attribute of its own

    @staticmethod
    def probe():
        return Availability.usable()

    @staticmethod
    def parse_devices(devices):
        raise NotImplementedError

    def auto_device_count(self):
        return self.auto_device_counts()[0]

    def auto_device_counts(self):  # resembles a method of the specification, but is used
        return [int(os.environ["ACME_DEVICES"])]

    def memory_stats(self, device, unit="bytes"):
        self._refuse(unit)

    def _refuse(self, what: object) -> NoReturn:
        raise accelkit.UnsupportedError(f"{what} is not supported")


class UnusualPrecision(Precision):
    """Contexts, and arguments that are starred."""

    required_capabilities = ("autocast.bfloat16", "acme.sparse_cores")

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        yield

    def optimizer_step(self, *args, **kwargs):
        return None

    def convert_input(self, data):
        def convert(leaf):
            return None if leaf is None else leaf.half()

        return accelkit.tree_map(convert, data)

    @hookimpl
    def checkpoint_saved(self):
        pass


class UnusualCluster(ClusterEnvironment):
    """Cached properties and constants instead of properties."""

    creates_processes_externally = True
    main_port = 1234

    @functools.cached_property
    def world_size(self) -> int:
        return self.number("ACME_WORLD")

    @property
    def job_id(self):
        return os.environ.get("ACME_JOB")


class UnsetVariables(ClusterEnvironment):
    """Variables that may be unset: as text with a default, and converted to numbers."""

    @property
    def main_address(self):
        return self.environ.get("ACME_HOST", "localhost")

    @property
    def job_id(self):
        return os.getenv("ACME_JOB", default=None)

    @property
    def world_size(self):
        return int(os.environ.get("ACME_WORLD", "1"))


class TextForNumbers(ClusterEnvironment):
    """Variables that are returned as text if they are set."""

    @property
    def world_size(self):
        return os.environ.get("ACME_WORLD", 1)  # noqa: PLW1508

    @property
    def main_address(self):
        return os.environ.get("ACME_HOST", default=0)  # noqa: PLW1508


class UnusualStrategy(EngineStrategy):
    """An engine."""

    def wrap_training(self, module, optimizer, settings):
        return module

    def backward(self, loss, **kwargs):
        loss.backward(**kwargs)

    def step(self, optimizer):
        return optimizer.step() or True

    def zero_grad(self, optimizer):
        optimizer.zero_grad()


class UnusualHooks:
    """Subsets of the arguments, a wrapper, and a method of its own."""

    @hookimpl
    def runtime_created(self):
        self.show("runtime_created")

    @hookimpl(wrapper=True)
    def setup_device(self, device):
        return (yield)

    @hookimpl
    def detect_cluster(self, environ):
        return None

    def show(self, text):
        """Print the text."""


class PlainStrategy(Strategy):
    """Overrides nothing."""


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("accelerator", SmallestAccelerator),
        ("accelerator", UnusualAccelerator),
        ("precision", UnusualPrecision),
        ("cluster", UnusualCluster),
        ("cluster", UnsetVariables),
        ("strategy", UnusualStrategy),
        ("strategy", PlainStrategy),
        ("hooks", UnusualHooks),
    ],
)
def test_what_is_allowed_is_not_reported(kind, cls):
    assert find_mistakes(kind, cls) == []


def test_a_variable_is_text_if_it_is_set_and_has_the_type_of_the_default_if_not():
    found = {mistake.what for mistake in find_mistakes("cluster", TextForNumbers)}
    assert any("world_size returns a str" in what for what in found), found
    assert any("main_address returns a int" in what for what in found), found
