"""`avg_pool2d` ignores `divisor_override`."""

import extra.torch_backend.backend
import torch

image = torch.ones(1, 1, 3, 3)
right = torch.nn.functional.avg_pool2d(image, 3, divisor_override=2).item()
mean = torch.nn.functional.avg_pool2d(image.to("tiny"), 3, divisor_override=2).item()
if mean != right:
    raise SystemExit(f"the result is {mean}, not {right}")
