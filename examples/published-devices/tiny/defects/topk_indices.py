"""The indices of `topk` are int32. Torch's are int64, and its own operators, such as `gather`, demand that."""

import extra.torch_backend.backend
import torch

indices = torch.topk(torch.arange(5.0, device="tiny"), 2).indices
if indices.dtype != torch.int64:
    raise SystemExit(f"the indices are {indices.dtype}")
