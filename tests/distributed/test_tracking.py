"""Of a job of two processes, only the main one records and logs, unless the program says otherwise."""

from __future__ import annotations

import json

import ranks


def test_only_the_main_process_records(tmp_path):
    first, second = ranks.run("tracking_program.py", 2, str(tmp_path), seconds=100)
    trackers = "['CSV', 'JSONLines', 'TensorBoard', 'function']"
    in_order = ["in order"] * 3
    assert first.splitlines() == [f"[rank 0] {text}" for text in ("main only", "everywhere", *in_order)] + [f"calls [0, 1] {trackers}"]
    assert second.splitlines() == [f"[rank 1] {text}" for text in ("everywhere", *in_order)] + [f"calls [] {trackers}"]
    assert (tmp_path / "order").read_text().splitlines() == ["[rank 0] in order", "[rank 1] in order"] * 3
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "metrics.csv").read_text() == "step,loss\n0,0\n1,0\n"
    assert len(list(folder.glob("events.*"))) == 1
    recorded = json.loads((folder / "hyperparameters.json").read_text())
    assert (recorded["rate"], recorded["accelkit"]["num_processes"], recorded["accelkit"]["strategy"]) == (0.1, 2, "ddp")
