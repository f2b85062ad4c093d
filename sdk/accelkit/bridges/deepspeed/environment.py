"""The environment variables that DeepSpeed reads and that frameworks set for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
NAMES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", *_LOCAL_RANKS)
"""The variables of a job. If both of the last two are set, DeepSpeed requires that they are equal."""


@contextlib.contextmanager
def variables_restored(variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Restore the environment variables listed in this module's ``NAMES`` when the ``with`` block ends.

    Args:
        variables: Names and values of variables to set before the block runs. A variable whose name is not in ``NAMES`` is not restored.
    """
    before = {name: os.environ.get(name) for name in NAMES}
    os.environ.update(variables or {})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def device_index_variables(device: torch.device) -> dict[str, str]:
    """Return the environment variables, with their values, that tell DeepSpeed the index of ``device``. Does not set them.

    OMPI_COMM_WORLD_LOCAL_RANK is included only if it is already set. The result is empty if ``device`` has no index and LOCAL_RANK is set.
    """
    if device.index is None and "LOCAL_RANK" in os.environ:  # the device has no index, so any value will do
        return {}
    return {name: str(device.index or 0) for name in _LOCAL_RANKS if name == "LOCAL_RANK" or name in os.environ}
