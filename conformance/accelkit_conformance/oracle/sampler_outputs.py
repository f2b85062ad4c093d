"""Checks of samplers that write into a given tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SAMPLERS: dict[str, tuple[torch.dtype, Callable[..., torch.Tensor]]] = {
    "rand": (torch.float32, lambda device, **out: torch.rand(90, **(out or {"device": device}))),
    "randn": (torch.float32, lambda device, **out: torch.randn(90, **(out or {"device": device}))),
    "randint": (torch.int64, lambda device, **out: torch.randint(0, 1000, (90,), **(out or {"device": device}))),
    "randperm": (torch.int64, lambda device, **out: torch.randperm(90, **(out or {"device": device}))),
    "normal": (torch.float32, lambda device, **out: torch.normal(torch.arange(90.0, device=device), 2.0, **out)),
    "normal_of_deviations": (torch.float32, lambda device, **out: torch.normal(1.0, torch.arange(90.0, device=device), **out)),
    "normal_of_tensors": (
        torch.float32,
        lambda device, **out: torch.normal(torch.arange(90.0, device=device), torch.ones(90, device=device), **out),
    ),
    "bernoulli": (torch.float32, lambda device, **out: torch.bernoulli(torch.full((90,), 0.5, device=device), **out)),
    "multinomial": (torch.int64, lambda device, **out: torch.multinomial(torch.ones(200, device=device), 90, **out)),
}
"""Samplers of 90 numbers, by name, with the dtype of the numbers. Each takes the device and, optionally, ``out=``."""


def check_outputs(subject: Subject) -> None:
    """Check samplers whose ``out=`` argument is an empty tensor, a tensor of the right size, or a strided tensor.

    If a sampler does not return the given tensor, or if the numbers, dtype or shape are wrong, the failure is recorded in the subject.

    Raises:
        AssertionError: If a sampler writes between the elements of the strided tensor.
    """
    device = subject.device
    for name, (dtype, draw) in _SAMPLERS.items():
        if subject.lacks("int64") and dtype is torch.int64:
            continue
        buffer: Any = torch.full((90, 2), -7, dtype=dtype, device=device)
        targets = {
            "an empty tensor": torch.empty(0, dtype=dtype, device=device),
            "a tensor of the right size": torch.full((90,), -7, dtype=dtype, device=device),
            "a strided tensor": buffer[:, 1],
        }
        for target, out in targets.items():
            if name == "normal" and not out.numel():  # on the CPU, torch does not resize the result of this sampler
                continue
            with subject.sample(f"{name} into {target}", {"name": name, "target": target}):
                subject.accelerator.manual_seed(9)
                expected = draw(device)
                assert expected.dtype == dtype, f"{name} drew numbers of {expected.dtype}"
                subject.accelerator.manual_seed(9)
                result = draw(device, out=out)
                assert result is out, f"{name} with out= did not return the given tensor"
                assert out.shape == (90,), f"{name} into {target} has the shape {tuple(out.shape)}"
                found = out.cpu()
                assert len(found.unique()) > (1 if name == "bernoulli" else 40), f"{name} into {target} wrote {found.unique().tolist()}"
                if target != "a strided tensor":
                    assert torch.equal(found, expected.cpu()), f"{name} into {target} drew other numbers than without out="
        assert bool((buffer[:, 0] == -7).all()), f"{name} into a strided tensor wrote between its elements"
