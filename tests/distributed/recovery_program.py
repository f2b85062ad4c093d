"""What each rank does in test_recovery.py: trains, saves every second step, and may be killed at a step.

``recovery_program.py FOLDER STRATEGY KILLS``: STRATEGY is a name, or the sizes of ``parallel``, as ``shard=2 tensor=2``; then gradients
of two batches are accumulated and clipped, and the last batch of an epoch has one sample less. KILLS is
``rank@step`` for each life of the job, as ``1@3,0@7``; ``-`` for none. In the environment, SLOW is a pause after each step in seconds,
REQUEUE=1 asks for the scheduler's queue, and HOLD is a step after which the first life of a SLURM job waits to be told to stop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import parallel_model
import torch

import accelkit
from accelkit_builtin.strategies.parallel import ParallelStrategy

STEPS = 12


class Done:
    """How many steps were taken: in the checkpoint, and in the file ``stopped-RANK`` when the job is told to stop.

    The file is written before the job is put back into the queue, because the scheduler may kill the processes right after that.
    """

    def __init__(self, folder: Path) -> None:
        self.steps, self.rank, self.folder = 0, 0, folder

    @accelkit.hookimpl
    def job_preempted(self, path):
        (self.folder / f"stopped-{self.rank}").write_text(str(self.steps))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def kill_at(kills: str, rank: int) -> int:
    """The step of this life at which this rank dies; -1 for none."""
    mine = [kill.split("@") for kill in kills.split(",") if "@" in kill]
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if life < len(mine) and int(mine[life][0]) == rank:
        return int(mine[life][1])
    return -1


def perceptron():
    """A model, the data, and the loss of a batch."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), lambda rt, model, batch: model(batch).square().mean()


def transformer():
    """The same of a model whose layers can be divided. The number of texts is that of four batches of 16, less one."""
    shape = 63, parallel_model.LENGTH + 1
    texts = torch.randint(parallel_model.WORDS, shape, generator=torch.Generator().manual_seed(1))
    return (
        parallel_model.Transformer(dropout=0.3),
        texts,
        lambda rt, model, batch: parallel_model.loss_sum(model, batch, rt.mesh) / len(batch),
    )


def main() -> None:
    folder, layout, kills = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    is_parallel = "=" in layout
    strategy = ParallelStrategy(parallel_model.options(**parallel_model.sized(layout.split()))) if is_parallel else layout
    accelerator = os.environ.get("ACCELKIT_ACCELERATOR", "cpu")
    options = {"even_batches": False, "gradient_accumulation_steps": 2} if is_parallel else {}
    done = Done(folder)
    rt = accelkit.Runtime(accelerator, strategy=strategy, seed=5, requeue=bool(os.environ.get("REQUEUE")), hooks=[done], **options)
    done.rank = rt.process_index
    (folder / f"pid-{rt.process_index}").write_text(f"{os.getpid()}\n")
    deadly = kill_at(kills, rt.process_index)
    model, data, loss = transformer() if is_parallel else perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
    size = 16 // rt.data_parallel_size if is_parallel else 4
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=size, shuffle=True)
    model, optimizer, scheduler, loader = rt.prepare(model, optimizer, scheduler, loader)
    rt.register_for_checkpointing(done)
    if rt.resume(folder / "ckpt"):
        rt.print(f"resumed after step {done.steps}")
    while done.steps < STEPS:
        for (batch,) in loader:
            with rt.accumulate(model):
                rt.backward(loss(rt, model, batch))
                if deadly == done.steps:
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_parallel and rt.sync_gradients:
                    rt.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            done.steps += 1
            if done.steps % 2 == 0:
                rt.save_state(folder / "ckpt", keep_last=2)
            time.sleep(float(os.environ.get("SLOW", "0")))
            rt.save_and_stop_if_preempted(folder / "ckpt")
            while os.environ.get("HOLD") == str(done.steps) and "SLURM_RESTART_COUNT" not in os.environ:
                time.sleep(0.05)
                rt.save_and_stop_if_preempted(folder / "ckpt")
            if done.steps == STEPS:
                break
    weights = rt.get_state_dict(model)
    if rt.is_main_process:
        torch.save({name: tensor.cpu() for name, tensor in weights.items()}, folder / "weights.pt")
    rt.teardown()


main()
