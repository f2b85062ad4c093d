"""torch's own database of operators, modules and optimizers. It is private to torch, so no other module of the suite imports it.

The database is in ``torch.testing._internal``, which ships in torch's wheel, needs the package ``expecttest`` and takes about a second to
import.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import torch

from accelkit import UnsupportedError
from accelkit_conformance.oracle.lean_import import lean_import

_MOST = 400
# Operators that only one kind of device can run: those that compile CUDA code, and the CPU kernel of scaled_dot_product_attention.
_LEFT_OUT = ("jiterator", "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu")
# Operators that neither take nor return tensors.
NO_TENSORS = ("broadcast_shapes",)
# ATen overloads that return uninitialised memory, or the number of the kernel that torch would choose.
UNPREDICTABLE = (
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_fused_sdp_choice",
    "aten::_to_copy",
    "aten::_ctc_loss",
    "aten::_ctc_loss.Tensor",
)
# Operators that return vectors which are unique only up to their sign or phase.
UP_TO_PHASE = (
    "linalg.svd",
    "svd",
    "linalg.eig",
    "linalg.eigh",
    "linalg.qr",
    "qr",
    "geqrf",
    "svd_lowrank",
    "pca_lowrank",
    "_linalg_svd",
    "_linalg_eigh",
    "linalg_eig",
    "linalg_qr",
)
# Matches the names of operators of which rounding errors may change the result grossly, such as the determinant of a singular matrix.
_SENSITIVE = re.compile(r"linalg|svd|qr(?!t)|^lu(_|$)|logdet|cholesky|inverse|pca_lowrank|norm\.nuc|nuclear_norm")
# Discontinuous functions: in low precision, the result on either side of a step is accepted.
DISCONTINUOUS = ("floor_divide", "fmod", "remainder", "round", "floor", "ceil", "trunc", "frac", "div", "sign", "heaviside", "sgn")
# Operators for which the device may choose any of several equal values.
CHOOSES_AMONG_EQUALS = (
    "sort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "max", "min", "argmax", "argmin", "msort", "cummax",
    "cummin", "unique",
)  # fmt: skip


def is_sensitive(name: str) -> bool:
    """Return whether rounding errors may change the result of the operator or overload ``name`` grossly."""
    return _SENSITIVE.search(name) is not None


def is_skipped(op: Any, test: str) -> bool:
    """Return whether torch skips its own test ``test``, such as ``test_out``, for this operator on some device."""
    return any(getattr(one, "test_name", None) == test for one in (*op.skips, *op.decorators))


@functools.cache
def operators() -> dict[str, Any]:
    """Return the OpInfo of every operator, keyed by its name.

    The name of a variant is ``name.variant``. Operators that only one kind of device can run are left out.

    Raises:
        UnsupportedError: If the database cannot be imported.
    """
    try:
        with lean_import():
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise UnsupportedError(
            "torch's database of operators cannot be imported", why=str(error), hint="pip install 'accelkit[conformance]'"
        ) from error
    _freeze_only_states_that_exist()
    _patch_slow_test_helpers()
    found = {full_name(op): op for op in op_db}
    return {name: op for name, op in sorted(found.items()) if not op.name.startswith(_LEFT_OUT)}


def _freeze_only_states_that_exist() -> None:
    """Patch torch's ``freeze_rng_state`` so that it restores only the CPU's random state if the device's random state cannot be read.

    The original function raises an error on such a device. With the original function, not even operators that draw no numbers, such as
    attention without dropout, could be tested on this device.
    """
    from torch.testing import _utils

    freeze = vars(_utils)["freeze_rng_state"]

    def freeze_what_exists() -> contextlib.AbstractContextManager[None]:
        device = torch.accelerator.current_accelerator(check_available=True)
        try:
            if device is not None:
                torch.get_device_module(device).get_rng_state()
        except (AttributeError, NotImplementedError, RuntimeError):
            return torch.random.fork_rng(devices=[])
        found: contextlib.AbstractContextManager[None] = freeze()
        return found

    vars(_utils)["freeze_rng_state"] = freeze_what_exists


def _patch_slow_test_helpers() -> None:
    """Replace two slow functions of torch's own tests with faster functions.

    Both functions are called for every sample, and the originals take longer than most operators do. The original ``extract_test_fn``
    searches the call stack for a method of a ``unittest.TestCase``, which is never found here; the new function returns None without a
    search. The original ``set_rng_seed`` seeds the generators of all devices and, for CUDA, XPU and MTIA, formats the call stack; the new
    function seeds only the generators of the CPU.
    """
    import numpy as np
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    def seed_host(seed: int | None = None) -> None:
        seed = common_utils.SEED if seed is None else seed
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    vars(common_utils)["set_rng_seed"] = seed_host
    for module in (common_utils, core):
        if hasattr(module, "extract_test_fn"):
            vars(module)["extract_test_fn"] = lambda: None


@functools.cache
def foreach_operators() -> dict[str, Any]:
    """Return the OpInfo of every operator on lists of tensors, keyed by its name, such as ``_foreach_add``."""
    with lean_import():
        from torch.testing._internal import common_methods_invocations as database
    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    return {op.name: op for kind in kinds for op in getattr(database, f"foreach_{kind}_op_db")}


@functools.cache
def aliases() -> dict[str, tuple[str, ...]]:
    """Return the aliases of each ATen operator that has aliases, by the name of the operator: ``acos`` is mapped to ``("arccos",)``."""
    found: dict[str, dict[str, None]] = {}
    for op in operators().values():
        names = found.setdefault(op.aten_name or op.name.replace(".", "_"), {})
        names.update(dict.fromkeys(alias.name.replace(".", "_") for alias in op.aliases))
    return {name: tuple(others) for name, others in found.items() if others}


def full_name(op: Any) -> str:
    """Return the name of an operator, or ``name.variant`` for a variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtype_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def supports(op: Any, dtype: str, *, backward: bool = False) -> bool:
    """Return whether, according to torch, the CPU supports the operator (or its backward pass, if ``backward`` is True) in this dtype."""
    has = op.supported_dtypes("cpu")
    if backward:
        return bool(op.supports_autograd and dtype_of(dtype) in op.supported_backward_dtypes("cpu"))
    return dtype_of(dtype) in has


