"""There is no way to wait for the device: neither `torch.accelerator.synchronize` nor `torch.tiny.synchronize` is implemented."""

import extra.torch_backend.backend
import torch

try:
    torch.accelerator.synchronize()
except RuntimeError as error:
    if not hasattr(torch.tiny, "synchronize"):
        raise SystemExit(f"RuntimeError: {error} torch.tiny has no synchronize.") from None
