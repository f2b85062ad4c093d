"""`safetensors` cannot save tensors on rgpu, because their storage has no address. The tensors must
first be copied to the CPU."""

import rgpu
import torch
from safetensors.torch import save

try:
    save({"weight": torch.ones(2, device="rgpu")})
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
