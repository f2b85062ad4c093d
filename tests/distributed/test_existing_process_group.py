"""A Runtime uses the group that the program has made, though it has no backend for the CPU."""

from __future__ import annotations

import json

import ranks


def test_a_group_with_a_backend_for_the_device_only(tmp_path):
    texts = ranks.run("existing_process_group_program.py", 2, str(tmp_path / "checkpoint"))
    found = [json.loads(line.removeprefix("result:")) for text in texts for line in text.splitlines() if line.startswith("result:")]
    expected = {"first": False, "told": True, "objects": [{"rank": 0}, {"rank": 1}], "samples": list(range(8)), "loaded": True}
    assert found == [expected] * 2
