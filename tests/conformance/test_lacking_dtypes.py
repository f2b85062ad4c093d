"""A dtype that an accelerator declares to lack is used by no check's machinery."""

import dataclasses

import pytest

from accelkit.discovery.metadata import installed_version
from accelkit.selection import resolve
from accelkit_conformance import checks, profiles
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import BAD, Result
from accelkit_conformance.runner import Runner
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")

SMOKE = [test for test in profiles.suite("smoke", installed_version("torch")).tests if checks.find(test)[0].needs_hardware]
LACKABLE = [dtype for dtype in DTYPES if dtype != "float32"]
AREAS = ("device", "memory", "errors", "serialization")


def failures(dtype, tests, folder):
    record = dataclasses.replace(resolve("fake_xpu"), value=f"lacking_dtype:{dtype}")
    events = Runner(Order(record), folder, parallel=1, reruns=0).run(tests)
    results = [event for event in events if isinstance(event, Result)]
    assert len(results) == len(tests)
    assert sum(result.kind == "pass" for result in results) > len(tests) // 3
    return {result.id: result.reason for result in results if result.kind in BAD}


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_a_dtype_that_a_device_lacks_fails_no_test(tmp_path, dtype):
    tests = [test for test in SMOKE if checks.area_of(test) in AREAS]
    assert not failures(dtype, [*tests, "operators/forward[to,float32]", "autograd/output_gradients[zero]"], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", LACKABLE)
def test_no_dtype_that_a_device_lacks_fails_a_test(tmp_path, dtype):
    assert not failures(dtype, SMOKE, tmp_path)
