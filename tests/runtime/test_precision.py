"""Precision in a prepared module: what is computed in which dtype, and that the module stays what it was."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn

import accelkit

PRECISIONS = ["bf16-mixed", "16-mixed", "64-true", "16-true", "bf16-true"]


class Net(nn.Module):
    """At module level, so that it pickles."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x, scale=None):
        y = self.layer(x if scale is None else x * scale)
        if not torch.compiler.is_compiling():
            self.seen.append((y.dtype, torch.get_default_dtype()))
        return {"logits": y, "pair": (y, y.argmax(-1))}


class Stateful(Net):
    def __getstate__(self):
        return {"kept": self.layer.state_dict()}

    def __setstate__(self, state):
        self.__init__()
        self.layer.load_state_dict(state["kept"])


def prepared(precision, cls=Net):
    rt = accelkit.Runtime(accelerator="cpu", precision=precision)
    return rt, rt.prepare(cls())


@pytest.mark.parametrize(
    ("precision", "stored", "computed", "default", "result"),
    [
        ("32-true", torch.float32, torch.float32, torch.float32, torch.float32),
        ("64-true", torch.float64, torch.float64, torch.float64, torch.float64),
        ("16-true", torch.float16, torch.float16, torch.float16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32),
        ("16-mixed", torch.float32, torch.float16, torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.bfloat16, torch.float32, torch.float32),
    ],
)
def test_what_is_stored_and_computed_in_which_dtype(precision, stored, computed, default, result):
    rt, net = prepared(precision)
    optimizer = rt.prepare(torch.optim.AdamW(net.parameters(), eps=1e-3))
    given = net(torch.zeros(2, 4), scale=torch.ones(1))
    assert (net.layer.weight.dtype, net.seen[0]) == (stored, (computed, default))
    assert (given["logits"].dtype, given["pair"][0].dtype, given["pair"][1].dtype) == (result, result, torch.int64)
    assert torch.get_default_dtype() is torch.float32
    rt.backward(given["logits"].mean())
    optimizer.step()
    assert net.layer.weight.grad.dtype is stored
    assert optimizer.state[net.layer.weight]["exp_avg"].dtype is stored
    is_true = precision.endswith("true")
    for context in (rt.precision.module_init_context, rt.precision.tensor_init_context):
        with context():
            assert torch.ones(1).dtype is (stored if is_true else torch.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_stays_the_same_object_of_its_class(precision):
    rt = accelkit.Runtime(accelerator="cpu", precision=precision)
    net = Net()
    again = rt.prepare(net)
    assert again is net
    assert isinstance(net, Net)
    assert (type(net).__name__, type(net).__qualname__, type(net).__module__) == ("Net", "Net", __name__)
    assert repr(net) == repr(Net())
    assert rt.prepare(net) is net
    assert type(net).__mro__[1] is Net, "preparing twice adds nothing"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cls", [Net, Stateful])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"])
