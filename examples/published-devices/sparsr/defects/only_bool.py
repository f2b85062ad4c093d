"""By design, tensors have the dtype bool. Others are refused, so that there are no numbers on this device."""

import torch
import torchhd_sparsr

try:
    torch.ones(4096, device="sparsr")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
