"""Samplers and dropout draw from the right distribution in every dtype, with parameters that are tensors, and in every special case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import check
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("full", over=names_of("distributions", "TENSOR_PARAMETERS"))
def tensor_parameters(subject: Subject, name: str) -> None:
    """A sampler whose parameters are tensors draws each number with the parameter of the same element. The parameters have four different
    values, and are contiguous, expanded, transposed or strided. For each value, the mean of 4,000 numbers is correct to within six standard
    errors, and their variance is correct to within 30 %."""
    from accelkit_conformance.oracle.distributions import check_tensor_parameters

    check_tensor_parameters(subject, name)


@check("full", requires=["dtype.{0}"], over=[dtype for dtype in DTYPES if not dtype.startswith("complex")])
def dtypes_of_samplers(subject: Subject, dtype: str) -> None:
    """Samplers draw numbers of this dtype: 20,000 numbers are finite, and their mean is correct to within six standard errors.
    ``random_`` without arguments draws from all integers that the dtype represents without gaps, beginning with 0."""
    from accelkit_conformance.oracle.distributions import check_dtype_of_samplers

    check_dtype_of_samplers(subject, dtype)


@check("full", requires=["dtype.int64"])
def wide_ranges(subject: Subject) -> None:
    """``randint`` and ``random_`` draw int64 numbers from ranges of up to 2**63 integers, from negative ranges and from a range above
    2**40. All numbers are in the range, and each of their lower bits is set in half of 20,000 draws, within six standard errors."""
    from accelkit_conformance.oracle.distributions import check_wide_ranges

    check_wide_ranges(subject)


@check("full")
def certain_outcomes(subject: Subject) -> None:
    """Calls that can have only one result have this result: probabilities of 0 and 1, deviations and rates of 0, ranges of one number,
    one weight that is not zero among up to 65,537, dropout of nothing and of everything, and draws of no number."""
    from accelkit_conformance.oracle.certain_outcomes import check_certain_outcomes

    check_certain_outcomes(subject)


@check("full", requires=["dtype.int64"])
def rare_categories(subject: Subject) -> None:
    """``multinomial`` draws one or two samples for each of 4,000 rows of weights, most of which are zero. It draws no category without
    weight, and three categories as often as expected, within six standard errors, in every floating-point dtype, with and without
    replacement."""
    from accelkit_conformance.oracle.distributions import check_rare_categories

    check_rare_categories(subject)


@check("full")
def numbers_are_new(subject: Subject) -> None:
    """Of up to 5,000 uniform random numbers of a draw, fewer than 40 were also drawn by one of the earlier draws, at whatever place. The
    draws have several sizes and layouts, and there are draws of dropout and of normal numbers in between."""
    from accelkit_conformance.oracle.random_calls import check_numbers_are_new

    check_numbers_are_new(subject)


@check("full", requires=["random_state", "dtype.bool"], over=names_of("dropout", "DROPOUTS"))
def every_dropout(subject: Subject, name: str) -> None:
    """Each kind of dropout drops the expected share of the elements or channels, independently of each other, and scales the others. The
    gradient has the mask of the forward pass, even if elements of the input are zero. The inputs are contiguous, channels last, transposed
    or strided, in every floating-point dtype."""
    from accelkit_conformance.oracle.dropout import check_dropout

    check_dropout(subject, name)


@check("full", requires=["dtype.int64"])
def large_draws(subject: Subject) -> None:
    """In draws of 16,777,244 numbers, the mean of the last 300,000 numbers is correct to within six standard errors, and three groups of
    four of them occur nowhere else. All of 2,000,003 numbers from 0 to 2**62 are distinct. The samplers are ``rand``, ``randn``,
    ``bernoulli_``, ``randint`` and dropout."""
    from accelkit_conformance.oracle.large_draws import check_large_draws

    check_large_draws(subject)


@check("full", requires=["dtype.int64"])
def permutations(subject: Subject) -> None:
    """In 400 permutations of 40 numbers, each number is in each place equally often: the chi-squared statistic is at most six standard
    deviations above its mean. Two permutations of 100,000 numbers are not correlated with the order of the numbers, nor with each other."""
    from accelkit_conformance.oracle.large_draws import check_permutations

    check_permutations(subject)


@check("full", requires=["random_state"])
def outputs_of_samplers(subject: Subject) -> None:
    """With ``out=``, samplers return the given tensor and write the numbers that they draw without ``out=`` after the same seed. An empty
    tensor is resized first. If the tensor is strided, the elements in between stay unchanged."""
    from accelkit_conformance.oracle.sampler_outputs import check_outputs

    check_outputs(subject)
