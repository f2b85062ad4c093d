"""Variations of the arguments of a recorded call: other sizes and other values."""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from accelkit_conformance.oracle.op_compare import flat
from accelkit_conformance.oracle.sample_transfer import tensors

_EDGES = [2**k + change for k in (5, 6, 7, 8, 9, 10, 12) for change in (-1, 0, 1)]
_LENGTHS = {"edge": _EDGES, "tiny": [0, 1], "one": [1]}
_MANY = 65_536
_MOST_ELEMENTS = 1 << 20
_SPECIAL = (float("nan"), float("inf"), -float("inf"))
# Calls that mix elements in a way that depends on the algorithm: fast convolutions mix neighbours, and interpolation multiplies
# neighbours by zero. For these calls, all elements of the arguments are NaN, so that the algorithm makes no difference.
_MIXING = re.compile(r"fft|conv|upsample|grid_sampler|cdist|pdist|renorm|multi_head|transformer|_transform_bias")
# Calls whose results for NaN and infinities are undefined, or come from approximations that differ at infinity. PyTorch's own kernels
# for the CPU and for CUDA give different results for the calls in the last line of this pattern.
UNDEFINED_FOR_NAN = re.compile(
    r"linalg(?!_vector_norm|_cross)|cholesky|solve|geqrf|ormqr|hist|bincount|searchsorted|bucketize|gamma_grad|dirichlet|unique|_to_copy|polygamma|igamma|zeta"
    r"|bessel|airy|polynomial|_add_relu"
    r"|^mode|max_unpool|grid_sampler|_cdist_forward|hash_tensor|(std|var)_mean|_addmm_activation|batch_norm_update_stats"
)
# Calls whose CPU kernel does not check its arguments, because only torch itself is expected to make these calls.
WITHOUT_CHECKS = (
    r"_cholesky_solve_helper|segment_reduce|_masked_softmax|_ctc_loss|multi_head|transformer|_transform_bias|embedding_bag|_weight_norm"
    r"|batch_norm|unfold_backward"
)
# These, and other calls whose CPU kernel reads out of bounds if the sizes of its arguments do not match.
_UNCHECKED = re.compile(rf"{WITHOUT_CHECKS}|pdist_backward|cdist_backward|grid_sampler_.*backward|group_norm_backward")
# Calls that compute means. For elements that are -inf, the mean is -inf or, with some algorithms, NaN.
_MEANS = re.compile(r"^native_(layer|group)_norm$|batch_norm_legit")
INTERNAL = re.compile(r"^_|_backward|_forward")
# Calls that take any number of dimensions only by mistake: their CPU kernel assumes two to five dimensions, without checking it.
_FIXED_DIMENSIONS = re.compile(
    r"pool|upsample|conv|col2im|im2col|grid|norm|pad|shuffle|loss|linalg|cholesky|^lu_|_helper|embedding|pdist|triangular|geqrf"
)
_NUM_DIMENSIONS = 6
# Slow calls, which are tested with fewer elements.
_SLOW = re.compile(
    r"linalg|cdist|pdist|igamma|zeta|polygamma|unique_dim|cholesky|ormqr|geqrf|triangular_solve|multilabel|unfold|pool|upsample|_cross_entropy"
    r"|fft|std|var|mode|polynomial|col2im|im2col|pad|shuffle"
)

# Slow calls whose work grows with the square of the number of rows.
_PAIRWISE = re.compile(r"[cp]dist")


