"""Methods that a precision inherits cost no time. After ``Runtime.teardown``, the precision keeps no model alive, and torch's settings are
what they were before the Runtime was created."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any

from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision
from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_FORWARD = ("convert_input", "forward_context", "convert_output")
_BACKWARD = ("pre_backward", "backward", "post_backward")
_GROUPS = (_FORWARD, _BACKWARD, ("unscale_gradients",), ("optimizer_step",))
"""The methods that a step can call, in groups. The runtime skips a group if none of its methods is overridden."""


@check("smoke", kind="precision")
def steps_call_only_what_is_overridden(subject: Subject) -> None:
    """The methods of a precision that a step can call form four groups: the methods for forward passes, the methods for backward passes,
    ``unscale_gradients``, and ``optimizer_step``. If a precision overrides no method of a group, a step calls no method of this group. If a
    precision overrides neither ``convert_module`` nor a method for forward passes, ``prepare`` does not change the class of a module."""
    import sys

    from accelkit_conformance.oracle.precision_models import Perceptron
    from accelkit_conformance.oracle.precision_training import trainer

    trained = trainer(subject)
    trained.step()
    unused = [name for group in _GROUPS if not overrides(trained.precision, Precision, *group) for name in group]
    inherited = {getattr(Precision, name).__code__: name for name in unused}
    called: set[str] = set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in inherited:
            called.add(inherited[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        trained.step()
    finally:
        sys.setprofile(before)
    assert not called, f"a step calls methods that the precision does not override: {', '.join(sorted(called))}"
    if not overrides(trained.precision, Precision, "convert_module", *_FORWARD):
        assert type(trained.model) is Perceptron, f"prepare replaced the class of the module with {type(trained.model)}"


@check("smoke", kind="precision")
def overridden_methods_do_something(subject: Subject) -> None:
    """A precision does not override a method of the training step with a copy of the inherited method, such as a ``convert_input`` that
    returns its argument: each override costs time in every step, and an inherited method costs nothing. An overridden ``forward_context``
    does not return a ``nullcontext``."""
    import contextlib

    runtime = subject.runtime()
    _ = runtime.device
    for name in itertools.chain(*_GROUPS):
        ours, default = inspect.getattr_static(type(runtime.precision), name), inspect.getattr_static(Precision, name)
        if ours is default or not inspect.isfunction(ours):
            continue
        is_copy = (ours.__code__.co_code, _constants(ours)) == (default.__code__.co_code, _constants(default))
        assert not is_copy or ours.__code__.co_names != default.__code__.co_names, (
            f"{name} does what the default does, and costs time in every step: delete it"
        )
    if overrides(runtime.precision, Precision, "forward_context"):
        is_null = isinstance(runtime.precision.forward_context(), contextlib.nullcontext)
        assert not is_null, "forward_context returns a nullcontext, which costs time in every forward pass: delete it"


def _constants(function: Any) -> tuple[Any, ...]:
    """Return the constants in a function's code, except None and the function's docstring.

    Python stores the docstring among these constants.
    """
    return tuple(one for one in function.__code__.co_consts if one is not None and one != function.__doc__)


@check("training", kind="precision")
def teardown_leaves_torch_as_it_was(subject: Subject) -> None:
    """After a step and ``Runtime.teardown``, torch's default dtype, autocast state, float32 matmul precision, grad mode, determinism,
    anomaly detection and number of threads are what they were before the Runtime was created."""
    import torch

    from accelkit_conformance.oracle.precision_training import trainer

    torch.set_float32_matmul_precision("highest")  # the default, which an earlier test may have changed
    before = _torch_settings(subject)
    trained = trainer(subject)
    trained.step()
    trained.runtime.teardown()
    after = _torch_settings(subject)
    changed = [f"{name} is {after[name]}, and was {before[name]}" for name in before if after[name] != before[name]]
    assert not changed, f"after teardown, {'; '.join(changed)}"


def _torch_settings(subject: Subject) -> dict[str, Any]:
    import torch

    kind = subject.accelerator.autocast_device_type
    return {
        "the default dtype": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled(kind),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
        "grad mode": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "the number of threads": torch.get_num_threads(),
    }


@check("training", kind="precision")
def a_runtime_starts_again(subject: Subject) -> None:
    """After ``Runtime.teardown`` has been called twice, the Runtime starts again the next time it is used. Another model is then prepared,
    and its gradients match those computed in float64.
    """
    from accelkit_conformance.oracle.precision_training import Trainer, check_close, exact_gradients, model_and_data, sgd, trainer

    first = trainer(subject)
    first.step()
    first.runtime.teardown()
    first.runtime.teardown()
    model = model_and_data()[0]
    model, optimizer = first.runtime.prepare(model, sgd(model.parameters()))
    second = Trainer(first.runtime, model, optimizer, first.data)
    check_close(subject, second.finite_gradients(), exact_gradients(), "gradients after teardown")
    second.optimizer.step()
    second.runtime.teardown()


@check("training", kind="precision")
def nothing_is_kept_alive(subject: Subject) -> None:
    """After training and ``Runtime.teardown``, the precision keeps no model, optimizer or batch alive. Even before teardown, it holds no
    reference to the accelerator."""
    import gc
    import weakref

    from accelkit_conformance.oracle.precision_training import trainer

    trained = trainer(subject)
    precision = trained.precision
    for _ in range(2):
        trained.step()
    assert not _refers_to(precision, subject.accelerator), "the precision keeps a reference to the accelerator"
    trained.runtime.free_memory()
    trained.runtime.teardown()
    kept = {
        "the model": weakref.ref(trained.model),
        "the optimizer": weakref.ref(trained.optimizer),
        "a batch": weakref.ref(trained.data[0]),
    }
    del trained
    gc.collect()
    alive = [name for name, reference in kept.items() if reference() is not None and _refers_to(precision, reference())]
    assert not alive, f"after teardown, the precision keeps {' and '.join(alive)} alive"


def _refers_to(start: object, target: object) -> bool:
    """Return whether ``target`` can be reached from the attributes of ``start``, without going through classes, modules or functions.

    The references of at most 100,000 objects are followed.
    """
    import gc
    from types import FunctionType, ModuleType

    seen: set[int] = set()
    waiting: list[Any] = [vars(start)]
    while waiting:
        one = waiting.pop()
        if one is target:
            return True
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType) and len(seen) < 100_000:
            seen.add(id(one))
            waiting += gc.get_referents(one)
    return False


@check("training", kind="precision")
def instances_are_independent(subject: Subject) -> None:
    """If one instance of the precision trains a model (with infinite gradients, if the precision scales losses), the scale and the state of
    another instance do not change. A third instance is created after this training, and computes the gradients of a new model. These
    gradients match those computed in float64, within the tolerance of ``gradients_match_float64``.
    """
    from accelkit_conformance.oracle.precision_training import check_close, exact_gradients, trainer

    first, second = trainer(subject), trainer(subject)
    second.step()
    scale, state = second.scale(), str(second.precision.state_dict())
    if overrides(first.precision, Precision, "pre_backward"):
        for _ in range(2):
            first.poisoned_step(float("inf"))
    else:
        first.step()
    assert (second.scale(), str(second.precision.state_dict())) == (scale, state), "steps of one instance changed the state of another"
    third = trainer(subject)
    check_close(subject, third.finite_gradients(), exact_gradients(), "gradients of a new instance")


@check("training", kind="precision")
def threads_do_not_disturb_each_other(subject: Subject) -> None:
    """Forward passes of one module in two threads give the same results as in one thread, and leave the default dtype as it was."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from accelkit_conformance.oracle.precision_training import trainer

    trained = trainer(subject)

    def evaluate(*_: Any) -> Any:
        with torch.no_grad():
            return trained.model(trained.data[0])

    right = evaluate()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(evaluate, range(20)))
    assert all(torch.equal(one, right) and one.dtype == right.dtype for one in found), "a forward pass in a thread gave another result"
    assert torch.get_default_dtype() == torch.float32, f"afterwards, the default dtype is {torch.get_default_dtype()}"
