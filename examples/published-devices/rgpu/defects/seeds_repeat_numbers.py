"""After 64 calls to `torch.manual_seed`, the server keeps seeding itself, so random numbers repeat. The reason is that the server imports
rgpu, as the client does. Each time the server sets a seed, it therefore also seeds an rgpu device of its own, which sends the seed to
the server again."""

import rgpu
import torch

for _ in range(64):
    torch.manual_seed(5)
numbers = [torch.rand(1, device="rgpu").item() for _ in range(500)]
repeated = len(numbers) - len(set(numbers))
if repeated:
    raise SystemExit(f"{repeated} of {len(numbers)} random numbers are repeated")
