"""Calls that draw random numbers, and checks that these numbers depend only on the state of the device's generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[Any], Any]
_NUM_DRAWS = 5000


def _positive(device: Any) -> torch.Tensor:
    return (torch.arange(60.0) % 9 + 1).view(3, 20).to(device)


def _image(device: Any) -> torch.Tensor:
    return (torch.arange(3 * 8 * 6 * 6.0) % 13 - 6).view(3, 8, 6, 6).to(device)


def _initialized(initialize: Callable[[torch.Tensor], Any]) -> _Call:
    return lambda device: initialize(torch.empty(8, 9, device=device))


def _module(make: Callable[[], nn.Module], *shape: int) -> _Call:
    """Return a call to a module in training mode. The module's weights and its argument are always the same."""

    def call(device: Any) -> Any:
        module = make()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_((torch.arange(parameter.numel()) % 7 - 3).view(parameter.shape) / 10)
        return module.to(device).train()((torch.arange(float(torch.Size(shape).numel())) % 5 - 2).view(shape).to(device))

    return call


def _without_advancing(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that calls ``make`` and restores the state of the CPU's generator afterwards."""

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            return make()

    return made


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x)


RANDOM_CALLS: dict[str, _Call] = {
    "rand_like": lambda device: torch.rand_like(_positive(device)),
    "randn_like": lambda device: torch.randn_like(_positive(device)),
    "randint": lambda device: torch.randint(-50, 1000, (40,), device=device),
    "randint_like": lambda device: torch.randint_like(_positive(device), 1000),
    "randperm": lambda device: torch.randperm(300, device=device),
    "normal": lambda device: torch.normal(2.0, 3.0, (40,), device=device),
    "normal_of_tensors": lambda device: torch.normal(_positive(device), _positive(device)),
    "bernoulli": lambda device: torch.bernoulli(_positive(device) / 20),
    "bernoulli_of_tensor": lambda device: torch.zeros(3, 20, device=device).bernoulli_(_positive(device) / 20),
    "poisson": lambda device: torch.poisson(_positive(device) * 5),
    "binomial": lambda device: torch.binomial(_positive(device) * 10, _positive(device) / 20),
    "multinomial": lambda device: torch.multinomial(_positive(device), 9),
    "multinomial_one": lambda device: torch.multinomial(_positive(device).repeat(20, 1), 1),
    "multinomial_repeated": lambda device: torch.multinomial(_positive(device), 30, replacement=True),
    "standard_gamma": lambda device: torch._standard_gamma(_positive(device)),
    "dirichlet": lambda device: torch._sample_dirichlet(_positive(device)),
    "dropout": lambda device: F.dropout(_image(device)),
    "dropout_in_place": lambda device: F.dropout(_image(device), inplace=True),
    "dropout1d": lambda device: F.dropout1d(_image(device)[..., 0]),
    "dropout2d": lambda device: F.dropout2d(_image(device)),
    "dropout3d": lambda device: F.dropout3d(_image(device)[..., None]),
    "alpha_dropout": lambda device: F.alpha_dropout(_image(device), training=True),
    "feature_alpha_dropout": lambda device: F.feature_alpha_dropout(_image(device), training=True),
    "rrelu": lambda device: F.rrelu(_image(device), training=True),
    "gumbel_softmax": lambda device: F.gumbel_softmax(_image(device), dim=1),
    "fractional_max_pool2d": lambda device: F.fractional_max_pool2d(
        torch.arange(80 * 529.0, device=device).view(10, 8, 23, 23), 2, output_size=7
    ),
    "LSTM": _module(_without_advancing(lambda: nn.LSTM(5, 6, num_layers=2, dropout=0.5)), 7, 3, 5),
    "MultiheadAttention": _module(_without_advancing(_SelfAttention), 5, 3, 8),
    "TransformerEncoderLayer": _module(_without_advancing(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5)), 5, 3, 8),
    "uniform": _initialized(nn.init.uniform_),
    "trunc_normal": _initialized(nn.init.trunc_normal_),
    "kaiming_uniform": _initialized(nn.init.kaiming_uniform_),
    "xavier_normal": _initialized(nn.init.xavier_normal_),
    "Linear": lambda device: nn.Linear(9, 9, device=device).weight.detach(),
    "Normal": lambda device: torch.distributions.Normal(_positive(device), 2.0).rsample(),
    "Categorical": lambda device: torch.distributions.Categorical(_positive(device)).sample(torch.Size((9,))),
    "Exponential": lambda device: torch.distributions.Exponential(_positive(device)).sample(),
    "Gamma": lambda device: torch.distributions.Gamma(_positive(device), 2.0).sample(),
    "Beta": lambda device: torch.distributions.Beta(_positive(device), 2.0).sample(),
    "MultivariateNormal": lambda device: torch.distributions.MultivariateNormal(
        torch.zeros(3, device=device), torch.eye(3, device=device)
    ).sample(),
}
"""Calls that draw random numbers on a device, by name."""


