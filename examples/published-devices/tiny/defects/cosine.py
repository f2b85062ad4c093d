"""The cosine of large numbers is wrong, because it is computed as the sine of `pi / 2 - x` in float32."""

import extra.torch_backend.backend
import torch

for number in (1e4, 1e6, 1e10):
    x = torch.tensor([number])
    print(f"cos({number:g}) is {x.to('tiny').cos().item():.6f}, not {x.double().cos().item():.6f}")
raise SystemExit("the error grows with the number")
