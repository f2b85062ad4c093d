"""`torch.save` stores the handle of a tensor, not its values: a loaded tensor changes with the original,
and cannot be used once the original is deleted."""

import rgpu
import torch

weight = torch.zeros(1_000_000, device="rgpu")
torch.save(weight, "weight.pt")
weight.fill_(7)
saved = torch.load("weight.pt", weights_only=False)
if saved[0].item() != 0:
    raise SystemExit(f"zeros were saved, and {saved[0].item():.0f} was loaded")
