"""Encode state dicts as JSON plus tensors, so that loading a checkpoint never runs code that the checkpoint contains."""

from __future__ import annotations

import base64
import datetime
import enum
import math
import pathlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from accelkit.errors import CheckpointError
from accelkit.runtime.addresses import address_of
from accelkit.runtime.checkpoints.mapped_tensors import in_memory

Tensors = dict[str, torch.Tensor]
_HINT = "save numbers, strings, tensors, NumPy arrays or standard containers of these; for any other object, save its state_dict"
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size", set: "set", frozenset: "frozenset"}
_FACTORIES = {factory.__name__: factory for factory in (bool, int, float, str, list, tuple, dict, set)}
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_TIMES = {cls.__name__: cls for cls in (datetime.datetime, datetime.date, datetime.time)}


class Encoder:
    """Encodes values one after another, and collects their tensors in ``tensors``. A tensor that occurs several times is stored once."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._stored: dict[tuple[Any, ...], str] = {}
        self._seen: list[torch.Tensor] = []

    def encode(self, value: Any, path: str) -> Any:
        """Return ``value`` encoded with types that ``json.dumps`` accepts.

        Args:
            value: Nested dicts (with keys of type str, int, float, bool or None) and other containers of the standard library. They contain
                tensors, NumPy arrays, numbers, strings and the other values that ``_encode_leaf`` encodes.
            path: The location of the value, used in errors and as the key of a tensor.

        Raises:
            CheckpointError: For a value or key of any other type, and for a tensor that is quantized, is on the meta device, is a partial
                sum of several processes, or has a layout other than ``torch.strided``. The error gives the path.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if type(value) in _MAPPINGS:
            return {_MAPPINGS[type(value)]: self._encode_items(value, path)}
        if type(value) in _SEQUENCES:
            ordered = (
                sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            )  # so that the order is the same on every process
            return {_SEQUENCES[type(value)]: [self.encode(item, f"{path}.{index}") for index, item in enumerate(ordered)]}
        if type(value) is deque:
            return {"deque": {"maxlen": value.maxlen, "items": self.encode(list(value), path)}}
        if type(value) is defaultdict and (value.default_factory is None or value.default_factory in _FACTORIES.values()):
            factory = None if value.default_factory is None else value.default_factory.__name__
            return {"defaultdict": {"factory": factory, "items": self.encode(dict(value), path)}}
        leaf = _encode_leaf(value)
        if leaf is not None:
            return leaf
        if _is_numeric_array(value):
            return {"array": self.encode(torch.from_numpy(value.copy()), path)}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(f"{path} cannot be saved", why=f"its type is {kind}, which cannot be loaded safely", hint=_HINT)

    def _encode_items(self, mapping: Any, path: str) -> list[list[Any]]:
        return [[_checked(key, path), self.encode(item, f"{path}.{key}")] for key, item in mapping.items()]

    def _encode_tensor(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        is_partial = isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or is_partial:
            what = "quantized" if tensor.is_quantized else "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
            what = "that is a partial sum of several processes" if is_partial else what
            raise CheckpointError(f"{path} cannot be saved", why=f"it is a tensor {what}", hint="save a dense tensor that has values")
        if tensor.numel() == 0:
            return {"empty": {"size": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}}
        memory = place_of(tensor)
        if memory not in self._stored:
            key = path
            while key in self.tensors:  # two values may have the same path, as in {"a.b": ..., "a": {"b": ...}} or {1: ..., "1": ...}
                key += "+"
            self._stored[memory], self.tensors[key] = key, tensor.detach()
            self._seen.append(tensor)
        return {"tensor": self._stored[memory]}


def _encode_leaf(value: Any) -> dict[str, Any] | None:
    """Encode a value that is not a container.

    Bytes, complex numbers, dtypes, devices, dates, times, time differences, paths, enum members and NumPy's numbers can be encoded. Return
    None for a value of any other type.
    """
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if type(value) is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if type(value).__name__ in _TIMES and type(value) in _TIMES.values():
        return {type(value).__name__: value.isoformat()}
    if type(value) is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, pathlib.PurePath) and type(value).__module__.partition(".")[0] == "pathlib":
        return {"path": [isinstance(value, pathlib.Path), str(value)]}
    if isinstance(value, enum.Enum) and value.name in type(value).__members__:
        return {"enum": [type(value).__module__, type(value).__qualname__, value.name]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
        return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    return None


def _is_numeric_array(value: Any) -> bool:
    """Return whether a value is a NumPy array of a dtype that torch supports."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    try:
        torch.from_numpy(numpy.empty(0, value.dtype))
    except (TypeError, ValueError):  # the array contains objects, or numbers in non-native byte order
        return False
    return True


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key for the memory of a tensor. Two references to the same tensor, such as tied weights, have equal keys.

    The key is valid only while the tensor is alive. For a DTensor, the key contains the identity of the shard's storage object, not an
    address. An empty shard has no address, so if keys contained addresses, a process with empty shards could not recognize the tied tensors
    that the other processes recognize.
    """
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        storage = StorageWeakRef(local.untyped_storage()).cdata  # type: ignore[no-untyped-call]
        place = (local.storage_offset(), local.shape, local.stride(), tensor.dtype, local.is_conj(), local.is_neg())
        return (storage, *place, tensor.shape, tuple(tensor.placements))
    if not (address := address_of(tensor)):  # on XLA, a slice would seem to have the same location as the whole tensor
        return (id(tensor),)
    return (address, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


def decode(value: Any, get: Callable[[str, str], torch.Tensor], path: str = "") -> Any:
    """Decode the result of ``Encoder.encode``, and return the original value.

    Args:
        value: The result of ``Encoder.encode``, or a part of it.
        get: A function that returns the tensor with a given path and key. If it returns the same tensor for equal keys, tied tensors
            stay tied.
        path: The path of ``value`` within the state, such as ``custom_0.deep.1``. It is passed to ``get`` and shown in errors.

    Raises:
        CheckpointError: If the value contains a member of an enumeration that this program does not have.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    inner = [decode(item, get, f"{path}{suffix}") for suffix, item in _children(kind, content)]
    decoders: dict[str, Any] = {
        "tensor": lambda: get(path, content),
        "empty": lambda: torch.empty(content["size"], dtype=_DTYPES[content["dtype"]]),
        "dict": lambda: {key: item for (key, _), item in zip(content, inner, strict=True)},
        "ordered": lambda: OrderedDict((key, item) for (key, _), item in zip(content, inner, strict=True)),
        "counter": lambda: Counter({key: item for (key, _), item in zip(content, inner, strict=True)}),
        "defaultdict": lambda: defaultdict(content["factory"] and _FACTORIES[content["factory"]], inner[0]),
        "list": lambda: inner,
        "tuple": lambda: tuple(inner),
        "size": lambda: torch.Size(inner),
        "set": lambda: set(inner),
        "frozenset": lambda: frozenset(inner),
        "deque": lambda: deque(inner[0], content["maxlen"]),
        "array": lambda: in_memory(inner[0]).numpy(),
        "scalar": lambda: _scalar(*content),
        "complex": lambda: complex(*map(float, content)),
        "timedelta": lambda: datetime.timedelta(*content),
        "path": lambda: (pathlib.Path if content[0] else pathlib.PurePath)(content[1]),
        "enum": lambda: _enum_member(path, *content),
        **{name: lambda cls=cls: cls.fromisoformat(content) for name, cls in _TIMES.items()},
        "float": lambda: float(content),
        "bytes": lambda: base64.b64decode(content),
        "dtype": lambda: _DTYPES[content],
        "device": lambda: torch.device(content),
    }
    return decoders[kind]()


def references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(path, key)`` for each tensor in an encoded value. The checkpoint stores the tensor under ``key``.

    Empty tensors are left out, because their encoding is complete without a stored tensor. Tied tensors have different paths and equal
    keys.

    Args:
        value: The result of ``Encoder.encode``, or a part of it.
        path: The path of ``value``. The yielded paths begin with it.
    """
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "tensor":
            yield path, content
        for suffix, item in _children(kind, content):
            yield from references(item, f"{path}{suffix}")


def keys_only_of(kinds: tuple[str, ...], parts: Mapping[str, Any]) -> set[str]:
    """Return the keys of the tensors that occur only in parts of certain kinds, and not in the extra state of a module.

    For the kind ``model_``, these are the tensors that only models load. A model copies the values of these tensors into its own tensors,
    whereas objects of other kinds, and ``torch.nn.Module.set_extra_state``, may keep the tensors that they are given.

    Args:
        kinds: The kinds of parts. A kind is the beginning of a part's name, such as ``model_``.
        parts: Encoded state dicts by the name of the part.
    """
    of_these, of_others = set[str](), set[str]()
    for name, structure in parts.items():
        for path, key in references(structure, name):
            is_one = name.startswith(kinds) and "_extra_state" not in path
            (of_these if is_one else of_others).add(key)
    return of_these - of_others


def _children(kind: str, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``(suffix, item)`` for each item of an encoded container. The item's path is the container's path followed by the suffix."""
    if kind in _MAPPINGS.values():
        yield from ((f".{key}", item) for key, item in content)
    elif kind in _SEQUENCES.values():
        yield from ((f".{index}", item) for index, item in enumerate(content))
    elif kind in ("deque", "defaultdict"):
        yield "", content["items"]
    elif kind == "array":
        yield "", content


def _scalar(dtype: str, data: str) -> Any:
    import numpy

    return numpy.frombuffer(base64.b64decode(data), dtype)[0]


def _enum_member(path: str, module: str, name: str, member: str) -> Any:
    """Return a member of an enumeration that the program has already imported. Loading a checkpoint never imports a module.

    Raises:
        CheckpointError: If the program has no such enumeration or member.
    """
    found: Any = sys.modules.get(module)
    for attribute in name.split("."):
        found = getattr(found, "__dict__", {}).get(attribute)  # getattr could run a module's own __getattr__
    if not (isinstance(found, type) and issubclass(found, enum.Enum)) or member not in found.__members__:
        hint = f"import {module} before loading; if {name} has changed since the checkpoint was saved, use the program that saved it"
        raise CheckpointError(
            f"{path} cannot be loaded", why=f"its value {module}.{name}.{member} does not exist in this program", hint=hint
        )
    return found[member]


def _checked(key: Any, path: str) -> Any:
    if key is None or type(key) in (str, bool, int, float):
        return key
    raise CheckpointError(
        f"a key of {path} cannot be saved",
        why=f"the key is {key!r:.60} ({type(key).__name__})",
        hint="use strings, numbers, booleans or None as keys",
    )
