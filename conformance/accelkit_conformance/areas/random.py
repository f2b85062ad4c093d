"""The same seed or saved state gives the same random numbers, each device has its own generator, and draws have the right distribution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import Case, check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_DRAWS = 20_000


@check("smoke", requires=["random_state"])
def reseeding_repeats(subject: Subject) -> None:
    """The same seed gives the same numbers, and another seed gives different numbers, whether ``manual_seed`` of the accelerator or
    ``torch.manual_seed`` sets the seed."""
    from accelkit_conformance.oracle.seeds import check_reseeding

    check_reseeding(subject)


@check("smoke")
def draws_differ(subject: Subject) -> None:
    """Two draws differ if no seed is set between them. Of the 10,000 numbers of a draw, more than 9,900 are distinct, and the second half
    does not repeat the first half."""
    import torch

    first, second = torch.rand(10_000, device=subject.device).cpu(), torch.rand(10_000, device=subject.device).cpu()
    assert not torch.equal(first, second), "two draws are equal"
    assert len(first.unique()) > 9900, f"of 10000 uniform numbers {len(first.unique())} are different"
    assert float((first[:5000] == first[5000:]).double().mean()) < 0.01, "the second half of a draw repeats the first"


@check("smoke", requires=["random_state"])
def restored_states_repeat(subject: Subject) -> None:
    """After a saved random state is restored, ``rand``, ``randn``, ``dropout`` and ``randperm`` repeat the numbers that they drew after the
    state was saved. The saved state is a uint8 tensor on the CPU, and drawing does not change this tensor."""
    from accelkit_conformance.oracle.seeds import check_restored_state

    check_restored_state(subject)


@check("smoke", requires=["random_state"])
def fork_rng_restores(subject: Subject) -> None:
    """``torch.random.fork_rng`` restores the random state of the device at the end of its block."""
    from accelkit_conformance.oracle.seeds import check_fork_rng

    check_fork_rng(subject)


@check("full", requires=["random_state"], over=names_of("first_random_calls", "FIRST_CALLS"))
def first_calls(subject: Subject, name: str) -> None:
    """In a new process, ``get_rng_state`` or ``torch.manual_seed`` is the first function that uses the random state of the device. After
    the state from before the first draw has been restored, the next draw repeats the first. A seed that is set before the device is set up
    gives the same numbers as when it is set again later. Each draw changes the state and gives new numbers, even after ``fork_rng``."""
    from accelkit_conformance.oracle.first_random_calls import check_first_call

    check_first_call(subject, name)


@check("smoke", requires=["random_state", "numbered_devices"])
def devices_have_their_own_generator(subject: Subject) -> None:
    """Drawing random numbers on one device does not change the random numbers that another device draws. If no device is passed,
    ``get_rng_state`` and ``set_rng_state`` of the device's module get and set the state of the current device."""
    import torch

    other = subject.second_device()
    subject.module.set_device(other)
    try:
        state = subject.module.get_rng_state()
        drawn, own = (torch.rand(50, device=device).cpu() for device in (other, subject.device))
        subject.module.set_rng_state(state)
    finally:
        subject.module.set_device(subject.device)
    again, next_own = (torch.rand(50, device=device).cpu() for device in (other, subject.device))
    assert torch.equal(again, drawn), f"get_rng_state and set_rng_state without a device did not restore {other}, which was current"
    assert not torch.equal(next_own, own), f"set_rng_state without a device changed {subject.device}, which was not current"
    subject.accelerator.manual_seed(11)
    expected = torch.rand(50, device=subject.device).cpu()
    subject.accelerator.manual_seed(11)
    torch.rand(1234, device=other)
    assert torch.equal(torch.rand(50, device=subject.device).cpu(), expected), f"drawing on {other} changed what {subject.device} draws"


@check("smoke")
def host_generator_is_not_used(subject: Subject) -> None:
    """``rand``, ``randn``, ``normal_`` and ``dropout`` on the device do not draw from the CPU's generator."""
    from accelkit_conformance.oracle.seeds import check_host_generator

    check_host_generator(subject)


