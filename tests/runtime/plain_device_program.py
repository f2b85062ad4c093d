"""In a process of its own: plain torch on ``accelkit.device``, and what ``torch.set_default_device`` does. Prints one line of JSON."""

import io
import json
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import accelkit


def fails(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return ""


device = accelkit.device("fake_xpu")
seen = {"device": str(device), "index": str(accelkit.device("fake_xpu", 1))}
device = accelkit.device("fake_xpu", 0)
host = TensorDataset(torch.arange(8.0))

torch.set_default_device(device)
made_in_thread = []
thread = threading.Thread(target=lambda: made_in_thread.append(str(torch.ones(1).device)))
thread.start()
thread.join()
buffer = io.BytesIO()
torch.save(torch.ones(1, device="cpu"), buffer)
buffer.seek(0)
seen |= {
    "made": {
        "ones": str(torch.ones(1).device),
        "module": str(torch.nn.Linear(1, 1).weight.device),
        "from_numpy": str(torch.from_numpy(np.ones(1)).device),
        "thread": made_in_thread[0],
        "loaded": str(torch.load(buffer).device),
    },
    "shuffling": fails(lambda: next(iter(DataLoader(host, batch_size=4, shuffle=True)))),
}
with torch.device("cpu"):
    seen["with cpu"] = str(torch.ones(1).device)
    (batch,) = next(iter(DataLoader(host, batch_size=4, shuffle=True, generator=torch.Generator())))
    seen["batch"] = str(batch.device)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
torch.manual_seed(0)
inputs = torch.randn(16, 4)
for _ in range(20):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
seen |= {"losses": losses, "loss": str(loss.device)}
torch.set_default_device(None)
seen["after"] = str(torch.ones(1).device)
print(json.dumps(seen))
