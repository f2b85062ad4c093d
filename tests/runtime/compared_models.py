"""Two models with many different operators, for tests of ``Runtime.compare_to_cpu``, and operators of theirs that can be made wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.inputs, self.gate, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).reshape(batch, length, width) * self.gate(x).sigmoid())


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down, self.dropout = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self, words: int = 32, width: int = 16, heads: int = 2):
        super().__init__()
        self.embedding, self.position = nn.Embedding(words, width), nn.Parameter(torch.randn(1, 16, width) / 10)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position[:, : tokens.shape[1]]
        mask = torch.ones(tokens.shape[1], tokens.shape[1], device=tokens.device, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=4),
            nn.GroupNorm(4, 8),
            nn.Hardswish(),
            nn.Upsample(scale_factor=2),
            nn.AvgPool2d(2),
            nn.LeakyReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def transformer():
    """A model, a batch and a loss."""
    tokens = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(0))
    return Transformer(), tokens, lambda model, batch: F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def cnn():
    """A model, a batch and a loss."""
    generator = torch.Generator().manual_seed(0)
    batch = {"image": torch.randn(4, 3, 12, 12, generator=generator), "label": torch.randint(0, 10, (4,), generator=generator)}
    return CNN(), batch, lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)


MODELS = {"transformer": transformer, "cnn": cnn}

OPERATORS = {
    "transformer": (
        "add", "native_layer_norm", "native_layer_norm_backward", "mm", "bmm", "div", "native_dropout_backward", "_softmax",
        "_softmax_backward_data", "addmm", "sigmoid", "sigmoid_backward", "mul", "gelu", "gelu_backward", "_log_softmax",
        "nll_loss_forward", "nll_loss_backward",
        "sum", "embedding_dense_backward",
    ),
    "cnn": (
        "convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "relu", "threshold_backward",
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "native_group_norm", "native_group_norm_backward", "hardswish",
        "hardswish_backward", "upsample_nearest2d", "upsample_nearest2d_backward", "avg_pool2d", "avg_pool2d_backward", "leaky_relu_",
        "mean", "mm", "neg",
    ),
}  # fmt: skip
"""For each model, operators that it uses and that are kernels of the fake XPU, which can make their results wrong."""
