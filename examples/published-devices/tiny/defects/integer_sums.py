"""Sums and products of int32 tensors are accumulated in int32 and overflow. torch accumulates them in int64."""

import extra.torch_backend.backend
import torch

x = torch.tensor([2_000_000_011, 2, 2], dtype=torch.int32)
there = x.to("tiny")
print(f"prod is {there.prod().item()}, {there.prod().dtype}, not {x.prod().item()}, {x.prod().dtype}")
print(f"cumsum is {there.cumsum(0).dtype}, not {x.cumsum(0).dtype}")
raise SystemExit(f"cumprod is {there.cumprod(0).tolist()}, not {x.cumprod(0).tolist()}")
