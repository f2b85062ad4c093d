"""Modules that are called several times. Something changes between the calls, such as an option of the module or the size of the batch.
A cached kernel or graph might not notice the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from accelkit_conformance.oracle.programs import Program, made, random_values

_Layer = Callable[[], nn.Module]


def _run(layer: nn.Module, *given: torch.Tensor) -> list[torch.Tensor]:
    """Return the output of a module, the gradient of its first argument, and the gradients of its parameters.

    The gradients are those of a weighted sum of the output. Gradients are left out for a first argument that is not floating-point and for
    parameters that do not require a gradient. If the module returns a tuple, the output is the first item.
    """
    first = given[0].detach().requires_grad_(given[0].is_floating_point())
    output = layer(first, *given[1:])
    output = output[0] if isinstance(output, tuple) else output
    wanted = [one for one in (first, *layer.parameters()) if one.requires_grad]
    weights = random_values(output.device, *output.shape, seed=1).to(output.dtype)
    return [output, *torch.autograd.grad((output * weights).sum(), wanted, allow_unused=True, materialize_grads=True)]


_OPTIONS: tuple[tuple[_Layer, tuple[tuple[int, ...], ...], dict[str, tuple[Any, ...]]], ...] = (
    (lambda: nn.Conv2d(4, 4, 3), ((2, 4, 9, 9),), {"stride": ((2, 1),), "padding": ((1, 2), "same"), "dilation": ((2, 1),)}),
    (lambda: nn.ConvTranspose2d(4, 4, 3, stride=3), ((2, 4, 4, 4),), {"output_padding": ((1, 2),), "padding": ((1, 0),)}),
    (lambda: nn.MaxPool2d(2), ((2, 3, 9, 9),), {"stride": (1, 3), "padding": (1,), "dilation": (2,), "ceil_mode": (True,)}),
    (lambda: nn.AvgPool2d(2), ((2, 3, 9, 9),), {"kernel_size": (3,), "ceil_mode": (True,), "divisor_override": (3, 5)}),
    (lambda: nn.Upsample(size=(5, 7), mode="bilinear"), ((2, 3, 4, 4),), {"align_corners": (True,), "size": ((7, 5),)}),
    (lambda: nn.BatchNorm2d(3), ((4, 3, 5, 5),), {"eps": (0.5, 0.1), "momentum": (0.9, None), "training": (False,)}),
    (lambda: nn.LayerNorm(6), ((3, 6),), {"eps": (0.5, 0.1)}),
    (lambda: nn.GroupNorm(2, 8), ((3, 8, 4),), {"num_groups": (4, 8), "eps": (0.5,)}),
    (nn.LeakyReLU, ((3, 6),), {"negative_slope": (0.5, 2.0)}),
    (nn.ELU, ((3, 6),), {"alpha": (0.5, 2.0)}),
    (nn.GELU, ((3, 6),), {"approximate": ("tanh",)}),
    (nn.Softplus, ((3, 6),), {"beta": (2.0, 0.5), "threshold": (0.5,)}),
    (nn.Hardtanh, ((3, 6),), {"min_val": (-0.2,), "max_val": (0.3,)}),
    (lambda: nn.Threshold(0.1, 5.0), ((3, 6),), {"threshold": (0.5,), "value": (-2.0,)}),
    (lambda: nn.Softmax(dim=1), ((4, 4, 4),), {"dim": (0, 2)}),
    (lambda: nn.GLU(dim=1), ((4, 4, 4),), {"dim": (0, 2)}),
    (lambda: nn.PixelShuffle(2), ((1, 36, 2, 2),), {"upscale_factor": (3,)}),
    (lambda: nn.Fold((6, 6), 2), ((1, 8, 25),), {}),
    (nn.HuberLoss, ((3, 6), (3, 6)), {"delta": (0.3, 2.0), "reduction": ("sum", "none")}),
    (nn.SmoothL1Loss, ((3, 6), (3, 6)), {"beta": (0.3, 2.0), "reduction": ("sum",)}),
    (lambda: nn.CosineSimilarity(dim=0), ((4, 4), (4, 4)), {"dim": (1,), "eps": (10.0,)}),
    (lambda: nn.MultiheadAttention(8, 2), ((4, 3, 8), (4, 3, 8), (4, 3, 8)), {"training": (False,)}),
    (lambda: nn.LSTM(4, 4, 2), ((3, 3, 4),), {"batch_first": (True,)}),
)  # fmt: skip
"""Modules, each with the shapes of its arguments and the options that are changed between calls. Each option is mapped to the values that
it takes in addition to its initial value."""


def _changing_options(device: torch.device) -> Any:
    found = []
    for make, shapes, options in _OPTIONS:
        layer = made(make, device, seed=2)
        given = [random_values(device, *shape, seed=number) for number, shape in enumerate(shapes)]
        found.append(_run(layer, *given))
        for name, others in options.items():
            before = getattr(layer, name)
            for value in (*others, before):
                setattr(layer, name, value)
                found.append(_run(layer, *given))
    return found


_LAYERS: tuple[tuple[_Layer, tuple[int, ...]], ...] = (
    (lambda: nn.Linear(4, 3), (4,)),
    (lambda: nn.Conv2d(4, 3, 2), (4, 5, 5)),
    (lambda: nn.Conv2d(4, 4, 2, groups=4), (4, 5, 5)),
    (lambda: nn.ConvTranspose1d(4, 3, 2), (4, 5)),
    (lambda: nn.BatchNorm1d(4), (4,)),
    (lambda: nn.LayerNorm(4), (4,)),
    (lambda: nn.GroupNorm(2, 4), (4, 3)),
    (lambda: nn.MaxPool1d(2), (4, 6)),
    (lambda: nn.AdaptiveAvgPool1d(3), (4, 7)),
    (lambda: nn.LSTM(4, 4, batch_first=True), (5, 4)),
    (lambda: nn.GRU(4, 4, batch_first=True, bidirectional=True), (5, 4)),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (5, 4)),
    (nn.GELU, (4,)),
    (lambda: nn.LogSoftmax(dim=-1), (4,)),
)


def _changing_batches(device: torch.device) -> Any:
    """Call modules with batches of several sizes, memory layouts and storage offsets, then with frozen parameters and under ``no_grad``."""
    found = []
    for make, shape in _LAYERS:
        layer = made(make, device, seed=2)
        for size in (2, 5, 300, 2):
            found.append(_run(layer, random_values(device, size, *shape)))
        found.append(_run(layer, random_values(device, 9, *shape)[3:5]))
        found.append(_run(layer, random_values(device, *shape, 2).movedim(-1, 0)))
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
        found.append(_run(layer, random_values(device, 2, *shape)))
        with torch.no_grad():
            output = layer(random_values(device, 2, *shape))
        found.append([output[0] if isinstance(output, tuple) else output])
    return found


def _changing_dtypes(device: torch.device) -> Any:
    found = []
    for make, shape in _LAYERS:
        layer = made(make, device, seed=2)
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            layer.to(dtype)
            found.append(_run(layer, random_values(device, 2, *shape).to(dtype))[0])
    return found


def _empty_batches(device: torch.device) -> Any:
    """Call modules with an empty batch, and then with a batch that has elements. Call an embedding and two losses with empty batches."""
    found = []
    for make, shape in _LAYERS:
        layer = made(make, device, seed=2).eval()
        for size in (0, 3):
            found.append(_run(layer, random_values(device, size, *shape)))
    embedding = nn.Embedding(5, 3).to(device)
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    found.append(list(torch.autograd.grad(embedding(empty).sum() + embedding.weight.sum() * 2, [embedding.weight])))
    logits = random_values(device, 0, 4).requires_grad_()
    found.append(
        [nn.functional.cross_entropy(logits, empty, reduction="sum"), nn.functional.mse_loss(logits, logits.detach(), reduction="sum")]
    )
    return found


_LARGER: tuple[tuple[_Layer, tuple[int, ...]], ...] = (
    (lambda: nn.Linear(96, 160), (300, 96)),
    (lambda: nn.LayerNorm(96), (260, 96)),
    (lambda: nn.RMSNorm(96), (260, 96)),
    (lambda: nn.GroupNorm(8, 96), (40, 96, 7)),
    (lambda: nn.InstanceNorm2d(40, affine=True), (20, 40, 7, 7)),
    (lambda: nn.BatchNorm1d(96), (260, 96)),
    (lambda: nn.BatchNorm2d(96), (20, 96, 7, 7)),
    (lambda: nn.Conv1d(96, 72, 3), (40, 96, 20)),
    (lambda: nn.Conv2d(40, 72, 3, padding=1), (20, 40, 9, 9)),
    (lambda: nn.Conv2d(72, 72, 3, groups=72), (20, 72, 9, 9)),
    (lambda: nn.ConvTranspose2d(40, 72, 3, stride=2), (20, 40, 7, 7)),
    (lambda: nn.PReLU(96), (260, 96)),
    (lambda: nn.LSTM(96, 40, 2), (5, 260, 96)),
    (lambda: nn.GRU(96, 40, bidirectional=True), (5, 260, 96)),
    (lambda: nn.LSTM(7, 33, 4, bidirectional=True), (70, 9, 7)),
    (lambda: nn.GRU(7, 18, 4), (70, 9, 7)),
    (lambda: nn.RNN(7, 65, 4), (70, 9, 7)),
    (lambda: nn.TransformerEncoderLayer(96, 4, 160, dropout=0.0, batch_first=True), (10, 70, 96)),
)
"""Modules, each with the shape of a batch. In both, the sizes are as large as in small models that are used in practice."""


def _larger_sizes(device: torch.device) -> Any:
    """Call modules with inputs of several hundred rows and about a hundred features, which kernels divide into several blocks. Then call
    the modules with the same inputs in another memory layout."""
    found = []
    for make, shape in _LARGER:
        layer = made(make, device, seed=2)
        found.append(_run(layer, random_values(device, *shape)))
        last = 0 if len(shape) == 2 else -1
        found.append(_run(layer, random_values(device, *shape).transpose(1, last).contiguous().transpose(1, last)))
    return found


_OF_MANY_ROWS: tuple[tuple[_Layer, tuple[tuple[int, ...], ...]], ...] = (
    *(
        (make, ((3, 4), (40_003, 4), (3, 4)))
        for make in (lambda: nn.Linear(4, 3), lambda: nn.LayerNorm(4), lambda: nn.BatchNorm1d(4), lambda: nn.PReLU(4))
    ),
    (lambda: nn.Linear(17, 19), ((3, 17), (40_003, 17), (3, 17))),
    *((make, ((3, 4), (65_543, 4))) for make in (lambda: nn.LSTMCell(4, 3), lambda: nn.GRUCell(4, 3), lambda: nn.RNNCell(4, 3))),
    *((make, ((9, 2, 3), (9, 7500, 3), (1500, 44, 3))) for make in (lambda: nn.LSTM(3, 2), lambda: nn.GRU(3, 2), lambda: nn.RNN(3, 2))),
)
"""Modules, each with the shapes of the batches with which it is called. The first dimension of a recurrent module's batch is time."""


