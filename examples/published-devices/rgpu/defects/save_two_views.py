"""`torch.save` cannot save two views of one tensor together, because it needs the address of their storage,
and the storage has no address."""

import rgpu
import torch

base = torch.zeros(10, device="rgpu")
try:
    torch.save([base[:5], base[3:]], "views.pt")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
