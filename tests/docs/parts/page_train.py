"""A user's program: trains on whatever it is started on."""

from __future__ import annotations

import argparse

from page_parts import parts

import accelkit

options = argparse.ArgumentParser()
options.add_argument("--accelerator")
rt = accelkit.Runtime(options.parse_args().accelerator)
model, optimizer, loader = rt.prepare(*parts())
for batch in loader:
    loss = model(batch).mean()
    rt.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print(rt.device, float(loss))