def _many_rows(device: torch.device) -> Any:
    found = []
    for make, shapes in _OF_MANY_ROWS:
        layer = made(make, device, seed=2)
        found.append([_run(layer, random_values(device, *shape)) for shape in shapes])
    return found


_RECURRENT: tuple[_Layer, ...] = (
    lambda: nn.LSTM(3, 6, batch_first=True),
    lambda: nn.GRU(3, 6, 2, batch_first=True, bidirectional=True),
    lambda: nn.RNN(3, 6, batch_first=True),
)


def _packed_sequences(device: torch.device) -> Any:
    """Call recurrent modules with a packed batch of 300 sequences of 1 to 40 steps, which are not sorted by length."""
    lengths = torch.arange(300) * 7 % 40 + 1
    found = []
    for make in _RECURRENT:
        layer = made(make, device, seed=2)
        x = random_values(device, 300, 40, 3).requires_grad_()
        output = layer(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0].data
        gradients = torch.autograd.grad((output * random_values(device, *output.shape)).sum(), (x, *layer.parameters()))
        found.append((output, gradients))
    return found


_PARTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda y: y[:, :, 1:],
    lambda y: y[:, -1],
    lambda y: y[:, 1:].transpose(0, 1),
    lambda y: y[..., :3],
    lambda y: y.mean(1),
    lambda y: y[:, ::2].flip(0),
)
"""Functions that return a part of a result. Their gradients have zeros, other strides, or strides of 0."""


def _parts_of_results(device: torch.device) -> Any:
    """Compute the gradients of the sums of parts of the outputs of recurrent modules."""
    found = []
    for make in _RECURRENT:
        layer = made(make, device, seed=2)
        x = random_values(device, 4, 7, 3).requires_grad_()
        for part in _PARTS:
            found.append(torch.autograd.grad(part(layer(x)[0]).sum(), (x, *layer.parameters())))
    return found


PROGRAMS: Mapping[str, Program] = {
    "changing_options": _changing_options,
    "changing_batches": _changing_batches,
    "changing_dtypes": _changing_dtypes,
    "empty_batches": _empty_batches,
    "larger_sizes": _larger_sizes,
    "many_rows": _many_rows,
    "packed_sequences": _packed_sequences,
    "parts_of_results": _parts_of_results,
}
"""The programs, by name."""
