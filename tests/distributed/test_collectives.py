"""Collectives on real processes: every dtype, place and shape; processes that do not do the same; one process touches nothing."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys

import pytest
import ranks
import torch

import accelkit
from accelkit.runtime.data import input_shares

SHORT = {"ACCELKIT_TIMEOUT": "8"}  # the processes must also join within it, on a busy machine
CASES = ("gather", "differing", "reduce", "gradients", "broadcast", "pad", "metrics", "memory", "first", "places")
AGAIN = ("in_rounds", "gather", "differing", "reduce", "gradients", "broadcast", "pad", "first")


@pytest.mark.parametrize(
    ("accelerator", "size"),
    [pytest.param("cpu", 2, marks=pytest.mark.soak), ("cpu", 3), pytest.param("fake_xpu", 2, marks=pytest.mark.smoke)],
)
def test_what_processes_do_together(accelerator, size):
    cases = (*CASES, *AGAIN)
    for text in ranks.run("runtime_collectives_program.py", size, accelerator, *cases):
        assert [line for line in text.splitlines() if line.startswith("done")] == [f"done {case}" for case in cases]


def error_of(kind, text):
    """The last error of this class in a process's output, with the indented lines below it."""
    text = re.sub(r"^\[rank\d\]: ?", "", text, flags=re.MULTILINE)  # torch prints it once more
    start = text.rindex(f"accelkit.errors.{kind}: ")
    head, *rest = text[start:].splitlines()
    return "\n".join([head, *itertools.takewhile(lambda line: line.startswith("  "), rest)])


@pytest.mark.parametrize(("accelerator", "others"), [pytest.param("cpu", (0, 2), marks=pytest.mark.smoke), ("fake_xpu", (0,))])
def test_a_process_that_does_not_come_is_named(accelerator, others, error_text):
    codes, texts = ranks.outcome("unequal_collectives_program.py", len(others) + 1, accelerator, "alone", environ=SHORT)
    assert codes[1] == 0, texts[1]
    for rank in others:
        assert codes[rank] != 0
        error = error_of("CollectiveError", texts[rank])
        what, _, why = error.partition("\n  why: ")
        assert f"gather of {{loss: float32[3]}} (call 3) on rank {rank}" in what
        assert what.endswith("rank 1")
        assert "reduce (sum) of float32[2]" in why
        assert "8000ms" in why
        assert "ACCELKIT_TIMEOUT" in why.partition("\n  what to do: ")[2]
        assert error == error_text


@pytest.mark.parametrize("cases", [("dead",), ("in_rounds", "dead")])
def test_a_process_that_ended_is_named(cases):
    codes, texts = ranks.outcome("unequal_collectives_program.py", 3, "cpu", *cases)
    assert codes[1] == 7
    for rank in (0, 2):
        # No snapshot: whether the others came too is a matter of time.
        what, _, why = error_of("CollectiveError", texts[rank]).partition("\n  why: ")
        assert "(call 2)" in what
        assert re.search(r"\brank 1$|\branks \d", what)
        assert "wait_for_everyone" in why


def test_another_process_makes_the_report_if_the_one_that_makes_it_is_killed():
    codes, texts = ranks.outcome("unequal_collectives_program.py", 3, "cpu", "reporter_dies", seconds=60)
    assert codes[1:] == [7, -signal.SIGKILL]
    what, _, why = error_of("CollectiveError", texts[0]).partition("\n  why: ")
    assert "gather of float32[1] (call 2) on rank 0 lost the connection while it waited for rank 1" in what
    assert "rank 1 (" in why
    assert "last called wait_for_everyone" in why


def test_where_nobody_can_be_asked_that_is_said(error_text):
    """Rank 0, whose process keeps the notes, stands still."""
    codes, texts = ranks.outcome("unequal_collectives_program.py", 2, "cpu", "stopped", environ=SHORT, seconds=60)
    assert codes[1] != 0
    error = error_of("CollectiveError", texts[1])
    assert "gather of float32[1] (call 2) on rank 1" in error.splitlines()[0]
    assert "rank 0" not in error.splitlines()[0], "nobody knows who did not come"
    assert error == error_text


