"""What each process does in test_elastic.py: trains one epoch, and records which samples each step used.

``elastic_program.py FOLDER [STEP:PROCESSES ...]``: the job goes beyond STEP only on so many processes. Until then, it waits there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import accelkit

SAMPLES, LEARNING_RATE = 60, 0.05


class Steps:
    """What the completed steps did."""

    def __init__(self) -> None:
        self.records: list[dict] = []

    def state_dict(self) -> dict:
        return {"records": self.records}

    def load_state_dict(self, state: dict) -> None:
        self.records = state["records"]


def inputs() -> torch.Tensor:
    return torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))


def main(folder: Path, wanted: dict[int, int]) -> None:
    rt = accelkit.Runtime("cpu", seed=0, strategy="ddp")
    model = torch.nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(SAMPLES), inputs()), batch_size=2, shuffle=True)
    model, optimizer, loader = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), loader)
    steps = Steps()
    rt.register_for_checkpointing(steps)
    rt.resume(folder / "checkpoint")
    rt.print(f"{rt.num_processes} processes begin after step {len(steps.records)}", flush=True)
    for index, batch in loader:
        loss = model(batch).square().mean()
        rt.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        used, loss = rt.gather(index).tolist(), rt.gather(loss.detach()).mean().item()
        kept = rt.gather_for_metrics(index).tolist()
        steps.records.append({"processes": rt.num_processes, "used": used, "kept": kept, "loss": loss})
        done = len(steps.records)
        if done % 3 == 0:
            rt.save_state(folder / "checkpoint")
        rt.save_and_stop_if_preempted(folder / "checkpoint")
        while wanted.get(done, rt.num_processes) != rt.num_processes:
            (folder / f"waits-{done}-{rt.num_processes}").touch()
            time.sleep(0.05)
            rt.save_and_stop_if_preempted(folder / "checkpoint")
    if rt.is_main_process:
        weights = {name: value.tolist() for name, value in rt.unwrap_model(model).state_dict().items()}
        (folder / "result.json").write_text(json.dumps({"records": steps.records, "weights": weights}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(tuple(map(int, argument.split(":"))) for argument in sys.argv[2:]))