class Variations:
    """Variations of the arguments of a recorded call.

    ``arguments(size, values)`` returns one variation, as ``(args, kwargs)``, or None if the call cannot have this size. ``size`` and
    ``values`` are conditions from the module ``condition_rows``, such as ``many rows`` and ``all NaN``.

    Args:
        func: The functional ATen overload.
        args: The recorded positional arguments, on the CPU.
        kwargs: The recorded keyword arguments.
    """

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        self._func, self._recorded = func, (args, kwargs)
        self._name = func.name().removeprefix("aten::")
        self._given = self._odd()
        self.arguments = functools.cache(self._find_arguments)
        self.length = functools.cache(self._find_length)
        self._stretched = functools.cache(functools.partial(self._with_length, self._given))

    @property
    def takes_special_values(self) -> bool:
        """Whether the results of the call are well defined if its arguments contain NaN or infinities."""
        return not UNDEFINED_FOR_NAN.search(self._name)

    def _find_arguments(self, size: str, values: str, length: int | None = None) -> Any:
        """Return the arguments with this size and these values; None if the call cannot have this size.

        ``length`` is the new length of the dimension that ``size`` changes. None means the result of ``_find_length``.
        """
        given = self._recorded
        if size == "six dimensions":
            given = self._with_more_dimensions
        elif size == "one dimension":
            given = self._with_one_dimension
        elif size != "as recorded":
            length = self.length(size) if length is None else length
            given = None if length is None else self._stretched(self._dim(size), length)
        if given is None or values == "as recorded":
            return given
        if values == "all NaN" or _MIXING.search(self._name):
            return tree_map(lambda one: torch.full_like(one, float("nan")) if _is_floating(one) else one, given)
        first = tensors(given)[0]
        is_left = "_backward" in self._name or _MEANS.search(self._name) is not None
        if values == "infinities" and not is_left and _is_floating(first) and first.numel() > 3:
            return tree_map(lambda one: _with_runs_of_infinity(one) if one is first else one, given)
        numbers = itertools.repeat(0) if "_backward" in self._name else itertools.count()
        return tree_map(lambda one: _with_special_values(one, next(numbers)) if _is_floating(one) else one, given)

    def _find_length(self, size: str) -> int | None:
        """Return the new length of the dimension ``_dim(size)`` for a size such as ``many rows``.

        Return None if ``size`` is ``as recorded``, ``six dimensions`` or ``one dimension``, or if the call is not tested with ``size``.
        """
        source = random.Random(f"{self._name},{size}")  # noqa: S311 # the same on every run
        if size in ("as recorded", "six dimensions", "one dimension"):
            return None
        dim = self._dim(size)
        if size == "one" and INTERNAL.search(self._name):
            return None
        if size in _LENGTHS:
            length = source.choice(_LENGTHS[size])
            return length if self._stretched(dim, length) is not None else None
        old = self._first().shape[dim] if self._first().ndim else 0
        one, other = self._stretched(dim, old + 1), self._stretched(dim, old + 3)
        if one is None or other is None:
            return None
        count = [max((leaf.numel() for leaf in _all_tensors(self._func, given)), default=0) for given in (one, other)]
        per_unit = max((count[1] - count[0]) // 2, 1)
        is_slow = _SLOW.search(self._name) is not None
        if size == "most rows" and (not is_slow or _PAIRWISE.search(self._name)):
            return None
        wanted = _MANY // 4 if is_slow and size != "most rows" else _MANY
        length = math.ceil((wanted + source.randrange(1, 4096)) / per_unit) | 1
        return length if length * per_unit <= _MOST_ELEMENTS and self._stretched(dim, length) is not None else None

    def _dim(self, size: str) -> int:
        """Return which dimension of the first tensor gets a new length for ``size``, a size from the module ``condition_rows``.

        For ``many rows`` and ``most rows``, this is the first dimension, or the last dimension if the call's argument ``dim`` names the
        first. For the other sizes, it is the dimension that ``dim`` names, or the last dimension if the call has no ``dim``.
        """
        ndim, named = self._first().ndim, self._named_dim
        changed = -1 if named is None or not -ndim <= named < ndim else named % ndim - ndim
        if size not in ("many rows", "most rows"):
            return changed
        return -1 if named is not None and changed == -ndim else 0

    @functools.cached_property
    def _named_dim(self) -> int | None:
        """The argument ``dim`` of the call or, if ``dim`` is a list, its first element. None if this value is not an integer, or
        if the call has no ``dim``.
        """
        value = self._dim_argument(self._given)
        value = value[0] if isinstance(value, list | tuple) and value else value
        return value if type(value) is int else None

    def _dim_argument(self, given: Any) -> Any:
        for place, argument in enumerate(self._func._schema.arguments):
            if argument.name == "dim":
                return given[0][place] if place < len(given[0]) else given[1].get("dim", argument.default_value)
        return None

    @functools.cached_property
    def _with_more_dimensions(self) -> Any:
        """The arguments with leading dimensions added, or None if no dimensions can be added, for example because the CPU rejects the call.

        The first tensor gets as many new dimensions as it needs to have six. Every tensor that had as many dimensions as the first one gets
        the same number of new dimensions. If ``dim`` counts from the front, it is increased, so that it names the same dimension as before.
        """
        added = _NUM_DIMENSIONS - tensors(self._recorded)[0].ndim
        if not 0 < added < _NUM_DIMENSIONS:
            return None
        front = (2, *[1] * (added - 1))
        return self._with_other_dimensions(lambda one: one.repeat(*front, *[1] * one.ndim), functools.partial(_shifted, by=added))

    @functools.cached_property
    def _with_one_dimension(self) -> Any:
        """The arguments, in which each tensor that has as many dimensions as the first keeps only its last dimension. The argument ``dim``
        is replaced with the last dimension. None if the CPU rejects the call, or if the first tensor has fewer than two dimensions."""
        ndim = tensors(self._recorded)[0].ndim
        return self._with_other_dimensions(lambda one: one[(0,) * (ndim - 1)], _last) if ndim > 1 else None

    def _with_other_dimensions(self, change: Callable[[torch.Tensor], torch.Tensor], rename: Callable[[Any], Any]) -> Any:
        """Return the recorded arguments with another number of dimensions, or None if the CPU rejects the call.

        Args:
            change: A function that adds or removes dimensions. It is called with each tensor that has as many dimensions as the first one.
            rename: A function that returns the new value of the argument ``dim``.
        """
        first = tensors(self._recorded)[0]
        is_excluded = _UNCHECKED.search(self._name) or _FIXED_DIMENSIONS.search(self._name) or "_backward" in self._name
        if first.layout is not torch.strided or not first.numel() or is_excluded:
            return None
        args, kwargs = tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) and leaf.ndim == first.ndim else leaf, self._recorded
        )
        places = [place for place, argument in enumerate(self._func._schema.arguments) if argument.name == "dim"]
        args = tuple(rename(one) if place in places else one for place, one in enumerate(args))
        kwargs = {key: rename(one) if key == "dim" else one for key, one in kwargs.items()}
        try:
            after = [leaf.shape for leaf in _all_tensors(self._func, (args, kwargs))]
        except Exception:
            return None
        return (args, kwargs) if after != self._shapes(self._recorded) else None

    def _first(self) -> torch.Tensor:
        return tensors(self._given)[0]

    def _shapes(self, given: Any) -> list[torch.Size]:
        """Make the call with these arguments on the CPU, and return the shapes of the tensors among its results."""
        return [leaf.shape for leaf in _all_tensors(self._func, given)]

    def _odd(self) -> Any:
        """Return the recorded arguments with the even lengths of the first tensor made odd.

        Each dimension of even length greater than 2 is shortened by one if ``_with_length`` can shorten it. The arguments of an internal
        operator are returned unchanged if they contain an int64 tensor. Such a tensor may contain indices that would be out of range in
        the shorter dimension, and internal operators do not check indices.
        """
        given = self._recorded
        if INTERNAL.search(self._name) and any(one.dtype is torch.int64 for one in tensors(given)):
            return given
        for dim, length in enumerate(tensors(given)[0].shape):
            if length > 2 and length % 2 == 0:
                given = self._with_length(given, dim, length - 1) or given
        return given

    def _with_length(self, given: Any, dim: int, length: int) -> Any:
        """Return the arguments with the dimension ``dim`` of the first tensor resized to ``length``. Elements are repeated or cut off.

        Other tensors and lists of sizes that contain the old length may have to change too. The call is tried on the CPU with several
        choices of what else to change. The first choice that changes the shape of a result is used. If there is none, the first choice that
        the CPU accepts is used.

        Returns:
            The new arguments. None if the CPU accepts no choice, if the first tensor is 0-d, not strided, or empty along ``dim``, or if the
            CPU kernel might read out of bounds (``_UNCHECKED``).
        """
        first = tensors(given)[0]
        if not first.ndim or not first.shape[dim] or first.layout is not torch.strided or _UNCHECKED.search(self._name):
            return None
        old, fallback, shapes = first.shape[dim], None, self._shapes(given)
        ways = (
            ("from the end", "from the start") if INTERNAL.search(self._name) else ("from the end", "from the start", "none", "contracted")
        )
        for others, numbers in itertools.product(ways, (False, True)):
            changed = _stretch(given, first, dim % first.ndim, old, length, others=others, numbers=numbers)
            try:
                after = self._shapes(changed)
            except Exception:  # noqa: S112 # another way may be accepted
                continue
            if after != shapes:
                return changed
            fallback = fallback or changed
        return fallback


