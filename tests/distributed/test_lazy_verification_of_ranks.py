"""``load_state(verify="lazy")`` in a job: each process verifies what it reads, and damage that one process finds ends them all."""

from __future__ import annotations

import ranks


def test_no_process_uses_a_damaged_tensor(tmp_path):
    helpers = {"PYTHONPATH": str(ranks.HERE.parent)}
    ranks.run("lazy_verification_program.py", 2, str(tmp_path), environ=helpers, seconds=150)
