"""`torch.openreg.manual_seed` has no effect: two draws after the same seed differ.
After `torch.manual_seed`, they are equal, because it also seeds the CPU's generator."""

import torch
import torch_openreg

drawn = []
for _ in range(2):
    torch.openreg.manual_seed(5)
    drawn.append(torch.rand(4, device="openreg").cpu())
if not torch.equal(*drawn):
    raise SystemExit("two draws after torch.openreg.manual_seed(5) differ")
