"""With ``torch.use_deterministic_algorithms``, the same program with the same seed gives the same results, bit for bit, and indexing gives
the right results. An operation may instead raise an error that says that the operation is not deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_OPERATORS = ("index_add", "scatter_add", "index_put", "cumsum", "conv2d", "embedding", "interpolate", "sum", "matmul", "put", "max_pool2d")


def _calls(subject: Subject) -> dict[str, Callable[[], torch.Tensor]]:
    import torch
    import torch.nn.functional as F  # the usual name

    device = subject.device
    index = torch.randint(0, 50, (5000,), device=device)
    values = torch.randn(5000, device=device)
    image = torch.randn(2, 3, 16, 16, device=device, requires_grad=True)
    kernel = torch.randn(8, 3, 3, 3, device=device, requires_grad=True)
    table = torch.randn(50, 8, device=device, requires_grad=True)
    square = torch.randn(128, 128, device=device)

    def gradient(result: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(result.square().sum(), of)[0]

    return {
        "index_add": lambda: torch.zeros(50, device=device).index_add(0, index, values),
        "scatter_add": lambda: torch.zeros(50, device=device).scatter_add(0, index, values),
        "index_put": lambda: torch.zeros(50, device=device).index_put((index,), values, accumulate=True),
        "put": lambda: torch.zeros(50, device=device).put_(index, values, accumulate=True),
        "cumsum": lambda: values.cumsum(0),
        "conv2d": lambda: gradient(F.conv2d(image, kernel), kernel),
        "embedding": lambda: gradient(F.embedding(index, table), table),
        "interpolate": lambda: gradient(F.interpolate(image, scale_factor=2.0, mode="bilinear"), image),
        "sum": lambda: values.sum(0),
        "matmul": lambda: square @ square,
        "max_pool2d": lambda: gradient(F.max_pool2d(image, 3, 1), image),
    }


@check("training", requires=["deterministic"], over=_OPERATORS)
def five_runs_are_equal(subject: Subject, name: str) -> None:
    """In deterministic mode, five runs of an operator give the same result, bit for bit, or the operator raises a RuntimeError that says
    that the operator is not deterministic. The tested operators are those whose forward or backward pass could otherwise add numbers in a
    different order in each run."""
    import torch

    subject.needs("int64")  # the dtype of the indices
    torch.use_deterministic_algorithms(True)
    call = _calls(subject)[name]
    try:
        runs = [call().cpu() for _ in range(5)]
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        return
    assert all(torch.equal(runs[0], run) for run in runs[1:]), "five runs gave different results"


@check("training", requires=["deterministic", "dtype.float32", "dtype.int64", "dtype.bool"])
def indexing_is_right(subject: Subject) -> None:
    """In deterministic mode, assignments ``x[indices] = values`` and indexing functions, such as ``index_add`` and ``scatter``, give the
    same results and gradients as on the CPU. An operator may instead raise a RuntimeError that says that the operator is not deterministic.
    The tested dtypes are float32 and int64. The indices of an assignment are a mask, a list, or up to three index tensors, with or without
    a slice. They select no row, one row, several rows, every row, or one element. An index tensor may be on the CPU. The assigned values
    are one value for all elements, one row or one column for all indices, or a value for each element. In some calls to indexing
    functions, several indices name the same element."""
    from accelkit_conformance.oracle.deterministic_calls import check_deterministic_calls

    check_deterministic_calls(subject)


@check("training", requires=["deterministic", "random_state"])
def training_repeats(subject: Subject) -> None:
    """In deterministic mode, two training runs with dropout and the same seed end with the same parameters, bit for bit."""
    import torch

    torch.use_deterministic_algorithms(True)

    def trained() -> list[torch.Tensor]:
        torch.default_generator.manual_seed(1)
        subject.accelerator.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(20, 1)).to(
            subject.device
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(16, 10, device=subject.device)).square().mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    first, second = trained(), trained()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True)), "two training runs with the same seed differ"


@check("full", requires=["deterministic"], over=names_of("repeated_calls", "REPEATED"))
def calls_are_repeated(subject: Subject, name: str) -> None:
    """In deterministic mode, five runs of a call give the same result (or gradients), bit for bit, unless the call raises a RuntimeError
    that says that the call is not deterministic. Most of the calls write several values to one element, or add many numbers, in the forward
    or in the backward pass. Others, such as ``sort``, ``topk``, ``mode`` and ``median``, sort many equal numbers or choose among them; the
    indices must be the same each time, too. Unless a call has several right results, the result or the gradients are the same as on the
    CPU, within 0.2 % plus 0.002. An element to which several values are assigned has one of these values. A call that the device does not
    implement passes this check, because the tests of operators report it."""
    from accelkit_conformance.oracle.repeated_calls import check_repeated_call

    check_repeated_call(subject, name)


@check("full", requires=["deterministic"])
def warnings_are_not_errors(subject: Subject) -> None:
    """With ``use_deterministic_algorithms(True, warn_only=True)``, calls that are not deterministic on some devices, such as the backward
    pass of ``grid_sample``, raise no error and leave ``warn_only`` on. Seven calls are tested. Six of them give the same results or
    gradients as on the CPU. The seventh assigns several values to each element, and each element keeps one of those values."""
    from accelkit_conformance.oracle.repeated_calls import check_warnings_only

    check_warnings_only(subject)


@check("full", requires=["deterministic"])
def new_memory_is_filled(subject: Subject) -> None:
    """In deterministic mode, ``empty``, ``empty_strided``, ``empty_like``, ``new_empty`` and ``resize_`` fill new memory with NaN if the
    dtype is floating-point or complex, and otherwise with the largest value of the dtype, as described in torch's documentation. Each
    declared dtype is tested."""
    from accelkit_conformance.oracle.repeated_calls import check_filled_memory

    check_filled_memory(subject)
