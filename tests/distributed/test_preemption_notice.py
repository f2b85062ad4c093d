"""One process is told by its cluster environment that the job will be stopped: all save the same step and leave together."""

from __future__ import annotations

import re

import ranks


def test_one_of_two_processes_has_a_notice(tmp_path):
    codes, texts = ranks.outcome("preemption_notice_program.py", 2, str(tmp_path), seconds=100)
    assert codes == [143, 143], "\n".join(texts)
    steps = [re.findall(r"stopped after step (\d+)", text) for text in texts]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 1
    assert int(steps[0][0]) >= 5
    assert [path.name for path in (tmp_path / "ckpt").glob("step-*")] == ["step-0"]
