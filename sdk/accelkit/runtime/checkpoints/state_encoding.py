"""State dicts as JSON plus tensors: what can be loaded again without running code that a checkpoint brings along."""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelkit.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
_HINT = (
    "save numbers, strings, lists, dicts and tensors: .item() of a NumPy scalar, torch.from_numpy of an array, a state_dict of an object"
)


class Encoder:
    """Encodes values one after another; their tensors gather in ``tensors``, each stored once however often it is referred to."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._stored: dict[tuple[Any, ...], str] = {}
        self._seen: list[torch.Tensor] = []

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
            pairs = [[_checked(key, path), self.encode(item, f"{path}.{key}")] for key, item in value.items()]
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
        is_partial = isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or is_partial:
            what = "quantized" if tensor.is_quantized else "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
            what = "of which each process holds a summand" if is_partial else what
            raise CheckpointError(f"{path} cannot be saved", why=f"it is a tensor {what}", hint="save a dense tensor with values")
        if tensor.numel() == 0:
            return {"empty": {"size": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}}
        memory = place_of(tensor)
        if memory not in self._stored:
            key = path
            while key in self.tensors:  # {"a.b": ..., "a": {"b": ...}}, or {1: ..., "1": ...}
                key += "+"
            self._stored[memory], self.tensors[key] = key, tensor.detach()
            self._seen.append(tensor)
        return {"tensor": self._stored[memory]}


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where its values are: equal for the same tensor at two places, as tied weights are.

    Only while the tensor lives. Of a DTensor its shard's: by storage, since a shard of no element has no address, and all processes must
    see the same ties.
    """
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        storage = local.untyped_storage()._cdata
        return (storage, local.storage_offset(), local.shape, local.stride(), tensor.dtype, tensor.shape, tuple(tensor.placements))
    if not (address := address_of(tensor)):  # XLA's: a slice and the whole look as if they were in one place
        return (id(tensor),)
    return (address, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def address_of(tensor: torch.Tensor) -> int:
    """Of its first element; 0 if its device has no addresses, or it has no element."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def decode(value: Any, get: Callable[[str, str], torch.Tensor], path: str = "") -> Any:
    """What was encoded.

    Args:
        value: What ``Encoder.encode`` returned.
        get: Gives a tensor by path and key. The same one for a key makes tied tensors tied again.
        path: Where it stands.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    decoders: dict[str, Any] = {
        "tensor": lambda: get(path, content),
        "empty": lambda: torch.empty(content["size"], dtype=getattr(torch, content["dtype"])),
        "dict": lambda: {key: decode(item, get, f"{path}.{key}") for key, item in content},
        "ordered": lambda: OrderedDict((key, decode(item, get, f"{path}.{key}")) for key, item in content),
        "list": lambda: [decode(item, get, f"{path}.{index}") for index, item in enumerate(content)],
        "tuple": lambda: tuple(decode(item, get, f"{path}.{index}") for index, item in enumerate(content)),
        "size": lambda: torch.Size(decode(item, get) for item in content),
        "float": lambda: float(content),
        "bytes": lambda: base64.b64decode(content),
        "dtype": lambda: getattr(torch, content),
        "device": lambda: torch.device(content),
    }
    return decoders[kind]()


def references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and key of every tensor in what was encoded."""
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "tensor":
            yield path, content
        elif kind in ("dict", "ordered"):
            for key, item in content:
                yield from references(item, f"{path}.{key}")
        elif kind in ("list", "tuple"):
            for index, item in enumerate(content):
                yield from references(item, f"{path}.{index}")


def _checked(key: Any, path: str) -> Any:
    if key is None or type(key) in (str, bool, int, float):
        return key
    raise CheckpointError(f"a key of {path} cannot be saved", why=f"it is {key!r:.60} ({type(key).__name__})", hint="use str or int keys")
