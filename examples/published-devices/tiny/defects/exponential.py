"""`exp` loses accuracy for large arguments."""

import extra.torch_backend.backend
import torch

x = torch.tensor([88.0])
right = x.double().exp().item()
here, there = (abs(one.cpu().double().item() / right - 1) for one in (x.exp(), x.to("tiny").exp()))
if there > 1e-6:
    raise SystemExit(f"the relative error of exp(88) is {there:.1e}; on the CPU, it is {here:.1e}")
