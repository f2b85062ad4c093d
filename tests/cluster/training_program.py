"""A program that trains with ddp under whatever started it; rank 0 prints the sum of each parameter."""

from __future__ import annotations

import copy

import torch

import accelkit

rt = accelkit.Runtime(accelerator="cpu", precision="64-true", seed=0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
alone = copy.deepcopy(model).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
batches = torch.randn(5, 16, 4, dtype=torch.float64)
model, optimizer = rt.prepare(model, optimizer)
theirs = torch.optim.AdamW(alone.parameters(), lr=0.1)
for batch in batches:
    rt.backward(model(batch[rt.process_index :: rt.num_processes]).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    alone(batch).square().mean().backward()
    theirs.step()
    theirs.zero_grad()
for mine, other in zip(rt.unwrap_model(model).parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
where = rt.gather_for_metrics([(rt.process_index, rt.local_process_index, rt.cluster.node_rank)])
rt.print("trained", rt.cluster.name, rt.state.strategy, rt.num_processes, where)
rt.teardown()
