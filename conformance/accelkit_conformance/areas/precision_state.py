"""The state of a precision is saved and restored bit for bit, and prepared modules can be copied, pickled and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.oracle.precision_training import Trainer
    from accelkit_conformance.subject import Subject


def _trained(subject: Subject) -> Trainer:
    """Return a trainer that has taken three steps, after a skipped step if the precision skips steps with infinite gradients."""
    import torch

    from accelkit.specs.overrides import overrides
    from accelkit.specs.precision import Precision
    from accelkit_conformance.oracle.precision_training import trainer

    def begun() -> Trainer:
        return trainer(subject, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3))

    trained = begun()
    if overrides(trained.precision, Precision, "pre_backward"):
        trained.poisoned_step(float("inf"))
        trained = trained if trained.runtime.optimizer_step_was_skipped else begun()
    for _ in range(3):
        trained.step()
    return trained


@check("smoke", kind="precision")
def checkpoints_restore_everything(subject: Subject) -> None:
    """``load_state`` in a new Runtime restores, bit for bit, the parameters, the scale and the state of the precision from a checkpoint
    that ``save_state`` wrote. Further steps in the new Runtime give exactly the same weights as further steps in the old Runtime."""
    import tempfile

    import torch

    from accelkit_conformance.oracle.precision_training import trainer, weights_of

    first = _trained(subject)
    saved, scale, weights = first.precision.state_dict(), first.scale(), weights_of(first.model)
    second = trainer(subject, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3))
    with tempfile.TemporaryDirectory() as folder:
        first.runtime.save_state(folder)
        second.runtime.load_state(folder)
    assert str(second.precision.state_dict()) == str(saved), f"the state was {saved}, and is {second.precision.state_dict()} after loading"
    assert second.scale() == scale, f"the scale was {scale:g}, and is {second.scale():g} after loading"
    for name, weight in weights_of(second.model).items():
        assert torch.equal(weight, weights[name]), f"{name} is not what was saved"
    for _ in range(3):
        first.step()
        second.step()
    for name, weight in weights_of(second.model).items():
        assert torch.equal(weight, weights_of(first.model)[name]), (
            f"after three more steps, {name} differs from that of a run without a checkpoint"
        )


@check("training", kind="precision")
def states_are_safe_and_independent(subject: Subject) -> None:
    """The state that the precision's ``state_dict`` returns does not change when it is saved with ``torch.save`` and loaded with
    ``torch.load(weights_only=True)``. Neither further steps nor a call to ``load_state_dict`` changes a state that ``state_dict`` has
    returned.
    """
    import copy
    import io

    import torch

    trained = _trained(subject)
    state = trained.precision.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert str(torch.load(file, weights_only=True)) == str(state)
    before = copy.deepcopy(state)
    trained.precision.load_state_dict(state)
    for _ in range(2):
        trained.step()
    assert str(state) == str(before), "steps changed a state that state_dict had returned before them"


@check("training", kind="precision")
def checkpoints_of_other_precisions_load(subject: Subject) -> None:
    """``load_state_dict({})`` changes neither the scale nor the state of the precision, and training can continue. ``{}`` is the state of a
    precision that has nothing to save."""
    trained = _trained(subject)
    scale, state = trained.scale(), str(trained.precision.state_dict())
    trained.precision.load_state_dict({})
    assert (trained.scale(), str(trained.precision.state_dict())) == (scale, state), "load_state_dict({}) changed the precision"
    trained.step()


@check("training", kind="precision", over=["deepcopy", "pickle"])
def copies_of_modules_compute_the_same(subject: Subject, how: str) -> None:
    """A copy of a prepared module, made by ``deepcopy`` or ``pickle`` after some steps, has the class of the original and computes the same
    results and gradients. Training the original does not change the copy."""
    import torch

    from accelkit_conformance.oracle.precision_training import mean_square, weights_of

    trained = _trained(subject)
    twin = _copy(trained.model, how)
    assert type(twin) is type(trained.model), f"the copy is a {type(twin).__name__}"
    weights = weights_of(twin)
    x, y = trained.data
    ours, theirs = trained.model(x), twin(x)
    assert ours.dtype == theirs.dtype, f"the copy returns {theirs.dtype}, and the original {ours.dtype}"
    assert torch.equal(ours, theirs), "the copy computes other values"
    found: list[list[Any]] = []
    for model in (trained.model, twin):
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found.append([gradient.cpu() for gradient in torch.autograd.grad(mean_square(model(x), y), trainable)])
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True)), "the copy has other gradients"
    trained.step()
    assert all(torch.equal(weight, weights[name]) for name, weight in weights_of(twin).items()), "a step of the original changed the copy"


@check("training", kind="precision", over=["deepcopy", "pickle"])
def copies_of_the_precision_have_its_state(subject: Subject, how: str) -> None:
    """A copy of the precision, made by ``deepcopy`` or ``pickle``, has the name of the original. A copy that is made after training also
    has the state of the original, and steps with the original do not change the copy.
    """
    fresh = subject.plugin()
    assert _copy(fresh, how).name == fresh.name
    trained = _trained(subject)
    twin, state = _copy(trained.precision, how), str(trained.precision.state_dict())
    assert (twin.name, str(twin.state_dict())) == (trained.precision.name, state), f"the copy's state is {twin.state_dict()}, not {state}"
    trained.poisoned_step(float("inf"))
    assert str(twin.state_dict()) == state, "steps with the original changed the copy"


def _copy(thing: Any, how: str) -> Any:
    import copy
    import pickle

    return copy.deepcopy(thing) if how == "deepcopy" else pickle.loads(pickle.dumps(thing))  # noqa: S301


@check("training", kind="precision", over=["before", "after"], seconds=120)
def compiled_modules_compute_the_same(subject: Subject, when: str) -> None:
    """A module is compiled before or after ``prepare``, with the ``aot_eager`` backend of ``torch.compile``. The results of the compiled
    module have the dtype of the eager module's results. The norm of the difference between the two modules' results, divided by the norm
    of the eager module's results, is at most the tolerance of ``gradients_match_float64``. The gradients of the compiled module match
    the gradients that are computed in float64, within the same tolerance.
    """
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of
    from accelkit_conformance.oracle.precision_training import Trainer, check_close, exact_gradients, model_and_data, sgd, trainer

    torch._dynamo.reset()
    eager = trainer(subject)
    right = eager.model(eager.data[0])
    runtime = subject.runtime()
    model, *_ = model_and_data()
    if when == "before":
        model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    model, optimizer = runtime.prepare(model, sgd(model.parameters()))
    if when == "after":
        model = torch.compile(model, backend="aot_eager")
    compiled = Trainer(runtime, model, optimizer, eager.data)
    found = compiled.model(compiled.data[0])
    assert found.dtype == right.dtype, f"the compiled module returns {found.dtype}, and the eager one {right.dtype}"
    error = float((found - right).norm() / right.norm())
    assert error <= declaration_of(subject.plugin()).tolerance, f"the compiled module's result differs by {error:.2g} from the eager one's"
    check_close(subject, compiled.finite_gradients(), exact_gradients(), "gradients of the compiled module")
    torch._dynamo.reset()
