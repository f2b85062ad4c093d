"""A precision stores parameters, and does its computations, in the dtypes that it declares. It also converts arguments and results, but
changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


@check("smoke", kind="precision")
def parameters_are_stored_as_declared(subject: Subject) -> None:
    """The floating-point parameters of a prepared module have the dtype that the precision's name states, as in ``bf16-true``. If the name
    states no dtype, each of them has the dtype of a floating-point ``dtype.*`` entry in ``required_capabilities``, or float32 if there is
    no such entry. The gradient and the optimizer state of a parameter have the same dtype as the parameter."""
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of, short
    from accelkit_conformance.oracle.precision_training import trainer

    declared = declaration_of(subject.plugin())
    trained = trainer(subject, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    trained.step()
    for name, parameter in trained.model.named_parameters():
        if parameter.is_floating_point():
            assert parameter.dtype in declared.stored, (
                f"{name} is stored in {parameter.dtype}; {declared.source} declares {short(declared.stored)}"
            )
        if parameter.grad is not None:
            assert parameter.grad.dtype == parameter.dtype, f"the gradient of {name} is in {parameter.grad.dtype}"
            moment = trained.optimizer.state[parameter]["momentum_buffer"]
            assert moment.dtype == parameter.dtype, f"the optimizer's state of {name} is in {moment.dtype}"


@check("smoke", kind="precision")
def layers_compute_as_declared(subject: Subject) -> None:
    """The layers of a prepared module compute in the dtype that the precision's name states. If the name states no dtype, the layers
    compute in the dtype of an ``autocast.*`` entry in ``required_capabilities`` or, if there is no such entry, in the declared dtype of the
    parameters."""
    from accelkit_conformance.oracle.precision_declarations import declaration_of, short
    from accelkit_conformance.oracle.precision_training import trainer

    declared = declaration_of(subject.plugin())
    trained = trainer(subject)
    trained.loss()
    found: Any = trained.model.seen
    assert len(found) == 1, f"a forward pass called the model {len(found)} times"
    assert found[0] in declared.computed, f"layers compute in {found[0]}; {declared.source} declares {short(declared.computed)}"


@check("smoke", kind="precision")
def arguments_are_converted_wherever_they_are(subject: Subject) -> None:
    """All floating-point tensors in the arguments of a forward pass reach the module in the same dtype: float32 or a declared dtype of the
    parameters. Their values change by at most 2 %. The tensors may be positional or keyword arguments, or be nested in dicts, lists,
    tuples, named tuples and dataclasses. Integers, booleans and other objects reach the module unchanged."""
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of, short

    model, batch, rest, options = _nested(subject)
    model(batch, *rest, **options)
    received = dict(_leaves((model.received[0], *model.received[1], model.received[2])))
    dtypes = {path: leaf.dtype for path, leaf in received.items() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()}
    allowed = declaration_of(subject.plugin()).stored | {torch.float32}
    for path, dtype in dtypes.items():
        assert dtype in allowed, f"the argument {path} is in {dtype}, not in {short(frozenset(allowed))}"
        assert dtype == next(iter(dtypes.values())), f"the argument {path} is in {dtype}, and another one in {next(iter(dtypes.values()))}"
    for path, given in _leaves((batch, *rest, options)):
        got = received.get(path)
        if not isinstance(given, torch.Tensor):
            assert got == given, f"the argument {path} is {given!r}, and the module received {got!r}"
        else:
            assert isinstance(got, torch.Tensor), f"the argument {path} is a tensor, and the module received {got!r}"
            assert given.is_floating_point() or (got.dtype, got.tolist()) == (given.dtype, given.tolist()), (
                f"the argument {path} was changed"
            )
            assert torch.allclose(got.double().cpu(), given.double().cpu(), rtol=0.02), f"the argument {path} has other values"


@check("training", kind="precision")
def arguments_stay_what_they_were(subject: Subject) -> None:
    """A forward pass does not change the caller's arguments: the containers have the same items, and the tensors have the same values."""
    import torch

    model, batch, rest, options = _nested(subject)
    before = {path: (leaf, leaf.clone() if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in _leaves((batch, *rest, options))}
    model(batch, *rest, **options)
    after = dict(_leaves((batch, *rest, options)))
    assert list(after) == list(before), "a forward pass changed a container in the arguments"
    for path, (leaf, value) in before.items():
        assert after[path] is leaf, f"a forward pass replaced the caller's {path}"
        assert not isinstance(leaf, torch.Tensor) or torch.equal(leaf, value), f"a forward pass changed the values of the caller's {path}"


@check("smoke", kind="precision")
def results_have_full_precision(subject: Subject) -> None:
    """All floating-point tensors in the result of a forward pass are float32 or wider, however deeply they are nested, so that losses and
    metrics have full precision. Containers keep their types, and integers, booleans and other objects are unchanged."""
    import torch

    model, batch, rest, options = _nested(subject)
    result = model(batch, *rest, **options)
    leaves = dict(_leaves(result))
    assert [type(result), type(result["list"][1][1]).__name__, type(result["batch"]).__name__] == [dict, "Pair", "Batch"]
    for path, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            assert leaf.dtype in (torch.float32, torch.float64), f"the result {path} is in {leaf.dtype}"
    assert (result["mask"].dtype, result["list"][1][1].label.dtype) == (torch.bool, torch.int64)
    assert (result["count"], result["batch"].name) == (3, "kept")


@check("training", kind="precision", over=["module_init_context", "tensor_init_context"])
def contexts_create_what_is_stored(subject: Subject, name: str) -> None:
    """The bias of a ``Linear`` created inside ``module_init_context`` and a tensor created inside ``tensor_init_context`` are float32, or
    have a dtype in which the precision stores parameters. Leaving the context, even through an error, restores torch's default dtype. If
    one ``tensor_init_context`` is nested in another, leaving the inner one does not end the outer one.
    """
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of, short

    runtime = subject.runtime()
    _ = runtime.device
    context = getattr(runtime.precision, name)
    allowed = declaration_of(subject.plugin()).stored | {torch.float32}
    with context():
        found = torch.nn.Linear(16, 16).bias.dtype if name == "module_init_context" else torch.ones(1).dtype
        with context():
            pass
        assert torch.ones(1).dtype == found or name == "module_init_context", f"leaving an inner {name} ends the outer one"
    assert found in allowed, f"{name} creates {found}, not {short(frozenset(allowed))}"
    assert torch.ones(1).dtype == torch.float32, f"after {name}, the default dtype is {torch.ones(1).dtype}"
    try:
        with context():
            raise KeyError
    except KeyError:
        pass
    assert torch.ones(1).dtype == torch.float32, f"after an error inside {name}, the default dtype is {torch.ones(1).dtype}"


@check("training", kind="precision", over=["pass", "error"])
def forward_passes_leave_no_trace(subject: Subject, when: str) -> None:
    """Neither a forward pass nor an error inside a forward pass changes torch's default dtype, the grad mode, or whether autocast is
    enabled.
    """
    import torch

    from accelkit_conformance.oracle.precision_training import trainer

    trained = trainer(subject)
    kind = subject.accelerator.autocast_device_type
    before = (torch.get_default_dtype(), torch.is_autocast_enabled(kind), torch.is_grad_enabled())
    if when == "pass":
        trained.loss()
    else:
        is_refused = False
        try:
            trained.model(torch.ones(3, 5, device=subject.device))
        except Exception:  # any class of error, because the layers may come from another package
            is_refused = True
        assert is_refused, "a Linear layer accepted a batch with the wrong number of features"
    after = (torch.get_default_dtype(), torch.is_autocast_enabled(kind), torch.is_grad_enabled())
    assert after == before, f"the default dtype, autocast and grad mode were {before} before the forward pass and {after} after it"


@check("training", kind="precision")
def modules_keep_their_structure(subject: Subject) -> None:
    """A prepared module keeps all keys of its state dict. Its frozen parameters stay frozen, the bias of its batch normalisation stays
    trainable, its shared weights stay shared, and its integer buffers keep their dtype. A forward pass in training mode updates the
    module's buffers. A forward pass in evaluation mode under ``torch.no_grad`` does not, and its result does not require a gradient."""
    import torch

    from accelkit_conformance.oracle.precision_models import FEATURES, Normalized

    runtime = subject.runtime()
    plain, model = Normalized(), Normalized()
    model.first.weight.requires_grad_(False)
    model = runtime.prepare(model)
    lost = set(plain.state_dict()) - set(model.state_dict())
    assert not lost, f"the state dict of the prepared module lacks {', '.join(sorted(lost))}"
    assert model.third.weight is model.second.weight, "the weight that two layers share became two weights"
    assert not model.first.weight.requires_grad, "a frozen parameter is trained after prepare"
    assert model.norm.bias.requires_grad, "a parameter is frozen after prepare"
    counter: torch.Tensor = model.norm.num_batches_tracked
    assert counter.dtype == torch.int64, f"an integer buffer became {counter.dtype}"
    batch = torch.randn(FEATURES, FEATURES, device=subject.device)
    model(batch)
    mean = model.norm.running_mean.clone()
    assert (counter.item(), bool(mean.any())) == (1, True), "a forward pass did not update the buffers"
    model.eval()
    with torch.no_grad():
        assert model(batch).requires_grad is False
    assert torch.equal(model.norm.running_mean, mean), "an evaluation changed the buffers"


def _nested(subject: Subject) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Return a prepared model and its arguments: a nested batch, further positional arguments, and keyword arguments."""
    import torch

    from accelkit_conformance.oracle.precision_models import FEATURES, ROWS, Batch, Nested, Pair

    model = subject.runtime().prepare(Nested())

    def floats(*size: int) -> torch.Tensor:
        return torch.linspace(-1, 1, 8, device=subject.device) if not size else torch.randn(*size, device=subject.device)

    integers, booleans = torch.arange(2**20, 2**20 + 5, device=subject.device), torch.tensor([True, False], device=subject.device)
    batch = {"x": floats(ROWS, FEATURES), "inner": [floats(), (floats(), integers)], "text": "kept", "nothing": None}
    options = {
        "scale": floats(),
        "deep": {"pairs": [Pair(floats(), integers)], "batch": Batch(floats(), "name")},
        "mask": booleans,
        "number": 0.1,
    }
    return model, batch, (floats(), [floats(), integers]), options


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested data, each with its path."""
    import dataclasses

    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list | tuple):
        items = list(enumerate(data))
    elif dataclasses.is_dataclass(data):
        items = list(vars(data).items())
    else:
        yield path, data
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
