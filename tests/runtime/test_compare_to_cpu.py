"""``Runtime.compare_to_cpu`` names the operator that is wrong, and says nothing wrong of a device that is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from compared_models import MODELS, OPERATORS
from torch.nn.modules import module as torch_modules

import accelkit
from accelkit.runtime.comparison.operator_call import OperatorCall, Outcome
from accelkit.runtime.comparison.random_operators import is_random

DRAWS = {"aten::native_dropout.default", "aten::bernoulli_.float"}


@pytest.fixture(scope="module")
def xpu():
    return accelkit.Runtime("fake_xpu", seed=0)


def prepared(rt, name):
    torch.manual_seed(0)
    model, batch, loss = MODELS[name]()
    return rt.prepare(model), batch, loss


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
@pytest.mark.parametrize("name", MODELS)
def test_a_device_that_is_right_agrees(name, accelerator, precision):
    rt = accelkit.Runtime(accelerator, precision=precision)
    report = rt.compare_to_cpu(*prepared(rt, name))
    assert report.agrees, str(report)
    assert report.first is None
    assert report.has_backward
    assert report.num_operators >= 25
    assert {one.overload for one in report.not_compared} <= DRAWS, "all others are compared"
    assert str(report).startswith(f"{rt.device} agrees with the CPU")


@pytest.mark.parametrize("kind", ["nan", "wrong"])
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_that_is_wrong_is_named(xpu, name, kind, tmp_path):
    model, batch, loss = prepared(xpu, name)
    assert len(OPERATORS[name]) == 20
    named = {}
    for operator in OPERATORS[name]:
        with torch.fake_xpu.fault(f"{kind}@{operator}"):
            first = xpu.compare_to_cpu(model, batch, loss, folder=tmp_path).first
        named[f"aten::{operator}"] = (first.operator, first.place.phase) if first else None
    phases = {one: "backward" if one.endswith(("_backward", "_backward_data")) else "forward" for one in named}
    phases |= {"aten::sum": "backward"} if name == "transformer" else {"aten::mm": "backward"}
    assert named == {one: (one, phase) for one, phase in phases.items()}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("operator", "module", "place"),
    [
        ("mm", "blocks.0.attention.inputs", "the forward pass of blocks.0.attention.inputs (Linear)"),
        ("div", "blocks.0.attention", "the forward pass of blocks.0.attention (Attention)"),
        ("gelu", "blocks.0", "the forward pass of blocks.0 (Block)"),
        ("gelu_backward", "blocks.1", "the backward pass of blocks.1 (Block), in GeluBackward0"),
        ("native_layer_norm_backward", "norm", "the backward pass of norm (LayerNorm), in NativeLayerNormBackward0"),
        ("_log_softmax", "", "the forward pass of the loss, outside of all modules"),
    ],
)
def test_the_module_is_named(xpu, operator, module, place, tmp_path):
    with torch.fake_xpu.fault(f"nan@{operator}"):
        first = xpu.compare_to_cpu(*prepared(xpu, "transformer"), folder=tmp_path).first
    assert (first.operator, first.place.module, str(first.place)) == (f"aten::{operator}", module, place)


def test_the_report_is_for_people_and_for_programs(xpu, tmp_path):
    with torch.fake_xpu.fault("nan@mm"):
        report = xpu.compare_to_cpu(*prepared(xpu, "transformer"), folder=tmp_path)
    text = str(report)
    assert "differs from the CPU" in text
    assert "first difference: aten::mm in the forward pass of blocks.0.attention.inputs (Linear)" in text
    assert f"python {report.first.path}" in text
    assert "accelkit conformance run fake_xpu --select aten::mm" in text
    assert "aten::native_dropout.default (2 calls): it draws random numbers" in text
    first, *others = json.loads(json.dumps(report.to_dict()))["findings"]
    assert others == [], "operators after a wrong one are given the right result"
    assert first["module"] == "blocks.0.attention.inputs"
    assert first["phase"] == "forward"
    assert first["overload"] == "aten::mm.default"
    assert first["num_wrong"] > 2
    assert first["num_wrong_repetitions"] == first["num_repetitions"] == 3


def test_two_wrong_operators_are_found_in_their_order(xpu, tmp_path):
    with torch.fake_xpu.fault("nan@gelu_backward,wrong@_softmax"):
        report = xpu.compare_to_cpu(*prepared(xpu, "transformer"), folder=tmp_path)
    assert [one.operator for one in report.findings] == ["aten::_softmax", "aten::gelu_backward"]
    assert "also wrong:\n  aten::gelu_backward in the backward pass of blocks.1 (Block)" in str(report)


def test_the_program_shows_the_difference(xpu, tmp_path):
    model = xpu.prepare(torch.nn.Linear(4, 3))
    with torch.fake_xpu.fault("wrong@addmm"):
        small = xpu.compare_to_cpu(model, torch.randn(2, 4), folder=tmp_path).first
        large = xpu.compare_to_cpu(xpu.prepare(torch.nn.Linear(32, 3)), torch.randn(8, 32), folder=tmp_path / "new" / "folder").first
    assert "torch.load" not in small.program
    assert "torch.load" in large.program
    printed = subprocess.run(
        [sys.executable, "-c", f"exec(open({str(small.path)!r}).read()); exec(open({str(large.path)!r}).read())"],
        env=os.environ | {"FAKE_XPU_FAULT": "wrong@addmm"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    differences = [float(line.rpartition(" ")[2]) for line in printed if line.startswith("largest difference: ")]
    assert len(differences) == 2
    assert all(difference > 0.1 for difference in differences)
    assert len([line for line in printed if line.startswith("result 0 on fake_xpu:0: tensor(")]) == 2


def state_of(model):
    generators = (torch.get_rng_state(), torch.fake_xpu.get_rng_state())
    tensors = [tensor.detach().cpu().clone() for tensor in [*model.parameters(), *model.buffers()]]
    gradients = [parameter.grad for parameter in model.parameters()]
    return generators, tensors, gradients, [module.training for module in model.modules()]


@pytest.mark.parametrize("is_training", [True, False])
def test_nothing_is_changed(xpu, is_training):
    model, batch, loss = prepared(xpu, "cnn")
    model.train(is_training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def failing_loss(model, batch):
        torch.randn(3)
        loss(model, batch)
        raise LookupError

    before = state_of(model)
    with torch.no_grad():
        assert xpu.compare_to_cpu(model, batch, loss).has_backward
    with pytest.raises(LookupError):
        xpu.compare_to_cpu(model, batch, failing_loss)
    after = state_of(model)
    for old, new in zip(before[0] + tuple(before[1]), after[0] + tuple(after[1]), strict=True):
        assert torch.equal(old, new)
    assert all(old is new for old, new in zip(before[2], after[2], strict=True))
    assert all(bool((gradient == 1).all()) for gradient in after[2])
    assert before[3] == after[3] == [is_training] * len(before[3])
    assert not torch_modules._global_forward_hooks
    assert not torch_modules._global_forward_pre_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Twice(torch.nn.Module):
    """Calls one module twice, in place between the calls."""

    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        return {"loss": self.shared(self.shared(x).mul_(scale).sinh()).square().sum(), "logits": x}


def test_the_call_of_a_shared_module_and_the_loss_that_the_model_returns(xpu, tmp_path):
    model = xpu.prepare(Twice())
    with on_fake_xpu("addmm", wrong_from_second_call()):
        report = xpu.compare_to_cpu(model, {"x": torch.randn(2, 4), "scale": 2.0}, folder=tmp_path)
    assert str(report.first.place) == "the forward pass of shared (Linear), call 2"
    assert xpu.compare_to_cpu(model, (torch.randn(2, 4), 0.5)).agrees


def test_a_model_that_is_not_trained_has_no_backward_pass(xpu):
    report = xpu.compare_to_cpu(xpu.prepare(Twice().requires_grad_(False)), [torch.randn(2, 4)])
    assert report.agrees
    assert not report.has_backward
    assert "operators, forward, 32-true" in str(report)


def on_fake_xpu(operator, function, namespace="aten"):
    """Replace the kernel of an operator on the fake XPU, inside the block. ``function`` is given tensors of the CPU."""

    class Replaced:
        def __enter__(self):
            self.library = torch.library.Library(namespace, "IMPL")
            to = torch.utils._pytree.tree_map_only

            def kernel(*args, **kwargs):
                result = function(*to(torch.Tensor, torch.Tensor.cpu, args), **to(torch.Tensor, torch.Tensor.cpu, kwargs))
                return to(torch.Tensor, lambda tensor: tensor.to("fake_xpu"), result)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
                self.library.impl(operator, kernel, "PrivateUse1")

        def __exit__(self, *error):
            self.library._destroy()

    return Replaced()


def wrong_from_second_call():
    calls = []

    def addmm(*args, **kwargs):
        calls.append(args)
        return torch.addmm(*args, **kwargs) + (0 if len(calls) == 1 else 1)

    return addmm


def test_a_result_that_is_not_always_wrong_is_reported_as_such(xpu, tmp_path):
    calls = []

    def sinh(x):
        calls.append(x)
        return torch.sinh(x) + (1 if len(calls) == 1 else 0)

    with on_fake_xpu("sinh", sinh):
        first = xpu.compare_to_cpu(xpu.prepare(Twice()), torch.randn(2, 4), folder=tmp_path).first
    assert (first.operator, first.num_wrong_repetitions, first.num_repetitions) == ("aten::sinh", 0, 3)


@pytest.fixture(scope="module")
def custom():
    library = torch.library.Library("compared", "DEF")
    library.define("no_kernel(Tensor x) -> Tensor")
    library.define("no_double(Tensor x) -> Tensor")
    library.define("only_double(Tensor x) -> Tensor")

    def no_double(x):
        if x.dtype == torch.float64:
            raise RuntimeError("not implemented for 'Double'")
        return x * 3

    def only_double(x):
        if x.dtype != torch.float64:
            raise RuntimeError("not implemented for 'Float'")
        return x * 3

    library.impl("no_double", no_double, "CPU")
    library.impl("only_double", only_double, "CPU")
    yield library
    library._destroy()


@pytest.mark.parametrize("factor", [3, 4])
@pytest.mark.parametrize("operator", ["no_kernel", "no_double", "only_double"])
def test_an_operator_that_the_cpu_lacks_in_some_dtypes(xpu, custom, operator, factor, tmp_path):
    def run(model, batch):
        return getattr(torch.ops.compared, operator)(model(batch).detach()).sum()

    model = xpu.prepare(torch.nn.Linear(2, 2))
    with on_fake_xpu(operator, lambda x: x * factor, "compared"):
        report = xpu.compare_to_cpu(model, torch.randn(3, 2), run, folder=tmp_path)
    if operator == "no_kernel":
        assert report.agrees
        assert "not compared:\n  compared::no_kernel.default (1 call): the CPU has no kernel for it" in str(report)
        assert len(report.not_compared) == 1
    else:
        assert report.agrees == (factor == 3)
        assert [one.operator for one in report.findings] == ([] if factor == 3 else [f"compared::{operator}"])


def test_tensors_that_are_not_strided_are_not_compared(rt):
    model = rt.prepare(torch.nn.Embedding(4, 2, sparse=True))
    report = rt.compare_to_cpu(model, torch.tensor([1, 1, 3]))
    assert report.agrees
    assert any((one.place.phase == "backward" and "sparse" in one.reason) or "strided" in one.reason for one in report.not_compared)


def judged(operator, args, result):
    """What is said of a result of an operator."""
    call = OperatorCall(operator, args, {})
    return call.wrong(Outcome(list(result) if isinstance(result, tuple) else [result], list(args[:1])))


def test_any_of_equal_elements_may_be_chosen():
    values = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])
    assert not judged(torch.ops.aten.argmax.default, (values, 1), torch.tensor([2, 1]))
    assert "elements differ" in judged(torch.ops.aten.argmax.default, (values, 1), torch.tensor([2, 2]))
    image = torch.tensor([[[[0.0, 5.0], [5.0, 5.0]]]])
    pooled = torch.tensor([[[[5.0]]]])
    assert not judged(torch.ops.aten.max_pool2d_with_indices.default, (image, [2, 2]), (pooled, torch.tensor([[[[3]]]])))
    assert judged(torch.ops.aten.max_pool2d_with_indices.default, (image, [2, 2]), (pooled, torch.tensor([[[[0]]]])))


def test_what_rounding_makes_of_a_cancellation_is_right():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100
    values -= values.mean()
    one_after_another = torch.cumsum(values, 0)[-1]
    assert not judged(torch.ops.aten.sum.default, (values,), one_after_another)
    assert "of the largest magnitude" in judged(torch.ops.aten.sum.default, (values,), one_after_another + 0.1)


def test_an_operator_that_changes_an_argument_without_saying_so():
    """``native_batch_norm`` updates the running mean."""
    values, mean, variance = torch.randn(5, 2), torch.zeros(2), torch.ones(2)
    call = OperatorCall(torch.ops.aten.native_batch_norm.default, (values, None, None, mean, variance, True, 0.1, 1e-5), {})
    results = torch.ops.aten.native_batch_norm.default(values, None, None, mean, variance, True, 0.1, 1e-5)
    assert not call.wrong(call.outcome(results))
    mean += 1
    assert call.wrong(call.outcome(results)).startswith("result 3: ")


def test_a_changed_argument_is_compared_even_if_the_cpu_supports_only_float64(custom):
    custom.define("writes(Tensor x, Tensor(a!) state) -> Tensor")

    def writes(x, state):
        if x.dtype != torch.float64:
            raise RuntimeError("not implemented for 'Float'")
        state += 1
        return x * 3

    custom.impl("writes", writes, "CPU")
    values, state = torch.tensor([1.0, torch.nan]), torch.zeros(2)
    call = OperatorCall(torch.ops.compared.writes.default, (values, state), {})
    result = values * 3
    state += 1
    assert not call.wrong(call.outcome(result))
    assert len(call.written(call.outcome(result))) == 2, "an argument with NaN has not changed"
    state += 1
    assert call.wrong(call.outcome(result)).startswith("result 1: ")


@pytest.mark.parametrize(
    ("fault", "wrong"), [("wrong@mul", "for the mask that it drew"), ("nan@mul", "result 0 has NaN in 1000 of 1000 elements")]
)
def test_what_dropout_makes_of_its_mask_is_checked(xpu, fault, wrong, tmp_path):
    model = xpu.prepare(torch.nn.Dropout(0.25))
    with torch.fake_xpu.fault(fault):
        first = xpu.compare_to_cpu(model, torch.ones(1000), lambda model, batch: model(batch).sum(), folder=tmp_path).first
    assert first.operator == "aten::native_dropout"
    assert wrong in first.wrong


def test_a_wrong_share_of_ones_is_found(rt, tmp_path):
    """An operator that draws from a generator that is not random enough: of 1000 numbers, none is dropped."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("bernoulli_.float", lambda x, p=0.5, generator=None: x.fill_(1), "CPU")
    try:
        first = rt.compare_to_cpu(rt.prepare(torch.nn.Dropout(0.25)), torch.ones(1000), lambda m, b: m(b).sum(), folder=tmp_path).first
    finally:
        library._destroy()
    assert first.wrong == "the share of ones is 1 in 1000 draws, and the probability is 0.75"
    assert is_random(torch.ops.aten.bernoulli_.float)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda rt: torch.relu, None),
        (lambda rt: torch.nn.Linear(2, 2), None),
        (lambda rt: rt.prepare(torch.nn.Linear(2, 2)), lambda model, batch: model(batch)),
        (lambda rt: rt.prepare(torch.nn.Linear(2, 2)), lambda model, batch: 1.0),
    ],
    ids=["no module", "not prepared", "no scalar", "no tensor"],
)
def test_what_cannot_be_compared_is_refused(xpu, model, loss, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        xpu.compare_to_cpu(model(xpu), torch.ones(3, 2), loss)
    assert caught.value == error_text


def test_a_sharded_model_is_refused(rt, error_text):
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2)
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,))))
        with pytest.raises(accelkit.UnsupportedError) as caught:
            rt.compare_to_cpu(model, torch.ones(3, 2))
    finally:
        dist.destroy_process_group()
    assert caught.value == error_text
