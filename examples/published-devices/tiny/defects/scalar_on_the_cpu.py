"""A scalar tensor on the CPU cannot be an operand. On torch's own devices, it can."""

import extra.torch_backend.backend
import torch

try:
    torch.tensor(3.0) - torch.ones(2, device="tiny")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
