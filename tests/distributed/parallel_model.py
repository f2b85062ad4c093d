"""A small transformer whose attention works with any number of heads, and its layouts, for the tests of strategy ``parallel``."""

from __future__ import annotations

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

from accelkit_builtin.strategies.context_parallel import gather_sequence, shard_sequence
from accelkit_builtin.strategies.parallel import ParallelOptions

WIDTH, HEADS, LENGTH, WORDS = 8, 4, 4, 13
SEQUENCE = {  # between the divided layers, each process has a part of the sequence
    "layers.0": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True),
    **dict.fromkeys(["layers.*.norm1", "layers.*.norm2", "norm"], SequenceParallel()),
    **dict.fromkeys([f"layers.*.{name}" for name in ("query", "key", "value", "linear1")], ColwiseParallel(input_layouts=Shard(1))),
    **dict.fromkeys(["layers.*.output", "layers.*.linear2"], RowwiseParallel(output_layouts=Shard(1))),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def sized(words):
    """Sizes as they are written on a command line, such as ``shard=2`` and ``plan=sequence``."""
    return {name: int(size) if size.isdigit() else size for name, _, size in (word.partition("=") for word in words)}


def options(**sizes):
    """The options with these sizes. ``plan="sequence"`` means the plan above."""
    return ParallelOptions(**sizes | ({"plan": SEQUENCE} if sizes.get("plan") == "sequence" else {}))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.output = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.linear1, self.linear2 = torch.nn.Linear(WIDTH, 12), torch.nn.Linear(12, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        heads = (layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(-2))
        return x + self.linear2(torch.nn.functional.gelu(self.linear1(self.norm2(x))))


class Transformer(torch.nn.Module):
    """Predicts the next word. Its vocabulary cannot be divided evenly, and the plan leaves out the norms and the embedding of positions."""

    _tp_plan = {  # noqa: RUF012 # as models of transformers have it
        **dict.fromkeys([f"layers.*.{name}" for name in ("query", "key", "value", "linear1")], "colwise"),
        **dict.fromkeys(["layers.*.output", "layers.*.linear2"], "rowwise"),
        "head": "colwise_rep",
        "no_such_module": "colwise",
    }

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(dropout)
        self.words, self.positions = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 14, bias=False)

    def forward(self, words, positions=None):
        positions = torch.arange(words.shape[1], device=words.device) if positions is None else positions
        x = self.dropout(self.words(words) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_sum(model, texts, mesh=None):
    """The sum over the samples of the mean loss of each. Each process has a part of the sequences if the mesh divides them."""
    words, following = shard_sequence((texts[:, :-1], texts[:, 1:]), mesh, dim=1)
    positions = shard_sequence(torch.arange(texts.shape[1] - 1, device=texts.device), mesh, dim=0)
    guesses = model(words, positions)
    losses = torch.nn.functional.cross_entropy(guesses.transpose(1, 2), following, reduction="none")
    return gather_sequence(losses, mesh, dim=1).sum() / (texts.shape[1] - 1)


def made():
    """The model and the texts. Their number is that of ten batches of 16, less one."""
    torch.default_generator.manual_seed(0)
    return Transformer().double(), torch.randint(WORDS, (159, LENGTH + 1))
