"""Mixed precision: parameters in float32, forward passes under the device's own autocast."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit import Accelerator, Precision, UnsupportedError
from accelkit_builtin.precisions.casting import widen

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class AutocastOptions:
    """Options for ``torch.autocast``.

    Args:
        cache_enabled: Whether a parameter that is used several times in a forward pass is cast only once.
    """

    cache_enabled: bool = True


class AutocastPrecision(Precision):
    """Base class of precisions that run forward passes under autocast, in a dtype narrower than float32.

    Parameters are in float32 unless a subclass or a strategy stores them in another dtype.

    Args:
        autocast: Options for autocast.
    """

    dtype_name: ClassVar[str]

    def __init__(self, autocast: AutocastOptions | None = None) -> None:
        self.autocast = autocast or AutocastOptions()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Check that torch supports autocast in the precision's dtype for this device type.

        Raises:
            UnsupportedError: If torch does not support autocast in the precision's dtype.
        """
        import torch

        self._device_type, self._dtype = accelerator.autocast_device_type, getattr(torch, self.dtype_name)
        call = f"torch.autocast({self._device_type!r}, torch.{self.dtype_name})"
        hint = f"use precision='32-true', or ask the vendor to support torch's autocast in {self.dtype_name}"
        with self._rejected_by_torch(accelerator, call, hint):
            torch.autocast(self._device_type, self._dtype)
        self._context = functools.partial(torch.autocast, self._device_type, self._dtype, cache_enabled=self.autocast.cache_enabled)

    @contextmanager
    def _rejected_by_torch(self, accelerator: Accelerator, call: str, hint: str) -> Iterator[None]:
        """Context manager that raises UnsupportedError if the torch call inside it fails.

        The call fails if it raises a RuntimeError or an AssertionError, or issues a UserWarning. For example, torch only warns about an
        autocast dtype that it does not support, and then computes in float32.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                yield
        except (RuntimeError, AssertionError, UserWarning) as error:
            raise UnsupportedError(
                f"{accelerator.name} does not support precision {self.name!r}",
                plugin=accelerator.plugin,
                why=f"{call} failed: {' '.join(str(error).split())}",
                hint=hint,
            ) from error

    def forward_context(self) -> AbstractContextManager[Any]:
        return self._context()

    def convert_output(self, data: T) -> T:
        """Return the data with tensors of the autocast dtype cast to float32, so that losses and metrics are computed in float32."""
        return widen(data, self._dtype)
