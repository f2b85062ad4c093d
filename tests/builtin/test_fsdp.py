"""The strategy fsdp outside of a job: how it clips gradients, and which models it refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

import accelkit
from accelkit_builtin.strategies.fsdp import FSDPStrategy


@pytest.fixture
def _process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
def test_the_largest_gradient_is_zero_if_there_are_no_gradients():
    parameters = [torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]
    norm = FSDPStrategy().clip_grad_norm_(parameters, 1.0, math.inf)
    assert (norm.item(), norm.dtype) == (0.0, torch.float64)
    assert FSDPStrategy().clip_grad_norm_([], 1.0, math.inf).item() == 0.0


def clip_with_nan(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.tensor([math.nan if rank else 1.0])
    with pytest.raises(RuntimeError, match="of the gradients is nan"):
        FSDPStrategy().clip_grad_norm_([parameter], 1.0, math.inf, error_if_nonfinite=True)
    dist.destroy_process_group()


def test_nan_in_the_shard_of_one_process_is_noticed_on_all(tmp_path):
    torch.multiprocessing.spawn(clip_with_nan, (tmp_path,), nprocs=2)


@pytest.mark.usefixtures("_process_group")
def test_gradients_are_clipped_to_the_largest_value():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([3.0, -4.0])
    assert FSDPStrategy().clip_grad_norm_((one for one in [parameter]), 2.0, math.inf).item() == 4.0
    torch.testing.assert_close(parameter.grad, torch.tensor([1.5, -2.0]))


def test_a_model_that_is_partly_on_the_meta_device_is_refused(error_text):
    """Otherwise, its other parameters would be overwritten."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta"))
    with pytest.raises(accelkit.UsageError) as caught:
        FSDPStrategy().place_module(model, torch.device("cpu"))
    assert caught.value == error_text
