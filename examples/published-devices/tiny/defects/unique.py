"""`torch.unique` is not implemented."""

import extra.torch_backend.backend
import torch

try:
    torch.unique(torch.ones(2, device="tiny"))
except NotImplementedError as error:
    raise SystemExit(f"NotImplementedError: {str(error).partition('.')[0]}") from None
