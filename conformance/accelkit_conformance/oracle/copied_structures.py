"""Checks of copied views, modules and optimizers, and of the devices to which ``torch.load`` loads tensors.

Copies are made with ``deepcopy``, ``torch.save`` and ``pickle``, and must keep the structure of the original. ``torch.load`` is called with
several forms of ``map_location``.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.sample_transfer import has_memory
from accelkit_conformance.oracle.saved_files import saved

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": lambda thing: torch.load(saved(thing), weights_only=False),
    "old_format": lambda thing: torch.load(saved(thing, _use_new_zipfile_serialization=False), weights_only=False),
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),  # noqa: S301 # our own bytes
}


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.output = nn.Linear(4, 6, bias=False)
        self.output.weight = self.embedding.weight
        self.convolution = nn.Conv2d(3, 4, 3)
        self.register_buffer("buffer", torch.arange(3))
        self.register_buffer("temporary", torch.arange(2.0), persistent=False)


def check_structures(subject: Subject, way: str) -> None:
    """Check copies of tensors that share memory, of modules with tied weights, and of a model together with the state of its optimizer.

    Args:
        subject: The plugin under test, with its device.
        way: The way to copy: a name in ``WAYS``.

    Raises:
        AssertionError: If a copy is on the wrong device, if a copy has lost shared memory, a tied weight, a layout, a gradient or a value,
            or if the next optimizer step changes a model and its copy differently.
        NotSupported: If the device lacks int64.
    """
    subject.needs("int64")
    copied = WAYS[way]
    base = torch.arange(12.0, device=subject.device)
    if way != "pickle" and has_memory(base):
        whole, part, turned, again = copied([base, base[4:], base.view(3, 4).t(), base])
        subject.assert_on_device(whole, part, turned, again)
        assert turned.stride() == (1, 4), f"a transposed view has the strides {turned.stride()}"
        whole[5] = -1
        assert part[1].item() == turned[1, 1].item() == again[5].item() == -1, "views of one tensor do not share memory after the copy"
        assert base[5].item() == 5, "a change of the copy changed the original"
    one, same = copied((base, base))
    assert one is same, "one tensor that occurs twice became two tensors"
    module = _Tied().to(subject.device)
    module.output.weight = module.embedding.weight  # to() makes new parameters if the device has tensors of another kind
    module.convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.embedding.weight.requires_grad_(False)
    other = copied(module)
    subject.assert_on_device(*other.parameters(), *other.buffers())
    assert other.output.weight is other.embedding.weight, "tied weights are not tied after the copy"
    assert not other.embedding.weight.requires_grad, "a frozen weight requires a gradient after the copy"
    strides = [one.convolution.weight.stride() for one in (other, module)]
    assert strides[0] == strides[1], f"a weight in channels_last has the strides {strides[0]} after the copy, not {strides[1]}"
    for (name, mine), theirs in zip(
        [*other.named_parameters(), *other.named_buffers()], [*module.parameters(), *module.buffers()], strict=True
    ):
        assert torch.equal(mine.detach().cpu(), theirs.detach().cpu()), f"{name} has different values after the copy"
    if way == "deepcopy":
        leaf = torch.arange(3.0, device=subject.device).requires_grad_()
        (leaf * leaf).sum().backward()
        twin = copied(leaf)
        assert twin.grad is not None, "a deep copy of a tensor has lost its gradient"
        subject.assert_on_device(twin.grad)
        leaf.grad.zero_()  # type: ignore[union-attr]
        assert twin.grad.tolist() == [0.0, 2.0, 4.0], f"the gradient of a deep copy is {twin.grad.tolist()}"
    _check_optimizer(subject, copied)


def _check_optimizer(subject: Subject, copied: Callable[[Any], Any]) -> None:
    model = nn.Linear(3, 2).to(subject.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3, device=subject.device)).sum().backward()
    optimizer.step()
    twin, state = copied((model, optimizer.state_dict()))
    second = torch.optim.AdamW(twin.parameters(), lr=0.5)
    second.load_state_dict(state)
    for one, steps in ((model, optimizer), (twin, second)):
        one.zero_grad()
        one(torch.full((1, 3), 2.0, device=subject.device)).sum().backward()
        steps.step()
    same = all(
        torch.equal(mine.detach().cpu(), theirs.detach().cpu()) for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True)
    )
    assert same, "a copied model with a copied optimizer takes a different step"


def check_forms_of_locations(subject: Subject) -> None:
    """Check ``torch.load`` with several forms of ``map_location``, and ``load_state_dict(assign=True)``.

    ``map_location`` is None, a device, its name, a dict or a function. Files in both formats of ``torch.save`` are loaded with each form. A
    failure is recorded in the subject if loading raises an error, if a tensor is on the wrong device, or if a value differs from the saved
    one. If devices are numbered, loading to a device that does not exist must raise an error.

    Raises:
        AssertionError: If loading to a missing device raises no error, or if an assigned parameter is on the wrong device or does not
            require a gradient.
    """
    device, host = subject.device, torch.device("cpu")
    contents = {"there": torch.arange(5.0, device=device), "here": [torch.arange(5.0), 3, "text", device]}
    for zipped in (True, False):
        file = saved(contents, _use_new_zipfile_serialization=zipped).getvalue()
        forms: dict[str, tuple[Any, tuple[torch.device, torch.device]]] = {
            "None": (None, (device, host)),
            "torch.device('cpu')": (host, (host, host)),
            "'cpu'": ("cpu", (host, host)),
            "the name of the device": (str(device), (device, device)),
            "a dict to the CPU": ({str(device): "cpu"}, (host, host)),
            "a dict to the device": ({"cpu": str(device)}, (device, device)),
            "a dict without entries": ({}, (device, host)),
            "a function that returns None": (lambda storage, location: None, (device, host)),
            "a function that returns its argument": (lambda storage, location: storage, (host, host)),
            "the device": (device, (device, device)),
        }
        for name, (location, expected) in forms.items():
            with subject.sample(f"{name}, zipped={zipped}", {"name": name}):
                loaded = torch.load(io.BytesIO(file), map_location=location, weights_only=False)
                for tensor, right in zip((loaded["there"], loaded["here"][0]), expected, strict=True):
                    assert tensor.device == right, f"with map_location={name}, a tensor was loaded to {tensor.device}, not to {right}"
                    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0], (
                        f"with map_location={name}, a tensor has the values {tensor.tolist()}"
                    )
                assert loaded["here"][1:] == [3, "text", device], f"with map_location={name}, other values changed: {loaded['here'][1:]}"
    if subject.capabilities.can("numbered_devices"):
        missing = torch.device(subject.device_type, len(subject.devices) + 7)
        for form in (missing, str(missing)):
            with raises(subject, RuntimeError, AssertionError, ValueError, doing=f"loading to {missing}"):
                torch.load(saved(torch.ones(3)), map_location=form)
    module, target = nn.Linear(3, 2).to(device), nn.Linear(3, 2)
    target.load_state_dict(module.state_dict(), assign=True)
    subject.assert_on_device(*target.parameters())
    assert target.weight.requires_grad, "a parameter that was assigned from a state dict does not require a gradient"