def test_a_process_that_has_called_nothing_is_named(error_text):
    codes, texts = ranks.outcome("unequal_collectives_program.py", 2, "cpu", "silent", environ=SHORT)
    error = error_of("CollectiveError", texts[0])
    assert (bool(codes[0]), codes[1]) == (True, 0)
    assert "gather of float32[1] (call 1) on rank 0" in error.splitlines()[0]
    assert error.splitlines()[0].endswith("rank 1")
    assert "rank 1" in error.partition("  why: ")[2]
    assert error == error_text


@pytest.mark.smoke
def test_one_process_meets_nobody():
    code = (
        "import sys, torch, accelkit\n"
        "before = set(sys.modules)\n"
        "rt = accelkit.Runtime('cpu')\n"
        "x = torch.ones(2)\n"
        "rt.wait_for_everyone(); rt.gather(x, sync_grads=True); rt.reduce(x, 'max'); rt.broadcast(x); rt.pad_across_processes(x)\n"
        "rt.gather_for_metrics(['a'], use_gather_object=True)\n"
        "with rt.local_main_process_first(), rt.split_between_processes([1, 2]) as share: assert share == [1, 2]\n"
        "print(sorted(name for name in set(sys.modules) - before if name.endswith(('.operations', '.reduction', '.object_collectives'))))\n"
        "assert not torch.distributed.is_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


@pytest.mark.smoke
def test_one_process_refuses_what_several_refuse():
    with pytest.raises(TypeError, match="reduction is 3; a name or a torch.distributed.ReduceOp is expected"):
        accelkit.Runtime("cpu").reduce(torch.ones(1), 3)
    with pytest.raises(TypeError, match="cannot compute the mean of torch.int64"):
        accelkit.Runtime("cpu").reduce(torch.tensor(3), "mean")
    with pytest.raises(TypeError, match="not str"), accelkit.Runtime("cpu").split_between_processes("text"):
        pass


def test_one_process_runs_what_is_for_a_process():
    rt = accelkit.Runtime("cpu")
    assert rt.is_last_process
    assert rt.on_process(process_index=3)(lambda: "ran")() == "ran"
    assert rt.on_local_process(lambda: "ran", local_process_index=1)() == "ran"
    assert rt.on_local_process(local_process_index=1)(lambda: "ran")() == "ran"
    assert rt.on_local_process()(lambda: "ran")() == "ran"
    assert rt.on_last_process(lambda: "ran")() == "ran"


class Dataset:
    """As much of datasets.Dataset as is asked for."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def select(self, indices):
        return [self.items[index] for index in indices]


@pytest.mark.smoke
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [0, 1, 2, 5, 6, 7])
def test_shares_are_consecutive_and_lose_nothing(total, size):
    items = list(range(total))
    kinds = {list: items, tuple: tuple(items), torch.Tensor: torch.arange(total), Dataset: Dataset(items)}
    for given in kinds.values():
        shares = [list(input_shares.share_of(given, rank, size, is_padded=False)) for rank in range(size)]
        assert [item for share in shares for item in share] == items
        assert {len(share) for share in shares} <= {total // size, -(-total // size)}
        padded = [list(input_shares.share_of(given, rank, size, is_padded=True)) for rank in range(size)]
        assert {len(share) for share in padded} == {-(-total // size)}
        assert all(
            share == whole[: len(share)] and set(map(int, whole[len(share) :])) <= {total - 1}
            for share, whole in zip(shares, padded, strict=True)
        )
    assert isinstance(input_shares.share_of(tuple(items), 0, size, is_padded=True), tuple)


@pytest.mark.smoke
def test_what_has_no_shares():
    given = {"a": [1, 2, 3], "b": torch.arange(3)}
    share = input_shares.share_of(given, 1, 2, is_padded=True)
    assert share["a"] == [3, 3]
    assert share["b"].tolist() == [2, 2]
    assert given["a"] == [1, 2, 3]
    with pytest.raises(ValueError, match="'a': 1, 'b': 2"):
        input_shares.share_of({"a": [1], "b": [1, 2]}, 0, 2, is_padded=False)
    with pytest.raises(TypeError, match="not str"):
        input_shares.share_of("text", 0, 2, is_padded=False)
    with pytest.raises(TypeError, match="not dict in a dict"):
        input_shares.share_of({"a": {"x": [1, 2], "y": [3, 4]}, "b": [5, 6]}, 0, 2, is_padded=False)
