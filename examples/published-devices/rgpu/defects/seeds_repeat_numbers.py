"""After 64 calls of `torch.manual_seed`, the server keeps seeding itself, so random numbers repeat. The server itself imports rgpu:
each seed that it sets also seeds its own rgpu device, whose server it is."""

import rgpu
import torch

for _ in range(64):
    torch.manual_seed(5)
numbers = [torch.rand(1, device="rgpu").item() for _ in range(500)]
repeated = len(numbers) - len(set(numbers))
if repeated:
    raise SystemExit(f"{repeated} of {len(numbers)} random numbers are repeated")
