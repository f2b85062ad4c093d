"""What one process asks for or runs into, all processes do together: triggers, seeds, smaller batches and errors about options."""

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


def test_a_different_option_is_an_error_on_every_process(error_text):
    """Sizes, plans and the options of fsdp and ddp. Without the error, the processes would wait for each other."""
    first, second = ranks.run("options_program.py", 2, "cpu", seconds=100)
    assert first == second
    assert [line for line in first.splitlines() if line.startswith("REFUSED")] == [error_text] * 6
    assert first.endswith("done\n")
