"""What each rank does in test_lazy_verification_of_ranks.py. The argument is an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from damaged_files import invert_byte

import accelkit
from accelkit import CheckpointError

FOLDER = Path(sys.argv[1])
rt = accelkit.Runtime("cpu", strategy="ddp")
numbers = 1 << 22  # 16 MiB, the size of a block
plain = torch.nn.Sequential(torch.nn.Linear(1, numbers), torch.nn.BatchNorm1d(numbers))
model, optimizer = rt.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))


def train_step() -> list[torch.Tensor]:
    optimizer.zero_grad()
    rt.backward(model(torch.full((2, 1), float(rt.process_index))).sum())
    optimizer.step()
    return [value.clone() for value in plain.state_dict().values()]


def error_of(call) -> str:
    try:
        call()
    except CheckpointError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def damage(file: Path, place: int) -> None:
    rt.wait_for_everyone()
    if rt.is_main_process:
        invert_byte(file, place)
    rt.wait_for_everyone()


rt.save_state(FOLDER)
after = train_step()
rt.load_state(FOLDER, verify="lazy")
torch.testing.assert_close(train_step(), after, rtol=0, atol=0)

weights, own = (FOLDER / f"step-0/data/__{rank}_0.distcp" for rank in range(2))
damage(weights, numbers * 2)
for call in (
    lambda: model(torch.ones(2, 1)),  # ddp broadcasts the buffers, which torch does in C++
    lambda: rt.gather(plain[0].weight),
    lambda: rt.reduce(plain[0].weight),
    lambda: rt.save_state(FOLDER),
):
    rt.load_state(FOLDER, verify="lazy")
    text = error_of(call)
    assert "__0_0.distcp: its checksum is wrong where it holds model_0.0.weight" in text, text
    rt.wait_for_everyone()
assert "rank 0" in text, text
assert "; rank 1" in text, text
damage(weights, numbers * 2)

damage(own, own.stat().st_size // 2)  # only rank 1 reads this
text = error_of(lambda: rt.load_state(FOLDER, verify="lazy"))
assert "why: rank 1" in text, text
assert "__1_0.distcp: its checksum is wrong" in text, text
rt.teardown()
