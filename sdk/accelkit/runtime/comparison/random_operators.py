"""Checks of operators that draw random numbers.

The results must not contain NaN, unless the inputs do. For ``bernoulli_`` with a single probability, the share of ones among the drawn
numbers must agree with this probability. For dropout, the share of ones in the mask must agree with ``1 - p`` in training and be 1
otherwise, and the output must agree with the mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from accelkit.runtime.comparison.operator_call import OperatorCall, Outcome
from accelkit.runtime.comparison.tolerance import difference

_DEVIATIONS = 6.0
_HOST = torch.default_generator.device
ONLY_NAN = "it draws random numbers: only checked for NaN"
STATISTICS = "it draws random numbers: checked by statistics"


def is_random(operator: Any) -> bool:
    """Return whether an operator may draw from a generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def wrong_draws(call: OperatorCall, found: Outcome) -> tuple[str, str]:
    """Check the results of an operator that draws random numbers.

    Returns:
        Two strings. The first describes what is wrong with the results; it is empty if no error was found. The second says what was
        checked: ONLY_NAN or STATISTICS.
    """
    results = [one.detach().to(_HOST) for one in found.results if isinstance(one, torch.Tensor)]
    has_nan = any(tensor.is_floating_point() and bool(tensor.isnan().any()) for tensor in call.given_inputs)
    for number, result in enumerate(results):
        if result.is_floating_point() and bool(result.isnan().any()) and not has_nan:
            return f"result {number} has NaN in {int(result.isnan().sum())} of {result.numel()} elements", ONLY_NAN
    args = call.given[0]
    if call.name == "aten::native_dropout" and len(results) == 2:
        return _wrong_dropout(args[0], float(args[1]), args[2] is not False, results[0], results[1]), STATISTICS
    if call.name == "aten::bernoulli_" and len(args) > 1 and isinstance(args[1], float):
        return _wrong_share(results[0].double(), args[1]), STATISTICS
    return "", ONLY_NAN


def _wrong_dropout(values: torch.Tensor, p: float, is_training: bool, found: torch.Tensor, mask: torch.Tensor) -> str:
    """Return a description of what is wrong with the results of a dropout, or an empty string if no error was found.

    In training, the mask must keep a share of about 1 - p of the elements. The kept elements must be scaled by 1 / (1 - p), and all other
    elements must be 0. Outside of training, the mask must keep all elements, and they must not be scaled.
    """
    scale = 1.0 if not is_training else 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    truth = values.double() * mask.double() * scale
    if text := difference(found, truth.to(found.dtype), truth):
        return f"for the mask that it drew, {text}"
    return _wrong_share(mask.double(), 1.0 - p if is_training else 1.0)


def _wrong_share(drawn: torch.Tensor, probability: float) -> str:
    if not drawn.numel():
        return ""
    if bool(((drawn != 0) & (drawn != 1)).any()):
        return "a drawn value is neither 0 nor 1"
    share, deviation = float(drawn.mean()), math.sqrt(probability * (1 - probability) / drawn.numel())
    if abs(share - probability) <= _DEVIATIONS * deviation + 1e-12:
        return ""
    return f"the share of ones is {share:.3g} in {drawn.numel()} draws, and the probability is {probability:.3g}"
