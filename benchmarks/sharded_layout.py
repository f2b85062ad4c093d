"""The parameters of a large model as sharded tensors that take no memory: the names and shapes of Llama 2 70B."""

from __future__ import annotations

import math

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

HIDDEN, FEED_FORWARD, KEYS, VOCABULARY, LAYERS = 8192, 28672, 1024, 32000, 80


def parameter_shapes(layers: int = LAYERS, divisor: int = 1) -> dict[str, torch.Size]:
    """Return the shapes by name. ``divisor`` divides every width, for jobs that write the values."""
    hidden, inner, keys, vocabulary = (width // divisor for width in (HIDDEN, FEED_FORWARD, KEYS, VOCABULARY))
    layer = {
        "attention.wq.weight": (hidden, hidden),
        "attention.wk.weight": (keys, hidden),
        "attention.wv.weight": (keys, hidden),
        "attention.wo.weight": (hidden, hidden),
        "feed_forward.w1.weight": (inner, hidden),
        "feed_forward.w2.weight": (hidden, inner),
        "feed_forward.w3.weight": (inner, hidden),
        "attention_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
    }
    shapes = {"tok_embeddings.weight": (vocabulary, hidden)}
    shapes |= {f"layers.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()}
    shapes |= {"norm.weight": (hidden,), "output.weight": (vocabulary, hidden)}
    return {name: torch.Size(shape) for name, shape in shapes.items()}


def shard_rows(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first row and the number of rows that ``Shard(0)`` gives to a rank."""
    most = -(-rows // size)
    first = min(rank * most, rows)
    return first, min(most, rows - first)


def sharded_state(shapes: dict[str, torch.Size], mesh: DeviceMesh, rank: int) -> dict[str, torch.Tensor]:
    """Return a state dict as FSDP leaves it, in bfloat16. All values of a shard share one element of memory."""
    state = {}
    for name, shape in shapes.items():
        _, rows = shard_rows(shape[0], rank, mesh.size())
        local = torch.zeros(1, dtype=torch.bfloat16).expand(rows, *shape[1:])
        stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        state[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return state
