"""Runtime.profile(memory_snapshot=True): the file with the allocations, and the end of their recording on every path."""

from __future__ import annotations

import pickle
import resource

import pytest
import torch

import accelkit
from accelkit.runtime.profiling.memory_history import MemoryHistory
from accelkit.runtime.rank_info import RankInfo
from accelkit_builtin.clusters.local import LocalEnvironment
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment

SIZE = 3 * 1024 * 1024 + 64  # bytes of the allocation in each step, a size that no other allocation has


@pytest.fixture
def runtime():
    runtime = accelkit.Runtime("fake_xpu")
    assert runtime.device.type == "fake_xpu"  # registers torch.fake_xpu
    yield runtime
    torch.fake_xpu.memory._record_memory_history(None)


def is_recording():
    return any(torch.fake_xpu.memory._snapshot()["device_traces"])


def allocate(factor=1):
    torch.empty(SIZE * factor, dtype=torch.uint8, device="fake_xpu")


def profiled(runtime, folder, *, num_steps=3, work=allocate, **options):
    """Profile a loop. By default, its step number n allocates n * SIZE bytes and frees them again."""
    with runtime.profile(folder=folder, memory_snapshot=True, **options) as profiler:
        for number in range(1, num_steps + 1):
            work(number)
            profiler.step()
    return profiler


def read(folder):
    (file,) = folder.glob("*.memory.pickle")
    return pickle.loads(file.read_bytes())


def sizes(snapshot, action):
    """The sizes of the entries, as multiples of SIZE. Other allocations are left out."""
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    return [entry["size"] // SIZE for entry in entries if entry["action"] == action and entry["size"] % SIZE == 0 and entry["size"]]


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize(("options", "expected"), [({"wait": 1, "warmup": 1, "active": 2}, [3, 4]), ({"warmup": 0, "active": 2}, [1, 2])])
def test_the_file_has_the_allocations_of_the_steps_that_are_kept(options, expected, runtime, tmp_path):
    profiler = profiled(runtime, tmp_path / "new", num_steps=5, **options)
    snapshot = read(tmp_path / "new")
    assert sizes(snapshot, "alloc") == sizes(snapshot, "free_completed") == expected
    entry = next(entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc" and entry["size"] % SIZE == 0)
    assert (entry["frames"][0]["filename"], entry["frames"][0]["name"]) == (__file__, "allocate")
    assert profiler.memory_snapshot in (tmp_path / "new").iterdir()
    assert profiler.memory_snapshot.name.startswith("rank0.")
    assert profiler.summary.num_steps == 2
    assert len(list((tmp_path / "new").iterdir())) == 2, "the trace and the snapshot"
    assert not is_recording()


def test_nothing_is_recorded_unless_requested(runtime, tmp_path):
    with runtime.profile(warmup=1, active=1, folder=tmp_path) as profiler:
        profiler.step()
        allocate()
        assert not is_recording()
        profiler.step()
    assert profiler.memory_snapshot is None
    assert [path.name.endswith(".pt.trace.json") for path in tmp_path.iterdir()] == [True]


def test_a_loop_that_ends_early_writes_what_was_recorded(runtime, tmp_path):
    assert profiled(runtime, tmp_path, num_steps=3, active=10).memory_snapshot is not None
    assert sizes(read(tmp_path), "alloc") == [2, 3]
    assert not is_recording()


def test_a_loop_that_ends_before_the_recorded_steps_writes_no_file(runtime, tmp_path):
    assert profiled(runtime, tmp_path, num_steps=2, wait=5).memory_snapshot is None
    assert list(tmp_path.glob("*.memory.pickle*")) == []


def test_an_error_in_the_loop_ends_the_recording_without_a_file(runtime, tmp_path):
    def work(number):
        if number == 2:
            assert is_recording()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profiled(runtime, tmp_path, work=work)
    assert not is_recording()
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_runs_out_of_memory_writes_a_file_that_the_error_names(runtime, tmp_path):
    free, _ = torch.fake_xpu.mem_get_info()
    too_large = free // SIZE + 1
    with pytest.raises(torch.OutOfMemoryError) as caught:
        profiled(runtime, tmp_path, work=lambda number: allocate(number if number < 3 else too_large), active=9)
    assert (sizes(read(tmp_path), "alloc"), sizes(read(tmp_path), "oom")) == ([2], [too_large])
    (file,) = tmp_path.iterdir()
    assert str(file) in caught.value.__notes__[0]
    assert not is_recording()


@pytest.mark.parametrize("active", [1, 10], ids=["inside the loop", "after the loop"])
def test_a_trace_that_cannot_be_written_ends_the_recording(active, runtime, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match="create directory"):
        profiled(runtime, tmp_path / "file", active=active)
    assert not is_recording()


def test_a_module_that_fails_to_return_the_snapshot_is_named_with_its_plugin(runtime, tmp_path, monkeypatch):
    snapshot = torch.fake_xpu.memory._snapshot

    def fail_during_a_recording():
        found = snapshot()
        if any(found["device_traces"]):
            raise RuntimeError("the driver has lost its memory")
        return found

    monkeypatch.setattr(torch.fake_xpu.memory, "_snapshot", fail_during_a_recording)
    with pytest.raises(RuntimeError, match="the driver has lost its memory") as caught:
        profiled(runtime, tmp_path)
    assert caught.value.__notes__[0].startswith("torch.fake_xpu.memory, which belongs to the plugin accelkit-fake-xpu==")
    assert not is_recording()
    assert list(tmp_path.glob("*.memory.pickle*")) == []


def test_a_file_that_cannot_be_written_is_not_blamed_on_the_module(runtime, tmp_path):
    history = MemoryHistory(runtime.accelerator, runtime.device, tmp_path, RankInfo(LocalEnvironment()))
    history.start()
    allocate()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            history.end(None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not hasattr(caught.value, "__notes__")
    assert not is_recording()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("enabled", ["all", "state"])
def test_a_history_that_the_program_records_itself_goes_on(enabled, runtime, tmp_path):
    torch.fake_xpu.memory._record_memory_history(enabled, context="state")
    allocate(7)
    profiled(runtime, tmp_path)
    assert is_recording()
    assert sizes(read(tmp_path), "alloc") == ([7, 1, 2, 3] if enabled == "all" else [])


def test_a_snapshot_needs_a_folder(runtime, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        runtime.profile(memory_snapshot=True)
    assert caught.value == error_text


def test_a_device_that_cannot_record_allocations_is_refused(tmp_path, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime("cpu").profile(folder=tmp_path, memory_snapshot=True)
    assert caught.value == error_text


def test_a_device_whose_module_lacks_a_function_is_refused(runtime, tmp_path, monkeypatch):
    monkeypatch.delattr(torch.fake_xpu.memory, "_snapshot")
    with pytest.raises(accelkit.UnsupportedError) as caught:
        runtime.profile(folder=tmp_path, memory_snapshot=True)
    assert caught.value.why == "torch.fake_xpu.memory does not have _snapshot"
    assert caught.value.plugin.startswith("accelkit-fake-xpu==")


def test_each_process_writes_a_file_of_its_own(runtime, tmp_path, monkeypatch):
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 3, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    history = MemoryHistory(runtime.accelerator, runtime.device, tmp_path, RankInfo(TorchElasticEnvironment()))
    history.start()
    assert history.end(None).name.startswith("rank3.")
