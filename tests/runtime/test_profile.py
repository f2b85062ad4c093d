"""Runtime.profile: its phases, what it finds, and its trace."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import accelkit
from accelkit.runtime.profiling.intervals import clip, subtract, total, union
from accelkit.runtime.profiling.summary import PHASES

SLOW = 0.1  # seconds that something slow takes in each step, which is many times what the rest of a step takes


@pytest.fixture
def slow_copies():
    assert accelkit.Runtime("fake_xpu").device.type == "fake_xpu"  # registers torch.fake_xpu
    with torch.fake_xpu.fault(f"slow_copy@{SLOW * 1000:.0f}"):
        yield


class Samples(Dataset):
    def __init__(self, delay=0.0):
        self.delay = delay

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(self.delay)
        return torch.ones(8), torch.zeros(2)


class Model(nn.Module):
    def __init__(self, delay=0.0, visits_cpu=False):
        super().__init__()
        self.layer, self.delay, self.visits_cpu = nn.Linear(8, 2), delay, visits_cpu

    def forward(self, x):
        time.sleep(self.delay)
        return self.layer(x.cpu().to(x.device) if self.visits_cpu else x)


def profiled(accelerator, *, data=0.0, forward=0.0, loop=0.0, visits_cpu=False, num_steps=3, active=2, **options):
    runtime = accelkit.Runtime(accelerator)
    model = Model(forward, visits_cpu)
    model, optimizer, loader = runtime.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Samples(data / 8), batch_size=8, pin_memory=False)
    )
    with runtime.profile(active=active, **options) as profiler:
        for number, (x, y) in enumerate(loader, 1):
            runtime.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(loop)
            profiler.step()
            if number == num_steps:
                break
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    return profiler


def largest(summary):
    return max(summary.phases, key=summary.phases.get)


def test_a_slow_loader_is_named():
    summary = profiled("cpu", data=SLOW).summary
    assert largest(summary) == "data"
    (finding,) = [finding for finding in summary.findings if finding.startswith("data: waiting for the loader takes ")]
    assert finding in str(summary)


@pytest.mark.usefixtures("slow_copies")
def test_slow_copies_to_the_device_are_named():
    summary = profiled("fake_xpu").summary
    assert largest(summary) == "copies"
    assert any(finding.startswith("copies: copying from cpu to fake_xpu takes ") for finding in summary.findings)
    (copies,) = summary.copies
    assert (copies.source, copies.target, copies.phase, copies.count, copies.bytes) == ("cpu", "fake_xpu", "other", 2, 8 * 10 * 4)


@pytest.mark.usefixtures("slow_copies")
def test_copies_inside_the_forward_pass_are_named():
    summary = profiled("fake_xpu", visits_cpu=True).summary
    assert any(finding.startswith("copies: copying from fake_xpu to cpu in the forward phase takes ") for finding in summary.findings)


@pytest.mark.parametrize(("place", "phase", "finding"), [("forward", "forward", "forward: Python"), ("loop", "other", "other: loop code")])
def test_slow_python_code_is_named(place, phase, finding):
    summary = profiled("cpu", **{place: SLOW}).summary
    assert largest(summary) == phase
    assert any(each.startswith(finding) for each in summary.findings)


def test_the_phases_are_the_whole_step():
    summary = profiled("cpu").summary
    assert summary.num_steps == 2
    assert tuple(summary.phases) == PHASES
    assert all(summary.phases[phase] > 0 for phase in ("data", "forward", "backward", "optimizer"))
    assert sum(summary.phases.values()) == pytest.approx(summary.step_ms)
    assert summary.step_ms * 2 < 1000 * 60, "milliseconds per step"
    assert "aten::addmm" in {operator.name for operator in summary.operators}


def test_the_work_and_the_memory_of_a_device_are_summarised():
    """The fake XPU reports its kernels and allocations to torch.profiler."""
    summary = profiled("fake_xpu").summary
    assert 0 < summary.device_ms < summary.step_ms
    names = [operator.name for operator in summary.operators]
    assert len(names) == len(set(names))
    assert all(name.startswith("aten::") for name in names), "kernels are not listed beside their operators"
    assert summary.operators[0].device_ms > 0
    assert sum(operator.device_ms for operator in summary.operators) < summary.step_ms
    assert summary.peak_bytes >= 4 * (2 * 8 + 2)
    assert summary.peak_at.startswith(("forward", "backward", "optimizer", "other"))
    assert "device busy" in str(summary)


def test_a_thousand_calls_have_no_exponent():
    with accelkit.Runtime("cpu").profile(active=1) as profiler:
        for _ in range(2):
            for _ in range(1234):
                torch.ones(1).neg()
            profiler.step()
    assert re.search(r"aten::neg +1234 ", str(profiler.summary))


def test_a_loop_that_ends_early_is_summarised_without_its_unfinished_step():
    runtime = accelkit.Runtime("cpu")
    ones = torch.ones(2, device=runtime.device)
    with runtime.profile(active=10) as profiler:
        for number in range(4):
            ones.mul(ones)
            if number < 3:
                profiler.step()
    assert profiler.summary.num_steps == 2
    assert {operator.name: operator.calls for operator in profiler.summary.operators} == {"aten::mul": 1}


def test_work_and_memory_of_another_device_do_not_count():
    runtime = accelkit.Runtime("fake_xpu")
    assert runtime.device.index == 0
    with runtime.profile(active=2) as profiler:
        for number in range(3):
            torch.ones(1_000_000, device="fake_xpu:1").exp()
            if number == 1:
                torch.ones(100, device=runtime.device)
            profiler.step()
    assert profiler.summary.peak_bytes < 1_000_000
    assert profiler.summary.device_ms < sum(operator.device_ms for operator in profiler.summary.operators) / 2


def test_a_loop_that_ends_before_the_recorded_steps_has_no_summary():
    assert profiled("cpu", num_steps=2, wait=5).summary is None


def test_a_forward_pass_that_fails_ends_its_range():
    runtime = accelkit.Runtime("cpu")
    model = runtime.prepare(Model())
    profiler = runtime.profile(warmup=1, active=1)
    with profiler:
        profiler.step()
        model(torch.ones(4, 8))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(4, 3))
        model(torch.ones(4, 8))
        profiler.step()
    forward = [event for event in profiler.torch_profiler.events() if event.name == "accelkit::forward"]
    assert len(forward) == 3


def test_an_error_that_ends_the_loop_passes():
    profiler = accelkit.Runtime("cpu").profile()
    with pytest.raises(ZeroDivisionError), profiler:
        1 / 0  # noqa: B018
    assert profiler.summary is None


def test_the_trace_is_one_that_perfetto_reads(tmp_path):
    profiled("cpu", folder=tmp_path, active=2)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("rank0.")
    assert file.name.endswith(".pt.trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] > 0 and {"pid", "tid"} <= event.keys() for event in complete)
    assert sum(event["name"].startswith("ProfilerStep#") for event in complete) == 2
    assert sum(event["name"] == "accelkit::forward" for event in complete) == 2


@pytest.mark.parametrize("options", [{"active": 0}, {"wait": -1}, {"warmup": 1.5}])
def test_a_wrong_number_of_steps_is_refused(options, error_text):
    ((name, value),) = options.items()
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime("cpu").profile(**options)
    assert f"{name}={value}" in caught.value.what
    assert caught.value == error_text


def test_intervals_are_sets_of_moments():
    draw = random.Random(3)
    for _ in range(200):
        first, second = ([(start, start + draw.randrange(8)) for start in draw.choices(range(60), k=6)] for _ in range(2))
        moments = [{moment for start, end in given for moment in range(start, end)} for given in (first, second)]
        one, other = union(first), union(second)
        for found, expected in (
            (one, moments[0]),
            (subtract(one, other), moments[0] - moments[1]),
            (clip(one, other), moments[0] & moments[1]),
        ):
            assert {moment for start, end in found for moment in range(start, end)} == expected
            assert total(found) == len(expected)
            assert found == sorted(found)
