"""An operator on tensors whose shapes cannot be broadcast raises an IndexError. On torch's own devices, it raises a RuntimeError."""

import extra.torch_backend.backend
import torch

try:
    torch.ones(2, 3, device="tiny") + torch.ones(4, 5, device="tiny")
except IndexError as error:
    raise SystemExit(f"IndexError: {error}") from None
