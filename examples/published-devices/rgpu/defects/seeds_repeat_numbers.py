"""After 64 calls of `torch.manual_seed`, the server keeps seeding itself, so random numbers repeat. The server's process imports rgpu
too: each seed that the server sets also seeds an rgpu device in this process, which sends the seed back to the server."""

import rgpu
import torch

for _ in range(64):
    torch.manual_seed(5)
numbers = [torch.rand(1, device="rgpu").item() for _ in range(500)]
repeated = len(numbers) - len(set(numbers))
if repeated:
    raise SystemExit(f"{repeated} of {len(numbers)} random numbers are repeated")
