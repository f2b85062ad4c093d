"""`torch.accelerator.synchronize` is not implemented, though `torch.rgpu.synchronize` is."""

import rgpu
import torch

torch.rgpu.synchronize()
try:
    torch.accelerator.synchronize()
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
