"""Which tensors are the same memory: a checkpoint and an export store such tensors once, so that they stay tied."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from accelkit.runtime.addresses import address_of
from accelkit.runtime.checkpoints.state_codec import Encoder, place_of


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_address_is_that_of_the_first_element():
    whole = torch.zeros(4)
    assert address_of(whole) == address_of(whole[:2]) == address_of(whole.view(2, 2))
    assert address_of(whole[2:]) == address_of(whole) + 8


def test_a_tensor_without_memory_has_no_address():
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError):
        sparse.data_ptr()
    assert [address_of(tensor) for tensor in (sparse, torch.zeros(0, 3), torch.zeros(2, device="meta"))] == [0, 0, 0]


def test_views_have_the_same_place_only_if_they_are_the_same_elements():
    whole = torch.zeros(4)
    assert place_of(whole) == place_of(whole[:]) == place_of(whole.detach())
    others = [whole.clone(), whole[:2], whole[2:], whole.view(2, 2), whole[::2], whole.view(torch.int32)]
    assert len({place_of(tensor) for tensor in (whole, *others)}) == 7


def test_tensors_without_an_address_are_the_same_only_if_they_are_the_same_object():
    one, other = torch.eye(2).to_sparse(), torch.eye(2).to_sparse()
    assert place_of(one) == place_of(one)
    assert place_of(one) != place_of(other)


def test_two_sharded_tensors_have_the_same_place_if_they_share_their_shard(mesh):
    shards = distribute_tensor(torch.zeros(4), mesh, [Shard(0)])
    empty = [distribute_tensor(torch.zeros(0), mesh, [Shard(0)]) for _ in range(2)]
    assert place_of(shards) == place_of(shards.detach())
    assert place_of(shards) != place_of(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    assert place_of(shards) != place_of(distribute_tensor(shards.to_local(), mesh, [Replicate()]))
    assert place_of(empty[0]) == place_of(empty[0].detach()) != place_of(empty[1]), "an empty shard has no address, but a storage"


def test_tied_tensors_in_nested_states_are_stored_once():
    weight = torch.zeros(3)
    encoder = Encoder()
    encoder.encode({"first": {"weight": weight}, "deep": [{"tied": weight.detach()}, weight[:2]], "own": (weight.clone(),)}, "model_0")
    assert list(encoder.tensors) == ["model_0.first.weight", "model_0.deep.1", "model_0.own.0"]
