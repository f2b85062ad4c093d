"""What each rank does in test_deepspeed.py: ``deepspeed_program.py CASE...``, each case a function below, and its stage.

The variable ON names the accelerator: cpu by default.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import sys

import pytest
import torch

import accelkit
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions
from accelkit_builtin.strategies.deepspeed import DeepSpeedOptions, DeepSpeedStrategy

SAMPLES = 8
ON = os.environ.get("ON", "cpu")


def runtime(stage, precision="32-true", steps=1, **options):
    if stage == 3:  # else small parameters stay whole once they were gathered
        options = {"config": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}} | options
    strategy = DeepSpeedStrategy(DeepSpeedOptions(stage=stage, **options))
    return accelkit.Runtime(ON, strategy=strategy, precision=precision, gradient_accumulation_steps=steps)


def made():
    torch.default_generator.manual_seed(0)
    layers = [torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)]
    model = torch.nn.Sequential(*layers)
    batches = torch.randn(8, SAMPLES, 5)
    return model, copy.deepcopy(model), batches


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def share(batch, rt):
    return batch[rt.process_index :: rt.num_processes].to(rt.device)


def assert_same_weights(rt, model, reference, rtol=1e-4):
    """float32 sums in another order, through AdamW's square root: 3e-6 was seen."""
    with rt.strategy.whole_parameters(model):
        for (name, mine), theirs in zip(rt.unwrap_model(model).named_parameters(), reference.parameters(), strict=True):
            weights = mine.detach().float().cpu()
            text = f"{name}: {(weights - theirs).abs().max()}"
            torch.testing.assert_close(weights, theirs.detach(), rtol=rtol, atol=rtol / 10, msg=text)


def plain(stage):
    """The plain loop; an optimizer and a model that are the same objects before and after; and the buffers of rank 0."""
    rt = runtime(stage)
    model, reference, batches = made()
    model.register_buffer("of_rank", torch.tensor([rt.process_index]))
    optimizer, theirs = adam(model), adam(reference)
    prepared, same = rt.prepare(model, optimizer)
    assert same is optimizer
    pieces = sum(piece.numel() for group in optimizer.param_groups for piece in group["params"])
    assert pieces < 0.7 * sum(parameter.numel() for parameter in reference.parameters())
    assert all(parameter.numel() == 0 for parameter in prepared.parameters()) == (stage == 3)
    assert rt.unwrap_model(prepared) is model
    assert model.of_rank.tolist() == [0]
    for batch in batches:
        rt.backward(prepared(share(batch, rt)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        reference(batch).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
    assert_same_weights(rt, prepared, reference)
    rt.teardown()


def everything(stage, **options):
    """Accumulation, clipping and a scheduler, the last step cut short; then gradients thrown away."""
    rt = runtime(stage, steps=2, **options)
    model, reference, batches = made()
    optimizer, theirs = adam(model), adam(reference)
    scheduler, other = (torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (optimizer, theirs))
    model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)
    for number, batch in enumerate(batches):
        with rt.accumulate(model):
            rt.backward(model(share(batch, rt)).square().mean())
            norm = rt.clip_grad_norm_(model.parameters(), 0.1) if rt.sync_gradients else None
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        (reference(batch).square().mean() / 2).backward()
        if number % 2:
            expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
            torch.testing.assert_close(norm.cpu(), expected, rtol=1e-4, atol=1e-6)
            theirs.step()
            other.step()
            theirs.zero_grad()
    assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] == 0.05 / 4
    assert_same_weights(rt, model, reference)
    rt.teardown()


def clipped_twice(stage):
    """As in torch, the smallest limit before a step counts. zero_grad discards a limit together with the gradients."""
    rt = runtime(stage)
    model, reference, batches = made()
    optimizer, theirs = adam(model), adam(reference)
    model, optimizer = rt.prepare(model, optimizer)
    for batch, limits in zip(batches, [(), (0.1, 0.5), (0.5, 0.1), ()] * 2, strict=True):
        rt.backward(model(share(batch, rt)).square().mean())
        rt.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.zero_grad()
        rt.backward(model(share(batch, rt)).square().mean())
        norms = [rt.clip_grad_norm_(model.parameters(), limit) for limit in limits]
        optimizer.step()
        reference(batch).square().mean().backward()
        expected = [torch.nn.utils.clip_grad_norm_(reference.parameters(), limit) for limit in limits]
        for norm in norms:
            torch.testing.assert_close(norm.cpu(), expected[0], rtol=1e-4, atol=1e-6)
        theirs.step()
        theirs.zero_grad()
    assert_same_weights(rt, model, reference)
    rt.teardown()


def offloaded(stage):
    everything(stage, offload_optimizer=True, offload_parameters=stage == 3)


