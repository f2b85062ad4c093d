"""A scalar tensor on the CPU and a tensor on tiny cannot be operands of the same operator. torch's own devices allow this."""

import extra.torch_backend.backend
import torch

try:
    torch.tensor(3.0) - torch.ones(2, device="tiny")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