@check("smoke", requires=["random_state"])
def generators(subject: Subject) -> None:
    """If a ``torch.Generator`` of the device is given the same seed twice, it draws the same numbers twice, even if the default generator
    draws in between. ``initial_seed`` returns the seed."""
    from accelkit_conformance.oracle.generators import check_default_and_other

    check_default_and_other(subject)


def _continuous() -> Iterator[Case]:
    from accelkit_conformance.oracle.continuous_draws import CONTINUOUS

    for number, name in enumerate(CONTINUOUS):
        yield "smoke" if number < 7 else "training", (name,)


@check("smoke", over=_continuous)
def continuous_distributions(subject: Subject, name: str) -> None:
    """20,000 draws pass the Kolmogorov-Smirnov test of the distribution (its statistic D satisfies D * sqrt(n) < 2.2), and the absolute
    value of the correlation between the quantiles of successive draws is less than 0.04. On average, correct draws fail the
    Kolmogorov-Smirnov test once in 8,000 runs."""
    from accelkit_conformance.oracle.continuous_draws import check_continuous_draws

    check_continuous_draws(subject, name, _DRAWS)


@check(
    "smoke",
    over=["bernoulli", "randint", "randperm", "multinomial", "dropout", "geometric_", "bernoulli_tensor", "random_", "poisson", "binomial"],
)
def discrete_distributions(subject: Subject, name: str) -> None:
    """In 20,000 draws, each value is as frequent as expected, within five standard deviations. ``randperm`` is called only 500 times, and
    only the first element of each permutation counts as a draw. For ``geometric_``, all values above 3 count as one value, and for
    ``poisson``, all values above 2. No value whose probability is 0 is drawn, and the result is on the device.
    """
    from accelkit_conformance.oracle.samplers import check_discrete_draws

    check_discrete_draws(subject, name, _DRAWS)


@check("training", over=["standard_gamma", "dirichlet", "normal_of_tensors"])
def moments(subject: Subject, name: str) -> None:
    """The mean of 20,000 draws is correct to within five standard errors, and their variance is correct to within 10 %."""
    from accelkit_conformance.oracle.samplers import check_moments

    check_moments(subject, name, _DRAWS)


@check("training")
def dropout_scales_and_masks(subject: Subject) -> None:
    """Dropout of a tensor of ones gives both of the values 0 and 1/(1-p), and no others. The gradient of the sum of the result is equal to
    the result, so it has the same mask. In evaluation mode, dropout changes nothing."""
    from accelkit_conformance.oracle.dropout import check_ones

    check_ones(subject)


_IN_PLACE = ("uniform_", "normal_", "exponential_", "bernoulli_", "random_", "geometric_", "cauchy_", "log_normal_")
_SAMPLERS = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "poisson", "multinomial", "multinomial_once", *_IN_PLACE)


@check("training", requires=["random_state"], over=_SAMPLERS)
def generator_argument(subject: Subject, name: str) -> None:
    """With ``generator=``, the generator alone determines the numbers: the same seed gives the same numbers, a second draw gives different
    numbers, and the device's default generator is neither used nor advanced."""
    from accelkit_conformance.oracle.samplers import check_generator_argument

    check_generator_argument(subject, name)


@check("training", requires=["random_state"], over=("rand", "randn", *_IN_PLACE))
def small_draws_repeat(subject: Subject, name: str) -> None:
    """A single random number is drawn, and then four random tensors of 1, 2, 3 and 17 elements. If the random state is set back to what it
    was before the four tensors, drawing them again gives the same numbers. Drawing the four tensors twice also gives the same numbers if
    ``manual_seed`` of the accelerator or ``torch.manual_seed`` sets the same seed each time. Except on the CPU, a state that is a row of a
    larger tensor can be restored, too."""
    from accelkit_conformance.oracle.random_states import check_small_draws

    check_small_draws(subject, name)


@check("training", over=_IN_PLACE)
def strided_destinations(subject: Subject, name: str) -> None:
    """Drawing into one column of a matrix fills all 400 elements of this column, and leaves the other columns unchanged. The column gets
    more than 20 different numbers (with ``bernoulli_``, two), and its second half does not repeat its first half. Later draws into another
    column, a transposed tensor or a contiguous tensor do not repeat the numbers of an earlier draw."""
    from accelkit_conformance.oracle.samplers import check_strided_destinations

    check_strided_destinations(subject, name)


