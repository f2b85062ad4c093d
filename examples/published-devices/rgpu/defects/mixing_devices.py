"""An operator of a tensor on rgpu and one on the CPU copies the second one silently. torch raises a RuntimeError on other devices."""

import rgpu
import torch

total = torch.ones(2, device="rgpu") + torch.ones(2)
raise SystemExit(f"no error, and a result on {total.device}")
