"""The indices of `topk` are int32. Those of torch are int64, which its own operators, such as `gather`, require."""

import extra.torch_backend.backend
import torch

indices = torch.topk(torch.arange(5.0, device="tiny"), 2).indices
if indices.dtype != torch.int64:
    raise SystemExit(f"the indices are {indices.dtype}")
