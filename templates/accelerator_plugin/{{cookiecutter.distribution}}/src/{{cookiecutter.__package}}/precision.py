"""How numbers are stored and computed: ``precision="{{ cookiecutter.accelerator }}-bf16"``.

What stands in comments has that default, and need not be there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit import Accelerator, Precision, map_leaves

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class {{ cookiecutter.__class }}Precision(Precision):
    """bfloat16 under the device's autocast, over float32 parameters; results in float32."""

    required_capabilities: ClassVar[tuple[str, ...]] = ("autocast.bfloat16",)  # an accelerator that declares one of these none is refused

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Called once, at first use. The accelerator is not to be kept."""
        self._device_type = accelerator.autocast_device_type

    def forward_context(self) -> AbstractContextManager[Any]:
        """Entered around every forward pass of a prepared module."""
        import torch

        return torch.autocast(self._device_type, torch.bfloat16)

    def convert_output(self, data: T) -> T:
        """A forward pass's result (any nesting): what is bfloat16 becomes float32."""
        import torch

        def widened(leaf: Any) -> Any:
            return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16 else leaf

        return map_leaves(widened, data)

    # -- optional: uncomment what this precision does otherwise; the code is accelkit's default --------------------------------
    #
{% include "precision_options.txt" %}
