"""`torch.ones_like` and similar functions ignore `device="cpu"`."""

import extra.torch_backend.backend
import torch

mask = torch.ones_like(torch.ones(2, device="tiny"), device="cpu")
if mask.device.type != "cpu":
    raise SystemExit(f"device='cpu' was asked for, and the tensor is on {mask.device}")
