"""``fp8``: products of Linear layers in float8, the parameters and everything else as in bf16-mixed."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import accelkit
from accelkit_builtin.precisions.fp8 import Float8, Float8Options

IS_INSTALLED = importlib.util.find_spec("torchao") is not None
on_torchao = [pytest.mark.torchao, pytest.mark.skipif(not IS_INSTALLED, reason="pip install 'accelkit[fp8]'")]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Net(nn.Module):
    """A layer that float8 can do between two that it cannot."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(20, 32), nn.Linear(32, 48), nn.Linear(48, 10)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()).relu())


class Products(TorchDispatchMode):
    """The dtypes of the operands of every float8 product inside."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind is not torch.Tensor and kind is not nn.Parameter for kind in types):
            return NotImplemented  # torchao's tensor takes itself apart first
        if func is torch.ops.aten._scaled_mm.default:
            self.seen.append((args[0].dtype, args[1].dtype))
            assert args[0].shape[1] % 16 == 0, "which the CPU alone does not want"
        return func(*args, **(kwargs or {}))


def prepared(precision="fp8", name="cpu", model=None):
    torch.manual_seed(0)
    rt = accelkit.Runtime(name, precision=precision)
    return rt, rt.prepare(Net() if model is None else model)


def _none(*args, **kwargs):
    raise NotImplementedError("no kernel here")


def _zeros(first, second, *args, **kwargs):
    return torch.zeros(first.shape[0], second.shape[1], dtype=torch.bfloat16)


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_torchao) for name in ("cpu", "fake_xpu")])
@pytest.mark.parametrize(("recipe", "gradients"), [("tensorwise", E5M2), ("rowwise", E4M3)])
def test_what_is_stored_and_computed_in_which_dtype(name, recipe, gradients):
    rt, model = prepared(Float8(Float8Options(recipe=recipe)), name)
    optimizer = rt.prepare(torch.optim.AdamW(model.parameters()))
    results = {}
    for key, layer in model.named_children():
        layer.register_forward_hook(lambda module, args, result, key=key: results.update({key: result.dtype}))
    with Products() as forward:
        logits = model(torch.randn(5, 20, device=rt.device))
    with Products() as backward:
        rt.backward(logits.square().mean())
    optimizer.step()
    assert forward.seen == [(E4M3, E4M3)], "one layer of three, and the others in no float8"
    assert {kind for pair in backward.seen for kind in pair} == {gradients, E4M3}
    assert len(backward.seen) == 2, "of the input and of the weight"
    assert results == dict.fromkeys(results, torch.bfloat16)
    assert logits.dtype is torch.float32
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert {parameter.dtype, parameter.grad.dtype, state["exp_avg"].dtype, state["exp_avg_sq"].dtype} == {torch.float32}


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_torchao) for name in ("cpu", "fake_xpu")])
def test_inputs_are_rounded_to_the_dtype_of_the_devices_own_autocast(name):
    rt, layer = prepared(name=name, model=nn.Linear(16, 16))
    x = torch.randn(4, 16, device=rt.device) + 1e5  # more than float16 holds
    found = layer(x)
    assert found.isfinite().all()
    assert torch.equal(found, layer(x.bfloat16()))
    assert layer(x.bfloat16()).dtype is torch.float32
    with torch.no_grad():
        assert type(layer).forward(layer, x).dtype is torch.float32, "outside autocast nothing is rounded"


@pytest.mark.torchao
@pytest.mark.skipif(not IS_INSTALLED, reason="pip install 'accelkit[fp8]'")
class TestModels:
    def test_it_is_close_to_float32_and_not_equal_to_bfloat16(self):
        x = torch.randn(64, 20)
        _, exact = prepared("32-true")
        _, narrow = prepared("bf16-mixed")
        _, model = prepared()
        off = ((model(x) - exact(x)).norm() / exact(x).norm()).item()
        assert off < 0.08
        assert off > 2 * ((narrow(x) - exact(x)).norm() / exact(x).norm()).item()

    def test_layers_stay_the_same_objects_with_their_hooks(self):
        model, called = Net(), []
        layer, weight = model.middle, model.middle.weight
        layer.register_forward_hook(lambda module, args, result: called.append(module))
        names = list(model.state_dict())
        rt, again = prepared(model=model)
        assert again is model
        assert model.middle is layer
        assert layer.weight is weight
        assert isinstance(layer, nn.Linear)
        model(torch.ones(1, 20))
        assert called == [layer]
        assert list(model.state_dict()) == names
        kind = type(layer)
        assert rt.prepare(model) is model
        assert type(model.middle) is kind

    def test_one_layer_is_a_model(self):
        layer = nn.Linear(16, 16)
        _, again = prepared(model=layer)
        assert again is layer
        with Products() as products:
            layer(torch.ones(3, 16))
        assert products.seen == [(E4M3, E4M3)]

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"])
    def test_it_survives_copies(self, duplicate):
        _, model = prepared()
        twin, x = duplicate(model), torch.randn(2, 20)
        assert twin.middle.weight is not model.middle.weight
        torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)

    def test_compiled(self):
        _, model = prepared()
        x = torch.randn(16, 20)
        compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))
        torch._dynamo.reset()

    def test_tied_layers_and_subclasses(self):
        class Own(nn.Linear):
            def forward(self, x):
                return super().forward(x) * 2

        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), Own(16, 16))
        model[1].weight = model[0].weight
        _, model = prepared(model=model)
        assert type(model[2]) is Own
        assert model[1].weight is model[0].weight
        with Products() as products:
            model(torch.ones(1, 16))
        assert len(products.seen) == 2

    def test_a_checkpoint_goes_to_and_from_another_precision(self, tmp_path):
        rt, model = prepared()
        rt.save_state(tmp_path)
        other, bare = prepared("32-true")
        for parameter in bare.parameters():
            nn.init.zeros_(parameter)
        other.load_state(tmp_path)
        assert torch.equal(bare.middle.weight, model.middle.weight)
        rt.load_state(other.save_state(tmp_path / "back"))

    def test_ignored_layers(self, error_text):
        model = nn.Sequential(Net(), Net())
        _, model = prepared(Float8(Float8Options(ignore=["0", "1.last"])), model=model)
        with Products() as products:
            model[0](torch.ones(1, 20))
        assert products.seen == []
        with Products() as products:
            model[1](torch.ones(1, 20))
        assert len(products.seen) == 1
        with pytest.warns(UserWarning, match="head") as caught:
            prepared(Float8(Float8Options(ignore=["head"])))
        assert caught[0] == error_text

    def test_a_model_without_such_a_layer_is_an_error(self, error_text):
        rt, _ = prepared()
        with pytest.raises(accelkit.UnsupportedError) as caught:
            rt.prepare(nn.Linear(10, 16))
        assert "Linear" in caught.value.what
        assert "fp8" in caught.value.what
        assert caught.value == error_text
        assert "10 x 16" in caught.value.why
        with pytest.raises(accelkit.UnsupportedError) as caught:
            rt.prepare(nn.Conv2d(16, 16, 3))
        assert "torch.nn.Linear" in caught.value.why
        assert caught.value == error_text
        assert "precision='bf16-mixed'" in caught.value.hint
        loss = nn.CrossEntropyLoss()
        assert rt.prepare(loss) is loss, "which has no parameters"

    def test_a_device_whose_chip_has_none(self, error_text):
        class Old(accelkit.Accelerator):
            device_type = "cpu"

            def capabilities(self, device=None):
                return accelkit.Capabilities.declare(none=["fp8"] if device is not None else [])

        with pytest.raises(accelkit.UnsupportedError) as caught:
            _ = accelkit.Runtime(Old(), precision="fp8").device
        assert "cpu" in caught.value.what
        assert "fp8" in caught.value.what
        assert caught.value == error_text
        assert "cpu" in caught.value.why
        assert "fp8" in caught.value.why

    @pytest.mark.parametrize(("kernel", "why"), [(_none, "no kernel here"), (_zeros, "the sum of 16 ones is 0.0")])
    def test_a_device_that_declares_what_it_cannot(self, kernel, why, error_text):
        library = torch.library.Library("aten", "IMPL")  # a device without the kernel: this one, for a while
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            library.impl("_scaled_mm", kernel, "CPU", allow_override=True)
        try:
            with pytest.raises(accelkit.UnsupportedError) as caught:
                prepared()
            assert "cpu" in caught.value.what
            assert "fp8" in caught.value.what
            assert caught.value == error_text
        finally:
            library._destroy()
        assert "cpu" in caught.value.why
        assert caught.value.why.endswith(why)
        assert "fp8" in caught.value.hint


def test_a_device_that_declares_none(error_text):
    class Old(accelkit.Accelerator):
        device_type = "cpu"
        declared_capabilities = accelkit.Capabilities.declare(native=["autocast.bfloat16"], none=["fp8"])

    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime(Old(), precision="fp8")
    assert "'fp8'" in caught.value.what
    assert caught.value == error_text
    assert "fp8" in caught.value.why
    assert "bf16-mixed" in caught.value.hint


def test_without_the_package(monkeypatch, error_text):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(accelkit.UnavailableError) as caught:
        prepared()
    assert "'fp8'" in caught.value.what
    assert caught.value == error_text
    assert "torchao" in caught.value.why
    assert caught.value.hint == "pip install 'accelkit[fp8]'"


def test_recipes_that_are_none():
    with pytest.raises(accelkit.UsageError, match=r"Float8Options\(recipe='rows'\)"):
        Float8(Float8Options(recipe="rows"))
