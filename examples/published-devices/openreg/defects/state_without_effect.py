"""`torch.openreg.set_rng_state` has no effect: after it restores a state, the numbers drawn differ from those that were drawn
after the state was read. `fork_rng` relies on `set_rng_state`, and therefore restores nothing."""

import torch
import torch_openreg

state = torch.openreg.get_rng_state()
first = torch.rand(4, device="openreg").cpu()
torch.openreg.set_rng_state(state)
if not torch.equal(torch.rand(4, device="openreg").cpu(), first):
    raise SystemExit("after torch.openreg.set_rng_state, a draw differs from the one before")
