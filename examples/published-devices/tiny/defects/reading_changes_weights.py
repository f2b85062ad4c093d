"""With momentum and weight decay, reading a weight after each step of `SGD` changes the weights. If they are read only after the last
step, they are right."""

import extra.torch_backend.backend
import torch


def trained(device, reads):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 6).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=False)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.linspace(0, 1, 20).view(5, 4).to(device)) - 3).square().mean().backward()
        optimizer.step()
        if reads:
            model.weight.detach().cpu()
    return model.weight.detach().cpu()


unread, read = ((trained("tiny", reads) - trained("cpu", reads)).abs().max().item() for reads in (False, True))
if read > 1e-4:
    raise SystemExit(f"the weights are off by {unread:.0e}, and by {read:.0e} if they are read after each step")
