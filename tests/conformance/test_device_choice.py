"""The device on which a test runs depends on the test alone, so that the number of workers changes no result."""

from __future__ import annotations

import pytest

from accelkit.selection import resolve
from accelkit_conformance.results import Result
from accelkit_conformance.runner import Runner
from accelkit_conformance.subject import device_index
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")

TESTS = [f"operators/forward[add,{dtype}]" for dtype in ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "uint8")]
ON_EACH = "device/results_stay_on_the_device"
"""A check of the area device, which runs on every device."""

WRONG_ON_ONE_DEVICE = """
from accelkit_conformance.mutants.broken import Broken


class Wrong(Broken):
    '''On one device, sums are one too large and the results of nonzero are on the CPU.'''

    def fault(self, name, call, args, kwargs, func):
        result = call()
        if name == "nonzero" and result.device.index == {index}:
            return result.cpu()
        return result + 1 if name == "add.Tensor" and result.device.index == {index} else result
"""


def killers(folder, *, parallel):
    """Return the tests that fail on the plugin, and the number of workers that ran them."""
    folder.mkdir()
    runner = Runner(Order(resolve("wrong")), folder, parallel=parallel, reruns=0)
    results = [event for event in runner.run([*TESTS, ON_EACH]) if isinstance(event, Result)]
    assert len(results) == len(TESTS) + 1
    return {result.id for result in results if result.kind == "fail"}, len({result.worker for result in results})


def test_ids_are_spread_over_the_devices():
    assert {device_index(test, 2) for test in TESTS} == {0, 1}
    counts = [sum(device_index(f"operators/forward[{n}]", 4) == index for n in range(4000)) for index in range(4)]
    assert all(900 < count < 1100 for count in counts)
    assert {device_index(test, 1) for test in TESTS} == {0}


@pytest.mark.parametrize("index", [0, 1])
def test_one_worker_and_four_find_the_same_on_each_device(plugin_site, tmp_path, index):
    plugin_site.install("vendor-wrong", WRONG_ON_ONE_DEVICE.format(index=index), accelerators={"wrong": "Wrong"})
    by_one, _ = killers(tmp_path / "one", parallel=1)
    by_four, num_workers = killers(tmp_path / "four", parallel=4)
    assert num_workers > 1
    assert by_one == by_four == {test for test in TESTS if device_index(test, 2) == index} | {ON_EACH}, (
        "each found only what is on its device"
    )
