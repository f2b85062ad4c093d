"""Detection of inputs that need a dtype which the accelerator declares as missing on the device.

Whether an input needs a dtype is detected on the CPU: from the arguments, the results and the intermediate tensors. If the
accelerator declares no dtype as missing, nothing is run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit_conformance.oracle.sample_transfer import tensors, to_device
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


class _Dtypes(TorchDispatchMode):
    """Dispatch mode that records the dtypes of the arguments and results of operators.

    0-d tensors are left out unless they are bool, because torch converts Python numbers to 0-d tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def see(self, nested: Any, *, with_scalars: bool = False) -> None:
        self.seen |= {
            str(one.dtype).removeprefix("torch.") for one in tensors(nested) if one.ndim or one.dtype is torch.bool or with_scalars
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see((args, kwargs, result))
        if func is torch.ops.aten.bernoulli_.float:  # dropout, for which torch draws a bool mask on other devices
            self.seen.add("bool")
        return result


def lacking_dtypes(subject: Subject, program: Callable[[], Any]) -> list[str]:
    """Run a program on the CPU, and return the dtypes it uses that the device lacks.

    If the device has all ``DTYPES``, the program is not run, and the list is empty.
    """
    if not any(map(subject.lacks, DTYPES)):
        return []
    state = torch.default_generator.get_state()
    with _Dtypes() as mode:
        mode.see(program(), with_scalars=True)
    torch.default_generator.set_state(state)
    return sorted(dtype for dtype in mode.seen if subject.lacks(dtype))


def require_dtypes(subject: Subject, program: Callable[[], Any]) -> None:
    """Require that the device has every dtype that a program uses on the CPU.

    Raises:
        NotSupported: If the device lacks one of these dtypes. The result of the check is then ``unsupported``.
    """
    subject.needs(*lacking_dtypes(subject, program))


def possible_samples(subject: Subject, op: Any, samples: Iterable[Any]) -> Iterator[Any]:
    """Yield the operator's samples whose forward and backward passes need no dtype that the device lacks.

    Raises:
        NotSupported: After the last sample, if there are samples but each of them needs a dtype that the device lacks.
    """
    lacking: set[str] = set()
    is_any_possible = False
    for sample in samples:

        def program(sample: Any = sample) -> Any:
            first, args, kwargs = to_device((sample.input, sample.args, sample.kwargs), torch.device("cpu"))
            results = op(first, *args, **kwargs)
            outputs = [one for one in tensors(sample.output_process_fn_grad(results)) if one.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, cotangents(outputs, ""))
            return (first, args, kwargs), results

        missing = lacking_dtypes(subject, program)
        lacking |= set(missing)
        if not missing:
            is_any_possible = True
            yield sample
    if lacking and not is_any_possible:
        subject.needs(*sorted(lacking))
