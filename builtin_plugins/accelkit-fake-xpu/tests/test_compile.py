"""torch.compile and the profiler."""

import warnings

import pytest
import torch


@pytest.mark.parametrize("dynamic", [False, True])
def test_aot_eager_gives_what_eager_gives(dynamic, device):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)]
    model = torch.nn.Sequential(*layers).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own code
        compiled = torch.compile(model, backend="aot_eager", dynamic=dynamic, fullgraph=True)
        for size in (4, 6):
            x = torch.randn(size, 1, 8, 8, device=device)
            model.zero_grad()
            expected = model(x)
            expected.square().mean().backward()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            model.zero_grad()
            found = compiled(x)
            found.square().mean().backward()
            assert found.device == device
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close([parameter.grad for parameter in model.parameters()], gradients)


def test_the_profiler_sees_the_operators(device):
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profile:
        x = torch.ones(4, 4, device=device)
        (x @ x).sum().item()
    assert {"aten::mm", "aten::sum"} <= {event.key for event in profile.key_averages()}
