"""The real Fabric, on the CPU and on a device that Lightning does not know."""

from __future__ import annotations

import pytest
import torch
from device_checking_model import Tied, loader, parameters_of

from accelkit.bridges.lightning import fabric_kwargs


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.newest_peers), "fake_xpu"])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true"])
def test_an_optimizer_made_before_the_move_trains_the_model(device, precision, fabric_class, fabric_package):
    torch.manual_seed(0)
    fabric = fabric_class(**fabric_kwargs(device, devices=1, precision=precision, package=fabric_package))
    assert fabric.device.type == device
    net = Tied()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    before = parameters_of(net)
    model, optimizer = fabric.setup(net, optimizer)
    losses = []
    for _ in range(3):
        for x, y in fabric.setup_dataloaders(loader()):
            assert x.device.type == device
            loss = torch.nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            assert {p.grad.device.type for p in model.parameters()} == {device}
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            norm = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm()
            assert not torch.isfinite(norm) or norm < 1.01
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    assert net.out.weight is net.into.weight
    assert all(not torch.equal(one, other) for one, other in zip(before, parameters_of(net), strict=True))
    assert losses[-1] < losses[0]


@pytest.mark.smoke
def test_checkpoint(fabric_class, fabric_package, tmp_path):
    fabric = fabric_class(**fabric_kwargs("fake_xpu", devices=1, package=fabric_package))
    model = fabric.setup(torch.nn.Linear(4, 1))
    fabric.save(tmp_path / "file.ckpt", {"model": model})
    saved = parameters_of(model)
    with torch.no_grad():
        model.weight.zero_()
    fabric.load(tmp_path / "file.ckpt", {"model": model})
    assert model.weight.device.type == "fake_xpu"
    assert all(torch.equal(one, other) for one, other in zip(saved, parameters_of(model), strict=True))
