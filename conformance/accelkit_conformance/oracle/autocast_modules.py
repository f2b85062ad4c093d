"""Modules under autocast, compared with the same modules on the CPU in float32."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.module_arguments import EXAMPLES, Example
from accelkit_conformance.oracle.module_compare import run_module
from accelkit_conformance.oracle.sample_transfer import to_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

NAMES = (
    *(f"{kind}{ndim}d" for kind in ("Conv", "ConvTranspose") for ndim in (1, 2, 3)),
    "RNN", "GRU", "LSTM", "cells", "attention", "transformers", "normalisations",
)  # fmt: skip
"""The kinds of modules, by their names in ``EXAMPLES``."""
_MIXED = ("RNN", "GRU", "LSTM", "cells", "attention", "transformers")
_LARGEST_ERRORS = {torch.bfloat16: 0.1, torch.float16: 0.02}


class _Autocast(nn.Module):
    """A module whose forward pass runs under autocast. Its backward pass does not."""

    def __init__(self, module: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.device_type, self.dtype = module, device_type, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device_type, dtype=self.dtype):
            return self.module(*args, **kwargs)


def check_modules(subject: Subject, dtype: str, name: str) -> None:
    """Compare outputs and gradients of modules under autocast on the device with those of the CPU in float32. Differences are recorded in
    the subject.

    Args:
        subject: The plugin under test, with its device.
        dtype: The autocast dtype: ``bfloat16`` or ``float16``.
        name: One of ``NAMES``.
    """
    low = getattr(torch, dtype)
    for number, example in enumerate(EXAMPLES[name]):
        module, *given = example()
        if lacking_dtypes(subject, lambda: (given, run_module(module, given, ""))):  # noqa: B023
            continue
        for training in (True, False):
            for is_low in (False, True) if name in _MIXED else (False,):
                what = f"{name}[{number}], {module}, {'training' if training else 'evaluation'}, {'low' if is_low else 'float32'} input"
                with subject.sample(what, {"name": name, "number": number, "training": training, "low": is_low}):
                    _compare(subject, example, low, training=training, is_low=is_low)


def _compare(subject: Subject, example: Example, low: torch.dtype, *, training: bool, is_low: bool) -> None:
    torch.default_generator.manual_seed(0)
    module, (first, *others), kwargs = example()
    there = _Autocast(copy.deepcopy(module).to(subject.device), subject.accelerator.autocast_device_type, low).train(training)
    first = first.detach().to(low).float() if is_low else first.detach()
    expected = run_module(module.train(training), to_device(((first.requires_grad_(), *others), kwargs), torch.device("cpu")), "")
    call = to_device(((first.detach().to(low if is_low else None).requires_grad_(), *others), kwargs), subject.device)
    if not training:
        with torch.inference_mode():
            there(*call[0], **call[1])
    found = run_module(there, call, "")
    subject.compute()
    for part in ("outputs", "gradients"):
        whole = max((float(one.norm()) for one in expected[part] if one is not None), default=0.0)
        for mine, theirs in zip(found[part], expected[part], strict=True):
            assert (mine is None) == (theirs is None), f"{part}: an entry is None on the device or on the CPU, but not on both"
            if theirs is None or not theirs.is_floating_point():
                continue
            error = float((mine.detach().cpu().double() - theirs.detach().double()).norm())
            bound = _LARGEST_ERRORS[low] * (float(theirs.norm()) + whole / 10)
            assert error <= bound, f"{part}: the norm of the error is {error:.3g}, but at most {bound:.3g} is allowed"