def _stretch(given: Any, first: torch.Tensor, dim: int, old: int, length: int, *, others: str, numbers: bool) -> Any:
    back = first.ndim - dim

    def index(ndim: int) -> int:
        return {"from the end": ndim - back, "contracted": ndim - back - 1}.get(others, dim)

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            place = dim if leaf is first else index(leaf.ndim)
            if (leaf is not first and others == "none") or not 0 <= place < leaf.ndim or leaf.shape[place] != old:
                return leaf
            return leaf.index_select(place, torch.arange(length) % old)
        return leaf

    def change_list(nested: Any) -> Any:
        if isinstance(nested, list | tuple):
            if numbers and nested and all(type(one) is int for one in nested):
                place = len(nested) - back
                if 0 <= place < len(nested) and nested[place] == old:
                    return [*nested[:place], length, *nested[place + 1 :]]
            return type(nested)(change_list(one) for one in nested)
        return {key: change_list(one) for key, one in nested.items()} if isinstance(nested, dict) else change(nested)

    args, kwargs = given
    return tuple(change_list(one) for one in args), change_list(kwargs)


def _shifted(dim: Any, by: int) -> Any:
    """Return the dimension or list of dimensions ``dim`` with ``by`` added to each integer that is not negative."""
    if isinstance(dim, list | tuple):
        return [_shifted(one, by) for one in dim]
    return dim + by if type(dim) is int and dim >= 0 else dim


