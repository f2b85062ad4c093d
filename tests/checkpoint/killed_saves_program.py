"""Run with ``kill_at.c`` preloaded: kills ``save_state`` in a forked child at many points, and loads after each.

    LD_PRELOAD=kill_at.so python killed_saves_program.py FOLDER COUNT

Prints JSON: operations of one save, how many kills hit inside a save, and what was found after each.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import accelkit
from accelkit.runtime.checkpoints import checkpoint

shim = ctypes.CDLL(None)
MOMENTS = (0, 2, 1)  # before the operation, in the middle of it, after it


def variable(name, kind=ctypes.c_int):
    return kind.in_dll(shim, name)


def runtime():
    rt = accelkit.Runtime(accelerator="cpu")
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    return rt, rt.prepare(model)


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def save_in_child(folder, value, point, moment):
    """Fork, save ``value``, be killed at ``point``. Returns (whether it was killed, operations if it was not)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        rt, model = runtime()
        fill(model, value)
        variable("kill_when").value = moment
        variable("kill_at").value = point
        variable("operations").value = 0
        ctypes.memmove(ctypes.addressof(variable("kill_below", ctypes.c_char)), str(folder).encode() + b"\0", len(str(folder)) + 1)
        rt.save_state(folder)
        os.write(writer, str(variable("operations").value).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return os.WIFSIGNALED(status), int(text or -1)


def value_of(folder):
    """The one value in the newest checkpoint; whatever is named step-N must be whole."""
    for step in folder.glob("step-*[0-9]"):
        checkpoint.load(step)
    rt, model = runtime()
    rt.load_state(folder)
    values = {value for parameter in model.parameters() for value in parameter.unique().tolist()}
    assert len(values) == 1, f"a checkpoint that is half old and half new: {values}"
    return values.pop()


def main(folder, count):
    was_killed, operations = save_in_child(folder, 1.0, -1, 0)
    assert not was_killed
    assert value_of(folder) == 1.0
    points = [(point, moment) for point in range(operations) for moment in MOMENTS]
    chosen = [points[index * (len(points) - 1) // (count - 1)] for index in range(count)]  # the first, the last, and between
    outcomes = []
    previous = 1.0
    for number, (point, moment) in enumerate(chosen):
        new = previous + 1
        was_killed, _ = save_in_child(folder, new, point, moment)
        found = value_of(folder)
        assert found in (previous, new), f"after a kill at {point}.{moment}: {found}, neither {previous} nor {new}"
        outcomes.append({"point": point, "moment": moment, "killed": was_killed, "found": "new" if found == new else "previous"})
        previous = found
        if number % 10 == 9:  # a save after kills works, and clears what they left
            assert not save_in_child(folder, previous + 1, -1, 0)[0]
            previous = value_of(folder)
            assert not list(folder.glob("step-*.tmp"))
    print(json.dumps({"operations": operations, "killed_inside": sum(o["killed"] for o in outcomes), "outcomes": outcomes}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
