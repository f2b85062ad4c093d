"""The index of torch.distributed.checkpoint's files, a pickle: read without letting it call anything but what an index is made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

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


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _PARTS.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an index")
        return super().find_class(module, name)


def read_index(folder: Path) -> Metadata:
    """What is in the files of this folder, and where.

    Raises:
        UnpicklingError: If it is no index, or names anything that an index is not made of.
    """
    with (folder / NAME).open("rb") as file:
        found = _Unpickler(file).load()
    if not isinstance(found, Metadata):
        raise pickle.UnpicklingError(f"it holds {type(found).__name__}, which is no index")
    return found
