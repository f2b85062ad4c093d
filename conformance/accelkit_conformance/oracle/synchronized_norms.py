"""SyncBatchNorm with inputs and output gradients in various memory layouts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.layouts import LAYOUTS, MORE_LAYOUTS, arranged
from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SHAPES = ((3, 4, 5), (3, 5, 1), (3, 1, 6), (3, 4))
"""The shapes of a sample. A dimension of length 1 makes the strides of a tensor ambiguous: they fit several memory formats."""


def check_layouts(subject: Subject) -> None:
    """Compare the outputs and gradients of SyncBatchNorm with those of BatchNorm in one process that has the samples of all ranks.

    Each rank has two samples. Differences are recorded in the subject.
    """
    for shape in _SHAPES:
        for layout in ("contiguous", *LAYOUTS, *MORE_LAYOUTS):
            with subject.sample(f"samples of {list(shape)}, {layout}", {"shape": shape, "layout": layout}):
                _check(subject, shape, layout)


def _check(subject: Subject, shape: tuple[int, ...], layout: str) -> None:
    norms = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}
    single = norms[len(shape)](shape[0])
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(single)).to(subject.device)
    count = 2 * subject.world_size
    generator = torch.Generator().manual_seed(count)
    batch, gradients = (torch.randn(count, *shape, generator=generator) for _ in range(2))
    own = slice(2 * subject.rank, 2 * subject.rank + 2)
    batch.requires_grad_()
    expected = single(batch)
    expected.backward(gradients)
    x, gradient = (to_device(arranged(one[own].detach(), layout), subject.device) for one in (batch, gradients))
    found = synced(x.requires_grad_())
    found.backward(gradient)
    assert x.grad is not None
    assert batch.grad is not None
    torch.testing.assert_close(found.detach().cpu(), expected.detach()[own], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(x.grad.cpu(), batch.grad[own], rtol=1e-3, atol=1e-4)
    for name, ours, theirs in zip(("weight", "bias"), synced.parameters(), single.parameters(), strict=True):
        assert ours.grad is not None
        total = ours.grad.clone()
        torch.distributed.all_reduce(total)
        torch.testing.assert_close(total.cpu(), theirs.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
