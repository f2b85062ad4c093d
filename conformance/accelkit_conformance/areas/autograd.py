"""For every operator that has a gradient, the gradients on the device match gradients that the CPU computes in float64. The device's error
may be at most eight times the error of the CPU's kernels in the same dtype, or at most 8 eps of this dtype if 8 eps is larger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.profiles.operators import CORE, DTYPES, SMOKE
from accelkit_conformance.subject import assert_on_device

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _backward() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        for dtype in DTYPES:
            if opdb.supports(op, dtype, backward=True):
                if dtype == "float32" and name in SMOKE[:20]:
                    yield "smoke", (name, dtype)
                else:
                    yield "training" if name in CORE and dtype == "float32" else "full", (name, dtype)


@check("full", requires=["dtype.{1}"], over=_backward, seconds=180)  # grid_sampler_3d has a sample of five million elements
def backward(subject: Subject, name: str, dtype: str) -> None:
    """For each sample input of an operator and a random output gradient, the gradient with respect to every input has the right values,
    dtype and shape, and is on the device. If the operator draws random numbers, the values of its gradients are not compared."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import possible_samples
    from accelkit_conformance.oracle.op_compare import compare_backward
    from accelkit_conformance.oracle.reproducer import describe_sample, facts_of, program

    op = opdb.operators()[name]
    samples = possible_samples(subject, op, opdb.samples(op, dtype, min(subject.most_samples, 8), requires_grad=True))
    for sample in subject.crashing_last(samples, lambda one: facts_of((one.input, one.args, one.kwargs), dtype)):
        given = (sample.input, sample.args, sample.kwargs)
        make = lambda given=given, number=sample.name: program(subject, name, given, dtype=dtype, number=number, is_backward=True)  # noqa: E731
        with subject.sample(describe_sample(given), facts_of(given, dtype), make):
            compare_backward(subject, op, sample, given)


def _recorded() -> Iterator[Case]:
    from accelkit_conformance.oracle.recorded_calls import overloads

    yield from (("full", (name,)) for name in overloads() if "_backward" in name)


@check("full", requires=["dtype.float32"], over=_recorded, seconds=180)
def conditions(subject: Subject, overload: str) -> None:
    """An ATen overload with ``_backward`` in its name gives the same results as on the CPU. The check repeats recorded calls of the
    overload under other conditions, for example with other sizes and memory layouts of the arguments, with NaN and infinities, in each
    gradient mode, and on a second device, thread or stream. The checks ``operators/conditions`` and ``layout/conditions`` use the same
    conditions for other overloads."""
    from accelkit_conformance.oracle.condition_rows import rows
    from accelkit_conformance.oracle.conditions import check_under_conditions

    check_under_conditions(subject, overload, rows(is_contiguous=True) + rows(is_contiguous=False))


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


def _strided(values: torch.Tensor) -> torch.Tensor:
    return values.repeat_interleave(2, dim=-1)[..., ::2]


_COTANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda values: values.flatten()[0].expand(values.shape),
    "transposed": _transposed,
    "strided": _strided,
    "zero": lambda values: values * 0,
}


@check("smoke", over=list(_COTANGENTS))
def output_gradients(subject: Subject, layout: str) -> None:
    """For an output gradient that is expanded, transposed, strided or zero, the backward passes of common operators give the right
    gradients, and do not modify the output gradient."""
    from accelkit_conformance.oracle.differentiable import COMMON, check_function, random_inputs

    for name, function in COMMON.items():
        check_function(subject, name, function, random_inputs((4, 2, 8, 8), (8, 8)), change=_COTANGENTS[layout])


@check("training", requires=["dtype.float32"], over=names_of("differentiable", "SEVERAL_INPUTS", "training"))
def some_inputs_require_grad(subject: Subject, name: str) -> None:
    """The gradients of a function with several inputs match the gradients that the CPU computes, both if only one input requires a gradient
    and if all inputs except one require gradients."""
    from accelkit_conformance.oracle.differentiable import SEVERAL_INPUTS, check_function, random_inputs

    function, shapes = SEVERAL_INPUTS[name]
    numbers = range(len(shapes))
    for wanted in dict.fromkeys([*((one,) for one in numbers), *(tuple(one for one in numbers if one != left) for left in numbers)]):
        check_function(subject, f"{name}, inputs {wanted}", function, random_inputs(*shapes), wanted=wanted)


