"""With momentum and weight decay, reading a weight after each step of `SGD` makes the weight wrong. If the weight is read only after
the last step, it is right."""

import extra.torch_backend.backend
import torch


def trained(device):
    weight, samples = torch.ones(6, 4).to(device).requires_grad_(), torch.ones(5, 4).to(device)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.1, foreach=False)
    for _ in range(4):
        optimizer.step(lambda: optimizer.zero_grad() or (torch.nn.functional.linear(samples, weight) - 3).square().mean().backward())
        read = weight.detach().cpu()
    return read


raise SystemExit(f"after four steps, the weight is off by {(trained('tiny') - trained('cpu')).abs().max().item():.0e}")
