"""Random numbers on openreg are drawn from the generator of the CPU, whose state they change; the device's own seed has no effect."""

import torch
import torch_openreg

before = torch.get_rng_state()
torch.rand(4, device="openreg").cpu()
if not torch.equal(torch.get_rng_state(), before):
    raise SystemExit("torch.rand on openreg changed the state of the CPU's generator")
