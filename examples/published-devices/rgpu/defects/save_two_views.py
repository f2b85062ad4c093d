"""`torch.save` of two views of one tensor raises an error, because it needs the address of their storage, which has none."""

import rgpu
import torch

base = torch.zeros(10, device="rgpu")
try:
    torch.save([base[:5], base[3:]], "views.pt")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
