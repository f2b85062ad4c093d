"""Less common uses of modules, such as lazy modules, changes between ``train`` and ``eval``, state dicts and ``torch.nn.utils``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval, parameters_to_vector, prune, vector_to_parameters
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence

from accelkit_conformance.oracle.programs import Program, made, random_values
from accelkit_conformance.oracle.unusual_batches import UNUSUAL_BATCHES


def _alternating_modes(device: torch.device) -> Any:
    found: list[Any] = []
    for make, shape in (
        (lambda: nn.LSTM(5, 4, 2, dropout=0.5), (4, 3, 5)),
        (lambda: nn.GRU(5, 4, 2, dropout=0.5, bidirectional=True), (4, 3, 5)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5), (4, 3, 8)),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.RReLU(), nn.AlphaDropout(0.5)), (4, 8)),
    ):
        layer, x = made(make, device), random_values(device, *shape)
        outputs = []
        for is_training in (True, False, True, False, False):
            y = layer.train(is_training)(x)
            outputs.append(y[0] if isinstance(y, tuple) else y)
        found.append((outputs[1], outputs[3], outputs[4], *(bool((outputs[one] != outputs[1]).any()) for one in (0, 2))))
    return found


def _changing_statistics(device: torch.device) -> Any:
    layer, found = made(lambda: nn.BatchNorm2d(3), device), []
    for number, is_training in enumerate((True, False, True, True, False)):
        layer.train(is_training)
        layer.momentum, layer.eps = (None if number == 3 else 0.1 * (number + 1)), 1e-3 * (number + 1)
        x = (random_values(device, 4, 3, 2 + number % 2, 3) * (number + 1)).requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        found.append((y, x.grad, [one.clone() for one in layer.buffers()]))
    layer.reset_running_stats()
    return found, layer.weight.grad, layer.bias.grad, [one.clone() for one in layer.buffers()]


def _lazy(device: torch.device) -> Any:
    with device:
        layer = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    x = random_values(device, 2, 3, 5, 5)
    with torch.no_grad():
        layer(x)
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(random_values(device, *parameter.shape) * 0.1 * (number + 1))
    y = layer(x)
    y.sum().backward()
    return y, [one.grad for one in layer.parameters()], [type(one).__name__ for one in layer], layer[1].num_batches_tracked


def _functional_calls(device: torch.device) -> Any:
    layer = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), device)
    x, names = random_values(device, 6, 4), dict(layer.named_parameters())
    scaled = {name: one.detach() * 0.5 for name, one in names.items()}
    result = torch.func.functional_call(layer, scaled, (x,))
    models = [made(lambda: nn.Linear(4, 2), device) for _ in range(3)]
    for number, model in enumerate(models):
        nn.init.constant_(model.bias, float(number))
    parameters, buffers = torch.func.stack_module_state(models)
    together = torch.vmap(lambda own, rest: torch.func.functional_call(models[0], (own, rest), (x,)))(parameters, buffers)
    loss = lambda own, row: torch.func.functional_call(models[0], own, (row,)).square().sum()  # noqa: E731
    own = {name: one.detach() for name, one in models[1].named_parameters()}
    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(own, x)
    return result, together, list(per_sample.values()), [one.grad is None for one in names.values()], list(layer.buffers())


class _Stateful(nn.Module):
    """A module with two ``Linear`` layers, a ParameterList, a ParameterDict, extra state, and two buffers, one of them not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("temporary", torch.ones(2), persistent=False)
        self.several = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(1), requires_grad=False)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.full((2,), 3.0))})
        self.extra = 1

    def get_extra_state(self) -> int:
        return self.extra

    def set_extra_state(self, state: int) -> None:
        self.extra = state


def _tied(device: torch.device) -> _Stateful:
    module: _Stateful = made(_Stateful, device)
    module.other.weight = module.one.weight  # after the move, which may untie weights
    return module


