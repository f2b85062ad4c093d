"""What each rank does in test_strategies.py: ``strategies_program.py ACCELERATOR CASE...``, each case a function below."""

from __future__ import annotations

import contextlib
import copy
import sys

import pytest
import torch

import accelkit
from accelkit_builtin.strategies.ddp import DDPOptions, DDPStrategy
from accelkit_builtin.strategies.fsdp import FSDPOptions, FSDPStrategy

ACCELERATOR = sys.argv[1]
SAMPLES = 12


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(5, 7)
        self.blocks = torch.nn.ModuleList([Block(7), Block(7)])
        self.outward = torch.nn.Linear(7, 1)

    def forward(self, x):
        x = self.inward(x)
        for block in self.blocks:
            x = block(x)
        return self.outward(x)


def runtime(strategy, **options):
    return accelkit.Runtime(ACCELERATOR, strategy=strategy, precision="64-true", **options)


def made():
    torch.default_generator.manual_seed(0)
    return Model().double(), torch.randn(SAMPLES, 5, dtype=torch.float64)


def whole(tensor):
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu().clone()


def share(data, rt):
    """Uneven on purpose: the first rank has the most."""
    sizes = [len(data) // (2**rank + 1) for rank in range(1, rt.num_processes)]
    return data.split([len(data) - sum(sizes), *sizes])[rt.process_index].to(rt.device)


def equal_gradients(rt, model, reference):
    for (name, mine), theirs in zip(rt.unwrap_model(model).named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(whole(mine.grad), theirs.grad, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def gradients(strategy):
    """Uneven shares of a batch: each process's sum, over the job's count, gives the gradients of one process on the whole."""
    rt = runtime(strategy)
    model, batch = made()
    reference = copy.deepcopy(model)
    model = rt.prepare(model)
    for times in (1, 2):
        mine = share(batch, rt)
        count = rt.reduce(torch.tensor(float(len(mine)), dtype=torch.float64, device=rt.device))
        rt.backward(model(mine).square().sum() / count * rt.num_processes)
        reference(batch).square().mean().backward()
        assert times in (1, 2)
        equal_gradients(rt, model, reference)
    norm = rt.clip_grad_norm_(model.parameters(), 0.1)
    expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    torch.testing.assert_close(norm.cpu(), expected, rtol=1e-12, atol=1e-12)
    equal_gradients(rt, model, reference)
    rt.teardown()


def accumulation(strategy):
    """Four micro-batches a step, AdamW: the weights of one process that saw whole batches."""
    rt = runtime(strategy, gradient_accumulation_steps=4)
    model, batch = made()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    theirs = torch.optim.AdamW(reference.parameters(), lr=0.1)
    for _ in range(3):
        for part in batch.chunk(4):
            with rt.accumulate(model):
                mine = share(part, rt)
                rt.backward(model(mine).square().sum() / len(part) * rt.num_processes)
                optimizer.step()
                optimizer.zero_grad()
        reference(batch).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
    for ours, other in zip(rt.unwrap_model(model).parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(whole(ours), other.detach(), rtol=1e-12, atol=1e-12)
    rt.teardown()


def reduced_once(strategy):
    """Inside no_sync gradients are the process's own, so that they differ; outside they are reduced, with what was kept."""
    rt = runtime(strategy)
    model, batch = made()
    reference = copy.deepcopy(model)
    model = rt.prepare(model)
    mine = batch[rt.process_index :: rt.num_processes].to(rt.device)
    own = copy.deepcopy(reference)
    own(mine.cpu()).square().mean().backward()
    with rt.no_sync(model):
        rt.backward(model(mine).square().mean())
    if strategy == "ddp":
        equal_gradients(rt, model, own)
    else:
        assert all(parameter.grad is None for parameter in model.parameters()), "they are whole, and wait to be reduced"
    rt.backward(model(mine).square().mean())
    (2 * reference(batch).square().mean()).backward()
    equal_gradients(rt, model, reference)
    rt.teardown()


def scaling(strategy):
    """``16-mixed``: an infinite gradient in one process's share of the batch skips the step of every process."""
    rt = accelkit.Runtime(ACCELERATOR, strategy=strategy, precision="16-mixed")
    torch.default_generator.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)
    before = [whole(parameter) for parameter in rt.unwrap_model(model).parameters()]
    for is_infinite in (True, False):
        batch = torch.randn(4, 5, device=rt.device)
        factor = float("inf") if is_infinite and rt.is_main_process else 1e-3
        rt.backward(model(batch).square().mean() * factor)
        norm = rt.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        assert rt.optimizer_step_was_skipped is is_infinite
        assert bool(norm.isfinite()) is not is_infinite
        after = [whole(parameter) for parameter in rt.unwrap_model(model).parameters()]
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)) is is_infinite
        assert (rt.precision.scale, optimizer.param_groups[0]["lr"]) == (32768.0, 0.1 if is_infinite else 0.05)
        assert all(bool(parameter.isfinite().all()) for parameter in after)
    rt.teardown()


def ddp_options(_):
    """Each option trains; what it changes, it changes."""
    for options in (
        DDPOptions(static_graph=True),
        DDPOptions(gradient_as_bucket_view=True, bucket_cap_mb=0.001),
        DDPOptions(find_unused_parameters=True),
        DDPOptions(communication_hook="fp16_compress"),
        DDPOptions(communication_hook="power_sgd", powersgd_rank=2),
        DDPOptions(communication_hook=halving, communication_state="mine"),
        DDPOptions(broadcast_buffers=False),
    ):
        rt = runtime(DDPStrategy(options))
        model, batch = made()
        reference = copy.deepcopy(model)
        if options.find_unused_parameters:
            model.forward = None
            model = Partly(model)
        prepared = rt.prepare(model)
        mine = batch[rt.process_index :: rt.num_processes].to(rt.device)
        rt.backward(prepared(mine).square().mean())
        if options.find_unused_parameters:
            assert next(prepared.parameters()).grad is not None
        elif options.communication_hook is halving:
            (reference(batch).square().mean() / 2).backward()
            equal_gradients(rt, prepared, reference)
        elif options.communication_hook is None:
            reference(batch).square().mean().backward()
            equal_gradients(rt, prepared, reference)
        else:
            reference(batch).square().mean().backward()
            exact = next(reference.parameters()).grad
            assert not torch.equal(next(prepared.parameters()).grad.cpu(), exact), f"{options.communication_hook} did nothing"
            if options.communication_hook == "fp16_compress":
                torch.testing.assert_close(next(prepared.parameters()).grad.cpu(), exact, rtol=1e-2, atol=1e-2)
        rt.teardown()
    rt = runtime(DDPStrategy(DDPOptions(communication_hook="bf16_compress")))
    has_to_refuse = torch.version.cuda is None and torch.version.hip is None  # torch asks how it was built, not for the device
    with pytest.raises(accelkit.UnsupportedError, match="BF16") if has_to_refuse else contextlib.nullcontext():
        rt.prepare(made()[0])
    rt.teardown()


class Partly(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first, self.unused = inner.inward, inner.outward

    def forward(self, x):
        return self.first(x)


def halving(state, bucket):
    """A communication hook of a user's: averages, then halves."""
    assert state == "mine"
    buffer = bucket.buffer()
    work = torch.distributed.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / torch.distributed.get_world_size() / 2)


def own_wrapper(_):
    """A strategy that inherits from ddp and wraps in a class of its own."""

    class Doubling(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return 2 * self.module(x)

    class Mine(DDPStrategy):
        def wrap_module(self, module, device):
            return super().wrap_module(Doubling(module), device)

    rt = runtime(Mine())
    model, batch = made()
    reference = copy.deepcopy(model)
    model = rt.prepare(model)
    assert isinstance(rt.unwrap_model(model), Doubling)
    mine = batch[rt.process_index :: rt.num_processes].to(rt.device)
    rt.backward(model(mine).mean())
    (2 * reference(batch).mean()).backward()
    equal_gradients(rt, model, reference)
    rt.teardown()


class WithMethods(Model):
    def __init__(self):
        super().__init__()
        self.config = {"width": 7}
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    @property
    def width(self):
        return self.config["width"]

    def penalty(self):
        return self.scale.square()

    def loss(self, x):
        return self.forward(x).mean()

    def count(self, number):
        self.seen += number


def attributes(_):
    """The wrapper of ddp answers for its module, and an exponential moving average of the model can be prepared."""
    rt = runtime("ddp")
    torch.default_generator.manual_seed(0)
    model = rt.prepare(WithMethods().double())
    mine = made()[1].to(rt.device)
    assert model.config == {"width": 7}
    assert model.width == 7
    assert model.scale is model.module.scale
    model.count(3)
    assert float(model.seen) == 3.0
    assert not hasattr(model, "nothing")
    with pytest.raises(AttributeError, match=r"'WithMethods' object has no attribute 'nothing'"):
        _ = model.nothing
    with pytest.raises(AttributeError, match=r"use rt.unwrap_model\(model\).inward"):
        _ = model.inward
    with torch.no_grad():
        model.loss(mine)
    with pytest.raises(accelkit.UnsupportedError, match=r"(?s)WithMethods.loss .*outside DistributedDataParallel"):
        model.loss(mine)
    rt.backward(model(mine).mean() + model.penalty())
    assert float(model.scale.grad) == 2.0, "the gradient of a penalty does not pass through a layer"
    assert copy.deepcopy(model.module).config == {"width": 7}

    average = rt.prepare(torch.optim.swa_utils.AveragedModel(rt.unwrap_model(model)))
    average.update_parameters(model)
    with torch.no_grad():
        model.scale.fill_(3.0)
    average.update_parameters(model)
    assert float(average.module.module.scale) == 2.0
    rt.teardown()


def batch_norm(_):
    """sync_batch_norm: statistics of the whole batch; with a group, of that group."""
    rt = runtime("ddp")
    _ = rt.device
    groups = [torch.distributed.new_group([rank]) for rank in range(rt.num_processes)]
    torch.default_generator.manual_seed(0)
    batch = 10 * torch.randn(8, 3, 4, dtype=torch.float64)
    mine = batch[rt.process_index :: rt.num_processes]
    for group, expected in ((None, batch), (groups[rt.process_index], mine)):
        strategy = DDPStrategy(DDPOptions(sync_batch_norm=True, sync_batch_norm_group=group))
        model = strategy.wrap_module(torch.nn.Sequential(torch.nn.BatchNorm1d(3)).double().to(rt.device), rt.device)
        model(mine.to(rt.device))
        mean = model.module[0].running_mean.cpu()
        torch.testing.assert_close(mean, 0.1 * expected.mean((0, 2)), rtol=1e-9, atol=1e-9)
    rt.teardown()


def fsdp_options(_):
    """Every wrap policy, offloading and mixed precision; the sharded bytes are a share of the whole."""
    for options, inner in (
        (FSDPOptions(), 2),
        (FSDPOptions(wrap="root"), 0),
        (FSDPOptions(wrap=torch.nn.Linear, reshard_after_forward=False), 4),
        (FSDPOptions(wrap={Block}), 2),
        (FSDPOptions(wrap=lambda module: isinstance(module, Block)), 2),
        (FSDPOptions(cpu_offload=True, pin_memory=False), 2),
    ):
        rt = runtime(FSDPStrategy(options))
        model, batch = made()
        reference = copy.deepcopy(model)
        model = rt.prepare(model)
        sharded = [module for module in model.modules() if isinstance(module, torch.distributed.fsdp.FSDPModule)]
        assert len(sharded) == inner + 1, options
        numbers = sum(parameter.to_local().numel() for parameter in model.parameters())
        assert numbers < sum(parameter.numel() for parameter in reference.parameters())
        mine = batch[rt.process_index :: rt.num_processes].to(rt.device)
        rt.backward(model(mine).square().mean())
        reference(batch).square().mean().backward()
        if options.cpu_offload:
            assert all(parameter.device.type == "cpu" for parameter in model.parameters())
        equal_gradients(rt, model, reference)
        rt.teardown()
    rt = accelkit.Runtime(ACCELERATOR, strategy=FSDPStrategy(FSDPOptions(param_dtype="bfloat16", output_dtype="float32")))
    model = rt.prepare(torch.nn.Linear(4, 4))
    result = model(torch.randn(2, 4, device=rt.device))
    assert (result.dtype, next(model.parameters()).dtype) == (torch.float32, torch.float32)
    rt.teardown()


def meta(_):
    """A model from the meta device has the same weights on every number of processes, and trains."""
    rt = runtime("fsdp")
    with torch.device("meta"):
        model = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.default_generator.manual_seed(3)
    model, optimizer = rt.prepare(model, optimizer)
    after = torch.rand(())
    assert all(isinstance(parameter, torch.distributed.tensor.DTensor) for parameter in model.parameters())
    numbers = [whole(parameter) for parameter in model.parameters()]
    assert all(bool(tensor.isfinite().all()) and tensor.abs().sum() > 0 for tensor in numbers)
    if rt.is_main_process:
        print("weights", [round(float(tensor.sum()), 12) for tensor in numbers], float(after))
    _, batch = made()
    rt.backward(model(batch.to(rt.device)).square().mean())
    optimizer.step()
    assert not any(torch.equal(whole(parameter), before) for parameter, before in zip(model.parameters(), numbers, strict=True))
    rt.teardown()


for case in sys.argv[2:]:
    name, _, strategy = case.partition("=")
    globals()[name](strategy)
    print("done", case, flush=True)
