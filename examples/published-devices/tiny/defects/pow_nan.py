"""`pow(NaN, 0)` and `pow(1, NaN)` return NaN. In torch, as in C, they return 1."""

import extra.torch_backend.backend
import torch

one, zero, nan = (torch.tensor([value], device="tiny") for value in (1.0, 0.0, float("nan")))
found = [torch.pow(nan, zero).item(), torch.pow(one, nan).item()]
if found != [1.0, 1.0]:
    raise SystemExit(f"pow(NaN, 0) and pow(1, NaN) are {found}")
