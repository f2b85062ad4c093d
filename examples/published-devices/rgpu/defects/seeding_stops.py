"""After 63 calls of `torch.manual_seed`, in all programs together, seeds have no effect until the server is restarted. The server
itself imports rgpu, so `torch.manual_seed` in the server also seeds its own rgpu device, which has no server. When the queue of
these messages is full, the call raises `ConnectionRefusedError` before the CPU's generator is seeded."""

import rgpu
import torch


def drawn():
    torch.manual_seed(5)
    return torch.rand(3, device="rgpu").tolist()


first = drawn()
for count in range(1, 200):
    if drawn() != first:
        raise SystemExit(f"after {count} calls, torch.manual_seed(5) has no effect")
