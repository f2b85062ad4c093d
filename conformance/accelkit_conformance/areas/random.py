"""The same seed or saved state gives the same random numbers, each device has its own generator, and draws have the right distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check
from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_DRAWS = 20_000


@check("smoke", requires=["random_state"])
def reseeding_repeats(subject: Subject) -> None:
    """The same seed gives the same numbers and another seed gives different numbers, whether ``manual_seed`` of the accelerator or
    ``torch.manual_seed`` sets the seed."""
    import torch

    def drawn(seed: int, seeder: Callable[[int], Any]) -> torch.Tensor:
        seeder(seed)
        return torch.rand(1000, device=subject.device).cpu()

    for name, seeder in {"accelerator.manual_seed": subject.accelerator.manual_seed, "torch.manual_seed": torch.manual_seed}.items():
        first = drawn(5, seeder)
        assert torch.equal(first, drawn(5, seeder)), f"{name}(5) twice gave different numbers"
        assert not torch.equal(first, drawn(6, seeder)), f"{name}(5) and (6) gave the same numbers"


@check("smoke")
def draws_differ(subject: Subject) -> None:
    """Two draws without seeding in between differ. Of the 10,000 numbers of a draw, more than 9,900 are distinct, and the second half does
    not repeat the first half."""
    import torch

    first, second = torch.rand(10_000, device=subject.device).cpu(), torch.rand(10_000, device=subject.device).cpu()
    assert not torch.equal(first, second), "two draws are equal"
    assert len(first.unique()) > 9900, f"of 10000 uniform numbers {len(first.unique())} are different"
    assert float((first[:5000] == first[5000:]).double().mean()) < 0.01, "the second half of a draw repeats the first"


@check("smoke", requires=["random_state"])
def restored_states_repeat(subject: Subject) -> None:
    """After a saved random state is restored, ``rand``, ``randn``, ``dropout`` and ``randperm`` repeat the numbers that they drew after the
    state was saved. The saved state is a uint8 tensor on the CPU, and drawing does not change this tensor."""
    import torch

    accelerator, device = subject.accelerator, subject.device

    def draw() -> list[torch.Tensor]:
        drawn = [torch.rand(7, device=device).cpu(), torch.randn(501, device=device).cpu()]
        if not subject.lacks("bool"):
            drawn.append(torch.nn.functional.dropout(torch.ones(100, device=device)).cpu())
        if not subject.lacks("int64"):
            drawn.append(torch.randperm(20, device=device).cpu())
        return drawn

    torch.rand(13, device=device)
    state = accelerator.get_rng_state(device)
    if state is None:
        raise Absent("there is no random state")
    assert state.device.type == "cpu", f"the state is on {state.device}"
    assert state.dtype == torch.uint8, f"the state is {state.dtype}"
    kept = state.clone()
    first = draw()
    assert torch.equal(state, kept), "drawing changed the state that was read, which is not a copy"
    accelerator.set_rng_state(kept, device)
    for number, (one, other) in enumerate(zip(first, draw(), strict=True)):
        assert torch.equal(one, other), f"draw {number} after setting the state differs from the one before"


@check("smoke", requires=["random_state"])
def fork_rng_restores(subject: Subject) -> None:
    """``torch.random.fork_rng`` restores the random state of the device."""
    import torch

    if subject.device_type == "cpu":
        context = torch.random.fork_rng(devices=[])
    else:
        context = torch.random.fork_rng(devices=[subject.device.index or 0], device_type=subject.device_type)
    subject.accelerator.manual_seed(3)
    expected = torch.rand(5, device=subject.device).cpu()
    subject.accelerator.manual_seed(3)
    with context:
        torch.rand(100, device=subject.device)
        subject.accelerator.manual_seed(99)
    assert torch.equal(torch.rand(5, device=subject.device).cpu(), expected), "draws inside fork_rng changed the draws after it"


@check("smoke", requires=["random_state", "numbered_devices"])
def devices_have_their_own_generator(subject: Subject) -> None:
    """Drawing on one device does not change the numbers that another device draws."""
    import torch

    other = subject.second_device()
    subject.accelerator.manual_seed(11)
    expected = torch.rand(50, device=subject.device).cpu()
    subject.accelerator.manual_seed(11)
    torch.rand(1234, device=other)
    assert torch.equal(torch.rand(50, device=subject.device).cpu(), expected), f"drawing on {other} changed what {subject.device} draws"


@check("smoke")
def host_generator_is_not_used(subject: Subject) -> None:
    """``rand``, ``randn``, ``normal_`` and ``dropout`` on the device do not draw from the CPU's generator."""
    import torch

    if subject.device_type == "cpu":
        return
    before = torch.default_generator.get_state()
    x = torch.rand(100, device=subject.device)
    draws = {"rand": lambda: torch.rand(100, device=subject.device), "randn": lambda: torch.randn(100, device=subject.device)}
    draws |= {"normal_": x.normal_}
    if not subject.lacks("bool"):
        draws["dropout"] = lambda: torch.nn.functional.dropout(x)
    for name, draw in draws.items():
        draw()
        assert torch.equal(torch.default_generator.get_state(), before), f"{name} on the device drew from the CPU's generator"


