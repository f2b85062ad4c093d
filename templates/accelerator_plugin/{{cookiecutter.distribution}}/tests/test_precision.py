"""Tests of the precision on the CPU: its dtypes, and a short training run."""

from __future__ import annotations

import accelkit
import torch


def runtime() -> accelkit.Runtime:
    return accelkit.Runtime(accelerator="cpu", precision="{{ cookiecutter.accelerator }}-bf16")


def test_products_are_bfloat16_and_results_float32() -> None:
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            product = super().forward(batch)
            seen.append((product.dtype, self.weight.dtype))
            return product

    model = runtime().prepare(Watched(4, 2))
    assert model(torch.randn(3, 4)).dtype == torch.float32
    assert seen == [(torch.bfloat16, torch.float32)]


def test_it_trains() -> None:
    torch.manual_seed(0)
    rt = runtime()
    model = torch.nn.Linear(8, 1)
    model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch, losses = torch.randn(64, 8), []
    for _ in range(20):
        loss = (model(batch).squeeze(1) - batch.sum(1)).pow(2).mean()
        rt.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
