"""Read the index that torch.distributed.checkpoint writes, which is a pickle. Only classes and functions that an index needs are called."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.metadata import Metadata

from accelkit.regular_file import open_regular
from accelkit.runtime.checkpoints.step_dirs import MANIFEST

NAME = ".metadata"
_PARTS = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),
}


class _Unpickler(pickle._Unpickler):
    """Unpickler of the index of a checkpoint. It rejects every class and function that an index does not need.

    The base class is the unpickler written in Python, because the handler of the BUILD opcode has to be replaced: the original handler
    lets a pickle set attributes of a class. The unpickler written in C does not allow handlers to be replaced.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def load_build(self) -> None:
        instance = self.stack[-2]
        if isinstance(instance, type | enum.Enum) or type(instance).__name__ not in _PARTS.get(type(instance).__module__, ()):
            name = instance.__name__ if isinstance(instance, type) else type(instance).__name__
            raise pickle.UnpicklingError(f"it modifies {name} with the BUILD opcode, which an index does not use")
        super().load_build()  # type: ignore[misc] # typeshed does not declare it

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # Python 3.11.0 to 3.11.3 pickle members of an enum as getattr(cls, name)
            return _member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _PARTS.get(module, ()):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not part of an index")
        return super().find_class(module, name)


def _member(cls: Any, name: str) -> enum.Enum:
    if not (isinstance(cls, enum.EnumMeta) and name in cls.__members__):
        raise pickle.UnpicklingError(f"it reads the attribute {name!r} of {cls!r:.80}, which an index does not do")
    member: enum.Enum = cls.__members__[name]
    return member


def read_index(folder: Path, files: Collection[str], name: str = NAME) -> Metadata:
    """Read an index, which gives the file and the offset of each part of each tensor.

    Args:
        folder: The folder that holds the index.
        files: The names of the files that the index must list.
        name: The name of the index file.

    Raises:
        UnpicklingError: If the file contains something other than an index, if the pickle in the file refers to anything that is not part
            of an index, or if the files that the index lists are not exactly ``files``.
        Exception: If the pickle is damaged. The exception may be of any class.
    """
    with open(open_regular(folder / name), "rb") as file:
        found = _Unpickler(file).load()
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise pickle.UnpicklingError(f"it contains {type(found).__name__} instead of an index")
    named = {str(where.relative_path) for where in found.storage_data.values()}
    if named != set(files):
        others = ", ".join(repr(name) for name in sorted(named.symmetric_difference(files))[:4])
        raise pickle.UnpicklingError(f"it and {MANIFEST} list different files: {others}")
    return found
