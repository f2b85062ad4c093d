"""By design, every tensor has 4096 elements. Tensors of any other size are refused, including empty tensors."""

import torch
import torchhd_sparsr

for size in (0, 1, 2 * 4096):
    try:
        torch.zeros(size, dtype=torch.bool).to("sparsr")
    except RuntimeError as error:
        print(f"{size}: RuntimeError: {error}")
raise SystemExit("none of them could be copied to the device")
