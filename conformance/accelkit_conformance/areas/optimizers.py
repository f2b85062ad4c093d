"""Every optimizer of torch.optim takes the same steps on the device as on the CPU, whichever implementation is used. Schedulers and
clipping work on the device too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.late_errors import raises

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SPARSE_ONLY = ("SparseAdam",)
_MATRICES_ONLY = ("Muon",)
_IN_BFLOAT16 = 32
"""For Muon, the allowed error of an operator is multiplied by this factor, because Muon orthogonalises its updates in bfloat16. An update
is about a thousandth of a weight."""
_TARGET = 3.0
"""A value that is larger than every output of the model. Because of this target, and because the batches contain only positive numbers,
gradients keep their signs. If the terms of a mean gradient nearly cancelled, the steps of Adam would magnify rounding errors a
hundredfold."""


def _optimizers() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name in opdb.optimizers():
        if name not in _SPARSE_ONLY:
            yield "smoke" if name in ("SGD", "AdamW") else "training", (name,)


def _model(*, bias: bool = True) -> Any:
    import torch

    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6, bias=bias), torch.nn.Tanh(), torch.nn.Linear(6, 3, bias=bias))


def _train(model: Any, optimizer: Any, compute: Callable[[], None] = lambda: None) -> None:
    import torch

    like = next(model.parameters())
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        batch = (torch.rand(5, 4, generator=generator) + 0.5).to(like)

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = (model(batch) - _TARGET).square().mean()
            loss.backward()
            compute()
            return loss

        optimizer.step(closure)
        compute()


@check("training", requires=["dtype.float32"], over=_optimizers)
def steps(subject: Subject, name: str) -> None:
    """After four steps on the device, the parameters are the same as after four steps on the CPU in float64 with the for-loop
    implementation. The steps on the device are taken with each implementation that torch supports for the device: the for-loop,
    ``foreach`` and ``fused``. Apart from the implementation, the options are those of torch's test configurations, without
    ``capturable``. Configurations in which an option is a tensor are skipped.
    """
    import torch

    from accelkit_conformance.oracle import opdb, optimizer_cases
    from accelkit_conformance.oracle.tolerance import check_result

    info = opdb.optimizers()[name]
    ways = [{"foreach": False} if "foreach" in info.supported_impls else {}, *optimizer_cases.ways(subject, info)]
    for given in opdb.optimizer_inputs(info):
        kwargs = {key: value for key, value in given.kwargs.items() if key not in ("fused", "foreach", "capturable")}
        if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
            continue
        for way in ways:
            options = kwargs | way
            with subject.sample(f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})", {"kwargs": options}):
                here = _model(bias=name not in _MATRICES_ONLY)
                there, double = copy.deepcopy(here).to(subject.device), copy.deepcopy(here).double()
                _train(double, info.optim_cls(double.parameters(), **kwargs))
                _train(here, info.optim_cls(here.parameters(), **kwargs))
                _train(there, info.optim_cls(there.parameters(), **options), subject.compute)
                for mine, theirs, true in zip(there.parameters(), here.parameters(), double.parameters(), strict=True):
                    stages = _IN_BFLOAT16 if name == "Muon" else 1
                    check_result(mine, theirs, true, subject.device, num_stages=stages, is_sensitive=name == "LBFGS")


@check("smoke", over=["SGD", "Adam", "AdamW"])
def state_is_on_the_device(subject: Subject, name: str) -> None:
    """After a step, the tensors of the optimizer's state are on the device, except that tensors of shape (), such as the step count, may be
    on the CPU. If the state is copied to the CPU and then loaded into another optimizer, the loaded state has the same values, and its
    tensors are on the device, with the same exception.
    """
    import torch

    model = _model().to(subject.device)
    make = lambda parameters: getattr(torch.optim, name)(parameters, lr=0.1, **({"momentum": 0.9} if name == "SGD" else {}))  # noqa: E731
    optimizer = make(model.parameters())
    model(torch.ones(2, 4, device=subject.device)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        subject.assert_on_device(*(value for value in state.values() if isinstance(value, torch.Tensor) and value.dim() > 0))
    saved = copy.deepcopy(optimizer.state_dict())
    other = make(model.parameters())
    other.load_state_dict(
        {**saved, "state": {k: {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in s.items()} for k, s in saved["state"].items()}}
    )
    for mine, theirs in zip(other.state.values(), optimizer.state.values(), strict=True):
        subject.assert_on_device(*(value for value in mine.values() if isinstance(value, torch.Tensor) and value.dim() > 0))
        for key, value in theirs.items():
            assert torch.equal(torch.as_tensor(mine[key]).cpu(), torch.as_tensor(value).cpu()), f"{key} changed when it was loaded"


@check("training", over=["0", "1"])
def clipping_the_norm(subject: Subject, foreach: str) -> None:
    """``clip_grad_norm_`` returns the norm of all gradients with a relative error below 1e-5. If this norm is greater than the given limit,
    all gradients are scaled by the same factor, so that their norm becomes the limit. With ``error_if_nonfinite``, ``clip_grad_norm_``
    raises RuntimeError if a gradient contains NaN."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(shape, device=subject.device)) for shape in ((3, 4), (5,), (2, 2, 2))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 10
    before = torch.cat([parameter.grad.cpu().double().flatten() for parameter in parameters if parameter.grad is not None])
    exact = before.norm()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=bool(int(foreach)))
    subject.assert_on_device(norm)
    assert abs(norm.item() - exact.item()) < 1e-5 * exact.item(), f"the norm is {norm.item()}, not {exact.item()}"
    after = torch.cat([parameter.grad.cpu().double().flatten() for parameter in parameters if parameter.grad is not None])
    assert abs(after.norm().item() - 1.0) < 1e-4, f"after clipping to 1 the norm is {after.norm().item()}"
    torch.testing.assert_close(after, before / exact, rtol=1e-4, atol=1e-6)
    assert parameters[0].grad is not None
    parameters[0].grad[0, 0] = float("nan")
    with raises(subject, RuntimeError, about="non-finite", doing="clipping a NaN with error_if_nonfinite"):
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True, foreach=bool(int(foreach)))


