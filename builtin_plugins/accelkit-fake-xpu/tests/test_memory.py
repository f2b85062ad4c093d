"""Memory: how it is counted, limited, pinned and protected."""

import gc

import pytest
import torch
from torch import fake_xpu

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_garbage():
    """Free the tensors of earlier tests, which would otherwise be freed at any time during this test."""
    gc.collect()


def test_allocating_is_counted_and_freeing_too(device):
    before = fake_xpu.memory_allocated(device)
    x = torch.empty(MIB, dtype=torch.uint8, device=device)
    assert fake_xpu.memory_allocated(device) == before + MIB
    assert torch.accelerator.memory_allocated(device) == before + MIB
    y = x + 1
    assert fake_xpu.memory_allocated(device) == before + 2 * MIB, "what a kernel returns is device memory too"
    view = y[: MIB // 2]
    del y
    assert fake_xpu.memory_allocated(device) == before + 2 * MIB, "a view keeps its memory"
    del x, view
    assert fake_xpu.memory_allocated(device) == before


def test_the_peak_is_kept_until_it_is_reset(device):
    fake_xpu.reset_peak_memory_stats(device)
    before = fake_xpu.max_memory_allocated(device)
    torch.empty(MIB, dtype=torch.uint8, device=device)
    assert fake_xpu.max_memory_allocated(device) == before + MIB
    fake_xpu.reset_peak_memory_stats(device)
    assert fake_xpu.max_memory_allocated(device) == fake_xpu.memory_allocated(device) == before
    stats = fake_xpu.memory_stats(device)
    assert stats["allocated_bytes.all.current"] == before
    fake_xpu.reset_accumulated_memory_stats(device)
    assert fake_xpu.memory_stats(device)["allocated_bytes.all.freed"] == 0


def test_free_and_total_add_up(device):
    free, total = fake_xpu.mem_get_info(device)
    x = torch.empty(MIB, dtype=torch.uint8, device=device)
    assert fake_xpu.mem_get_info(device) == (free - MIB, total)
    fake_xpu.empty_cache()
    assert fake_xpu.memory_reserved(device) == fake_xpu.memory_allocated(device)
    assert fake_xpu.max_memory_reserved(device) == fake_xpu.max_memory_allocated(device)
    del x


def test_resizing_is_counted(device):
    before = fake_xpu.memory_allocated(device)
    x = torch.arange(4, device=device)
    x.resize_(MIB // 8)
    assert fake_xpu.memory_allocated(device) == before + MIB
    assert x[:4].tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(0)
    assert fake_xpu.memory_allocated(device) == before
    out = torch.empty(0, device=device)
    torch.add(torch.ones(8, device=device), 1, out=out)
    assert out.tolist() == [2] * 8


def test_what_a_failed_kernel_did_to_memory_is_known(device):
    before = fake_xpu.memory_allocated(device)
    out, index = torch.empty(0, device=device), torch.full((1000, 4), 9, device=device)
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.gather(torch.ones(3, 4, device=device), 0, index, out=out)
    assert out.shape == (1000, 4), "as on the CPU"
    assert fake_xpu.memory_allocated(device) == before + index.nbytes + out.nbytes
    assert out.zero_().sum().item() == 0


def test_training_steps_do_not_leak(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    for _ in range(20):
        model(torch.randn(4, 8, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(fake_xpu.memory_allocated(device))
    gc.collect()
    assert len(set(seen[2:])) == 1, seen


def test_past_the_limit_is_out_of_memory_and_the_next_allocation_works(run):
    result = run(
        """
        x = torch.empty(3 << 20, dtype=torch.uint8, device="fake_xpu:1")
        for attempt in (lambda: torch.empty(2 << 20, dtype=torch.uint8, device="fake_xpu:1"), lambda: x + 1):
            try:
                attempt()
            except torch.OutOfMemoryError as error:
                print(error)
        y = torch.empty(1 << 20, dtype=torch.uint8, device="fake_xpu:1")
        z = torch.empty(4 << 20, dtype=torch.uint8, device="fake_xpu:0")
        print(torch.fake_xpu.memory_stats(1)["num_ooms"])
        """,
        FAKE_XPU_MEMORY="4MiB",
    )
    wanted, result_of_kernel, count = result.stdout.splitlines()
    assert wanted.startswith("fake_xpu out of memory. Tried to allocate 2.00 MiB.")
    assert "fake_xpu:1 has a total capacity of 4.00 MiB of which 1.00 MiB is free; 3.00 MiB is allocated by PyTorch." in wanted
    assert "Tried to allocate 3.00 MiB" in result_of_kernel
    assert count == "2"


def test_what_no_machine_has_is_out_of_memory_too(device):
    before = fake_xpu.memory_allocated(device)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1024.00 TiB"):
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    assert fake_xpu.memory_allocated(device) == before


def test_memory_that_the_host_does_not_have_is_given_back(run):
    result = run(
        """
        try:
            torch.empty(1 << 52, dtype=torch.uint8, device="fake_xpu")
        except RuntimeError as error:
            print(type(error).__name__, torch.fake_xpu.memory_allocated())
        """,
        FAKE_XPU_MEMORY="100000TiB",
    )
    assert result.stdout == "RuntimeError 0\n"


def test_pinned_memory_without_bytes_comes_and_goes():
    blocks = [torch.empty(0).pin_memory() for _ in range(3)]
    del blocks[1]
    del blocks
    assert torch.ones(3).pin_memory().is_pinned()


def test_a_result_for_which_the_host_has_no_memory_is_out_of_memory(device):
    x = torch.ones(1 << 20, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.outer(x, x)
    assert x.sum().item() == 1 << 20


def test_pinned_memory_is_the_hosts_and_known_as_pinned():
    x = torch.arange(4.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not x.is_pinned()
    assert pinned.device.type == "cpu"
    assert pinned.tolist() == [0, 1, 2, 3]
    assert torch.empty(3, pin_memory=True).is_pinned()
    address = pinned.data_ptr()
    del pinned
    assert not _is_pinned_at(address)
    with pytest.raises(RuntimeError, match="cannot pin|Only dense CPU tensors can be pinned"):
        torch.ones(1, device="fake_xpu").pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(1, device="fake_xpu", pin_memory=True)


def _is_pinned_at(address):
    import ctypes

    return torch.frombuffer((ctypes.c_char * 4).from_address(address), dtype=torch.uint8).is_pinned()


HOST_POINTER = """
import ctypes
x = torch.ones(4, device="fake_xpu")
assert (x + x).sum().item() == 8
assert x.cpu().tolist() == [1] * 4
print("kernels and copies work", flush=True)
print(ctypes.c_float.from_address(x.data_ptr()).value)
"""


def test_in_protect_mode_touching_device_memory_from_outside_is_a_segmentation_fault(run):
    result = run(HOST_POINTER, check=False, FAKE_XPU_PROTECT="1")
    assert result.stdout == "kernels and copies work\n"
    assert result.returncode == -11


def test_memory_that_is_looked_at_is_not_the_cpus(device):
    x = torch.ones(2, device=device)
    with pytest.raises(TypeError, match=r"can't convert fake_xpu:1 device type tensor to numpy. Use Tensor.cpu\(\)"):
        x.numpy()
    import numpy

    with pytest.raises(TypeError, match="can't convert fake_xpu:1 device type tensor to numpy"):
        numpy.asarray(x)


def test_the_hosts_cache_can_be_emptied():
    if hasattr(torch.accelerator, "empty_host_cache"):  # torch 2.11 and newer
        torch.accelerator.empty_host_cache()
    torch.accelerator.empty_cache()


@pytest.mark.parametrize(
    "make", [lambda d: torch.empty(3, device=d), lambda d: torch.empty_strided((3,), (1,), device=d)], ids=["plain", "strided"]
)
def test_in_deterministic_mode_new_memory_is_filled(make, device):
    torch.use_deterministic_algorithms(True)
    try:
        assert make(device).isnan().all().item()
    finally:
        torch.use_deterministic_algorithms(False)
