"""Convolution is not implemented."""

import torch
import torch_openreg

try:
    torch.nn.Conv2d(1, 2, 3).to("openreg")(torch.ones(1, 1, 8, 8, device="openreg"))
except NotImplementedError as error:
    raise SystemExit(f"NotImplementedError: {str(error).partition('.')[0]}") from None
