"""What one process asks for or runs into, all processes do together: triggers, seeds and smaller batches."""

from __future__ import annotations

import json

import ranks


def test_two_processes_agree():
    texts = ranks.run("agreement_program.py", 2, seconds=100)
    first, second = (json.loads(text.splitlines()[-1]) for text in texts)
    assert first["triggered"] == second["triggered"] == [2, 4]
    assert first["equal"] == second["equal"]
    assert not set(first["differing"]) & set(second["differing"])
    assert first["batch size"] == second["batch size"] == [8, 4]
    assert first["nothing fits"].endswith("another process ran out of memory")
    assert "Tried to allocate" in second["nothing fits"]
