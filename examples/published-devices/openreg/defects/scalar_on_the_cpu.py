"""An operator whose first operand is a scalar tensor on the CPU leaves its result on the CPU, without an error."""

import torch
import torch_openreg

result = torch.tensor(3.0) - torch.ones(2, device="openreg")
if result.device.type != "openreg":
    raise SystemExit(f"the result is on {result.device}")
