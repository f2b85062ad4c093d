"""A Runtime uses the group that the program has made, though it has no backend for the CPU."""

from __future__ import annotations

import json

import ranks


def test_a_group_with_a_backend_for_the_device_only(tmp_path):
    texts = ranks.run("existing_process_group_program.py", 2, "fake_xpu:fxccl", str(tmp_path / "checkpoint"))
    found = [json.loads(line.removeprefix("result:")) for text in texts for line in text.splitlines() if line.startswith("result:")]
    expected = {"first": False, "told": True, "objects": [{"rank": 0}, {"rank": 1}], "samples": list(range(8)), "loaded": True}
    assert found == [expected] * 2


def test_a_group_without_a_backend_for_the_device_is_refused(tmp_path):
    for text in ranks.run("existing_process_group_program.py", 2, "cpu:gloo", str(tmp_path)):
        assert "refused: the process group does not reduce tensors on fake_xpu why: No backend type associated with device type" in text
        assert "gloo" in text.partition("its backends are ")[2]
        assert "let the Runtime make the group" in text
