"""Sampling from most distributions is not implemented."""

import extra.torch_backend.backend
import torch

x, missing = torch.full((4,), 0.5, device="tiny"), []
alone, with_number = ("bernoulli", "poisson", "cauchy_", "exponential_", "log_normal_"), ("bernoulli_", "geometric_", "random_")
for name, arguments in {**dict.fromkeys(alone, ()), **dict.fromkeys(with_number, (1,)), "binomial": (x,)}.items():
    try:
        getattr(torch.ops.aten, name)(x.clone(), *arguments)
    except NotImplementedError:
        missing.append(name)
raise SystemExit(f"not implemented: {', '.join(missing)}")
