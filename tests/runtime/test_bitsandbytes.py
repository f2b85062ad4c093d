"""``bitsandbytes-4bit`` and ``bitsandbytes-8bit``: weights in few bits that stay as they are, and the rest in bfloat16, which trains."""

from __future__ import annotations

import copy
import importlib.util
import logging
import pickle
import sys

import pytest
import torch
from torch import nn

import accelkit
from accelkit import Capabilities
from accelkit.runtime.configuration import select_precision
from accelkit_builtin.accelerators.cpu import CPUAccelerator
from accelkit_builtin.precisions.bitsandbytes_4bit import Bitsandbytes4Bit, FourBitOptions
from accelkit_builtin.precisions.bitsandbytes_8bit import Bitsandbytes8Bit, EightBitOptions

IS_INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
NAMES = ["bitsandbytes-4bit", "bitsandbytes-8bit"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def prepared(precision, name="cpu", model=None, seed=0):
    torch.manual_seed(seed)
    rt = accelkit.Runtime(name, precision=precision)
    return rt, rt.prepare(Net() if model is None else model)


def inputs(device="cpu"):
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    x[:, 3] = 9.0  # beyond the threshold of LLM.int8
    return x.to(device)


def off(found, exact):
    return ((found.cpu() - exact.cpu()).norm() / exact.cpu().norm()).item()


@pytest.mark.bitsandbytes
@pytest.mark.skipif(not IS_INSTALLED, reason="pip install 'accelkit[bitsandbytes]'")
class TestQuantized:
    @pytest.mark.parametrize("name", ["cpu", "fake_xpu"])
    @pytest.mark.parametrize(("precision", "stored"), [(NAMES[0], torch.uint8), (NAMES[1], torch.int8)])
    def test_what_is_stored_and_computed_in_which_dtype(self, name, precision, stored):
        _, exact = prepared("32-true")
        rt, model = prepared(precision, name)
        optimizer = rt.prepare(torch.optim.AdamW(model.parameters(), lr=0.1))
        before = {key: tensor.detach().clone() for key, tensor in model.named_parameters()}
        results = []
        model.first.register_forward_hook(lambda module, args, result: results.append(result.dtype))
        y = model(inputs(rt.device))
        rt.backward(y.square().mean())
        optimizer.step()
        assert (results, y.dtype) == ([torch.bfloat16], torch.float32)
        assert off(y.detach(), exact(inputs()).detach()) < (0.3 if stored is torch.uint8 else 0.03)
        for key, parameter in model.named_parameters():
            assert parameter.device == rt.device
            if key in ("first.weight", "last.weight"):
                assert (parameter.dtype, parameter.requires_grad, parameter.grad) == (stored, False, None)
                assert parameter not in optimizer.state
                assert torch.equal(parameter, before[key])
            else:
                assert (parameter.dtype, parameter.grad.dtype) == (torch.bfloat16, torch.bfloat16)
                assert optimizer.state[parameter]["exp_avg"].dtype is torch.bfloat16
                assert not torch.equal(parameter, before[key])
        bits = model.first.weight.numel() * model.first.weight.element_size() * 8 / (64 * 32)
        assert bits == (4 if stored is torch.uint8 else 8)

    @pytest.mark.parametrize("precision", NAMES)
    def test_layers_stay_the_same_objects_with_their_hooks(self, precision):
        model, called = Net(), []
        layer = model.first
        layer.register_forward_hook(lambda module, args, result: called.append(module))
        rt, again = prepared(precision, model=model)
        assert again is model
        assert model.first is layer
        kind, weight = type(layer), layer.weight
        rt.prepare(model)
        assert (type(model.first), model.first.weight) == (kind, weight)
        model(inputs())
        assert called == [layer]

    @pytest.mark.parametrize("precision", NAMES)
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"])
    @pytest.mark.parametrize("name", ["cpu", "fake_xpu"])
    def test_it_survives_copies(self, precision, duplicate, name):
        rt, model = prepared(precision, name)
        x = inputs(rt.device)
        torch.testing.assert_close(duplicate(model)(x), model(x), rtol=0, atol=0)

    @pytest.mark.parametrize("precision", NAMES)
    @pytest.mark.parametrize("name", ["cpu", "fake_xpu"])
    @pytest.mark.parametrize("computes_first", [False, True])
    def test_a_checkpoint_holds_the_quantised_weights(self, precision, name, computes_first, tmp_path):
        rt, model = prepared(precision, name)
        expected = model(inputs(rt.device))
        rt.save_state(tmp_path)
        other, fresh = prepared(precision, name, seed=1)
        if computes_first:
            fresh(inputs(other.device))
        other.load_state(tmp_path)
        torch.testing.assert_close(fresh(inputs(other.device)), expected, rtol=0, atol=0)
        assert set(fresh.state_dict()) == set(model.state_dict())

    @pytest.mark.parametrize(
        "precision", [*NAMES, Bitsandbytes4Bit(FourBitOptions(is_nested=True)), Bitsandbytes4Bit(FourBitOptions("fp4"))]
    )
    def test_weights_of_a_float_model_are_quantised_when_they_are_loaded(self, precision):
        _, model = prepared(precision)
        _, fresh = prepared(precision, seed=1)
        bare = prepared("32-true")[1]
        fresh.load_state_dict(bare.state_dict())
        torch.testing.assert_close(fresh(inputs()), model(inputs()), rtol=0, atol=0)
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(fresh(inputs()), model(inputs()), rtol=0, atol=0)

    def test_options(self):
        exact = prepared("32-true")[1](inputs()).detach()
        found = {}
        for options in (FourBitOptions(), FourBitOptions("fp4"), FourBitOptions(is_nested=True), FourBitOptions(compute_dtype="float32")):
            model = prepared(Bitsandbytes4Bit(options))[1]
            found[options] = off(model(inputs()).detach(), exact)
            assert model.norm.weight.dtype is getattr(torch, options.compute_dtype)
            assert model.first.weight.quant_state.quant_type == options.quant_type
            assert model.first.weight.quant_state.nested is options.is_nested
        assert found[FourBitOptions("fp4")] > found[FourBitOptions()]
        large = [prepared(Bitsandbytes8Bit(EightBitOptions(threshold)))[1].eval()(inputs()).detach() for threshold in (0.0, 6.0)]
        assert off(large[1], exact) < off(large[0], exact), "a large feature is multiplied apart"

    @pytest.mark.parametrize(
        "make",
        [lambda ignore: Bitsandbytes4Bit(FourBitOptions(ignore=ignore)), lambda ignore: Bitsandbytes8Bit(EightBitOptions(ignore=ignore))],
    )
    def test_ignored_and_tied_layers_train(self, make):
        model = nn.ModuleDict({"net": Net(), "adapter": nn.Sequential(nn.Linear(8, 8))})
        prepared(make(["last", "adapter"]), model=model)
        trains = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
        assert {key for key, _ in model.named_parameters()} - trains == {"net.first.weight"}
        assert model["adapter"][0].weight.dtype is torch.bfloat16
        tied = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.Linear(8, 16, bias=False))
        tied[2].weight = tied[0].weight
        prepared(make([]), model=tied)
        assert tied[2].weight is tied[0].weight
        assert tied[0].weight.dtype is torch.bfloat16
        assert tied[1].weight.dtype is not torch.bfloat16

    @pytest.mark.parametrize("precision", NAMES)
    def test_lbfgs_takes_only_parameters_that_train(self, precision, error_text):
        rt, model = prepared(precision)

        def closure():
            optimizer.zero_grad()
            loss = model(inputs()).square().mean()
            rt.backward(loss)
            return loss

        optimizer = rt.prepare(torch.optim.LBFGS(model.parameters()))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(accelkit.UnsupportedError, match=f"(?s)LBFGS.*{precision}.*requires_grad") as caught:
            optimizer.step(closure)
        assert caught.value == error_text
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
        optimizer = rt.prepare(torch.optim.LBFGS([p for p in model.parameters() if p.requires_grad], lr=0.1, max_iter=3))
        first = optimizer.step(closure).item()
        assert model(inputs()).square().mean().item() < first
        turned = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        assert rt.precision.optimizer_step(torch.optim.LBFGS([turned]), lambda: 3.0) == 3.0, "a complex parameter is not quantised"

    @pytest.mark.parametrize("precision", NAMES)
    def test_a_model_without_linear_layers_is_an_error(self, precision, error_text):
        with pytest.raises(accelkit.UnsupportedError) as caught:
            prepared(precision, model=nn.Conv2d(1, 1, 1))
        assert "Conv2d" in caught.value.what
        assert precision in caught.value.what
        assert caught.value == error_text

    @pytest.mark.parametrize("precision", NAMES)
    def test_evaluation(self, precision):
        """bitsandbytes has other ways through a layer then; one of them fails for a layer with 8 results, on a CPU with avx512_bf16."""
        model = prepared(precision)[1]
        expected = model(inputs()).detach()
        model.eval()
        with torch.no_grad():
            assert off(model(inputs()), expected) < 0.03
        model.train()
        assert off(model(inputs()).detach(), expected) == 0

    def test_it_says_nothing_at_every_step(self, caplog):
        model = prepared(NAMES[1])[1].eval()
        with caplog.at_level(logging.DEBUG), torch.no_grad():
            model(inputs())
        assert not [record for record in caplog.records if "MatMul8bitLt" in record.getMessage()]

    @pytest.mark.parametrize("precision", NAMES)
    def test_a_device_that_bitsandbytes_cannot_do(self, precision, error_text):
        class Meta(accelkit.Accelerator):
            device_type = "meta"

            def check(self):
                return accelkit.Availability.usable()

            def setup_device(self, device):
                """Nothing."""

            def auto_device_count(self):
                return 1

        with pytest.raises(accelkit.UnsupportedError) as caught:
            _ = accelkit.Runtime(Meta(), precision=precision).device
        assert "meta" in caught.value.what
        assert precision in caught.value.what
        assert caught.value == error_text
        assert "bitsandbytes" in caught.value.why
        assert "precision='bf16-true'" in caught.value.hint


