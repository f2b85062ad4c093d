"""Run with the path of the compiled ``device.cpp``: accelkit on a real out-of-tree device. Prints JSON of what was seen."""

from __future__ import annotations

import json
import sys
import types

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit


def register_with_torch(library):
    """What a vendor's package does when it is imported."""
    module = types.ModuleType("tiny")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda index: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch.utils.rename_privateuse1_backend("tiny")
    torch.ops.load_library(library)
    torch._register_device_module("tiny", module)
    torch.utils.generate_methods_for_privateuse1_backend()


class Tiny(accelkit.Accelerator):
    device_type = "tiny"
    is_simulated = True
    declared_capabilities = accelkit.Capabilities.declare(native=["streams", "events"])

    def load(self):
        if torch.utils.backend_registration._get_privateuse1_backend_name() != "tiny":
            register_with_torch(sys.argv[1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x):
        return self.out(self.into(x).relu())


def main(folder):
    seen = {}
    accelkit.register("tiny", Tiny)
    rt = accelkit.Runtime(accelerator="tiny", seed=0)
    model = Tied()
    old = model.into.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    seen["device"] = str(rt.device)
    seen["makes new parameters"] = model.into.weight is not old
    seen["tied"] = model.into.weight is model.out.weight
    seen["optimizer follows"] = optimizer.param_groups[0]["params"][0] is model.into.weight

    loader = rt.prepare(DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4))
    journal = torch.ops.accelkit_test_device.read_journal
    journal()
    batches = []
    for (batch,) in loader:
        batches.append({"device": str(batch.device), "journal": journal()})
    seen["batches"] = batches

    losses = []
    for _ in range(30):
        for (batch,) in loader:
            loss = (model(batch) - batch).square().mean()
            rt.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    seen["learns"] = losses[-1] < losses[0] / 2
    seen["everything on the device"] = {str(t.device) for s in optimizer.state.values() for t in s.values() if t.dim()} == {"tiny:0"}

    with rt.profile(warmup=1, active=1) as profiler:
        for (batch,) in loader:
            rt.backward((model(batch) - batch).square().mean())
            profiler.step()
    summary = profiler.summary
    seen |= {"fallbacks": {each.operator: each.calls for each in summary.fallbacks}, "findings": summary.findings, "summary": str(summary)}
    optimizer.zero_grad()

    path = rt.save_state(folder)
    other = accelkit.Runtime(accelerator="tiny")
    twin = Tied()
    twin, _ = other.prepare(twin, torch.optim.AdamW(twin.parameters(), lr=0.1))
    other.load_state(path)
    seen["reloaded"] = torch.equal(twin.into.weight.cpu(), model.into.weight.cpu()) and twin.into.weight is twin.out.weight
    try:
        _ = accelkit.Runtime(accelerator="tiny", precision="bf16-mixed").precision
    except accelkit.UnsupportedError as error:
        seen["no autocast"] = str(error)
    seen["check"] = rt.accelerator.check().status
    seen["statistics"] = rt.accelerator.memory_stats(rt.device)
    rt.accelerator.empty_cache()
    rt.accelerator.reset_peak_memory_stats(rt.device)
    try:
        rt.accelerator.synchronize(rt.device)
    except accelkit.UnsupportedError as error:
        seen["no synchronize"] = str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[2])
