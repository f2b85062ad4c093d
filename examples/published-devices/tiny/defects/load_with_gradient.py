"""A tensor that requires a gradient can be saved, but it cannot be loaded unless it is a parameter."""

import extra.torch_backend.backend
import torch

torch.save(torch.ones(2, device="tiny", requires_grad=True), "ones.pt")
try:
    torch.load("ones.pt")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
