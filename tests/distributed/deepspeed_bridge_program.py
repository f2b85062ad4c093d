"""What each rank does in test_deepspeed_bridge.py: ``deepspeed_bridge_program.py CASE``, the name of a function below."""

from __future__ import annotations

import copy
import sys
import types

import pytest
import torch
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

import accelkit
from accelkit.bridges.deepspeed import install
from accelkit_builtin.accelerators.cpu import CPUAccelerator
from accelkit_builtin.strategies.deepspeed import DeepSpeedOptions, DeepSpeedStrategy


def made():
    torch.default_generator.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    return model, copy.deepcopy(model), torch.randn(6, 8, 5)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def assert_trained(train, rt, whole):
    """Train with ``train(batch)`` on this process's share of each batch, and compare the weights with those of one process on the CPU."""
    _, reference, batches = made()
    theirs = adam(reference)
    for batch in batches:
        train(batch[rt.process_index :: rt.num_processes].to(rt.device))
        reference(batch).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
    for mine, expected in zip(whole(), reference.parameters(), strict=True):
        assert mine.device == rt.device
        torch.testing.assert_close(mine.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def script():
    """A program that is written for DeepSpeed, and imports it after ``install``."""
    rt = install("fake_xpu")
    import deepspeed

    assert deepspeed.accelerator.get_accelerator().device_name() == "fake_xpu"
    model, _, _ = made()
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": {"stage": 2}}
    config["zero_allow_untested_optimizer"] = True
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model), config=config)
    assert engine.device == rt.device

    def train(batch):
        engine.backward(engine(batch).square().mean())
        engine.step()

    assert_trained(train, rt, engine.module.parameters)
    assert install("fake_xpu").device == rt.device
    with pytest.raises(accelkit.ContradictionError, match="DeepSpeed uses fake_xpu in this process, but the Runtime uses cpu"):
        install("cpu")


class Simple(FakeXPUAccelerator):
    """A device without streams and without a process-group backend, whose module has only what torch itself calls."""

    process_group_backend = "host"
    declared_capabilities = accelkit.Capabilities.declare(native=["dtype.float32", "process_group"], none=["streams"])

    def capabilities(self, device=None):
        return self.declared_capabilities

    @property
    def device_module(self):
        names = ("is_available", "device_count", "current_device")
        return types.SimpleNamespace(**{name: getattr(torch.fake_xpu, name) for name in names})


def simple():
    """Training on a device with little support; DeepSpeed puts all work on the current stream."""
    rt = accelkit.Runtime(Simple(), strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=3, offload_optimizer=True)))
    model, _, _ = made()
    model, optimizer = rt.prepare(model, adam(model))

    def train(batch):
        rt.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    def whole():
        with rt.strategy.whole_parameters(model):
            return [parameter.detach().clone() for parameter in rt.unwrap_model(model).parameters()]

    assert_trained(train, rt, whole)
    bridged = sys.modules["deepspeed"].accelerator.get_accelerator()
    assert bridged.accelerator is rt.accelerator
    assert (bridged.is_synchronized_device(), bridged.Stream, bridged.current_stream()) == (True, None, None)
    assert not bridged.is_pinned(bridged.pin_memory(torch.ones(2)))
    with pytest.raises(accelkit.UnsupportedError, match="does not support its generators"):
        bridged.default_generator(0)


def checkpointed(stage, options):
    """A model on the fake XPU, and a function that trains it on some batches."""
    rt = accelkit.Runtime("fake_xpu", strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=stage, config=options)))
    model, _, batches = made()
    model, optimizer = rt.prepare(model, adam(model))

    def train(some):
        for batch in some:
            rt.backward(model(batch[rt.process_index :: rt.num_processes].to(rt.device)).square().mean())
            optimizer.step()
            optimizer.zero_grad()

    return rt, model, batches, train


