"""The parts of a Runtime, each used without a Runtime."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit
from accelkit.errors import UsageError
from accelkit.runtime.checkpointing import Checkpointing
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.configuration import configure
from accelkit.runtime.data.loaders import innermost
from accelkit.runtime.gradients import Accumulation, Gradients
from accelkit.runtime.preemption import Preemption
from accelkit.runtime.preparation import Preparation, PreparationOptions, PreparedObjects
from accelkit.runtime.rank_info import RankInfo, run_only_if
from accelkit.runtime.session import Session
from accelkit.tracking.trackers import Trackers


class Parts:
    """A session on the CPU and the parts that use it, with the arguments that a Runtime would give them."""

    def __init__(self, precision: str = "32-true", num_steps: int = 1) -> None:
        self.configuration = configure(
            accelerator="cpu", devices=None, strategy=None, precision=precision, cluster=None, hooks=(), cpu=False, num_nodes=None
        )
        self.ranks = RankInfo(self.configuration.cluster)
        self.accumulation = Accumulation(num_steps)
        self.session = Session(self.configuration, self.ranks, self.accumulation, process_group=accelkit.ProcessGroupOptions())
        self.objects = PreparedObjects()
        self.preparation = Preparation(self.session, self.ranks, self.accumulation, PreparationOptions(), self.objects)
        self.gradients = Gradients(self.session, self.accumulation, self.objects)
        self.collectives = Collectives(self.ranks.num_processes, self.session.start)
        self.trackers = Trackers((), self.ranks, describe=self.session.description)


class FourthOfEight(accelkit.ClusterEnvironment):
    """Rank 3 of 8, the second process of its machine, until the processes have told each other that it is the first."""

    creates_processes_externally = True
    world_size, global_rank, local_rank = 8, 3, 1


def test_rank_info_reads_the_environment_once():
    cluster = FourthOfEight()
    ranks = RankInfo(cluster)
    assert (ranks.num_processes, ranks.process_index, ranks.local_process_index) == (8, 3, 1)
    assert not ranks.is_main_process
    assert not ranks.is_local_main_process
    assert not ranks.is_last_process
    cluster.local_rank = 0
    assert ranks.local_process_index == 1
    ranks.read_again()
    assert ranks.is_local_main_process


def test_a_function_runs_only_if_the_condition_holds_at_the_call():
    is_here = False
    double = run_only_if(lambda: is_here, lambda number: 2 * number)
    assert double(4) is None
    is_here = True
    assert double(4) == 8


def test_collectives_of_one_process_start_no_device():
    def start() -> torch.device:
        raise AssertionError("the device was started")

    collectives = Collectives(1, start)
    tensor = torch.arange(3)
    assert collectives.gather(tensor) is tensor
    assert collectives.broadcast(tensor) is tensor
    assert collectives.gather_for_metrics(["a"], None) == ["a"]
    assert collectives.reduce(tensor, scale=2.0).tolist() == [0, 2, 4]
    assert collectives.any_process(True)
    assert not collectives.any_process(False)
    with collectives.goes_first("once", is_first=False):
        pass
    with pytest.raises(AssertionError, match="was started"):
        Collectives(2, start).wait_for_everyone()


def test_a_session_starts_once_and_again_after_it_was_stopped():
    parts = Parts()
    assert not parts.session.is_started
    assert parts.session.state().device == "cpu"
    assert not parts.session.is_started, "a description starts nothing"
    assert parts.session.backward is torch.Tensor.backward
    assert parts.session.is_started
    precision = parts.session.precision
    assert parts.session.precision is precision
    parts.session.stop()
    assert not parts.session.is_started
    assert parts.session.device == torch.device("cpu")


def test_preparation_records_what_it_prepared():
    parts = Parts()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(5, 2)), batch_size=2)
    assert parts.preparation.prepare([optimizer, model], None) == (optimizer, model)
    (prepared,) = parts.preparation.prepare([loader], None)
    objects = parts.objects
    assert (objects.modules, objects.optimizers, objects.loaders) == ([model], [optimizer], [prepared])
    assert innermost(objects.loaders) is None
    for _ in prepared:
        assert innermost(objects.loaders) is prepared
    parts.preparation.free_memory()
    assert objects == PreparedObjects()


def test_gradients_of_a_precision_that_scales_them_are_complete_before_they_are_clipped():
    parts = Parts(precision="16-mixed", num_steps=2)
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parts.preparation.prepare([model, optimizer], None)
    inputs = torch.ones(1, 1)
    with parts.gradients.accumulate(model):
        parts.gradients.backward(model(inputs).sum())
        with pytest.raises(UsageError, match="2 micro-batches"):
            parts.gradients.clip_grad_norm_(model.parameters(), 1.0)
    with parts.gradients.accumulate(model):
        parts.gradients.backward(model(inputs).sum())
        assert parts.gradients.clip_grad_norm_(model.parameters(), 0.5).item() == 1.0
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(0.5)


def test_checkpointing_saves_the_objects_that_it_is_given(tmp_path):
    parts = Parts()
    model = nn.Linear(2, 1)
    parts.preparation.prepare([model], None)
    checkpointing = Checkpointing(parts.session, parts.ranks, parts.collectives, parts.objects, parts.trackers, timeout=60.0)
    assert not checkpointing.has_checkpoint(tmp_path)
    saved = model.weight.detach().clone()
    assert checkpointing.save_state(tmp_path, is_async=False, keep_last=None).name == "step-0"
    assert checkpointing.has_checkpoint(tmp_path)
    with torch.no_grad():
        model.weight.zero_()
    checkpointing.load_state(tmp_path)
    torch.testing.assert_close(model.weight.detach(), saved, rtol=0, atol=0)


def test_preemption_exits_so_that_a_launcher_starts_the_job_again(tmp_path):
    parts = Parts()
    preemption = Preemption(
        parts.configuration.cluster,
        parts.ranks,
        parts.collectives,
        parts.configuration.plugin_manager,
        parts.trackers,
        has_to_requeue=False,
    )
    try:
        assert not preemption.is_preempted()
        preemption.signals.received = "SIGUSR1"
        assert preemption.is_preempted()
    finally:
        preemption.signals.forget()
    with pytest.raises(SystemExit) as caught:
        preemption.stop(tmp_path / "step-0")
    assert caught.value.code == 143


class Logging(accelkit.Runtime):
    """A Runtime whose user adds to the backward pass."""

    calls = 0

    def backward(self, loss, **kwargs):
        self.calls += 1
        super().backward(loss, **kwargs)


@pytest.mark.parametrize("steps", [1, 2])
def test_backward_of_a_subclass_is_called(steps):
    rt = Logging("cpu", gradient_accumulation_steps=steps)
    model = rt.prepare(nn.Linear(1, 1))
    for _ in range(3):
        with rt.accumulate(model):
            rt.backward(model(torch.ones(1, 1)).sum())
    assert rt.calls == 3
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(3 / steps)


def test_without_a_subclass_backward_is_torchs_own():
    rt = accelkit.Runtime("cpu")
    assert rt.backward is not torch.Tensor.backward
    rt.prepare(nn.Linear(1, 1))
    assert rt.backward is torch.Tensor.backward
    rt.teardown()
    assert rt.backward is not torch.Tensor.backward
