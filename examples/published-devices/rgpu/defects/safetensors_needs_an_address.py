"""`safetensors` cannot save tensors on rgpu, unless they are first copied to the CPU, because their storage has no address."""

import rgpu
import torch
from safetensors.torch import save

try:
    save({"weight": torch.ones(2, device="rgpu")})
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
