"""Samplers and dropout draw from the right distribution in every dtype, with parameters that are tensors, and in special cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import check
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("full", over=names_of("distributions", "TENSOR_PARAMETERS"))
def tensor_parameters(subject: Subject, name: str) -> None:
    """A sampler whose parameters are tensors draws each element of its result with the parameter at the same position. The parameters have
    four different values, and their tensors are contiguous, expanded, transposed or strided. For each value, the mean of 4,000 numbers is
    correct to within six standard errors, and their variance is correct to within 30 %. For gamma distributions with shapes of 0.1 or less,
    this applies to the share of numbers above 1e-6. The tested dtypes are float32 and, with contiguous parameters, float64, if the device
    declares it. Rates of ``poisson`` above a million are tested in float64 only."""
    from accelkit_conformance.oracle.distributions import check_tensor_parameters

    check_tensor_parameters(subject, name)


@check("full", requires=["dtype.{0}"], over=DTYPES)
def dtypes_of_samplers(subject: Subject, dtype: str) -> None:
    """Samplers draw numbers of the tested dtype. All 20,000 numbers of a draw are finite, and their mean is correct to within six standard
    errors plus the rounding error of the dtype. ``random_`` without arguments draws integers from 0 to n. For a floating-point dtype, n is
    the end of the range in which the dtype represents every integer, such as 2**24 for float32. For integers and bool, n is the largest
    value of the dtype. No number is outside the range from 0 to n, the largest number drawn is at most 2 % below n, and the mean is correct
    to within six standard errors. From ranges such as -100 to -8, ``random_`` and ``randint`` draw every integer, and no other number. For
    int64 and float64, some of the ranges start at 2**40 or -2**40. Ranges are not tested in uint8 and bool. In complex dtypes, the samplers
    are ``rand``, ``rand_like``, ``randn``, ``randn_like``, ``uniform_``, ``normal_`` and ``normal``. The means of the real and of the
    imaginary part are correct to within six standard errors, their variances are correct to within 10 %, and their correlation is between
    -0.043 and 0.043."""
    from accelkit_conformance.oracle.distributions import check_dtype_of_samplers

    check_dtype_of_samplers(subject, dtype)


@check("full", requires=["dtype.int64"])
def wide_ranges(subject: Subject) -> None:
    """``randint`` and ``random_`` draw int64 numbers from ranges of 8 to 2**63 integers. Some ranges begin with a negative number, and one
    begins with 2**40. All numbers are in the range. The start of the range is subtracted from each of 20,000 numbers. In these
    differences, each bit is set half of the time, to within six standard errors.
    """
    from accelkit_conformance.oracle.distributions import check_wide_ranges

    check_wide_ranges(subject)


@check("full")
def certain_outcomes(subject: Subject) -> None:
    """Calls that can have only one result return that result, with the right dtype and shape. Samplers are called with probabilities of 0
    and 1, standard deviations and rates of 0, ranges of one number, one nonzero weight among up to 65,537, and with empty results and empty
    parameters. Dropout is called with ``p=0``, with ``p=1`` and outside training. ``rrelu`` is called with equal lower and upper bounds for
    the slope."""
    from accelkit_conformance.oracle.certain_outcomes import check_certain_outcomes

    check_certain_outcomes(subject)


@check("full", requires=["dtype.int64"])
def rare_categories(subject: Subject) -> None:
    """``multinomial`` draws one or two samples, with and without replacement, for each of 4,000 rows of weights. Most of the weights are
    zero, and no category whose weight is zero is drawn. Three of the other categories are drawn as often as expected, to within six
    standard errors; only the first sample of each row is counted. Weights of each declared floating-point dtype are tested; in float16 and
    bfloat16, only two samples with replacement are drawn.

    From four weights, 20,000 pairs are drawn without replacement, and each pair is as frequent as expected, to within six standard errors.
    From a million equal weights, a million samples are drawn with replacement. Each of the ten first digits and each of the ten last digits
    of the categories' six-digit numbers is equally frequent, to within six standard errors plus 1 %, and the number of distinct categories
    is correct to within 1 %.
    """
    from accelkit_conformance.oracle.distributions import check_rare_categories

    check_rare_categories(subject)


@check("full")
def numbers_are_new(subject: Subject) -> None:
    """Any two of sixteen draws of uniform random numbers have fewer than 40 numbers in common. The position of a number in its draw does
    not matter. The draws have 1 to 5,000 numbers and several layouts. Between the first eight draws and the last eight, dropout and
    ``randn`` draw numbers as well.
    """
    from accelkit_conformance.oracle.random_calls import check_numbers_are_new

    check_numbers_are_new(subject)


@check("full", requires=["random_state", "dtype.bool"], over=names_of("dropout", "DROPOUTS"))
def every_dropout(subject: Subject, name: str) -> None:
    """Each kind of dropout drops the expected share of the elements or of whole channels, in every part of the input, and scales the
    others. Elements or channels are dropped independently of each other: two neighbours are both dropped or both kept as often as expected,
    and the second half of the mask does not repeat the first. The same seed gives the same mask, whatever the values of the input. The
    gradient has the mask of the forward pass, even where the input is zero. The inputs are contiguous, channels last, transposed or
    strided. They are tested in float32 and, where declared, in float16, bfloat16 and float64."""
    from accelkit_conformance.oracle.dropout import check_dropout

    check_dropout(subject, name)


@check("full", requires=["dtype.int64"])
def large_draws(subject: Subject) -> None:
    """In draws of 16,777,244 numbers with ``rand``, ``randn``, ``bernoulli_``, ``randint`` and dropout, the mean of the last 300,000
    numbers is correct to within six standard errors. For ``rand``, ``randn`` and ``randint``, three groups of four successive numbers,
    taken from these 300,000 numbers, occur nowhere else in the draw. Of 2,000,003 numbers that ``randint`` draws from 0 to 2**62, at least
    2,000,001 are distinct."""
    from accelkit_conformance.oracle.large_draws import check_large_draws

    check_large_draws(subject)


@check("full", over=names_of("large_draws", "SUCCESSIVE"))
def successive_draws(subject: Subject, name: str) -> None:
    """A sampler makes two draws of 1,000,000 numbers, two of 70,001 and two of 1,000. Short sequences of successive numbers, long enough to
    have at least 2**48 different values, occur only once in all six draws; up to three may occur again by chance."""
    from accelkit_conformance.oracle.large_draws import check_successive_draws

    check_successive_draws(subject, name)


@check("full", requires=["dtype.int64"])
def permutations(subject: Subject) -> None:
    """In 400 permutations of 40 numbers, each number is in each place equally often: the chi-squared statistic is at most six standard
    deviations above its mean. Neighbouring numbers differ by 1 as often as expected, to within six standard deviations. This applies to
    ``randperm`` and to ``multinomial`` without replacement, with equal weights. Permutations of 100,000 numbers are tested in int64 and, if
    the device has the dtype, in int32. Such a permutation contains each number once, and fewer than 30 of its pairs of neighbouring numbers
    have a difference of 1. Its correlations with the ascending numbers and with the next permutation are both between -0.019 and 0.019."""
    from accelkit_conformance.oracle.large_draws import check_permutations

    check_permutations(subject)


@check("full", requires=["random_state"])
def outputs_of_samplers(subject: Subject) -> None:
    """With ``out=``, samplers return the given tensor. An empty tensor and a tensor of the right size get the numbers that the sampler
    draws without ``out=`` after the same seed. An empty tensor is resized first; ``normal`` with a tensor of means and one standard
    deviation is not tested with an empty tensor. A strided tensor is filled with random numbers, and the memory between its elements stays
    unchanged."""
    from accelkit_conformance.oracle.sampler_outputs import check_outputs

    check_outputs(subject)