@check("training", over=_IN_PLACE)
def many_dimensions(subject: Subject, name: str) -> None:
    """Random tensors with two to six dimensions do not repeat their numbers along any dimension: neighbouring slices differ."""
    from accelkit_conformance.oracle.samplers import check_many_dimensions

    check_many_dimensions(subject, name)


@check("training", requires=["dtype.{0}"], over=["float32", "bfloat16", "float16", "float64"])
def bounds(subject: Subject, dtype: str) -> None:
    """In float32, bfloat16, float16 and float64, 300,000 numbers drawn with ``rand`` are at least 0 and less than 1, and 300,000 numbers
    drawn with ``uniform_(-2, 3)`` are at least -2 and less than 3. In each draw, the means of the first and of the last third of the
    numbers differ by less than 1 % of the length of the interval, and the last third does not repeat the first third."""
    from accelkit_conformance.oracle.samplers import check_bounds

    check_bounds(subject, dtype)


@check("full", requires=["dtype.float32"], over=names_of("ends_of_intervals", "INTERVALS"))
def ends_of_intervals(subject: Subject, name: str) -> None:
    """All numbers of large draws are in their interval. ``rand``, ``uniform_``, ``randint`` and ``random_`` do not draw the upper end of
    their range. ``exponential_`` and ``log_normal_`` draw numbers greater than 0, and ``geometric_`` draws no negative numbers.
    ``normal_``, ``cauchy_`` and these three draw finite numbers. ``bernoulli`` draws only 0 for probabilities of 0, and only 1 for
    probabilities of 1. ``multinomial`` draws no category without weight. In float32, the draws have 4,194,304 to 67,108,864 numbers, as
    many as the device draws in 0.4 seconds. In float64, if the device has it, a draw has 4,194,304 numbers. ``multinomial`` draws a quarter
    as many numbers."""
    from accelkit_conformance.oracle.ends_of_intervals import check_ends

    check_ends(subject, name)


@check("training", requires=["dtype.int64"])
def without_replacement(subject: Subject) -> None:
    """``randperm(n)`` draws a permutation: each number from 0 to n - 1 once. The tested values of n are 1, 2, 33, 1000 and 70,000. If n is
    33 or more, the numbers are not in ascending order. ``multinomial`` without replacement draws no index twice in the same row, and never
    draws an index whose weight is zero. If as many indices are drawn as have a weight, an index with a weight of 1e-17 is drawn too."""
    from accelkit_conformance.oracle.samplers import check_without_replacement

    check_without_replacement(subject)


@check("training", requires=["random_state"])
def seeds_reach_every_device(subject: Subject) -> None:
    """``torch.manual_seed`` seeds every device. On each device, different seeds give different numbers."""
    from accelkit_conformance.oracle.seeds import check_seeds_of_devices

    check_seeds_of_devices(subject)


@check("training", requires=["random_state"])
def dropout_in_attention(subject: Subject) -> None:
    """``scaled_dot_product_attention`` with dropout gives the same result if the same seed is set again, and a different result if no seed
    is set between the calls. The mean of the result differs by less than 15 % from the mean without dropout, and the backward pass uses the
    same mask as the forward pass."""
    from accelkit_conformance.oracle.samplers import check_dropout_in_attention

    check_dropout_in_attention(subject)


@check("training", requires=["random_state"], over=["manual_seed", "manual_seed_all", "seed", "seed_all"])
def seeding_functions(subject: Subject, name: str) -> None:
    """``manual_seed`` and ``seed`` of the device's module seed the current device only; ``manual_seed_all`` and ``seed_all`` seed every
    device. ``seed`` and ``seed_all`` choose a different seed on each call."""
    from accelkit_conformance.oracle.random_states import check_seeder

    check_seeder(subject, name)


@check("training", requires=["random_state"])
def initial_seeds(subject: Subject) -> None:
    """``initial_seed`` of a generator or of the device's module returns the seed that was set, for seeds up to 2**63 - 1. After a call to
    the module's ``seed``, the module's ``initial_seed`` returns a different seed. After a call to a generator's ``seed``, the generator's
    ``initial_seed`` returns the seed that ``seed`` returned. Two generators with the same state draw the same numbers."""
    from accelkit_conformance.oracle.random_states import check_initial_seeds

    check_initial_seeds(subject)


