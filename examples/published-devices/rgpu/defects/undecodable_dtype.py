"""A tensor of a dtype that the server cannot decode, such as complex32, ends the session: the client sends the tensor again and again
for a minute, and then other tensors are lost too."""

import rgpu
import torch

x = torch.ones(2, device="rgpu")
torch.zeros(2, dtype=torch.complex32, device="rgpu")
for _ in range(2):
    try:
        x.cpu()
    except (ConnectionError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}")
raise SystemExit("x was fine before the other tensor was made")
