"""Forking, and DataLoader workers."""

import pytest

BAD_FORK = "Cannot re-initialize fake_xpu in forked subprocess. To use fake_xpu with multiprocessing, you must use the 'spawn' start method"

FORK = """
import os, sys
{before}
for use in {uses}:
    child = os.fork()
    if child == 0:
        try:
            exec(use)
        except RuntimeError as error:
            print(error, flush=True)
        else:
            print("worked", torch.fake_xpu._is_in_bad_fork(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
USES = [
    "torch.ones(2, device='fake_xpu')",
    "x + 1",
    "x.cpu()",
    "torch.fake_xpu.synchronize()",
    "torch.fake_xpu.Event().record()",
    "torch.ones(1).pin_memory()",
    "torch.fake_xpu.memory._record_memory_history()",
    "torch.fake_xpu.memory._snapshot()",
]


def test_use_in_a_fork_after_use_is_a_bad_fork_but_seeding_is_no_error(run):
    result = run(FORK.format(before="x = torch.ones(2, device='fake_xpu')", uses=[*USES, "torch.manual_seed(3)"]))
    assert result.stdout.splitlines() == [BAD_FORK] * len(USES) + ["worked True"]


def test_a_fork_before_use_may_use_it(run):
    looking = "torch.fake_xpu.is_available(); torch.fake_xpu.device_count(); torch.manual_seed(1)"
    assert run(FORK.format(before=looking, uses=["torch.ones(2, device='fake_xpu').sum().item()"])).stdout == "worked False\n"


LOADER = """
from torch.utils.data import DataLoader, TensorDataset
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): {item}
torch.ones(1, device="fake_xpu")
if __name__ == "__main__":
    loader = DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context={context!r}, {options})
    for batch in loader:
        print(batch.is_pinned(), batch.to("fake_xpu:1", non_blocking=True).tolist())
"""


@pytest.mark.parametrize("options", ["pin_memory=False", "pin_memory=True", "pin_memory=True, pin_memory_device='fake_xpu'"])
def test_workers_that_use_the_cpu_work_after_use_of_the_device(run, options):
    result = run(LOADER.format(item="return torch.tensor(index)", context="fork", options=options))
    is_pinned = options != "pin_memory=False"
    assert result.stdout == f"{is_pinned} [0, 1, 2, 3]\n{is_pinned} [4, 5, 6, 7]\n"


def test_a_forked_worker_that_uses_the_device_says_why_not(run):
    result = run(LOADER.format(item="return torch.ones(1, device='fake_xpu')", context="fork", options=""), check=False)
    assert BAD_FORK in result.stderr


def test_spawned_processes_use_it(tmp_path):
    import subprocess
    import sys

    program = tmp_path / "spawned.py"
    program.write_text(
        "import os, torch, accelkit_fake_xpu.torch_backend\n"
        "def work(rank):\n"
        "    total = torch.full((2,), rank, device=f'fake_xpu:{rank}').sum().item()\n"
        "    os.write(1, f'{total}\\n'.encode())\n"  # one call per line, because print writes the newline separately
        "if __name__ == '__main__':\n"
        "    torch.ones(1, device='fake_xpu')\n"
        "    torch.multiprocessing.spawn(work, nprocs=2)\n"
    )
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert sorted(result.stdout.split()) == ["0", "2"]


def test_a_program_that_ends_with_copies_queued_ends_well(run):
    result = run(
        """
        x = torch.zeros(1 << 22, device="fake_xpu")
        with torch.fake_xpu.Stream():
            for _ in range(20):
                x.copy_(torch.ones(1 << 22).pin_memory(), non_blocking=True)
        print("done")
        """
    )
    assert result.stdout == "done\n"
    assert result.stderr == ""