def several_backwards(stage):
    """As in torch: backward passes add up until the step, no_sync or not; zero_grad drops what there is; the model may be called twice."""
    rt = runtime(stage)
    model, reference, batches = made()
    optimizer, theirs = adam(model), adam(reference)
    model, optimizer = rt.prepare(model, optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)  # after: it wraps the step that is DeepSpeed's
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        rt.backward(100 * model(share(second, rt)).square().mean())
        optimizer.zero_grad()
        with rt.no_sync(model):
            rt.backward(model(share(first, rt)).square().mean())
        rt.backward(model(share(second, rt)).square().mean() + model(2 * share(second, rt)).square().mean())
        optimizer.step()
        (reference(first).square().mean() + reference(second).square().mean() + reference(2 * second).square().mean()).backward()
        theirs.step()
        theirs.zero_grad()
    assert_same_weights(rt, model, reference)
    rt.teardown()


def mixed(stage):
    """bf16-mixed: bfloat16 parameters, float32 ones in the optimizer; close to the reference, and its results are float32."""
    rt = runtime(stage, precision="bf16-mixed")
    model, reference, batches = made()
    before = copy.deepcopy(reference)
    optimizer, theirs = torch.optim.SGD(model.parameters(), lr=0.2), torch.optim.SGD(reference.parameters(), lr=0.2)
    model, optimizer = rt.prepare(model, optimizer)
    for batch in batches:
        result = model(share(batch, rt))
        assert (result.dtype, next(model.parameters()).dtype) == (torch.float32, torch.bfloat16)
        rt.backward(result.square().mean())
        norm = rt.clip_grad_norm_(model.parameters(), 0.5)
        assert norm.isnan()
        optimizer.step()
        optimizer.zero_grad()
        assert norm > 0
        reference(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        theirs.step()
        theirs.zero_grad()
    with rt.strategy.whole_parameters(model):
        gap, moved = [
            torch.stack(
                [(now.cpu() - then).norm() for now, then in zip(rt.unwrap_model(model).parameters(), one.parameters(), strict=True)]
            ).norm()
            for one in (reference, before)
        ]
    assert gap < 0.05 * moved, (gap, moved)
    rt.teardown()


def scaled(stage):
    """16-mixed: float16 parameters and the engine's scaler; an infinite gradient of one process skips the step of all, and the
    scheduler's."""
    if ON == "cpu":
        import deepspeed  # the strategy has set nothing yet: DS_ACCELERATOR is the test's

        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # torch computes it on any CPU, if slowly
    rt = runtime(stage, precision=Float16Mixed(GradScalerOptions(init_scale=1024.0)))
    model, reference, batches = made()
    before = copy.deepcopy(reference)
    optimizer, theirs = torch.optim.SGD(model.parameters(), lr=0.2), torch.optim.SGD(reference.parameters(), lr=0.2)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.9) for one in (optimizer, theirs)]
    model, optimizer, _ = rt.prepare(model, optimizer, schedulers[0])
    scales = []
    for number, batch in enumerate(batches):
        is_infinite = number == 1
        result = model(share(batch, rt))
        assert (result.dtype, next(model.parameters()).dtype) == (torch.float32, torch.float16)
        loss = result.square().mean()
        rt.backward(loss * 1e30 if is_infinite and rt.process_index == rt.num_processes - 1 else loss)
        norm = rt.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedulers[0].step()
        optimizer.zero_grad()
        assert rt.optimizer_step_was_skipped == is_infinite
        scales.append(rt.precision.scale)
        if is_infinite:
            continue
        reference(batch).square().mean().backward()
        true = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        torch.testing.assert_close(norm.cpu(), true, rtol=0.01, atol=0.0)
        theirs.step()
        schedulers[1].step()
        theirs.zero_grad()
        assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert scales == [1024.0] + [512.0] * 7
    with rt.strategy.whole_parameters(model):
        gap, moved = [
            torch.stack(
                [(now.float().cpu() - then).norm() for now, then in zip(rt.unwrap_model(model).parameters(), one.parameters(), strict=True)]
            ).norm()
            for one in (reference, before)
        ]
    assert gap < 0.01 * moved, (gap, moved)
    rt.teardown()


def kept(stage):
    """DeepSpeed's own checkpoint resumes; weights leave whole."""
    folder = os.environ["FOLDER"]
    rt = runtime(stage)
    model, reference, batches = made()
    model, optimizer = rt.prepare(model, adam(model))

    def train(some):
        for batch in some:
            rt.backward(model(share(batch, rt)).square().mean())
            optimizer.step()
            optimizer.zero_grad()

    train(batches[:4])
    model.save_checkpoint(folder, tag=f"stage-{stage}")
    train(batches[4:])
    first = {name: tensor.clone() for name, tensor in rt.get_state_dict(model).items()}
    assert {name: tensor.shape for name, tensor in first.items()} == {name: tensor.shape for name, tensor in reference.state_dict().items()}
    model.load_checkpoint(folder, tag=f"stage-{stage}")
    train(batches[4:])
    torch.testing.assert_close(rt.get_state_dict(model), first, rtol=0, atol=0)
    rt.teardown()


