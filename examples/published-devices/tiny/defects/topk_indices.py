"""The indices that `topk` returns are int32. In torch, they are int64, and operators such as `gather` accept only int64."""

import extra.torch_backend.backend
import torch

indices = torch.topk(torch.arange(5.0, device="tiny"), 2).indices
if indices.dtype != torch.int64:
    raise SystemExit(f"the indices are {indices.dtype}")
