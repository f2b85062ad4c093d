"""By design, every tensor has the dtype bool. Other dtypes are refused, so this device has no numeric tensors."""

import torch
import torchhd_sparsr

try:
    torch.ones(4096, device="sparsr")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
