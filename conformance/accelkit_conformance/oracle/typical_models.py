"""Small models of the kinds that are most often trained in practice, each with a batch and a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, ...]


class Transformer(nn.Module):
    """A decoder-only language model with two layers.

    A batch consists of token ids of shape (batch, tokens) and, for each token, the id of the token that follows.
    """

    def __init__(self, vocabulary: int = 64, width: int = 32, tokens: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        logits = self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


class Block(nn.Module):
    """A residual block of two convolutions, as in ResNet. If it changes the number of channels, it also halves the height and the width."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        stride = 1 if channels == out_channels else 2
        self.first = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out_channels), nn.BatchNorm2d(out_channels)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, out_channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        return functional.relu(y + self.shortcut(x))


class ConvolutionalNetwork(nn.Module):
    """An image classifier with residual blocks. Its batch consists of images of shape (batch, 3, height, width), and of class indices."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 16))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, classes))

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.blocks(self.stem(images))), classes)


class DiffusionUNet(nn.Module):
    """A U-Net with one downsampling level that predicts the noise in images, as in diffusion models.

    Its batch consists of noisy images of shape (batch, 3, height, width), noise of the same shape, and times from 0 to 1 of shape (batch,).
    The height and the width are even.
    """

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.inward, self.outward = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(2 * channels, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)])
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.register_buffer("frequencies", torch.exp(torch.linspace(0.0, math.log(1000.0), channels // 2)))

    def forward(self, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        angles = times[:, None] * self.frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]
        skip = functional.silu(self.norms[0](self.inward(images))) + embedded
        low = functional.silu(self.norms[1](self.down(skip)))
        sequence = low.flatten(2).transpose(1, 2)
        attended = self.attention(sequence, sequence, sequence, need_weights=False)[0]
        low = low + attended.transpose(1, 2).reshape(low.shape)
        high = functional.interpolate(low, scale_factor=2.0, mode="nearest")
        return functional.mse_loss(self.outward(torch.cat([high, skip], dim=1)), noise)


class RecurrentNetwork(nn.Module):
    """A sequence classifier that consists of an LSTM and a GRU.

    Its batch consists of sequences of shape (batch, steps, features), and of labels (0 or 1).
    """

    def __init__(self, features: int = 8, width: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, sequences: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.gru(self.lstm(sequences)[0])[0]
        return functional.binary_cross_entropy_with_logits(self.head(hidden[:, -1]).squeeze(1), labels)


class GraphNetwork(nn.Module):
    """A graph network that computes attention over edges with gather and scatter operators.

    Its batch consists of node features of shape (nodes, features), edges of shape (2, edges), and target values of shape (nodes,). The two
    rows of the edges are the source nodes and the target nodes.
    """

    def __init__(self, features: int = 8, width: int = 16) -> None:
        super().__init__()
        self.inward, self.score, self.outward = nn.Linear(features, width), nn.Linear(2 * width, 1), nn.Linear(width, 1)

    def forward(self, features: torch.Tensor, edges: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = functional.elu(self.inward(features))
        source, target = edges[0], edges[1]
        sent = x.index_select(0, source)
        scores = functional.leaky_relu(self.score(torch.cat([sent, x[target]], dim=1)), 0.2).squeeze(1)
        largest = scores.new_full((len(x),), -math.inf).scatter_reduce(0, target, scores.detach(), "amax")
        weights = torch.exp(scores - largest.gather(0, target))
        sums = weights.new_zeros(len(x)).scatter_add(0, target, weights)
        weights = weights / sums.gather(0, target).clamp(min=1e-6)
        received = torch.zeros_like(x).index_add(0, target, sent * weights[:, None])
        return functional.smooth_l1_loss(self.outward(functional.elu(x + received)).squeeze(1), targets)


def _transformer() -> tuple[nn.Module, Batch]:
    ids = torch.randint(64, (4, 17))
    return Transformer(), (ids[:, :-1], ids[:, 1:])


def _convolutional() -> tuple[nn.Module, Batch]:
    return ConvolutionalNetwork(), (torch.randn(4, 3, 16, 16), torch.randint(10, (4,)))


def _diffusion() -> tuple[nn.Module, Batch]:
    return DiffusionUNet(), (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.rand(2))


def _recurrent() -> tuple[nn.Module, Batch]:
    return RecurrentNetwork(), (torch.randn(4, 6, 8), torch.randint(2, (4,)).float())


def _graph() -> tuple[nn.Module, Batch]:
    return GraphNetwork(), (torch.randn(12, 8), torch.randint(12, (2, 40)), torch.randn(12))


MODELS: Mapping[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "transformer": _transformer,
    "cnn": _convolutional,
    "diffusion": _diffusion,
    "rnn": _recurrent,
    "gnn": _graph,
}
"""Functions, by name, that return a new model and its batch, both on the CPU. Calling the model with the batch returns the loss."""

OPTIMIZERS: Mapping[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "transformer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "cnn": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
    "diffusion": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    "rnn": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
    "gnn": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
}
"""Functions that return the optimizer with which a model is usually trained, by the name of the model in ``MODELS``."""