def samples(op: Any, dtype: str, most: int, *, requires_grad: bool = False) -> Iterator[Any]:
    """Yield sample inputs on the CPU, the same samples every time.

    If there are more than ``most`` samples, only ``most`` of them are yielded: evenly spaced, and including the first and the last. The
    ``name`` of a sample is its index among all samples.
    """
    torch.default_generator.manual_seed(0)
    every = list(itertools.islice(op.sample_inputs("cpu", dtype_of(dtype), requires_grad=requires_grad), _MOST))
    for number in _spaced(len(every), most):
        every[number].name = str(number)
        yield every[number]


def _spaced(count: int, most: int) -> list[int]:
    """Return up to ``most`` evenly spaced indices of ``count`` elements, including the first and the last index.

    If ``most`` is 1 and there are several elements, return only the first index.
    """
    return list(range(count)) if count <= most else sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})


def is_pointwise(op: Any) -> bool:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return isinstance(op, BinaryUfuncInfo | UnaryUfuncInfo)


def num_arguments(op: Any) -> int:
    """Return the number of tensor arguments of a pointwise operator, 1 or 2."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo

    return 2 if isinstance(op, BinaryUfuncInfo) else 1


@functools.cache
def modules() -> dict[str, Any]:
    """Return the ModuleInfo of every module, keyed by its name, such as ``Conv2d``.

    Lazy modules are left out, because their parameters are uninitialised until the first call.
    """
    with lean_import():
        from torch.testing._internal.common_modules import module_db
    return {info.name.removeprefix("nn.").replace(".", "_"): info for info in module_db if not info.is_lazy}


def module_inputs(info: Any, most: int, *, training: bool) -> list[tuple[int, Any]]:
    """Return ModuleInputs of a module, each with its index. A ModuleInput has arguments for the module's constructor and for a call to the
    module, in float32 on the CPU.

    The inputs are the same every time. At most ``most`` inputs are returned, and at most eight for Transformer, which is slow. If torch has
    more inputs than are returned, the returned inputs are evenly spaced.
    """
    torch.default_generator.manual_seed(0)
    every = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    is_slow = info.name == "nn.Transformer"
    return [(number, every[number]) for number in _spaced(len(every), min(most, 8) if is_slow else most)]


@functools.cache
def optimizers() -> dict[str, Any]:
    """Return the OptimizerInfo of every optimizer, keyed by its name, such as ``AdamW``."""
    with lean_import():
        from torch.testing._internal.common_optimizers import optim_db
    return {info.name: info for info in optim_db}


def optimizer_inputs(info: Any) -> list[Any]:
    """Return torch's test configurations (OptimizerInput) of an optimizer.

    ``info`` is a value of ``optimizers()``. The ``kwargs`` of a configuration are keyword arguments for the optimizer's constructor.
    """
    found: list[Any] = info.optim_inputs_func(device="cpu")
    return found
