"""``init_device_mesh`` for a device type with an underscore: arguments mean what they mean in torch."""

from __future__ import annotations

import accelkit_fake_xpu.torch_backend  # noqa: F401
import pytest
import torch.distributed as dist
from torch.distributed import device_mesh

import accelkit
from accelkit.bridges.meshes import meshes_of_any_device_type


@pytest.fixture
def init(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # otherwise, DeviceMesh warns that it chooses the device
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with meshes_of_any_device_type():
            yield device_mesh.init_device_mesh
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("device_type", ["cpu", "fake_xpu"])
@pytest.mark.parametrize("key", [1, "tensor"])
def test_the_backend_of_a_dimension_may_be_chosen(init, device_type, key):
    """Torch itself makes the mesh of the CPU."""
    override = {key: "cpu:gloo", 0: (None, None)}
    mesh = init(device_type, (1, 1), mesh_dim_names=("data", "tensor"), backend_override=override)
    assert dist.get_backend_config(mesh.get_group("tensor")) == "cpu:gloo"
    assert dist.get_backend_config(mesh.get_group("data")) != "cpu:gloo"
    other = init(device_type, (1, 1), backend_override={0: "cpu:gloo"})
    assert dist.get_backend_config(other.get_group(0)) == "cpu:gloo"


@pytest.mark.parametrize("device_type", ["cpu", "fake_xpu"])
@pytest.mark.parametrize(
    "options",
    [
        {"mesh_dim_names": ("data", "data")},
        {"mesh_dim_names": ("data",)},
        {"mesh_dim_names": ("data", "tensor", "sequence")},
        {"backend_override": {2: "gloo"}},
        {"mesh_dim_names": ("data", "tensor"), "backend_override": {"tensors": "gloo"}},
        {"mesh_dim_names": ("data", "tensor"), "backend_override": {"tensor": "gloo", 1: "gloo"}},
    ],
    ids=["repeated", "too few", "too many", "no dimension", "no name", "twice"],
)
def test_arguments_that_do_not_fit_are_refused(init, device_type, options, error_text):
    with pytest.raises((RuntimeError, accelkit.UsageError)) as caught:
        init(device_type, (1, 1), **options)
    if device_type == "fake_xpu":
        assert caught.value == error_text
