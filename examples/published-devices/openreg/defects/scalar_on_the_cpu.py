"""If the first operand of an operator is a scalar tensor on the CPU and the second is on openreg, the result is on the CPU."""

import torch
import torch_openreg

result = torch.tensor(3.0) - torch.ones(2, device="openreg")
if result.device.type != "openreg":
    raise SystemExit(f"the result is on {result.device}")
