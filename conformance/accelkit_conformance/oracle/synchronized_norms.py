"""SyncBatchNorm with inputs and output gradients in various memory layouts and dtypes, and with a rank that has no sample."""

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


def check_kinds(subject: Subject) -> None:
    """Compare SyncBatchNorm with BatchNorm in one process, with several dtypes and options.

    The first rank has one sample or, in float32, no sample. Every other rank r has r + 1 samples. Differences are recorded in the subject.
    """
    cases: dict[str, tuple[torch.dtype, torch.dtype, dict[str, bool]]] = {
        "float32": (torch.float32, torch.float32, {}),
        "without parameters": (torch.float32, torch.float32, {"affine": False}),
        "without statistics": (torch.float32, torch.float32, {"track_running_stats": False}),
        "float16": (torch.float16, torch.float16, {}),
        "bfloat16": (torch.bfloat16, torch.bfloat16, {}),
        "float16 inputs": (torch.float32, torch.float16, {}),
        "bfloat16 inputs": (torch.float32, torch.bfloat16, {}),
    }
    for name, (of_layer, of_input, options) in cases.items():
        if any(subject.lacks(str(dtype).removeprefix("torch.")) for dtype in (of_layer, of_input)):
            continue
        for first in (1, 0) if of_input is torch.float32 else (1,):  # torch 2.13 gathers two dtypes if a half batch is empty
            with subject.sample(f"{name}, the first rank has {first or 'no'} sample", {"name": name, "first": first}):
                _check_kind(subject, of_layer, of_input, options, first)


def _check_kind(subject: Subject, of_layer: torch.dtype, of_input: torch.dtype, options: dict[str, bool], first: int) -> None:
    single = torch.nn.BatchNorm1d(3, **options)
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(single)).to(subject.device, of_layer)
    counts = [first, *range(2, subject.world_size + 1)]
    start = sum(counts[: subject.rank])
    own = slice(start, start + counts[subject.rank])
    generator = torch.Generator().manual_seed(5)
    batch, gradients = (torch.randn(sum(counts), 3, 5, generator=generator).to(of_input).float() for _ in range(2))
    batch.requires_grad_()
    expected = single(batch)
    expected.backward(gradients)
    x = batch[own].detach().to(subject.device, of_input).requires_grad_()
    found = synced(x)
    found.backward(gradients[own].to(subject.device, found.dtype))
    totals = []
    for parameter in synced.parameters():  # a rank without samples may have no gradient
        totals.append(torch.zeros(3, device=subject.device) if parameter.grad is None else parameter.grad.float())
        torch.distributed.all_reduce(totals[-1])
    assert batch.grad is not None
    assert found.dtype == of_input, f"the output is {found.dtype}"
    tolerance = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}[of_input]
    torch.testing.assert_close(found.detach().cpu().float(), expected.detach()[own], rtol=tolerance, atol=tolerance)
    if len(x):
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu().float(), batch.grad[own], rtol=tolerance, atol=tolerance)
    scale = tolerance * float(gradients.abs().sum(dim=(0, 2)).max())
    for name, total, theirs in zip(("weight", "bias"), totals, single.parameters(), strict=False):
        torch.testing.assert_close(total.cpu(), theirs.grad, rtol=tolerance, atol=scale, msg=lambda text, name=name: f"{name}: {text}")
    if synced.running_mean is not None:
        for name in ("running_mean", "running_var"):
            ours, theirs = getattr(synced, name).cpu().float(), getattr(single, name)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


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
