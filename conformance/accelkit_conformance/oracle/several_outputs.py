"""Functions with several outputs, for backward passes in which only one of the outputs receives a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.differentiable import check_function, random_inputs

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Outputs = Sequence[torch.Tensor]


class _Function(NamedTuple):
    """A function with several outputs.

    Attributes:
        call: The function. It takes the inputs and returns the outputs.
        shapes: The shapes of the inputs.
        wanted: Gradients are computed for the inputs with these indices. Every output must depend on each of these inputs. None means all
            inputs.
        num_stages: The minimum number of operators that must run one after another to compute the outputs.
    """

    call: Callable[..., Outputs]
    shapes: tuple[tuple[int, ...], ...]
    wanted: tuple[int, ...] | None = None
    num_stages: int = 1


def _recurrent(layer: Callable[..., Outputs], num_states: int, num_gates: int) -> _Function:
    """Return a recurrent layer as a function of the layer's input, initial states, weights and biases."""

    def call(x: torch.Tensor, *others: torch.Tensor) -> Outputs:
        states, weights = list(others[:num_states]), list(others[num_states:])
        return layer(x, states if num_states > 1 else states[0], weights, True, 1, 0.0, True, False, False)

    rows = 4 * num_gates
    return _Function(call, ((3, 2, 3), *[(1, 2, 4)] * num_states, (rows, 3), (rows, 4), (rows,), (rows,)), num_stages=8)


def _attention(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, last_weight: torch.Tensor, last_bias: torch.Tensor) -> Outputs:
    output, weights = F.multi_head_attention_forward(x, x, x, 4, 2, weight, bias, None, None, False, 0.0, last_weight, last_bias)
    assert weights is not None
    return output, weights


SEVERAL_OUTPUTS: Mapping[str, _Function] = {
    "lstm": _recurrent(torch.lstm, 2, 4),
    "gru": _recurrent(torch.gru, 1, 3),
    "rnn": _recurrent(torch.rnn_tanh, 1, 1),
    "lstm_cell": _Function(
        lambda x, h, c, *weights: torch.lstm_cell(x, [h, c], *weights), ((2, 3), (2, 4), (2, 4), (16, 3), (16, 4), (16,), (16,)), None, 8
    ),
    "attention": _Function(_attention, ((3, 2, 4), (12, 4), (12,), (4, 4), (4,)), (0, 1, 2), 5),
    "var_mean": _Function(lambda x: torch.var_mean(x, 1), ((4, 5),)),
    "std_mean": _Function(lambda x: torch.std_mean(x, 1), ((4, 5),)),
    "aminmax": _Function(lambda x: torch.aminmax(x, dim=1), ((4, 5),)),
    "unbind": _Function(torch.unbind, ((3, 4),)),
    "split": _Function(lambda x: torch.split(x, 2, 1), ((3, 5),)),
    "chunk": _Function(lambda x: torch.chunk(x, 2), ((5, 3),)),
    "tensor_split": _Function(lambda x: torch.tensor_split(x, 3), ((5, 3),)),
    "foreach_mul": _Function(lambda x, y: torch._foreach_mul([x, y], [y, x]), ((3, 4), (3, 4))),
}
"""The functions, by name."""


def check_each_output(subject: Subject, name: str) -> None:
    """For each output of a function, compare the output and the gradients of the inputs with those on the CPU.

    In the backward pass, the other outputs receive no gradient. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``SEVERAL_OUTPUTS``.
    """
    function = SEVERAL_OUTPUTS[name]
    inputs = random_inputs(*function.shapes)
    for number in range(len(function.call(*inputs))):
        check_function(
            subject,
            f"{name}, output {number}",
            lambda *given: function.call(*given)[number],  # noqa: B023
            inputs,
            wanted=function.wanted,
            num_stages=function.num_stages,
        )
