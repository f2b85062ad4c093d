"""What each rank does in test_optional_precisions.py.

``optional_precisions_program.py PRECISION...``: gradients under ddp and fsdp, and bf16-mixed's.
"""

from __future__ import annotations

import sys

import torch

import accelkit


def made():
    torch.default_generator.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
    return model, torch.randn(8, 16, 32)


def trained(rt):
    """Three steps, each process on its own share; the gradients of the last one, whole."""
    model, batches = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    for batch in batches[:3]:
        optimizer.zero_grad()
        rt.backward(model(batch[rt.process_index :: rt.num_processes]).square().mean())
        optimizer.step()
    grads = {name: parameter.grad for name, parameter in rt.unwrap_model(model).named_parameters() if parameter.requires_grad}
    return {name: (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).float() for name, grad in grads.items()}


def apart(strategy, precision):
    with accelkit.Runtime("cpu", strategy=strategy, precision=precision) as rt:
        return trained(rt)


def check(precision):
    usual, ddp, fsdp = apart("ddp", "bf16-mixed"), apart("ddp", precision), apart("fsdp", precision)
    assert ddp.keys() == fsdp.keys() <= usual.keys()
    for name, mine in ddp.items():
        torch.testing.assert_close(fsdp[name], mine, rtol=1e-2, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        off = ((mine - usual[name]).norm() / usual[name].norm()).item()
        assert 1e-3 < off < 0.3, (name, off)


for precision in sys.argv[1:]:
    check(precision)
    print("done")
