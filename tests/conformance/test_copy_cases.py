"""Copies of every kind: each pair of settings is tested, whatever dtypes the device lacks, and expected failures can select copies."""

from __future__ import annotations

import itertools

import pytest

import accelkit
from accelkit.discovery.catalog import find
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.oracle.copy_cases import cases, check_broadcasts, check_every_copy
from accelkit_conformance.oracle.layouts import LAYOUTS
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.subject import Subject

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")

LAYOUT_NAMES = ("contiguous", *LAYOUTS)
SHAPES = ("33 x 65", "0-d", "empty", "one", "2 x 3 x 5 x 7", "70,001")


@pytest.fixture
def passed():
    """Returns a function that runs a check on the CPU, and returns the descriptions of the inputs that ``sample`` selects."""

    def descriptions(check, sample="True", lacking=()):
        cpu = type(accelkit.select("cpu").accelerator)
        none = dict.fromkeys([f"dtype.{name}" for name in lacking], "none")
        accelerator = type("Lacking", (cpu,), {"declared_capabilities": cpu.declared_capabilities.updated(none)})()
        accelerator.load()
        subject = Subject(find("accelerator", "cpu"), type(accelerator))
        subject.use(accelerator)
        subject.begin((Expectation("*", "every input passes", "", "2999-01-01", sample=sample),))
        check(subject, "within_a_device")
        assert not subject.failures
        return subject.passed_though_expected

    return descriptions


@pytest.mark.parametrize("lacking", [(), ("float64",), ("float64", "complex128", "int16")], ids=" ".join)
def test_every_pair_of_settings_is_copied(passed, lacking):
    dtypes = [name for name in DTYPES if name not in lacking]
    axes = {"source dtype": dtypes, "target dtype": dtypes, "source layout": LAYOUT_NAMES, "shape": SHAPES}
    found = [f"{one}," for one in passed(check_every_copy, lacking=lacking)]
    copies = {"call copy_": {**axes, "target layout": LAYOUT_NAMES, "call": ("copy_", "copy_, non_blocking")}, "call to,": axes}
    for call, settings in copies.items():
        own = [one for one in found if call in one]
        for (axis, values), (other, others) in itertools.combinations(settings.items(), 2):
            pairs = [(f"{axis} {value},", f"{other} {another},") for value in values for another in others]
            assert [pair for pair in pairs if not any(pair[0] in one and pair[1] in one for one in own)] == [], call


@pytest.mark.parametrize("layout", ["strided", "offset", "transposed", "channels_last", "narrowed"])
@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "complex64"])
def test_tensors_are_copied_to_tensors_of_the_same_layout(passed, dtype, layout):
    found = passed(check_every_copy, f"locals().get('source_dtype') == '{dtype}' == target_dtype and source_layout == '{layout}'")
    for shape in ("33 x 65", "2 x 3 x 5 x 7"):
        start = f"source dtype {dtype}, target dtype {dtype}, source layout {layout}, shape {shape}"
        for end in (f"target layout {layout}, call copy_", f"target layout {layout}, call copy_, non_blocking", "call to"):
            assert f"{start}, {end}" in found


def test_an_expected_failure_can_select_copies(passed):
    (name,) = passed(check_every_copy, "locals().get('source_dtype') == 'int8' and target_dtype == 'bool' and call != 'to'")
    assert name.startswith("source dtype int8, target dtype bool")
    assert passed(check_broadcasts, "shape == (1,) and target_shape == () and dtype == target_dtype == 'int64'") == []
    (name,) = passed(check_broadcasts, "shape == (1,) and target_shape == (4,) and dtype == target_dtype == 'int64'")
    assert name == "int64 [1] to int64 [4], contiguous"


def test_the_names_of_settings_are_names_of_variables():
    assert all(name.isidentifier() for case in cases() for name in case)
