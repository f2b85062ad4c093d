"""What each rank does in test_unprepared_model.py: runs backward passes before and after it prepares the model, and prints the results."""

from __future__ import annotations

import json

import torch
from torch.utils.data import DataLoader

import accelkit

rt = accelkit.Runtime("cpu")
model = torch.nn.Linear(2, 1)
loader = rt.prepare(DataLoader(range(8)))
batch = torch.full((1, 2), float(rt.process_index))
errors = []
for _ in range(2):
    try:
        rt.backward(model(batch).sum())
    except accelkit.UsageError as error:
        errors.append(str(error))
found = {"errors": errors, "has gradients": model.weight.grad is not None}
found["torch's own before"] = rt.backward is torch.Tensor.backward
model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
found["torch's own after"] = rt.backward is torch.Tensor.backward
rt.backward(model(batch).sum())
print("result:", json.dumps(found | {"gradient": model.weight.grad.tolist()}), flush=True)
rt.teardown()