@check("training", requires=["dtype.float32"], over=names_of("several_outputs", "SEVERAL_OUTPUTS", "training"))
def one_output_gets_a_gradient(subject: Subject, name: str) -> None:
    """If only one output of a function with several outputs is used in the backward pass, the gradients match the gradients that the CPU
    computes. For example, only the last cell state of an LSTM is used. Each output is used once. Only the gradients of those inputs are
    compared on which all outputs depend."""
    from accelkit_conformance.oracle.several_outputs import check_each_output

    check_each_output(subject, name)


@check("training", requires=["dtype.float32", "dtype.int64"])
def repeated_indices(subject: Subject) -> None:
    """Indexing functions give the right gradients if several indices, positive or negative, name the same element. For example, if an
    element is read several times, its gradient is the sum of the gradients of all reads, divided by their number if
    ``scale_grad_by_freq=True``."""
    from accelkit_conformance.oracle.differentiable import INDEXING, check_function, random_inputs

    for name, (function, wanted) in INDEXING.items():
        check_function(subject, name, function, random_inputs((6, 4), (8, 4)), wanted=wanted)


@check("smoke")
def leaf_gradients_stay(subject: Subject) -> None:
    """The gradient of a leaf has the leaf's device, dtype and shape. A second backward pass adds to the gradient.
    ``zero_grad(set_to_none=True)`` removes the gradient, and the next backward pass computes a new gradient."""
    import torch

    leaf = torch.ones(2, 3, device=subject.device, requires_grad=True)
    (leaf * 2).sum().backward()
    (leaf * 3).sum().backward()
    assert leaf.grad is not None
    subject.assert_on_device(leaf.grad)
    assert leaf.grad.tolist() == [[5.0] * 3] * 2, f"2 and 3 added up to {leaf.grad.tolist()}"
    assert leaf.grad.dtype == leaf.dtype
    assert leaf.grad.shape == leaf.shape
    torch.optim.SGD([leaf]).zero_grad(set_to_none=True)
    assert leaf.grad is None, "zero_grad(set_to_none=True) left a gradient"
    (leaf * 4).sum().backward()
    assert leaf.grad.tolist() == [[4.0] * 3] * 2, f"after zero_grad, 4 became {leaf.grad.tolist()}"


@check("smoke")
def hooks_see_device_tensors(subject: Subject) -> None:
    """Tensor hooks receive gradients that are on the device, and the tensor that a hook returns replaces the gradient."""
    import torch

    seen = []
    leaf = torch.ones(3, device=subject.device, requires_grad=True)
    middle = leaf * 2
    middle.register_hook(lambda gradient: (seen.append(gradient.device), gradient * 10)[1])
    middle.sum().backward()
    assert seen == [subject.device], f"the hook received gradients on {seen}"
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [20.0] * 3


@check("smoke")
def custom_functions(subject: Subject) -> None:
    """A ``torch.autograd.Function`` can save tensors that are on the device. In its ``backward``, the saved tensors and the output gradient
    are on the device. The input gets the right gradient."""
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):  # type: ignore[no-untyped-def]
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            (x,) = context.saved_tensors
            assert x.device == subject.device, f"a saved tensor came back on {x.device}"
            assert gradient.device == subject.device, f"the output gradient is on {gradient.device}"
            return 2 * x * gradient

    leaf = torch.tensor([3.0], device=subject.device, requires_grad=True)
    Square.apply(leaf).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    subject.assert_on_device(leaf.grad)
    assert leaf.grad.item() == 6.0