@check("smoke", requires=["random_state"])
def generators(subject: Subject) -> None:
    """If a ``torch.Generator`` of the device is given the same seed twice, it draws the same numbers twice, even if the default generator
    draws in between. ``initial_seed`` returns the seed."""
    import torch

    generator = torch.Generator(device=subject.device)
    generator.manual_seed(4)
    first = torch.rand(20, device=subject.device, generator=generator).cpu()
    generator.manual_seed(4)
    torch.rand(20, device=subject.device)
    assert torch.equal(torch.rand(20, device=subject.device, generator=generator).cpu(), first)
    assert generator.initial_seed() == 4


@check("smoke", over=["rand", "randn", "uniform_", "normal_", "exponential_", "cauchy_", "log_normal_"])
def continuous_distributions(subject: Subject, name: str) -> None:
    """20,000 draws pass the Kolmogorov-Smirnov test of the distribution (its statistic D satisfies D * sqrt(n) < 2.2), and successive draws
    are not correlated. Correct draws fail the Kolmogorov-Smirnov test once in 8,000 runs."""
    import torch

    from accelkit_conformance.oracle.samplers import continuous_draws

    drawn, distribution = continuous_draws(subject, name, _DRAWS)
    subject.assert_on_device(drawn)
    values = drawn.cpu().double().sort()[0]
    expected = distribution(values)
    steps = torch.arange(_DRAWS, dtype=torch.float64) / _DRAWS
    distance = float(torch.maximum((expected - steps).abs(), (expected - steps - 1 / _DRAWS).abs()).max())
    assert distance * math.sqrt(_DRAWS) < 2.2, f"{name}: the greatest distance between the distributions is {distance:.4f}"
    lag = values.new_tensor(drawn.cpu().double().clamp(-10, 10).tolist())
    correlation = float(torch.corrcoef(torch.stack([lag[:-1], lag[1:]]))[0, 1])
    assert abs(correlation) < 0.04, f"{name}: neighbours are correlated, {correlation:.3f}"


@check(
    "smoke",
    over=["bernoulli", "randint", "randperm", "multinomial", "dropout", "geometric_", "bernoulli_tensor", "random_", "poisson", "binomial"],
)
def discrete_distributions(subject: Subject, name: str) -> None:
    """Among 20,000 draws, or 500 draws of ``randperm``, each value has its expected frequency, within five standard deviations."""
    from accelkit_conformance.oracle.samplers import check_discrete_draws

    check_discrete_draws(subject, name, _DRAWS)


@check("training", over=["standard_gamma", "dirichlet", "normal_of_tensors"])
def moments(subject: Subject, name: str) -> None:
    """The mean of 20,000 draws is correct to within five standard errors, and their variance is correct to within 10 %."""
    from accelkit_conformance.oracle.samplers import check_moments

    check_moments(subject, name, _DRAWS)


@check("training")
def dropout_scales_and_masks(subject: Subject) -> None:
    """Dropout of a tensor of ones gives only the values 0 and 1/(1-p). The gradient of this tensor has the same mask as the result. In
    evaluation mode, dropout changes nothing."""
    import torch

    x = torch.ones(5000, device=subject.device, requires_grad=True)
    layer = torch.nn.Dropout(0.2)
    y = layer(x)
    assert sorted(y.detach().cpu().unique().tolist()) == [0.0, 1.25]
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu()), "the gradient's mask is not the result's"
    assert torch.equal(layer.eval()(x).cpu(), x.cpu())


_IN_PLACE = ("uniform_", "normal_", "exponential_", "bernoulli_", "random_", "geometric_", "cauchy_", "log_normal_")
_SAMPLERS = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "poisson", "multinomial", *_IN_PLACE)


@check("training", requires=["random_state"], over=_SAMPLERS)
def generator_argument(subject: Subject, name: str) -> None:
    """With ``generator=``, the generator alone determines the numbers: the same seed gives the same numbers, the next draw
    differs, and the device's default generator is neither used nor advanced."""
    from accelkit_conformance.oracle.samplers import check_generator_argument

    check_generator_argument(subject, name)


