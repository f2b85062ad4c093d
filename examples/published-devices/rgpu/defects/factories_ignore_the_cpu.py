"""`torch.ones_like` and similar functions ignore `device="cpu"`: the result reports rgpu as its device and cannot be used."""

import rgpu
import torch

mask = torch.ones_like(torch.ones(2, device="rgpu"), device="cpu")
raise SystemExit(f"device='cpu' was asked for, and the tensor is on {mask.device}")
