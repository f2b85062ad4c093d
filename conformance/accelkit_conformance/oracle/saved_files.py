"""Files of large tensors, written from the device and read back."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SIZES = (1 << 20, (1 << 20) + 12, 5 << 20, (5 << 20) - 4)


def check_large_tensors(subject: Subject, way: str) -> None:
    """Check that large tensors are saved and loaded without losing a byte, onto the device and the CPU.

    Args:
        subject: The plugin under test, with its device.
        way: ``pickle`` uses pickle. All other ways use ``torch.save`` and ``torch.load``: ``mmap`` maps the file into memory,
            ``weights_only=False`` passes this argument, and ``whole`` uses the defaults.

    Raises:
        AssertionError: If an element differs, or if a tensor is loaded to another device.
    """
    generator = torch.Generator().manual_seed(2)
    for size in _SIZES:
        here = torch.rand(size // 4, generator=generator)
        there = here.to(subject.device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tensor.pt"
            for location in (None, str(subject.device), "cpu"):
                if way == "pickle":
                    back = pickle.loads(pickle.dumps(there))
                else:
                    torch.save(there, path)
                    back = torch.load(path, map_location=location, mmap=way == "mmap", weights_only=not way.startswith("weights_only"))
                subject.assert_on_device(*([back] if location != "cpu" or way == "pickle" else []))
                wrong = int((back.cpu() != here).sum())
                assert not wrong, (
                    f"{wrong} of {len(here)} elements are wrong after loading {size} bytes to {location or 'their own device'}"
                )
