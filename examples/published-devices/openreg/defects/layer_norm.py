"""`layer_norm` over one element should return exactly the bias. On openreg, the result is off by hundreds of machine epsilons."""

import torch
import torch_openreg

value, weight, bias = torch.tensor([-5.827]), torch.tensor([-3.708]), torch.tensor([-1.7658])
here = torch.nn.functional.layer_norm(value, [1], weight, bias)
there = torch.nn.functional.layer_norm(value.to("openreg"), [1], weight.to("openreg"), bias.to("openreg")).cpu()
if abs(there - bias).item() > 1e-5:
    raise SystemExit(f"the result is off by {abs(there - bias).item():.0e}; on the CPU by {abs(here - bias).item():.0e}")
