"""Drawing random numbers on openreg uses the CPU's generator and changes the state of this generator."""

import torch
import torch_openreg

before = torch.get_rng_state()
torch.rand(4, device="openreg").cpu()
if not torch.equal(torch.get_rng_state(), before):
    raise SystemExit("torch.rand on openreg changed the state of the CPU's generator")
