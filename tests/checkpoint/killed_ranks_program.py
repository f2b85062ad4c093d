"""Run with ``kill_at.c`` preloaded: kills one of two processes at many points of a save, and loads after each.

    LD_PRELOAD=kill_at.so python killed_ranks_program.py FOLDER COUNT

Prints JSON: file operations of a save by rank, how many kills hit inside a save, and what was found after each.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import torch
from forked_ranks import runtime, world
from killed_saves_program import MOMENTS, fill, value_of, variable
from torch import nn

from accelkit import CheckpointError


def save(env, folder, value, kill):
    victim, point, moment = kill
    rt = runtime(env, "fsdp")
    model = rt.prepare(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256)))
    fill(model, value)
    name = str(folder).encode() + b"\0"
    variable("kill_when").value = moment
    variable("kill_at").value = point if env.global_rank == victim else -1
    variable("operations").value = 0
    ctypes.memmove(ctypes.addressof(variable("kill_below", ctypes.c_char)), name, len(name))
    try:
        rt.save_state(folder, keep_last=3)
        said = str(variable("operations").value)
    except CheckpointError as error:
        said = str(error)
    notes_of(folder, env.global_rank).write_text(said)
    variable("kill_below", ctypes.c_char).value = b"\0"
    os._exit(0)  # the other may be dead: nothing is taken down together


def notes_of(folder, rank):
    return folder.with_name(f"said-by-{rank}")


def main(folder, count):
    assert not world(2, save, folder, 1.0, (0, -1, 0))
    assert value_of(folder) == 1.0
    operations = [int(notes_of(folder, rank).read_text()) for rank in range(2)]
    points = [[(point, moment) for point in range(total) for moment in MOMENTS] for total in operations]
    halves = (count + 1) // 2
    outcomes, previous = [], 1.0
    for number in range(count):
        victim = number % 2
        mine = points[victim]
        point, moment = mine[number // 2 * (len(mine) - 1) // max(halves - 1, 1)]
        new = previous + 1
        died = world(2, save, folder, new, (victim, point, moment), may_die=(victim,))
        said = notes_of(folder, 1 - victim).read_text()
        assert said.isdigit() or f"rank {victim}: " in said, said
        assert not said.isdigit() or not died or victim == 1, "rank 1 does not succeed without rank 0"
        found = value_of(folder)
        assert found in (previous, new), f"rank {victim} killed at {point}.{moment}: {found}, neither {previous} nor {new}"
        was = "new" if found == new else "previous"
        outcomes.append({"rank": victim, "point": point, "moment": moment, "killed": bool(died), "found": was})
        previous = found
    assert not world(2, save, folder, previous + 1, (0, -1, 0))
    assert value_of(folder) == previous + 1
    assert len(list(folder.glob("step-*[0-9]"))) == min(3, int(previous + 1))
    assert not list(folder.glob("step-*.tmp")), "a save after kills clears what they left"
    print(json.dumps({"operations": operations, "killed_inside": sum(o["killed"] for o in outcomes), "outcomes": outcomes}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