@pytest.mark.parametrize("precision", NAMES)
def test_without_the_package(precision, monkeypatch, error_text):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(accelkit.UnavailableError) as caught:
        prepared(precision)
    assert f"'{precision}'" in caught.value.what
    assert caught.value == error_text
    assert "bitsandbytes" in caught.value.why
    assert caught.value.hint == "pip install 'accelkit[bitsandbytes]'"


def test_a_package_that_is_too_old_or_broken(monkeypatch, tmp_path, error_text):
    folder = tmp_path / "bitsandbytes-0.49.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.49.1\n")
    package = tmp_path / "bitsandbytes"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.99: cannot open')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(accelkit.UnavailableError) as caught:
        prepared(NAMES[0])
    assert all(part in caught.value.why for part in ("bitsandbytes", "0.49.1", "0.50"))
    assert caught.value == error_text
    assert caught.value.hint == "pip install 'accelkit[bitsandbytes]' --upgrade"
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.51\n")
    with pytest.raises(accelkit.UnavailableError) as caught:
        prepared(NAMES[0])
    assert "bitsandbytes" in caught.value.why
    assert caught.value.why.endswith("ImportError: libcudart.so.99: cannot open")
    assert caught.value == error_text


def test_options_that_are_none(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        Bitsandbytes4Bit(FourBitOptions(quant_type="int4"))
    assert "FourBitOptions" in caught.value.what
    assert "quant_type='int4'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UsageError) as caught:
        Bitsandbytes8Bit(EightBitOptions(compute_dtype="half"))
    assert "compute_dtype='half'" in caught.value.what
    assert caught.value == error_text


class WithoutBfloat16(CPUAccelerator):
    declared_capabilities = Capabilities.declare(none=["dtype.bfloat16"])


class WithoutFloat16(CPUAccelerator):
    declared_capabilities = Capabilities.declare(none=["dtype.float16"])


@pytest.mark.parametrize(
    ("precision", "able"),
    [
        (Bitsandbytes4Bit(), [WithoutFloat16]),
        (Bitsandbytes4Bit(FourBitOptions(compute_dtype="float16")), [WithoutBfloat16]),
        (Bitsandbytes4Bit(FourBitOptions(compute_dtype="float32")), [WithoutBfloat16, WithoutFloat16]),
        (Bitsandbytes8Bit(), []),
        (Bitsandbytes8Bit(EightBitOptions(compute_dtype="float16")), [WithoutBfloat16]),
        (Bitsandbytes8Bit(EightBitOptions(compute_dtype="float32")), [WithoutBfloat16]),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.options.compute_dtype}" if hasattr(value, "options") else None,
)
def test_a_device_needs_the_dtypes_that_are_used(precision, able):
    """Weights are converted to float16 before they are quantised to int8."""
    for accelerator in (WithoutBfloat16, WithoutFloat16):
        if accelerator in able:
            assert select_precision(precision, accelerator()) is precision
        else:
            with pytest.raises(accelkit.UnsupportedError, match="declares that it does not support dtype.b?float16"):
                select_precision(precision, accelerator())
