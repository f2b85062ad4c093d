"""`torch.load` cannot load a file onto tiny, because it needs the context manager `torch.tiny.device`, which does not exist."""

import extra.torch_backend.backend
import torch

torch.save(torch.ones(2), "ones.pt")
try:
    torch.load("ones.pt", map_location="tiny")
except AttributeError as error:
    raise SystemExit(f"AttributeError: {error}") from None
