"""If `out=` is a tensor on the CPU, the result is silently lost."""

import rgpu
import torch

out = torch.zeros(2)
torch.add(torch.ones(2, device="rgpu"), 1, out=out)
if out[0].item() != 2:
    raise SystemExit(f"1 + 1 was written to out, which is {out.tolist()}")