def two_save(folder):
    """Two processes save checkpoints of two stages, convert them, and train on."""
    for stage in (2, 3):
        rt, model, batches, train = checkpointed(stage, {})
        train(batches[:3])
        step = rt.save_state(f"{folder}/ckpt-{stage}")
        if rt.is_main_process:
            from deepspeed.checkpoint import ds_to_universal

            folders = {"input_folder": str(step / "engine_0" / "state"), "output_folder": f"{folder}/stage-{stage}-universal"}
            options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
            ds_to_universal.main(types.SimpleNamespace(**folders, **options, inject_missing_state=True))
        train(batches[3:])
        rt.save_model(model, f"{folder}/model-{stage}")
        rt.teardown()


def one_loads(folder):
    """One process goes on from them. What is not converted is refused."""
    from safetensors.torch import load_file

    for stage in (2, 3):
        rt, model, batches, train = checkpointed(stage, {"checkpoint": {"load_universal": True}})
        train(batches[:1])
        model.load_checkpoint(folder, tag=f"stage-{stage}-universal")
        rt.save_state(f"{folder}/of-one-{stage}")
        train(batches[3:])
        rt.load_state(f"{folder}/of-one-{stage}")  # not a universal checkpoint, which the configuration asks for
        train(batches[3:])
        expected = load_file(f"{folder}/model-{stage}/model.safetensors")
        found = {name: tensor.cpu() for name, tensor in rt.get_state_dict(model).items()}
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        rt.teardown()
        rt, model, _, _ = checkpointed(stage, {})
        with pytest.raises(accelkit.CheckpointError, match="the number of processes was 2 and is 1") as caught:
            rt.load_state(f"{folder}/ckpt-{stage}")
        assert f"convert {folder}/ckpt-{stage}/step-0/engine_0/state with" in caught.value.hint
        rt.teardown()


def bridged_of(accelerator):
    from accelkit.bridges.deepspeed.plugin_accelerator import PluginAccelerator

    return PluginAccelerator(accelerator)


def answers():
    """What DeepSpeed is told about the fake XPU, which has two devices."""
    rt = install("fake_xpu")
    bridged = bridged_of(rt.accelerator)
    bridged.set_device("1")  # DeepSpeed passes LOCAL_RANK as it is
    assert (bridged.device_count(), bridged.current_device(), bridged.current_device_name()) == (2, 1, "fake_xpu:1")
    assert (bridged.device_name(), bridged.device_name(0), bridged.device("0")) == ("fake_xpu", "fake_xpu:0", torch.device("fake_xpu:0"))
    assert bridged.communication_backend_name() == "cpu:gloo,fake_xpu:fxccl"
    assert bridged.is_available()

    state = bridged.get_rng_state(1)
    drawn = torch.rand(3, device="fake_xpu:1")
    assert not torch.equal(torch.rand(3, device="fake_xpu:1"), drawn)
    bridged.set_rng_state(state, torch.device("fake_xpu:1"))
    assert torch.equal(torch.rand(3, device="fake_xpu:1"), drawn)
    bridged.manual_seed_all(5)
    assert (bridged.initial_seed(), bridged.default_generator(0).initial_seed()) == (5, 5)

    bridged.empty_cache()
    bridged.reset_max_memory_allocated()
    before, free = bridged.memory_allocated(), bridged.available_memory()
    held = torch.ones(1 << 18, device="fake_xpu:1")
    assert bridged.memory_allocated() - before == held.nbytes
    assert bridged.memory_reserved() >= bridged.memory_allocated()
    assert bridged.memory_allocated(0) != bridged.memory_allocated(1)
    assert free - bridged.available_memory() >= held.nbytes
    assert bridged.total_memory() >= free
    del held
    assert bridged.max_memory_allocated() - before >= 1 << 20
    assert bridged.max_memory_reserved() >= bridged.max_memory_allocated()
    assert bridged.memory_stats()

    _streams(bridged)
    _dtypes_and_operators(bridged)