@check("smoke")
def no_grad_and_inference_mode(subject: Subject) -> None:
    """Under ``torch.no_grad`` and ``torch.inference_mode``, operators record no graph and give the right values. Results under
    ``inference_mode`` are inference tensors, and results under ``no_grad`` are not. After a ``with`` block of either mode, graphs are
    recorded again, even if the block ended with an error."""
    import torch

    leaf = torch.full((4,), 3.0, device=subject.device, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = {"mul": leaf * 2, "add": leaf + 3, "matmul": leaf @ leaf, "sum": leaf.sum(), "relu": leaf.relu()}
        assert (leaf * 2).requires_grad, f"after {mode.__name__} no graph is recorded"
        for name, result in found.items():
            assert not result.requires_grad, f"{name} under {mode.__name__} records a graph"
            assert result.grad_fn is None, f"{name} under {mode.__name__} records a graph"
            assert result.is_inference() == (mode is torch.inference_mode)
            subject.assert_on_device(result)
        values = {name: result.flatten()[0].item() for name, result in found.items()}
        assert values == {"mul": 6.0, "add": 6.0, "matmul": 36.0, "sum": 12.0, "relu": 3.0}, f"under {mode.__name__}: {values}"
        try:
            with mode():
                raise KeyError
        except KeyError:
            pass
        assert (leaf * 2).requires_grad, f"after an error inside {mode.__name__} no graph is recorded"


@check("smoke", requires=["numbered_devices"])
def backward_on_another_device(subject: Subject) -> None:
    """A backward pass on a device that is not current gives the same gradients as a backward pass on the current device. Results and
    gradients are on the device of the inputs. So is a tensor that a hook creates with the device type, without an index."""
    import torch

    from accelkit_conformance.oracle.differentiable import COMMON
    from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes

    image, matrix = torch.ones(4, 2, 8, 8), torch.ones(8, 8)
    functions = [one for one in COMMON.values() if not lacking_dtypes(subject, lambda: one(image, matrix))]  # noqa: B023
    found, places = [], []
    for device in (subject.device, subject.second_device()):
        generator = torch.Generator().manual_seed(3)
        inputs = [torch.randn(4, 2, 8, 8, generator=generator), torch.randn(8, 8, generator=generator)]
        there = [one.to(device).requires_grad_() for one in inputs]
        results = [function(*there) for function in functions]
        results[-1].register_hook(lambda _: places.append(torch.empty(1, device=subject.device_type).device))
        gradients = torch.autograd.grad(sum(result.square().sum() for result in results), there)  # type: ignore[arg-type]
        assert_on_device(device, *results, *gradients)
        assert places == [device], f"in a hook of a tensor on {device}, a new tensor is on {places}"
        places.clear()
        found.append([gradient.cpu() for gradient in gradients])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@check("training")
def second_derivatives(subject: Subject) -> None:
    """The gradient of a gradient has the same values as on the CPU, and is on the device."""
    import torch

    def second(device: torch.device) -> torch.Tensor:
        x = torch.linspace(0.5, 2.0, 5).to(device).requires_grad_()
        weights = torch.linspace(1.0, -2.0, 5).to(device)
        (first,) = torch.autograd.grad((x.sin() * x.exp() * weights).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad((first * weights).sum(), x)
        return found

    found = second(subject.device)
    subject.assert_on_device(found)
    torch.testing.assert_close(found.cpu(), second(torch.device("cpu")))


@check("training")
def activation_checkpointing(subject: Subject) -> None:
    """When ``torch.utils.checkpoint`` repeats the forward pass, it draws the same dropout mask again. The gradients of the input and the
    parameters equal those without checkpointing."""
    import torch
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Tanh()).to(subject.device)
    x = torch.randn(16, 32, device=subject.device, requires_grad=True)
    found = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.default_generator.manual_seed(7)
        subject.accelerator.manual_seed(7)
        gradients = torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()])
        found.append([gradient.cpu() for gradient in gradients])
    assert all(map(torch.equal, *found)), "recomputation drew another mask than the forward pass"


@check("training", requires=["random_state", "numbered_devices"], over=["reentrant", "non-reentrant"])
def checkpointing_on_another_device(subject: Subject, way: str) -> None:
    """When ``torch.utils.checkpoint`` repeats a function with arguments on two devices, only one of which is the current device, the
    function draws the same dropout masks again on both devices. The gradient equals that without checkpointing. After the backward pass,
    both devices draw the same numbers as without checkpointing."""
    import torch
    from torch.utils.checkpoint import checkpoint

    devices = (subject.device, subject.second_device())
    other = torch.linspace(1, 2, 200, device=devices[1])  # without a gradient: torch does not support repetition in two threads at once

    def forward(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * x, 0.5) * (1 + torch.nn.functional.dropout(other, 0.5).to(x.device))

    found = []
    for run in (forward, lambda *inputs: checkpoint(forward, *inputs, use_reentrant=way == "reentrant")):
        torch.manual_seed(5)
        x = torch.linspace(1, 2, 200, device=subject.device).requires_grad_()
        run(x, other).sum().backward()
        found.append([x.grad.cpu(), *(torch.rand(20, device=device).cpu() for device in devices)])  # type: ignore[union-attr]
    names = ["the gradient", *(f"the next random numbers of {device}" for device in devices)]
    wrong = [name for name, one, another in zip(names, *found, strict=True) if not torch.equal(one, another)]
    assert not wrong, f"these differ from those without checkpointing: {', '.join(wrong)}"
