"""For every operator that has a gradient, the gradients on the device match gradients that the CPU computes in float64. The device's error
may be at most eight times the error of the CPU's kernels in the same dtype, or at most 8 eps of this dtype if 8 eps is larger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.profiles.operators import CORE, DTYPES, SMOKE

if TYPE_CHECKING:
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
    """For up to eight sample inputs of an operator, the gradients of all inputs that require gradients have the right dtype and shape, and
    are on the device. The values of the gradients are right, too, unless the operator draws random numbers. The output gradients are
    random, or all 1 if the input has equal elements among which the operator (for example ``max``) may choose."""
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


def _differentiable() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if opdb.supports(op, "float32", backward=True) and "sparse" not in name:
            yield "training" if name in ("add", "cumsum", "matmul", "mul") else "full", (name,)  # most others fail on XLA


@check("full", requires=["dtype.float32"], over=_differentiable)
def recorded_graphs(subject: Subject, name: str) -> None:
    """The device and the CPU agree on which results of an operator require a gradient and which have a ``grad_fn``, both when gradients are
    recorded and under ``no_grad``. The check uses up to two samples in float32. Operators with ``sparse`` in their names are left out."""
    from accelkit_conformance.oracle.recorded_graphs import check_graphs

    check_graphs(subject, name)


def _recorded() -> Iterator[Case]:
    from accelkit_conformance.oracle.recorded_calls import overloads

    yield from (("full", (name,)) for name in overloads() if "_backward" in name)


@check("full", requires=["dtype.float32"], over=_recorded, seconds=180)
def conditions(subject: Subject, overload: str) -> None:
    """An ATen overload with ``_backward`` in its name gives the same results as on the CPU. The check repeats a recorded call to the
    overload under other conditions, for example with other sizes and memory layouts of the arguments, with NaN and infinities, in each
    gradient mode, and on a second device, thread or stream. If the device has streams and pinned memory, another call runs on a new stream
    on which copies that write the arguments are still queued. If the device's module has ``empty_cache``, this function runs right after
    another call, before the result of that call is read. The checks ``operators/conditions`` and ``layout/conditions`` use the same
    conditions for other overloads."""
    from accelkit_conformance.oracle.condition_rows import rows
    from accelkit_conformance.oracle.conditions import check_under_conditions

    check_under_conditions(subject, overload, rows(is_contiguous=True) + rows(is_contiguous=False))


@check("smoke", over=names_of("differentiable", "OUTPUT_GRADIENTS", "smoke"))
def output_gradients(subject: Subject, layout: str) -> None:
    """For an output gradient that is expanded, transposed, strided or zero, the gradients of common operators match the gradients that the
    CPU computes, including in a second backward pass through the same graph. The backward passes do not modify the output gradient."""
    from accelkit_conformance.oracle.differentiable import COMMON, OUTPUT_GRADIENTS, check_function, random_inputs

    for name, function in COMMON.items():
        check_function(subject, name, function, random_inputs((4, 2, 8, 8), (8, 8)), change=OUTPUT_GRADIENTS[layout])


@check("training", requires=["dtype.float32"], over=names_of("differentiable", "SEVERAL_INPUTS", "training"))
def some_inputs_require_grad(subject: Subject, name: str) -> None:
    """The gradients of a function with several inputs match the gradients that the CPU computes, both if only one input requires a gradient
    and if all inputs except one require gradients. The gradients of a second backward pass through the same graph match, too."""
    from accelkit_conformance.oracle.differentiable import SEVERAL_INPUTS, check_function, random_inputs

    function, shapes = SEVERAL_INPUTS[name]
    numbers = range(len(shapes))
    for wanted in dict.fromkeys([*((one,) for one in numbers), *(tuple(one for one in numbers if one != left) for left in numbers)]):
        check_function(subject, f"{name}, inputs {wanted}", function, random_inputs(*shapes), wanted=wanted)


@check("full", requires=["dtype.float32"], over=names_of("image_functions", "FUNCTIONS"))
def many_planes(subject: Subject, name: str, dimension: str) -> None:
    """The results and gradients of a function of images, volumes or rows are the same as on the CPU if there are 65,543 images, channels,
    rows or sampled points, or if the dimensions after the padded one contain 65,792 elements."""
    from accelkit_conformance.oracle.image_functions import check_many_planes

    check_many_planes(subject, name, dimension)


@check("full", requires=["dtype.float32"], over=names_of("image_functions", "CHANNELS"))
def many_channels(subject: Subject, name: str) -> None:
    """The results and gradients of a function of images are the same as on the CPU for images with 8, 64, 257, 512 and 1025 channels. The
    images are contiguous, in channels_last, or some channels of larger images in channels_last."""
    from accelkit_conformance.oracle.image_functions import check_many_channels

    check_many_channels(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("differentiable", "PRODUCTS"))
def empty_inputs(subject: Subject, name: str) -> None:
    """If a dimension has length 0, the result and the gradients of a product of matrices and vectors, or of ``cdist``, are the same as on
    the CPU. Each dimension of the inputs is tested, together with the dimensions that must have the same length. A call that the CPU
    rejects is left out."""
    from accelkit_conformance.oracle.differentiable import check_with_empty_dimensions

    check_with_empty_dimensions(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("differentiable", "DISTANCES"))
def distances(subject: Subject, name: str) -> None:
    """The distances between many pairs of vectors, and their gradients, match those that the CPU computes. ``cdist`` is called with the
    norms 1, 1.5, 2, 3 and infinity, and ``pdist`` with the norms 1 and 2. There are up to 1,127,500 pairs."""
    from accelkit_conformance.oracle.differentiable import DISTANCES, check_function, random_inputs

    function, shapes = DISTANCES[name]
    check_function(subject, name, function, random_inputs(*shapes), num_terms=max(map(max, shapes)))


@check("training", requires=["dtype.float32"], over=names_of("several_outputs", "SEVERAL_OUTPUTS", "training"))
def one_output_gets_a_gradient(subject: Subject, name: str) -> None:
    """If only one output of a function with several outputs is used in the backward pass, the gradients match the gradients that the CPU
    computes. For example, only the last cell state of an LSTM is used. The check uses each output in turn. It compares only the gradients
    of inputs on which all outputs depend."""
    from accelkit_conformance.oracle.several_outputs import check_each_output

    check_each_output(subject, name)


@check("training", requires=["dtype.float32", "dtype.int64"])
def repeated_indices(subject: Subject) -> None:
    """Indexing functions give the right gradients if several indices, positive or negative, refer to the same element. For example, if an
    element is read several times, its gradient is the sum of the gradients of all reads. With ``scale_grad_by_freq=True``, the sum is
    divided by the number of reads."""
    from accelkit_conformance.oracle.differentiable import INDEXING, check_function, random_inputs

    for name, (function, wanted) in INDEXING.items():
        check_function(subject, name, function, random_inputs((6, 4), (8, 4)), wanted=wanted)


@check("smoke")
def leaf_gradients_stay(subject: Subject) -> None:
    """The gradient of a leaf has the leaf's device, dtype and shape. A second backward pass adds to the gradient.
    ``zero_grad(set_to_none=True)`` removes the gradient, and the next backward pass computes a new gradient."""
    from accelkit_conformance.oracle.autograd_contexts import check_leaf_gradients_stay

    check_leaf_gradients_stay(subject)


@check("training", requires=["dtype.float32", "dtype.int64"])
def rejected(subject: Subject) -> None:
    """Misuse of autograd raises RuntimeError or TypeError. Most messages must contain a certain word, such as ``leaf``. The check modifies
    tensors in place (leaves, inference tensors, saved tensors and outputs of ``unbind``), uses gradients of a wrong shape or dtype,
    makes integers require gradients, asks for gradients of unused inputs, deep-copies a non-leaf, and converts a leaf that requires
    gradients to NumPy.
    """
    from accelkit_conformance.oracle.autograd_errors import check_rejected

    check_rejected(subject)


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
    from accelkit_conformance.oracle.autograd_contexts import check_custom_functions

    check_custom_functions(subject)


@check("smoke")
def no_grad_and_inference_mode(subject: Subject) -> None:
    """Under ``torch.no_grad`` and ``torch.inference_mode``, operators record no graph and give the right values. Results under
    ``inference_mode`` are inference tensors, and results under ``no_grad`` are not. After a ``with`` block of either mode, graphs are
    recorded again, even if the block ended with an error."""
    from accelkit_conformance.oracle.autograd_contexts import check_no_grad_and_inference_mode

    check_no_grad_and_inference_mode(subject)


@check("smoke", requires=["numbered_devices"])
def backward_on_another_device(subject: Subject) -> None:
    """A backward pass on a device that is not current gives the same gradients as a backward pass on the current device. Results and
    gradients are on the device of the inputs. A tensor that a backward hook creates without a device index is also on this device."""
    from accelkit_conformance.oracle.autograd_contexts import check_backward_on_another_device

    check_backward_on_another_device(subject)


def _derivatives() -> Iterator[Case]:
    from accelkit_conformance.oracle.derivatives import FUNCTIONS, KINDS, has_derivative

    for name in FUNCTIONS:
        for kind in filter(lambda kind: has_derivative(name, kind), KINDS):
            yield "full" if kind in ("partly_vectorized", "jacobian", "vectorized_tangents") else "training", (name, kind)


@check("training", requires=["dtype.float32"], over=_derivatives)
def derivatives(subject: Subject, name: str, kind: str) -> None:
    """The derivatives of a function match those that the CPU computes in double precision. The test ``second`` compares the gradients of
    the function, and the gradients of these gradients with respect to the inputs and the output gradient. The test ``forward_mode``
    compares the results of ``torch.func.jvp``. The test ``vectorized`` applies ``torch.vmap`` to the function, and also to the gradient
    that ``torch.func.grad`` gives for a scalar loss. The loss is computed from the function's result. The test ``partly_vectorized``
    applies ``torch.vmap`` with inputs that are stacked along the last dimension, and with ``in_dims=None`` for each input in turn. The test
    ``jacobian`` compares the Jacobians that ``torch.func.jacrev`` gives for the first five elements of the result, and the result of
    ``torch.func.jvp`` for the gradients of a loss. The test ``vectorized_tangents`` compares the results of ``torch.vmap`` over
    ``torch.func.jvp``, and those of ``torch.func.jacfwd`` for a scalar loss. ``torch.func.jvp`` of LSTM and GRU is not tested. Derivatives
    that torch cannot compute on the CPU are left out."""
    from accelkit_conformance.oracle.derivatives import check_derivatives

    check_derivatives(subject, name, kind)


@check("training", requires=["dtype.float32"], over=names_of("special_gradients", "FUNCTIONS", "training"))
def special_points(subject: Subject, name: str) -> None:
    """Where a function is not smooth, its result and gradients match those on the CPU. Each element differs from the CPU's element by at
    most 1e-6 plus 1e-5 times the absolute value of the CPU's element. The points are zero, infinity, NaN, the bounds of functions such
    as ``hardtanh`` and ``clamp``, and points where several elements are equal. For example, the gradient of ``relu`` at 0 is 0,
    ``maximum`` divides its gradient between two equal numbers, and the gradient of the norm of zeros is 0, not NaN.
    """
    from accelkit_conformance.oracle.special_gradients import check_gradients

    check_gradients(subject, name)


@check("training", requires=["dtype.float32", "random_state"], over=names_of("random_gradients", "FUNCTIONS", "training"))
def random_functions(subject: Subject, name: str) -> None:
    """The gradient of a function that draws random numbers, such as an LSTM with dropout between its layers, matches finite differences of
    the function in three directions. Two calls with the same seed give the same result, and a call with another seed gives another
    result."""
    from accelkit_conformance.oracle.random_gradients import check_gradient

    check_gradient(subject, name)


@check("training", requires=["dtype.float32"], over=names_of("in_place_programs", "DIFFERENTIATED", "training"))
def in_place(subject: Subject, name: str) -> None:
    """After an in-place change of a non-leaf tensor or of one of its views, the tensor, a view that was created before the change, and the
    gradients are the same as on the CPU. The change increases the tensor's version counter, and the view then has the same version as
    the tensor.
    """
    from accelkit_conformance.oracle import in_place_programs
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, lambda device: in_place_programs.run(in_place_programs.DIFFERENTIATED[name], device))


@check("training", requires=["dtype.float32", "dtype.int64", "dtype.bool"])
def versions(subject: Subject) -> None:
    """A call that writes to a tensor increases the tensor's version, if the same call on the CPU does so. Autograd compares versions to
    detect that a saved tensor has changed. A view has the same version as its base. The check writes to the tensor with in-place
    operators, random draws, assignments, ``out=`` and functions of torch.nn. It also writes to views of the tensor and to a detached
    tensor that shares its memory.
    """
    from accelkit_conformance.oracle.in_place_programs import check_versions

    check_versions(subject)


@check("training", requires=["dtype.float32"], over=names_of("autograd_programs", "PROGRAMS", "training"))
def programs(subject: Subject, name: str) -> None:
    """A program that uses autograd gives the same results, gradients and values of ``requires_grad`` as on the CPU. The programs use hooks
    for tensors, for modules and for saved tensors. They use custom functions, gradient modes, threads, anomaly detection, and activation
    checkpointing with nested arguments. They compute Hessians, and use batched output gradients and unused inputs. They differentiate
    through conversions to other dtypes and through operators that run on the CPU. They repeat backward passes with
    ``retain_graph=True``, and add to gradients that exist already.
    """
    from accelkit_conformance.oracle.autograd_programs import PROGRAMS
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, PROGRAMS[name])


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
    assert all(map(torch.equal, *found)), "the recomputation and the forward pass drew different masks"


@check("training", requires=["random_state", "numbered_devices"], over=["reentrant", "non-reentrant"])
def checkpointing_on_another_device(subject: Subject, way: str) -> None:
    """A function has arguments on two devices, only one of which is the current device. When ``torch.utils.checkpoint`` recomputes the
    function, the function draws the same dropout masks again on both devices. The gradient equals that without checkpointing. After the
    backward pass, both devices draw the same numbers as without checkpointing."""
    from accelkit_conformance.oracle.autograd_contexts import check_checkpointing_on_another_device

    check_checkpointing_on_another_device(subject, way)


@check("full", requires=["dtype.float32"], over=names_of("differentiable", "COMMON", "full"))
def leaf_layouts(subject: Subject, name: str) -> None:
    """After two backward passes, the gradients of leaves are twice the gradients that the CPU computes, whatever the memory layout of the
    leaves: contiguous, expanded from one element, transposed, channels_last, strided, with an offset, or with gaps between rows. No
    gradient is an expanded tensor. If a leaf is dense in memory, its gradient has the same strides as the leaf in all dimensions whose
    length is not 1."""
    from accelkit_conformance.oracle.leaf_gradients import check_leaf_layouts

    check_leaf_layouts(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("custom_operators", "PROGRAMS", "full"))
def custom_operators(subject: Subject, name: str) -> None:
    """Operators that are defined with ``torch.library`` give the same results, gradients and values of ``requires_grad`` as on the CPU. The
    operators have a formula for gradients, save tensors in ``setup_context``, change an argument in place, have a rule for
    ``torch.vmap``, have a kernel of their own for the device type, or are compositions of other operators."""
    from accelkit_conformance.oracle.custom_operators import PROGRAMS
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, PROGRAMS[name])
