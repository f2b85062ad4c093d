"""Which devices exist, which one is current, and fake_xpu as a device type that is distinct from the CPU."""

import pytest
import torch
from torch import fake_xpu  # the module that the package registers


def test_it_is_a_device_type_of_its_own(device):
    x = torch.ones(2, device=device)
    assert x.device.type == "fake_xpu"
    assert x.is_fake_xpu
    assert not x.is_cpu
    assert x.device.index == 1
    assert torch.accelerator.current_accelerator().type == "fake_xpu"
    assert torch.accelerator.device_count() == fake_xpu.device_count() == 2


def test_what_names_no_index_goes_to_the_current_device():
    with fake_xpu.device(1):
        assert fake_xpu.current_device() == 1
        assert torch.ones(1, device="fake_xpu").device.index == 1
        assert torch.ones(1).fake_xpu().device.index == 1
        with torch.accelerator.device_index(0):
            assert torch.ones(1, device="fake_xpu").device.index == 0
    assert fake_xpu.current_device() == 0
    with fake_xpu.device_of(torch.ones(1, device="fake_xpu:1")):
        assert fake_xpu.current_device() == 1
    with fake_xpu.device_of(torch.ones(1)), fake_xpu.device(None), fake_xpu.device(-1):
        assert fake_xpu.current_device() == 0


def test_the_current_device_is_the_threads_own():
    from threading import Thread

    seen = []
    with fake_xpu.device(1):
        thread = Thread(target=lambda: seen.append(fake_xpu.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_a_device_that_is_not_there_is_an_error():
    for use in (
        lambda: torch.ones(1, device="fake_xpu:2"),
        lambda: torch.ones(1).to("fake_xpu:9"),
        lambda: fake_xpu.set_device(2),
        lambda: fake_xpu.memory_stats(2),
        lambda: fake_xpu.get_device_capability(2),
        lambda: fake_xpu.can_device_access_peer(0, 2),
        lambda: torch.Generator(device="fake_xpu:2"),
    ):
        with pytest.raises(RuntimeError, match=r"fake_xpu:\d does not exist; the devices are fake_xpu:0 to fake_xpu:1"):
            use()
    with pytest.raises(ValueError, match="Expected a fake_xpu device, but got: cpu"):
        fake_xpu.set_device("cpu")
    assert fake_xpu.current_device() == 0


def test_properties(device):
    properties = fake_xpu.get_device_properties(device)
    assert properties.name == fake_xpu.get_device_name(device) == "fake XPU"
    assert properties.total_memory == fake_xpu.mem_get_info(device)[1]
    assert fake_xpu.get_device_capability(device) == (1, 0)
    assert fake_xpu.can_device_access_peer(0, 1)
    assert not fake_xpu.can_device_access_peer(1, 1)
    assert fake_xpu.is_bf16_supported()


def test_only_visible_devices_are_there(run):
    result = run(
        """
        print(torch.fake_xpu.device_count(), torch.fake_xpu.get_device_properties(0).index_on_machine)
        try:
            torch.ones(1, device="fake_xpu:2")
        except RuntimeError as error:
            print(error)
        """,
        FAKE_XPU_DEVICES="4",
        FAKE_XPU_VISIBLE_DEVICES="3,1",
    )
    assert result.stdout.startswith("2 3\n")
    assert "fake_xpu:2 does not exist" in result.stdout


def test_without_a_device_it_is_not_available(run):
    code = """
        assert not torch.fake_xpu.is_available()
        assert not torch.accelerator.is_available()
        torch.ones(1, device="fake_xpu")
    """
    result = run(code, check=False, FAKE_XPU_VISIBLE_DEVICES="")
    assert "No fake_xpu devices are available (FAKE_XPU_DEVICES, FAKE_XPU_VISIBLE_DEVICES)" in result.stderr


def test_looking_initialises_nothing(run):
    run(
        """
        fake_xpu = torch.fake_xpu
        fake_xpu.device_count(), fake_xpu.is_available(), torch.accelerator.current_accelerator(), torch.device("fake_xpu:1")
        torch.manual_seed(0)
        assert not fake_xpu.is_initialized()
        torch.ones(1, device="fake_xpu")
        assert fake_xpu.is_initialized()
        """
    )


MIXED = {
    "add": lambda ours, other: ours + other,
    "add the other way": lambda ours, other: other + ours,
    "in place": lambda ours, other: ours.add_(other),
    "out": lambda ours, other: torch.add(other, other, out=ours),
    "mm": lambda ours, other: ours @ other,
    "cat": lambda ours, other: torch.cat([ours, other]),
    "where": lambda ours, other: torch.where(ours > 0, ours, other),
    "linear": torch.nn.functional.linear,
    "conv": lambda ours, other: torch.nn.functional.conv1d(ours[None], other[None]),
    "gather": lambda ours, other: ours.gather(0, other.long()),
    "embedding": lambda ours, other: torch.nn.functional.embedding(other.long(), ours),
    "foreach": lambda ours, other: torch._foreach_add([ours], [other]),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("other", ["cpu", "fake_xpu:0"])
def test_tensors_of_two_devices_do_not_mix(name, other, device):
    ours, theirs = torch.ones(2, 2, device=device), torch.ones(2, 2, device=other)
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device, but found at least two devices") as caught:
        MIXED[name](ours, theirs)
    assert "fake_xpu:1" in str(caught.value)
    assert other in str(caught.value)


def test_scalars_of_the_cpu_mix(device):
    x = torch.ones(2, device=device)
    assert (x + torch.tensor(2.0)).tolist() == [3, 3]
    assert (torch.tensor(2.0) * x).device == device
    assert x.add_(torch.tensor(1.0)).tolist() == [2, 2]
    assert torch.where(x > 0, x, torch.tensor(0.0)).tolist() == [2, 2]


def test_scalars_of_the_cpu_are_not_written(device):
    x, scalar = torch.ones(2, device=device), torch.tensor(1.0)
    for use in (lambda: torch.sum(x, 0, out=scalar), lambda: scalar.add_(x[0]), lambda: torch._foreach_add_([scalar], [x[0]])):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            use()
    assert scalar.item() == 1


def test_indices_may_be_on_the_cpu(device):
    x = torch.arange(4.0, device=device)
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    x[torch.tensor([1])] = 9
    assert x.tolist() == [0, 9, 2, 3]


def test_kernels_are_counted_where_they_run(device):
    x = torch.ones(4, device=device)
    fake_xpu.reset_kernel_counts()
    y = x + x
    assert (fake_xpu.kernel_count(0), fake_xpu.kernel_count(device)) == (0, 1)
    y.view(2, 2).t()[0]
    y.unfold(0, 2, 1)
    y.view(torch.int32)
    y.real.detach()
    y.cpu()
    assert fake_xpu.kernel_count(device) == 1, "views and copies are no kernels"


def test_everything_that_torch_fake_xpu_offers_is_documented():
    undocumented = [name for name in fake_xpu.__all__ if not getattr(fake_xpu, name).__doc__]
    assert not undocumented


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "get_device_capability"), reason="torch before 2.10 does not ask devices for their dtypes"
)
@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:Casting complex")
def test_the_dtypes_that_it_says_it_has_work(device):
    dtypes = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.complex64, torch.bool} <= set(dtypes)
    for dtype in dtypes:
        assert torch.empty(2, device=device).to(dtype).to(torch.float32).device == device, dtype
