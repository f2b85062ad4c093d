"""The precision ``{{ cookiecutter.accelerator }}-bf16``.

The comments show the defaults of optional methods. They can be deleted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit import Accelerator, Precision, tree_map

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class {{ cookiecutter.__class }}Precision(Precision):
    """bfloat16 autocast with float32 parameters and float32 results."""

    required_capabilities: ClassVar[tuple[str, ...]] = ("autocast.bfloat16",)  # accelerators that declare one of these as none are refused

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Prepare the precision. Called once, at first use. Do not keep a reference to the accelerator."""
        self._device_type = accelerator.autocast_device_type

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context manager for every forward pass of a prepared module."""
        import torch

        return torch.autocast(self._device_type, torch.bfloat16)

    def convert_output(self, data: T) -> T:
        """Convert bfloat16 tensors in the (possibly nested) result of a forward pass to float32."""
        import torch

        def widened(leaf: Any) -> Any:
            return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16 else leaf

        return tree_map(widened, data)

    # -- optional: uncomment what differs for this precision; the code shows accelkit's default --------------------------------
    #
{% include "precision_options.txt" %}
