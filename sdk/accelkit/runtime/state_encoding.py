"""State dicts as JSON plus tensors: what can be loaded again without running code that a checkpoint brings along."""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from typing import Any

import torch

from accelkit.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
_COMPILED = "_orig_mod."
_HINT = (
    "save numbers, strings, lists, dicts and tensors: .item() of a NumPy scalar, torch.from_numpy of an array, a state_dict of an object"
)


class Encoder:
    """Encodes values one after another; their tensors gather in ``tensors``, each stored once however often it is referred to."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._stored: dict[tuple[Any, ...], str] = {}

    def encode(self, value: Any, path: str) -> Any:
        """``value`` as JSON.

        Args:
            value: Nested dicts (keys str, int, float, bool or None), lists, tuples and leaves.
            path: Where it stands: for errors, and as the key of a tensor.

        Raises:
            CheckpointError: For a value that ``torch.load(weights_only=True)`` could not load either; names it.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if type(value) in (dict, OrderedDict):
            pairs = [[_bare(key, path), self.encode(item, f"{path}.{key}")] for key, item in value.items()]
            return {"dict" if type(value) is dict else "ordered": pairs}
        if type(value) in (list, tuple, torch.Size):
            kind = "list" if type(value) is list else "tuple" if type(value) is tuple else "size"
            return {kind: [self.encode(item, f"{path}.{index}") for index, item in enumerate(value)]}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(f"{path} cannot be saved", why=f"it is {kind}, which could not be loaded without running code", hint=_HINT)

    def _encode_tensor(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            what = "quantized" if tensor.is_quantized else "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
            raise CheckpointError(f"{path} cannot be saved", why=f"it is a tensor {what}", hint="save a dense tensor with values")
        if tensor.numel() == 0:
            return {"empty": {"size": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}}
        try:
            memory: tuple[Any, ...] = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        except RuntimeError:  # a device without addresses
            memory = (id(tensor),)
        key = self._stored.setdefault(memory, path)
        self.tensors.setdefault(key, tensor.detach())
        return {"tensor": key}


def decode(value: Any, tensors: Tensors) -> Any:
    """What was encoded. A tensor that was stored once for several places comes back as one."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    decoders: dict[str, Any] = {
        "tensor": lambda: tensors[content],
        "empty": lambda: torch.empty(content["size"], dtype=getattr(torch, content["dtype"])),
        "dict": lambda: {key: decode(item, tensors) for key, item in content},
        "ordered": lambda: OrderedDict((key, decode(item, tensors)) for key, item in content),
        "list": lambda: [decode(item, tensors) for item in content],
        "tuple": lambda: tuple(decode(item, tensors) for item in content),
        "size": lambda: torch.Size(decode(item, tensors) for item in content),
        "float": lambda: float(content),
        "bytes": lambda: base64.b64decode(content),
        "dtype": lambda: getattr(torch, content),
        "device": lambda: torch.device(content),
    }
    return decoders[kind]()


def _bare(key: Any, path: str) -> Any:
    """The bare model's key: torch.compile puts ``_orig_mod.`` into names."""
    if type(key) is str:
        return key.replace(_COMPILED, "")
    if key is None or type(key) in (bool, int, float):
        return key
    raise CheckpointError(f"a key of {path} cannot be saved", why=f"it is {key!r:.60} ({type(key).__name__})", hint="use str or int keys")
