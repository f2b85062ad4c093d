"""Options of strategy ``parallel`` that cannot be used are refused before anything is placed on a device."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel

import accelkit
from accelkit_builtin.precisions.fp8 import Float8
from accelkit_builtin.strategies.fsdp import FSDPOptions
from accelkit_builtin.strategies.parallel import ParallelOptions, ParallelStrategy


def test_the_rest_of_the_processes():
    assert ParallelOptions().sizes(6) == {"replicate": 1, "shard": 6, "context": 1, "tensor": 1}
    assert ParallelOptions(replicate=2, context=3).sizes(12) == {"replicate": 2, "shard": 2, "context": 3, "tensor": 1}
    assert ParallelOptions(replicate=-1, shard=1, tensor=2).sizes(8) == {"replicate": 4, "shard": 1, "context": 1, "tensor": 2}
    assert list(ParallelOptions().sizes(1)) == ["replicate", "shard", "context", "tensor"], "the processes of a share are consecutive"
    assert ParallelStrategy(ParallelOptions(replicate=2, context=2, tensor=3)).data_parallel_size(24) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensor": 0}, "tensor=0"),
        ({"shard": True}, "shard=True"),
        ({"context": 0.5}, "context=0.5"),
        ({"replicate": -1}, "replicate and shard are both -1"),
        ({"replicate": -1, "tensor": -1}, "replicate and shard and tensor are all -1"),
        ({"plan": ["linear1"]}, "plan="),
    ],
)
def test_options_that_make_no_sense(options, text, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        ParallelOptions(**options)
    assert text in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize(("name", "size"), [("pipeline", "4"), ("expert", -1)])
def test_dimensions_that_do_not_exist_are_refused_by_name(name, size, error_text):
    assert ParallelOptions(**{name: 1}) == ParallelOptions()
    with pytest.raises(accelkit.UsageError) as caught:
        ParallelOptions(**{name: size})
    assert f"{name}={size!r}" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"replicate": 2}, {"replicate": 2, "shard": 2, "tensor": 2}])
def test_sizes_that_are_not_the_number_of_processes_are_refused_by_the_constructor(sizes, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime("cpu", strategy=ParallelStrategy(ParallelOptions(**sizes)))
    assert "the job has 1" in caught.value.what
    assert caught.value == error_text


def test_options_of_another_strategy_are_refused(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        ParallelStrategy(FSDPOptions())
    assert caught.value == error_text


def test_a_precision_that_replaces_layers_is_refused_with_tensor_parallelism(error_text):
    strategy = ParallelStrategy(ParallelOptions(tensor=2))
    strategy.name = "parallel"
    precision = Float8()
    precision.name = "fp8"
    wrapper = strategy.make_precision()
    next(wrapper)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        wrapper.send(precision)
    assert caught.value == error_text


def test_one_process_has_a_mesh_and_a_plan_is_checked(error_text):
    strategy = ParallelStrategy(ParallelOptions(plan={"layers.*.linear3": ColwiseParallel()}))
    model = torch.nn.Sequential()
    model.layers = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(4, 2, 8)])
    with accelkit.Runtime("cpu", strategy=strategy) as rt:
        assert rt.mesh.shape == (1, 1, 1, 1)
        assert (rt.data_parallel_size, rt.data_parallel_index) == (1, 0)
        with pytest.raises(accelkit.PrepareError) as caught:
            rt.prepare(model)
    assert "layers.0.linear1" in caught.value.why
    assert caught.value == error_text


def test_a_strategy_without_a_mesh(error_text):
    with accelkit.Runtime("cpu") as rt, pytest.raises(accelkit.UnsupportedError) as caught:
        _ = rt.mesh
    assert caught.value == error_text
