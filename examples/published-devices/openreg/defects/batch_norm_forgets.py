"""`BatchNorm` in training does not update its running mean and variance, so a trained model computes nonsense in evaluation."""

import torch
import torch_openreg

norm = torch.nn.BatchNorm2d(3).to("openreg")
norm(torch.arange(24.0).view(2, 3, 2, 2).to("openreg"))
if not norm.running_mean.cpu().any():
    raise SystemExit(f"the running mean is still {norm.running_mean.cpu().tolist()}")
