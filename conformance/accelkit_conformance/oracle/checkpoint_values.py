"""Checks of saving and loading.

The checks save and load a nested state with tensors of many dtypes and memory layouts, and the states of a model, an optimizer, a scheduler
and a gradient scaler.
"""

from __future__ import annotations

import copy
import io
import tempfile
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.utils._pytree import tree_leaves, tree_map_only

from accelkit_conformance.oracle.layers import batch_norm
from accelkit_conformance.oracle.layouts import strided, transposed
from accelkit_conformance.oracle.scaler_options import require_scaler
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_FILL = 55.0


def _state(subject: Subject) -> dict[str, Any]:
    """Return a nested state whose tensors are on the device."""
    generator = torch.Generator().manual_seed(2)
    floats = (torch.randn(6, 5, generator=generator) * 10).to(subject.device)
    dtypes = [dtype for dtype in DTYPES if not subject.lacks(dtype)]
    return {
        "dtypes": {dtype: (floats.abs() * 3).to(getattr(torch, dtype)) for dtype in dtypes},
        "layouts": {
            "transposed": transposed(floats),
            "strided": strided(floats),
            "slice": floats[1:4, 2:],
            "expanded": floats[:1].expand(3, 5),
        },
        "list": [floats[0].clone(), {"scalar": floats[2, 3].clone(), "empty": floats[:0].clone()}],
        "number": 3,
        "text": "words",
    }


def check_values(subject: Subject) -> None:
    """Save a state with torch.distributed.checkpoint, and load it into tensors with other values and other memory layouts. One of these
    tensors is a slice of a larger tensor.

    Raises:
        AssertionError: If a loaded tensor has a wrong value, device or dtype, if any other loaded value is wrong, or if other elements of
            the larger tensor were changed.
    """
    state = _state(subject)
    kept = tree_map_only(torch.Tensor, lambda one: one.cpu().clone(), state)
    whole = torch.full((5, 6), _FILL, device=subject.device)
    target = tree_map_only(torch.Tensor, lambda one: torch.zeros_like(one, memory_format=torch.contiguous_format), state)
    target["layouts"]["slice"] = whole[1:4, 1:4]
    target["layouts"]["transposed"] = torch.zeros(5, 6, device=subject.device).t()
    target["number"], target["text"] = 0, ""
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        for leaf in tree_leaves(state):
            if isinstance(leaf, torch.Tensor) and 0 not in leaf.stride():
                leaf.zero_()
        dcp.load(target, checkpoint_id=folder, no_dist=True)
    for found, expected in zip(tree_leaves(target), tree_leaves(kept), strict=True):
        if not isinstance(expected, torch.Tensor):
            assert found == expected, f"{expected!r} was loaded as {found!r}"
            continue
        subject.assert_on_device(found)
        assert found.dtype == expected.dtype, f"a tensor of {expected.dtype} was loaded as {found.dtype}"
        assert torch.equal(found.cpu(), expected), f"a tensor of {expected.dtype} and shape {tuple(expected.shape)} has different values"
    around = whole.clone()
    around[1:4, 1:4] = _FILL
    assert bool((around.cpu() == _FILL).all()), "loading a slice changed the elements around it"


def check_saved_states(subject: Subject) -> None:
    """Check that training continues with the same results after states have been saved with ``torch.save`` and loaded.

    The states are those of a model, an optimizer, a scheduler and a gradient scaler.

    Raises:
        NotSupported: If torch's gradient scaler does not support the device.
        AssertionError: If a parameter, a buffer or the scale is wrong after the next step.
    """

    require_scaler(subject)

    def make(device: torch.device) -> tuple[Any, ...]:
        torch.default_generator.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), batch_norm(subject, 6), torch.nn.Linear(6, 2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
        scaler = torch.amp.GradScaler(device.type, init_scale=16.0, growth_interval=2)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), scaler

    def step(objects: tuple[Any, ...], device: torch.device) -> None:
        model, optimizer, scheduler, scaler = objects
        optimizer.zero_grad()
        scaler.scale((model(torch.linspace(-1, 2, 32).view(8, 4).to(device)) - 1).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    objects = make(subject.device)
    step(objects, subject.device)
    buffer = io.BytesIO()
    torch.save([one.state_dict() for one in objects], buffer)
    step(objects, subject.device)
    expected = [one.detach().cpu() for one in objects[0].state_dict().values()]
    for device in (subject.device, torch.device("cpu")):
        buffer.seek(0)
        others = make(device)
        step(others, device)
        step(others, device)
        for one, state in zip(others, torch.load(buffer, map_location=device, weights_only=True), strict=True):
            one.load_state_dict(copy.deepcopy(state))
        step(others, device)
        assert others[3].get_scale() == objects[3].get_scale(), f"on {device}, the scale is {others[3].get_scale()}"
        for mine, theirs in zip(others[0].state_dict().values(), expected, strict=True):
            assert mine.device == device
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-3)
