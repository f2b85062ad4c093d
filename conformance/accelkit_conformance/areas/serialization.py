"""What is saved is loaded: where it was, where ``map_location`` says, sharing what it shared; device objects pickle and copy."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check
from accelkit_conformance.subject import raises

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _saved(thing: Any) -> io.BytesIO:
    import torch

    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@check("smoke")
def same_device(subject: Subject) -> None:
    """``torch.load`` brings a tensor back to the device that it was on, with ``weights_only`` and without."""
    import torch

    there = torch.arange(12.0, device=subject.device).view(3, 4)
    for weights_only in (True, False):
        back = torch.load(_saved(there), weights_only=weights_only)
        subject.stays(back)
        assert torch.equal(back.cpu(), there.cpu())


@check("smoke")
def map_location_both_ways(subject: Subject) -> None:
    """``map_location`` takes tensors from the device to the CPU and from the CPU to the device: as a string, a device, a dict, a
    function."""
    import torch

    there, here = torch.arange(5.0, device=subject.device), torch.arange(5.0)
    assert torch.load(_saved(there), map_location="cpu").device.type == "cpu"
    assert torch.load(_saved(there), map_location="cpu").tolist() == here.tolist()
    for location in (str(subject.device), subject.device):
        back = torch.load(_saved(here), map_location=location)
        subject.stays(back)
        assert back.tolist() == here.tolist(), f"map_location={location!r}"
    subject.stays(torch.load(_saved(here), map_location={"cpu": str(subject.device)}))
    moved = torch.load(_saved(there), map_location=lambda storage, location: storage.cpu() if subject.device_type != "cpu" else storage)
    assert moved.device.type == "cpu"


@check("smoke")
def aliases_stay_aliases(subject: Subject) -> None:
    """Two views of one storage share one storage after loading, on the device too."""
    import torch

    base = torch.zeros(10, device=subject.device)
    for location in (None, "cpu", str(subject.device)):
        first, second = torch.load(_saved([base[:5], base[3:]]), map_location=location)
        first.fill_(1)
        assert second.tolist()[:2] == [1.0, 1.0], f"what shared memory does not after loading with map_location={location}"


@check("smoke")
def state_dicts(subject: Subject) -> None:
    """A module's state on the device loads into one on the CPU and the other way round."""
    import torch

    there = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(subject.device)
    here = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    here.load_state_dict(there.state_dict())
    assert {parameter.device.type for parameter in here.parameters()} == {"cpu"}
    for mine, theirs in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs.cpu())
    there.load_state_dict(torch.load(_saved(here.state_dict())))
    subject.stays(*there.parameters(), *there.buffers())


@check("smoke")
def views_and_layouts(subject: Subject) -> None:
    """Shape, strides and offset are kept, and a view is saved with the whole of its storage."""
    import torch

    base = torch.arange(24.0, device=subject.device).view(4, 6)
    for name, view in {"transposed": base.t(), "strided": base[:, 1::2], "0-d": base[2, 3], "empty": base[:0]}.items():
        back = torch.load(_saved(view))
        assert back.stride() == view.stride(), f"{name}: strides {back.stride()}, not {view.stride()}"
        assert back.storage_offset() == view.storage_offset()
        assert torch.equal(back.cpu(), view.cpu()), name


@check("smoke")
def copies_and_pickles(subject: Subject) -> None:
    """Tensors, parameters, modules and devices deep-copy and pickle; copies are on the device and share nothing."""
    import torch

    layer = torch.nn.Linear(2, 2).to(subject.device)
    for name, other in {"deepcopy": copy.deepcopy(layer), "pickle": pickle.loads(pickle.dumps(layer))}.items():
        subject.stays(other.weight)
        assert isinstance(other.weight, torch.nn.Parameter), f"{name} of a module has a {type(other.weight).__name__}"
        with torch.no_grad():
            other.weight.fill_(9)
        assert not bool((layer.weight == 9).any()), f"{name} of a module shares memory with it"
    assert pickle.loads(pickle.dumps(subject.device)) == subject.device


@check("smoke")
def safetensors_bytes(subject: Subject) -> None:
    """What safetensors writes of device tensors is, byte for byte, what it writes of the same on the CPU, and loads to the device."""
    import torch
    from safetensors.torch import load, save

    here = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.arange(4)}
    there = {name: tensor.to(subject.device) for name, tensor in here.items()}
    assert save(there) == save(here)
    for name, tensor in load(save(there)).items():
        assert torch.equal(tensor.to(subject.device).cpu(), here[name])


@check("training")
def damaged_files_are_errors(subject: Subject) -> None:
    """A truncated file is an error, and the device works afterwards."""
    import torch

    whole = _saved(torch.ones(1000, device=subject.device)).getvalue()
    with raises(RuntimeError, EOFError, pickle.UnpicklingError, doing="loading half a file"):
        torch.load(io.BytesIO(whole[: len(whole) // 2]))
    assert torch.ones(3, device=subject.device).sum().item() == 3


@check("training")
def files_load_elsewhere(subject: Subject) -> None:
    """A process that knows nothing of the device loads its file with ``map_location="cpu"``."""
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "there.pt"
        torch.save({"w": torch.arange(4.0, device=subject.device)}, path)
        code = "import sys, torch; print(torch.load(sys.argv[1], map_location='cpu')['w'].tolist())"
        run = subprocess.run([sys.executable, "-P", "-c", code, str(path)], capture_output=True, text=True, check=False, timeout=60)
        assert run.stdout.strip() == "[0.0, 1.0, 2.0, 3.0]", run.stderr[-500:]
