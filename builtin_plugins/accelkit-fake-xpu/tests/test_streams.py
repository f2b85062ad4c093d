"""Streams, events and non-blocking copies."""

import threading

import pytest
import torch
from torch import fake_xpu


@pytest.fixture
def slow_copies():
    """Make each copy take half a second longer."""
    with fake_xpu.fault("slow_copy@500"):
        yield
        fake_xpu.synchronize(0)
        fake_xpu.synchronize(1)


def test_a_copy_from_pinned_memory_runs_later_on_its_stream(slow_copies, device):
    source, target = torch.ones(4).pin_memory(), torch.zeros(4, device=device)
    stream = fake_xpu.Stream(device)
    with stream:
        target.copy_(source, non_blocking=True)
        done = stream.record_event()
    assert not stream.query()
    assert not done.query()
    too_early = target + 0  # on the default stream, which did not wait
    fake_xpu.current_stream(device).wait_event(done)
    with fake_xpu.device(device):
        after_waiting = target + 0
    assert done.query()
    assert stream.query()
    with fake_xpu.fault(""):
        assert too_early.tolist() == [0] * 4
        assert after_waiting.tolist() == [1] * 4


def test_a_part_of_pinned_memory_is_pinned_too(slow_copies, device):
    source, target = torch.ones(4).pin_memory()[2:], torch.zeros(2, device=device)
    with fake_xpu.Stream(device) as stream:
        target.copy_(source, non_blocking=True)
    assert not stream.query()


def test_a_copy_to_pinned_memory_runs_later_too(slow_copies, device):
    source, target = torch.ones(4, device=device), torch.zeros(4).pin_memory()
    with fake_xpu.device(device):
        target.copy_(source, non_blocking=True)
        assert target.tolist() == [0] * 4
        fake_xpu.synchronize()
    assert target.tolist() == [1] * 4


def test_from_pageable_memory_the_source_may_change_at_once(slow_copies, device):
    source = torch.ones(4)
    target = source.to(device, non_blocking=True)
    source.zero_()
    assert target.tolist() == [1] * 4


def test_what_is_queued_keeps_its_memory(slow_copies, device):
    target = torch.zeros(1 << 16, device=device)
    target.copy_(torch.ones(1 << 16).pin_memory(), non_blocking=True)
    view = target[:1]
    del target
    fake_xpu.synchronize(device)
    assert view.item() == 1


def test_a_kernel_waits_for_what_its_own_stream_holds(slow_copies, device):
    stream = fake_xpu.Stream(device)
    with stream:
        x = torch.ones(4).pin_memory().to(device, non_blocking=True)
        y = x * 2
    assert y.sum().item() == 8


def test_streams_wait_for_one_another(slow_copies, device):
    first, second = fake_xpu.Stream(device), fake_xpu.Stream(device)
    target = torch.zeros(1, device=device)
    with first:
        target.copy_(torch.ones(1).pin_memory(), non_blocking=True)
    second.wait_stream(first)
    with second:
        seen = target + 0
    assert seen.item() == 1


def test_events_time_and_order(slow_copies, device):
    start, end = fake_xpu.Event(enable_timing=True), fake_xpu.Event(enable_timing=True)
    with fake_xpu.Stream(device) as stream:
        start.record()
        torch.zeros(1, device=device).copy_(torch.ones(1).pin_memory(), non_blocking=True)
        end.record()
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.query()
    assert end.query()
    assert 500 <= start.elapsed_time(end) < 5000
    assert stream.query()
    fresh = fake_xpu.Event()
    assert fresh.query(), "an event that was never recorded is done"


def test_events_that_cannot_be_timed_say_so(device):
    timed, untimed = fake_xpu.Event(enable_timing=True), fake_xpu.Event()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        timed.elapsed_time(fake_xpu.Event(enable_timing=True))
    timed.record()
    untimed.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing=True"):
        timed.elapsed_time(untimed)
    with pytest.raises(NotImplementedError, match="cannot be shared between processes"):
        fake_xpu.Event(interprocess=True)


def test_the_current_stream(device):
    default = fake_xpu.default_stream(device)
    assert fake_xpu.current_stream(device) == default
    stream = fake_xpu.Stream(device)
    assert isinstance(stream, torch.Stream)
    assert stream.device == device
    assert stream != default
    with fake_xpu.stream(stream):
        assert fake_xpu.current_stream(device) == stream
        assert fake_xpu.current_device() == 1, "as torch.cuda.stream: its device is the current one"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(fake_xpu.current_stream(device)))
        thread.start()
        thread.join()
        assert seen == [default], "the current stream is the thread's own"
    assert fake_xpu.current_stream(device) == default
    assert fake_xpu.current_device() == 0
    with fake_xpu.stream(None):
        assert fake_xpu.current_stream() == fake_xpu.default_stream()
    fake_xpu.set_stream(stream)
    assert fake_xpu.current_stream(device) == stream
    fake_xpu.set_stream(default)
    fake_xpu.set_device(0)
    fake_xpu.set_stream(None)
    assert fake_xpu.current_stream(device) == default


def test_backward_runs_on_the_streams_of_forward(device):
    stream = fake_xpu.Stream(device)
    x = torch.ones(4, device=device, requires_grad=True)
    with stream:
        loss = (x * 2).sum()
    fake_xpu.current_stream(device).wait_stream(stream)
    loss.backward()
    assert x.grad.tolist() == [2] * 4


def test_record_stream_is_accepted(device):
    torch.ones(1, device=device).record_stream(fake_xpu.Stream(device))


@pytest.mark.parametrize("pin", [True, False])
def test_between_devices(pin, slow_copies):
    x = torch.arange(4.0, device="fake_xpu:0")
    assert x.to("fake_xpu:1", non_blocking=pin).tolist() == [0, 1, 2, 3]


SHAPES = {"t": lambda x: x.t(), "step": lambda x: x[::2], "offset": lambda x: x[1:, 1:], "expanded": lambda x: x[:1].expand(3, 4)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32])
def test_strided_and_converting_copies(shape, dtype, device):
    make = SHAPES[shape]
    x = torch.arange(16.0).view(4, 4)
    expected = make(x).to(dtype)
    assert torch.equal(make(x.to(device)).to(dtype).cpu(), expected)
    assert torch.equal(make(x).to(device, dtype).cpu(), expected)
    assert torch.equal(make(x.to(device)).to("cpu", dtype), expected)
    target = torch.zeros_like(expected, device=device)
    target.copy_(make(x.pin_memory()), non_blocking=True)
    assert torch.equal(target.cpu(), expected)


def test_torch_accelerator_waits_for_the_device(slow_copies, device):
    source, target = torch.ones(4, device=device), torch.zeros(4).pin_memory()
    with fake_xpu.device(device):
        target.copy_(source, non_blocking=True)
        torch.accelerator.synchronize()
    assert target.tolist() == [1] * 4