def _state_dicts(device: torch.device) -> Any:
    module = _tied(device)
    state = copy.deepcopy(module.state_dict())
    is_tied = [module.one.weight is module.other.weight]
    state["kept"], state["_extra_state"] = state["kept"].t() * 2, 5
    other = _tied(device)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    kept = other.one.weight
    on_cpu = {name: one.cpu() if isinstance(one, torch.Tensor) else one for name, one in state.items()}
    result = other.load_state_dict(on_cpu)
    is_tied += [other.one.weight is kept, other.one.weight is other.other.weight]
    third = _tied(device)
    third.load_state_dict(state, assign=True)
    missing = third.load_state_dict({"kept": state["kept"]}, strict=False)
    return (
        [list(one.buffers()) + list(one.parameters()) for one in (module, other, third)], is_tied, other.extra, third.extra,
        [one.requires_grad for one in third.parameters()], len(result.missing_keys), len(missing.missing_keys), list(state),
    )  # fmt: skip


def _conversions(device: torch.device) -> Any:
    layer = made(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), device)
    x, found = random_values(device, 2, 3, 5, 5), []
    layer.to(memory_format=torch.channels_last)
    found.append((layer(x), layer[0].weight.is_contiguous(memory_format=torch.channels_last), layer[0].weight.stride()))
    layer.to(torch.bfloat16)
    found.append(([one.dtype for one in layer.state_dict().values()], layer(x.bfloat16()).dtype))
    layer.float().requires_grad_(False)
    layer[1].requires_grad_()
    y = layer(x)
    y.sum().backward()
    found.append((y.requires_grad, layer[0].weight.grad is None, layer[1].bias.grad))
    layer.zero_grad()
    layer.apply(lambda one: nn.init.ones_(one.weight) if isinstance(one, nn.Conv2d) else None)
    return found, layer[1].bias.grad is None, layer(x), copy.deepcopy(layer)(x), list(layer.buffers())


def _utilities(device: torch.device) -> Any:
    layer, conv, norm = (made(make, device) for make in (lambda: nn.Linear(4, 3), lambda: nn.Conv2d(3, 4, 3), lambda: nn.BatchNorm2d(4)))
    vector = parameters_to_vector(layer.parameters())
    vector_to_parameters(vector.detach() * 2, layer.parameters())
    norm(random_values(device, 5, 4, 3, 3) * 3)
    fused = fuse_conv_bn_eval(conv.eval(), norm.eval())(random_values(device, 2, 3, 5, 5))
    prune.l1_unstructured(layer, "weight", amount=5)
    prune.ln_structured(conv, "weight", amount=2, n=2, dim=0)
    x = random_values(device, 2, 4)
    y = layer(x)
    y.sum().backward()
    prune.remove(layer, "weight")
    return vector, fused, y, layer.weight.grad, layer.weight, conv.weight_mask


def _sequences(device: torch.device) -> Any:
    parts = [random_values(device, length, 2).requires_grad_() for length in (3, 5, 1)]
    padded = pad_sequence(parts, batch_first=True, padding_value=7.0)
    lengths = torch.tensor([3, 5, 1])
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    back, again = pad_packed_sequence(packed, batch_first=True, total_length=6)
    sorted_parts = pack_sequence([parts[1], parts[0], parts[2]])
    layer = made(lambda: nn.LSTM(2, 3, 2, bidirectional=True, batch_first=True), device)
    output, states = layer(packed)
    (output.data.square().sum() + states[0].sum() + back.sum()).backward()
    back_again = pad_packed_sequence(output)[0]
    parts_again = unpad_sequence(padded, lengths, batch_first=True)
    order = (packed.sorted_indices, packed.unsorted_indices, packed.batch_sizes.tolist(), again.tolist())
    return padded, packed.data, order, back, sorted_parts.data, back_again, states, [one.grad for one in parts], parts_again


