"""Saved tensors can be loaded onto the device on which they were saved, or onto the device that ``map_location`` names. If views of one
storage are saved together, they are views of one storage again after loading. Tensors and modules on the device, and ``torch.device``
objects, can be pickled and copied."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check
from accelkit_conformance.late_errors import raises
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _saved(thing: Any) -> io.BytesIO:
    from accelkit_conformance.oracle.saved_files import saved

    return saved(thing)


@check("smoke")
def same_device(subject: Subject) -> None:
    """``torch.load`` loads a tensor onto the device on which it was saved, with ``weights_only=True`` and with ``weights_only=False``."""
    import torch

    there = torch.arange(12.0, device=subject.device).view(3, 4)
    for weights_only in (True, False):
        back = torch.load(_saved(there), weights_only=weights_only)
        subject.assert_on_device(back)
        assert torch.equal(back.cpu(), there.cpu())


@check("smoke")
def map_location_both_ways(subject: Subject) -> None:
    """If ``map_location`` is a string, a device or a dict, tensors that were saved on the CPU can be loaded onto the device. If
    ``map_location`` is a string or a function, tensors that were saved on the device can be loaded onto the CPU. The tensors keep their
    values."""
    import torch

    there, here = torch.arange(5.0, device=subject.device), torch.arange(5.0)
    assert torch.load(_saved(there), map_location="cpu").device.type == "cpu"
    assert torch.load(_saved(there), map_location="cpu").tolist() == here.tolist()
    for location in (str(subject.device), subject.device):
        back = torch.load(_saved(here), map_location=location)
        subject.assert_on_device(back)
        assert back.tolist() == here.tolist(), f"map_location={location!r}"
    back = torch.load(_saved(here), map_location={"cpu": str(subject.device)})
    subject.assert_on_device(back)
    assert back.tolist() == here.tolist(), "map_location as a dict"
    moved = torch.load(_saved(there), map_location=lambda storage, location: storage.cpu() if subject.device_type != "cpu" else storage)
    assert moved.device.type == "cpu"
    assert moved.tolist() == here.tolist(), "map_location as a function"


@check("smoke")
def shared_storage_stays_shared(subject: Subject) -> None:
    """Two views of one storage share memory after loading, on the device and on the CPU."""
    import torch

    base = torch.zeros(10, device=subject.device)
    for location in (None, "cpu", str(subject.device)):
        first, second = torch.load(_saved([base[:5], base[3:]]), map_location=location)
        first.fill_(1)
        assert second.tolist()[:2] == [1.0, 1.0], f"views do not share memory after loading with map_location={location}"


@check("smoke")
def state_dicts(subject: Subject) -> None:
    """The state dict of a module on the device can be loaded into a module on the CPU, and vice versa. Loading keeps all values."""
    import torch

    from accelkit_conformance.oracle.layers import batch_norm

    there = torch.nn.Sequential(torch.nn.Linear(4, 4), batch_norm(subject, 4)).to(subject.device)
    here = torch.nn.Sequential(torch.nn.Linear(4, 4), batch_norm(subject, 4))
    here.load_state_dict(there.state_dict())
    assert {parameter.device.type for parameter in here.parameters()} == {"cpu"}
    for mine, theirs in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs.cpu())
    with torch.no_grad():
        for value in here.state_dict().values():
            value.add_(1)
    there.load_state_dict(torch.load(_saved(here.state_dict())))
    subject.assert_on_device(*there.parameters(), *there.buffers())
    for mine, theirs in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs.cpu())


@check("smoke")
def views_and_layouts(subject: Subject) -> None:
    """A view is loaded with its values, shape, strides and offset, and with its whole storage. On a device whose tensors have no storage,
    only shapes and values are compared."""
    import torch

    from accelkit_conformance.oracle.sample_transfer import has_storage

    base = torch.arange(24.0, device=subject.device).view(4, 6)
    for name, view in {"transposed": base.t(), "strided": base[:, 1::2], "0-d": base[2, 3], "empty": base[:0]}.items():
        back = torch.load(_saved(view))
        assert back.shape == view.shape, f"{name}: the shape is {tuple(back.shape)}, not {tuple(view.shape)}"
        assert torch.equal(back.cpu(), view.cpu()), f"{name}: the values changed"
        if has_storage(view):
            assert back.stride() == view.stride(), f"{name}: strides {back.stride()}, not {view.stride()}"
            assert back.storage_offset() == view.storage_offset(), f"{name}: offset {back.storage_offset()}, not {view.storage_offset()}"
            size, expected = back.untyped_storage().nbytes(), base.untyped_storage().nbytes()
            assert size == expected, f"{name}: a storage of {size} bytes was loaded, not one of {expected}"


@check("smoke")
def copies_and_pickles(subject: Subject) -> None:
    """Tensors, parameters, modules and devices can be deep-copied and pickled. A copied tensor, parameter or weight of a module is on the
    device, has the same type, values and ``requires_grad`` as the original, and shares no memory with it. A copied device equals the
    original."""
    import torch

    originals = {
        "a tensor": torch.arange(4.0, device=subject.device),
        "a tensor that requires a gradient": torch.ones(4, device=subject.device, requires_grad=True),
        "a parameter": torch.nn.Parameter(torch.ones(4, device=subject.device)),
        "a frozen parameter": torch.nn.Parameter(torch.ones(4, device=subject.device), requires_grad=False),
        "the weight of a module": torch.nn.Linear(2, 2).to(subject.device),
    }
    for way, make in {"deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}.items():
        for name, original in originals.items():
            mine, other = (one.weight if isinstance(one, torch.nn.Module) else one for one in (original, make(original)))
            subject.assert_on_device(other)
            assert type(other) is type(mine), f"{way} of {name} gave a {type(other).__name__}, not a {type(mine).__name__}"
            assert other.requires_grad == mine.requires_grad, f"{way} of {name} gave requires_grad={other.requires_grad}"
            assert torch.equal(other.detach().cpu(), mine.detach().cpu()), f"{way} of {name} gave other values"
            with torch.no_grad():
                other.fill_(9)
            assert not bool((mine.detach().cpu() == 9).any()), f"{way} of {name} shares memory with it"
    assert pickle.loads(pickle.dumps(subject.device)) == subject.device
    assert copy.deepcopy(subject.device) == subject.device


@check("smoke")
def safetensors_bytes(subject: Subject) -> None:
    """safetensors writes the same bytes for tensors on the device as for the same tensors on the CPU, and loaded tensors keep their values
    when they are copied to the device."""
    import torch
    from safetensors.torch import load, save

    here = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.arange(4)}
    declared = {name: subject.capabilities[f"dtype.{tensor.dtype}".replace("torch.", "")] for name, tensor in here.items()}
    here = {name: tensor for name, tensor in here.items() if declared[name] in ("native", "emulated") or name == "a"}
    there = {name: tensor.to(subject.device) for name, tensor in here.items()}
    assert save(there) == save(here)
    for name, tensor in load(save(there)).items():
        assert torch.equal(tensor.to(subject.device).cpu(), here[name])


@check("full")
def safetensors_of_tied_weights(subject: Subject) -> None:
    """``data_ptr`` of a view of a tensor is the address of its storage plus the offset of the view in bytes. ``save_model`` of safetensors
    saves only one copy of a weight that two layers share, and ``load_model`` restores both layers. Devices whose tensors have no addresses
    are not tested."""
    import tempfile
    from pathlib import Path

    import torch
    from safetensors.torch import load_file, load_model, save_model

    from accelkit_conformance.oracle.sample_transfer import has_memory

    x = torch.ones(4, 3, device=subject.device)
    if not has_memory(x):
        raise NotSupported("tensors on the device have no addresses")
    for view in (x, x[1:], x[2, 1:], x.t()[2]):
        address = view.untyped_storage().data_ptr() + view.storage_offset() * view.element_size()
        assert view.data_ptr() == address > 0, f"the address of a view is {view.data_ptr()}, not {address}"
    model, other = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to(subject.device) for _ in range(2))
    for one in (model, other):
        one[1].weight = one[0].weight
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(model, str(path))
        saved = sorted(load_file(path))
        assert len(saved) == 3, f"save_model saved {', '.join(saved)}, although the layers share one weight"
        load_model(other, path)
    for name, one in other.state_dict().items():
        assert torch.equal(one.cpu(), model.state_dict()[name].cpu()), f"load_model gave {name} other values"


@check("training")
def damaged_files_are_errors(subject: Subject) -> None:
    """Loading a truncated file raises RuntimeError, EOFError or UnpicklingError, and the device works afterwards."""
    import torch

    whole = _saved(torch.ones(1000, device=subject.device)).getvalue()
    with raises(subject, RuntimeError, EOFError, pickle.UnpicklingError, doing="loading half a file"):
        torch.load(io.BytesIO(whole[: len(whole) // 2]))
    assert torch.ones(3, device=subject.device).sum().item() == 3


@check("training")
def files_load_elsewhere(subject: Subject) -> None:
    """With ``map_location="cpu"``, a process that does not load the plugin can load tensors that were saved on the device."""
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


@check("training", requires=["numbered_devices"])
def another_current_device(subject: Subject) -> None:
    """Without ``map_location``, ``torch.load`` puts a tensor on the device on which the tensor was saved. If ``map_location`` is a device
    with an index, ``torch.load`` puts the tensor on the device with this index. Both are true whichever device is current. If
    ``map_location`` is a device without an index, ``torch.load`` puts the tensor on the current device. ``Tensor.to`` with a device without
    an index also puts the tensor on the current device."""
    import torch

    other, kind = subject.second_device(), subject.device_type
    for current, saved in ((subject.device, other), (other, subject.device)):
        file = _saved([torch.arange(5.0, device=saved), torch.arange(5.0)]).getvalue()
        with subject.module.device(current):
            for location, expected in {
                None: (saved, torch.device("cpu")), str(current): (current, current), str(saved): (saved, saved), saved: (saved, saved),
                kind: (current, current), torch.device(kind): (current, current),
            }.items():  # fmt: skip
                loaded = torch.load(io.BytesIO(file), map_location=location)
                for tensor, device in zip(loaded, expected, strict=True):
                    doing = f"with map_location={location!r} and {current} current, a tensor of {saved} or the CPU"
                    assert tensor.device == device, f"{doing} was loaded to {tensor.device}, not to {device}"
                    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0], f"{doing} has the values {tensor.tolist()}"
            moved = torch.ones(2).to(kind)
            assert moved.device == current, f"to({kind!r}) with {current} current moved a tensor to {moved.device}"


@check("training", over=["whole", "mmap", "weights_only=False", "pickle"])
def large_tensors(subject: Subject, way: str) -> None:
    """Tensors of 1 MiB and 5 MiB, and tensors that have a few bytes more or fewer, keep all their values when they are saved and loaded,
    either with pickle or with ``torch.save`` and ``torch.load``. ``torch.load`` is called with its default arguments, with
    ``mmap=True`` or with ``weights_only=False``, and with or without a ``map_location``, which is the device or the CPU."""
    from accelkit_conformance.oracle.saved_files import check_large_tensors

    check_large_tensors(subject, way)


@check("training", over=["torch.save", "weights_only=False", "pickle", "deepcopy"])
def kinds_of_tensors(subject: Subject, way: str) -> None:
    """Tensors keep their dtype, shape, values and ``requires_grad`` when they are saved and loaded, pickled or deep-copied, and are on the
    device afterwards. Whole tensors and strided slices are tested, in float32 and in every other declared dtype. In complex dtypes, the
    results of ``conj()`` and ``conj().imag`` are also tested. Torch conjugates or negates these results only when they are used. Tensors
    that were saved with ``torch.save`` are also loaded onto the CPU, and tensors that were saved on the CPU are loaded onto the device. If
    there is a second device, all this is also true of tensors on this device while the first is current.
    """
    from accelkit_conformance.oracle.places import on_each_device
    from accelkit_conformance.oracle.saved_files import check_kinds_of_tensors

    for one in on_each_device(subject):
        check_kinds_of_tensors(one, way)


@check("full", over=["deepcopy", "torch.save", "old_format", "pickle"])
def structures(subject: Subject, way: str) -> None:
    """Views of one tensor share memory after a deep copy and after saving and loading. Tied weights are still tied after a deep copy, after
    saving and loading, and after pickling, and weights keep their values, their memory format and their ``requires_grad``. A deep copy
    of a tensor keeps its gradient. A model and the state of its optimizer are copied together, and a new optimizer for the copied model
    loads the copied state. The copied model then takes the same step as the original. If there is a second device, all this is also true of
    tensors and models on this device while the first is current.
    """
    from accelkit_conformance.oracle.copied_structures import check_structures
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_structures(one, way)


@check("full")
def forms_of_locations(subject: Subject) -> None:
    """``torch.load`` loads tensors onto the device that ``map_location`` determines, in both file formats. ``map_location`` is None, a
    device, the name of a device, a dict, or a function that returns None or its first argument. If devices have indices, loading onto a
    device that does not exist raises RuntimeError, AssertionError or ValueError. With ``assign=True``, ``load_state_dict`` replaces a
    module's CPU parameters with parameters on the device.
    """
    from accelkit_conformance.oracle.copied_structures import check_forms_of_locations

    check_forms_of_locations(subject)
