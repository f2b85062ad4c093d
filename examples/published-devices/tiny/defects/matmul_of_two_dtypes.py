"""A matrix product of float32 and int64 raises no error. On torch's own devices, it raises a RuntimeError."""

import extra.torch_backend.backend
import torch

product = torch.ones(2, 2, device="tiny") @ torch.ones(2, 2, dtype=torch.int64, device="tiny")
raise SystemExit(f"no error, and a result in {product.dtype}")