def _streams(bridged):
    side = bridged.Stream()
    with bridged.stream(side):
        assert bridged.current_stream() == side
        event = bridged.Event(enable_timing=True)
        event.record(bridged.current_stream())
    bridged.synchronize()
    assert event.query()
    assert bridged.current_stream() == bridged.default_stream()
    assert not bridged.is_synchronized_device()
    pinned = bridged.pin_memory(torch.ones(3))
    assert bridged.is_pinned(pinned)
    assert bridged.is_pinned(bridged.pin_empty(2, dtype=torch.float32))
    assert not bridged.on_accelerator(pinned)
    assert bridged.on_accelerator(pinned.to("fake_xpu"))


def _dtypes_and_operators(bridged):
    assert bridged.supported_dtypes() == [torch.float32, torch.float16, torch.bfloat16]
    assert bridged.is_fp64_supported()
    assert bridged.BFloat16Tensor([1.0]).dtype == torch.bfloat16
    assert bridged.LongTensor([1]).device == torch.device("fake_xpu:1")
    assert bridged.get_compile_backend() == "aot_eager"
    bridged.set_compile_backend("eager")
    assert bridged.get_compile_backend() == "eager"
    variables = {}
    bridged.set_visible_devices_envs(variables, [0, 3])
    assert variables == {"FAKE_XPU_VISIBLE_DEVICES": "0,3"}
    assert bridged.create_op_builder("CPUAdamBuilder").name == "cpu_adam"
    with pytest.raises(accelkit.UnsupportedError, match="DeepSpeed does not support FusedAdam on fake_xpu"):
        bridged.create_op_builder("FusedAdamBuilder").load()
    for call in (bridged.create_graph, lambda: bridged.capture_to_graph(None), lambda: bridged.replay_graph(None)):
        with pytest.raises(accelkit.UnsupportedError, match="DeepSpeed does not support graphs on fake_xpu"):
            call()


class Silent(CPUAccelerator):
    """A host that does not say how much memory it has."""

    declared_capabilities = accelkit.Capabilities.declare(none=["dtype.float16", "dtype.float64"])

    def memory_stats(self, device):
        return {}


def answers_of_a_host():
    """What DeepSpeed is told about the CPU, and about a device that reports and supports little."""
    rt = install("cpu")
    bridged = bridged_of(rt.accelerator)
    assert type(sys.modules["deepspeed"].accelerator.get_accelerator()).__name__ == "CPU_Accelerator", "DeepSpeed's own is used"
    assert (bridged.current_device(), bridged.current_device_name(), bridged.device_name(1)) == (0, "cpu", "cpu")
    assert (bridged.device_count(), bridged.visible_devices_envs(), bridged.Event) == (1, [], None)
    assert 0 < bridged.available_memory() < bridged.total_memory()
    bridged.manual_seed(3)
    assert bridged.initial_seed() == 3
    silent = bridged_of(Silent())
    assert (silent.available_memory(), silent.memory_cached(), silent.memory_stats()["allocated_bytes.all.peak"]) == (0, 0, 0)
    assert silent.supported_dtypes() == [torch.float32, torch.bfloat16]
    assert not silent.is_fp64_supported()
    with pytest.raises(accelkit.UnsupportedError, match="DeepSpeed needs to know how much memory"):
        silent.total_memory()


class Tracing(FakeXPUAccelerator):
    """A device that traces lazily."""

    def step_end(self):
        """Compute what was traced."""


def refusals():
    """Devices that DeepSpeed cannot use, and a program that imported DeepSpeed too early."""
    for make in (lambda: install(Tracing()), lambda: accelkit.Runtime(Tracing(), strategy="deepspeed")):
        with pytest.raises(accelkit.UnsupportedError, match="the device traces lazily"):
            make()
    import deepspeed

    assert deepspeed.accelerator.get_accelerator().device_name() == "cpu", "which DeepSpeed chooses by itself here"
    rt = accelkit.Runtime("fake_xpu", strategy="deepspeed")
    for call in (lambda: install("fake_xpu"), lambda: rt.device):
        with pytest.raises(accelkit.ContradictionError, match="DeepSpeed uses cpu") as caught:
            call()
        assert "bridges.deepspeed.install('fake_xpu') first, or import deepspeed after" in caught.value.hint


globals()[sys.argv[1]](*sys.argv[2:])
print("done", flush=True)