def refused(error, text, call, *args, **kwargs):
    with pytest.raises(error, match=re.escape(text)):
        call(*args, **kwargs)


def errors(stage):
    """What cannot be done is an error that says what to do."""
    rt = runtime(stage)
    prepare, refusal = rt.prepare, accelkit.PrepareError
    model, other, batches = made()
    refused(refusal, "no optimizer of this call trains it", prepare, model)
    refused(refusal, "no module of this call has all of this optimizer's parameters", prepare, adam(model))
    refused(refusal, "Sequential already has another optimizer", prepare, model, adam(model), adam(model))
    with torch.device("meta"):
        meta = torch.nn.Linear(2, 2)
    refused(accelkit.UnsupportedError, "meta device", prepare, meta, adam(meta))
    refused(accelkit.UnsupportedError, "DeepSpeed has no model to train", rt.backward, batches.sum())
    model, optimizer = prepare(model, adam(model))
    assert prepare(other.requires_grad_(False)) is other
    refused(accelkit.UnsupportedError, "one torch.nn.ModuleDict", prepare, other.requires_grad_(True), adam(other))
    refused(accelkit.UnsupportedError, "does not support the arguments gradient", rt.backward, batches.sum(), gradient=batches.sum())
    refused(accelkit.UnsupportedError, "without a closure", optimizer.step, lambda: None)
    clip, unable = rt.clip_grad_norm_, accelkit.UnsupportedError
    refused(unable, "only the 2-norm", clip, model.parameters(), 1.0, norm_type=1.0)
    refused(unable, "all parameters of the model together", clip, next(model.parameters()), 1.0)
    refused(unable, "it does not support error_if_nonfinite\n", clip, model.parameters(), 1.0, error_if_nonfinite=True, foreach=False)
    refused(accelkit.UsageError, "a positive number", clip, model.parameters(), 0)
    refused(unable, "it partitions the gradients", rt.clip_grad_value_, model.parameters(), 1.0)
    refused(unable, "does not support uneven inputs", rt.join_uneven_inputs, [model])
    rt.teardown()
    model, _, _ = made()
    rt = runtime(stage, config={"gradient_clipping": 2.0})
    model, _ = rt.prepare(model, adam(model))
    refused(accelkit.ContradictionError, "gradient_clipping=2.0", rt.clip_grad_norm_, model.parameters(), 1.0)
    rt.teardown()
    model, _, _ = made()
    rt = runtime(stage, config={"zero_optimization": {"reduce_bucket_size": "many"}})
    refused(accelkit.UsageError, "DeepSpeed does not wrap Sequential and AdamW", rt.prepare, model, adam(model))
    rt.teardown()
    deepspeed = sys.modules["deepspeed"]
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: False  # as on most CPUs
    rt = runtime(stage, precision="16-mixed")
    refused(unable, "does not support precision '16-mixed' on cpu", rt.prepare, model, adam(model))
    rt.teardown()


def behaved(stage):
    """Nothing of the process is DeepSpeed's afterwards: variables, signal handlers, a step without a Runtime."""
    variables, handlers = dict(os.environ), {number: signal.getsignal(number) for number in signal.Signals}
    rt = runtime(stage)
    model, _, batches = made()
    model, optimizer = rt.prepare(model, adam(model))
    rt.backward(model(share(batches[0], rt)).square().mean())
    optimizer.step()
    changed = {name: value for name, value in os.environ.items() if variables.get(name) != value}
    assert set(changed) <= {"TORCHINDUCTOR_CACHE_DIR"}, changed  # torch's own, when it first looks for its compiler
    assert {number: signal.getsignal(number) for number in signal.Signals} == handlers
    rt.teardown()


def elsewhere(stage):
    """DeepSpeed was put to work on another device by the program: not its device is taken, and not the Runtime's quietly."""
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    rt = runtime(stage)
    set_accelerator(CUDA_Accelerator())
    model, _, _ = made()
    text = f"DeepSpeed uses cuda in this process, but the Runtime uses {ON}"
    refused(accelkit.ContradictionError, text, rt.prepare, model, adam(model))
    rt.teardown()


def loader(stage):
    """The whole loop, as it is written for any strategy."""
    rt = runtime(stage, precision="bf16-mixed")
    model, _, batches = made()
    before = copy.deepcopy(model)
    data = torch.utils.data.DataLoader(batches.flatten(0, 1), batch_size=SAMPLES // 2)
    model, optimizer, data = rt.prepare(model, adam(model), data)
    for batch in data:
        rt.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    assert model.train_micro_batch_size_per_gpu() == SAMPLES // 2
    with rt.strategy.whole_parameters(model):
        weights = rt.unwrap_model(model)[0].weight.float().cpu()
        assert (weights - before[0].weight).norm() > 0.1
    rt.teardown()


for case in sys.argv[1:]:
    name, _, stage = case.partition("=")
    globals()[name](int(stage))
    print("done", case, flush=True)
