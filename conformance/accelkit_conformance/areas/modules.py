"""Every module of torch.nn gives the same results on the device as on the CPU: outputs, gradients of parameters and inputs, and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.subject import assert_on_device

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SMOKE = (
    "Linear",
    "Conv2d",
    "BatchNorm2d",
    "LayerNorm",
    "Embedding",
    "GELU",
    "CrossEntropyLoss",
    "MultiheadAttention",
    "LSTM",
    "MaxPool2d",
)


def _modules() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name in opdb.modules():
        yield "smoke" if name in _SMOKE else "training", (name,)


@check("training", requires=["dtype.float32"], over=_modules)
def module(subject: Subject, name: str) -> None:
    """In training mode and in evaluation mode, the outputs, the buffers and the gradients have the right values and are on the device. The
    backward pass starts from a random gradient for each output. In evaluation mode, the module is also called under ``torch.no_grad``. The
    values of modules that draw random numbers are not compared."""
    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
    from accelkit_conformance.oracle.module_compare import compare_module

    info = opdb.modules()[name]
    lacking: set[str] = set()
    is_any_possible = False
    for training in (True, False):
        for number, given in opdb.module_inputs(info, subject.most_samples, training=training):
            missing = lacking_dtypes(subject, lambda: _run_on_cpu(info, given))  # noqa: B023
            lacking |= set(missing)
            if missing:
                continue
            is_any_possible = True
            arguments, forward = given.constructor_input, given.forward_input
            facts = {"training": training, "number": number, "args": arguments.args, "kwargs": arguments.kwargs}
            with subject.sample(f"{'training' if training else 'evaluation'}, case {number}", facts):
                compare_module(
                    subject,
                    lambda: info.module_cls(*arguments.args, **arguments.kwargs),  # noqa: B023
                    None if forward is None else (forward.args, forward.kwargs),
                    training=training,
                    seed=f"{name}[{training},{number}]",
                    is_double=_is_double(arguments),
                )
    if not is_any_possible:
        subject.needs(*lacking)


def _is_double(arguments: Any) -> bool:
    """Return whether an argument of a module's constructor is a float64 tensor, such as the random samples of FractionalMaxPool."""
    import torch

    from accelkit_conformance.oracle.sample_transfer import tensors

    return any(one.dtype is torch.float64 for one in tensors((arguments.args, arguments.kwargs)))


def _run_on_cpu(info: Any, given: Any) -> Any:
    """Run a module on the CPU with the input ``given``, and return the module's state, arguments and results.

    The check ``module`` runs this function to find the dtypes that a module needs. If the device lacks one of these dtypes, the check skips
    this input.

    If an argument of the module's constructor is a float64 tensor, the module is not created, and only the constructor's arguments are
    returned. If ``given`` has no forward input, the module is created but not called, and only its state is returned.
    """
    from accelkit_conformance.oracle.module_compare import run_module

    arguments = given.constructor_input
    if _is_double(arguments):
        return arguments.args, arguments.kwargs
    module = info.module_cls(*arguments.args, **arguments.kwargs)
    if given.forward_input is None:
        return list(module.state_dict().values())
    call = (given.forward_input.args, given.forward_input.kwargs)
    return list(module.state_dict().values()), call, run_module(module, call, "")


def _examples() -> Iterator[Case]:
    from accelkit_conformance.oracle.module_arguments import EXAMPLES

    for name in EXAMPLES:
        yield "training", (name, "float32")
        yield from (("full", (name, dtype)) for dtype in ("bfloat16", "float16"))


@check("training", requires=["dtype.{1}"], over=_examples)
def arguments(subject: Subject, name: str, dtype: str) -> None:
    """Modules give the right outputs, buffers and gradients in training mode and in evaluation mode, even with arguments that torch's
    ``module_db`` does not contain. In evaluation mode, the modules are also called under ``torch.no_grad``. Convolutions have strides,
    dilations, groups and padding modes. Attention has one mask that all heads share, or a separate mask for each head, with and without
    padding. Recurrent modules have several layers, two directions, packed sequences and initial states, and recurrent cells have states. If
    the device raises a RuntimeError for initial states that are not contiguous, it gets contiguous ones. Embeddings have a ``padding_idx``,
    and embedding bags have each of their modes. Weights are normalised by ``weight_norm`` and ``spectral_norm``, and losses have weights.
    Normalisation, pooling and resizing have less common options. Parameters and arguments have the given dtype. Examples that the CPU does
    not support in this dtype, or that need a dtype which the device lacks, are left out. The values of modules that draw random numbers are
    not compared.
    """
    from accelkit_conformance.oracle.module_arguments import EXAMPLES, check_example

    if name in ("attention", "transformers"):
        subject.needs("bool")  # the dtype of causal masks
    for number, example in enumerate(EXAMPLES[name]):
        check_example(subject, example, dtype, f"{name}[{number}]")


