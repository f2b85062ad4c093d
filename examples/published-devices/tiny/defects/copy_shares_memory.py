"""If a tensor is copied from the CPU to tiny, the source and the copy share memory, so changing the source changes the copy."""

import extra.torch_backend.backend
import torch

source = torch.zeros(4)
copy = source.to("tiny")
source.fill_(7)
if copy[0].item() != 0:
    raise SystemExit(f"zeros were copied, and after a change of the source the copy has {copy[0].item():.0f}")
