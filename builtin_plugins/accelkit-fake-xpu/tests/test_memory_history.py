"""The history of allocations: torch.fake_xpu.memory._record_memory_history and the snapshots that torch's own tools read."""

import base64
import gc
import pickle
import re

import pytest
import torch
from torch import fake_xpu
from torch.cuda import _memory_viz as memory_viz

MIB = 1 << 20
LARGE = 3 * MIB + 64  # a size that no other allocation of these tests has


@pytest.fixture(autouse=True)
def no_history():
    gc.collect()
    yield
    fake_xpu.memory._record_memory_history(None)


def allocate(device, size=LARGE):
    return torch.empty(size, dtype=torch.uint8, device=device)


def trace(device):
    return fake_xpu.memory._snapshot()["device_traces"][device.index]


def actions(device):
    return [entry["action"] for entry in trace(device) if entry["action"] != "snapshot"]


def test_allocating_and_freeing_are_recorded_in_order(device):
    earlier = allocate(device)
    stream = torch.fake_xpu.Stream(device)
    fake_xpu.memory._record_memory_history()
    with torch.fake_xpu.stream(stream):
        x = allocate(device)
    address = x.data_ptr()
    del x
    entries = [entry for entry in trace(device) if entry["action"] != "snapshot"]
    assert [entry["action"] for entry in entries] == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    for entry in entries:
        assert (entry["addr"], entry["size"], entry["device"], entry["stream"]) == (address, LARGE, 1, stream.stream_id)
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)
    assert trace(torch.device("fake_xpu", 0))[0]["action"] == "snapshot", "the other device has a history of its own"
    del earlier
    assert actions(device).count("free_completed") == 2


def test_the_result_of_a_kernel_is_recorded_with_the_python_code_that_called_it(device):
    x = allocate(device)
    fake_xpu.memory._record_memory_history()
    y = x + 1
    (entry,) = [entry for entry in trace(device) if entry["action"] == "alloc" and entry["size"] == LARGE]
    assert entry["addr"] == y.data_ptr()
    frame = entry["frames"][0]
    code = test_the_result_of_a_kernel_is_recorded_with_the_python_code_that_called_it.__code__
    assert (frame["filename"], frame["name"], frame["line"]) == (__file__, code.co_name, code.co_firstlineno + 3)


def test_a_backward_pass_in_threads_of_torch_is_recorded(device):
    weight = torch.ones(512, 512, device=device, requires_grad=True)
    fake_xpu.memory._record_memory_history()
    for _ in range(20):
        (weight @ weight).sum().backward()
    assert actions(device).count("alloc") > 20
    assert weight.grad.data_ptr() in [entry["addr"] for entry in trace(device) if entry["action"] == "alloc"]


def test_a_snapshot_has_all_memory_that_is_allocated(device):
    earlier = allocate(device)
    fake_xpu.memory._record_memory_history()
    later = allocate(device, 2 * LARGE)
    segments = [segment for segment in fake_xpu.memory._snapshot()["segments"] if segment["device"] == device.index]
    assert sum(segment["total_size"] for segment in segments) == fake_xpu.memory_allocated(device)
    blocks = {block["address"]: block for segment in segments for block in segment["blocks"]}
    assert blocks[earlier.data_ptr()]["size"] == LARGE
    assert blocks[earlier.data_ptr()]["frames"] == []
    assert blocks[later.data_ptr()]["frames"][0]["name"] == "allocate"
    assert {block["state"] for block in blocks.values()} == {"active_allocated"}


def test_resizing_moves_a_block(device):
    x = torch.arange(4, device=device)
    fake_xpu.memory._record_memory_history()
    x.resize_(LARGE // 8)
    assert [(entry["action"], entry["size"]) for entry in trace(device) if entry["action"] in {"alloc", "free_completed"}] == [
        ("alloc", LARGE),
        ("free_completed", 32),
    ]


def test_only_the_newest_entries_are_kept(device):
    fake_xpu.memory._record_memory_history(max_entries=7)
    for size in range(1, 101):
        allocate(device, size)
    entries = trace(device)
    assert len(entries) == 7
    assert [entry["size"] for entry in entries if entry["action"] == "alloc"] == [100]


def test_a_recording_that_ends_discards_its_history(device):
    fake_xpu.memory._record_memory_history()
    allocate(device)
    assert actions(device)
    fake_xpu.memory._record_memory_history(None)
    allocate(device)
    assert fake_xpu.memory._snapshot()["device_traces"] == [[], []]


def test_a_recording_can_be_continued_or_begun_anew(device):
    fake_xpu.memory._record_memory_history()
    allocate(device)
    fake_xpu.memory._record_memory_history(context=None)
    allocate(device)
    assert [bool(entry["frames"]) for entry in trace(device) if entry["action"] == "alloc"] == [True, False]
    fake_xpu.memory._record_memory_history(clear_history=True)
    assert actions(device) == []


def test_actions_can_be_skipped(device):
    fake_xpu.memory._record_memory_history(skip_actions=["segment_alloc", "segment_free", "free_requested"])
    allocate(device)
    assert actions(device) == ["alloc", "free_completed"]


def test_the_state_alone_has_no_history(device):
    fake_xpu.memory._record_memory_history("state")
    x = allocate(device)
    assert actions(device) == []
    (frames,) = [one["frames"] for one in fake_xpu.memory._snapshot()["segments"] if one["address"] == x.data_ptr()]
    assert frames[0]["name"] == "allocate"


def test_an_allocation_that_fails_is_recorded(device):
    fake_xpu.memory._record_memory_history()
    free, _ = fake_xpu.mem_get_info(device)
    with pytest.raises(torch.OutOfMemoryError):
        allocate(device, free + 1)
    (entry,) = [entry for entry in trace(device) if entry["action"] == "oom"]
    assert (entry["size"], entry["device_free"], entry["frames"][0]["name"]) == (free + 1, free, "allocate")
    assert "addr" not in entry


@pytest.mark.parametrize("options", [{"enabled": "some"}, {"context": "none"}, {"stacks": "c++"}, {"skip_actions": ["frees"]}])
def test_a_wrong_argument_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be one of "):
        fake_xpu.memory._record_memory_history(**options)


def test_torchs_tools_read_the_file(device, tmp_path):
    fake_xpu.memory._record_memory_history()
    x = allocate(device)
    y = allocate(device, 64)
    address = y.data_ptr()
    del y
    file = tmp_path / "snapshot.pickle"
    fake_xpu.memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert f"total_allocated: {memory_viz.Bytes(fake_xpu.memory_allocated(0) + fake_xpu.memory_allocated(1))}" in memory_viz.segsum(
        snapshot
    )
    told = memory_viz.trace(snapshot)
    assert f"cudaMalloc({x.data_ptr()}, 3.0MiB)" in told
    assert f"cudaMalloc({address}, 64.0B)" in told
    assert "free completed for " in told
    for page in (memory_viz.trace_plot(snapshot), memory_viz.segment_plot(snapshot)):
        assert any(pickle.loads(base64.b64decode(text)) == snapshot for text in re.findall(r"[A-Za-z0-9+/=]{100,}", page))
