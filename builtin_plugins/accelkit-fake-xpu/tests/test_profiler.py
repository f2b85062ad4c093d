"""What the device reports to torch.profiler: kernels, copies and allocations."""

import json

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

IS_RECORDED = torch.torch_version.TorchVersion(torch.__version__) >= (2, 13)
pytestmark = pytest.mark.skipif(not IS_RECORDED, reason="the profiler of this torch cannot record the activities of other backends")


def recorded(function, **options):
    """Run ``function`` under ``torch.profiler.profile``, and return the profiler and the device's events, sorted by start time."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], **options) as profiler:
        function()
        torch.accelerator.synchronize()
    results = profiler.profiler.kineto_results.events()
    return profiler, sorted(
        (event for event in results if event.device_type() == DeviceType.PrivateUse1), key=lambda event: event.start_ns()
    )


@pytest.fixture
def matrix():
    return torch.ones(64, 64, device="fake_xpu")


def test_kernels_are_recorded_with_the_operators_that_launched_them(matrix):
    profiler, events = recorded(lambda: (matrix @ matrix).add_(1))
    assert [event.name() for event in events] == ["mm_kernel", "add__kernel"]
    assert all(event.duration_ns() > 0 for event in events)
    by_name = {event.key: event for event in profiler.key_averages() if event.device_type == DeviceType.CPU}
    for operator, event in (("aten::mm", events[0]), ("aten::add_", events[1])):
        assert by_name[operator].self_device_time_total == pytest.approx(event.duration_ns() / 1000)
    assert by_name["aten::matmul"].device_time_total == pytest.approx(events[0].duration_ns() / 1000)
    assert by_name["aten::matmul"].self_device_time_total == 0


def test_each_activity_is_on_its_device_and_stream(matrix):
    other = torch.ones(8, device="fake_xpu:1")
    stream = torch.Stream("fake_xpu:0")

    def work():
        with stream:
            matrix.add(1)
        other.mul(2)

    _, events = recorded(work)
    assert [(event.name(), event.device_index(), event.device_resource_id()) for event in events] == [
        ("add_kernel", 0, stream.stream_id),
        ("mul_kernel", 1, 0),
    ]


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_copies_are_recorded(matrix, is_asynchronous):
    host = torch.ones(64, 64).pin_memory()
    _, events = recorded(lambda: matrix.copy_(host, non_blocking=is_asynchronous))
    (event,) = events
    assert event.name() == "Memcpy HtoD"
    assert event.linked_correlation_id() > 0, "the operator that queued the copy"
    assert [event.name() for event in recorded(matrix.cpu)[1]] == ["Memcpy DtoH"]
    assert [event.name() for event in recorded(lambda: matrix.to("fake_xpu:1"))[1]] == ["Memcpy DtoD"]


def test_views_are_no_work(matrix):
    assert recorded(lambda: matrix.t().view(64, 8, 8))[1] == []


def test_recordings_are_separate(matrix):
    assert len(recorded(lambda: matrix.add(1))[1]) == 1
    matrix.add(1)
    assert len(recorded(lambda: matrix.mul(2))[1]) == 1


def test_operators_of_another_thread_are_linked(matrix):
    """The backward pass runs in autograd's thread for the device."""
    leaf = matrix.requires_grad_()
    loss = (leaf * 3).sum()
    profiler, _ = recorded(loss.backward)
    (multiply,) = [event for event in profiler.key_averages() if event.key == "aten::mul" and event.device_type == DeviceType.CPU]
    assert multiply.self_device_time_total > 0


def test_allocations_are_recorded():
    before = torch.accelerator.memory_allocated("fake_xpu")
    profiler, _ = recorded(lambda: torch.empty(1000, dtype=torch.uint8, device="fake_xpu"), profile_memory=True)
    allocations = [
        event
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == DeviceType.PrivateUse1
    ]
    assert [event.nbytes() for event in allocations] == [1000, -1000]
    assert torch.accelerator.memory_allocated("fake_xpu") == before


def test_the_trace_has_the_kernels_beside_the_operators(matrix, tmp_path):
    profiler, _ = recorded(lambda: matrix @ matrix)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (kernel,) = [event for event in events if event.get("cat") == "kernel"]
    (operator,) = [event for event in events if event.get("name") == "aten::mm"]
    assert kernel["name"] == "mm_kernel"
    difference = 1000  # microseconds: torch reads another clock for operators, and converts its times
    assert operator["ts"] - difference <= kernel["ts"] <= operator["ts"] + operator["dur"] + difference
    (stream,) = [event for event in events if event.get("name") == "thread_name" and event["args"]["name"] == "stream 0"]
    assert (stream["pid"], stream["tid"]) == (kernel["pid"], kernel["tid"])


def test_a_fault_makes_recordings_wrong(matrix):
    """Each ``recording`` fault makes the recording wrong in the documented way. The conformance suite has a mutant for each of them."""

    def add_and_multiply():
        matrix.add(1)
        matrix.mul(2)

    with torch.fake_xpu.fault("recording@twice"):
        assert len(recorded(add_and_multiply)[1]) == 4
    with torch.fake_xpu.fault("recording@no_kernels"):
        assert recorded(add_and_multiply)[1] == []
    with torch.fake_xpu.fault("recording@device"):
        assert recorded(lambda: torch.ones(8, device="fake_xpu:1"))[1][0].device_index() == 0
    with torch.fake_xpu.fault("recording@caller"):
        _, (add, multiply) = recorded(add_and_multiply)
    assert add.linked_correlation_id() == multiply.linked_correlation_id()
    assert len(recorded(add_and_multiply)[1]) == 2