def test_it_survives_copies(precision, cls, duplicate):
    _, net = prepared(precision, cls)
    twin = duplicate(net)
    assert type(twin) is type(net)
    assert twin.layer.weight is not net.layer.weight
    if cls is Net:
        batch = torch.randn(2, 4)
        torch.testing.assert_close(twin(batch)["logits"], net(batch)["logits"], rtol=0, atol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_state_dict_round_trip_with_the_bare_model(precision):
    _, net = prepared(precision)
    assert list(net.state_dict()) == list(Net().state_dict())
    bare = Net().to(net.layer.weight.dtype)
    bare.load_state_dict(net.state_dict())
    net.load_state_dict(bare.state_dict())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compile_after_and_before(precision):
    batch = torch.randn(2, 4)
    rt, net = prepared(precision)
    expected = net(batch)["logits"]
    after = torch.compile(net, fullgraph=True, backend="aot_eager")(batch)["logits"]
    torch.testing.assert_close(after, expected)
    before = rt.prepare(torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager"))
    result = before(batch)["logits"]
    assert result.dtype is expected.dtype
    torch.testing.assert_close(result, expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_made_before_or_after(when):
    rt = accelkit.Runtime(accelerator="cpu", precision="bf16-mixed")
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    if when == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        net, optimizer, scheduler = rt.prepare(net, optimizer, scheduler)
    else:
        net, optimizer = rt.prepare(net, optimizer)
        scheduler = rt.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    weight = net.layer.weight.detach().clone()
    rt.backward(net(torch.ones(2, 4))["logits"].sum())
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not torch.equal(net.layer.weight, weight)


def test_a_forward_replaced_on_the_instance_is_refused(error_text):
    rt = accelkit.Runtime(accelerator="cpu", precision="bf16-mixed")
    net = Net()
    net.forward = lambda x: x
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.prepare(net)
    assert "Net" in caught.value.what
    assert "bf16-mixed" in caught.value.what
    assert "forward" in caught.value.why
    assert caught.value == error_text


@pytest.mark.parametrize("name", ["64-true", "16-true", "bf16-true"])
def test_complex_parameters_keep_their_imaginary_parts(name):
    rt = accelkit.Runtime(accelerator="cpu", precision=name)
    module = torch.nn.Module()
    module.register_parameter("phase", torch.nn.Parameter(torch.tensor([1j])))
    module.register_parameter("weight", torch.nn.Parameter(torch.ones(1)))
    rt.prepare(module)
    assert module.phase.item() == 1j
    assert module.weight.dtype is rt.precision.dtype


def test_the_default_dtype_comes_back_after_an_exception():
    _, net = prepared("64-true")
    with pytest.raises(RuntimeError):
        net(torch.zeros(2, 5))
    assert torch.get_default_dtype() is torch.float32


def test_the_default_dtype_comes_back_after_threads_that_leave_in_any_order():
    contexts = [prepared(name)[0].autocast() for name in ("64-true", "bf16-true", "64-true")]
    steps = [threading.Event() for _ in range(8)]
    order = ((0, 2), (1, 4), (3, 5))  # each thread's entering and leaving, in the order of all

    def one(context, enters, leaves):
        steps[enters].wait(10)
        with context:
            steps[enters + 1].set()
            steps[leaves].wait(10)
        steps[leaves + 1].set()

    threads = [threading.Thread(target=one, args=(context, *when)) for context, when in zip(contexts, order, strict=True)]
    for thread in threads:
        thread.start()
    steps[0].set()
    for thread in threads:
        thread.join(10)
    assert steps[6].is_set()
    assert torch.get_default_dtype() is torch.float32


def test_the_default_dtype_comes_back_after_threads_that_leave_while_another_one_compiles():
    """While a thread compiles, torch.compiler.is_compiling() is True in every thread."""
    rt, _ = prepared("bf16-true")
    first, second = rt.precision.forward_context(), rt.precision.forward_context()

    def in_thread(*steps):
        thread = threading.Thread(target=lambda: [step() for step in steps])
        thread.start()
        thread.join()

    def backend(graph, inputs):
        in_thread(second.__enter__)
        return graph.forward

    in_thread(first.__enter__)
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    in_thread(lambda: first.__exit__(None, None, None), lambda: second.__exit__(None, None, None))
    assert torch.get_default_dtype() is torch.float32


def test_adam_in_float16_is_warned_of(error_text):
    rt, net = prepared("16-true")
    with pytest.warns(UserWarning, match=r"AdamW\(eps=1e-08\)") as caught:
        rt.prepare(torch.optim.AdamW(net.parameters()))
    assert caught[0] == error_text
    rt.prepare(torch.optim.AdamW(net.parameters(), eps=1e-4), torch.optim.SGD(net.parameters(), lr=0.1))
    rt.prepare(torch.optim.Adafactor(net.parameters()))  # its eps is a tuple


def test_a_device_that_declares_no_autocast_refuses_mixed_precision(error_text):
    class Plain(accelkit.Accelerator):
        device_type = "cpu"
        declared_capabilities = accelkit.Capabilities.declare(none=["autocast.bfloat16"])

    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime(accelerator=Plain(), precision="bf16-mixed")
    assert "'bf16-mixed'" in caught.value.what
    assert "16" in caught.value.what
    assert "32" in caught.value.hint
    assert "64" in caught.value.hint
    assert caught.value == error_text


def test_a_warning_that_has_nothing_to_do_with_autocast_does_not_refuse_a_precision(monkeypatch):
    class WarnsOfTheFuture(torch.autocast):
        def __init__(self, *args, **kwargs):
            warnings.warn("this will change", FutureWarning, stacklevel=2)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(torch, "autocast", WarnsOfTheFuture)
    rt = accelkit.Runtime(accelerator="cpu", precision="bf16-mixed")
    with pytest.warns(FutureWarning, match="this will change"), rt.autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16


def test_autocast_is_the_precisions_own():
    rt, _ = prepared("bf16-mixed")
    with rt.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    with accelkit.Runtime(accelerator="cpu").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))], ids=["deepcopy", "pickle"])
def test_a_copy_after_a_skipped_step_has_the_scale_of_the_next_pass(duplicate):
    rt, net = prepared("16-mixed")
    optimizer = rt.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
    rt.backward(net(torch.ones(2, 4))["logits"].sum() * torch.inf)
    optimizer.step()
    assert rt.optimizer_step_was_skipped
    assert duplicate(rt.precision).scale == rt.precision.scale == 32768.0
