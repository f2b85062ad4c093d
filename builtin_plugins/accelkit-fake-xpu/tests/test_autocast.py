"""Autocast with CUDA's policy, and the gradient scaler."""

import pytest
import torch
from torch.nn import functional as F


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cudas_lists_decide_the_dtype(dtype, device):
    x = torch.randn(4, 4, device=device)
    low = x.to(dtype)
    with torch.autocast("fake_xpu", dtype):
        lower = [x @ x, F.linear(x, x), torch.bmm(x[None], x[None]), F.conv1d(x[None], x[:, :, None]), torch.addmm(x, x, x)]
        lower += [F.prelu(x, x[0, :1]), torch.mv(x, x[0])]
        full = [low.exp(), low.softmax(0), F.layer_norm(low, (4,)), low.sum(), low.log_softmax(0), F.mse_loss(low, low), low.norm()]
        full += [low.pow(2), low.cumsum(0), F.softplus(low)]
        widest = [torch.addcmul(low, x, x), torch.cat([low, x]), torch.stack([low, x]), torch.dot(low[0], x[0])]
        unchanged = [low + low, low.relu(), x.relu()]
        with torch.autocast("fake_xpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert torch.is_autocast_enabled("fake_xpu")
        assert torch.get_autocast_dtype("fake_xpu") == dtype
    assert {value.dtype for value in lower} == {dtype}
    assert {value.dtype for value in full} == {torch.float32}
    assert {value.dtype for value in widest} == {torch.float32}
    assert [value.dtype for value in unchanged] == [dtype, dtype, torch.float32]
    assert (x @ x).dtype == torch.float32
    assert all(value.device == device for value in (*lower, *full, *widest))


def test_the_fast_path_of_a_transformer_converts_its_weights(device):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval().to(device)
    x = torch.randn(2, 3, 8, device=device)
    with torch.no_grad(), torch.autocast("fake_xpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            torch.testing.assert_close(layer(given).float(), layer.train()(given).float(), atol=0.1, rtol=0.1)
            layer.eval()


def test_gradients_come_back_in_the_parameters_dtype(device):
    layer = torch.nn.Linear(4, 2).to(device)
    with torch.autocast("fake_xpu", torch.float16):
        loss = layer(torch.ones(3, 4, device=device)).sum()
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    assert layer.weight.grad.device == device


def test_what_is_unsafe_is_refused(device):
    x = torch.full((2,), 0.5, device=device)
    with torch.autocast("fake_xpu", torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_a_dtype_that_is_not_supported_disables_it_with_a_warning(device):
    with pytest.warns(UserWarning, match="Supported dtypes are|not supported"), torch.autocast("fake_xpu", torch.float64):
        assert torch.ones(2, 2, device=device).mm(torch.ones(2, 2, device=device)).dtype == torch.float32


def test_the_scaler_finds_inf_and_skips_the_step(device):
    layer = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("fake_xpu", init_scale=4.0, growth_interval=1)
    x = torch.ones(1, 2, device=device)

    def step(factor):
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        scaler.scale(layer(x).sum() * factor).backward()
        scaler.unscale_(optimizer)
        gradient = layer.weight.grad.clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return gradient, all(torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))

    gradient, is_unchanged = step(1.0)
    assert gradient.tolist() == [[1, 1]]
    assert not is_unchanged
    assert scaler.get_scale() == 8
    _, is_unchanged = step(float("inf"))
    assert is_unchanged
    assert scaler.get_scale() == 4
    assert scaler._scale.device.type == "fake_xpu"