def check_random_call(subject: Subject, name: str) -> None:
    """Check that the results of a random call depend only on the generator of the call's device.

    The same seed or state must give the same numbers again. Two successive calls, and calls after different seeds, must give different
    numbers.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the call in ``RANDOM_CALLS``.

    Raises:
        AssertionError: If the same seed or state gives different numbers, if two successive calls or two seeds give the same numbers, or if
            the call uses the generator of the CPU or of another device.
        NotSupported: If the device lacks a dtype that the call needs, or does not implement the call.
    """
    require_dtypes(subject, lambda: RANDOM_CALLS[name](torch.device("cpu")))
    accelerator, device = subject.accelerator, subject.device

    def draw() -> list[torch.Tensor]:
        found = [one.detach() for one in tensors(RANDOM_CALLS[name](device))]
        subject.assert_on_device(*found)
        return [one.cpu().clone() for one in found]

    def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, one, other))

    accelerator.manual_seed(17)
    before = torch.default_generator.get_state()
    try:
        first = draw()
    except NotImplementedError as error:
        raise NotSupported(f"the device does not implement {name}: {error}") from error
    is_host_used = subject.device_type != "cpu" and not torch.equal(torch.default_generator.get_state(), before)
    assert not is_host_used, f"{name} on the device drew from the CPU's generator"
    state = accelerator.get_rng_state(device)
    second = draw()
    assert not are_equal(first, second), f"two calls to {name} drew the same numbers"
    if state is not None:
        accelerator.set_rng_state(state, device)
        assert are_equal(draw(), second), f"{name} draws other numbers after the state has been restored"
    accelerator.manual_seed(17)
    assert are_equal(draw(), first), f"{name} draws other numbers after the same seed"
    assert are_equal(draw(), second), f"the second call to {name} after the same seed draws other numbers"
    accelerator.manual_seed(18)
    assert not are_equal(draw(), first), f"{name} draws the same numbers after another seed"
    if state is not None and subject.capabilities.can("numbered_devices") and len(subject.devices) > 1:
        _check_other_device(subject, name)


def _check_other_device(subject: Subject, name: str) -> None:
    """Check that a call on a device that is not current draws from the generator of that device, not of the current device."""
    accelerator, other = subject.accelerator, subject.second_device()
    state, mine = accelerator.get_rng_state(other), accelerator.get_rng_state(subject.device)
    first = [one.detach().cpu() for one in tensors(RANDOM_CALLS[name](other))]
    is_used = not torch.equal(accelerator.get_rng_state(subject.device), mine)
    assert not is_used, f"{name} on {other} drew from the generator of {subject.device}, which was current"
    accelerator.set_rng_state(state, other)
    with subject.module.device(other):
        second = [one.detach().cpu() for one in tensors(RANDOM_CALLS[name](other))]
    assert all(map(torch.equal, first, second)), f"{name} on {other} draws different numbers when {other} is current"


_BETWEEN: dict[str, _Call] = {
    "rand": lambda device: torch.rand(_NUM_DRAWS, device=device),
    "rand of 7": lambda device: torch.rand(7, device=device),
    "rand of 1": lambda device: torch.rand(1, device=device),
    "uniform_": lambda device: torch.zeros(_NUM_DRAWS, device=device).uniform_(),
    "uniform_ of a column": lambda device: torch.zeros(_NUM_DRAWS, 2, device=device)[:, 0].uniform_(),
    "rand of a matrix": lambda device: torch.rand(100, 50, device=device),
    "uniform_ of a transposed matrix": lambda device: torch.zeros(50, 100, device=device).t().uniform_(),
    "rand_like": lambda device: torch.rand_like(torch.zeros(_NUM_DRAWS, device=device)),
}
"""Draws of uniform random numbers from 0 to 1, by name."""


def check_numbers_are_new(subject: Subject) -> None:
    """Check that any two draws of uniform random numbers have fewer than 40 numbers in common.

    The positions of the numbers within the draws do not matter.

    Raises:
        AssertionError: If two draws have 40 or more numbers in common.
    """
    seen: dict[str, set[float]] = {}

    def add(name: str, drawn: torch.Tensor) -> None:
        numbers = set(drawn.cpu().flatten().tolist())
        for earlier, others in seen.items():
            common = len(numbers & others)
            assert common < 40, f"{common} of the {len(numbers)} numbers of {name} were also drawn by {earlier}"
        seen[name] = numbers

    for turn in ("the first", "the second"):
        for name, draw in _BETWEEN.items():
            add(f"{turn} {name}", draw(subject.device))
        F.dropout(torch.ones(11, device=subject.device)) if not subject.lacks("bool") else None
        torch.randn(33, device=subject.device)


def check_whole_seeds(subject: Subject) -> None:
    """Check that all 64 bits of a seed matter, for the default generator and for other generators.

    Raises:
        AssertionError: If two seeds give the same numbers.
        NotSupported: If the device draws the same numbers as the CPU, whose generator uses only 32 bits of a seed.
    """
    subject.accelerator.manual_seed(7)
    if torch.equal(torch.rand(50, device=subject.device).cpu(), torch.rand(50, generator=torch.Generator().manual_seed(7))):
        raise NotSupported("the device draws the numbers of torch's generator for the CPU, which uses only the lower 32 bits of a seed")
    drawn: dict[int, list[torch.Tensor]] = {}
    for seed in (7, 7 + 2**32, 7 + 2**40, 7 + 2**62, -7, 2**63 + 7):
        subject.accelerator.manual_seed(seed)
        generator = torch.Generator(device=subject.device).manual_seed(seed)
        drawn[seed] = [torch.rand(50, device=subject.device).cpu(), torch.rand(50, device=subject.device, generator=generator).cpu()]
        for earlier, numbers in drawn.items():
            for one, other, what in zip(drawn[seed], numbers, ("manual_seed", "a generator"), strict=True):
                assert earlier == seed or not torch.equal(one, other), f"the seeds {earlier} and {seed} give the same numbers with {what}"