def _initialisation(device: torch.device) -> Any:
    init, found = nn.init, []
    for fill in (init.eye_, init.ones_, init.zeros_, lambda one: init.constant_(one, 0.3)):
        found.append(fill(torch.empty(3, 4, device=device)))
    found.append(init.dirac_(torch.empty(4, 4, 3, device=device), groups=2))
    draws = (
        (init.xavier_uniform_, (2 / 500) ** 0.5), (init.xavier_normal_, (2 / 500) ** 0.5), (lambda one: init.normal_(one, 0.0, 0.2), 0.2),
        (lambda one: init.kaiming_uniform_(one, a=1.0), 200**-0.5), (lambda one: init.kaiming_normal_(one, mode="fan_out"), 150**-0.5),
        (lambda one: init.trunc_normal_(one, std=0.1, a=-0.1, b=0.1), 0.054), (lambda one: init.uniform_(one, -1, 1), 3**-0.5),
        (init.orthogonal_, 300**-0.5), (lambda one: init.sparse_(one, 0.5, std=0.1), 0.0707),
    )  # fmt: skip
    for draw, expected in draws:
        one = draw(torch.empty(300, 200, device=device))
        found.append((one.device == device, abs(float(one.std()) / expected - 1) < 0.05, abs(float(one.mean())) < 0.1 * expected))
    weight = init.orthogonal_(torch.empty(20, 30, device=device))
    return found, bool(((weight @ weight.t()).cpu() - torch.eye(20)).abs().max() < 1e-4)


def _attention(device: torch.device) -> Any:
    found = []
    window = (torch.arange(70)[:, None] - torch.arange(70)).abs().lt(9).to(device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = (one.to(dtype).requires_grad_() for one in random_values(device, 3, 2, 4, 70, 64))
        few = [one[:, :2] for one in (k, v)]
        options: tuple[Any, ...] = (
            (k, v, {"is_causal": True}), (k, v, {"attn_mask": window}), (k, v, {"attn_mask": window.to(dtype) * -2, "scale": 0.3}),
            (k[:, :, :33], v[:, :, :33], {}), (*few, {"enable_gqa": True, "is_causal": True}), (k[:, :1], v[:, :1], {}),
        )  # fmt: skip
        for key, value, keywords in options:
            output = F.scaled_dot_product_attention(q, key.contiguous(), value, **keywords)
            found.append((output, torch.autograd.grad(output.square().sum(), [q, k, v])))
    return found


def _flat_parameters(device: torch.device) -> Any:
    """Train a module whose parameters are views of one flat buffer, as in FSDP.

    Changes to the buffer must appear in the parameters, and vice versa.
    """
    layer = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), device)
    flat = parameters_to_vector(layer.parameters()).detach().clone()
    start = 0
    for parameter in layer.parameters():
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    flat.mul_(2)
    x = random_values(device, 5, 3)
    y = layer(x)
    y.square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    state = layer.state_dict()
    with torch.no_grad():
        state["1.bias"].fill_(7.0)
        layer[0].bias.detach().add_(1)
        layer[0].weight.data.zero_()
    kept = layer[1].weight
    kept.data = random_values(device, 2, 4)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other[0].bias.zero_()
    is_shared = [state[name].data_ptr() == one.data_ptr() for name, one in layer.named_parameters() if name != "1.weight"]
    return (
        y,
        flat,
        list(layer.parameters()),
        is_shared if flat.data_ptr() else [True] * 3,
        kept is layer[1].weight,
        list(other.parameters()),
    )


def _tied_weights(device: torch.device) -> Any:
    """Run a forward and a backward pass of a language model whose embedding and output layer share one weight."""
    embedding, head = made(lambda: nn.Embedding(7, 4, padding_idx=2), device), made(lambda: nn.Linear(4, 7), device)
    head.weight = embedding.weight
    tokens = torch.tensor([[0, 2, 5], [6, 6, 1]], device=device)
    logits = head(torch.tanh(embedding(tokens)))
    F.cross_entropy(logits.flatten(0, 1), tokens.roll(1).flatten()).backward()
    return logits, embedding.weight.grad, head.bias.grad


PROGRAMS: Mapping[str, Program] = {
    "alternating_modes": _alternating_modes,
    "changing_statistics": _changing_statistics,
    "lazy": _lazy,
    "functional_calls": _functional_calls,
    "state_dicts": _state_dicts,
    "conversions": _conversions,
    "utilities": _utilities,
    "sequences": _sequences,
    "initialisation": _initialisation,
    **UNUSUAL_BATCHES,
    "attention": _attention,
    "flat_parameters": _flat_parameters,
    "tied_weights": _tied_weights,
}
"""The programs, by name."""
