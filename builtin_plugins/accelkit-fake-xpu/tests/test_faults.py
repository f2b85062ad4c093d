"""Injected faults. If a fault raises an error, it is the error that a real device would raise."""

import pytest
import torch
from accelkit_fake_xpu.settings import SettingsError
from torch import fake_xpu


def test_out_of_memory_at_the_nth_allocation(device):
    with fake_xpu.fault("oom@2"):
        torch.empty(1, device=device)
        with pytest.raises(torch.OutOfMemoryError, match="This allocation fails because FAKE_XPU_FAULT requests it"):
            torch.empty(1, device=device)
        assert torch.ones(1, device=device).item() == 1


def test_a_kernel_can_run_out_of_memory(device):
    x = torch.ones(4, device=device)
    with fake_xpu.fault("oom@1"), pytest.raises(torch.OutOfMemoryError):
        x + x
    assert (x + x).tolist() == [2] * 4


def test_a_device_that_was_lost_stays_lost(run):
    result = run(
        """
        x = torch.ones(2, device="fake_xpu")
        uses = (lambda: x + 1, lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(1, device="fake_xpu:1"), torch.fake_xpu.synchronize)
        for use in uses:
            try:
                use()
                print("worked")
            except torch.AcceleratorError as error:
                print(error.error_code, error)
        """,
        FAKE_XPU_FAULT="lost@3",  # the first kernel fills x
    )
    first, *rest = result.stdout.splitlines()
    assert first == "worked"
    assert rest == ["719 fake_xpu error: unspecified launch failure (device lost, as requested by FAKE_XPU_FAULT)"] * 4


def fused_step(x):
    parameter = torch.nn.Parameter(x)
    parameter.grad = torch.ones_like(x)
    torch.optim.SGD([parameter], lr=0.1, fused=True).step()
    return parameter.detach()


@pytest.mark.parametrize(
    ("operator", "use"),
    [
        ("mm", lambda x: x @ x),
        ("exp", lambda x: x.exp()),
        ("relu_", lambda x: x.relu_()),
        ("add", lambda x: torch.add(x, x, out=torch.empty_like(x))),
        ("convolution", lambda x: torch.nn.functional.conv1d(x, x[:, :, None])),
        ("mul", lambda x: torch._foreach_mul([x], 2.0)[0]),
        ("_fused_sgd_", fused_step),
    ],
)
def test_nan_and_a_wrong_number_from_one_operator(operator, use, device):
    x = torch.ones(3, 3, device=device)
    with fake_xpu.fault(f"nan@{operator}"):
        assert use(x.clone()).isnan().all().item()
        assert not (x - 3).isnan().any().item()
        assert not torch.arange(3, device=device).isnan().any().item()
    right = use(x.clone()).cpu()
    assert not right.isnan().any().item()
    with fake_xpu.fault(f"wrong@{operator}"):
        error = use(x.clone()).cpu() - right
        assert torch.equal(error.flatten()[:-1], torch.zeros(right.numel() - 1)), "only the last element is wrong"
        torch.testing.assert_close(error.flatten()[-1], right.abs().max())


def test_slow_copies(device):
    import time

    with fake_xpu.fault("slow_copy@100"):
        start = time.perf_counter()
        torch.ones(1).to(device)
        assert time.perf_counter() - start >= 0.1


def test_slow_first_calls(device):
    import time

    def seconds(use):
        start = time.perf_counter()
        use()
        return time.perf_counter() - start

    x = torch.ones(2, device=device)
    with fake_xpu.fault("slow_first_call@500"):
        assert seconds(lambda: x + 1) >= 0.5
        assert seconds(lambda: x + 1) < 0.5
        assert seconds(lambda: x * 2) >= 0.5
    with fake_xpu.fault("slow_first_call@500"):
        assert seconds(lambda: x + 1) >= 0.5, "the kernels of an earlier block count as new"


def test_an_operator_that_does_not_exist_is_refused(error_text):
    with pytest.raises(SettingsError, match="softmaxx") as caught, fake_xpu.fault("nan@softmaxx"):
        pass
    assert "softmax" in caught.value.hint
    assert caught.value == error_text
    with pytest.raises(SettingsError, match="'fire'"), fake_xpu.fault("fire"):
        pass


def test_training_recovers_from_out_of_memory(device):
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with fake_xpu.fault("oom@12"):
        for _ in range(6):
            try:
                model(torch.ones(8, 4, device=device)).mean().backward()
                optimizer.step()
                steps += 1
            except torch.OutOfMemoryError:
                pass
            optimizer.zero_grad()
    assert steps == 5
