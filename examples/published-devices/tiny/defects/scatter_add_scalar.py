"""`scatter_add` of scalar tensors does not add: the result is the value that was to be added."""

import extra.torch_backend.backend
import torch

one, index, two = (torch.tensor(value, device="tiny") for value in (1.0, 0, 2.0))
if (total := one.scatter_add(0, index, two).item()) != 3:
    raise SystemExit(f"1 + 2 is {total}")