@check("training", requires=["dtype.float32"], over=names_of("module_programs", "PROGRAMS", "training"))
def programs(subject: Subject, name: str) -> None:
    """Programs with modules give the same results as on the CPU. They switch modules between training and evaluation mode, change the
    momentum of BatchNorm, initialise lazy modules, and call modules with ``torch.func.functional_call``. They load state dicts, convert
    modules to other dtypes and memory layouts, use ``torch.nn.utils`` and packed sequences, tie weights, and train parameters that are
    views of a flat buffer. They normalise bfloat16 and float16 batches with float32 parameters, call modules with empty batches, compute
    CTC losses of empty targets and of targets with hundreds of labels, and compute attention over 70 tokens in float32, bfloat16 and
    float16, with and without masks. Weights that ``torch.nn.init`` draws at random need not equal those on the CPU, but they have the right
    device, mean and standard deviation. The rows of a matrix that ``orthogonal_`` fills are orthonormal.
    """
    from accelkit_conformance.oracle.module_programs import PROGRAMS
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, PROGRAMS[name])


@check("training", requires=["dtype.float32"], over=names_of("module_sequences", "PROGRAMS", "training"))
def repeated_calls(subject: Subject, name: str) -> None:
    """Each of several calls to a module gives the same output and gradients as on the CPU, even if one property changes between the calls.
    The property may be an option of the module, such as a stride, an epsilon, a slope or a dimension; the shapes of the inputs then stay
    the same. The property may also be the size or the memory layout of the batch, the dtype of the module and the batch, or whether
    gradients are recorded. If the dtype changes, only the outputs are compared. After calls with other options, sizes or dtypes, the
    first call is repeated. Batches may be empty. The case ``larger_sizes`` calls modules whose inputs have several hundred rows and
    about a hundred features, and recurrent modules with four layers. The case ``many_rows`` calls layers with 40,003 rows between two calls
    with three rows, and recurrent modules and cells with at least 65,543 rows after a call with few rows. The case ``packed_sequences``
    calls recurrent modules with a packed batch of 300 sequences. The case ``parts_of_results`` compares the gradients of sums of parts
    of the outputs of recurrent modules.
    """
    from accelkit_conformance.oracle.module_sequences import PROGRAMS
    from accelkit_conformance.oracle.programs import compare_program

    compare_program(subject, name, PROGRAMS[name])


def _converted() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    yield "training", ("tensors",)
    for name in opdb.modules():
        if not name.startswith("FractionalMaxPool"):  # their inputs in torch's database are float64
            yield "training" if name in _SMOKE else "full", (name,)


@check("full", requires=["dtype.float32"], over=_converted)
def converted_on_the_device(subject: Subject, name: str) -> None:
    """A module is created on the CPU, moved to the device and called there in float32. It is then converted on the device to bfloat16, back
    to float32, to float16 and back to float32. The module is called after each conversion, and gives the same outputs, gradients and
    buffers as if it had stayed on the CPU. Its parameters and their gradients have the same dtypes and values as on the CPU, and its
    buffers have the same dtypes. The conversions are made with ``to``, ``bfloat16``, ``half`` and ``float``. Dtypes that the CPU or the
    device does not support for the module are left out. The values of modules that draw random numbers are not compared.

    The case ``tensors`` converts a tensor instead. Functions that use this tensor as a weight, such as ``embedding``, ``linear`` and
    ``layer_norm``, give the same results and gradients as on the CPU before and after each conversion.
    """
    from accelkit_conformance.oracle.converted_modules import check_converted_module, check_converted_tensors

    if name == "tensors":
        check_converted_tensors(subject)
    else:
        check_converted_module(subject, name)


@check("smoke")
def to_moves_everything(subject: Subject) -> None:
    """``Module.to`` moves parameters, buffers and gradients to the device, and ``to("cpu")`` moves them back. No value changes, and all
    parameters stay leaves that require a gradient."""
    import torch

    from accelkit_conformance.oracle.layers import batch_norm

    def everything() -> list[torch.Tensor]:
        gradients = [one.grad for one in layer.parameters() if one.grad is not None]
        return [*layer.parameters(), *layer.buffers(), *gradients]

    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), batch_norm(subject, 3))
    layer(torch.randn(4, 3)).square().mul(torch.arange(3.0)).sum().backward()
    before = [one.detach().clone() for one in everything()]
    for device in (subject.device, torch.device("cpu")):
        layer.to(device)
        assert len(everything()) == len(before), f"a gradient was lost on the way to {device}"
        assert_on_device(device, *everything())
        assert all(one.requires_grad and one.is_leaf for one in layer.parameters()), (
            f"a parameter that was moved to {device} is not a leaf that requires a gradient"
        )
        assert all(torch.equal(one.detach().cpu(), old) for one, old in zip(everything(), before, strict=True)), (
            f"a value changed on the way to {device}"
        )


@check("training")
def to_empty_from_meta(subject: Subject) -> None:
    """``to_empty`` allocates memory on the device for a module that was created on ``meta``, and ``reset_parameters`` initialises the
    module on the device."""
    import torch

    with torch.device("meta"):
        layer = torch.nn.Linear(20, 30)
    layer.to_empty(device=subject.device)
    layer.reset_parameters()
    subject.assert_on_device(layer.weight, layer.bias)
    assert 0 < layer.weight.std().item() < 1