@check("training")
def clipping_values(subject: Subject) -> None:
    """``clip_grad_value_`` clamps each element of a gradient to the range from minus the given limit to the limit."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(5, device=subject.device))
    parameter.grad = torch.tensor([-9.0, -0.5, 0.0, 0.5, 9.0], device=subject.device)
    torch.nn.utils.clip_grad_value_([parameter], 1.0)
    assert parameter.grad.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


@check("training")
def schedulers(subject: Subject) -> None:
    """A scheduler changes the learning rate of an optimizer whose state is on the device. A new scheduler that loads the first scheduler's
    saved state continues where the first scheduler stopped."""
    import torch

    model = _model().to(subject.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def rates(count: int) -> list[float]:
        found = []
        for _ in range(count):
            model(torch.ones(2, 4, device=subject.device)).sum().backward()
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates(3) == [1.0, 0.5, 0.5]
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    assert rates(2) == [0.25, 0.25], "the scheduler did not go on from its saved state"


_NOT_EMPTY = ("Adafactor",)  # Adafactor divides by the number of elements
_SHAPES = ((), (0,), (1,), (3, 5), (257,), (2, 3, 4), (70_001,), (33, 65))


def _with_foreach() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, info in opdb.optimizers().items():
        if "foreach" in info.supported_impls and name not in (*_SPARSE_ONLY, *_MATRICES_ONLY):
            yield "training", (name, "float32")
            yield "full", (name, "bfloat16")  # in float16, the epsilon of many optimizers is 0


@check("training", requires=["dtype.{1}"], over=_with_foreach)
def foreach_and_fused(subject: Subject, name: str, dtype: str) -> None:
    """Ten steps with ``foreach`` give the same parameters as the for-loop implementation in float64 on the CPU, and so do ten steps with
    ``fused`` where torch supports it for the device. There are 40 parameters of 0 to 70,001 elements each. Adafactor, which divides by the
    number of elements, gets only the 35 parameters that are not empty. One parameter has no gradient, and the last eight parameters and
    their gradients are transposed in memory."""
    import torch

    from accelkit_conformance.oracle import opdb, optimizer_cases
    from accelkit_conformance.oracle.layouts import transposed
    from accelkit_conformance.oracle.tolerance import check_result

    info = opdb.optimizers()[name]
    generator = torch.Generator().manual_seed(8)
    shapes = [shape for shape in _SHAPES * 5 if 0 not in shape or name not in _NOT_EMPTY]
    starts = [torch.randn(shape, generator=generator) for shape in shapes]
    gradients = [[torch.randn(one.shape, generator=generator) for one in starts] for _ in range(10)]
    for given in (starts, *gradients):
        given[-len(_SHAPES) :] = map(transposed, given[-len(_SHAPES) :])

    def trained(device: torch.device, dtype: torch.dtype, **way: bool) -> list[torch.Tensor]:
        parameters = [torch.nn.Parameter(one.to(device=device, dtype=dtype, copy=True)) for one in starts]
        optimizer = info.optim_cls(parameters, lr=rate, **way)
        for given in gradients:
            for number, (parameter, gradient) in enumerate(zip(parameters, given, strict=True)):
                parameter.grad = None if number == 5 else gradient.to(device=device, dtype=dtype)
            optimizer.step()
            if device == subject.device:
                subject.compute()
        return [parameter.detach() for parameter in parameters]

    rate = 0.01 if dtype == "float32" else 0.1  # large enough that rounding to the dtype does not hide a step
    cpu = torch.device("cpu")
    truth, reference = (trained(cpu, computed, foreach=False) for computed in (torch.float64, opdb.dtype_of(dtype)))
    for way in optimizer_cases.ways(subject, info):
        with subject.sample(f"{name}({', '.join(f'{key}={value}' for key, value in way.items())})", {"kwargs": way}):
            for mine, theirs, true in zip(trained(subject.device, opdb.dtype_of(dtype), **way), reference, truth, strict=True):
                check_result(mine, theirs, true, subject.device)


def _without_closure() -> Iterator[Case]:
    yield from (("training", parameters) for _, parameters in _optimizers() if parameters != ("LBFGS",))


@check("training", requires=["dtype.float32"], over=_without_closure)
def parameter_groups(subject: Subject, name: str) -> None:
    """Six steps give the same parameters as on the CPU, in each implementation that torch supports for the device. ``capturable``, and a
    tensor on the device or on the CPU as the learning rate, are tested too where torch supports them. There are several groups, which
    differ in the learning rate and, if the optimizer has these options, in the weight decay, momentum, ``maximize`` and ``amsgrad``. The
    step counts of the parameters differ. All learning rates change after step 2, a group is added after step 3, and the state is loaded
    into a new optimizer after step 4."""
    from accelkit_conformance.oracle.optimizer_cases import check_groups

    check_groups(subject, name)


@check("training", requires=["dtype.float32"], over=_without_closure)
def memory_layouts(subject: Subject, name: str) -> None:
    """After three steps, the parameters and gradients have the same values as on the CPU, in each implementation that torch supports for
    the device. Some parameters and gradients are transposed, have gaps between elements or are parts of larger tensors, one gradient is
    expanded, and the last parameter is empty. There are two exceptions: with ``fused``, each gradient has the layout of its parameter,
    and neither has gaps; with Adafactor and Muon, no parameter is empty. A step writes nothing outside the parameters. The for-loop
    implementation increases the version counter of each parameter. Except with Adafactor, the tensors in the state of a parameter have its
    shape or the shape ().
    """
    from accelkit_conformance.oracle.optimizer_cases import check_layouts

    check_layouts(subject, name)


@check("training", requires=["dtype.float32"], over=_without_closure)
def scaled_steps(subject: Subject, name: str) -> None:
    """If a gradient contains infinity or NaN, ``torch.amp.GradScaler`` skips the step. The skipped step changes neither a parameter nor an
    entry of the optimizer's state, such as ``momentum_buffer``, ``exp_avg_sq`` or ``step``. The first, the third or the last of four steps
    is skipped, which halves the scale. After the four steps, the parameters are the same as after only the other three steps, taken on the
    CPU without a scaler. Each implementation that torch supports for the device is tested, with and without a call to ``unscale_`` before
    the step, and with ``momentum``, ``dampening``, ``nesterov``, ``amsgrad``, ``maximize`` and ``weight_decay`` if the optimizer has these
    options. Fused implementations themselves unscale the gradients and decide whether to skip a step.
    """
    from accelkit_conformance.oracle.skipped_steps import check_skipped_steps

    check_skipped_steps(subject, name)


@check("training", requires=["dtype.float32"], over=names_of("optimizer_programs", "PROGRAMS", "training"))
def programs(subject: Subject, name: str) -> None:
    """Programs with optimizers give the same results as on the CPU. They clip gradients with several norms and limits, set gradients to
    zero in place, average models, and take steps with schedulers, with hooks and with several dtypes, including complex dtypes. They
    train small models after ``set_default_device(device)`` and inside ``with device:``."""
    from accelkit_conformance.oracle.optimizer_programs import PROGRAMS
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, PROGRAMS[name])


@check("training", requires=["dtype.float32"], over=["first", "middle", "last"])
def infinite_gradients(subject: Subject, place: str) -> None:
    """If one of 45 parameters has a gradient with an infinite or NaN element, ``torch.amp.GradScaler`` skips the step and halves the scale.
    The parameter is the first, the middle or the last one, and the element is the last element of its gradient. If all gradients are
    finite, the scaler unscales them exactly, and the step changes every parameter. The first parameter has 131,075 elements.
    """
    from accelkit_conformance.oracle.scaler_cases import check_infinite_gradients

    check_infinite_gradients(subject, place, ((2**17 + 3,), *(*_SHAPES[2:], *_SHAPES[3:]) * 4))