@check("training", requires=["random_state", "numbered_devices"], over=["accelerator", "module", "name", "all", "fork_rng"])
def states_belong_to_a_device(subject: Subject, way: str) -> None:
    """While one device is current, the random state of another device can be saved and restored: with the accelerator's functions, with
    ``fork_rng``, with the device module's functions for one device (given as a ``torch.device`` or by name) and with the module's functions
    for all devices. Restoring only the state of the other device does not change the numbers that the current device draws."""
    from accelkit_conformance.oracle.random_states import check_state_of_a_device

    check_state_of_a_device(subject, way)


@check("full", requires=["random_state"], over=names_of("random_calls", "RANDOM_CALLS"))
def random_calls(subject: Subject, name: str) -> None:
    """If the same seed or state is set again, a call that draws random numbers gives the same results again; otherwise, it gives other
    results. The call is, for example, a sampler, a layer with dropout, ``Distribution.sample`` or a function of ``torch.nn.init``. The call
    does not draw from the CPU's generator. A call on a device that is not current draws from the generator of its own device, and gives the
    same results as when this device is current."""
    from accelkit_conformance.oracle.random_calls import check_random_call

    check_random_call(subject, name)


@check("full", requires=["random_state"], over=names_of("vectorized_draws", "FUNCTIONS"))
def vectorized_draws(subject: Subject, name: str) -> None:
    """Under ``torch.vmap``, a random function draws different numbers for each of three equal inputs with ``randomness="different"``, and
    the same numbers for all with ``randomness="same"``. With ``randomness="error"``, it raises RuntimeError. Either three equal inputs are
    stacked, or one input is shared by all three calls. Calls that raise an error on the CPU are left out. The same seed gives the same
    results again."""
    from accelkit_conformance.oracle.vectorized_draws import check_vectorized_draws

    check_vectorized_draws(subject, name)


@check("full", requires=["random_state"])
def whole_seeds(subject: Subject) -> None:
    """Seeds that differ only above the lower 32 bits, or in their sign, give different numbers. Devices that draw the same numbers as
    torch's CPU generator are not tested, because this generator uses only 32 bits of a seed."""
    from accelkit_conformance.oracle.random_calls import check_whole_seeds

    check_whole_seeds(subject)


@check("full", requires=["random_state"])
def states_of_generators(subject: Subject) -> None:
    """After a ``torch.Generator`` has drawn numbers, its state is saved and the generator is cloned. Then the generator draws further
    numbers. The same numbers are drawn by the clone, by another generator that is set to the saved state, and by the first generator after
    it is set back to this state. Drawing does not change the saved state."""
    from accelkit_conformance.oracle.generators import check_states_of_generators

    check_states_of_generators(subject)


@check("full", requires=["random_state"])
def seeds_of_generators(subject: Subject) -> None:
    """A ``torch.Generator`` has the device type for which it was created. Generators created for a ``torch.device`` and for its name, such
    as ``acme:0``, have the same device. Samplers draw the same numbers with a generator that was created for a device without an index,
    such as ``acme``, as with one that was created for the current device. ``manual_seed`` returns the generator, and accepts negative seeds
    and seeds up to 2**64 - 1. ``initial_seed`` returns the seed modulo 2**64. ``seed`` sets another seed each time and returns it, and the
    generator then draws the numbers of this seed."""
    from accelkit_conformance.oracle.generators import check_seeds_of_generators

    check_seeds_of_generators(subject)


@check("full", requires=["random_state"])
def wrong_generators(subject: Subject) -> None:
    """``set_state`` with a state of the wrong size or dtype raises RuntimeError, TypeError or ValueError, and leaves the generator
    unchanged. A sampler on the device with a generator of the CPU raises one of these errors, and draws nothing from this generator. A
    sampler on the CPU with a generator of the device also raises one of these errors."""
    from accelkit_conformance.oracle.generators import check_wrong_generators

    check_wrong_generators(subject)
