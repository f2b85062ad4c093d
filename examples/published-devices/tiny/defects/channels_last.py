"""`memory_format=torch.channels_last` has no effect."""

import extra.torch_backend.backend
import torch

images = torch.ones(2, 3, 4, 5, device="tiny").contiguous(memory_format=torch.channels_last)
if not images.is_contiguous(memory_format=torch.channels_last):
    raise SystemExit(f"the strides are {images.stride()}")