@check("training", requires=["random_state"], over=("rand", "randn", *_IN_PLACE))
def small_draws_repeat(subject: Subject, name: str) -> None:
    """Random tensors of 1, 2, 3 and 17 elements are drawn one after another. If ``manual_seed`` of the accelerator or ``torch.manual_seed``
    sets the same seed again, or if the random state from before these draws and after another single draw is restored, the same draws
    give the same numbers."""
    from accelkit_conformance.oracle.random_states import check_small_draws

    check_small_draws(subject, name)


@check("training", over=_IN_PLACE)
def strided_destinations(subject: Subject, name: str) -> None:
    """Drawing into one column of a matrix fills all elements of this column, and leaves the other columns unchanged. The numbers are not
    all equal, and the second half of the column does not repeat the first half. The next draws, into another column, a transposed tensor
    and a contiguous tensor, do not repeat the numbers of an earlier draw."""
    from accelkit_conformance.oracle.samplers import check_strided_destinations

    check_strided_destinations(subject, name)


@check("training", requires=["dtype.{0}"], over=["float32", "bfloat16", "float16", "float64"])
def bounds(subject: Subject, dtype: str) -> None:
    """In every dtype, 300,000 numbers drawn with ``rand`` are at least 0 and less than 1, and numbers drawn with ``uniform_(-2, 3)`` are
    at least -2 and less than 3. The means of the first and of the last third of the numbers differ by less than 1 % of the interval, and
    the last third does not repeat the first third."""
    from accelkit_conformance.oracle.samplers import check_bounds

    check_bounds(subject, dtype)


@check("training", requires=["dtype.int64"])
def without_replacement(subject: Subject) -> None:
    """For up to 70,000 numbers, a permutation that ``randperm`` draws contains each number once. A permutation of 33 or more numbers is not
    in ascending order. ``multinomial`` without replacement draws no index twice in the same row, and never draws an index whose weight is
    zero."""
    from accelkit_conformance.oracle.samplers import check_without_replacement

    check_without_replacement(subject)


@check("training", requires=["random_state"])
def seeds_reach_every_device(subject: Subject) -> None:
    """``torch.manual_seed`` seeds every device, and different seeds give different numbers on each device."""
    import torch

    for device in subject.devices:
        drawn = []
        for seed in (7, 7, 8, 0, 2**31):
            torch.manual_seed(seed)
            drawn.append(torch.rand(50, device=device).cpu())
        assert torch.equal(drawn[0], drawn[1]), f"torch.manual_seed does not seed {device}"
        assert len(torch.stack(drawn).unique(dim=0)) == 4, f"different seeds give the same numbers on {device}"


@check("training", requires=["random_state"])
def dropout_in_attention(subject: Subject) -> None:
    """``scaled_dot_product_attention`` with dropout gives the same result if the same seed is set again, and a different result if no seed
    is set between two calls. The mean of the result differs by less than 15 % from the mean without dropout, and the gradient has the mask
    of the forward pass."""
    from accelkit_conformance.oracle.samplers import check_dropout_in_attention

    check_dropout_in_attention(subject)


@check("training", requires=["random_state"], over=["manual_seed", "manual_seed_all", "seed", "seed_all"])
def seeding_functions(subject: Subject, name: str) -> None:
    """``manual_seed`` and ``seed`` of the device's module seed the current device only; ``manual_seed_all`` and ``seed_all`` seed every
    device. ``seed`` and ``seed_all`` choose another seed each time."""
    from accelkit_conformance.oracle.random_states import check_seeder

    check_seeder(subject, name)


@check("training", requires=["random_state"])
def initial_seeds(subject: Subject) -> None:
    """``initial_seed`` of a generator or of the device's module returns the seed that was set, for seeds up to 2**63 - 1. After a call to
    ``seed``, ``initial_seed`` returns a different seed. Two generators with the same state draw the same numbers."""
    from accelkit_conformance.oracle.random_states import check_initial_seeds

    check_initial_seeds(subject)


@check("training", requires=["random_state", "numbered_devices"], over=["accelerator", "module", "name", "all", "fork_rng"])
def states_belong_to_a_device(subject: Subject, way: str) -> None:
    """While one device is current, the random state of another device can be saved and restored: with the accelerator's functions, with
    ``fork_rng``, with the device module's functions for one device (given as a ``torch.device`` or by name) and with those for all devices.
    Restoring only the state of the other device does not change the numbers that the current device draws."""
    from accelkit_conformance.oracle.random_states import check_state_of_a_device

    check_state_of_a_device(subject, way)
