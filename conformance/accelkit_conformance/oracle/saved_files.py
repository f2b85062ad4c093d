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
    """Check that large tensors on the device are saved and loaded without losing a byte.

    Args:
        subject: The plugin under test, with its device.
        way: How the tensors are saved and loaded. ``pickle``: with the module ``pickle``. ``whole``: with ``torch.save`` and
            ``torch.load``. ``mmap``: like ``whole``, but ``torch.load`` is called with ``mmap=True``. ``weights_only=False``: like
            ``whole``, but ``torch.load`` is called with ``weights_only=False``. With ``torch.load``, each tensor is loaded both to the
            device and to the CPU.

    Raises:
        AssertionError: If an element differs, or if a tensor is not on the device to which it was loaded.
    """
    generator = torch.Generator().manual_seed(2)
    for size in _SIZES:
        here = torch.rand(size // 4, generator=generator)
        there = here.to(subject.device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tensor.pt"
            for location in (None,) if way == "pickle" else (None, str(subject.device), "cpu"):
                if way == "pickle":
                    back = pickle.loads(pickle.dumps(there))
                else:
                    torch.save(there, path)
                    back = torch.load(path, map_location=location, mmap=way == "mmap", weights_only=not way.startswith("weights_only"))
                if location == "cpu":
                    assert back.device.type == "cpu", f"a tensor that was loaded to the CPU is on {back.device}"
                else:
                    subject.assert_on_device(back)
                wrong = int((back.cpu() != here).sum())
                assert not wrong, (
                    f"{wrong} of {len(here)} elements are wrong after loading {size} bytes to {location or 'their own device'}"
                )
