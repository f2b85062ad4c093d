"""Index of the tensors in a checkpoint's folder: one file or, for a large checkpoint, one file for each rank that wrote tensors.

The index file of a rank has the name that ``torch.distributed.checkpoint.save`` with ``use_collectives=False`` gives it. For example,
``__3.metadata`` is the index file of rank 3 and lists the tensors in ``__3_0.distcp``.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from accelkit.runtime.checkpoints import dcp_metadata

_OF_RANK = re.compile(r"__(0|[1-9][0-9]*)\.metadata")
_DATA_OF_RANK = re.compile(r"__(0|[1-9][0-9]*)_[0-9]+\.distcp")


def name_of(rank: int) -> str:
    """Return the name of a rank's index file."""
    return f"__{rank}.metadata"


def is_of_rank(name: str) -> bool:
    """Return whether a file with this name is the index file of one rank."""
    return _OF_RANK.fullmatch(name) is not None


def keys_in(folder: Path, files: Collection[str], name: str, start: int, end: int) -> list[str]:
    """Return the keys of the tensors that have bytes between ``start`` and ``end`` in the file ``name``.

    Args:
        folder: The folder that holds the files and their index.
        files: The names of all files in the folder except ``.metadata``.
        name: The name of a file with tensors.
        start, end: The first byte, and the byte after the last byte.
    """
    match = _DATA_OF_RANK.fullmatch(name)
    own = name_of(int(match[1])) if match else ""
    found = dcp_metadata.read_index(folder, _by_index(files)[own], own) if own in files else dcp_metadata.read_index(folder, files)
    assert found.storage_data is not None
    places = found.storage_data.items()
    within = [key.fqn for key, at in places if at.relative_path == name and at.offset < end and at.offset + at.length > start]
    return list(dict.fromkeys(within))


def _by_index(files: Iterable[str]) -> dict[str, set[str]]:
    """Return a dict that maps the name of each rank's index file to the names of the data files that this rank wrote."""
    found: dict[str, set[str]] = {}
    for name in files:
        if match := _DATA_OF_RANK.fullmatch(name):
            found.setdefault(name_of(int(match[1])), set()).add(name)
    return found


class Index:
    """The index of the tensors in a folder. The files of the index are read when they are needed.

    Args:
        folder: The folder. None if there are no tensors.
        files: The names of all files in the folder, as listed in the manifest.
        first: The ranks whose index files are read immediately. These files probably list everything that this process needs. If there is
            one index file for all ranks, it is always read immediately.
        verify: A function that is called with the name of each rank's index file before the file is read.

    Attributes:
        metadata: The content of the files that have been read. ``complete`` reads the other files.

    Raises:
        UnpicklingError: If an index file does not contain an index or lists the wrong data files, if a data file was written by a rank that
            has no index file, or if two index files list different sizes for a tensor. A rank's index file must list exactly the data files
            that this rank wrote. An index file for all ranks must list all data files.
        Exception: If there is one index file for all ranks and its pickle is damaged. The exception may be of any class.
    """

    def __init__(
        self, folder: Path | None, files: Collection[str], first: Iterable[int] = (), verify: Callable[[str], None] = lambda name: None
    ) -> None:
        self._folder, self._verify = folder, verify
        self._left = {name: set[str]() for name in sorted(files) if is_of_rank(name)}
        self.metadata = Metadata({}, storage_data={})
        if folder is not None and not self._left:
            self.metadata = dcp_metadata.read_index(folder, set(files) - {dcp_metadata.NAME})
            return
        self._left |= {name: listed for name, listed in _by_index(files).items() if name in self._left}
        if unlisted := set(files).difference(self._left, *self._left.values()):
            raise pickle.UnpicklingError(f"no index lists {', '.join(sorted(unlisted)[:4])}")
        for name in dict.fromkeys(map(name_of, first)):
            if name in self._left:
                self._read(name)

    def complete(self) -> None:
        """Read the index files that have not been read yet.

        Raises:
            UnpicklingError: If one of them is damaged or lists the wrong data files, or if two files list different sizes for a tensor.
        """
        for name in list(self._left):
            self._read(name)

    def _read(self, name: str) -> None:
        assert self._folder is not None
        self._verify(name)
        try:
            found = dcp_metadata.read_index(self._folder, self._left[name], name)
        except Exception as error:  # a damaged pickle may raise any exception
            raise pickle.UnpicklingError(f"{name}: {type(error).__name__}: {error}") from error
        del self._left[name]
        for key, described in found.state_dict_metadata.items():
            known = self.metadata.state_dict_metadata.setdefault(key, described)
            assert isinstance(described, TensorStorageMetadata)
            assert isinstance(known, TensorStorageMetadata)
            if known.size != described.size:
                raise pickle.UnpicklingError(f"{name} and the index of another rank list different sizes for {key}")
            if known is not described:
                known.chunks.extend(described.chunks)
        assert self.metadata.storage_data is not None
        self.metadata.storage_data |= found.storage_data or {}