def _last(dim: Any) -> Any:
    """Return -1 instead of a dimension, and [-1] instead of a list of dimensions. Other values are returned unchanged."""
    return [-1] if isinstance(dim, list | tuple) and dim else -1 if type(dim) is int else dim


def _all_tensors(func: Any, given: Any) -> list[torch.Tensor]:
    """Return the tensors among the results of a call on the CPU."""
    return [leaf for leaf in flat(func(*given[0], **given[1])) if isinstance(leaf, torch.Tensor)]


def _is_floating(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point()


def _with_special_values(one: torch.Tensor, number: int) -> torch.Tensor:
    """Return a copy of a tensor in which some elements are NaN or infinite.

    Of every seven elements, one becomes NaN, one inf and one -inf. Every second NaN has its sign bit set. A tensor with fewer than seven
    elements may lack some or all of these. A tensor with fewer than four elements gets no infinities.

    Args:
        one: A tensor of floating-point numbers.
        number: Selects the elements that become special values. If the tensors of a call get different numbers, the call combines special
            values with each other and with ordinary values. In a backward call, all tensors must get the same number, so that NaN is not
            combined with an ordinary zero: for this combination, some correct implementations return NaN and others return zero.
    """
    values = one.flatten().clone()
    for start, value in enumerate(_SPECIAL if len(values) > 3 else _SPECIAL[:1]):
        # float8_e4m3fn has no infinity. torch converts an infinite tensor to the largest number, but refuses an infinite Python number.
        values[(start + number) * 2 % 7 :: 7] = torch.tensor(value).to(values.dtype)
    values[number * 2 % 7 + 7 :: 14] = torch.tensor(-_SPECIAL[0]).to(values.dtype)
    return values.view(one.shape)


def _with_runs_of_infinity(one: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in which one, two or three neighbouring elements of each row are -inf, and every third row is all -inf."""
    copy = one.clone(memory_format=torch.contiguous_format)
    rows = copy.view(-1, copy.shape[-1])
    infinity = torch.tensor(-float("inf")).to(one.dtype)
    for start in (1, 4, 5, 7, 8, 9):
        rows[:, start::11] = infinity
    rows[2::3] = infinity
    return copy
