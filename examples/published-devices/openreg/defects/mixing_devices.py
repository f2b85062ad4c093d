"""A matrix product of a tensor on openreg and one on the CPU raises no error. On torch's own devices, it raises a RuntimeError."""

import torch
import torch_openreg

product = torch.ones(2, 2, device="openreg") @ torch.ones(2, 2)
raise SystemExit(f"no error, and a result on {product.device}")
