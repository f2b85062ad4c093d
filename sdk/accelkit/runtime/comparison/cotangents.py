"""Output gradients for checks that compare gradients.

Their values are random, because a constant output gradient hides errors. For example, the sum of a normalised result does not depend on the
input. The input gradient is then zero, and a kernel that computes no gradient seems right. The mean of the values is 1/2, so that sums of
many values are not close to zero. Each value is an odd multiple of 1/16, which bfloat16, float16 and all wider floating-point dtypes
represent exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch


def cotangents(outputs: Sequence[torch.Tensor], name: str) -> list[torch.Tensor]:
    """Return a random output gradient for each output, on the output's device and in its dtype. For a sparse output, all values are 1.

    The seed of the random values is derived from ``name``, so the same name gives the same values on every device. A name may combine the
    names of an operator and a sample.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def draw(output: torch.Tensor) -> torch.Tensor:
        return (torch.randint(-4, 12, output.shape, generator=generator) * 2 + 1) / 16

    found = []
    for output in outputs:
        if output.layout is torch.strided:
            values = torch.complex(draw(output), draw(output)) if output.is_complex() else draw(output)
            found.append(values.to(output.dtype).to(output.device))
        else:
            found.append(torch.ones_like(output))
    return found
