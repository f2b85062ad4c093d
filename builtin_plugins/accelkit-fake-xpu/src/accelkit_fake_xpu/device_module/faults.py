"""Fault injection within a program: ``with torch.fake_xpu.fault("oom@3"): ...``.

The environment variable FAKE_XPU_FAULT injects faults from the start of the program.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator

import torch

from accelkit_fake_xpu.settings import Faults, SettingsError


@contextlib.contextmanager
def fault(text: str) -> Iterator[None]:
    """Context manager that injects the faults in ``text``, which has the format of the environment variable FAKE_XPU_FAULT.

    Allocations and kernels are counted from the start of the block; with ``oom@3``, the third allocation in the block fails. The faults
    replace those of an outer block or of FAKE_XPU_FAULT. The replaced faults are not restored: after the block, no faults are injected.
    Once a device has been lost, this process can no longer use any device.

    Raises:
        SettingsError: If ``text`` cannot be parsed, or names an operator that torch does not have.
    """
    inject(Faults.parse(text, "fault"))
    try:
        yield
    finally:
        inject(Faults())


def inject(faults: Faults) -> None:
    """Replace all faults with ``faults``. Allocations and kernels are counted from this call.

    Raises:
        SettingsError: If ``faults.nan_operator`` or ``faults.wrong_operator`` names an operator that torch does not have.
    """
    for kind, operator in (("nan", faults.nan_operator), ("wrong", faults.wrong_operator)):
        if operator and not hasattr(torch.ops.aten, operator):
            names = {name for name in (*dir(torch), *dir(torch.Tensor)) if hasattr(torch.ops.aten, name)}
            close = difflib.get_close_matches(operator, [name for name in names if name.startswith("_") == operator.startswith("_")], 1)
            raise SettingsError(
                "fault",
                f"{kind}@{operator}",
                "torch has no operator of that name",
                f"did you mean {close[0]}?" if close else "use mm, for example",
            )
    torch.ops.fake_xpu.set_faults(
        faults.oom_at,
        faults.lost_at,
        faults.nan_operator,
        faults.wrong_operator,
        faults.copy_milliseconds,
        faults.first_call_milliseconds,
        faults.recording,
    )
