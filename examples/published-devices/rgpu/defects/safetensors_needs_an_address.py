"""`safetensors` cannot save tensors on rgpu without a copy to the CPU: it asks their storage for an address, and there is none."""

import rgpu
import torch
from safetensors.torch import save

try:
    save({"weight": torch.ones(2, device="rgpu")})
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
