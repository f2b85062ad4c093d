"""Calls that must raise an error because an argument has one element or row instead of several, although it could be broadcast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.programs import integers


def _call_with_one_row_of_states(cell: Callable[..., Any], num_gates: int, x: torch.Tensor) -> Any:
    """Call a recurrent cell with two rows of two numbers, but with states of one row."""
    states = x[:2].view(1, 2)
    return cell(x.view(2, 2), [states, states] if num_gates == 4 else states, *[x.new_ones(2 * num_gates, 2)] * 2)


SINGLE_ELEMENTS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "dot of one factor": lambda x: x.dot(x[:1]),
    "addmv with a vector of one number": lambda x: torch.addmv(x[:2], x.view(2, 2), x[:1]),
    "conv1d with one bias for two channels": lambda x: F.conv1d(x.view(1, 1, 4), x.view(2, 1, 2), x[:1]),
    "batch_norm with one mean for two channels": lambda x: F.batch_norm(x.view(2, 2), x[:1], x[:2]),
    "batch_norm with one weight for two channels": lambda x: F.batch_norm(x.view(2, 2), x[:2], x[:2], x[:1]),
    "layer_norm with one weight for four columns": lambda x: F.layer_norm(x.view(1, 4), (4,), x[:1]),
    "nll_loss with one target for two rows": lambda x: F.nll_loss(x.view(2, 2), integers(x, 1)),
    "nll_loss with one weight for two classes": lambda x: F.nll_loss(x.view(2, 2), integers(x, 1, 0), x[:1]),
    "embedding_bag with one weight for two indices": lambda x: F.embedding_bag(
        integers(x, 1, 0), x.view(2, 2), integers(x, 0), mode="sum", per_sample_weights=x[:1]
    ),
    **{
        f"{cell.__name__} with one row of states for two rows": functools.partial(_call_with_one_row_of_states, cell, num_gates)
        for cell, num_gates in ((torch.rnn_tanh_cell, 1), (torch.rnn_relu_cell, 1), (torch.gru_cell, 3), (torch.lstm_cell, 4))
    },
}
"""The calls, by name. Each is called with a tensor of four ones."""
