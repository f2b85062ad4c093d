"""A device index that does not exist raises no error. torch's own devices raise `RuntimeError`."""

import extra.torch_backend.backend
import torch

made = torch.ones(1, device="tiny:99").cpu()
raise SystemExit(f"torch.ones on tiny:99 returned {made.tolist()}, and there is only tiny:0")
