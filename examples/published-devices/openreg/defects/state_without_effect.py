"""Setting the random state of openreg has no effect: numbers drawn after `set_rng_state` differ from those drawn after
`get_rng_state`. `fork_rng`, which relies on this, restores nothing."""

import torch
import torch_openreg

state = torch.openreg.get_rng_state()
first = torch.rand(4, device="openreg").cpu()
torch.openreg.set_rng_state(state)
if not torch.equal(torch.rand(4, device="openreg").cpu(), first):
    raise SystemExit("after torch.openreg.set_rng_state, a draw differs from the one before")
