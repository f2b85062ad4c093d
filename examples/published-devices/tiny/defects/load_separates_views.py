"""Views of one tensor share no memory after `torch.save` and `torch.load`."""

import extra.torch_backend.backend
import torch

base = torch.zeros(10, device="tiny")
torch.save([base, base[:5]], "views.pt")
base, view = torch.load("views.pt")
view.fill_(1)
if base[0].item() != 1:
    raise SystemExit(f"1 was written to a view, and its base has {base[0].item():.0f}")
