"""What lets ``fully_shard`` move a module from the CPU to a device out of tree."""

from __future__ import annotations

import accelkit_fake_xpu.torch_backend  # noqa: F401
import pytest
import torch
from torch import nn

from accelkit.bridges.parameter_swapping import SwappingParameters

DEVICE = "fake_xpu:0"


def test_a_tensor_moves_and_stays_the_same_object():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    net[2].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    weight, before = net[0].weight, net[0].weight.detach().clone()
    with SwappingParameters():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.data = tensor.to(DEVICE)
    assert {str(tensor.device) for tensor in [*net.parameters(), *net.buffers()]} == {DEVICE}
    assert net[0].weight is net[2].weight is weight
    assert [parameter.requires_grad for parameter in net[0].parameters()] == [True, False]
    assert type(net[1].running_mean) is torch.Tensor
    torch.testing.assert_close(weight.cpu().detach(), before)
    net(torch.ones(4, 2, device=DEVICE)).sum().backward()
    assert weight.grad is not None


def test_what_torch_takes_or_refuses_is_as_before():
    tensor = torch.zeros(2)
    with SwappingParameters():
        tensor.data = torch.ones(3)
        with pytest.raises(TypeError):
            tensor.data = 3
    assert tensor.tolist() == [1, 1, 1]
