"""`scaled_dot_product_attention` gives wrong values, and the wrong shape if its arguments are broadcast."""

import torch
import torch_openreg
from torch.nn.functional import scaled_dot_product_attention as attention

torch.manual_seed(0)
query, key = torch.randn(4, 3, 8), torch.randn(4, 4, 6, 8)
there = attention(*(one.to("openreg") for one in (query, key, key))).shape
error = (attention(*[key.to("openreg")] * 3).cpu() - attention(key, key, key)).abs().max()
right = attention(query, key, key).shape
raise SystemExit(f"the shape is {tuple(there)}, not {tuple(right)}; without broadcasting, values are off by {error:.2f}")
