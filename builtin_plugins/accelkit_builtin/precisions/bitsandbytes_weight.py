"""The class of weights that are stored in 4 bits per element. Importing this module imports bitsandbytes and torch."""

from __future__ import annotations

import copy
from typing import Any

from bitsandbytes.nn import Params4bit


class Weight4Bit(Params4bit):  # type: ignore[misc]  # bitsandbytes has no types here
    """A 4-bit weight of bitsandbytes that can be deep-copied on every device.

    The ``__deepcopy__`` of bitsandbytes creates an empty weight on the CPU and then assigns a copy of the original data to the new weight.
    torch does not allow this assignment if the data is on an out-of-tree device.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Weight4Bit:
        twin = type(self)(
            copy.deepcopy(self.data, memo),
            requires_grad=self.requires_grad,
            quant_state=copy.deepcopy(self.quant_state, memo),
            blocksize=self.blocksize,
            compress_statistics=self.compress_statistics,
            quant_type=self.quant_type,
            quant_storage=self.quant_storage,
            module=memo.get(id(self.module), self.module),
            bnb_quantized=self.bnb_quantized,
        )
        memo[id(self)] = twin
        return twin
