"""An operator with one tensor on rgpu and one on the CPU silently copies the CPU tensor to rgpu. On torch's own devices, it raises a
RuntimeError."""

import rgpu
import torch

total = torch.ones(2, device="rgpu") + torch.ones(2)
raise SystemExit(f"no error, and a result on {total.device}")
