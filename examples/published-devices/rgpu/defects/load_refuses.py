"""With its default arguments, `torch.load` refuses to load a tensor that `torch.save` wrote, because `RemoteTensor` is not registered
with `add_safe_globals`."""

import rgpu
import torch

torch.save(torch.ones(2, device="rgpu"), "ones.pt")
try:
    torch.load("ones.pt")
except Exception as error:
    lines = str(error).splitlines()
    raise SystemExit(next(line.partition(". Please")[0].strip() for line in lines if "Unsupported" in line)) from None
